//! Applies a tree to the worktree: all of it or nothing.
//!
//! Git writes the new files into a staging directory. Then each one is swapped with the user's file, and the file that
//! came out must be the one that the snapshot read: a later edit reverts everything. The user's index does not change.

use super::Worktree;
use super::confined_path::{ConfinedDir, FileStamp};
use super::journal::{Journal, JournalStep, deleted_path, remove_stage, staged_path};
use super::plan::{ApplyPlan, ChangeCounts};
use super::private_git::create_owned_dir;
use super::state::WorktreeState;
use crate::error::Error;
use crate::plumbing::sync::{RunGit, split_records};
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const STAGING: &str = "staging the sandbox's changes";
const APPLYING: &str = "applying the sandbox's changes";

/// Called after each step, so that tests can interrupt it.
type StepObserver<'a> = &'a mut dyn FnMut(usize);

impl Worktree {
    /// Replaces the files of `ours`, a snapshot, with those of `wanted`, and records `state`.
    pub fn apply(&self, ours: &str, wanted: &str, state: &WorktreeState) -> Result<ChangeCounts, Error> {
        self.apply_observed(ours, wanted, state, &mut |_| {})
    }

    pub(super) fn apply_observed(
        &self,
        ours: &str,
        wanted: &str,
        state: &WorktreeState,
        observe: StepObserver<'_>,
    ) -> Result<ChangeCounts, Error> {
        let plan = self.plan_changes(ours, wanted)?;
        if plan.is_empty() {
            self.write_state(state)?;
            return Ok(ChangeCounts::default());
        }
        let stage = self.stage_dir()?;
        remove_stage(&stage);
        let done = self.stage_files(&plan, &stage).and_then(|()| self.swap_files(&plan, &stage, state, observe));
        // After a failed revert, the next command tries again.
        if done.is_err() && !self.has_journal() {
            remove_stage(&stage);
        }
        done?;
        Ok(plan.counts())
    }

    /// Compares two trees of the worktree.
    pub(super) fn plan_changes(&self, ours: &str, wanted: &str) -> Result<ApplyPlan, Error> {
        let comparison = ["diff-tree", "-r", "-z", "--raw", "--no-renames", ours, wanted];
        ApplyPlan::parse(&self.run_private(APPLYING, &comparison)?.require_success()?.stdout)
    }

    /// A directory on the worktree's file system, outside of the worktree if possible.
    fn stage_dir(&self) -> Result<PathBuf, Error> {
        let device = |path: &Path| fs::metadata(path).map(|found| found.dev());
        let same = device(&self.root).and_then(|root| Ok(root == device(&self.dir)?));
        match same {
            Ok(true) => Ok(self.dir.join("stage")),
            Ok(false) => Ok(self.root.join(".atoll-stage")),
            Err(source) => Err(Error::Io { what: STAGING, source }),
        }
    }

    /// Writes the new files with git's conversions, and makes them and the old ones durable.
    fn stage_files(&self, plan: &ApplyPlan, stage: &Path) -> Result<(), Error> {
        let failed = |source| Error::Io { what: STAGING, source };
        for directory in [stage.to_owned(), stage.join("new"), stage.join("old")] {
            create_owned_dir(&directory, self.repository.owner).map_err(failed)?;
        }
        let index = stage.join("index");
        let command = || Ok::<_, Error>(self.files_command(STAGING)?.env("GIT_INDEX_FILE", &index));
        let bound = self.repository.limits.listing_bytes;
        let (mut entries, mut names) = (Vec::new(), Vec::new());
        for file in &plan.written {
            entries.extend([format!("{} {} 0\t", file.mode, file.id).as_bytes(), &file.path, b"\0"].concat());
            names.extend([&file.path, b"\0".as_slice()].concat());
        }
        let update = command()?.args(["update-index", "-z", "--index-info"]).input_bytes(&entries)?;
        update.capture_output(bound)?.require_success()?;
        let mut prefix = std::ffi::OsString::from("--prefix=");
        prefix.push(stage.join("new/"));
        let checkout = command()?.args(["checkout-index", "--quiet", "-z", "--stdin"]).args([prefix]);
        checkout.input_bytes(&names)?.capture_output(bound)?.require_success()?;
        // The second directory has the files from before, as git objects.
        for directory in [stage, self.dir.as_path()] {
            let directory = File::open(directory).map_err(failed)?;
            rustix::fs::syncfs(directory).map_err(|error| failed(error.into()))?;
        }
        Ok(())
    }

