//! File transfers, one request per connection.

use super::{WorkerSandbox, path_exists};
use atoll_core::provider::files::{FileError, FileErrorCode, FileInfo, FileKind};
use atoll_protocol::exec::ConnectionKind;
use atoll_protocol::files::{
    FileClientFrame, FileOperationSummary, FileRequest, FileWorkerFrame, HEADER_BYTES, decode_entry, decode_failure,
    decode_header, encode_header,
};
use atoll_test_wait::wait_until;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The worker's reply to a request.
#[derive(Debug, Default)]
struct FileResult {
    entries: Vec<FileInfo>,
    data: Vec<u8>,
    end: Option<Result<FileOperationSummary, FileError>>,
}

impl FileResult {
    #[track_caller]
    fn expect_done(self) -> FileOperationSummary {
        self.end.unwrap().unwrap()
    }

    #[track_caller]
    fn expect_fault(self) -> FileErrorCode {
        let error = self.end.unwrap().unwrap_err();
        assert!(!error.detail.is_empty());
        error.fault
    }
}

fn send_request(sandbox: &WorkerSandbox, request: &FileRequest) -> UnixStream {
    let mut stream = sandbox.connect_for(ConnectionKind::Files);
    if let Err(error) = stream.write_all(&request.to_frame()) {
        // Above its limit, the worker closes the connection before it reads the request.
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
    stream
}

fn read_result(mut stream: UnixStream) -> FileResult {
    let mut result = FileResult::default();
    loop {
        let mut start = [0; HEADER_BYTES];
        if stream.read_exact(&mut start).is_err() {
            return result;
        }
        let (kind, length) = decode_header(start).unwrap();
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).unwrap();
        match FileWorkerFrame::from_byte(kind).unwrap() {
            FileWorkerFrame::Entry => result.entries.push(decode_entry(&payload).unwrap()),
            FileWorkerFrame::Data => result.data.extend(payload),
            FileWorkerFrame::Done => result.end = Some(Ok(FileOperationSummary::from_payload(&payload).unwrap())),
            FileWorkerFrame::Failed => result.end = Some(Err(decode_failure(&payload).unwrap())),
        }
    }
}

fn run_request(sandbox: &WorkerSandbox, request: &FileRequest) -> FileResult {
    read_result(send_request(sandbox, request))
}

fn send_data(stream: &mut UnixStream, data: &[u8]) {
    for piece in data.chunks(100_000) {
        // A helper that fails stops reading.
        if stream
            .write_all(&encode_header(FileClientFrame::Data.to_byte(), piece.len()))
            .and_then(|()| stream.write_all(piece))
            .is_err()
        {
            return;
        }
    }
}

fn upload_data(sandbox: &WorkerSandbox, request: &FileRequest, data: &[u8]) -> FileResult {
    let mut stream = send_request(sandbox, request);
    send_data(&mut stream, data);
    drop(stream.write_all(&encode_header(FileClientFrame::EndOfData.to_byte(), 0)));
    read_result(stream)
}

fn write_job(path: &str) -> FileRequest {
    FileRequest::Write { path: path.to_owned(), mode: None, make_parents: true, offset: None, length: None }
}

fn read_job(path: &str) -> FileRequest {
    FileRequest::Read { path: path.to_owned(), offset: 0, length: None }
}

fn has_no_helper(sandbox: &WorkerSandbox) -> bool {
    !sandbox.run_shell("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").contains("exe files")
}

#[test]
fn a_file_round_trips() {
    let sandbox = WorkerSandbox::start();
    let content: Vec<u8> = (0..3_000_001_u32).map(|n| n.to_le_bytes()[1]).collect();
    let done = upload_data(&sandbox, &write_job("deep/er/file"), &content).expect_done();
    assert_eq!(done.bytes, content.len() as u64);
    let result = run_request(&sandbox, &read_job("deep/er/file"));
    assert!(result.data == content, "{} of {} bytes", result.data.len(), content.len());
    assert_eq!((result.entries[0].size, result.entries[0].mode), (content.len() as u64, 0o644));
    let part = FileRequest::Read {
        path: sandbox.workspace_path("deep/er/file").to_str().unwrap().into(),
        offset: 10,
        length: Some(5),
    };
    assert_eq!(run_request(&sandbox, &part).data, &content[10..15], "a range of the file, by its absolute path");

    // New content keeps the file's mode unless the request sets one.
    let file = sandbox.workspace_path("deep/er/file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o751)).unwrap();
    upload_data(&sandbox, &write_job("deep/er/file"), b"new").expect_done();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o751);
    let FileRequest::Write { path, .. } = write_job("deep/er/file") else { unreachable!() };
    let request = FileRequest::Write { path, mode: Some(0o4600), make_parents: false, offset: None, length: None };
    upload_data(&sandbox, &request, b"newer").expect_done();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600, "the set-uid bit is dropped");
    assert_eq!(fs::read(&file).unwrap(), b"newer");
    let names: Vec<_> = fs::read_dir(file.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["file"], "the upload left other files");
}

