//! The old side of a diff, from git.

use super::super::*;
use super::desk::{Desk, MODES, Mode, apply, short};
use std::fs;

#[test]
fn commits_made_meanwhile_do_not_matter() {
    for mode in MODES {
        let desk = Desk::new();
        desk.write("a", "1\n2\n3\n");
        desk.write("gone", "g\n");
        desk.commit_all();
        let mut watch = desk.watch(mode);
        desk.write("a", "1\nzwei\n3\n");
        fs::remove_file(desk.path("gone")).unwrap();
        desk.commit_all();
        desk.git(&["gc", "-q"]);
        let told = watch.flush();
        assert_eq!(short(&told), ["deleted gone", "modified a"]);
        assert_eq!(told[0].full_diff.as_deref(), Some("--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-g\n"));
        assert_eq!(told[1].full_diff.as_deref(), Some("--- a/a\n+++ b/a\n@@ -1,3 +1,3 @@\n 1\n-2\n+zwei\n 3\n"));
        // Back to the first commit: against what was told, not against what git has.
        desk.git(&["checkout", "-q", "HEAD~1"]);
        assert_eq!(short(&watch.flush()), ["created gone", "modified a"]);
    }
}

#[test]
fn the_baseline_is_the_file_and_not_the_commit() {
    for mode in MODES {
        let desk = Desk::new();
        for path in ["dirty", "staged", "clean"] {
            desk.write(path, "committed\n");
        }
        desk.commit_all();
        desk.write("dirty", "by somebody\n");
        desk.write("staged", "by somebody\n");
        desk.git(&["add", "staged"]);
        desk.write("untracked", "u\n");
        let mut watch = desk.watch(mode);
        let mut model = desk.contents();
        for path in ["dirty", "staged", "clean", "untracked"] {
            desk.write(path, format!("by the agent: {path}\n"));
        }
        let told = watch.flush();
        assert_eq!(told.len(), 4);
        apply(&mut model, &told).unwrap();
        assert_eq!(model, desk.contents());
    }
}

#[test]
fn many_files_are_asked_for_together() {
    let desk = Desk::new();
    for number in 0..1_200 {
        desk.write(&format!("d{}/{number}", number % 20), format!("{number}\n{}", "line\n".repeat(number % 50)));
    }
    desk.commit_all();
    let mut watch = desk.watch(Mode::Notices);
    let mut model = desk.contents();
    for number in 0..1_200 {
        match number % 3 {
            0 => desk.write(&format!("d{}/{number}", number % 20), "new\n"),
            1 => fs::remove_file(desk.path(&format!("d{}/{number}", number % 20))).unwrap(),
            _ => {}
        }
    }
    let told = watch.flush();
    apply(&mut model, &told).unwrap();
    assert_eq!(model, desk.contents());
}

/// The repository holds line feeds, the working tree has carriage returns too: the blob is not what the file held.
#[test]
fn a_filter_between_git_and_the_file_gives_no_wrong_diff() {
    let desk = Desk::new();
    desk.write(".gitattributes", "*.txt text eol=crlf\n");
    desk.write("a.txt", "1\r\n2\r\n");
    desk.commit_all();
    let mut watch = desk.watch(Mode::Notices);
    desk.write("a.txt", "1\r\n2\r\n3\r\n");
    let told = watch.flush();
    assert_eq!(short(&told), ["modified a.txt"]);
    assert_eq!((told[0].full_diff.as_ref(), told[0].size, told[0].sha256.is_some()), (None, Some(9), true));
    desk.write("a.txt", "1\r\n");
    let told = watch.flush();
    assert_eq!(told[0].lines_removed, 2);
}

#[test]
fn flags_that_make_git_look_away() {
    let desk = Desk::new();
    desk.write("a", "committed\n");
    desk.commit_all();
    desk.git(&["update-index", "--assume-unchanged", "a"]);
    desk.write("a", "different\n");
    let mut watch = desk.watch(Mode::Notices);
    desk.write("a", "new\n");
    let told = watch.flush();
    assert!(told[0].diff_preview.contains("-different\n+new\n"), "{told:?}");
}

#[test]
fn a_broken_repository_does_not_matter() {
    for mode in MODES {
        for breakage in 0..5 {
            let desk = Desk::new();
            desk.write("a", "1\n");
            desk.commit_all();
            match breakage {
                0 => desk.write(".git/index", "not an index"),
                1 => desk.write(".git/HEAD", "\0\0"),
                2 => fs::remove_dir_all(desk.path(".git/objects")).unwrap(),
                3 => desk.write(".git/config", "[core\n"),
                _ => {
                    fs::remove_dir_all(desk.path(".git")).unwrap();
                    desk.write(".git", "gitdir: /nowhere\n");
                }
            }
            let mut watch = desk.watch(mode);
            desk.write("a", "2\n");
            let told = watch.flush();
            assert_eq!(short(&told), ["modified a"], "{breakage}");
            assert!(told[0].full_diff.is_some(), "{breakage}");
        }
    }
}

#[test]
fn a_git_that_hangs_is_ended_with_all_it_started() {
    let desk = Desk::new();
    desk.write(".gitattributes", "*.slow filter=slow\n");
    desk.write("a.slow", "1\n");
    desk.commit_all();
    desk.git(&["config", "filter.slow.clean", "sleep 86413"]);
    desk.write("a.slow", "2\n");
    let began = Instant::now();
    let mut watch = desk.watch(Mode::Notices);
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    desk.write("a.slow", "3\n");
    assert!(watch.flush()[0].diff_preview.contains("-2\n+3\n"));
    let is_left = || {
        fs::read_dir("/proc").unwrap().flatten().any(|process| {
            fs::read(process.path().join("cmdline")).is_ok_and(|line| line.starts_with(b"sleep\x0086413"))
        })
    };
    while is_left() {
        assert!(began.elapsed() < Duration::from_secs(15));
        std::thread::sleep(Duration::from_millis(10));
    }
}
