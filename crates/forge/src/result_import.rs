//! Imports a sandbox's result into the user's repository as a new branch; nothing else changes.

use crate::branch::{self, AssignedBranch, NameConflict, is_valid_ref_name};
use crate::error::Error;
use crate::plumbing::changes::FileChange;
use crate::quarantine::{IncomingBundle, Quarantine};
use crate::repository::HostRepository;
use crate::sensitive_files::is_sensitive;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::path::Path;

const ACTION: &str = "importing the result into the repository";

/// Fewer objects become loose files, like in git, to avoid many small packs.
const MIN_PACKED_OBJECTS: u64 = 100;

/// Attempts to create a branch while others create the same name.
const MAX_BRANCH_ATTEMPTS: u32 = 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportOutcome {
    Branch(ImportedResult),
    /// There is no commit beyond the base.
    NoNewCommits,
    /// The result changes protected files and is refused.
    Protected {
        paths: Vec<String>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportedResult {
    pub branch: String,
    pub commit: String,
    pub base: String,
    pub commits: u64,
    /// Compared to the base.
    pub files: Vec<FileChange>,
    /// The sensitive ones of the changed files, for review.
    pub flagged: Vec<String>,
    pub notes: Vec<ImportNote>,
}

/// A note to the user about an imported result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub enum ImportNote {
    NameTaken { name: String },
    NameBlocked { name: String, by: String },
    BaseNotAncestor,
    LinesNotCounted,
}

impl fmt::Display for ImportNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameTaken { name } => {
                write!(f, "the branch {name} already exists, so the result has another name")
            }
            Self::NameBlocked { name, by } => {
                write!(f, "git cannot have both branches {name} and {by}, so the result has another name")
            }
            Self::BaseNotAncestor => {
                f.write_str("the result does not build on the commit that the sandbox started from")
            }
            Self::LinesNotCounted => f.write_str("the changes are too large to count their lines"),
        }
    }
}

impl HostRepository {
    /// Imports `refs/atoll/result` of a bundle as a branch with the requested name, or one like it.
    ///
    /// The checkout, index, HEAD, configuration and other refs do not change. A repeated import of the same bundle
    /// finds the existing branch.
    pub fn import_result(
        &self,
        bundle: &Path,
        base: &str,
        wanted_branch: &str,
        scratch: &Path,
    ) -> Result<ImportOutcome, Error> {
        self.import_result_unless_protected(bundle, base, wanted_branch, scratch, &|_| false)
    }

    /// Like `import_result`, but refuses a result that changes a file for which `is_protected` is true.
    pub fn import_result_unless_protected(
        &self,
        bundle: &Path,
        base: &str,
        wanted_branch: &str,
        scratch: &Path,
        is_protected: &dyn Fn(&str) -> bool,
    ) -> Result<ImportOutcome, Error> {
        if !is_valid_ref_name(wanted_branch) {
            return Err(Error::BranchRefused { branch: wanted_branch.chars().take(100).collect() });
        }
        let missing = || Error::BaseMissing { path: self.path.clone(), base: base.chars().take(100).collect() };
        let named = self.format.is_object_id(base).then(|| self.commit_of(base)).transpose()?;
        let base = named.flatten().ok_or_else(missing)?;
        let Some(incoming) = IncomingBundle::open(bundle, self.limits.result_bytes)? else {
            return Ok(ImportOutcome::NoNewCommits);
        };
        let quarantine = Quarantine::new(self, scratch)?;
        let commit = quarantine.index_bundle(incoming)?;
        let inspection = quarantine.inspect_result(&base, &commit)?;
        if inspection.commit_count == 0 {
            return Ok(ImportOutcome::NoNewCommits);
        }
        let changed = || inspection.files.iter().flat_map(|file| [Some(&file.path), file.old_path.as_ref()]).flatten();
        let paths: Vec<String> = changed().filter(|path| is_protected(path)).cloned().collect();
        if !paths.is_empty() {
            return Ok(ImportOutcome::Protected { paths });
        }
        let flagged = changed().filter(|path| is_sensitive(path)).cloned().collect();
        self.store_objects(quarantine.pack_new_objects(&base, &commit, scratch)?, inspection.object_count)?;
        let named = self.create_branch(wanted_branch, &commit)?;
        let mut notes: Vec<ImportNote> =
            named.conflict.map(|why| conflict_note(why, wanted_branch)).into_iter().collect();
        notes.extend((!inspection.base_is_ancestor).then_some(ImportNote::BaseNotAncestor));
        notes.extend((!inspection.has_line_counts).then_some(ImportNote::LinesNotCounted));
        tracing::info!(
            branch = named.name,
            commit,
            commits = inspection.commit_count,
            "imported a result into {}",
            self.path.display()
        );
        Ok(ImportOutcome::Branch(ImportedResult {
            branch: named.name,
            commit,
            base,
            commits: inspection.commit_count,
            files: inspection.files,
            flagged,
            notes,
        }))
    }