#[test]
fn an_aborted_upload_leaves_the_old_file() {
    let sandbox = WorkerSandbox::start();
    fs::write(sandbox.workspace_path("file"), "old").unwrap();
    let mut stream = send_request(&sandbox, &write_job("file"));
    send_data(&mut stream, &[7; 500_000]);
    drop(stream);
    wait_until("the helper's end", || has_no_helper(&sandbox));
    assert_eq!(fs::read(sandbox.workspace_path("file")).unwrap(), b"old");
    assert_eq!(fs::read_dir(sandbox.path("workspace")).unwrap().count(), 1, "the upload left a partial file");
    let short =
        FileRequest::Write { path: "file".into(), mode: None, make_parents: false, offset: None, length: Some(9) };
    assert_eq!(upload_data(&sandbox, &short, b"short").expect_fault(), FileErrorCode::BadContent);
    assert_eq!(fs::read(sandbox.workspace_path("file")).unwrap(), b"old");
}

#[test]
fn reports_failures_without_hanging() {
    let sandbox = WorkerSandbox::start();
    fs::create_dir(sandbox.workspace_path("directory")).unwrap();
    fs::write(sandbox.workspace_path("directory/file"), "x").unwrap();
    fs::write(sandbox.workspace_path("file"), "x").unwrap();
    symlink("file", sandbox.workspace_path("link")).unwrap();
    sandbox.run_shell("mkfifo fifo");
    let _socket = std::os::unix::net::UnixListener::bind(sandbox.workspace_path("socket")).unwrap();
    let began = Instant::now();
    let path = |path: &str| path.to_owned();
    for (request, fault) in [
        (read_job("nothing"), FileErrorCode::NotFound),
        (read_job("file/below"), FileErrorCode::NotADirectory),
        (read_job("directory"), FileErrorCode::IsDirectory),
        (read_job("fifo"), FileErrorCode::UnsupportedKind),
        (read_job("socket"), FileErrorCode::UnsupportedKind),
        (read_job("/dev/zero"), FileErrorCode::UnsupportedKind),
        (read_job(""), FileErrorCode::NotFound),
        (read_job("a\0b"), FileErrorCode::NotFound),
        (read_job(&"x/".repeat(3000)), FileErrorCode::TooLong),
        (read_job(&"x".repeat(300)), FileErrorCode::TooLong),
        (write_job("directory"), FileErrorCode::IsDirectory),
        (write_job("fifo"), FileErrorCode::UnsupportedKind),
        (write_job("socket"), FileErrorCode::UnsupportedKind),
        (write_job("link"), FileErrorCode::UnsupportedKind),
        (write_job("file/below"), FileErrorCode::NotADirectory),
        (write_job("/proc/new"), FileErrorCode::NotFound),
        (
            FileRequest::Write { path: path("no/such"), mode: None, make_parents: false, offset: None, length: None },
            FileErrorCode::NotFound,
        ),
        (
            FileRequest::Write { path: path("file"), mode: None, make_parents: false, offset: Some(9), length: None },
            FileErrorCode::BadContent,
        ),
        (FileRequest::List { path: path("file"), after: None, limit: 9 }, FileErrorCode::NotADirectory),
        (FileRequest::List { path: path("."), after: Some(path("xyz")), limit: 9 }, FileErrorCode::BadContent),
        (FileRequest::Move { from: path("file"), to: path("link"), replace: false }, FileErrorCode::Exists),
        (FileRequest::Move { from: path("file"), to: path("no/such"), replace: false }, FileErrorCode::NotFound),
        (
            FileRequest::Move { from: path("directory"), to: path("directory/in"), replace: false },
            FileErrorCode::UnsupportedKind,
        ),
        (FileRequest::Delete { path: path("directory"), recursive: false }, FileErrorCode::NotEmpty),
        (FileRequest::Delete { path: path("."), recursive: true }, FileErrorCode::Denied),
        (FileRequest::Delete { path: path("directory/.."), recursive: true }, FileErrorCode::Denied),
        (FileRequest::MakeDirectory { path: path("file") }, FileErrorCode::Exists),
        (FileRequest::Pack { path: path("fifo") }, FileErrorCode::UnsupportedKind),
        (FileRequest::Unpack { path: path("file") }, FileErrorCode::NotADirectory),
        (FileRequest::Unpack { path: path("new") }, FileErrorCode::BadContent),
    ] {
        let result = upload_data(&sandbox, &request, b"this is not a tar");
        assert_eq!(result.expect_fault(), fault, "{request:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(50), "{:?}", began.elapsed());
    assert_eq!(fs::read(sandbox.workspace_path("file")).unwrap(), b"x");
}

#[test]
fn files_are_listed_moved_and_deleted() {
    let sandbox = WorkerSandbox::start();
    for name in ["b", "a", "c"] {
        fs::write(sandbox.workspace_path(name), "12").unwrap();
    }
    symlink("../elsewhere", sandbox.workspace_path("link")).unwrap();
    let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"x\xff");
    fs::write(sandbox.path("workspace").join(name), "").unwrap();
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let result = run_request(&sandbox, &FileRequest::List { path: ".".into(), after, limit: 2 });
        assert!(result.entries.len() <= 2);
        all.extend(result.entries.clone());
        after = result.expect_done().next;
        if after.is_none() {
            break;
        }
    }
    let seen: Vec<_> = all.iter().map(|entry| (entry.name.as_str(), entry.kind)).collect();
    let file = FileKind::File;
    assert_eq!(seen, [("a", file), ("b", file), ("c", file), ("link", FileKind::Link), ("x\\xff", file)]);
    assert_eq!(all[3].target.as_deref(), Some("../elsewhere"));
    assert_eq!((all[4].name_hex.as_deref(), all[0].size), (Some("78ff"), 2));

    run_request(&sandbox, &FileRequest::MakeDirectory { path: "d/e".into() }).expect_done();
    run_request(&sandbox, &FileRequest::Move { from: "a".into(), to: "d/e/a".into(), replace: false }).expect_done();
    run_request(&sandbox, &FileRequest::Move { from: "b".into(), to: "d/e/a".into(), replace: true }).expect_done();
    run_request(&sandbox, &FileRequest::Delete { path: "link".into(), recursive: true }).expect_done();
    let seen = run_request(&sandbox, &FileRequest::Stat { path: "d/e/a".into() });
    assert_eq!((seen.entries[0].name.as_str(), seen.entries[0].kind), ("a", FileKind::File));
    run_request(&sandbox, &FileRequest::Delete { path: "d".into(), recursive: true }).expect_done();
    assert!(!path_exists(&sandbox.workspace_path("d")) && path_exists(&sandbox.workspace_path("c")));
}

