//! Random trees with random edits on both sides, compared with a model of the merge.
//!
//! The full count is 10,000 cases (`ATOLL_TEST_SCALE=1`, as in `make soak`), a tenth by default. A sync runs dozens of git
//! commands, so each round syncs many cases at once: each case is a directory, one of them the top.

use super::{Files, SyncFixture, read_files};
use crate::worktree::{ApplyOutcome, Resolution};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const CASES: f64 = 10_000.0;
const MAX_CASES_PER_ROUND: usize = 200;
const ROUNDS_PER_REPOSITORY: usize = 10;
const NAMES: [&str; 10] = ["a", "b", "-n", "ü x", "d/a", "d/b", "d/e/f", "g", "g/h", IGNORED];
const IGNORED: &str = "ignored";

fn edit_randomly(root: &Path, random: &mut StdRng, serial: &mut u64) {
    for _ in 0..random.random_range(0..4) {
        let path = root.join(NAMES.choose(random).unwrap());
        *serial += 1;
        match random.random_range(0..10) {
            0..=3 => {
                let Some(path) = make_room(&path) else { continue };
                // Lines that differ everywhere, so that git sees no renames.
                let text: String = (0..6).map(|line| format!("{serial} {line} {}\n", random.random::<u64>())).collect();
                fs::write(path, text).unwrap();
            }
            4 | 5 => {
                // One line of an existing file.
                if let Ok(text) = fs::read_to_string(&path) {
                    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
                    if let Some(line) = lines.choose(random).cloned() {
                        lines.iter_mut().filter(|other| **other == line).for_each(|line| line.push('!'));
                        fs::write(&path, lines.join("\n") + "\n").unwrap();
                    }
                }
            }
            6 => drop(fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path))),
            7 => {
                if fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()) {
                    let mode = if random.random() { 0o755 } else { 0o644 };
                    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
                }
            }
            8 => {
                let Some(path) = make_room(&path) else { continue };
                symlink(format!("target {serial}"), path).unwrap();
            }
            _ => {
                let Some(path) = make_room(&path) else { continue };
                fs::create_dir(path).unwrap();
            }
        }
    }
}

/// Removes what is at a path and makes its parents; `None` if a parent is a file.
fn make_room(path: &Path) -> Option<&Path> {
    fs::create_dir_all(path.parent()?).ok()?;
    if fs::symlink_metadata(path).is_ok() {
        drop(fs::remove_file(path).or_else(|_| fs::remove_dir_all(path)));
    }
    Some(path)
}

/// The expected result if no path changed on both sides.
fn merge_model(base: &Files, ours: &Files, theirs: &Files) -> Option<Files> {
    let paths: BTreeSet<&PathBuf> = base.keys().chain(ours.keys()).chain(theirs.keys()).collect();
    let mut merged = Files::new();
    for path in paths {
        let (old, mine, new) = (base.get(path), ours.get(path), theirs.get(path));
        let chosen = match (mine == old, new == old) {
            (true, _) => new,
            (_, true) => mine,
            _ if mine == new => mine,
            _ => return None,
        };
        merged.extend(chosen.map(|content| (path.clone(), content.clone())));
    }
    // A file and a directory of the same name, or an empty directory with files.
    let is_occupied = |path: &PathBuf| path.ancestors().skip(1).any(|parent| merged.contains_key(parent));
    if merged.keys().any(is_occupied) {
        return None;
    }
    Some(merged)
}

/// The directories of a model that are empty only because their files are gone.
fn visible(mut files: Files) -> Files {
    files.retain(|_, content| content != "/");
    files
}

/// Splits the files of a side by case. Leaves out ignored files and their directories, which count as empty on one side only.
fn split_cases(files: &Files, ignoring: &BTreeSet<PathBuf>) -> BTreeMap<PathBuf, Files> {
    let mut cases: BTreeMap<PathBuf, Files> = BTreeMap::new();
    for (path, content) in files.iter().filter(|(path, _)| !path.ends_with(IGNORED) && !ignoring.contains(*path)) {
        cases.entry(case_of(path)).or_default().insert(path.clone(), content.clone());
    }
    cases
}

/// The directory of a path's case.
fn case_of(path: &Path) -> PathBuf {
    let first = path.iter().next().unwrap_or_default();
    if first.to_string_lossy().starts_with("case-") { first.into() } else { PathBuf::new() }
}

/// The directories with ignored files.
fn ignoring_directories<'a>(sides: impl IntoIterator<Item = &'a Files>) -> BTreeSet<PathBuf> {
    let files = sides.into_iter().flat_map(ignored_files);
    files.filter_map(|(path, _)| Some(path.parent()?.to_owned())).collect()
}

fn ignored_files(files: &Files) -> Files {
    files.clone().into_iter().filter(|(path, _)| path.ends_with(IGNORED)).collect()
}

