//! From a sandbox to the user's repository: what was done becomes a new branch, and nothing else changes.

use crate::branch::{self, Free, Why, is_name};
use crate::error::Error;
use crate::flagged::is_flagged;
use crate::plumbing::changes::FileChange;
use crate::quarantine::{Incoming, Quarantine};
use crate::repository::Repository;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::path::Path;

const WHAT: &str = "taking the result into the repository";

/// Fewer objects than this become files of their own, as git does it: packs of a handful pile up.
const PACK_FROM: u64 = 100;

/// Someone else may make a branch of the same name at the same time, but hardly again and again.
const TRIES: u32 = 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Branch(Taken),
    /// There is no commit that the base does not have.
    Nothing,
    /// Files were changed that must not be: nothing was taken.
    Protected {
        paths: Vec<String>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    pub branch: String,
    pub commit: String,
    pub base: String,
    pub commits: u64,
    /// Against the base.
    pub files: Vec<FileChange>,
    /// Those of the changed files that deserve a second look: they say what machines run, or where more code comes from.
    pub flagged: Vec<String>,
    pub notes: Vec<Note>,
}

/// What the user should know about a result that was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub enum Note {
    NameTaken { wanted: String },
    NameBlocked { wanted: String, by: String },
    BaseNotAncestor,
    LinesNotCounted,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameTaken { wanted } => {
                write!(f, "a branch {wanted} was there already, so this one has another name")
            }
            Self::NameBlocked { wanted, by } => {
                write!(f, "git cannot have a branch {wanted} beside the branch {by}, so this one has another name")
            }
            Self::BaseNotAncestor => {
                f.write_str("the result does not build on the commit that the sandbox started from")
            }
            Self::LinesNotCounted => f.write_str("the changes are too large to count their lines"),
        }
    }
}

impl Repository {
    /// Takes `refs/atoll/result` out of a bundle and makes a branch of it, named as wanted or nearly so.
    ///
    /// The checkout, index, HEAD, configuration and all other refs stay as they are. Doing it again
    /// with the same bundle finds the branch that is there.
    pub fn take(&self, bundle: &Path, base: &str, wanted_branch: &str, scratch: &Path) -> Result<Outcome, Error> {
        self.take_unless(bundle, base, wanted_branch, scratch, &|_| false)
    }

    /// The same, but nothing is taken if it changes a file that `is_protected`.
    pub fn take_unless(
        &self,
        bundle: &Path,
        base: &str,
        wanted_branch: &str,
        scratch: &Path,
        is_protected: &dyn Fn(&str) -> bool,
    ) -> Result<Outcome, Error> {
        if !is_name(wanted_branch) {
            return Err(Error::BranchRefused { branch: wanted_branch.chars().take(100).collect() });
        }
        let missing = || Error::BaseMissing { path: self.path.clone(), base: base.chars().take(100).collect() };
        let named = self.format.names(base).then(|| self.commit_of(base)).transpose()?;
        let base = named.flatten().ok_or_else(missing)?;
        let Some(incoming) = Incoming::open(bundle, self.bounds.result_bytes)? else {
            return Ok(Outcome::Nothing);
        };
        let quarantine = Quarantine::new(self, scratch)?;
        let commit = quarantine.index(incoming)?;
        let seen = quarantine.look(&base, &commit)?;
        if seen.commits == 0 {
            return Ok(Outcome::Nothing);
        }
        let changed = || seen.files.iter().flat_map(|file| [Some(&file.path), file.old_path.as_ref()]).flatten();
        let paths: Vec<String> = changed().filter(|path| is_protected(path)).cloned().collect();
        if !paths.is_empty() {
            return Ok(Outcome::Protected { paths });
        }
        let flagged = changed().filter(|path| is_flagged(path)).cloned().collect();
        self.keep_objects(quarantine.pack(&base, &commit, scratch)?, seen.objects)?;
        let named = self.make_branch(wanted_branch, &commit)?;
        let mut notes: Vec<Note> = named.why.map(|why| note(why, wanted_branch)).into_iter().collect();
        notes.extend((!seen.base_is_ancestor).then_some(Note::BaseNotAncestor));
        notes.extend((!seen.lines_counted).then_some(Note::LinesNotCounted));
        tracing::info!(
            branch = named.name,
            commit,
            commits = seen.commits,
            "took a result into {}",
            self.path.display()
        );
        Ok(Outcome::Branch(Taken {
            branch: named.name,
            commit,
            base,
            commits: seen.commits,
            files: seen.files,
            flagged,
            notes,
        }))
    }

    fn keep_objects(&self, pack: File, objects: u64) -> Result<(), Error> {
        let how: &[&str] = if objects < PACK_FROM { &["unpack-objects", "-q"] } else { &["index-pack", "--stdin"] };
        let run = self.run(WHAT, self.bounds.slow)?.args(how).input_file(pack);
        run.capture(self.bounds.listing_bytes)?.checked()?;
        Ok(())
    }

    fn make_branch(&self, wanted: &str, commit: &str) -> Result<Free, Error> {
        let mut refused = BTreeSet::new();
        let mut last = Error::NoFreeName { wanted: wanted.to_owned() };
        for _ in 0..TRIES {
            let branches = self.branches()?;
            if let Some(there) = branch::already(wanted, commit, &branches) {
                return Ok(there);
            }
            let mut taken: BTreeSet<String> = branches.into_keys().collect();
            taken.extend(self.checked_out()?);
            taken.extend(refused.iter().cloned());
            let Some(free) = branch::free_name(wanted, &taken) else { break };
            let made = self.run(WHAT, self.bounds.quick)?;
            let made = made.env("GIT_COMMITTER_NAME", "Atoll").env("GIT_COMMITTER_EMAIL", "atoll@localhost");
            let name = format!("refs/heads/{}", free.name);
            let nothing = "0".repeat(self.format.digits());
            let made = made.args(["update-ref", "-m", "atoll: result of a sandbox", "--", &name, commit, &nothing]);
            match made.capture(self.bounds.listing_bytes)?.checked() {
                Ok(_) => return Ok(free),
                Err(rejected) => last = rejected.into(),
            }
            refused.insert(free.name);
        }
        Err(last)
    }

    /// All branches and their commits.
    fn branches(&self) -> Result<BTreeMap<String, String>, Error> {
        let listed = self.read(["for-each-ref", "--format=%(objectname) %(refname)", "refs/heads/"])?.checked()?;
        let text = listed.text();
        let split = text.lines().filter_map(|line| line.split_once(" refs/heads/"));
        Ok(split.map(|(commit, name)| (name.to_owned(), commit.to_owned())).collect())
    }

    /// Branches that a worktree is on, also when they have no commit yet: making one of these would move its HEAD.
    fn checked_out(&self) -> Result<Vec<String>, Error> {
        let listed = self.read(["worktree", "list", "--porcelain"])?.checked()?;
        let text = listed.text();
        Ok(text.lines().filter_map(|line| line.strip_prefix("branch refs/heads/")).map(str::to_owned).collect())
    }
}

fn note(why: Why, wanted: &str) -> Note {
    let wanted = wanted.to_owned();
    match why {
        Why::Taken => Note::NameTaken { wanted },
        Why::Blocked { by } => Note::NameBlocked { wanted, by },
    }
}
