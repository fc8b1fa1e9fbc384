//! Adds newer commits to a branch without a worktree: git merges trees in memory (`git merge-tree`), and runs no program of
//! the repository.
//!
//! A conflict becomes a merge commit whose files have conflict markers, so that an agent can resolve it in its workspace. No
//! ref names that commit until the caller moves the branch to it.

use crate::author::Author;
use crate::error::Error;
use crate::git_command::HostGitCommand;
use crate::plumbing::GitOutput;
use crate::repository::HostRepository;

const ACTION: &str = "updating a branch";

/// More commits are merged and not replayed.
const MAX_REPLAYED_COMMITS: usize = 200;
const MAX_CONFLICT_PATHS: usize = 100;
const MAX_CONFLICT_FILE_BYTES: u64 = 4 << 20;
/// Bytes of conflicts that the agent reads in a message.
const MAX_EXCERPT_BYTES: usize = 16 << 10;
/// Lines around a conflict.
const CONTEXT_LINES: usize = 3;

const OURS_MARKER: &str = "<<<<<<< ";
const THEIRS_MARKER: &str = ">>>>>>> ";

/// How a branch gets the commits of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateStrategy<'a> {
    /// A merge commit.
    Merge,
    /// The branch's own commits again, on top. Commits of `without` are left out. A branch with merge commits is merged.
    Replay { without: Option<&'a str> },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BranchUpdate {
    /// The branch has the commit already.
    UpToDate,
    Updated {
        commit: String,
    },
    Conflict(MergeConflict),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeConflict {
    /// The merge commit with conflict markers.
    pub commit: String,
    pub paths: Vec<String>,
}

struct MergedTree {
    tree: String,
    conflicts: Vec<String>,
}

impl HostRepository {
    pub fn branch_commit(&self, branch: &str) -> Result<Option<String>, Error> {
        self.commit_of(&format!("refs/heads/{branch}"))
    }

    /// True if `commit` has `ancestor` in its history.
    pub fn contains_commit(&self, commit: &str, ancestor: &str) -> Result<bool, Error> {
        Ok(self.run_lookup(["merge-base", "--is-ancestor", ancestor, commit])?.is_success())
    }

    /// Moves a branch. Returns false if it is not at `from`.
    pub fn move_branch(&self, branch: &str, from: &str, to: &str) -> Result<bool, Error> {
        let name = format!("refs/heads/{branch}");
        Ok(self.update_branch(&name, to, from)?.is_ok() || self.commit_of(&name)?.as_deref() == Some(to))
    }

    /// Deletes a branch if it is at `commit`.
    pub fn remove_branch(&self, branch: &str, commit: &str) -> Result<(), Error> {
        self.run_lookup(["update-ref", "-d", "--", &format!("refs/heads/{branch}"), commit]).map(drop)
    }

    /// True if git can merge both commits without a conflict.
    pub fn merges_cleanly(&self, ours: &str, theirs: &str) -> Result<bool, Error> {
        Ok(self.merge_trees(ours, theirs)?.conflicts.is_empty())
    }

    /// Adds the commits of `target` to those of `ours`. Changes no ref.
    pub fn update_commit(
        &self,
        ours: &str,
        target: &str,
        strategy: UpdateStrategy<'_>,
        author: &Author,
        message: &str,
    ) -> Result<BranchUpdate, Error> {
        if self.contains_commit(ours, target)? {
            return Ok(BranchUpdate::UpToDate);
        }
        if self.contains_commit(target, ours)? {
            return Ok(BranchUpdate::Updated { commit: target.to_owned() });
        }
        if let UpdateStrategy::Replay { without } = strategy
            && let Some(commit) = self.replay_commits(ours, target, without)?
        {
            return Ok(BranchUpdate::Updated { commit });
        }
        let merged = self.merge_trees(ours, target)?;
        let commit = self.create_commit(&merged.tree, &[ours, target], author, message)?;
        if merged.conflicts.is_empty() {
            return Ok(BranchUpdate::Updated { commit });
        }
        Ok(BranchUpdate::Conflict(MergeConflict { commit, paths: merged.conflicts }))
    }

    /// Lists those of the paths whose files in a commit have conflict markers.
    pub fn list_unresolved(&self, commit: &str, paths: &[String]) -> Result<Vec<String>, Error> {
        let mut unresolved = Vec::new();
        for path in paths {
            let text = self.read_text(commit, path)?.unwrap_or_default();
            if !conflict_ranges(&text).is_empty() {
                unresolved.push(path.clone());
            }
        }
        Ok(unresolved)
    }

    /// The first lines of the messages of the commits between two commits, oldest first.
    pub fn list_subjects(&self, base: &str, commit: &str, most: usize) -> Result<Vec<String>, Error> {
        let (most, range) = (format!("--max-count={most}"), format!("^{base}"));
        let arguments = ["log", "--no-merges", "--format=%s", &most, commit, &range, "--"];
        let listed = self.run_lookup(arguments)?.require_success()?.text();
        Ok(listed.lines().rev().map(str::to_owned).collect())
    }

    /// Lists the changed files between two commits that a person should look at before a push.
    pub fn list_sensitive_changes(&self, base: &str, commit: &str) -> Result<Vec<String>, Error> {
        let range = crate::CommitRange { base: base.to_owned(), commit: commit.to_owned(), paths: Vec::new() };
        let changed = self.list_changes(&range)?.into_iter().flat_map(|file| [Some(file.path), file.old_path]);
        Ok(changed.flatten().filter(|path| crate::sensitive_files::is_sensitive(path)).collect())
    }

    /// Replays the own commits of `ours` on `onto`. Returns `None` if there is a conflict, a merge commit or too much to replay.
    fn replay_commits(&self, ours: &str, onto: &str, without: Option<&str>) -> Result<Option<String>, Error> {
        let mut arguments =
            vec!["rev-list".to_owned(), "--reverse".into(), "--topo-order".into(), "--parents".into(), ours.to_owned()];
        arguments.push(format!("^{onto}"));
        arguments.extend(without.map(|commit| format!("^{commit}")));
        arguments.push("--".to_owned());
        let listed = self.run_lookup(&arguments)?.require_success()?.text();
        let lines: Vec<Vec<&str>> = listed.lines().map(|line| line.split(' ').collect()).collect();
        let is_linear = lines.iter().all(|commit| commit.len() == 2);
        if !is_linear || lines.len() > MAX_REPLAYED_COMMITS {
            return Ok(None);
        }
        let mut tip = onto.to_owned();
        for line in lines {
            let (commit, parent) = (line[0], line[1]);
            // A commit with the parent's history and the tip's files, so that the merge base is the parent.
            let start = self.create_commit(&format!("{tip}^{{tree}}"), &[parent], &Author::default(), "base")?;
            let merged = self.merge_trees(&start, commit)?;
            if !merged.conflicts.is_empty() {
                return Ok(None);
            }
            if merged.tree != self.tree_of(&tip)? {
                tip = self.copy_commit(commit, &merged.tree, &tip)?;
            }
        }
        Ok(Some(tip))
    }

    fn merge_trees(&self, ours: &str, theirs: &str) -> Result<MergedTree, Error> {
        let merge = self.limited_command()?.args(["merge-tree", "--write-tree", "--name-only", "-z", "--no-messages"]);
        let answer = merge.args(["--end-of-options", ours, theirs]).capture_output(self.limits.listing_bytes)?;
        if !matches!(answer.exit_code(), Some(0 | 1)) {
            let detail = format!("{}; git 2.38 or newer is needed", answer.failure_detail());
            return Err(Error::Git { what: ACTION, detail });
        }
        let text = String::from_utf8_lossy(&answer.stdout);
        let mut fields = text.split('\0').map(|field| field.trim_end_matches('\n'));
        let tree = fields.next().unwrap_or_default().to_owned();
        if !self.format.is_object_id(&tree) {
            return Err(Error::Git { what: ACTION, detail: "git named no tree".to_owned() });
        }
        let mut conflicts: Vec<String> =
            fields.filter(|path| !path.is_empty()).take(MAX_CONFLICT_PATHS).map(str::to_owned).collect();
        conflicts.dedup();
        Ok(MergedTree { tree, conflicts })
    }

    fn tree_of(&self, commit: &str) -> Result<String, Error> {
        Ok(self.run_lookup(["rev-parse", "--verify", &format!("{commit}^{{tree}}")])?.require_success()?.text())
    }

    fn create_commit(&self, tree: &str, parents: &[&str], author: &Author, message: &str) -> Result<String, Error> {
        let mut command = self.limited_command()?;
        for role in ["AUTHOR", "COMMITTER"] {
            command = command.env(format!("GIT_{role}_NAME"), &author.name);
            command = command.env(format!("GIT_{role}_EMAIL"), &author.email);
        }
        self.write_commit(command, tree, parents, message)
    }

    /// Copies author, date and message of a commit.
    fn copy_commit(&self, commit: &str, tree: &str, parent: &str) -> Result<String, Error> {
        let format = "--format=%an%x00%ae%x00%ad%x00%B";
        let shown = ["log", "-1", "--no-notes", "--date=raw", format, "--end-of-options", commit];
        let shown = self.run_lookup(shown)?.require_success()?.text();
        let mut fields = shown.splitn(4, '\0').map(str::to_owned);
        let mut field = || fields.next().unwrap_or_default();
        let (name, email, date, message) = (field(), field(), field(), field());
        let fallback = Author::default();
        let name = if name.trim().is_empty() { fallback.name.clone() } else { name };
        let command = self.limited_command()?;
        let command = command.env("GIT_AUTHOR_NAME", name).env("GIT_AUTHOR_EMAIL", email).env("GIT_AUTHOR_DATE", date);
        let command = command.env("GIT_COMMITTER_NAME", fallback.name).env("GIT_COMMITTER_EMAIL", fallback.email);
        self.write_commit(command, tree, &[parent], &message)
    }

    fn write_commit(
        &self,
        command: HostGitCommand,
        tree: &str,
        parents: &[&str],
        message: &str,
    ) -> Result<String, Error> {
        let mut command = command.args(["commit-tree", "-F", "-"]);
        for parent in parents {
            command = command.args(["-p", parent]);
        }
        let command = command.args([tree]).input_bytes(message.as_bytes())?;
        let written: GitOutput = command.capture_output(4096)?.require_success()?;
        Ok(written.text())
    }

    /// Quotes the conflicts in files of a commit, for a message. Bounded.
    pub fn excerpt_conflicts(&self, commit: &str, paths: &[String]) -> Result<String, Error> {
        let mut excerpt = String::new();
        for path in paths {
            let Some(text) = self.read_text(commit, path)? else { continue };
            let lines: Vec<&str> = text.lines().collect();
            for (first, last) in conflict_ranges(&text) {
                let (from, to) = (first.saturating_sub(CONTEXT_LINES), (last + CONTEXT_LINES).min(lines.len() - 1));
                let part = format!("{path}, line {}:\n{}\n\n", first + 1, lines[from..=to].join("\n"));
                if excerpt.len() + part.len() > MAX_EXCERPT_BYTES {
                    excerpt.push_str("…\n");
                    return Ok(excerpt);
                }
                excerpt.push_str(&part);
            }
        }
        Ok(excerpt)
    }

    /// Reads a file of a commit; `None` if it is missing, large or not text.
    fn read_text(&self, commit: &str, path: &str) -> Result<Option<String>, Error> {
        let read = self.limited_command()?.args(["cat-file", "blob", &format!("{commit}:{path}")]);
        match read.capture_output(MAX_CONFLICT_FILE_BYTES) {
            Ok(answer) if answer.is_success() => Ok(String::from_utf8(answer.stdout).ok()),
            Ok(_) | Err(Error::OutputTooLarge { .. }) => Ok(None),
            Err(other) => Err(other),
        }
    }

    fn limited_command(&self) -> Result<HostGitCommand, Error> {
        Ok(self.git_command(ACTION, self.limits.bulk_timeout)?.memory_limit(self.limits.memory_bytes))
    }
}

/// The first and last line of each conflict, from 0.
fn conflict_ranges(text: &str) -> Vec<(usize, usize)> {
    let (mut ranges, mut begin) = (Vec::new(), None);
    for (number, line) in text.lines().enumerate() {
        if line.starts_with(OURS_MARKER) {
            begin = Some(number);
        } else if line.starts_with(THEIRS_MARKER)
            && let Some(first) = begin.take()
        {
            ranges.push((first, number));
        }
    }
    ranges
}
