//! Commands with a terminal.

use super::{ExecConnection, WorkerSandbox, exec_start};
use atoll_protocol::exec::{ExecClientFrame, ExecExit, ExecStart, TerminalSize};
use atoll_test_wait::wait_until;
use std::io::Write;
use std::time::{Duration, Instant};

fn terminal_start(argv: &[&str]) -> ExecStart {
    ExecStart { terminal: Some(TerminalSize { columns: 80, rows: 24 }), ..exec_start(argv) }
}

impl ExecConnection {
    fn screen_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Reads until the text has appeared `times` times.
    fn wait_for_text(&mut self, text: &str, times: usize) {
        while self.screen_text().matches(text).count() < times {
            assert_eq!(self.read_frame(), None, "the command ended without {text:?}: {}", self.screen_text());
        }
    }

    fn send_keys(&mut self, keys: &str) {
        self.send(&ExecClientFrame::Stdin(keys.as_bytes().to_vec()));
    }
}

#[test]
fn a_command_controls_a_terminal_of_the_requested_size() {
    let sandbox = WorkerSandbox::start();
    let script = "test -t 0 && test -t 1 && test -t 2 && echo all three; stty size; echo $TERM; tty; \
                  echo \"${PAGER-none} ${EDITOR-none}\"; ps -o sid=,tpgid= -p $$ | xargs echo $$; \
                  test -O $(tty) && echo owned; exit 5";
    let mut exec = sandbox.start_exec(terminal_start(&["sh", "-c", script]));
    assert_eq!(exec.wait_for_end(), ExecExit::Exited { code: 5 });
    let screen = exec.screen_text();
    let lines: Vec<&str> = screen.split("\r\n").collect();
    assert_eq!(lines[..3], ["all three", "24 80", "xterm-256color"], "{screen}");
    assert!(lines[3].starts_with("/dev/pts/") && lines[4] == "none none", "{screen}");
    let ids: Vec<&str> = lines[5].split_whitespace().collect();
    assert!(
        ids.len() == 3 && ids[0] == ids[1] && ids[1] == ids[2],
        "not the session leader in the foreground: {screen}"
    );
    assert_eq!(lines[6], "owned");
    assert!(exec.stderr.is_empty());
    let start = ExecStart { env: [("TERM".to_owned(), "vt100".to_owned())].into(), ..terminal_start(&["env"]) };
    let mut exec = sandbox.start_exec(start);
    assert_eq!(exec.wait_for_end(), ExecExit::Exited { code: 0 });
    assert!(exec.screen_text().contains("TERM=vt100\r\n"), "{}", exec.screen_text());
    let no_columns = ExecStart { terminal: Some(TerminalSize { columns: 0, rows: 24 }), ..exec_start(&["true"]) };
    assert!(
        matches!(sandbox.start_exec(no_columns).wait_for_end(), ExecExit::NotStarted { error } if error.contains("at least one column"))
    );
    let missing = sandbox.start_exec(terminal_start(&["no-such-program"])).wait_for_end();
    assert!(matches!(missing, ExecExit::NotStarted { error } if error.contains("no such program")));
}

#[test]
fn resizing_signals_the_foreground_process() {
    let sandbox = WorkerSandbox::start();
    let script = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done";
    let mut exec = sandbox.start_exec(terminal_start(&["sh", "-c", script]));
    exec.wait_for_text("ready", 1);
    exec.send(&ExecClientFrame::Resize(TerminalSize { columns: 0, rows: 0 }));
    exec.send(&ExecClientFrame::Resize(TerminalSize { columns: 133, rows: 41 }));
    exec.wait_for_text("41 133", 1);
    assert!(!exec.screen_text().contains("0 0"), "an invalid size was applied: {}", exec.screen_text());
    exec.send(&ExecClientFrame::Signal(9));
    assert_eq!(exec.wait_for_end(), ExecExit::Signalled { signal: 9 });
}