    fn swap_files(
        &self,
        plan: &ApplyPlan,
        stage: &Path,
        state: &WorktreeState,
        observe: StepObserver<'_>,
    ) -> Result<(), Error> {
        let failed = |source| Error::Io { what: APPLYING, source };
        let root = ConfinedDir::open(&self.root).map_err(failed)?;
        let staged = ConfinedDir::open(stage).map_err(failed)?;
        let stamps = self.stamp_current_files(plan, &root)?;
        let steps = prepare_steps(plan, &root, &staged, &stamps).map_err(failed)?;
        let journal = Journal { stage: stage.to_owned(), steps, state: state.clone() };
        self.write_journal(&journal)?;
        let done = run_steps(&journal, &root, &staged, &stamps, observe);
        if let Err(error) = done {
            self.revert(&journal)?;
            return Err(error);
        }
        self.commit_journal()?;
        observe(usize::MAX);
        self.recover()
    }

    /// Reads the stamps of all files that will change, and checks that they are still those of the snapshot.
    fn stamp_current_files(&self, plan: &ApplyPlan, root: &ConfinedDir) -> Result<HashMap<Vec<u8>, FileStamp>, Error> {
        let changed = |path: &[u8]| Error::WorktreeChanged { path: String::from_utf8_lossy(path).into_owned() };
        let replaced = plan.written.iter().filter(|file| file.is_replaced).map(|file| &file.path);
        let mut stamps = HashMap::new();
        for path in plan.deleted.iter().chain(replaced) {
            let found = root.stamp(path).map_err(|source| Error::Io { what: APPLYING, source })?;
            let found = found.filter(|found| !found.is_directory()).ok_or_else(|| changed(path))?;
            stamps.insert(path.clone(), found);
        }
        let listed = self.run_git(APPLYING, &["diff-files", "-z", "--name-only"], None)?.require_success()?;
        let edited: BTreeSet<&[u8]> = split_records(&listed.stdout).collect();
        match stamps.keys().find(|path| edited.contains(path.as_slice())) {
            Some(path) => Err(changed(path)),
            None => Ok(stamps),
        }
    }
}

/// Lists the steps in their order: deletions make room for new files.
fn prepare_steps(
    plan: &ApplyPlan,
    root: &ConfinedDir,
    staged: &ConfinedDir,
    stamps: &HashMap<Vec<u8>, FileStamp>,
) -> io::Result<Vec<JournalStep>> {
    let mut steps: Vec<JournalStep> = plan
        .deleted
        .iter()
        .enumerate()
        .map(|(number, path)| JournalStep::Delete { path: path.clone(), number })
        .collect();
    let removed = plan.removed_directories.iter().cloned().chain(plan.emptied_candidates());
    let mut removed: Vec<Vec<u8>> = removed.collect();
    removed.sort_unstable_by(|one, other| other.cmp(one));
    removed.dedup();
    for path in removed {
        // Only an existing directory can be restored.
        if root.stamp(&path)?.is_some_and(|found| found.is_directory()) {
            steps.push(JournalStep::RemoveDirectory { path });
        }
    }
    let mut parents = BTreeSet::new();
    for file in &plan.written {
        collect_parents(&file.path, &mut parents);
    }
    for path in &plan.made_directories {
        collect_parents(path, &mut parents);
        parents.insert(path.clone());
    }
    for path in parents {
        let is_there = root.stamp(&path)?.is_some_and(|found| found.is_directory());
        let is_removed =
            steps.iter().any(|step| matches!(step, JournalStep::RemoveDirectory { path: removed } if *removed == path));
        if !is_there || is_removed {
            steps.push(JournalStep::MakeDirectory { path });
        }
    }
    for file in &plan.written {
        let name = staged_path(&file.path);
        let missing = || io::Error::new(io::ErrorKind::NotFound, "git did not write a file");
        let new = staged.stamp(&name)?.ok_or_else(missing)?;
        let path = file.path.clone();
        match stamps.get(&path) {
            Some(old) => {
                keep_permissions(staged, &name, old, &new, &file.mode)?;
                let new = staged.stamp(&name)?.ok_or_else(missing)?;
                steps.push(JournalStep::Replace { path, staged: new });
            }
            None => steps.push(JournalStep::Create { path, staged: new }),
        }
    }
    Ok(steps)
}

