//! Changes that agents, editors and shells make.

use super::workspace::{MODES, Mode, TestWorkspace, apply_changes, summarize};
use crate::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs;

#[test]
fn reports_nothing_without_changes() {
    for mode in MODES {
        let desk = TestWorkspace::new();
        desk.write_file("a", "a\n");
        let mut watch = desk.start_watcher(mode);
        assert!(watch.take_all().is_empty());
        assert_eq!(watch.next_deadline(), None);
    }
}

#[test]
fn reports_created_modified_and_deleted_files() {
    for mode in MODES {
        let desk = TestWorkspace::new();
        desk.write_file("src/old.rs", "one\ntwo\n");
        let mut watch = desk.start_watcher(mode);
        desk.write_file("src/new.rs", "fn main() {}\n");
        desk.write_file("src/old.rs", "one\ntwo\nthree\n");
        let changes = watch.take_all();
        assert_eq!(summarize(&changes), ["created src/new.rs", "modified src/old.rs"]);
        assert_eq!(
            changes[0].full_diff.as_deref(),
            Some("--- /dev/null\n+++ b/src/new.rs\n@@ -0,0 +1 @@\n+fn main() {}\n")
        );
        assert_eq!((changes[1].lines_added, changes[1].lines_removed), (1, 0));
        fs::remove_file(desk.path("src/old.rs")).unwrap();
        let changes = watch.take_all();
        assert_eq!(summarize(&changes), ["deleted src/old.rs"]);
        assert_eq!((changes[0].lines_removed, changes[0].size), (3, None));
        assert!(watch.take_all().is_empty());
    }
}

#[test]
fn does_not_report_undone_changes() {
    for mode in MODES {
        let desk = TestWorkspace::new();
        desk.write_file("kept", "as it was\n");
        let mut watch = desk.start_watcher(mode);
        desk.write_file("kept", "something else\n");
        desk.write_file("kept", "as it was\n");
        desk.write_file(".kept.swp", "an editor's\n");
        fs::remove_file(desk.path(".kept.swp")).unwrap();
        desk.write_file("build/x/y", "z\n");
        fs::remove_dir_all(desk.path("build")).unwrap();
        fs::rename(desk.path("kept"), desk.path("away")).unwrap();
        fs::rename(desk.path("away"), desk.path("kept")).unwrap();
        assert!(watch.take_all().is_empty(), "{mode:?}");
    }
}

#[test]
fn handles_editors_that_save_by_rename_or_backup() {
    for mode in MODES {
        let desk = TestWorkspace::new();
        desk.write_file("a", "old\n");
        let mut watch = desk.start_watcher(mode);
        desk.write_file(".a.tmp", "new\n");
        fs::rename(desk.path(".a.tmp"), desk.path("a")).unwrap();
        assert_eq!(summarize(&watch.take_all()), ["modified a"]);
        fs::rename(desk.path("a"), desk.path("a~")).unwrap();
        desk.write_file("a", "newer\n");
        assert_eq!(summarize(&watch.take_all()), ["created a~", "modified a"]);
    }
}

#[test]
fn reports_renames() {
    for mode in MODES {
        let desk = TestWorkspace::new();
        for path in ["one", "two", "d/x", "d/deep/y"] {
            desk.write_file(path, format!("content of {path}\nsecond line\n"));
        }
        let mut watch = desk.start_watcher(mode);
        fs::rename(desk.path("one"), desk.path("uno")).unwrap();
        let changes = watch.take_all();
        assert_eq!(summarize(&changes), ["renamed one uno"]);
        assert_eq!((changes[0].full_diff.as_deref(), changes[0].lines_added), (Some(""), 0));

        fs::rename(desk.path("d"), desk.path("e")).unwrap();
        assert_eq!(summarize(&watch.take_all()), ["renamed d/deep/y e/deep/y", "renamed d/x e/x"]);

        // Copied and then deleted, as a script may do.
        fs::copy(desk.path("two"), desk.path("e/two")).unwrap();
        fs::remove_file(desk.path("two")).unwrap();
        assert_eq!(summarize(&watch.take_all()), ["renamed two e/two"]);
    }
}

#[test]
fn reports_a_renamed_and_edited_file_as_one_change() {
    let desk = TestWorkspace::new();
    desk.write_file("one", "1\n2\n3\n");
    let mut watch = desk.start_watcher(Mode::Notices);
    fs::rename(desk.path("one"), desk.path("between")).unwrap();
    fs::rename(desk.path("between"), desk.path("two")).unwrap();
    desk.write_file("two", "1\nzwei\n3\n");
    let changes = watch.take_all();
    assert_eq!(summarize(&changes), ["renamed one two"]);
    let diff = changes[0].full_diff.as_deref().unwrap();
    assert_eq!(diff, "--- a/one\n+++ b/two\n@@ -1,3 +1,3 @@\n 1\n-2\n+zwei\n 3\n");
}

