//! Files in and out, each request over a connection of its own.

use super::{Sandbox, exists};
use crate::until;
use atoll_core::provider::files::{FileEntry, FileError, FileFault, FileKind};
use atoll_protocol::exec::Opening;
use atoll_protocol::files::{Ask, Done, HEAD, Job, Tell, head, read_entry, read_failed, read_head};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// What a request gave.
#[derive(Debug, Default)]
struct Given {
    entries: Vec<FileEntry>,
    data: Vec<u8>,
    end: Option<Result<Done, FileError>>,
}

impl Given {
    #[track_caller]
    fn done(self) -> Done {
        self.end.unwrap().unwrap()
    }

    #[track_caller]
    fn fault(self) -> FileFault {
        let error = self.end.unwrap().unwrap_err();
        assert!(!error.detail.is_empty());
        error.fault
    }
}

fn begin(sandbox: &Sandbox, job: &Job) -> UnixStream {
    let mut stream = sandbox.connect_for(Opening::Files);
    if let Err(error) = stream.write_all(&job.frame()) {
        // One too many is refused before it has said what it wants.
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
    stream
}

fn end(mut stream: UnixStream) -> Given {
    let mut given = Given::default();
    loop {
        let mut start = [0; HEAD];
        if stream.read_exact(&mut start).is_err() {
            return given;
        }
        let (kind, length) = read_head(start).unwrap();
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).unwrap();
        match Tell::from_byte(kind).unwrap() {
            Tell::Entry => given.entries.push(read_entry(&payload).unwrap()),
            Tell::Data => given.data.extend(payload),
            Tell::Done => given.end = Some(Ok(Done::read(&payload).unwrap())),
            Tell::Failed => given.end = Some(Err(read_failed(&payload).unwrap())),
        }
    }
}

fn ask(sandbox: &Sandbox, job: &Job) -> Given {
    end(begin(sandbox, job))
}

fn send(stream: &mut UnixStream, data: &[u8]) {
    for piece in data.chunks(100_000) {
        // A helper that refuses does not read on.
        if stream.write_all(&head(Ask::Data.byte(), piece.len())).and_then(|()| stream.write_all(piece)).is_err() {
            return;
        }
    }
}

fn give(sandbox: &Sandbox, job: &Job, data: &[u8]) -> Given {
    let mut stream = begin(sandbox, job);
    send(&mut stream, data);
    drop(stream.write_all(&head(Ask::End.byte(), 0)));
    end(stream)
}

fn write(path: &str) -> Job {
    Job::Write { path: path.to_owned(), mode: None, make_parents: true, offset: None, length: None }
}

fn read(path: &str) -> Job {
    Job::Read { path: path.to_owned(), offset: 0, length: None }
}

fn no_helper(sandbox: &Sandbox) -> bool {
    !sandbox.ask("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").contains("exe files")
}

#[test]
fn a_file_comes_back_as_it_went() {
    let sandbox = Sandbox::start();
    let content: Vec<u8> = (0..3_000_001_u32).map(|n| n.to_le_bytes()[1]).collect();
    let done = give(&sandbox, &write("deep/er/file"), &content).done();
    assert_eq!(done.bytes, content.len() as u64);
    let given = ask(&sandbox, &read("deep/er/file"));
    assert!(given.data == content, "{} of {} bytes", given.data.len(), content.len());
    assert_eq!((given.entries[0].size, given.entries[0].mode), (content.len() as u64, 0o644));
    let part = Job::Read { path: sandbox.file("deep/er/file").to_str().unwrap().into(), offset: 10, length: Some(5) };
    assert_eq!(ask(&sandbox, &part).data, &content[10..15], "by its absolute path, in part");

    // A new content keeps the mode, unless another one is given.
    let file = sandbox.file("deep/er/file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o751)).unwrap();
    give(&sandbox, &write("deep/er/file"), b"new").done();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o751);
    let Job::Write { path, .. } = write("deep/er/file") else { unreachable!() };
    let job = Job::Write { path, mode: Some(0o4600), make_parents: false, offset: None, length: None };
    give(&sandbox, &job, b"newer").done();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600, "and nobody gets set-uid");
    assert_eq!(fs::read(&file).unwrap(), b"newer");
    let names: Vec<_> = fs::read_dir(file.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["file"], "nothing else is left");
}