fn collect_parents(path: &[u8], parents: &mut BTreeSet<Vec<u8>>) {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    parents.extend(slashes.map(|(place, _)| path[..place].to_vec()));
}

/// A new version of a regular file has the permissions of the old one, except for execution.
fn keep_permissions(
    staged: &ConfinedDir,
    name: &[u8],
    old: &FileStamp,
    new: &FileStamp,
    git_mode: &str,
) -> io::Result<()> {
    const REGULAR: u32 = 0o100_000;
    if old.mode & 0o170_000 != REGULAR || new.mode & 0o170_000 != REGULAR {
        return Ok(());
    }
    let readable = old.mode & 0o666;
    let mode = if git_mode == "100755" { readable | (readable & 0o444) >> 2 } else { readable };
    staged.set_permissions(name, mode)
}

fn run_steps(
    journal: &Journal,
    root: &ConfinedDir,
    staged: &ConfinedDir,
    stamps: &HashMap<Vec<u8>, FileStamp>,
    observe: StepObserver<'_>,
) -> Result<(), Error> {
    for (number, step) in journal.steps.iter().enumerate() {
        run_step(step, root, staged, stamps)?;
        observe(number);
    }
    // A program may have written through an open file meanwhile.
    for step in &journal.steps {
        let (path, place) = match step {
            JournalStep::Delete { path, number } => (path, deleted_path(*number)),
            JournalStep::Replace { path, .. } => (path, staged_path(path)),
            JournalStep::Create { .. } | JournalStep::RemoveDirectory { .. } | JournalStep::MakeDirectory { .. } => {
                continue;
            }
        };
        check_stamp(staged, &place, path, stamps)?;
    }
    Ok(())
}

fn run_step(
    step: &JournalStep,
    root: &ConfinedDir,
    staged: &ConfinedDir,
    stamps: &HashMap<Vec<u8>, FileStamp>,
) -> Result<(), Error> {
    let failed = |source: io::Error| Error::Io { what: APPLYING, source };
    match step {
        JournalStep::Delete { path, number } => {
            let place = deleted_path(*number);
            root.move_to(path, staged, &place).map_err(|error| vanished_or(path, error))?;
            check_stamp(staged, &place, path, stamps)
        }
        JournalStep::Replace { path, .. } => {
            let place = staged_path(path);
            root.exchange(path, staged, &place).map_err(|error| vanished_or(path, error))?;
            check_stamp(staged, &place, path, stamps)
        }
        JournalStep::Create { path, .. } => staged.move_to(&staged_path(path), root, path).map_err(|error| {
            let is_occupied = matches!(
                error.kind(),
                io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory
            );
            if is_occupied { occupied(path) } else { failed(error) }
        }),
        JournalStep::RemoveDirectory { path } => root.remove_directory(path).map(drop).map_err(failed),
        JournalStep::MakeDirectory { path } => match root.make_directory(path) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let found = root.stamp(path).map_err(failed)?;
                if found.is_some_and(|found| found.is_directory()) { Ok(()) } else { Err(occupied(path)) }
            }
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => Err(occupied(path)),
            Err(error) => Err(failed(error)),
        },
    }
}

fn occupied(path: &[u8]) -> Error {
    Error::PathOccupied { path: String::from_utf8_lossy(path).into_owned() }
}

/// The file is no longer at its path.
fn vanished_or(path: &[u8], error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            Error::WorktreeChanged { path: String::from_utf8_lossy(path).into_owned() }
        }
        _ => Error::Io { what: APPLYING, source: error },
    }
}

/// The file that came out of the worktree must be the one that was read.
fn check_stamp(
    staged: &ConfinedDir,
    place: &[u8],
    path: &[u8],
    stamps: &HashMap<Vec<u8>, FileStamp>,
) -> Result<(), Error> {
    let found = staged.stamp(place).map_err(|source| Error::Io { what: APPLYING, source })?;
    if found.as_ref() == stamps.get(path) {
        Ok(())
    } else {
        Err(Error::WorktreeChanged { path: String::from_utf8_lossy(path).into_owned() })
    }
}
