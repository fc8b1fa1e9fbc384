//! `atoll run` on a terminal that `script` provides.

use crate::program::{atoll, clean, objects, serve, text};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

/// A shell command on a terminal of 80 by 24.
struct OnTerminal {
    child: Child,
    output: Vec<u8>,
    /// The end of the last match.
    at: usize,
}

impl OnTerminal {
    fn start(data_dir: &std::path::Path, prompt: &str) -> Self {
        let atoll = env!("CARGO_BIN_EXE_atoll");
        // Compare the terminal's modes before and after.
        let line = format!(
            "stty cols 80 rows 24; before=$(stty -g); '{atoll}' run --provider fake '{prompt}'; code=$?; \
             [ \"$(stty -g)\" = \"$before\" ] && echo restored; echo exit=$code"
        );
        // Limit tests that wait for output that never comes.
        let mut command = Command::new("timeout");
        command.args(["--foreground", "60", "script"]);
        clean(&mut command);
        command.args(["--quiet", "--flush", "--return", "--command", &line, "/dev/null"]);
        command
            .env("ATOLL_DATA_DIR", data_dir)
            .env("TERM", "xterm-256color")
            .env("SHELL", "/bin/sh")
            .env_remove("NO_COLOR");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        Self { child, output: Vec::new(), at: 0 }
    }

    /// Reads until this text appears after the last match.
    fn until(&mut self, text: &str) {
        let mut piece = [0; 4096];
        loop {
            let unread = &self.output[self.at..];
            let found = unread.windows(text.len()).position(|window| window == text.as_bytes());
            if let Some(found) = found {
                self.at += found + text.len();
                return;
            }
            let length = self.child.stdout.as_mut().unwrap().read(&mut piece).unwrap();
            assert!(length > 0, "the output ended without {text:?}:\n{}", String::from_utf8_lossy(&self.output));
            self.output.extend_from_slice(&piece[..length]);
        }
    }

    fn press(&mut self, keys: &str) {
        let keyboard = self.child.stdin.as_mut().unwrap();
        keyboard.write_all(keys.as_bytes()).unwrap();
        keyboard.flush().unwrap();
    }

    /// Closes stdin and returns the whole output.
    fn end(mut self) -> String {
        drop(self.child.stdin.take());
        self.child.stdout.take().unwrap().read_to_end(&mut self.output).unwrap();
        self.child.wait().unwrap();
        text(&std::mem::take(&mut self.output))
    }
}

/// Closes the terminal: `timeout` passes the signal to `script`.
impl Drop for OnTerminal {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        drop(self.child.wait());
    }
}

#[test]
fn typed_text_reaches_the_agent_during_its_turn() {
    let dir = tempfile::tempdir().unwrap();
    let mut terminal = OnTerminal::start(dir.path(), "say begun\nask may I?\nsay done");
    terminal.until("waits for your answer");
    terminal.press("approve");
    terminal.until("approve");
    terminal.press("\r");
    terminal.until("reached the agent in turn 1 (injected)");
    terminal.until("done in");
    let screen = terminal.end();
    assert!(screen.contains("exit=0") && screen.contains("restored"), "{screen}");
}

#[test]
fn one_key_answers_an_approval() {
    let dir = tempfile::tempdir().unwrap();
    let mut terminal = OnTerminal::start(dir.path(), "say begun\nask may I?\nsay **done**");
    terminal.until("y approves");
    terminal.press("y");
    terminal.until("reached the agent in turn 1 (injected)");
    // A terminal shows Markdown as styles.
    terminal.until("\x1b[1mdone\x1b[0m");
    terminal.until("done in");
    let screen = terminal.end();
    assert!(screen.contains("exit=0") && screen.contains("restored"), "{screen}");
}

#[test]
fn closing_the_terminal_stops_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let mut terminal = OnTerminal::start(dir.path(), "say begun\nwait 600");
    terminal.until("begun");
    terminal.until("working");
    drop(terminal);
    // The embedded server releases its data directory at the end of the run.
    let after = atoll(dir.path()).args(["run", "--provider", "fake", "--json", "say hello"]).output().unwrap();
    assert_eq!(after.status.code(), Some(0), "{}", text(&after.stderr));
    let (_server, _) = serve(dir.path(), "127.0.0.1:0");
    let listed = atoll(dir.path()).args(["sandbox", "ls", "--json"]).output().unwrap();
    let outcomes: Vec<_> = objects(&listed).iter().map(|row| row["outcome"].clone()).collect();
    assert_eq!(outcomes, ["succeeded", "cancelled"]);
}

#[test]
fn the_first_ctrl_c_interrupts_and_the_second_stops_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let mut terminal = OnTerminal::start(dir.path(), "say begun\nwait 600");
    // The agent's message, not the prompt.
    terminal.until("• ");
    terminal.until("begun");
    terminal.press("\x03");
    terminal.until("the agent was interrupted");
    terminal.press("say I go on\nwait 600\r");
    terminal.until("• ");
    terminal.until("I go on");
    terminal.press("\x03");
    terminal.until("the agent was interrupted");
    terminal.press("\x03");
    terminal.until("stopped after");
    let screen = terminal.end();
    assert!(screen.contains("exit=130") && screen.contains("restored"), "{screen}");
}
