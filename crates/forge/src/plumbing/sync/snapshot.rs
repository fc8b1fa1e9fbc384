//! The current files of a directory as a git tree, through an index that only Atoll uses.
//!
//! The index stays between snapshots, so git reads only files that changed. The tree contains every file that git does
//! not ignore, the contents of nested repositories, and a marker for each empty directory.

use super::markers::EMPTY_DIRECTORY_MARKER;
use super::run_git::{RunGit, split_records};
use crate::plumbing::GitFailure;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const READING: &str = "reading the worktree";
/// Maximum depth of nested repositories.
const MAX_NESTING: usize = 8;
const MAX_WARNINGS: usize = 50;
const MAX_EMPTY_DIRECTORIES: usize = 100_000;

/// Settings of commands that write the index.
const INDEX_SETTINGS: [&str; 12] = [
    "-c",
    "core.untrackedCache=true",
    "-c",
    "index.skipHash=true",
    "-c",
    "index.version=4",
    "-c",
    "core.splitIndex=false",
    "-c",
    "core.looseCompression=0",
    "-c",
    "core.safecrlf=false",
];

type Name = Vec<u8>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    pub tree: String,
    /// Files that the tree lacks.
    pub warnings: Vec<String>,
}

/// Takes a snapshot of the files below `root`.
pub fn take_snapshot<G: RunGit>(git: &G, root: &Path) -> Result<Snapshot, G::Error> {
    // The walk takes as long as git needs, and both only read the directories.
    let (added, found) = std::thread::scope(|scope| {
        let walk = scope.spawn(|| find_empty_directories(root));
        let added = add_everything(git, root);
        (added, walk.join())
    });
    let mut warnings = added?;
    warnings.truncate(MAX_WARNINGS);
    let found = found.map_err(|_| GitFailure { what: READING, detail: "a thread panicked".to_owned() })?;
    let mut empty = leave_out_ignored(git, found)?;
    if !empty.is_empty() {
        // The directory of a submodule that is not checked out.
        let links: BTreeSet<Name> = list_links(git)?.into_iter().collect();
        empty.retain(|name| !links.contains(name));
    }
    mark_empty_directories(git, &empty)?;
    let tree = git.run_git(READING, &["write-tree"], None)?.require_success()?.text();
    Ok(Snapshot { tree, warnings })
}

/// Brings the index up to date and returns warnings.
fn add_everything<G: RunGit>(git: &G, root: &Path) -> Result<Vec<String>, G::Error> {
    let arguments = [INDEX_SETTINGS.as_slice(), &["add", "--all", "--sparse", "--ignore-errors"]].concat();
    let added = git.run_git(READING, &arguments, None)?;
    if added.is_success() && !added.stderr_contains("embedded git repository") {
        return Ok(Vec::new());
    }
    add_with_nested_repositories(git, root)
}

/// Adds the files of nested repositories, of which git would add only a link, and leaves out what git rejects.
fn add_with_nested_repositories<G: RunGit>(git: &G, root: &Path) -> Result<Vec<String>, G::Error> {
    let submodules: BTreeSet<Name> = git.list_submodules()?.into_iter().collect();
    let mut links = list_links(git)?;
    links.retain(|name| !submodules.contains(name));
    if !links.is_empty() {
        let remove = ["update-index", "--force-remove", "-z", "--stdin"];
        git.run_git(READING, &remove, Some(&join_names(&links, b"")))?.require_success()?;
    }
    let mut warnings = Vec::new();
    let update = [INDEX_SETTINGS.as_slice(), &["add", "--update", "--ignore-errors", "--sparse"]].concat();
    let updated = git.run_git(READING, &update, None)?;
    if !updated.is_success() {
        // Git names each file that it could not read, and adds all others.
        warnings.push(updated.failure_detail());
    }
    let listing = ["ls-files", "--others", "--exclude-standard", "-z"];
    let listed = git.run_git(READING, &listing, None)?.require_success()?;
    let mut files = Vec::new();
    expand_nested(git, root, b"", &listed.stdout, 0, &mut files, &mut warnings)?;
    add_names(git, &files, &mut warnings)?;
    Ok(warnings)
}

