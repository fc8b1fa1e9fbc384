//! Random edits on both sides, compared with a model of the merge.
//!
//! The full count is 10,000 rounds (`ATOLL_TEST_SCALE=1`, as in `make soak`), a hundredth by default:
//! each round runs dozens of git commands.

use super::{Files, SyncFixture, read_files};
use crate::worktree::{ApplyOutcome, Resolution};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

const ROUNDS: f64 = 10_000.0;
/// Rounds with one repository.
const ROUNDS_PER_REPOSITORY: usize = 25;
const NAMES: [&str; 9] = ["a", "b", "-n", "ü x", "d/a", "d/b", "d/e/f", "g", "g/h"];

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

#[test]
fn random_edits_on_both_sides_equal_the_model() {
    let scale: f64 = std::env::var("ATOLL_TEST_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(0.01);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small count")]
    let rounds = (ROUNDS * scale).ceil() as usize;
    let seed: u64 =
        std::env::var("ATOLL_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
    let line = format!("random worktrees: ATOLL_TEST_SEED={seed}\n");
    drop(std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes()));
    let repositories: Vec<u64> = (0..rounds.div_ceil(ROUNDS_PER_REPOSITORY) as u64).collect();
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for part in repositories.chunks(repositories.len().div_ceil(threads)) {
            scope.spawn(move || part.iter().for_each(|number| check_repository(seed ^ number)));
        }
    });
}

fn check_repository(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut serial = 0;
    let fixture = SyncFixture::new(|root| {
        edit_randomly(root, &mut random, &mut serial);
        edit_randomly(root, &mut random, &mut serial);
    });
    fixture.sync_in();
    let mut base = read_files(fixture.root());
    assert_eq!(read_files(&fixture.workspace.root), base, "seed {seed}");
    for round in 0..ROUNDS_PER_REPOSITORY {
        edit_randomly(fixture.root(), &mut random, &mut serial);
        edit_randomly(&fixture.workspace.root, &mut random, &mut serial);
        let (ours, theirs) = (read_files(fixture.root()), read_files(&fixture.workspace.root));
        let model = merge_model(&base, &ours, &theirs);
        match fixture.sync_out(Resolution::Report) {
            ApplyOutcome::Applied(_) => {
                let found = read_files(fixture.root());
                if let Some(model) = model {
                    assert_eq!(visible(found.clone()), visible(model), "seed {seed}, round {round}");
                }
                if ours == base {
                    assert_eq!(found, theirs, "seed {seed}, round {round}");
                }
            }
            ApplyOutcome::Conflicts(conflicts) => {
                assert_eq!(read_files(fixture.root()), ours, "seed {seed}, round {round}: a conflict changes nothing");
                assert!(model.is_none(), "seed {seed}, round {round}: {conflicts:?}");
                let resolution = if random.random() { Resolution::Ours } else { Resolution::Theirs };
                if let ApplyOutcome::Conflicts(_) = fixture.sync_out(resolution) {
                    // A file against a directory: the user decides.
                    fs::remove_dir_all(fixture.root().join("g"))
                        .or_else(|_| fs::remove_file(fixture.root().join("g")))
                        .ok();
                    return;
                }
            }
        }
        assert!(!fixture.sync_in(), "seed {seed}, round {round}");
        base = read_files(fixture.root());
        assert_eq!(read_files(&fixture.workspace.root), base, "seed {seed}, round {round}: both sides are equal");
    }
}
