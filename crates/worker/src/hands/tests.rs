use super::process::Hands;
use super::starter::Starter;
use super::*;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn request(argument: &str) -> Request {
    let program = Program { argv: vec![argument.to_owned()], ..Program::default() };
    Request::Spawn { id: 1, program, has_input: false }
}

#[test]
fn packets_of_any_size_come_through_with_their_descriptors() {
    let (one, other) = pair();
    for size in [10, 40_000, 3_000_000] {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let sent = request(&"x".repeat(size));
        wire::send(&one, &sent, &[writer.as_fd()], SendFlags::empty()).unwrap();
        drop(writer);
        let (received, mut descriptors) = wire::receive::<Request>(&other, RecvFlags::empty()).unwrap().unwrap();
        assert!(received == sent && descriptors.len() == 1, "{size}");
        rustix::io::write(descriptors.pop().unwrap(), b"hi").unwrap();
        let mut heard = String::new();
        File::from(reader).read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "hi");
    }
    drop(one);
    assert!(wire::receive::<Request>(&other, RecvFlags::empty()).unwrap().is_none());
}

#[test]
fn nobody_makes_the_worker_read_a_file() {
    let (one, other) = pair();
    wire::send(&one, &request(&"x".repeat(100_000)), &[], SendFlags::empty()).unwrap();
    assert!(wire::receive_untrusted::<Request>(&other, RecvFlags::empty()).is_err());
}

/// A program under hands that run in a thread, with everything that it said.
struct Try {
    socket: OwnedFd,
    serving: std::thread::JoinHandle<std::io::Result<()>>,
}

impl Try {
    fn start() -> Self {
        let (socket, theirs) = pair();
        Self { socket, serving: std::thread::spawn(move || Hands::new(theirs).serve()) }
    }

    fn spawn(&self, id: u64, argv: &[&str], whole: bool) -> File {
        let (stdout, to_stdout) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let to_stderr = to_stdout.try_clone().unwrap();
        let argv = argv.iter().map(|word| (*word).to_owned()).collect();
        let env = vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())];
        let program = Program { argv, cwd: "/".into(), env, whole, terminal: None, files: Vec::new() };
        let request = Request::Spawn { id, program, has_input: false };
        wire::send(&self.socket, &request, &[to_stdout.as_fd(), to_stderr.as_fd()], SendFlags::empty()).unwrap();
        stdout.into()
    }

    fn ask(&self, request: &Request) {
        wire::send(&self.socket, request, &[], SendFlags::empty()).unwrap();
    }

    fn hear(&self) -> Reply {
        wire::receive_untrusted(&self.socket, RecvFlags::empty()).unwrap().unwrap().0
    }

    fn end(self) {
        drop(self.socket);
        self.serving.join().unwrap().unwrap();
    }
}

fn said(mut stdout: File) -> String {
    let mut text = String::new();
    stdout.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn programs_start_and_their_ends_are_told() {
    let hands = Try::start();
    let stdout = hands.spawn(7, &["sh", "-c", "env; echo to stderr >&2; exit 3"], false);
    assert!(matches!(hands.hear(), Reply::Started { id: 7, pid } if pid > 1));
    assert_eq!(hands.hear(), Reply::Ended { id: 7, ending: Ending::Exited(3) });
    let text = said(stdout);
    assert!(text.contains("PATH=/usr/bin:/bin\n") && text.contains("to stderr\n"), "{text}");
    assert!(text.lines().all(|line| !line.starts_with("CARGO")), "nothing of the worker's environment: {text}");
    hands.spawn(8, &["no-such-program"], false);
    assert!(matches!(hands.hear(), Reply::Failed { id: 8, error } if error.contains("no-such-program")));
    hands.end();
}

#[test]
fn signals_reach_the_whole_group() {
    let hands = Try::start();
    let stdout = hands.spawn(1, &["sh", "-c", "sleep 100 & sleep 100"], false);
    hands.hear();
    hands.ask(&Request::Signal { id: 1, signal: 15 });
    hands.ask(&Request::Signal { id: 99, signal: 9 });
    assert_eq!(hands.hear(), Reply::Ended { id: 1, ending: Ending::Signalled(15) });
    assert_eq!(said(stdout), "", "nobody holds the output any more");
    hands.end();
}

#[test]
fn what_is_one_whole_ends_as_one() {
    let hands = Try::start();
    let stdout = hands.spawn(1, &["sh", "-c", "sleep 100 & exit 0"], true);
    hands.hear();
    assert_eq!(hands.hear(), Reply::Ended { id: 1, ending: Ending::Exited(0) });
    assert_eq!(said(stdout), "", "what it left behind is gone too");
    hands.end();
}

#[test]
fn changes_come_in_order_and_a_flush_is_answered() {
    let hands = Try::start();
    let root = tempfile::tempdir().unwrap();
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let watch = Request::Watch { root: root.path().to_owned() };
    wire::send(&hands.socket, &watch, &[writer.as_fd()], SendFlags::empty()).unwrap();
    drop(writer);
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(File::from(reader)));
    let mut next = || serde_json::from_str::<Seen>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(next(), Seen::Watching);
    std::fs::write(root.path().join("a"), "text\n").unwrap();
    hands.ask(&Request::Flush { number: 4 });
    assert!(matches!(next(), Seen::Change(change) if change.file_path == "a"));
    assert_eq!(next(), Seen::Flushed(4));
    hands.ask(&Request::Unwatch);
    assert!(lines.next().is_none(), "the pipe ends with the watch");
    hands.end();
}

#[tokio::test]
async fn hands_that_can_t_be_confined_are_not_used() {
    let not_a_cgroup: OwnedFd = File::open("/dev/null").unwrap().into();
    for (program, groups, why) in
        [("/no/such/worker", vec![], "No such file"), ("/bin/true", vec![not_a_cgroup], "into the agent's cgroup")]
    {
        let (keeper, hands) = Keeper::new(Starter { program: program.into(), user: None, groups });
        tokio::spawn(keeper.run());
        let (stdout, stderr) = (File::open("/dev/null").unwrap().into(), File::open("/dev/null").unwrap().into());
        let streams = Streams { input: None, stdout, stderr };
        let error = hands.spawn(Program::default(), streams).await.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