#[test]
fn a_tree_round_trips() {
    let sandbox = WorkerSandbox::start();
    sandbox.run_shell("mkdir -p t/deep; echo one > t/deep/a; ln -s deep/a t/link; ln t/deep/a t/hard; chmod 700 t/deep/a; mkfifo t/fifo");
    let result = run_request(&sandbox, &FileRequest::Pack { path: "t".into() });
    assert_eq!(result.entries[0].kind, FileKind::Directory);
    let tar = result.data.clone();
    assert_eq!(result.expect_done().skipped, 1, "the fifo");
    let done = upload_data(&sandbox, &FileRequest::Unpack { path: "u/v".into() }, &tar).expect_done();
    assert_eq!((done.skipped, done.bytes), (0, 4));
    assert_eq!(
        sandbox.run_shell("cat u/v/link; stat -c %a u/v/hard; cd u/v && find . | sort | tr '\\n' ' '"),
        "one\n700\n. ./deep ./deep/a ./hard ./link "
    );
    // A single file works too.
    let single = run_request(&sandbox, &FileRequest::Pack { path: "t/deep/a".into() }).data;
    upload_data(&sandbox, &FileRequest::Unpack { path: "w".into() }, &single).expect_done();
    assert_eq!(fs::read(sandbox.workspace_path("w/a")).unwrap(), b"one\n");
    let half = upload_data(&sandbox, &FileRequest::Unpack { path: "half".into() }, &tar[..tar.len() / 2 - 100]);
    assert_eq!(half.expect_fault(), FileErrorCode::BadContent);
}

#[test]
fn slow_readers_do_not_block_commands() {
    let sandbox = WorkerSandbox::start();
    sandbox.run_shell("dd if=/dev/zero of=large bs=1M count=8 status=none");
    let mut slow: Vec<UnixStream> = (0..40).map(|_| send_request(&sandbox, &read_job("large"))).collect();
    let refused = |stream: &mut UnixStream| {
        let mut start = [0; HEADER_BYTES];
        stream.read_exact(&mut start).unwrap();
        FileWorkerFrame::from_byte(start[HEADER_BYTES - 1]).unwrap() == FileWorkerFrame::Failed
    };
    let count = slow.iter_mut().map(refused).filter(|refused| *refused).count();
    assert_eq!(count, 8, "the worker serves 32 transfers at once");
    assert_eq!(sandbox.run_shell("echo commands run"), "commands run\n");
    drop(slow);
    wait_until("the helpers' end", || has_no_helper(&sandbox));
    wait_until("a free slot", || run_request(&sandbox, &read_job("large")).data.len() == 8 << 20);
}

#[test]
fn a_lost_connection_ends_the_transfer() {
    let sandbox = WorkerSandbox::start();
    sandbox.run_shell("dd if=/dev/zero of=large bs=1M count=64 status=none");
    for request in [read_job("large"), FileRequest::Pack { path: ".".into() }] {
        let mut stream = send_request(&sandbox, &request);
        stream.read_exact(&mut [0; 1000]).unwrap();
        assert!(!has_no_helper(&sandbox), "the helper did not wait for its reader");
        drop(stream);
        wait_until("the helper's end", || has_no_helper(&sandbox));
    }
    // An invalid request ends its helper too.
    let mut invalid = sandbox.connect_for(ConnectionKind::Files);
    invalid.write_all(&[1, 0, 0, 0, 99]).unwrap();
    assert!(read_result(invalid).end.is_none());
    wait_until("the helper's end", || has_no_helper(&sandbox));
}
