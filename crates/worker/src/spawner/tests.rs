use super::launch::SpawnerLauncher;
use super::server::SpawnerServer;
use super::*;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

fn socket_pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn spawn_request(argument: &str) -> Request {
    let program = ProgramSpec { argv: vec![argument.to_owned()], ..ProgramSpec::default() };
    Request::Spawn { id: 1, program, has_input: false }
}

#[test]
fn transfers_packets_of_any_size_with_descriptors() {
    let (one, other) = socket_pair();
    for size in [10, 40_000, 3_000_000] {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let sent = spawn_request(&"x".repeat(size));
        packets::send_packet(&one, &sent, &[writer.as_fd()], SendFlags::empty()).unwrap();
        drop(writer);
        let (received, mut descriptors) =
            packets::receive_packet::<Request>(&other, RecvFlags::empty()).unwrap().unwrap();
        assert!(received == sent && descriptors.len() == 1, "{size}");
        rustix::io::write(descriptors.pop().unwrap(), b"hi").unwrap();
        let mut text = String::new();
        File::from(reader).read_to_string(&mut text).unwrap();
        assert_eq!(text, "hi");
    }
    drop(one);
    assert!(packets::receive_packet::<Request>(&other, RecvFlags::empty()).unwrap().is_none());
}

#[test]
fn rejects_a_file_packet_of_an_untrusted_peer() {
    let (one, other) = socket_pair();
    packets::send_packet(&one, &spawn_request(&"x".repeat(100_000)), &[], SendFlags::empty()).unwrap();
    assert!(packets::receive_untrusted::<Request>(&other, RecvFlags::empty()).is_err());
}

/// A spawner that runs in a thread.
struct TestSpawner {
    socket: OwnedFd,
    serving: std::thread::JoinHandle<std::io::Result<()>>,
}

impl TestSpawner {
    fn start() -> Self {
        let (socket, spawner_socket) = socket_pair();
        Self { socket, serving: std::thread::spawn(move || SpawnerServer::new(spawner_socket).serve()) }
    }

    fn spawn(&self, id: u64, argv: &[&str], kill_group_on_exit: bool) -> File {
        let (stdout, to_stdout) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let to_stderr = to_stdout.try_clone().unwrap();
        let argv = argv.iter().map(|word| (*word).to_owned()).collect();
        let env = vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())];
        let program = ProgramSpec { argv, cwd: "/".into(), env, kill_group_on_exit, terminal: None, files: Vec::new() };
        let request = Request::Spawn { id, program, has_input: false };
        packets::send_packet(&self.socket, &request, &[to_stdout.as_fd(), to_stderr.as_fd()], SendFlags::empty())
            .unwrap();
        stdout.into()
    }

    fn send_request(&self, request: &Request) {
        packets::send_packet(&self.socket, request, &[], SendFlags::empty()).unwrap();
    }

    fn next_reply(&self) -> Reply {
        packets::receive_untrusted(&self.socket, RecvFlags::empty()).unwrap().unwrap().0
    }

    fn end(self) {
        drop(self.socket);
        self.serving.join().unwrap().unwrap();
    }
}

fn read_output(mut stdout: File) -> String {
    let mut text = String::new();
    stdout.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn spawns_programs_and_reports_their_exits() {
    let spawner = TestSpawner::start();
    let stdout = spawner.spawn(7, &["sh", "-c", "env; echo to stderr >&2; exit 3"], false);
    assert!(matches!(spawner.next_reply(), Reply::Started { id: 7, pid } if pid > 1));
    assert_eq!(spawner.next_reply(), Reply::Ended { id: 7, ending: ExitStatus::Exited(3) });
    let text = read_output(stdout);
    assert!(text.contains("PATH=/usr/bin:/bin\n") && text.contains("to stderr\n"), "{text}");
    assert!(text.lines().all(|line| !line.starts_with("CARGO")), "nothing of the worker's environment: {text}");
    spawner.spawn(8, &["no-such-program"], false);
    assert!(matches!(spawner.next_reply(), Reply::Failed { id: 8, error } if error.contains("no-such-program")));
    spawner.end();
}

#[test]
fn signals_the_whole_group() {
    let spawner = TestSpawner::start();
    let stdout = spawner.spawn(1, &["sh", "-c", "sleep 100 & sleep 100"], false);
    spawner.next_reply();
    spawner.send_request(&Request::Signal { id: 1, signal: 15 });
    spawner.send_request(&Request::Signal { id: 99, signal: 9 });
    assert_eq!(spawner.next_reply(), Reply::Ended { id: 1, ending: ExitStatus::Signalled(15) });
    assert_eq!(read_output(stdout), "", "no process holds the output open");
    spawner.end();
}

#[test]
fn kills_the_group_on_exit() {
    let spawner = TestSpawner::start();
    let stdout = spawner.spawn(1, &["sh", "-c", "sleep 100 & exit 0"], true);
    spawner.next_reply();
    assert_eq!(spawner.next_reply(), Reply::Ended { id: 1, ending: ExitStatus::Exited(0) });
    assert_eq!(read_output(stdout), "", "what it left behind is gone too");
    spawner.end();
}

#[test]
fn reports_changes_in_order_and_confirms_flushes() {
    let spawner = TestSpawner::start();
    let root = tempfile::tempdir().unwrap();
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let watch = Request::Watch { root: root.path().to_owned() };
    packets::send_packet(&spawner.socket, &watch, &[writer.as_fd()], SendFlags::empty()).unwrap();
    drop(writer);
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(File::from(reader)));
    let mut next = || serde_json::from_str::<WatchEvent>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(next(), WatchEvent::Watching);
    std::fs::write(root.path().join("a"), "text\n").unwrap();
    spawner.send_request(&Request::Flush { number: 4 });
    assert!(matches!(next(), WatchEvent::Change(change) if change.file_path == "a"));
    assert_eq!(next(), WatchEvent::Flushed(4));
    spawner.send_request(&Request::Unwatch);
    assert!(lines.next().is_none(), "the pipe ends with the watch");
    spawner.end();
}

#[tokio::test]
async fn rejects_a_spawner_that_cannot_be_confined() {
    let not_a_cgroup: OwnedFd = File::open("/dev/null").unwrap().into();
    for (program, groups, why) in
        [("/no/such/worker", vec![], "No such file"), ("/bin/true", vec![not_a_cgroup], "into the agent's cgroup")]
    {
        let (supervisor, spawner) =
            SpawnerSupervisor::new(SpawnerLauncher { program: program.into(), user: None, groups });
        tokio::spawn(supervisor.run());
        let (stdout, stderr) = (File::open("/dev/null").unwrap().into(), File::open("/dev/null").unwrap().into());
        let streams = StdStreams { input: None, stdout, stderr };
        let error = spawner.spawn(ProgramSpec::default(), streams).await.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
