//! Visible and ignored paths.

use super::workspace::{MODES, Mode, TestWorkspace, summarize};
use crate::*;
use std::fs;

#[test]
fn sets_no_watches_on_ignored_directories() {
    let desk = TestWorkspace::new();
    desk.write_file(".gitignore", "target/\n*.log\n");
    desk.write_file("target/debug/deep/x", "x");
    desk.write_file("web/node_modules/p/index.js", "x");
    desk.write_file("src/a.rs", "x");
    desk.write_file("a.log", "x");
    desk.write_file(".git/objects/x", "x");
    let mut watch = desk.start_watcher(Mode::Notices);
    let notify = watch.notify.as_ref().unwrap();
    for hidden in ["target", "target/debug", "web/node_modules", "web/node_modules/p", ".git", ".git/objects"] {
        assert!(!notify.is_watched(hidden.as_bytes()), "{hidden}");
    }
    assert!(notify.is_watched(b"") && notify.is_watched(b"src") && notify.is_watched(b"web"));
    desk.write_file("target/debug/y", "y");
    desk.write_file("web/node_modules/p/other.js", "y");
    desk.write_file(".git/index", "y");
    desk.write_file("a.log", "y");
    fs::create_dir(desk.path("src/node_modules")).unwrap();
    desk.write_file("src/node_modules/z", "y");
    assert!(watch.take_settled().is_empty());
    assert_eq!(watch.next_deadline(), None);
    assert!(watch.take_all().is_empty());
}

#[test]
fn applies_changed_gitignore_rules() {
    for mode in MODES {
        let desk = TestWorkspace::new();
        desk.write_file(".gitignore", "secret/\n");
        desk.write_file("secret/old", "there before\n");
        desk.write_file("sub/kept", "k\n");
        desk.write_file("sub/noise.txt", "n\n");
        // The watcher tells old files from new ones by their time, so let the clock tick.
        std::thread::sleep(Duration::from_millis(30));
        let mut watch = desk.start_watcher(mode);
        desk.write_file("secret/new", "came while hidden\n");
        assert!(watch.take_all().is_empty());

        desk.write_file("sub/.gitignore", "*.txt\nbuild/\n");
        desk.write_file("sub/build/out", "o\n");
        desk.write_file("sub/noise.txt", "louder\n");
        assert_eq!(summarize(&watch.take_all()), ["created sub/.gitignore"], "{mode:?}");
        desk.write_file("sub/build/out", "o2\n");
        desk.write_file("sub/noise.txt", "louder still\n");
        assert!(watch.take_all().is_empty());

        fs::remove_file(desk.path(".gitignore")).unwrap();
        assert_eq!(summarize(&watch.take_all()), ["deleted .gitignore", "created secret/new"], "{mode:?}");
        desk.write_file("secret/old", "changed\n");
        let changes = watch.take_all();
        assert_eq!(summarize(&changes), ["modified secret/old"], "{mode:?}");
        assert_eq!((changes[0].full_diff.as_ref(), changes[0].size), (None, Some(8)));
    }
}

#[test]
fn ignores_tagged_cache_directories() {
    for mode in MODES {
        let desk = TestWorkspace::new();
        let mut watch = desk.start_watcher(mode);
        let mark = "Signature: 8a477f597d28d172789f06886806bc55\n# a build tool\n";
        desk.write_file("out/CACHEDIR.TAG", mark);
        desk.write_file("out/debug/program", "p\n");
        desk.write_file("lookalike/CACHEDIR.TAG", "no signature\n");
        desk.write_file("lookalike/file", "f\n");
        assert_eq!(
            summarize(&watch.take_all()),
            ["created lookalike/CACHEDIR.TAG", "created lookalike/file"],
            "{mode:?}"
        );
        desk.write_file("out/debug/more", "p\n");
        assert!(watch.take_all().is_empty());
        fs::remove_dir_all(desk.path("out")).unwrap();
        desk.write_file("out/plain", "p\n");
        assert_eq!(summarize(&watch.take_all()), ["created out/plain"], "{mode:?}");
    }
}

#[test]
fn watches_tracked_files_despite_ignore_rules() {
    for mode in MODES {
        let desk = TestWorkspace::new();
        desk.write_file(".gitignore", "vendor/\n*.log\n");
        desk.write_file("vendor/deep/tracked.c", "t\n");
        desk.write_file("kept.log", "k\n");
        desk.run_git(&["init", "-q"]);
        desk.run_git(&["add", "-f", "."]);
        desk.run_git(&["commit", "-qm", "all"]);
        desk.write_file("vendor/deep/untracked.c", "u\n");
        let mut watch = desk.start_watcher(mode);
        desk.write_file("vendor/deep/tracked.c", "t2\n");
        desk.write_file("vendor/deep/untracked.c", "u2\n");
        desk.write_file("vendor/deep/new.c", "n\n");
        desk.write_file("kept.log", "k2\n");
        desk.write_file("other.log", "o\n");
        assert_eq!(summarize(&watch.take_all()), ["modified kept.log", "modified vendor/deep/tracked.c"], "{mode:?}");
    }
}

#[test]
fn applies_git_info_exclude() {
    for mode in MODES {
        let desk = TestWorkspace::new();
        desk.run_git(&["init", "-q"]);
        desk.write_file(".git/info/exclude", "private\n");
        let mut watch = desk.start_watcher(mode);
        desk.write_file("private/x", "x\n");
        desk.write_file("public", "x\n");
        assert_eq!(summarize(&watch.take_all()), ["created public"]);
    }
}
