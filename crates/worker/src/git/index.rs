//! A second index that says what the workspace holds now, beside the agent's own, which stays as it is.
//!
//! It starts as a copy of the agent's, so that git need not read every file again.

use super::command::Git;
use super::error::Error;
use super::repository::{Repository, regular};
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const WHAT: &str = "looking through the workspace";
const LARGEST: u64 = 1 << 30;
/// Repositories inside repositories are followed so far.
const DEEPEST: usize = 8;
/// So many files that cannot be taken are named.
const MOST_NAMED: usize = 50;

/// A name as git gives it, relative to the workspace.
type Name = Vec<u8>;

#[derive(Debug)]
pub(super) struct Index {
    /// Holds the index, and goes away with it.
    _directory: TempDir,
    pub path: PathBuf,
    /// What could not be taken in: the first of it.
    left_out: Vec<String>,
    others: Vec<Name>,
}

impl Index {
    /// From here on every command of this repository uses the second index.
    pub fn new(repository: &mut Repository, otherwise: Option<&str>) -> Result<Self, Error> {
        let failed = |source| Error::Io { what: WHAT, source };
        let directory = tempfile::tempdir_in(&repository.git.place.temporary).map_err(failed)?;
        let path = directory.path().join("index");
        let copied = regular(&repository.git_dir.join("index"), LARGEST).and_then(|bytes| fs::write(&path, bytes));
        repository.git.with("GIT_INDEX_FILE", path.as_os_str());
        let mut index = Self { _directory: directory, path, left_out: Vec::new(), others: Vec::new() };
        // 1 means only that some file differs from it.
        let usable = copied.is_ok() && matches!(index.refresh(&repository.git)?, Some(0 | 1));
        if !usable {
            drop(fs::remove_file(&index.path));
            drop(fs::remove_file(index.path.with_extension("lock")));
            let tree = otherwise.map_or_else(|| vec!["--empty"], |commit| vec!["--reset", commit]);
            repository.git.run(WHAT).args(["read-tree"]).args(tree).slow()?.checked()?;
            index.refresh(&repository.git)?;
        }
        index.others = index.untracked(&repository.git)?;
        Ok(index)
    }

    /// Says what is not in it.
    pub fn warnings(&mut self) -> Vec<String> {
        let mut warnings = std::mem::take(&mut self.left_out);
        if warnings.len() >= MOST_NAMED {
            warnings.push("there may be more files that could not be taken".to_owned());
        }
        warnings
    }

    fn leave_out(&mut self, why: String) {
        if self.left_out.len() < MOST_NAMED {
            self.left_out.push(why);
        }
    }

    fn refresh(&self, git: &Git) -> Result<Option<i32>, Error> {
        Ok(git.run(WHAT).args(["update-index", "-q", "--unmerged", "--refresh"]).slow()?.code())
    }

    /// Takes the contents of all files in: git writes them into its objects.
    pub fn add_everything(&mut self, git: &Git) -> Result<(), Error> {
        let tracked = git.run(WHAT).args(["add", "--update", "--ignore-errors", "--", "."]).slow()?;
        if !tracked.succeeded() {
            // Each file that git could not read is named in its words; all others are in.
            self.leave_out(tracked.detail());
        }
        let others = std::mem::take(&mut self.others);
        self.feed(&others, &|names| {
            let run = git.run(WHAT).args(["update-index", "--add", "--replace", "-z", "--stdin"]);
            let answer = run.input(&lines(names, b""))?.slow()?;
            Ok(answer.succeeded() && !answer.mentions("Ignoring path"))
        })
    }

