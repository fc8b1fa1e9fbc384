//! Whatever is done to a tree: who applies all that is told to what was there has what is there now.

use super::super::Options;
use super::desk::{Desk, MODES, Mode, apply};
use proptest::prelude::*;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::time::Duration;

#[derive(Clone, Debug)]
enum Step {
    Write(String, String),
    /// Written beside it and moved over it.
    Save(String, String),
    Append(String, String),
    Truncate(String),
    Delete(String),
    Rename(String, String),
    MakeDirectory(String),
    Symlink(String, String),
    /// And looked at: a link that is made, written through and gone again before anybody looks, or that stands where
    /// nobody looks, gives no notice of the file that it is a name of.
    HardLink(String, String),
    Touch(String),
    /// Notices are taken in the middle of things.
    Look,
    Flush,
}

/// Few names, so that steps meet each other: files where directories were, directories moved into each other.
fn path() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["a", "b", "c", "d", "ignored", "é x"]);
    prop::collection::vec(name, 1..4).prop_map(|names| names.join("/"))
}

fn text() -> impl Strategy<Value = String> {
    let line =
        prop::sample::select(vec!["one\n", "two\n", "three\n", "\n", "x", "a\rb\n", "ü\r\n", "-- x\n", "++ y\n"]);
    prop::collection::vec(line, 0..12).prop_map(|lines| lines.concat())
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (path(), text()).prop_map(|(path, text)| Step::Write(path, text)),
        2 => (path(), text()).prop_map(|(path, text)| Step::Save(path, text)),
        2 => (path(), text()).prop_map(|(path, text)| Step::Append(path, text)),
        1 => path().prop_map(Step::Truncate),
        2 => path().prop_map(Step::Delete),
        4 => (path(), path()).prop_map(|(from, to)| Step::Rename(from, to)),
        2 => path().prop_map(Step::MakeDirectory),
        1 => (path(), path()).prop_map(|(path, target)| Step::Symlink(path, target)),
        1 => (path(), path()).prop_map(|(from, to)| Step::HardLink(from, to)),
        1 => path().prop_map(Step::Touch),
        2 => Just(Step::Look),
        2 => Just(Step::Flush),
    ]
}

/// Steps that are not possible are left out: a plain failure is the file system's answer.
fn act(desk: &Desk, step: &Step) {
    let make_parent = |path: &str| fs::create_dir_all(desk.path(path).parent().unwrap());
    let _ = match step {
        Step::Write(path, text) => make_parent(path).and_then(|()| fs::write(desk.path(path), text)),
        Step::Save(path, text) => make_parent(path).and_then(|()| {
            let beside = desk.path(&format!("{path}.tmp"));
            fs::write(&beside, text)?;
            fs::rename(&beside, desk.path(path)).or_else(|_| fs::remove_file(&beside))
        }),
        Step::Append(path, text) => {
            OpenOptions::new().append(true).open(desk.path(path)).and_then(|mut file| file.write_all(text.as_bytes()))
        }
        Step::Truncate(path) => OpenOptions::new().write(true).open(desk.path(path)).and_then(|file| file.set_len(0)),
        Step::Delete(path) => fs::remove_file(desk.path(path)).or_else(|_| fs::remove_dir_all(desk.path(path))),
        Step::Rename(from, to) => make_parent(to).and_then(|()| fs::rename(desk.path(from), desk.path(to))),
        Step::MakeDirectory(path) => fs::create_dir_all(desk.path(path)),
        Step::Symlink(path, target) => make_parent(path).and_then(|()| {
            let _ = fs::remove_file(desk.path(path)).or_else(|_| fs::remove_dir_all(desk.path(path)));
            symlink(target, desk.path(path))
        }),
        Step::HardLink(_, to) if to.contains("ignored") => Ok(()),
        Step::HardLink(from, to) => make_parent(to).and_then(|()| fs::hard_link(desk.path(from), desk.path(to))),
        Step::Touch(path) => OpenOptions::new()
            .write(true)
            .open(desk.path(path))
            .and_then(|file| file.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000))),
        Step::Look | Step::Flush => Ok(()),
    };
}

/// A `.gitignore` with `ignored` in it is always there; nothing in these steps can touch it.
fn holds(before: &[Step], steps: &[Step], mode: Mode, committed: bool) -> Result<(), TestCaseError> {
    let desk = Desk::new();
    desk.write(".gitignore", "ignored\n");
    before.iter().for_each(|step| act(&desk, step));
    if committed {
        desk.commit_all();
    }
    // Everything settles at once, so that a look in between tells something.
    let mut watch = desk.watch_with(mode, Options { settle: Duration::ZERO, ..Options::default() });
    let mut model = visible(&desk);
    for (number, step) in steps.iter().chain([&Step::Flush]).enumerate() {
        act(&desk, step);
        let told = match step {
            Step::Look | Step::HardLink(..) => watch.changes(),
            Step::Flush => watch.flush(),
            _ => continue,
        };
        apply(&mut model, &told).map_err(|error| TestCaseError::fail(format!("{mode:?} step {number}: {error}")))?;
        if let Step::Flush = step {
            prop_assert_eq!(&model, &visible(&desk), "{:?}, committed: {}, step {}", mode, committed, number);
        }
    }
    prop_assert!(watch.flush().is_empty());
    prop_assert!(watch.due().is_none());
    Ok(())
}

fn visible(desk: &Desk) -> std::collections::BTreeMap<String, String> {
    let mut contents = desk.contents();
    contents.retain(|path, _| !path.split('/').any(|part| part == "ignored"));
    contents
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_told_is_what_happened(
        before in prop::collection::vec(step(), 0..20),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        for mode in MODES {
            holds(&before, &steps, mode, false)?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 15, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn also_against_what_git_has(
        before in prop::collection::vec(step(), 5..30),
        steps in prop::collection::vec(step(), 1..30),
    ) {
        for mode in MODES {
            holds(&before, &steps, mode, true)?;
        }
    }
}
