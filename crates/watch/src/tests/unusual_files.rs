//! Binary and huge files, unusual names, and large batches.

use super::workspace::{MODES, Mode, TestWorkspace, summarize};
use crate::*;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

#[test]
fn reports_binary_files_by_size_and_hash() {
    for mode in MODES {
        let desk = TestWorkspace::new();
        desk.write_file("old.png", b"\x89PNG\0\0");
        let mut watch = desk.start_watcher(mode);
        desk.write_file("new.bin", b"abc\0def");
        desk.write_file("latin1.txt", b"caf\xe9\n");
        desk.write_file("old.png", b"\x89PNG\0\x01");
        let changes = watch.take_all();
        assert_eq!(summarize(&changes), ["created latin1.txt", "created new.bin", "modified old.png"]);
        for change in &changes {
            assert!(change.binary && change.full_diff.is_none() && change.diff_preview.is_empty(), "{change:?}");
            assert!(change.size.is_some() && change.sha256.as_ref().is_some_and(|hash| hash.len() == 64));
        }
        assert_eq!(changes[1].size, Some(7));
        desk.write_file("old.png", b"\x89PNG\0\x01");
        assert!(watch.take_all().is_empty());
        fs::rename(desk.path("old.png"), desk.path("moved.png")).unwrap();
        assert_eq!(summarize(&watch.take_all()), ["renamed old.png moved.png"]);
    }
}

#[test]
fn reports_large_files_by_size_and_hash() {
    for mode in MODES {
        let desk = TestWorkspace::new();
        let mut watch = desk.start_watcher(mode);
        desk.write_file("big.txt", "line\n".repeat(300_000));
        File::create(desk.path("sparse")).unwrap().set_len(40_000_000_000).unwrap();
        let began = Instant::now();
        let changes = watch.take_all();
        assert!(began.elapsed() < Duration::from_secs(20), "the sparse file must not be read");
        assert_eq!(summarize(&changes), ["created big.txt", "created sparse"]);
        assert_eq!(
            (changes[0].size, changes[0].binary, changes[0].full_diff.is_some()),
            (Some(1_500_000), false, false)
        );
        assert!(changes[0].sha256.is_some());
        assert_eq!((changes[1].size, changes[1].sha256.as_ref()), (Some(40_000_000_000), None));
        desk.write_file("big.txt", "line\n".repeat(300_000));
        assert!(watch.take_all().is_empty());
        desk.write_file("big.txt", "small now\n");
        assert_eq!(summarize(&watch.take_all()), ["modified big.txt"]);
    }
}

#[test]
fn truncates_long_diffs() {
    let desk = TestWorkspace::new();
    let mut watch = desk.start_watcher(Mode::Notices);
    desk.write_file("long", "a line of text\n".repeat(60_000));
    let change = watch.take_all().remove(0);
    assert!(!change.full_diff_truncated && change.full_diff.unwrap().len() > 960_000);
    assert!(change.diff_preview.len() <= 2_000 && change.diff_preview.ends_with('\n'));
    desk.write_file("long", "\n".repeat(900_000));
    let cut = watch.take_all().remove(0);
    assert_eq!((cut.full_diff_truncated, cut.full_diff.as_ref().unwrap().len()), (true, 2_000_000));
    assert!(cut.full_diff_bytes.unwrap() > 2_700_000);
    assert_eq!((cut.lines_added, cut.size, cut.sha256.is_some()), (900_000, Some(900_000), true));
}

#[test]
fn reports_links_by_target_without_following_them() {
    for mode in MODES {
        let desk = TestWorkspace::new();
        let outside = TestWorkspace::new();
        outside.write_file("secret", "s\n");
        desk.write_file("a", "text\n");
        desk.write_file("d/f", "f\n");
        let mut watch = desk.start_watcher(mode);
        symlink(outside.directory.path(), desk.path("out")).unwrap();
        symlink("loop", desk.path("loop")).unwrap();
        fs::remove_file(desk.path("a")).unwrap();
        symlink("d/f", desk.path("a")).unwrap();
        fs::remove_dir_all(desk.path("d")).unwrap();
        symlink(outside.directory.path(), desk.path("d")).unwrap();
        outside.write_file("f", "not ours\n");
        let changes = watch.take_all();
        assert_eq!(
            summarize(&changes),
            ["deleted d/f", "created d", "created loop", "created out", "modified a"],
            "{mode:?}"
        );
        assert_eq!(
            changes[4].full_diff.as_deref(),
            Some("--- a/a\n+++ b/a\n@@ -1 +1 @@\n-text\n+d/f\n\\ No newline at end of file\n")
        );
        outside.write_file("secret", "changed\n");
        assert!(watch.take_all().is_empty());
    }
}

