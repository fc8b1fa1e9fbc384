//! `atoll sandbox cp` against hostile and ordinary servers.

use crate::canned::serve_responses;
use crate::program::{atoll, text};
use serde_json::json;
use std::path::Path;
use std::process::Output;

const ID: &str = "sbx_01m7fkrr8mezdtrwya23zj4ref";

fn cp(url: &str, dir: &Path, from: &str, to: &str) -> Output {
    let mut command = atoll(dir);
    command.args(["sandbox", "cp", from, to]).env("ATOLL_SERVER", url).env("ATOLL_TOKEN", "t");
    command.output().unwrap()
}

fn stat_response(kind: &str) -> Vec<u8> {
    json!({ "name": "x", "kind": kind, "size": 5, "mode": "6755", "modified_at": "2026-01-01T00:00:00Z" })
        .to_string()
        .into_bytes()
}

/// One tar entry with any path.
fn entry(kind: u8, path: &str, target: &str, data: &[u8]) -> Vec<u8> {
    let mut block = vec![0; 512];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, path.as_bytes());
    put(100, b"0006755\0");
    put(124, format!("{:011o}\0", data.len()).as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, &[kind]);
    put(157, target.as_bytes());
    put(257, b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block.extend_from_slice(data);
    block.resize(block.len().next_multiple_of(512), 0);
    block
}

#[test]
fn a_hostile_tree_cannot_write_outside_its_destination() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("out")).unwrap();
    std::fs::write(dir.path().join("out/secret"), "unchanged").unwrap();
    let out = dir.path().join("out").to_str().unwrap().to_owned();
    let mut tar = [
        entry(b'0', "good", "", b"hello"),
        entry(b'0', &format!("{out}/secret"), "", b"evil"),
        entry(b'0', "../out/secret", "", b"evil"),
        entry(b'2', "door", "../out", b""),
        entry(b'0', "door/secret", "", b"harmless: the link does not exist"),
        entry(b'1', "hard", "../out/secret", b""),
        entry(b'3', "device", "", b""),
    ]
    .concat();
    tar.extend([0; 1024]);
    let (url, _requests) = serve_responses(vec![
        ("/stat", "application/json", stat_response("directory")),
        ("/tar", "application/x-tar", tar),
    ]);
    let done = cp(&url, dir.path(), &format!("{ID}:x"), "target");
    let stderr = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("5 entries were not copied") && stderr.contains("its path is absolute"), "{stderr}");
    assert_eq!(std::fs::read_to_string(dir.path().join("out/secret")).unwrap(), "unchanged");
    assert_eq!(std::fs::read_dir(dir.path().join("out")).unwrap().count(), 1);
    assert_eq!(std::fs::read_to_string(dir.path().join("target/good")).unwrap(), "hello");
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(dir.path().join("target/good")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o7000, 0);
}

#[test]
fn an_incomplete_tree_is_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    let half = entry(b'0', "good", "", b"hello");
    let (url, _requests) = serve_responses(vec![
        ("/stat", "application/json", stat_response("directory")),
        ("/tar", "application/x-tar", half),
    ]);
    let done = cp(&url, dir.path(), &format!("{ID}:x"), "target");
    assert_eq!(done.status.code(), Some(1));
    assert!(text(&done.stderr).contains("missing end marker"), "{}", text(&done.stderr));
}

#[test]
fn a_file_replaces_its_target_atomically() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("old"), "old").unwrap();
    std::os::unix::fs::symlink("old", dir.path().join("link")).unwrap();
    let (url, _requests) = serve_responses(vec![
        ("/stat", "application/json", stat_response("file")),
        ("/files?path=", "application/octet-stream", b"hello".to_vec()),
    ]);
    for (to, file) in [("new", "new"), (".", "x"), ("link", "old")] {
        let done = cp(&url, dir.path(), &format!("{ID}:/a/x"), to);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        assert_eq!(std::fs::read_to_string(dir.path().join(file)).unwrap(), "hello");
    }
    assert!(std::fs::symlink_metadata(dir.path().join("link")).unwrap().is_symlink());
    let done = cp(&url, dir.path(), &format!("{ID}:/a/x"), "-");
    assert_eq!(done.stdout, b"hello");
    let done = cp(&url, dir.path(), &format!("{ID}:/a/x"), "/dev/null");
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let device = std::fs::metadata("/dev/null").unwrap();
    assert!(std::os::unix::fs::FileTypeExt::is_char_device(&device.file_type()), "the device was replaced");
    let mut names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["link", "new", "old", "x"], "the copy left other files");
}

#[test]
fn requires_exactly_one_path_in_a_sandbox() {
    let dir = tempfile::tempdir().unwrap();
    for (from, to) in [("a", "b"), ("-", "b"), (&*format!("{ID}:a"), &*format!("{ID}:b"))] {
        let done = cp("http://127.0.0.1:9", dir.path(), from, to);
        assert_eq!(done.status.code(), Some(2));
        assert!(text(&done.stderr).contains("bad_input"), "{}", text(&done.stderr));
    }
}
