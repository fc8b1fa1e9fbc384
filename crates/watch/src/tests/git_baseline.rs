//! Diffs whose old side comes from git.

use super::workspace::{MODES, Mode, TestWorkspace, apply_changes, summarize};
use crate::*;
use std::fs;

#[test]
fn compares_with_the_start_despite_new_commits() {
    for mode in MODES {
        let desk = TestWorkspace::new();
        desk.write_file("a", "1\n2\n3\n");
        desk.write_file("gone", "g\n");
        desk.commit_all();
        let mut watch = desk.start_watcher(mode);
        desk.write_file("a", "1\nzwei\n3\n");
        fs::remove_file(desk.path("gone")).unwrap();
        desk.commit_all();
        desk.run_git(&["gc", "-q"]);
        let changes = watch.take_all();
        assert_eq!(summarize(&changes), ["deleted gone", "modified a"]);
        assert_eq!(changes[0].full_diff.as_deref(), Some("--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-g\n"));
        assert_eq!(changes[1].full_diff.as_deref(), Some("--- a/a\n+++ b/a\n@@ -1,3 +1,3 @@\n 1\n-2\n+zwei\n 3\n"));
        // Back to the first commit: compares with the last report, not with git.
        desk.run_git(&["checkout", "-q", "HEAD~1"]);
        assert_eq!(summarize(&watch.take_all()), ["created gone", "modified a"]);
    }
}

#[test]
fn compares_with_the_file_and_not_the_commit() {
    for mode in MODES {
        let desk = TestWorkspace::new();
        for path in ["dirty", "staged", "clean"] {
            desk.write_file(path, "committed\n");
        }
        desk.commit_all();
        desk.write_file("dirty", "by somebody\n");
        desk.write_file("staged", "by somebody\n");
        desk.run_git(&["add", "staged"]);
        desk.write_file("untracked", "u\n");
        let mut watch = desk.start_watcher(mode);
        let mut model = desk.read_contents();
        for path in ["dirty", "staged", "clean", "untracked"] {
            desk.write_file(path, format!("by the agent: {path}\n"));
        }
        let changes = watch.take_all();
        assert_eq!(changes.len(), 4);
        apply_changes(&mut model, &changes).unwrap();
        assert_eq!(model, desk.read_contents());
    }
}

#[test]
fn reads_many_blobs_in_one_query() {
    let desk = TestWorkspace::new();
    for number in 0..1_200 {
        desk.write_file(&format!("d{}/{number}", number % 20), format!("{number}\n{}", "line\n".repeat(number % 50)));
    }
    desk.commit_all();
    let mut watch = desk.start_watcher(Mode::Notices);
    let mut model = desk.read_contents();
    for number in 0..1_200 {
        match number % 3 {
            0 => desk.write_file(&format!("d{}/{number}", number % 20), "new\n"),
            1 => fs::remove_file(desk.path(&format!("d{}/{number}", number % 20))).unwrap(),
            _ => {}
        }
    }
    let changes = watch.take_all();
    apply_changes(&mut model, &changes).unwrap();
    assert_eq!(model, desk.read_contents());
}

/// The repository has LF and the working tree CRLF, so the blob is not the file's old content.
#[test]
fn omits_the_diff_when_a_git_filter_changed_the_content() {
    let desk = TestWorkspace::new();
    desk.write_file(".gitattributes", "*.txt text eol=crlf\n");
    desk.write_file("a.txt", "1\r\n2\r\n");
    desk.commit_all();
    let mut watch = desk.start_watcher(Mode::Notices);
    desk.write_file("a.txt", "1\r\n2\r\n3\r\n");
    let changes = watch.take_all();
    assert_eq!(summarize(&changes), ["modified a.txt"]);
    assert_eq!((changes[0].full_diff.as_ref(), changes[0].size, changes[0].sha256.is_some()), (None, Some(9), true));
    desk.write_file("a.txt", "1\r\n");
    let changes = watch.take_all();
    assert_eq!(changes[0].lines_removed, 2);
}

#[test]
fn handles_assume_unchanged_files() {
    let desk = TestWorkspace::new();
    desk.write_file("a", "committed\n");
    desk.commit_all();
    desk.run_git(&["update-index", "--assume-unchanged", "a"]);
    desk.write_file("a", "different\n");
    let mut watch = desk.start_watcher(Mode::Notices);
    desk.write_file("a", "new\n");
    let changes = watch.take_all();
    assert!(changes[0].diff_preview.contains("-different\n+new\n"), "{changes:?}");
}

#[test]
fn survives_a_broken_repository() {
    for mode in MODES {
        for breakage in 0..5 {
            let desk = TestWorkspace::new();
            desk.write_file("a", "1\n");
            desk.commit_all();
            match breakage {
                0 => desk.write_file(".git/index", "not an index"),
                1 => desk.write_file(".git/HEAD", "\0\0"),
                2 => fs::remove_dir_all(desk.path(".git/objects")).unwrap(),
                3 => desk.write_file(".git/config", "[core\n"),
                _ => {
                    fs::remove_dir_all(desk.path(".git")).unwrap();
                    desk.write_file(".git", "gitdir: /nowhere\n");
                }
            }
            let mut watch = desk.start_watcher(mode);
            desk.write_file("a", "2\n");
            let changes = watch.take_all();
            assert_eq!(summarize(&changes), ["modified a"], "{breakage}");
            assert!(changes[0].full_diff.is_some(), "{breakage}");
        }
    }
}

#[test]
fn kills_a_hanging_git_and_its_children() {
    let desk = TestWorkspace::new();
    desk.write_file(".gitattributes", "*.slow filter=slow\n");
    desk.write_file("a.slow", "1\n");
    desk.commit_all();
    desk.run_git(&["config", "filter.slow.clean", "sleep 86413"]);
    desk.write_file("a.slow", "2\n");
    let began = Instant::now();
    let mut watch = desk.start_watcher(Mode::Notices);
    assert!(began.elapsed() < Duration::from_secs(50), "{:?}", began.elapsed());
    desk.write_file("a.slow", "3\n");
    assert!(watch.take_all()[0].diff_preview.contains("-2\n+3\n"));
    let is_left = || {
        fs::read_dir("/proc").unwrap().flatten().any(|process| {
            fs::read(process.path().join("cmdline")).is_ok_and(|line| line.starts_with(b"sleep\x0086413"))
        })
    };
    atoll_test_wait::wait_until("git's children to die", || !is_left());
}
