//! A second index of the current files in the workspace. The agent's own index stays unchanged.
//!
//! It starts as a copy of the agent's, so that git need not read every file. The copy has the original's modification time:
//! git reads a file again if it is not older than its index, and a newer copy would hide the agent's last edits.

use super::command::Git;
use super::error::Error;
use super::repository::{Repository, read_regular_file};
use super::sparse_checkout;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const WHAT: &str = "looking through the workspace";
const MAX_INDEX_BYTES: u64 = 1 << 30;
/// Maximum depth of nested repositories.
const MAX_NESTING: usize = 8;
/// Maximum number of warnings about files that cannot be added.
const MAX_WARNINGS: usize = 50;

/// A path as git prints it, relative to the workspace.
type Name = Vec<u8>;

#[derive(Debug)]
pub(super) struct Index {
    /// The index's directory, removed with it.
    _directory: TempDir,
    pub path: PathBuf,
    /// The first files that could not be added.
    left_out: Vec<String>,
    others: Vec<Name>,
}

impl Index {
    /// Makes all later commands of this repository use the second index.
    pub fn new(repository: &mut Repository, otherwise: Option<&str>) -> Result<Self, Error> {
        let failed = |source| Error::Io { what: WHAT, source };
        let directory = tempfile::tempdir_in(&repository.git.workspace.temporary).map_err(failed)?;
        let path = directory.path().join("index");
        let copied = copy_index(&repository.git_dir.join("index"), &path);
        repository.git.set_variable("GIT_INDEX_FILE", path.as_os_str());
        let mut index = Self { _directory: directory, path, left_out: Vec::new(), others: Vec::new() };
        // 1 only means that some file differs.
        let usable = copied.is_ok()
            && clear_hiding_flags(repository)?
            && matches!(index.refresh_index(&repository.git)?, Some(0 | 1));
        if !usable {
            drop(fs::remove_file(&index.path));
            drop(fs::remove_file(index.path.with_extension("lock")));
            let tree = otherwise.map_or_else(|| vec!["--empty"], |commit| vec!["--reset", commit]);
            repository.git.command(WHAT).args(["read-tree"]).args(tree).run_slow()?.require_success()?;
            if is_sparse(repository) {
                sparse_checkout::skip_absent_files(&repository.git)?;
            }
            index.refresh_index(&repository.git)?;
        }
        index.others = index.list_untracked(&repository.git)?;
        Ok(index)
    }

    /// Warnings about files that are not in the index.
    pub fn warnings(&mut self) -> Vec<String> {
        let mut warnings = std::mem::take(&mut self.left_out);
        if warnings.len() >= MAX_WARNINGS {
            warnings.push("there may be more files that could not be taken".to_owned());
        }
        warnings
    }

    fn add_warning(&mut self, why: String) {
        if self.left_out.len() < MAX_WARNINGS {
            self.left_out.push(why);
        }
    }

    fn refresh_index(&self, git: &Git) -> Result<Option<i32>, Error> {
        Ok(git.command(WHAT).args(["update-index", "-q", "--unmerged", "--refresh"]).run_slow()?.exit_code())
    }

    /// Adds the contents of all files to git's objects.
    pub fn add_everything(&mut self, git: &Git) -> Result<(), Error> {
        let tracked = git.command(WHAT).args(["add", "--update", "--ignore-errors", "--", "."]).run_slow()?;
        if !tracked.is_success() {
            // Git names each file that it could not read, and adds all others.
            self.add_warning(tracked.failure_detail());
        }
        let others = std::mem::take(&mut self.others);
        self.pass_names(&others, &|names| {
            let run = git.command(WHAT).args(["update-index", "--add", "--replace", "-z", "--stdin"]);
            let answer = run.input(&join_names(names, b""))?.run_slow()?;
            Ok(answer.is_success() && !answer.stderr_contains("Ignoring path"))
        })
    }

    /// Adds only names: git then compares the workspace and writes nothing.
    pub fn name_everything(&mut self, git: &Git) -> Result<(), Error> {
        let unmerged = git.command(WHAT).args(["ls-files", "--unmerged", "-z"]).run_slow()?.require_success()?;
        let mut names: Vec<Name> = split_records(&unmerged.stdout)
            .filter_map(|record| Some(record[record.iter().position(|byte| *byte == b'\t')? + 1..].to_vec()))
            .collect();
        names.dedup();
        let nothing = git.command(WHAT).args(["hash-object", "--stdin"]).run_quick()?.require_success()?.text();
        let removed = format!("0 {} 0\t", "0".repeat(nothing.len()));
        let run = git.command(WHAT).args(["update-index", "-z", "--index-info"]);
        run.input(&join_names(&names, removed.as_bytes()))?.run_slow()?.require_success()?;
        names.retain(|name| fs::symlink_metadata(git.workspace.root.join(to_path(name))).is_ok());
        names.append(&mut self.others);
        // The contents are placeholders; git reads the file when it compares.
        let added = format!("100644 {nothing} 0\t");
        self.pass_names(&names, &|names| {
            let run = git.command(WHAT).args(["update-index", "-z", "--index-info"]);
            run.input(&join_names(names, added.as_bytes()))?.run_slow().map(|answer| answer.is_success())
        })
    }