#[test]
fn half_an_upload_leaves_the_old_file_and_nothing_else() {
    let sandbox = Sandbox::start();
    fs::write(sandbox.file("file"), "old").unwrap();
    let mut stream = begin(&sandbox, &write("file"));
    send(&mut stream, &[7; 500_000]);
    drop(stream);
    until("the helper's end", || no_helper(&sandbox));
    assert_eq!(fs::read(sandbox.file("file")).unwrap(), b"old");
    assert_eq!(fs::read_dir(sandbox.path("workspace")).unwrap().count(), 1, "no half file is left");
    let short = Job::Write { path: "file".into(), mode: None, make_parents: false, offset: None, length: Some(9) };
    assert_eq!(give(&sandbox, &short, b"short").fault(), FileFault::BadContent);
    assert_eq!(fs::read(sandbox.file("file")).unwrap(), b"old");
}

#[test]
fn what_can_t_be_done_is_said_and_nothing_hangs() {
    let sandbox = Sandbox::start();
    fs::create_dir(sandbox.file("directory")).unwrap();
    fs::write(sandbox.file("directory/file"), "x").unwrap();
    fs::write(sandbox.file("file"), "x").unwrap();
    symlink("file", sandbox.file("link")).unwrap();
    sandbox.ask("mkfifo fifo");
    let _socket = std::os::unix::net::UnixListener::bind(sandbox.file("socket")).unwrap();
    let began = Instant::now();
    let path = |path: &str| path.to_owned();
    for (job, fault) in [
        (read("nothing"), FileFault::NotFound),
        (read("file/below"), FileFault::NotADirectory),
        (read("directory"), FileFault::IsDirectory),
        (read("fifo"), FileFault::UnsupportedKind),
        (read("socket"), FileFault::UnsupportedKind),
        (read("/dev/zero"), FileFault::UnsupportedKind),
        (read(""), FileFault::NotFound),
        (read("a\0b"), FileFault::NotFound),
        (read(&"x/".repeat(3000)), FileFault::TooLong),
        (read(&"x".repeat(300)), FileFault::TooLong),
        (write("directory"), FileFault::IsDirectory),
        (write("fifo"), FileFault::UnsupportedKind),
        (write("socket"), FileFault::UnsupportedKind),
        (write("link"), FileFault::UnsupportedKind),
        (write("file/below"), FileFault::NotADirectory),
        (write("/proc/new"), FileFault::NotFound),
        (
            Job::Write { path: path("no/such"), mode: None, make_parents: false, offset: None, length: None },
            FileFault::NotFound,
        ),
        (
            Job::Write { path: path("file"), mode: None, make_parents: false, offset: Some(9), length: None },
            FileFault::BadContent,
        ),
        (Job::List { path: path("file"), after: None, limit: 9 }, FileFault::NotADirectory),
        (Job::List { path: path("."), after: Some(path("xyz")), limit: 9 }, FileFault::BadContent),
        (Job::Move { from: path("file"), to: path("link"), replace: false }, FileFault::Exists),
        (Job::Move { from: path("file"), to: path("no/such"), replace: false }, FileFault::NotFound),
        (Job::Move { from: path("directory"), to: path("directory/in"), replace: false }, FileFault::UnsupportedKind),
        (Job::Delete { path: path("directory"), recursive: false }, FileFault::NotEmpty),
        (Job::Delete { path: path("."), recursive: true }, FileFault::Denied),
        (Job::Delete { path: path("directory/.."), recursive: true }, FileFault::Denied),
        (Job::MakeDirectory { path: path("file") }, FileFault::Exists),
        (Job::Pack { path: path("fifo") }, FileFault::UnsupportedKind),
        (Job::Unpack { path: path("file") }, FileFault::NotADirectory),
        (Job::Unpack { path: path("new") }, FileFault::BadContent),
    ] {
        let given = give(&sandbox, &job, b"this is no tar");
        assert_eq!(given.fault(), fault, "{job:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert_eq!(fs::read(sandbox.file("file")).unwrap(), b"x");
}

#[test]
fn files_are_listed_moved_and_deleted() {
    let sandbox = Sandbox::start();
    for name in ["b", "a", "c"] {
        fs::write(sandbox.file(name), "12").unwrap();
    }
    symlink("../elsewhere", sandbox.file("link")).unwrap();
    let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"x\xff");
    fs::write(sandbox.path("workspace").join(name), "").unwrap();
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let given = ask(&sandbox, &Job::List { path: ".".into(), after, limit: 2 });
        assert!(given.entries.len() <= 2);
        all.extend(given.entries.clone());
        after = given.done().next;
        if after.is_none() {
            break;
        }
    }
    let seen: Vec<_> = all.iter().map(|entry| (entry.name.as_str(), entry.kind)).collect();
    let file = FileKind::File;
    assert_eq!(seen, [("a", file), ("b", file), ("c", file), ("link", FileKind::Link), ("x\\xff", file)]);
    assert_eq!(all[3].target.as_deref(), Some("../elsewhere"));
    assert_eq!((all[4].name_hex.as_deref(), all[0].size), (Some("78ff"), 2));

    ask(&sandbox, &Job::MakeDirectory { path: "d/e".into() }).done();
    ask(&sandbox, &Job::Move { from: "a".into(), to: "d/e/a".into(), replace: false }).done();
    ask(&sandbox, &Job::Move { from: "b".into(), to: "d/e/a".into(), replace: true }).done();
    ask(&sandbox, &Job::Delete { path: "link".into(), recursive: true }).done();
    let seen = ask(&sandbox, &Job::Stat { path: "d/e/a".into() });
    assert_eq!((seen.entries[0].name.as_str(), seen.entries[0].kind), ("a", FileKind::File));
    ask(&sandbox, &Job::Delete { path: "d".into(), recursive: true }).done();
    assert!(!exists(&sandbox.file("d")) && exists(&sandbox.file("c")));
}

