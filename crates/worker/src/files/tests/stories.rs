//! What agents, editors and shells do.

use super::super::*;
use super::desk::{Desk, MODES, Mode, apply, short};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs;

#[test]
fn nothing_happened() {
    for mode in MODES {
        let desk = Desk::new();
        desk.write("a", "a\n");
        let mut watch = desk.watch(mode);
        assert!(watch.flush().is_empty());
        assert_eq!(watch.due(), None);
    }
}

#[test]
fn written_appended_deleted() {
    for mode in MODES {
        let desk = Desk::new();
        desk.write("src/old.rs", "one\ntwo\n");
        let mut watch = desk.watch(mode);
        desk.write("src/new.rs", "fn main() {}\n");
        desk.write("src/old.rs", "one\ntwo\nthree\n");
        let told = watch.flush();
        assert_eq!(short(&told), ["created src/new.rs", "modified src/old.rs"]);
        assert_eq!(
            told[0].full_diff.as_deref(),
            Some("--- /dev/null\n+++ b/src/new.rs\n@@ -0,0 +1 @@\n+fn main() {}\n")
        );
        assert_eq!((told[1].lines_added, told[1].lines_removed), (1, 0));
        fs::remove_file(desk.path("src/old.rs")).unwrap();
        let told = watch.flush();
        assert_eq!(short(&told), ["deleted src/old.rs"]);
        assert_eq!((told[0].lines_removed, told[0].size), (3, None));
        assert!(watch.flush().is_empty());
    }
}

#[test]
fn what_comes_to_nothing_is_not_told() {
    for mode in MODES {
        let desk = Desk::new();
        desk.write("kept", "as it was\n");
        let mut watch = desk.watch(mode);
        desk.write("kept", "something else\n");
        desk.write("kept", "as it was\n");
        desk.write(".kept.swp", "an editor's\n");
        fs::remove_file(desk.path(".kept.swp")).unwrap();
        desk.write("build/x/y", "z\n");
        fs::remove_dir_all(desk.path("build")).unwrap();
        fs::rename(desk.path("kept"), desk.path("away")).unwrap();
        fs::rename(desk.path("away"), desk.path("kept")).unwrap();
        assert!(watch.flush().is_empty(), "{mode:?}");
    }
}

#[test]
fn editors_save_by_moving_over_or_by_keeping_a_copy() {
    for mode in MODES {
        let desk = Desk::new();
        desk.write("a", "old\n");
        let mut watch = desk.watch(mode);
        desk.write(".a.tmp", "new\n");
        fs::rename(desk.path(".a.tmp"), desk.path("a")).unwrap();
        assert_eq!(short(&watch.flush()), ["modified a"]);
        fs::rename(desk.path("a"), desk.path("a~")).unwrap();
        desk.write("a", "newer\n");
        assert_eq!(short(&watch.flush()), ["created a~", "modified a"]);
    }
}

#[test]
fn renamed() {
    for mode in MODES {
        let desk = Desk::new();
        for path in ["one", "two", "d/x", "d/deep/y"] {
            desk.write(path, format!("content of {path}\nsecond line\n"));
        }
        let mut watch = desk.watch(mode);
        fs::rename(desk.path("one"), desk.path("uno")).unwrap();
        let told = watch.flush();
        assert_eq!(short(&told), ["renamed one uno"]);
        assert_eq!((told[0].full_diff.as_deref(), told[0].lines_added), (Some(""), 0));

        fs::rename(desk.path("d"), desk.path("e")).unwrap();
        assert_eq!(short(&watch.flush()), ["renamed d/deep/y e/deep/y", "renamed d/x e/x"]);

        // Copied and then deleted, as `git mv` across file systems or a script does.
        fs::copy(desk.path("two"), desk.path("e/two")).unwrap();
        fs::remove_file(desk.path("two")).unwrap();
        assert_eq!(short(&watch.flush()), ["renamed two e/two"]);
    }
}

#[test]
fn renamed_and_edited_is_one_story_where_the_kernel_tells_it() {
    let desk = Desk::new();
    desk.write("one", "1\n2\n3\n");
    let mut watch = desk.watch(Mode::Notices);
    fs::rename(desk.path("one"), desk.path("between")).unwrap();
    fs::rename(desk.path("between"), desk.path("two")).unwrap();
    desk.write("two", "1\nzwei\n3\n");
    let told = watch.flush();
    assert_eq!(short(&told), ["renamed one two"]);
    let diff = told[0].full_diff.as_deref().unwrap();
    assert_eq!(diff, "--- a/one\n+++ b/two\n@@ -1,3 +1,3 @@\n 1\n-2\n+zwei\n 3\n");
}