#[test]
fn random_edits_on_both_sides_equal_the_model() {
    let scale: f64 = std::env::var("ATOLL_TEST_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(0.1);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small count")]
    let cases = (CASES * scale).ceil() as usize;
    let seed: u64 =
        std::env::var("ATOLL_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
    let line = format!("random worktrees: ATOLL_TEST_SEED={seed}\n");
    drop(std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes()));
    let (left, number) = (AtomicUsize::new(cases), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while left.load(Ordering::Relaxed) > 0 {
                    check_repository(seed ^ number.fetch_add(1, Ordering::Relaxed), &left);
                }
            });
        }
    });
}

fn check_repository(seed: u64, left: &AtomicUsize) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut serial = 0;
    let fixture = SyncFixture::new(|root| {
        fs::write(root.join(".gitignore"), format!("{IGNORED}\n")).unwrap();
        edit_randomly(root, &mut random, &mut serial);
        edit_randomly(root, &mut random, &mut serial);
    });
    fixture.sync_in();
    for round in 0..ROUNDS_PER_REPOSITORY {
        let most = left.load(Ordering::Relaxed).min(MAX_CASES_PER_ROUND);
        if most == 0 {
            return;
        }
        let count = random.random_range(1..=most);
        let _ = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(count)));
        let cases: Vec<PathBuf> = (0..count).map(|number| format!("case-{number}").into()).collect();
        check_round(&fixture, &cases, &mut random, &mut serial, &format!("seed {seed}, round {round}"));
    }
}

fn check_round(fixture: &SyncFixture, cases: &[PathBuf], random: &mut StdRng, serial: &mut u64, name: &str) {
    let (root, workspace) = (fixture.root(), &fixture.workspace.root);
    let top = PathBuf::new();
    let all_base = read_files(root);
    for side in [root, workspace] {
        for case in cases[1..].iter().chain([&top]) {
            edit_randomly(&side.join(case), random, serial);
        }
    }
    let (all_ours, all_theirs) = (read_files(root), read_files(workspace));
    let ignoring = ignoring_directories([&all_base, &all_ours, &all_theirs]);
    let [base, ours, theirs] = [&all_base, &all_ours, &all_theirs].map(|side| split_cases(side, &ignoring));
    let empty = Files::new();
    let case_files = |side: &BTreeMap<PathBuf, Files>, case: &Path| side.get(case).unwrap_or(&empty).clone();
    let model =
        |case: &Path| merge_model(&case_files(&base, case), &case_files(&ours, case), &case_files(&theirs, case));
    let mut decided = BTreeSet::new();
    let mut outcome = fixture.sync_out(Resolution::Report);
    if let ApplyOutcome::Conflicts(conflicts) = &outcome {
        assert_eq!(read_files(root), all_ours, "{name}: a conflict changes nothing");
        for conflict in conflicts {
            let case = case_of(Path::new(&conflict.path));
            let sides = [&base, &ours, &theirs].map(|side| case_files(side, &case));
            assert!(model(&case).is_none(), "{name}: {conflict:?}: {sides:#?}");
            decided.insert(case);
        }
        outcome = fixture.sync_out(if random.random() { Resolution::Ours } else { Resolution::Theirs });
    }
    if let ApplyOutcome::Conflicts(_) = outcome {
        // A file against a directory: the user takes the agent's files.
        for case in &decided {
            replace_case(root, &case_files(&ours, case), workspace, &case_files(&theirs, case));
        }
        outcome = fixture.sync_out(Resolution::Report);
    }
    assert!(matches!(outcome, ApplyOutcome::Applied(_)), "{name}: {outcome:?}");
    let all_found = read_files(root);
    let found = split_cases(&all_found, &ignoring);
    for case in base.keys().chain(ours.keys()).chain(theirs.keys()).filter(|case| !decided.contains(*case)) {
        if let Some(model) = model(case) {
            assert_eq!(visible(case_files(&found, case)), visible(model), "{name}, {case:?}");
        }
        if case_files(&ours, case) == case_files(&base, case) {
            assert_eq!(case_files(&found, case), case_files(&theirs, case), "{name}, {case:?}");
        }
    }
    assert_eq!(ignored_files(&all_found), ignored_files(&all_ours), "{name}: ignored files stay");
    assert!(!fixture.sync_in(), "{name}");
    let inside = read_files(workspace);
    assert_eq!(split_cases(&inside, &ignoring), found, "{name}: both sides are equal");
    assert_eq!(ignored_files(&inside), ignored_files(&all_theirs), "{name}: ignored files stay");
}

/// Replaces the files of one case by those of the other side.
fn replace_case(root: &Path, old: &Files, from: &Path, new: &Files) {
    for path in old.keys().rev() {
        let path = root.join(path);
        drop(fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)));
        path.ancestors().skip(1).take_while(|parent| *parent != root && fs::remove_dir(parent).is_ok()).count();
    }
    for path in new.keys() {
        let (source, target) = (from.join(path), root.join(path));
        let kind = fs::symlink_metadata(&source).unwrap();
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        if kind.is_dir() {
            fs::create_dir_all(target).unwrap();
        } else if kind.is_symlink() {
            symlink(fs::read_link(source).unwrap(), target).unwrap();
        } else {
            fs::copy(source, target).unwrap();
        }
    }
}