    /// Takes only names in: git then compares what is in the workspace, and writes nothing.
    pub fn name_everything(&mut self, git: &Git) -> Result<(), Error> {
        let unmerged = git.run(WHAT).args(["ls-files", "--unmerged", "-z"]).slow()?.checked()?;
        let mut names: Vec<Name> = records(&unmerged.stdout)
            .filter_map(|record| Some(record[record.iter().position(|byte| *byte == b'\t')? + 1..].to_vec()))
            .collect();
        names.dedup();
        let nothing = git.run(WHAT).args(["hash-object", "--stdin"]).quick()?.checked()?.text();
        let removed = format!("0 {} 0\t", "0".repeat(nothing.len()));
        let run = git.run(WHAT).args(["update-index", "-z", "--index-info"]);
        run.input(&lines(&names, removed.as_bytes()))?.slow()?.checked()?;
        names.retain(|name| fs::symlink_metadata(git.place.root.join(path(name))).is_ok());
        names.append(&mut self.others);
        // The contents are not these, which git finds out when it looks at the file.
        let added = format!("100644 {nothing} 0\t");
        self.feed(&names, &|names| {
            let run = git.run(WHAT).args(["update-index", "-z", "--index-info"]);
            run.input(&lines(names, added.as_bytes()))?.slow().map(|answer| answer.succeeded())
        })
    }

    /// Gives git all names at once. If it refuses, the ones that it refuses are found by halving, and left out.
    fn feed(&mut self, names: &[Name], give: &dyn Fn(&[Name]) -> Result<bool, Error>) -> Result<(), Error> {
        if names.is_empty() || give(names)? {
            return Ok(());
        }
        if self.left_out.len() >= MOST_NAMED {
            // Git has taken of these what it can, and there is no end of what it cannot.
            return Ok(());
        }
        if let [name] = names {
            self.leave_out(format!("git does not take a file named {:?}", String::from_utf8_lossy(name)));
            return Ok(());
        }
        let (first, second) = names.split_at(names.len() / 2);
        self.feed(first, give)?;
        self.feed(second, give)
    }

    /// Files that are in no commit and are not ignored, those in repositories of their own included.
    fn untracked(&mut self, git: &Git) -> Result<Vec<Name>, Error> {
        let listed = git.run(WHAT).args(["ls-files", "--others", "--exclude-standard", "-z"]).slow()?.checked()?;
        let mut files = Vec::new();
        self.sort(git, b"", &listed.stdout, 0, &mut files)?;
        Ok(files)
    }

    fn sort(
        &mut self,
        git: &Git,
        prefix: &[u8],
        listed: &[u8],
        depth: usize,
        files: &mut Vec<Name>,
    ) -> Result<(), Error> {
        for record in records(listed) {
            let name = [prefix, record].concat();
            if name.ends_with(b"/") {
                self.nested(git, &name, depth, files)?;
            } else if can_be_read(&git.place.root.join(path(&name))) {
                files.push(name);
            } else if depth == 0 || fs::symlink_metadata(git.place.root.join(path(&name))).is_ok() {
                self.leave_out(format!("{:?} cannot be read", String::from_utf8_lossy(&name)));
            }
        }
        Ok(())
    }

    /// A repository that the agent made in the workspace. Git would keep only a pointer to its commit, which no
    /// one else has; its files are what the user wants.
    fn nested(&mut self, git: &Git, name: &[u8], depth: usize, files: &mut Vec<Name>) -> Result<(), Error> {
        let root = git.place.root.join(path(name));
        let listed = git.run_in(&root, WHAT).env("GIT_INDEX_FILE", root.join(".git/index"));
        let listed = listed.args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"]).slow()?;
        if depth < DEEPEST && listed.succeeded() {
            self.sort(git, name, &listed.stdout, depth + 1, files)
        } else {
            self.leave_out(format!("the repository {:?} cannot be read", String::from_utf8_lossy(name)));
            Ok(())
        }
    }
}

fn records(listed: &[u8]) -> impl Iterator<Item = &[u8]> {
    listed.split(|byte| *byte == 0).filter(|record| !record.is_empty())
}

fn lines(names: &[Name], prefix: &[u8]) -> Vec<u8> {
    names.iter().flat_map(|name| [prefix, name, b"\0"].concat()).collect()
}

fn path(name: &[u8]) -> PathBuf {
    OsString::from_vec(name.to_vec()).into()
}

fn can_be_read(path: &Path) -> bool {
    let Ok(entry) = fs::symlink_metadata(path) else { return false };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    entry.is_symlink() || entry.is_file() && rustix::fs::open(path, flags, Mode::empty()).is_ok()
}