/// Collects file names; a name that ends with `/` is a nested repository.
fn expand_nested<G: RunGit>(
    git: &G,
    root: &Path,
    prefix: &[u8],
    listed: &[u8],
    depth: usize,
    files: &mut Vec<Name>,
    warnings: &mut Vec<String>,
) -> Result<(), G::Error> {
    for record in split_records(listed) {
        let name = [prefix, record].concat();
        let path = root.join(OsStr::from_bytes(&name));
        if !name.ends_with(b"/") {
            if depth == 0 || fs::symlink_metadata(&path).is_ok_and(|found| !found.is_dir()) {
                files.push(name);
            }
            continue;
        }
        let listing = ["ls-files", "--cached", "--others", "--exclude-standard", "-z"];
        let nested = git.run_nested(&path, READING, &listing)?;
        if depth < MAX_NESTING && nested.is_success() {
            expand_nested(git, root, &name, &nested.stdout, depth + 1, files, warnings)?;
        } else {
            warnings.push(format!("the repository {:?} cannot be read", String::from_utf8_lossy(&name)));
        }
    }
    Ok(())
}

/// Adds files; on failure, bisects to leave out the names that git rejects.
fn add_names<G: RunGit>(git: &G, names: &[Name], warnings: &mut Vec<String>) -> Result<(), G::Error> {
    if names.is_empty() {
        return Ok(());
    }
    let add = [INDEX_SETTINGS.as_slice(), &["update-index", "--add", "--replace", "-z", "--stdin"]].concat();
    let answer = git.run_git(READING, &add, Some(&join_names(names, b"")))?;
    if (answer.is_success() && !answer.stderr_contains("Ignoring path")) || warnings.len() >= MAX_WARNINGS {
        return Ok(());
    }
    if let [name] = names {
        warnings.push(format!("git does not take the file {:?}", String::from_utf8_lossy(name)));
        return Ok(());
    }
    let (first, second) = names.split_at(names.len() / 2);
    add_names(git, first, warnings)?;
    add_names(git, second, warnings)
}

/// Lists the links to other repositories in the index.
pub fn list_links<G: RunGit>(git: &G) -> Result<Vec<Name>, G::Error> {
    let listed = git.run_git(READING, &["ls-files", "--stage", "-z"], None)?.require_success()?;
    let links = split_records(&listed.stdout).filter(|record| record.starts_with(b"160000 "));
    Ok(links.filter_map(|record| Some(record[record.iter().position(|byte| *byte == b'\t')? + 1..].to_vec())).collect())
}

/// Finds the directories without any entry. It follows no links and looks into no repository.
fn find_empty_directories(root: &Path) -> Vec<Name> {
    let mut found = Vec::new();
    let mut open = vec![Vec::new()];
    while let Some(name) = open.pop() {
        let Ok(entries) = fs::read_dir(root.join(OsStr::from_bytes(&name))) else { continue };
        let mut is_empty = true;
        for entry in entries.flatten() {
            is_empty = false;
            let entry_name = entry.file_name();
            if entry_name != ".git" && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let parent = if name.is_empty() { Vec::new() } else { [&name, b"/".as_slice()].concat() };
                open.push([&parent, entry_name.as_bytes()].concat());
            }
        }
        if is_empty && !name.is_empty() && found.len() < MAX_EMPTY_DIRECTORIES {
            found.push(name);
        }
    }
    found
}

fn leave_out_ignored<G: RunGit>(git: &G, mut names: Vec<Name>) -> Result<Vec<Name>, G::Error> {
    if names.is_empty() {
        return Ok(names);
    }
    // The prefix keeps git from reading a name as a pattern.
    let checked = git.run_git(READING, &["check-ignore", "-z", "--stdin"], Some(&join_names(&names, b"./")))?;
    // Exit code 1 means that none is ignored.
    if !matches!(checked.exit_code(), Some(0 | 1)) {
        return Err(GitFailure { what: READING, detail: checked.failure_detail() }.into());
    }
    let ignored: BTreeSet<&[u8]> = split_records(&checked.stdout).filter_map(|name| name.strip_prefix(b"./")).collect();
    names.retain(|name| !ignored.contains(name.as_slice()));
    Ok(names)
}

/// Adds a marker for each directory. Git has removed the markers of the last snapshot: no such file exists.
fn mark_empty_directories<G: RunGit>(git: &G, directories: &[Name]) -> Result<(), G::Error> {
    if directories.is_empty() {
        return Ok(());
    }
    let empty = git.run_git(READING, &["hash-object", "-w", "--stdin"], Some(b""))?.require_success()?.text();
    let prefix = format!("100644 {empty} 0\t");
    let markers: Vec<Name> =
        directories.iter().map(|name| [name.as_slice(), b"/", EMPTY_DIRECTORY_MARKER].concat()).collect();
    let mark = [INDEX_SETTINGS.as_slice(), &["update-index", "-z", "--index-info"]].concat();
    git.run_git(READING, &mark, Some(&join_names(&markers, prefix.as_bytes())))?.require_success()?;
    Ok(())
}

fn join_names(names: &[Name], prefix: &[u8]) -> Vec<u8> {
    names.iter().flat_map(|name| [prefix, name, b"\0"].concat()).collect()
}