#[test]
fn a_tree_goes_out_and_in() {
    let sandbox = Sandbox::start();
    sandbox.ask("mkdir -p t/deep; echo one > t/deep/a; ln -s deep/a t/link; ln t/deep/a t/hard; chmod 700 t/deep/a; mkfifo t/fifo");
    let given = ask(&sandbox, &Job::Pack { path: "t".into() });
    assert_eq!(given.entries[0].kind, FileKind::Directory);
    let tar = given.data.clone();
    assert_eq!(given.done().skipped, 1, "the fifo");
    let done = give(&sandbox, &Job::Unpack { path: "u/v".into() }, &tar).done();
    assert_eq!((done.skipped, done.bytes), (0, 4));
    assert_eq!(
        sandbox.ask("cat u/v/link; stat -c %a u/v/hard; cd u/v && find . | sort | tr '\\n' ' '"),
        "one\n700\n. ./deep ./deep/a ./hard ./link "
    );
    // One file is a tree too.
    let single = ask(&sandbox, &Job::Pack { path: "t/deep/a".into() }).data;
    give(&sandbox, &Job::Unpack { path: "w".into() }, &single).done();
    assert_eq!(fs::read(sandbox.file("w/a")).unwrap(), b"one\n");
    let half = give(&sandbox, &Job::Unpack { path: "half".into() }, &tar[..tar.len() / 2 - 100]);
    assert_eq!(half.fault(), FileFault::BadContent);
}

#[test]
fn slow_readers_take_nothing_from_others() {
    let sandbox = Sandbox::start();
    sandbox.ask("dd if=/dev/zero of=large bs=1M count=8 status=none");
    let mut slow: Vec<UnixStream> = (0..40).map(|_| begin(&sandbox, &read("large"))).collect();
    let refused = |stream: &mut UnixStream| {
        let mut start = [0; HEAD];
        stream.read_exact(&mut start).unwrap();
        Tell::from_byte(start[HEAD - 1]).unwrap() == Tell::Failed
    };
    let count = slow.iter_mut().map(refused).filter(|refused| *refused).count();
    assert_eq!(count, 8, "a number of them are served, and the others hear that they are too many");
    assert_eq!(sandbox.ask("echo commands run"), "commands run\n");
    drop(slow);
    until("the helpers' end", || no_helper(&sandbox));
    until("room", || ask(&sandbox, &read("large")).data.len() == 8 << 20);
}

#[test]
fn a_lost_connection_ends_what_it_started() {
    let sandbox = Sandbox::start();
    sandbox.ask("dd if=/dev/zero of=large bs=1M count=64 status=none");
    for job in [read("large"), Job::Pack { path: ".".into() }] {
        let mut stream = begin(&sandbox, &job);
        stream.read_exact(&mut [0; 1000]).unwrap();
        assert!(!no_helper(&sandbox), "it waits for its reader");
        drop(stream);
        until("the helper's end", || no_helper(&sandbox));
    }
    // Neither does one that says nothing, or nonsense, hold anything up.
    let mut silent = sandbox.connect_for(Opening::Files);
    silent.write_all(&[1, 0, 0, 0, 99]).unwrap();
    assert!(end(silent).end.is_none());
    until("the helper's end", || no_helper(&sandbox));
}
