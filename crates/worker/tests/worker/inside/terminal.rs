//! Commands on a terminal of their own.

use super::{Exec, Sandbox, start};
use atoll_protocol::exec::{Ask, End, Start, Terminal};
use std::io::Write;
use std::time::{Duration, Instant};

fn on_terminal(argv: &[&str]) -> Start {
    Start { terminal: Some(Terminal { columns: 80, rows: 24 }), ..start(argv) }
}

impl Exec {
    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Reads until this is shown so many times.
    fn until(&mut self, wanted: &str, times: usize) {
        while self.shown().matches(wanted).count() < times {
            assert_eq!(self.hear(), None, "it ended without {wanted:?}: {}", self.shown());
        }
    }

    fn press(&mut self, keys: &str) {
        self.send(&Ask::Stdin(keys.as_bytes().to_vec()));
    }
}

#[test]
fn a_terminal_has_its_size_and_belongs_to_its_program() {
    let sandbox = Sandbox::start();
    let script = "test -t 0 && test -t 1 && test -t 2 && echo all three; stty size; echo $TERM; tty; \
                  echo \"${PAGER-none} ${EDITOR-none}\"; ps -o sid=,tpgid= -p $$ | xargs echo $$; \
                  test -O $(tty) && echo owned; exit 5";
    let mut exec = sandbox.exec(on_terminal(&["sh", "-c", script]));
    assert_eq!(exec.end(), End::Exited { code: 5 });
    let shown = exec.shown();
    let lines: Vec<&str> = shown.split("\r\n").collect();
    assert_eq!(lines[..3], ["all three", "24 80", "xterm-256color"], "{shown}");
    assert!(lines[3].starts_with("/dev/pts/") && lines[4] == "none none", "{shown}");
    let ids: Vec<&str> = lines[5].split_whitespace().collect();
    assert!(ids.len() == 3 && ids[0] == ids[1] && ids[1] == ids[2], "leader, and in front: {shown}");
    assert_eq!(lines[6], "owned");
    assert!(exec.stderr.is_empty());
    let given = Start { env: [("TERM".to_owned(), "vt100".to_owned())].into(), ..on_terminal(&["env"]) };
    let mut exec = sandbox.exec(given);
    assert_eq!(exec.end(), End::Exited { code: 0 });
    assert!(exec.shown().contains("TERM=vt100\r\n"), "{}", exec.shown());
    let nothing = Start { terminal: Some(Terminal { columns: 0, rows: 24 }), ..start(&["true"]) };
    assert!(matches!(sandbox.exec(nothing).end(), End::NotStarted { error } if error.contains("at least one column")));
    let missing = sandbox.exec(on_terminal(&["no-such-program"])).end();
    assert!(matches!(missing, End::NotStarted { error } if error.contains("no such program")));
}

#[test]
fn another_size_is_told_to_who_is_in_front() {
    let sandbox = Sandbox::start();
    let script = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done";
    let mut exec = sandbox.exec(on_terminal(&["sh", "-c", script]));
    exec.until("ready", 1);
    exec.send(&Ask::Resize(Terminal { columns: 0, rows: 0 }));
    exec.send(&Ask::Resize(Terminal { columns: 133, rows: 41 }));
    exec.until("41 133", 1);
    assert!(!exec.shown().contains("0 0"), "nonsense changes nothing: {}", exec.shown());
    exec.send(&Ask::Signal(9));
    assert_eq!(exec.end(), End::Signalled { signal: 9 });
}

#[test]
fn what_is_typed_comes_in_and_keys_have_their_meaning() {
    let sandbox = Sandbox::start();
    let mut cat = sandbox.exec(on_terminal(&["cat"]));
    cat.press("hällo\r");
    cat.until("hällo\r\n", 2);
    cat.send(&Ask::CloseStdin);
    assert_eq!(cat.end(), End::Exited { code: 0 });
    // No shell before it: one that is about to become another program may swallow the signal.
    let mut other = sandbox.exec(on_terminal(&["cat"]));
    other.press("ready\r");
    other.until("ready\r\n", 2);
    // A person presses it again when nothing happens.
    let mut keys = other.stream.try_clone().unwrap();
    let pressing = std::thread::spawn(move || {
        let press = Ask::Stdin(b"\x03".to_vec()).encode();
        while keys.write_all(&press).is_ok() {
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    assert_eq!(other.end(), End::Signalled { signal: 2 });
    drop(other);
    pressing.join().unwrap();
}

#[test]
fn a_shell_on_it_has_job_control() {
    let sandbox = Sandbox::start();
    let mut shell = sandbox.exec(on_terminal(&["bash", "--norc", "-i"]));
    shell.press("PS1='$ '; echo be''gun\r");
    shell.until("begun\r\n", 1);
    shell.press("sleep 100\r");
    shell.until("sleep 100", 1);
    // The key must find it in front, so it is pressed until it does.
    let deadline = Instant::now() + Duration::from_secs(20);
    while !shell.shown().contains("Stopped") && Instant::now() < deadline {
        shell.press("\x1a");
        std::thread::sleep(Duration::from_millis(50));
        shell.press("jobs\r");
        shell.hear();
    }
    shell.press("kill %1; echo kil''led\r");
    shell.until("killed\r\n", 1);
    // A signal from outside reaches what is in front, not only the shell.
    shell.press("sh -c 'trap \"echo hea\"\"rd; exit 3\" USR1; echo wai\"\"ting; while :; do sleep 0.05; done'; echo \"it was $?\"\r");
    shell.until("waiting\r\n", 1);
    shell.press("");
    shell.send(&Ask::Signal(10));
    // The shell itself dies of a signal that it does not know, and with it goes its terminal.
    assert_eq!(shell.end(), End::Signalled { signal: 10 });
}

#[test]
fn all_that_is_shown_comes_before_the_end_and_nobody_holds_it_up() {
    let sandbox = Sandbox::start();
    let mut exec = sandbox.exec(on_terminal(&["seq", "1", "50000"]));
    assert_eq!(exec.end(), End::Exited { code: 0 });
    let wanted: String = (1..=50_000).map(|n| format!("{n}\r\n")).collect();
    assert!(exec.shown() == wanted, "{} of {} bytes", exec.stdout.len(), wanted.len());
    let beginning = Instant::now();
    let mut exec = sandbox.exec(on_terminal(&["sh", "-c", "trap '' HUP; sleep 30 & echo left one"]));
    assert_eq!(exec.end(), End::Exited { code: 0 });
    assert_eq!(exec.shown(), "left one\r\n");
    assert!(beginning.elapsed() < Duration::from_secs(10), "{:?}", beginning.elapsed());
    assert!(sandbox.ask("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").contains("sleep 30"), "it lives on");
}

#[test]
fn a_lost_connection_takes_the_terminal_away() {
    let sandbox = Sandbox::start();
    let mut exec = sandbox.exec(on_terminal(&["sh", "-c", "(sleep 101 &); echo ready; sleep 102"]));
    exec.until("ready", 1);
    drop(exec);
    crate::until("their end", || !sandbox.ask("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").contains("sleep 10"));
    assert_eq!(sandbox.ask("ls /proc/1/fd | wc -l | xargs test 40 -gt && echo few"), "few\n");
}