    fn store_objects(&self, pack: File, objects: u64) -> Result<(), Error> {
        let how: &[&str] =
            if objects < MIN_PACKED_OBJECTS { &["unpack-objects", "-q"] } else { &["index-pack", "--stdin"] };
        let run = self.git_command(ACTION, self.limits.bulk_timeout)?.args(how).input_file(pack);
        run.capture_output(self.limits.listing_bytes)?.require_success()?;
        Ok(())
    }

    fn create_branch(&self, requested: &str, commit: &str) -> Result<AssignedBranch, Error> {
        let mut refused = BTreeSet::new();
        let mut last = Error::NoFreeName { name: requested.to_owned() };
        for _ in 0..MAX_BRANCH_ATTEMPTS {
            let branches = self.list_branches()?;
            if let Some(there) = branch::find_existing_branch(requested, commit, &branches) {
                return Ok(there);
            }
            let mut existing: BTreeSet<String> = branches.into_keys().collect();
            existing.extend(self.list_checked_out_branches()?);
            existing.extend(refused.iter().cloned());
            let Some(free) = branch::find_free_name(requested, &existing) else { break };
            let command = self.git_command(ACTION, self.limits.lookup_timeout)?;
            let command = command.env("GIT_COMMITTER_NAME", "Atoll").env("GIT_COMMITTER_EMAIL", "atoll@localhost");
            let name = format!("refs/heads/{}", free.name);
            let nothing = "0".repeat(self.format.hex_digits());
            let command =
                command.args(["update-ref", "-m", "atoll: result of a sandbox", "--", &name, commit, &nothing]);
            match command.capture_output(self.limits.listing_bytes)?.require_success() {
                Ok(_) => return Ok(free),
                Err(rejected) => last = rejected.into(),
            }
            refused.insert(free.name);
        }
        Err(last)
    }

    /// Lists all branches with their commits.
    fn list_branches(&self) -> Result<BTreeMap<String, String>, Error> {
        let listed =
            self.run_lookup(["for-each-ref", "--format=%(objectname) %(refname)", "refs/heads/"])?.require_success()?;
        let text = listed.text();
        let split = text.lines().filter_map(|line| line.split_once(" refs/heads/"));
        Ok(split.map(|(commit, name)| (name.to_owned(), commit.to_owned())).collect())
    }

    /// Lists the branches of all worktrees, also unborn ones: creating one of these would move its HEAD.
    fn list_checked_out_branches(&self) -> Result<Vec<String>, Error> {
        let listed = self.run_lookup(["worktree", "list", "--porcelain"])?.require_success()?;
        let text = listed.text();
        Ok(text.lines().filter_map(|line| line.strip_prefix("branch refs/heads/")).map(str::to_owned).collect())
    }
}

fn conflict_note(why: NameConflict, name: &str) -> ImportNote {
    let name = name.to_owned();
    match why {
        NameConflict::Taken => ImportNote::NameTaken { name },
        NameConflict::Blocked { by } => ImportNote::NameBlocked { name, by },
    }
}
