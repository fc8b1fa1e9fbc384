//! What is looked at and what is not.

use super::super::*;
use super::desk::{Desk, MODES, Mode, short};
use std::fs;

#[test]
fn ignored_directories_cost_nothing() {
    let desk = Desk::new();
    desk.write(".gitignore", "target/\n*.log\n");
    desk.write("target/debug/deep/x", "x");
    desk.write("web/node_modules/p/index.js", "x");
    desk.write("src/a.rs", "x");
    desk.write("a.log", "x");
    desk.write(".git/objects/x", "x");
    let mut watch = desk.watch(Mode::Notices);
    let notify = watch.notify.as_ref().unwrap();
    for hidden in ["target", "target/debug", "web/node_modules", "web/node_modules/p", ".git", ".git/objects"] {
        assert!(!notify.watches(hidden.as_bytes()), "{hidden}");
    }
    assert!(notify.watches(b"") && notify.watches(b"src") && notify.watches(b"web"));
    desk.write("target/debug/y", "y");
    desk.write("web/node_modules/p/other.js", "y");
    desk.write(".git/index", "y");
    desk.write("a.log", "y");
    fs::create_dir(desk.path("src/node_modules")).unwrap();
    desk.write("src/node_modules/z", "y");
    assert!(watch.changes().is_empty());
    assert_eq!(watch.due(), None);
    assert!(watch.flush().is_empty());
}

#[test]
fn rules_that_change() {
    for mode in MODES {
        let desk = Desk::new();
        desk.write(".gitignore", "secret/\n");
        desk.write("secret/old", "there before\n");
        desk.write("sub/kept", "k\n");
        desk.write("sub/noise.txt", "n\n");
        // What changed before the watch began is told apart from what came later by its time.
        std::thread::sleep(Duration::from_millis(30));
        let mut watch = desk.watch(mode);
        desk.write("secret/new", "came while hidden\n");
        assert!(watch.flush().is_empty());

        desk.write("sub/.gitignore", "*.txt\nbuild/\n");
        desk.write("sub/build/out", "o\n");
        desk.write("sub/noise.txt", "louder\n");
        assert_eq!(short(&watch.flush()), ["created sub/.gitignore"], "{mode:?}");
        desk.write("sub/build/out", "o2\n");
        desk.write("sub/noise.txt", "louder still\n");
        assert!(watch.flush().is_empty());

        fs::remove_file(desk.path(".gitignore")).unwrap();
        assert_eq!(short(&watch.flush()), ["deleted .gitignore", "created secret/new"], "{mode:?}");
        desk.write("secret/old", "changed\n");
        let told = watch.flush();
        assert_eq!(short(&told), ["modified secret/old"], "{mode:?}");
        assert_eq!((told[0].full_diff.as_ref(), told[0].size), (None, Some(8)));
    }
}

#[test]
fn a_directory_marked_as_a_cache() {
    for mode in MODES {
        let desk = Desk::new();
        let mut watch = desk.watch(mode);
        let mark = "Signature: 8a477f597d28d172789f06886806bc55\n# a build tool\n";
        desk.write("out/CACHEDIR.TAG", mark);
        desk.write("out/debug/program", "p\n");
        desk.write("lookalike/CACHEDIR.TAG", "no signature\n");
        desk.write("lookalike/file", "f\n");
        assert_eq!(short(&watch.flush()), ["created lookalike/CACHEDIR.TAG", "created lookalike/file"], "{mode:?}");
        desk.write("out/debug/more", "p\n");
        assert!(watch.flush().is_empty());
        fs::remove_dir_all(desk.path("out")).unwrap();
        desk.write("out/plain", "p\n");
        assert_eq!(short(&watch.flush()), ["created out/plain"], "{mode:?}");
    }
}

#[test]
fn what_git_tracks_is_looked_at_whatever_the_rules_say() {
    for mode in MODES {
        let desk = Desk::new();
        desk.write(".gitignore", "vendor/\n*.log\n");
        desk.write("vendor/deep/tracked.c", "t\n");
        desk.write("kept.log", "k\n");
        desk.git(&["init", "-q"]);
        desk.git(&["add", "-f", "."]);
        desk.git(&["commit", "-qm", "all"]);
        desk.write("vendor/deep/untracked.c", "u\n");
        let mut watch = desk.watch(mode);
        desk.write("vendor/deep/tracked.c", "t2\n");
        desk.write("vendor/deep/untracked.c", "u2\n");
        desk.write("vendor/deep/new.c", "n\n");
        desk.write("kept.log", "k2\n");
        desk.write("other.log", "o\n");
        assert_eq!(short(&watch.flush()), ["modified kept.log", "modified vendor/deep/tracked.c"], "{mode:?}");
    }
}

#[test]
fn rules_of_the_repository_itself() {
    for mode in MODES {
        let desk = Desk::new();
        desk.git(&["init", "-q"]);
        desk.write(".git/info/exclude", "private\n");
        let mut watch = desk.watch(mode);
        desk.write("private/x", "x\n");
        desk.write("public", "x\n");
        assert_eq!(short(&watch.flush()), ["created public"]);
    }
}