#[test]
fn directories_that_come_with_files_in_them() {
    for mode in MODES {
        let desk = Desk::new();
        let outside = Desk::new();
        outside.write("tree/a/b", "moved in\n");
        let mut watch = desk.watch(mode);
        desk.write("x/y/z/file", "deep\n");
        fs::rename(outside.path("tree"), desk.path("tree")).unwrap();
        assert_eq!(short(&watch.flush()), ["created tree/a/b", "created x/y/z/file"]);
        desk.write("x/y/z/second", "later\n");
        fs::rename(desk.path("tree"), outside.path("tree")).unwrap();
        assert_eq!(short(&watch.flush()), ["deleted tree/a/b", "created x/y/z/second"]);
    }
}

/// Polls as the caller would, for at most a second.
fn wait(watch: &mut Watch) -> Vec<Change> {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(1) {
        let until = watch.due().unwrap_or(began + Duration::from_secs(1));
        let left = until.saturating_duration_since(Instant::now());
        let time = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        let descriptor = watch.descriptor().unwrap();
        poll(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)], Some(&time)).unwrap();
        let told = watch.changes();
        if !told.is_empty() {
            return told;
        }
    }
    Vec::new()
}

#[test]
fn a_change_is_told_when_it_is_quiet_and_then_there_is_nothing_to_wait_for() {
    let desk = Desk::new();
    let mut watch = desk.watch(Mode::Notices);
    assert!(watch.changes().is_empty());
    assert_eq!(watch.due(), None);
    desk.write("a", "1\n");
    let began = Instant::now();
    assert!(watch.changes().is_empty());
    assert!(watch.due().is_some());
    assert_eq!(short(&wait(&mut watch)), ["created a"]);
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(45) && took < Duration::from_millis(500), "{took:?}");
    assert_eq!(watch.due(), None);
}

#[test]
fn a_file_that_is_written_without_end_does_not_hold_up_the_others() {
    let desk = Desk::new();
    let mut watch = desk.watch(Mode::Notices);
    let began = Instant::now();
    let mut told = Vec::new();
    desk.write("quiet", "q\n");
    for number in 0.. {
        desk.write("log", format!("{number}\n"));
        told.extend(watch.changes());
        if !told.is_empty() || began.elapsed() > Duration::from_secs(2) {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(short(&told), ["created quiet"]);
    assert_eq!(short(&watch.flush()), ["created log"]);
}

/// More than the kernel keeps for us.
#[test]
fn lost_notices_lose_nothing() {
    let desk = Desk::new();
    for number in 0..100 {
        desk.write(&format!("before/{number}"), "x\n");
    }
    let mut watch = desk.watch(Mode::Notices);
    let mut model = desk.contents();
    desk.write("before/7", "y\n");
    for number in 0..6_000 {
        desk.write(&format!("many/{}/{number}", number % 10), "m\n");
        if number == 5_000 {
            fs::remove_dir_all(desk.path("before")).unwrap();
            desk.write("after/1", "z\n");
        }
    }
    desk.write("after/late/2", "z\n");
    let told = watch.flush();
    apply(&mut model, &told).unwrap();
    assert_eq!(model, desk.contents());
    desk.write("after/late/3", "still watched\n");
    assert_eq!(short(&watch.flush()), ["created after/late/3"]);
}

#[test]
fn without_further_watches_it_scans() {
    let desk = Desk::new();
    desk.write("a", "1\n");
    let mut watch = desk.watch(Mode::Notices);
    let mut model = desk.contents();
    desk.write("a", "2\n");
    watch.take_notices();
    watch.notify = None;
    desk.write("b/c", "3\n");
    fs::remove_file(desk.path("a")).unwrap();
    apply(&mut model, &watch.flush()).unwrap();
    assert_eq!(model, desk.contents());
    assert!(watch.descriptor().is_none() && watch.due().is_none());
}

#[test]
fn a_root_that_is_no_directory() {
    let desk = Desk::new();
    desk.write("file", "");
    assert!(Watch::new(&desk.path("file"), Options::default()).is_err());
    assert!(Watch::new(&desk.path("nowhere"), Options::default()).is_err());
}