#[test]
fn ignores_fifos_and_sockets() {
    for mode in MODES {
        let desk = TestWorkspace::new();
        desk.write_file("was-a-file", "x\n");
        let mut watch = desk.start_watcher(mode);
        let fifo = rustix::fs::FileType::Fifo;
        let permissions = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, desk.path("fifo"), fifo, permissions, 0).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, desk.path(".gitignore"), fifo, permissions, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(desk.path("socket")).unwrap();
        fs::remove_file(desk.path("was-a-file")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, desk.path("was-a-file"), fifo, permissions, 0).unwrap();
        assert_eq!(summarize(&watch.take_all()), ["deleted was-a-file"]);
    }
}

#[test]
fn escapes_names_that_are_not_utf8() {
    for mode in MODES {
        let desk = TestWorkspace::new();
        let mut watch = desk.start_watcher(mode);
        let directory = desk.directory.path().join(OsStr::from_bytes(b"d\xff"));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join(OsStr::from_bytes(b"\xe9\n\x1b[31m")), "x\n").unwrap();
        let changes = watch.take_all();
        assert_eq!(changes[0].file_path, "d\\xff/\\xe9\n\x1b[31m");
        assert!(changes[0].diff_preview.contains("+++ \"b/d\\xff/\\xe9\\n\\033[31m\"\n@@"), "{changes:?}");
        serde_json::to_string(&changes).unwrap();
    }
}

#[test]
fn reports_all_hard_links_of_a_written_file() {
    for mode in MODES {
        let desk = TestWorkspace::new();
        desk.write_file("one", "1\n");
        fs::create_dir(desk.path("d")).unwrap();
        fs::hard_link(desk.path("one"), desk.path("d/two")).unwrap();
        let mut watch = desk.start_watcher(mode);
        desk.write_file("one", "2\n");
        assert_eq!(summarize(&watch.take_all()), ["modified d/two", "modified one"], "{mode:?}");
    }
}

/// More untracked files than the baseline reads: the first report of the rest has no diff.
#[test]
fn reports_size_and_hash_when_the_old_content_is_unavailable() {
    for mode in MODES {
        let desk = TestWorkspace::new();
        for number in 0..300 {
            desk.write_file(&format!("{number:03}"), "old\n");
        }
        let mut watch = desk.start_watcher(mode);
        for number in 0..300 {
            desk.write_file(&format!("{number:03}"), "new!\n");
        }
        let changes = watch.take_all();
        assert_eq!(changes.len(), 300);
        let (with, without): (Vec<_>, Vec<_>) = changes.iter().partition(|change| change.full_diff.is_some());
        assert_eq!((with.len(), without.len()), (200, 100));
        assert!(without.iter().all(|change| change.size == Some(5) && change.sha256.is_some() && !change.binary));
        desk.write_file("000", "newer\n");
        assert!(watch.take_all()[0].full_diff.is_some());
    }
}

/// A large checkout stays within the limits, and reports every file.
#[test]
fn bounds_the_diffs_of_one_batch() {
    let desk = TestWorkspace::new();
    let mut watch = desk.start_watcher(Mode::Notices);
    let text = "0123456789abcde\n".repeat(3_000);
    for number in 0..600 {
        desk.write_file(&format!("{number:03}"), format!("{number}\n{text}"));
    }
    let changes = watch.take_all();
    assert_eq!(changes.len(), 600);
    let bytes: usize = changes.iter().filter_map(|change| change.full_diff.as_ref()).map(String::len).sum();
    assert!(bytes < 17 * 1024 * 1024, "{bytes}");
    let last = changes.last().unwrap();
    assert_eq!((last.full_diff.as_ref(), last.full_diff_truncated, last.lines_added), (None, true, 3_001));
    assert!(last.sha256.is_some());
}

#[test]
fn serializes_changes() {
    let desk = TestWorkspace::new();
    let mut watch = desk.start_watcher(Mode::Notices);
    desk.write_file("a", "1\n");
    desk.write_file("b", b"\0");
    let changes = watch.take_all();
    let json = serde_json::to_value(&changes).unwrap();
    assert_eq!(
        json,
        serde_json::json!([
            {"file_path": "a", "change_type": "created", "lines_added": 1, "lines_removed": 0,
             "diff_preview": "--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+1\n",
             "full_diff": "--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+1\n"},
            {"file_path": "b", "change_type": "created", "lines_added": 0, "lines_removed": 0, "diff_preview": "",
             "binary": true, "size": 1,
             "sha256": "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"}
        ])
    );
    assert_eq!(serde_json::from_value::<Vec<Change>>(json).unwrap(), changes);
}
