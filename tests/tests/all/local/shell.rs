//! `atoll sandbox shell` on a terminal, which `script` makes.

use atoll_tests::local::{Ground, PATIENCE};
use atoll_tests::process;
use serde_json::json;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;
use tokio::task::block_in_place;

/// The program on a terminal of 80 by 24, with what its screen was told.
struct Screen {
    child: Child,
    keyboard: ChildStdin,
    pieces: Receiver<Vec<u8>>,
    seen: Vec<u8>,
}

impl Screen {
    fn start(ground: &Ground, arguments: &str) -> Self {
        let program = process::program("atoll");
        let line = format!(
            "stty cols 80 rows 24; before=$(stty -g); '{}' sandbox {arguments}; code=$?; \
             [ \"$(stty -g)\" = \"$before\" ] && echo restored; echo code=$code",
            program.display()
        );
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "script", "--quiet", "--flush", "--return", "--command", &line]);
        command.arg("/dev/null").env("SHELL", "/bin/sh").env("TERM", "xterm-256color");
        command.env("ATOLL_DATA_DIR", ground.data()).env_remove("ATOLL_SERVER").env_remove("ATOLL_TOKEN");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = process::spawn(command);
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
        Self { child, keyboard, pieces, seen: Vec::new() }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen).into_owned()
    }

    /// Waits until this is shown, and forgets everything up to there.
    fn until(&mut self, wanted: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.seen.windows(wanted.len()).position(|window| window == wanted.as_bytes());
            if let Some(found) = found {
                self.seen.drain(..found + wanted.len());
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.pieces.recv_timeout(left) {
                Ok(piece) => self.seen.extend(piece),
                Err(RecvTimeoutError::Timeout) => panic!("{wanted:?} does not come: {}", self.text()),
                Err(RecvTimeoutError::Disconnected) => panic!("it ended without {wanted:?}: {}", self.text()),
            }
        }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
        self.keyboard.flush().unwrap();
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_works_leaves_and_comes_back() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    block_in_place(|| {
        let mut screen = Screen::start(&ground, &format!("shell {id}"));
        screen.until("Ctrl-] leaves the terminal");
        screen.press("stty size; echo at''work; printf '\\033[?1049h\\033[?25l'\r");
        screen.until("24 80");
        screen.until("\x1b[?25l");
        screen.press("\x1d");
        // What was left on is switched off.
        screen.until("\x1b[?25h");
        screen.until("\x1b[?1049l");
        screen.until("--exec ");
        screen.until("restored\r\ncode=0");
        let list = process::command("atoll")
            .args(["sandbox", "shell", &id, "--list", "--json"])
            .env("ATOLL_DATA_DIR", ground.data())
            .output()
            .unwrap();
        let row: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
        let exec = row["id"].as_str().unwrap();
        let mut one = Screen::start(&ground, &format!("shell {id} --exec {exec}"));
        one.until("atwork");
        let mut two = Screen::start(&ground, &format!("shell {id} --exec {exec}"));
        two.until("atwork");
        // Keys are taken a moment after the old output.
        std::thread::sleep(std::time::Duration::from_millis(500));
        two.press("echo from t''wo\r");
        one.until("from two");
        one.press("exit 23\r");
        for screen in [&mut one, &mut two] {
            screen.until("restored\r\ncode=23");
        }
    });
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_get_a_terminal_and_a_lost_one_is_said() {
    let mut ground = Ground::start();
    let id = ground.kept(json!({})).await;
    block_in_place(|| {
        let mut screen =
            Screen::start(&ground, &format!("exec {id} -t --env A=b -- sh -c 'tty; echo $A; read x; exit 4'"));
        screen.until("/dev/pts/");
        screen.until("b\r\n");
        screen.press("go\r");
        screen.until("restored\r\ncode=4");
        let mut screen = Screen::start(&ground, &format!("shell {id} --cwd /tmp -- sh -c 'pwd; exec sleep 1000'"));
        screen.until("/tmp\r\n");
        screen.press("\x03");
        screen.until("restored\r\ncode=130");
        let mut screen = Screen::start(&ground, &format!("shell {id}"));
        screen.until("Ctrl-] leaves the terminal");
        screen.press("echo he''re\r");
        screen.until("here\r\n");
        ground.server.kill();
        screen.until("trying again");
        ground.server.start_again();
        screen.until("there is no such command any more");
        screen.until("restored\r\ncode=2");
    });
    ground.leave().await;
}
