//! For any sequence of changes, applying all reports to the old tree gives the new tree.

use super::workspace::{MODES, Mode, TestWorkspace, apply_changes};
use crate::Options;
use proptest::prelude::*;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::time::Duration;

#[derive(Clone, Debug)]
enum FileStep {
    Write(String, String),
    /// Writes a temporary file and renames it over the target.
    Save(String, String),
    Append(String, String),
    Truncate(String),
    Delete(String),
    Rename(String, String),
    MakeDirectory(String),
    Symlink(String, String),
    /// Also takes settled changes: a hard link that is removed before the next look, or is outside the visible tree, causes
    /// no notice for the file's other names.
    HardLink(String, String),
    Touch(String),
    /// Takes settled changes in between.
    Look,
    Flush,
}

/// Few names, so that steps collide: files replace directories, directories move into each other.
fn path() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["a", "b", "c", "d", "ignored", "é x"]);
    prop::collection::vec(name, 1..4).prop_map(|names| names.join("/"))
}

fn text() -> impl Strategy<Value = String> {
    let line =
        prop::sample::select(vec!["one\n", "two\n", "three\n", "\n", "x", "a\rb\n", "ü\r\n", "-- x\n", "++ y\n"]);
    prop::collection::vec(line, 0..12).prop_map(|lines| lines.concat())
}

fn step() -> impl Strategy<Value = FileStep> {
    prop_oneof![
        4 => (path(), text()).prop_map(|(path, text)| FileStep::Write(path, text)),
        2 => (path(), text()).prop_map(|(path, text)| FileStep::Save(path, text)),
        2 => (path(), text()).prop_map(|(path, text)| FileStep::Append(path, text)),
        1 => path().prop_map(FileStep::Truncate),
        2 => path().prop_map(FileStep::Delete),
        4 => (path(), path()).prop_map(|(from, to)| FileStep::Rename(from, to)),
        2 => path().prop_map(FileStep::MakeDirectory),
        1 => (path(), path()).prop_map(|(path, target)| FileStep::Symlink(path, target)),
        1 => (path(), path()).prop_map(|(from, to)| FileStep::HardLink(from, to)),
        1 => path().prop_map(FileStep::Touch),
        2 => Just(FileStep::Look),
        2 => Just(FileStep::Flush),
    ]
}

/// Runs a step; ignores steps that the file system rejects.
fn run_step(desk: &TestWorkspace, step: &FileStep) {
    let make_parent = |path: &str| fs::create_dir_all(desk.path(path).parent().unwrap());
    let _ = match step {
        FileStep::Write(path, text) => make_parent(path).and_then(|()| fs::write(desk.path(path), text)),
        FileStep::Save(path, text) => make_parent(path).and_then(|()| {
            let beside = desk.path(&format!("{path}.tmp"));
            fs::write(&beside, text)?;
            fs::rename(&beside, desk.path(path)).or_else(|_| fs::remove_file(&beside))
        }),
        FileStep::Append(path, text) => {
            OpenOptions::new().append(true).open(desk.path(path)).and_then(|mut file| file.write_all(text.as_bytes()))
        }
        FileStep::Truncate(path) => {
            OpenOptions::new().write(true).open(desk.path(path)).and_then(|file| file.set_len(0))
        }
        FileStep::Delete(path) => fs::remove_file(desk.path(path)).or_else(|_| fs::remove_dir_all(desk.path(path))),
        FileStep::Rename(from, to) => make_parent(to).and_then(|()| fs::rename(desk.path(from), desk.path(to))),
        FileStep::MakeDirectory(path) => fs::create_dir_all(desk.path(path)),
        FileStep::Symlink(path, target) => make_parent(path).and_then(|()| {
            let _ = fs::remove_file(desk.path(path)).or_else(|_| fs::remove_dir_all(desk.path(path)));
            symlink(target, desk.path(path))
        }),
        FileStep::HardLink(_, to) if to.contains("ignored") => Ok(()),
        FileStep::HardLink(from, to) => make_parent(to).and_then(|()| fs::hard_link(desk.path(from), desk.path(to))),
        FileStep::Touch(path) => OpenOptions::new()
            .write(true)
            .open(desk.path(path))
            .and_then(|file| file.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000))),
        FileStep::Look | FileStep::Flush => Ok(()),
    };
}

/// A `.gitignore` with `ignored` always exists; no step touches it.
fn check_steps(before: &[FileStep], steps: &[FileStep], mode: Mode, committed: bool) -> Result<(), TestCaseError> {
    let desk = TestWorkspace::new();
    desk.write_file(".gitignore", "ignored\n");
    before.iter().for_each(|step| run_step(&desk, step));
    if committed {
        desk.commit_all();
    }
    // Without settle time, so that changes are reported in between.
    let mut watch = desk.start_watcher_with(mode, Options { settle_time: Duration::ZERO, ..Options::default() });
    let mut model = visible_contents(&desk);
    for (number, step) in steps.iter().chain([&FileStep::Flush]).enumerate() {
        run_step(&desk, step);
        let changes = match step {
            FileStep::Look | FileStep::HardLink(..) => watch.take_settled(),
            FileStep::Flush => watch.take_all(),
            _ => continue,
        };
        apply_changes(&mut model, &changes)
            .map_err(|error| TestCaseError::fail(format!("{mode:?} step {number}: {error}")))?;
        if let FileStep::Flush = step {
            prop_assert_eq!(&model, &visible_contents(&desk), "{:?}, committed: {}, step {}", mode, committed, number);
        }
    }
    prop_assert!(watch.take_all().is_empty());
    prop_assert!(watch.next_deadline().is_none());
    Ok(())
}

fn visible_contents(desk: &TestWorkspace) -> std::collections::BTreeMap<String, String> {
    let mut contents = desk.read_contents();
    contents.retain(|path, _| !path.split('/').any(|part| part == "ignored"));
    contents
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reported_changes_match_the_files(
        before in prop::collection::vec(step(), 0..20),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        for mode in MODES {
            check_steps(&before, &steps, mode, false)?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 15, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reported_changes_match_the_files_with_a_git_baseline(
        before in prop::collection::vec(step(), 5..30),
        steps in prop::collection::vec(step(), 1..30),
    ) {
        for mode in MODES {
            check_steps(&before, &steps, mode, true)?;
        }
    }
}