#[test]
fn reports_files_in_new_directories() {
    for mode in MODES {
        let desk = TestWorkspace::new();
        let outside = TestWorkspace::new();
        outside.write_file("tree/a/b", "moved in\n");
        let mut watch = desk.start_watcher(mode);
        desk.write_file("x/y/z/file", "deep\n");
        fs::rename(outside.path("tree"), desk.path("tree")).unwrap();
        assert_eq!(summarize(&watch.take_all()), ["created tree/a/b", "created x/y/z/file"]);
        desk.write_file("x/y/z/second", "later\n");
        fs::rename(desk.path("tree"), outside.path("tree")).unwrap();
        assert_eq!(summarize(&watch.take_all()), ["deleted tree/a/b", "created x/y/z/second"]);
    }
}

/// Polls like a caller, for at most a second.
fn poll_changes(watch: &mut Watcher) -> Vec<Change> {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(1) {
        let until = watch.next_deadline().unwrap_or(began + Duration::from_secs(1));
        let left = until.saturating_duration_since(Instant::now());
        let time = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        let descriptor = watch.inotify_fd().unwrap();
        poll(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)], Some(&time)).unwrap();
        let changes = watch.take_settled();
        if !changes.is_empty() {
            return changes;
        }
    }
    Vec::new()
}

#[test]
fn reports_a_change_after_the_settle_time() {
    let desk = TestWorkspace::new();
    let mut watch = desk.start_watcher(Mode::Notices);
    assert!(watch.take_settled().is_empty());
    assert_eq!(watch.next_deadline(), None);
    desk.write_file("a", "1\n");
    let began = Instant::now();
    assert!(watch.take_settled().is_empty());
    assert!(watch.next_deadline().is_some());
    assert_eq!(summarize(&poll_changes(&mut watch)), ["created a"]);
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(45), "{took:?}");
    assert_eq!(watch.next_deadline(), None);
}

#[test]
fn a_busy_file_does_not_delay_others() {
    let desk = TestWorkspace::new();
    let mut watch = desk.start_watcher(Mode::Notices);
    let began = Instant::now();
    let mut changes = Vec::new();
    desk.write_file("quiet", "q\n");
    for number in 0.. {
        desk.write_file("log", format!("{number}\n"));
        changes.extend(watch.take_settled());
        if !changes.is_empty() || began.elapsed() > Duration::from_secs(2) {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(summarize(&changes), ["created quiet"]);
    assert_eq!(summarize(&watch.take_all()), ["created log"]);
}

/// More changes than the kernel's queue holds.
#[test]
fn recovers_from_lost_notices() {
    let desk = TestWorkspace::new();
    for number in 0..100 {
        desk.write_file(&format!("before/{number}"), "x\n");
    }
    let mut watch = desk.start_watcher(Mode::Notices);
    let mut model = desk.read_contents();
    desk.write_file("before/7", "y\n");
    for number in 0..6_000 {
        desk.write_file(&format!("many/{}/{number}", number % 10), "m\n");
        if number == 5_000 {
            fs::remove_dir_all(desk.path("before")).unwrap();
            desk.write_file("after/1", "z\n");
        }
    }
    desk.write_file("after/late/2", "z\n");
    let changes = watch.take_all();
    apply_changes(&mut model, &changes).unwrap();
    assert_eq!(model, desk.read_contents());
    desk.write_file("after/late/3", "still watched\n");
    assert_eq!(summarize(&watch.take_all()), ["created after/late/3"]);
}

#[test]
fn scans_when_the_watch_limit_is_reached() {
    let desk = TestWorkspace::new();
    desk.write_file("a", "1\n");
    let mut watch = desk.start_watcher(Mode::Notices);
    let mut model = desk.read_contents();
    desk.write_file("a", "2\n");
    watch.read_notices();
    watch.notify = None;
    desk.write_file("b/c", "3\n");
    fs::remove_file(desk.path("a")).unwrap();
    apply_changes(&mut model, &watch.take_all()).unwrap();
    assert_eq!(model, desk.read_contents());
    assert!(watch.inotify_fd().is_none() && watch.next_deadline().is_none());
}

#[test]
fn rejects_a_root_that_is_not_a_directory() {
    let desk = TestWorkspace::new();
    desk.write_file("file", "");
    assert!(Watcher::new(&desk.path("file"), Options::default()).is_err());
    assert!(Watcher::new(&desk.path("nowhere"), Options::default()).is_err());
}
