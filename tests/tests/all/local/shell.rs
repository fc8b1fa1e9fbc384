//! `atoll sandbox shell` and other commands on a terminal that `script` creates.

use atoll_test_wait::{try_wait_for, wait_until};
use atoll_tests::local::{LocalServer, host_state};
use atoll_tests::process;
use rustix::process::Signal;
use serde_json::json;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use tokio::task::block_in_place;

/// `atoll` on a terminal with 24 lines, with its output.
pub struct CommandTerminal {
    child: Child,
    keyboard: ChildStdin,
    pieces: Receiver<Vec<u8>>,
    output: Vec<u8>,
}

impl CommandTerminal {
    pub fn start(server: &LocalServer, columns: u16, arguments: &str) -> Self {
        let program = process::find_program("atoll");
        let line = format!(
            "stty cols {columns} rows 24; before=$(stty -g); '{}' {arguments}; code=$?; \
             [ \"$(stty -g)\" = \"$before\" ] && echo restored; echo code=$code",
            program.display()
        );
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "script", "--quiet", "--flush", "--return", "--command", &line]);
        command.arg("/dev/null").env("SHELL", "/bin/sh").env("TERM", "xterm-256color");
        command.env("ATOLL_DATA_DIR", server.data_dir()).env_remove("ATOLL_SERVER").env_remove("ATOLL_TOKEN");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = process::spawn_process(command);
        let (keyboard, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, pieces) = channel();
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = screen.read(&mut piece) {
                if sender.send(piece[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, keyboard, pieces, output: Vec::new() }
    }

    fn screen_text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }

    /// Discards the output up to this text. Returns false if the text is not shown yet.
    fn take_text(&mut self, expected: &str) -> bool {
        self.output.extend(self.pieces.try_iter().flatten());
        let found = self.output.windows(expected.len()).position(|window| window == expected.as_bytes());
        self.output.drain(..found.map_or(0, |found| found + expected.len()));
        found.is_some()
    }

    pub fn wait_for_text(&mut self, expected: &str) {
        let shown = try_wait_for(|| if self.take_text(expected) { Ok(()) } else { Err(self.screen_text()) });
        shown.unwrap_or_else(|screen| panic!("{expected:?} does not come: {screen}"));
    }

    pub fn send_keys(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
        self.keyboard.flush().unwrap();
    }
}

impl Drop for CommandTerminal {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_detaches_from_a_shell_and_attaches_again() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    block_in_place(|| {
        let mut screen = CommandTerminal::start(&server, 80, &format!("sandbox shell {id}"));
        screen.wait_for_text("Ctrl-] detaches");
        screen.send_keys("stty size; echo at''work; printf '\\033[?1049h\\033[?25l'\r");
        screen.wait_for_text("24 80");
        screen.wait_for_text("\x1b[?25l");
        screen.send_keys("\x1d");
        // Detaching resets the terminal's modes.
        screen.wait_for_text("\x1b[?25h");
        screen.wait_for_text("\x1b[?1049l");
        screen.wait_for_text("--exec ");
        screen.wait_for_text("restored\r\ncode=0");
        let list = process::program_command("atoll")
            .args(["sandbox", "shell", &id, "--list", "--json"])
            .env("ATOLL_DATA_DIR", server.data_dir())
            .output()
            .unwrap();
        let row: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
        let exec = row["id"].as_str().unwrap();
        let mut one = CommandTerminal::start(&server, 80, &format!("sandbox shell {id} --exec {exec}"));
        one.wait_for_text("atwork");
        let mut two = CommandTerminal::start(&server, 80, &format!("sandbox shell {id} --exec {exec}"));
        two.wait_for_text("atwork");
        // Repeat the keys, as a user would: the terminal discards keys until shortly after the replayed output.
        wait_until("keys to arrive", || {
            two.send_keys("echo from t''wo\r");
            one.take_text("from two")
        });
        one.send_keys("exit 23\r");
        for screen in [&mut one, &mut two] {
            screen.wait_for_text("restored\r\ncode=23");
        }
    });
    server.stop_and_check().await;
}

/// A stopped launcher keeps the sandbox in its creation until the shell waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shell_waits_for_a_sandbox_that_is_being_created() {
    let server = LocalServer::start();
    let launcher = host_state::list_children(server.process.pid());
    assert!(!launcher.is_empty() && launcher.iter().all(|process| process.send_signal(Signal::STOP)));
    let id = server.create_sandbox(json!({ "end": "keep" })).await;
    block_in_place(|| {
        let mut screen = CommandTerminal::start(&server, 80, &format!("sandbox shell {id}"));
        let outcome = try_wait_for(|| if screen.take_text("creating ") { Ok(()) } else { Err(()) });
        assert!(launcher.iter().all(|process| process.send_signal(Signal::CONT)));
        assert!(outcome.is_ok(), "the shell does not wait: {}", screen.screen_text());
        screen.wait_for_text("Ctrl-] detaches");
        screen.send_keys("echo at''work; exit 5\r");
        screen.wait_for_text("atwork");
        screen.wait_for_text("restored\r\ncode=5");
    });
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_get_a_terminal_and_a_lost_terminal_is_reported() {
    let mut server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    block_in_place(|| {
        let mut screen = CommandTerminal::start(
            &server,
            80,
            &format!("sandbox exec {id} -t --env A=b -- sh -c 'tty; echo $A; read x; exit 4'"),
        );
        screen.wait_for_text("/dev/pts/");
        screen.wait_for_text("b\r\n");
        screen.send_keys("go\r");
        screen.wait_for_text("restored\r\ncode=4");
        let mut screen = CommandTerminal::start(
            &server,
            80,
            &format!("sandbox shell {id} --cwd /tmp -- sh -c 'pwd; exec sleep 1000'"),
        );
        screen.wait_for_text("/tmp\r\n");
        screen.send_keys("\x03");
        screen.wait_for_text("restored\r\ncode=130");
        let mut screen = CommandTerminal::start(&server, 80, &format!("sandbox shell {id}"));
        screen.wait_for_text("Ctrl-] detaches");
        screen.send_keys("echo he''re\r");
        screen.wait_for_text("here\r\n");
        server.process.kill();
        screen.wait_for_text("reconnecting");
        server.process.restart();
        screen.wait_for_text("there is no such command");
        screen.wait_for_text("restored\r\ncode=2");
    });
    server.stop_and_check().await;
}
