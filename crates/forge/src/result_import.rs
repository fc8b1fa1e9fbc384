//! Imports a sandbox's result into the user's repository as a branch; nothing else changes.
//!
//! A session's later results fast-forward its own branch. If that branch has moved or is checked out, they get a new name.

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

/// A result to import.
#[derive(Debug, Clone, Copy)]
pub struct ImportRequest<'a> {
    pub bundle: &'a Path,
    pub base: &'a str,
    /// The commit that the sandbox started from, if it is later than `base`: it is no result.
    pub start: Option<&'a str>,
    /// The branch's name, or one like it if that exists.
    pub branch: &'a str,
    /// True if an earlier result of the same session created the branch.
    pub is_own: bool,
    pub scratch: &'a Path,
}

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
    /// The branch's commit before, if the import fast-forwarded the session's own branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
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
    BranchMoved { name: String },
    BranchCheckedOut { name: String },
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
            Self::BranchMoved { name } => {
                write!(f, "the branch {name} has commits that the result lacks, so the result has another name")
            }
            Self::BranchCheckedOut { name } => {
                write!(f, "the branch {name} is checked out, so the result has another name")
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
        let request = ImportRequest { bundle, base, start: None, branch: wanted_branch, is_own: false, scratch };
        self.import_result_unless_protected(request, &|_| false)
    }

    /// Imports a result, but refuses one that changes a file for which `is_protected` is true.
    pub fn import_result_unless_protected(
        &self,
        request: ImportRequest<'_>,
        is_protected: &dyn Fn(&str) -> bool,
    ) -> Result<ImportOutcome, Error> {
        let ImportRequest { bundle, base, start, branch, is_own, scratch } = request;
        if !is_valid_ref_name(branch) {
            return Err(Error::BranchRefused { branch: branch.chars().take(100).collect() });
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
        if inspection.commit_count == 0 || start == Some(commit.as_str()) {
            return Ok(ImportOutcome::NoNewCommits);
        }
        let changed = || inspection.files.iter().flat_map(|file| [Some(&file.path), file.old_path.as_ref()]).flatten();
        let paths: Vec<String> = changed().filter(|path| is_protected(path)).cloned().collect();
        if !paths.is_empty() {
            return Ok(ImportOutcome::Protected { paths });
        }
        let flagged = changed().filter(|path| is_sensitive(path)).cloned().collect();
        self.store_objects(quarantine.pack_new_objects(&base, &commit, scratch)?, inspection.object_count)?;
        let (named, previous) = self.place_branch(branch, is_own, &commit)?;
        let mut notes: Vec<ImportNote> = named.conflict.map(|why| conflict_note(why, branch)).into_iter().collect();
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
            previous,
            base,
            commits: inspection.commit_count,
            files: inspection.files,
            flagged,
            notes,
        }))
    }

    pub(crate) fn store_objects(&self, pack: File, objects: u64) -> Result<(), Error> {
        let how: &[&str] =
            if objects < MIN_PACKED_OBJECTS { &["unpack-objects", "-q"] } else { &["index-pack", "--stdin"] };
        let run = self.git_command(ACTION, self.limits.bulk_timeout)?.args(how).input_file(pack);
        run.capture_output(self.limits.listing_bytes)?.require_success()?;
        Ok(())
    }

    /// Fast-forwards the session's own branch, or creates a branch. Returns the own branch's earlier commit.
    fn place_branch(
        &self,
        requested: &str,
        is_own: bool,
        commit: &str,
    ) -> Result<(AssignedBranch, Option<String>), Error> {
        let name = format!("refs/heads/{requested}");
        let current = if is_own { self.commit_of(&name)? } else { None };
        let Some(current) = current else { return Ok((self.create_branch(requested, commit)?, None)) };
        let own = AssignedBranch { name: requested.to_owned(), conflict: None };
        if current == commit {
            return Ok((own, Some(current)));
        }
        let ancestor = self.run_lookup(["merge-base", "--is-ancestor", &current, commit])?;
        let conflict = if !ancestor.is_success() {
            NameConflict::Moved
        } else if self.list_checked_out_branches()?.iter().any(|checked_out| checked_out == requested) {
            NameConflict::CheckedOut
        } else if self.update_branch(&name, commit, &current)?.is_ok() {
            return Ok((own, Some(current)));
        } else {
            // The branch moved meanwhile.
            NameConflict::Moved
        };
        Ok((AssignedBranch { conflict: Some(conflict), ..self.create_branch(requested, commit)? }, None))
    }

    /// Sets a branch to a commit if it still is at `old`.
    pub(crate) fn update_branch(&self, name: &str, commit: &str, old: &str) -> Result<Result<(), Error>, Error> {
        let command = self.git_command(ACTION, self.limits.lookup_timeout)?;
        let command = command.env("GIT_COMMITTER_NAME", "Atoll").env("GIT_COMMITTER_EMAIL", "atoll@localhost");
        let command = command.args(["update-ref", "-m", "atoll: result of a sandbox", "--", name, commit, old]);
        Ok(command.capture_output(self.limits.listing_bytes)?.require_success().map(drop).map_err(Error::from))
    }

    /// Creates a branch at a commit, or finds it with this or a later commit. Returns false if another branch has the name.
    pub fn ensure_branch(&self, branch: &str, commit: &str) -> Result<bool, Error> {
        if !is_valid_ref_name(branch) {
            return Err(Error::BranchRefused { branch: branch.chars().take(100).collect() });
        }
        let name = format!("refs/heads/{branch}");
        let nothing = "0".repeat(self.format.hex_digits());
        let refused = match self.commit_of(&name)? {
            Some(_) => None,
            None => self.update_branch(&name, commit, &nothing)?.err(),
        };
        match (self.commit_of(&name)?, refused) {
            (Some(found), _) if found == commit => Ok(true),
            (Some(found), _) => Ok(self.run_lookup(["merge-base", "--is-ancestor", commit, &found])?.is_success()),
            // Git cannot have a branch below or above another one.
            (None, Some(_)) => Ok(false),
            (None, None) => Err(Error::NoFreeName { name: branch.to_owned() }),
        }
    }

    /// Lists the names that a new branch cannot have.
    pub fn list_taken_branches(&self) -> Result<BTreeSet<String>, Error> {
        let mut taken: BTreeSet<String> = self.list_branches()?.into_keys().collect();
        taken.extend(self.list_reserved_names()?);
        Ok(taken)
    }

    /// Lists the names of branches elsewhere: checked out in a worktree, or of the mirrored remote.
    fn list_reserved_names(&self) -> Result<Vec<String>, Error> {
        if !self.is_mirror {
            return self.list_checked_out_branches();
        }
        let prefix = crate::remote::REMOTE_PREFIX;
        let listed = self.run_lookup(["for-each-ref", "--format=%(refname)", prefix])?.require_success()?.text();
        Ok(listed.lines().filter_map(|line| line.strip_prefix(prefix)).map(str::to_owned).collect())
    }

    pub(crate) fn create_branch(&self, requested: &str, commit: &str) -> Result<AssignedBranch, Error> {
        let mut refused = BTreeSet::new();
        let mut last = Error::NoFreeName { name: requested.to_owned() };
        for _ in 0..MAX_BRANCH_ATTEMPTS {
            let branches = self.list_branches()?;
            if let Some(there) = branch::find_existing_branch(requested, commit, &branches) {
                return Ok(there);
            }
            let mut existing: BTreeSet<String> = branches.into_keys().collect();
            existing.extend(self.list_reserved_names()?);
            existing.extend(refused.iter().cloned());
            let Some(free) = branch::find_free_name(requested, &existing) else { break };
            let name = format!("refs/heads/{}", free.name);
            let nothing = "0".repeat(self.format.hex_digits());
            match self.update_branch(&name, commit, &nothing)? {
                Ok(()) => return Ok(free),
                Err(rejected) => last = rejected,
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
        NameConflict::Moved => ImportNote::BranchMoved { name },
        NameConflict::CheckedOut => ImportNote::BranchCheckedOut { name },
        NameConflict::Blocked { by } => ImportNote::NameBlocked { name, by },
    }
}
