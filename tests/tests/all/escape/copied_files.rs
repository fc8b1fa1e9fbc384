//! `atoll sandbox cp` of hostile trees and from a hostile server. No file outside the target directory may appear or
//! change; plain `tar` with the same input proves that the input is dangerous.

use super::attempt_table::AttemptTable;
use atoll_test_wait::wait_until;
use atoll_tests::local::{LocalServer, create_temp_dir};
use atoll_tests::process;
use serde_json::json;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const GROUP: &str = "copied files";
const UNSAFE_TAR_PROOF: &str = "on the host, with tar -P";

/// A target directory for a copy, next to a directory that must not change.
struct CopyTarget {
    dir: TempDir,
}

impl CopyTarget {
    fn new() -> Self {
        let dir = create_temp_dir("atoll-copies-");
        for name in ["target", "outside"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("outside/secret"), "unchanged").unwrap();
        Self { dir }
    }

    fn target_dir(&self) -> PathBuf {
        self.dir.path().join("target")
    }

    fn outside_dir(&self) -> PathBuf {
        self.dir.path().join("outside")
    }

    /// Describes a change outside the target, or a device or set-uid file in it.
    fn find_escape(&self) -> Option<String> {
        let mut names: Vec<_> = std::fs::read_dir(self.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        let outside = std::fs::read_dir(self.outside_dir()).unwrap().count();
        let secret = self.outside_dir().join("secret");
        let (text, links) = (std::fs::read_to_string(&secret).unwrap(), std::fs::metadata(&secret).unwrap().nlink());
        if names != ["outside", "target"] || outside != 1 || text != "unchanged" || links != 1 {
            return Some(format!("{names:?}, {outside} files outside, {links} links to {text:?}"));
        }
        let mut pending = vec![self.target_dir()];
        while let Some(dir) = pending.pop() {
            for entry in std::fs::read_dir(&dir).unwrap().flatten() {
                let metadata = std::fs::symlink_metadata(entry.path()).unwrap();
                let kind = metadata.file_type();
                if kind.is_dir() {
                    pending.push(entry.path());
                } else if kind.is_char_device()
                    || kind.is_block_device()
                    || metadata.mode() & 0o6000 != 0 && kind.is_file()
                {
                    return Some(format!("{:?} {:o}", entry.path(), metadata.mode()));
                }
            }
        }
        None
    }
}

fn run_copy(server: &str, token: &str, from: &str, to: &Path) -> Output {
    let mut command = process::program_command("atoll");
    command.args(["sandbox", "cp", "--server", server, from]).arg(to).env("ATOLL_TOKEN", token);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    process::spawn_process(command).wait_with_output().unwrap()
}

/// Unpacks with every protection of tar switched off.
fn unpack_unsafely(tar: &[u8], into: &Path) {
    let mut command = Command::new("tar");
    command.args(["-xPpf", "-", "--overwrite", "--same-owner", "-C"]).arg(into).stderr(Stdio::null());
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    drop(child.stdin.take().unwrap().write_all(tar));
    child.wait().unwrap();
}

/// A raw tar entry, with set-uid bits and any name.
fn tar_entry(kind: u8, name: &str, target: &str, data: &str) -> Vec<u8> {
    let mut head = [0_u8; 512];
    let mut put = |at: usize, text: &str| head[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0006777\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{:011o}\0", data.len()));
    put(136, "00000000001\0");
    put(148, "        ");
    put(157, target);
    put(257, "ustar\x0000");
    // Device numbers of /dev/zero.
    put(329, "0000001\0");
    put(337, "0000005\0");
    head[156] = kind;
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut bytes = head.to_vec();
    bytes.extend_from_slice(data.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn build_tar(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = entries.concat();
    bytes.extend_from_slice(&[0; 1024]);
    bytes
}

/// A pax header that renames the next entry.
fn renaming_header(name: &str) -> Vec<u8> {
    let mut record = String::new();
    let length = (1..).find(|length: &usize| {
        record.clear();
        writeln!(record, "{length} path={name}").unwrap();
        record.len() == *length
    });
    assert!(length.is_some());
    tar_entry(b'x', "header", "", &record)
}

/// Labelled archives that try to write to `outside`.
fn hostile_archives(outside: &Path) -> Vec<(&'static str, Vec<u8>)> {
    let at = |name: &str| outside.join(name).to_str().unwrap().to_owned();
    let dir = outside.to_str().unwrap();
    vec![
        ("an absolute name", build_tar(&[tar_entry(b'0', &at("evil"), "", "evil")])),
        ("a name with ..", build_tar(&[tar_entry(b'0', "../outside/evil", "", "evil")])),
        (
            "a name with .. below a directory",
            build_tar(&[tar_entry(b'5', "d", "", ""), tar_entry(b'0', "d/../../outside/evil", "", "evil")]),
        ),
        ("a pax name with ..", build_tar(&[renaming_header("../outside/evil"), tar_entry(b'0', "plain", "", "evil")])),
        (
            "a GNU name that is absolute",
            build_tar(&[
                tar_entry(b'L', "././@LongLink", "", &format!("{}\0", at("evil"))),
                tar_entry(b'0', "plain", "", "evil"),
            ]),
        ),
        (
            "a symlink, and a file through it",
            build_tar(&[tar_entry(b'2', "out", dir, ""), tar_entry(b'0', "out/evil", "", "evil")]),
        ),
        (
            "a relative symlink, and a file through it",
            build_tar(&[tar_entry(b'2', "out", "../outside", ""), tar_entry(b'0', "out/evil", "", "evil")]),
        ),
        (
            "a chain of symlinks",
            build_tar(&[
                tar_entry(b'2', "a", "..", ""),
                tar_entry(b'2', "b", "a/outside", ""),
                tar_entry(b'0', "b/evil", "", "evil"),
            ]),
        ),
        (
            "a symlink in place of a directory",
            build_tar(&[
                tar_entry(b'2', "d", dir, ""),
                tar_entry(b'5', "d", "", ""),
                tar_entry(b'0', "d/evil", "", "evil"),
            ]),
        ),
        (
            "a symlink to a file, overwritten",
            build_tar(&[tar_entry(b'2', "f", &at("secret"), ""), tar_entry(b'0', "f", "", "evil")]),
        ),
        ("a hard link to an absolute path", build_tar(&[tar_entry(b'1', "hard", &at("secret"), "")])),
        ("a hard link with ..", build_tar(&[tar_entry(b'1', "hard", "../outside/secret", "")])),
        (
            "a hard link through a symlink",
            build_tar(&[tar_entry(b'2', "out", dir, ""), tar_entry(b'1', "hard", "out/secret", "")]),
        ),
        ("a character device", build_tar(&[tar_entry(b'3', "zero", "", "")])),
        ("a block device", build_tar(&[tar_entry(b'4', "disk", "", "")])),
        ("a set-uid program", build_tar(&[tar_entry(b'0', "root", "", "#!/bin/sh")])),
    ]
}

/// Serves each archive once: the stat request, then the tar request.
fn serve_archives(listener: TcpListener, answers: Vec<Vec<u8>>) {
    for tar in answers {
        for _ in 0..2 {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let mut request = Vec::new();
            let mut buffer = [0; 4096];
            while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                match stream.read(&mut buffer) {
                    Ok(0) | Err(_) => break,
                    Ok(count) => request.extend_from_slice(&buffer[..count]),
                }
            }
            let is_tree = String::from_utf8_lossy(&request).lines().next().unwrap_or_default().contains("/files/tar");
            let stat = json!({ "name": "evil", "kind": "directory", "size": 0, "mode": "0755", "modified_at": "2026-01-31T12:00:00Z" });
            let (kind, body) = if is_tree {
                ("application/x-tar", tar.clone())
            } else {
                ("application/json", stat.to_string().into_bytes())
            };
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            drop(stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body)));
        }
    }
}

/// Runs `atoll sandbox cp` against a server that sends hostile archives.
pub fn run_stream_attempts(table: &mut AttemptTable, id: &str) {
    let (listener, kinds) = (TcpListener::bind("127.0.0.1:0").unwrap(), hostile_archives(Path::new("/")).len());
    let url = format!("http://{}", listener.local_addr().unwrap());
    for number in 0..kinds {
        let (here, there) = (CopyTarget::new(), CopyTarget::new());
        let (what, tar) = hostile_archives(&here.outside_dir()).swap_remove(number);
        let serving = listener.try_clone().unwrap();
        let serving = std::thread::spawn(move || serve_archives(serving, vec![tar]));
        let copied = run_copy(&url, "token", &format!("{id}:evil"), &here.target_dir());
        wait_until(&format!("the request of the tree by a command that ended with {copied:?}"), || {
            serving.is_finished()
        });
        serving.join().unwrap();
        assert_eq!(here.find_escape(), None, "{what}: {copied:?}");
        let (_, tar) = hostile_archives(&there.outside_dir()).swap_remove(number);
        unpack_unsafely(&tar, &there.target_dir());
        if there.find_escape().is_none() {
            table.record_skipped(GROUP, &format!("a tar with {what}"), "tar does not escape with it either");
            continue;
        }
        let stderr = String::from_utf8_lossy(&copied.stderr);
        let inside = stderr
            .lines()
            .find(|line| line.contains("not copied") || line.contains("cannot"))
            .unwrap_or("nothing escaped");
        table.record_refused(GROUP, &format!("a tar with {what}"), inside.trim().to_owned(), UNSAFE_TAR_PROOF);
    }
}

/// Swaps a directory for a symlink to `$1` and back in a tight loop.
const SWAP_SCRIPT: &str = "while :; do mv -T dir was; ln -s $1 dir; rm -f dir; mv -T was dir; done";

/// Copies hostile trees out of a sandbox. The sandbox `planted` has a device and a set-uid program in its `/tmp`.
pub async fn run_tree_attempts(server: &LocalServer, table: &mut AttemptTable, planted: &str) {
    let token = server.process.admin_token();
    let copy = |from: String, to: &Path| run_copy(&server.process.url, &token, &from, to);
    let id = server.create_idle_sandbox(json!({})).await;

    let target = CopyTarget::new();
    let names = "mkdir -p names; cd names; for n in -rf '..\\evil' 'C:\\evil' '...' ' ' 'a\nb' '\x1b[2J' '~' '$(id)'; do \
                 echo x > \"./$n\"; done; printf x > \"$(printf '\\377\\376')\"; ls | wc -l; ls -A | wc -l";
    server.run_shell(&id, names).await.expect_success();
    let copied = copy(format!("{id}:names"), &target.target_dir());
    assert!(copied.status.success(), "{copied:?}");
    assert_eq!(target.find_escape(), None, "{copied:?}");
    let count = std::fs::read_dir(target.target_dir().join("names")).unwrap().count();
    assert_eq!(count, 10);
    table.record_refused(
        GROUP,
        "names that are special elsewhere",
        format!("{count} files, all in the target"),
        "on the host: they are plain names",
    );

    // An earlier copy could have left a symlink; now the sandbox has a directory of that name.
    let target = CopyTarget::new();
    std::fs::create_dir(target.target_dir().join("tree")).unwrap();
    symlink(target.outside_dir(), target.target_dir().join("tree/out")).unwrap();
    server.run_shell(&id, "mkdir -p tree/out; echo evil > tree/out/evil").await.expect_success();
    let copied = copy(format!("{id}:tree"), &target.target_dir());
    assert_eq!(target.find_escape(), None, "{copied:?}");
    std::fs::write(target.target_dir().join("tree/out/evil"), "x").unwrap_or_default();
    let unsafe_target = CopyTarget::new();
    symlink(unsafe_target.outside_dir(), unsafe_target.target_dir().join("out")).unwrap();
    unpack_unsafely(&build_tar(&[tar_entry(b'0', "out/evil", "", "evil")]), &unsafe_target.target_dir());
    assert!(unsafe_target.find_escape().is_some(), "tar follows the symlink");
    table.record_refused(
        GROUP,
        "a symlink in the target in place of a directory",
        "not followed".into(),
        UNSAFE_TAR_PROOF,
    );

    let target = CopyTarget::new();
    server
        .run_shell(&id, "mkdir -p hard; echo x > hard/a; ln hard/a hard/b; ln /etc/hostname hard/c; true")
        .await
        .expect_success();
    let copied = copy(format!("{id}:hard"), &target.target_dir());
    assert_eq!(target.find_escape(), None, "{copied:?}");
    assert!(!target.target_dir().join("hard/c").exists(), "the sandbox linked a file of the host");
    table.record_refused(GROUP, "hard links", "two files".into(), "on the host, with ln");

    let target = CopyTarget::new();
    let copied = copy(format!("{planted}:/tmp"), &target.target_dir());
    assert_eq!(target.find_escape(), None, "{copied:?}");
    assert!(target.target_dir().join("tmp/planted-calls").exists(), "the program was not copied: {copied:?}");
    assert!(!target.target_dir().join("tmp/planted-zero").exists());
    table.record_refused(GROUP, "a device and a set-uid program", "no device, no set-uid bit".into(), UNSAFE_TAR_PROOF);

    let target = CopyTarget::new();
    let outside = target.outside_dir();
    let swap = "mkdir -p swapped/dir; for i in 1 2 3 4 5 6 7 8; do echo mine > swapped/dir/evil$i; done; cd swapped;";
    let swap = format!("{swap} nohup sh -c '{SWAP_SCRIPT}' swap {} >/dev/null 2>&1 & sleep 0.1", outside.display());
    server.run_shell(&id, &swap).await.expect_success();
    let mut complete = 0;
    for _ in 0..20 {
        // Always into the same directory, so that each copy meets the remains of the previous one.
        let copied = copy(format!("{id}:swapped"), &target.target_dir());
        assert_eq!(target.find_escape(), None, "{copied:?}");
        complete += usize::from(copied.status.success());
    }
    let inside = format!("20 copies, {complete} of them complete");
    table.record_refused(GROUP, "symlinks swapped during a copy", inside, UNSAFE_TAR_PROOF);
}