    /// Passes all names to git; on failure, bisects to leave out the names that git rejects.
    fn pass_names(&mut self, names: &[Name], give: &dyn Fn(&[Name]) -> Result<bool, Error>) -> Result<(), Error> {
        if names.is_empty() || give(names)? {
            return Ok(());
        }
        if self.left_out.len() >= MAX_WARNINGS {
            // Too many rejected names: stop bisecting.
            return Ok(());
        }
        if let [name] = names {
            self.add_warning(format!("git does not take a file named {:?}", String::from_utf8_lossy(name)));
            return Ok(());
        }
        let (first, second) = names.split_at(names.len() / 2);
        self.pass_names(first, give)?;
        self.pass_names(second, give)
    }

    /// Lists untracked files that are not ignored, including those in nested repositories.
    fn list_untracked(&mut self, git: &Git) -> Result<Vec<Name>, Error> {
        let listed = git
            .command(WHAT)
            .args(["ls-files", "--others", "--exclude-standard", "-z"])
            .run_slow()?
            .require_success()?;
        let mut files = Vec::new();
        self.classify_names(git, b"", &listed.stdout, 0, &mut files)?;
        Ok(files)
    }

    fn classify_names(
        &mut self,
        git: &Git,
        prefix: &[u8],
        listed: &[u8],
        depth: usize,
        files: &mut Vec<Name>,
    ) -> Result<(), Error> {
        for record in split_records(listed) {
            let name = [prefix, record].concat();
            if name.ends_with(b"/") {
                self.list_nested(git, &name, depth, files)?;
            } else if is_readable(&git.workspace.root.join(to_path(&name))) {
                files.push(name);
            } else if depth == 0 || fs::symlink_metadata(git.workspace.root.join(to_path(&name))).is_ok() {
                self.add_warning(format!("{:?} cannot be read", String::from_utf8_lossy(&name)));
            }
        }
        Ok(())
    }

    /// Lists the files of a nested repository. Git would add only a link to its commit, which exists nowhere else.
    fn list_nested(&mut self, git: &Git, name: &[u8], depth: usize, files: &mut Vec<Name>) -> Result<(), Error> {
        let root = git.workspace.root.join(to_path(name));
        let listed = git.command_in(&root, WHAT).env("GIT_INDEX_FILE", root.join(".git/index"));
        let listed = listed.args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"]).run_slow()?;
        if depth < MAX_NESTING && listed.is_success() {
            self.classify_names(git, name, &listed.stdout, depth + 1, files)
        } else {
            self.add_warning(format!("the repository {:?} cannot be read", String::from_utf8_lossy(name)));
            Ok(())
        }
    }
}

/// Copies an index together with its modification time.
pub(super) fn copy_index(from: &Path, to: &Path) -> io::Result<()> {
    let (bytes, modified) = read_regular_file(from, MAX_INDEX_BYTES)?;
    let mut copy = File::create(to)?;
    copy.write_all(&bytes)?;
    copy.set_modified(modified)
}

/// Clears the flags that make git trust an entry without looking at its file; false if git cannot read the index.
///
/// A file outside of a sparse checkout keeps its flag while it is absent: it is not deleted.
fn clear_hiding_flags(repository: &Repository) -> Result<bool, Error> {
    let git = &repository.git;
    let listed = git.command(WHAT).args(["ls-files", "-v", "-z"]).run_slow()?;
    if !listed.is_success() {
        return Ok(false);
    }
    let is_sparse = is_sparse(repository);
    let (mut assumed, mut skipped) = (Vec::new(), Vec::new());
    for record in split_records(&listed.stdout) {
        let [tag, b' ', name @ ..] = record else { continue };
        if tag.is_ascii_lowercase() {
            assumed.push(name.to_vec());
        }
        let is_present = || fs::symlink_metadata(git.workspace.root.join(to_path(name))).is_ok();
        if tag.eq_ignore_ascii_case(&b'S') && (!is_sparse || is_present()) {
            skipped.push(name.to_vec());
        }
    }
    for (option, names) in [("--no-assume-unchanged", assumed), ("--no-skip-worktree", skipped)] {
        if !names.is_empty() {
            let run = git.command(WHAT).args(["update-index", option, "-z", "--stdin"]);
            run.input(&join_names(&names, b""))?.run_slow()?.require_success()?;
        }
    }
    Ok(true)
}

fn is_sparse(repository: &Repository) -> bool {
    fs::symlink_metadata(repository.git_dir.join("info/sparse-checkout")).is_ok()
}

pub(super) fn split_records(listed: &[u8]) -> impl Iterator<Item = &[u8]> {
    listed.split(|byte| *byte == 0).filter(|record| !record.is_empty())
}

fn join_names(names: &[Name], prefix: &[u8]) -> Vec<u8> {
    names.iter().flat_map(|name| [prefix, name, b"\0"].concat()).collect()
}

pub(super) fn to_path(name: &[u8]) -> PathBuf {
    OsString::from_vec(name.to_vec()).into()
}

fn is_readable(path: &Path) -> bool {
    let Ok(entry) = fs::symlink_metadata(path) else { return false };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    entry.is_symlink() || entry.is_file() && rustix::fs::open(path, flags, Mode::empty()).is_ok()
}