#[test]
fn forwards_input_and_control_keys() {
    let sandbox = WorkerSandbox::start();
    let mut cat = sandbox.start_exec(terminal_start(&["cat"]));
    cat.send_keys("hällo\r");
    cat.wait_for_text("hällo\r\n", 2);
    cat.send(&ExecClientFrame::CloseStdin);
    assert_eq!(cat.wait_for_end(), ExecExit::Exited { code: 0 });
    // Without a shell: a shell that is about to exec may swallow the signal.
    let mut other = sandbox.start_exec(terminal_start(&["cat"]));
    other.send_keys("ready\r");
    other.wait_for_text("ready\r\n", 2);
    // Repeat the key, as a user would.
    let mut keys = other.stream.try_clone().unwrap();
    let pressing = std::thread::spawn(move || {
        let press = ExecClientFrame::Stdin(b"\x03".to_vec()).encode();
        while keys.write_all(&press).is_ok() {
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    assert_eq!(other.wait_for_end(), ExecExit::Signalled { signal: 2 });
    drop(other);
    pressing.join().unwrap();
}

#[test]
fn a_shell_on_a_terminal_has_job_control() {
    let sandbox = WorkerSandbox::start();
    let mut shell = sandbox.start_exec(terminal_start(&["bash", "--norc", "-i"]));
    shell.send_keys("PS1='$ '; echo be''gun\r");
    shell.wait_for_text("begun\r\n", 1);
    // The key discards unread input, so the command reports first that it runs in the foreground.
    shell.send_keys("sh -c 'echo sta\"\"rted; exec sleep 100'\r");
    shell.wait_for_text("started\r\n", 1);
    shell.send_keys("\x1a");
    shell.wait_for_text("Stopped", 1);
    shell.send_keys("kill %1; echo kil''led\r");
    shell.wait_for_text("killed\r\n", 1);
    // A signal of the client reaches the foreground process, not only the shell.
    shell.send_keys("sh -c 'trap \"echo hea\"\"rd; exit 3\" USR1; echo wai\"\"ting; while :; do sleep 0.05; done'; echo \"it was $?\"\r");
    shell.wait_for_text("waiting\r\n", 1);
    shell.send_keys("");
    shell.send(&ExecClientFrame::Signal(10));
    // The shell has no handler for the signal and dies, which closes the terminal.
    assert_eq!(shell.wait_for_end(), ExecExit::Signalled { signal: 10 });
}

#[test]
fn sends_all_output_before_the_exit() {
    let sandbox = WorkerSandbox::start();
    let mut exec = sandbox.start_exec(terminal_start(&["seq", "1", "50000"]));
    assert_eq!(exec.wait_for_end(), ExecExit::Exited { code: 0 });
    let expected: String = (1..=50_000).map(|n| format!("{n}\r\n")).collect();
    assert!(exec.screen_text() == expected, "{} of {} bytes", exec.stdout.len(), expected.len());
    let began = Instant::now();
    let mut exec = sandbox.start_exec(terminal_start(&["sh", "-c", "trap '' HUP; sleep 300 & echo left one"]));
    assert_eq!(exec.wait_for_end(), ExecExit::Exited { code: 0 });
    assert_eq!(exec.screen_text(), "left one\r\n");
    assert!(began.elapsed() < Duration::from_secs(50), "{:?}", began.elapsed());
    assert!(sandbox.run_shell("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").contains("sleep 300"), "the child was killed");
}

#[test]
fn a_lost_connection_closes_the_terminal() {
    let sandbox = WorkerSandbox::start();
    let mut exec = sandbox.start_exec(terminal_start(&["sh", "-c", "(sleep 101 &); echo ready; sleep 102"]));
    exec.wait_for_text("ready", 1);
    drop(exec);
    wait_until("the end of both processes", || {
        !sandbox.run_shell("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").contains("sleep 10")
    });
    assert_eq!(sandbox.run_shell("ls /proc/1/fd | wc -l | xargs test 40 -gt && echo few"), "few\n");
}
