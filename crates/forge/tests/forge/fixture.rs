//! A directory with test repositories, and plain git to create and inspect them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

pub struct TestRepositories {
    directory: TempDir,
}

impl TestRepositories {
    pub fn new() -> Self {
        let world_readable = fs::Permissions::from_mode(0o755);
        Self { directory: tempfile::Builder::new().permissions(world_readable).tempdir().unwrap() }
    }

    pub fn path(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.directory.path().join(Path::new(name.as_ref()))
    }

    /// The scratch directory, created on first use.
    pub fn scratch_dir(&self) -> PathBuf {
        let scratch = self.path("scratch");
        fs::create_dir_all(&scratch).unwrap();
        scratch
    }

    /// A repository with two commits on `main`.
    pub fn create_repository(&self, name: &str) -> PathBuf {
        self.create_repository_with(name, &[])
    }

    pub fn create_repository_with(&self, name: &str, options: &[&str]) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        git(&path, [&["init", "-q", "-b", "main"], options].concat());
        write_file(&path, "README.md", "first\n");
        commit_all(&path, "first");
        write_file(&path, "README.md", "first\nsecond\n");
        write_file(&path, "src/code.rs", "fn main() {}\n");
        commit_all(&path, "second");
        path
    }

    /// Creates a repository from the bundle's pack, as the git of a sandbox does.
    pub fn create_sandbox_clone(&self, bundle: &Path, format: &str) -> PathBuf {
        let path = self.path("inside");
        fs::create_dir_all(&path).unwrap();
        git(&path, ["init", "-q", "-b", "task", &format!("--object-format={format}")]);
        let bytes = fs::read(bundle).unwrap();
        let end = bytes.windows(2).position(|pair| pair == b"\n\n").unwrap();
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        git_with_input(&path, ["index-pack", "--stdin"], &bytes[end + 2..]);
        let ids_of_refs = |prefix: &str| {
            let lines = head.lines().filter_map(|line| line.split_once(' '));
            lines.filter(|(_, name)| name.starts_with(prefix)).map(|(id, _)| id.to_owned()).collect::<Vec<_>>()
        };
        let shallow: String = ids_of_refs("refs/atoll/shallow/").iter().map(|id| format!("{id}\n")).collect();
        if !shallow.is_empty() {
            fs::write(path.join(".git/shallow"), shallow).unwrap();
        }
        let base = ids_of_refs("refs/atoll/base").remove(0);
        git(&path, ["reset", "-q", "--hard", &base]);
        path
    }

    /// Creates the bundle that a sandbox returns: the commits of HEAD that `base` does not have.
    pub fn bundle_result(&self, inside: &Path, base: &str) -> PathBuf {
        let bundle = self.path("result.bundle");
        git(inside, ["update-ref", "refs/atoll/result", "HEAD"]);
        let range = format!("^{base}");
        git(
            inside,
            [
                OsStr::new("bundle"),
                "create".as_ref(),
                "-q".as_ref(),
                bundle.as_os_str(),
                "refs/atoll/result".as_ref(),
                range.as_ref(),
            ],
        );
        bundle
    }
}

fn git_command(directory: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(directory).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command.envs([("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CONFIG_GLOBAL", "/dev/null"), ("HOME", "/nonexistent")]);
    command.envs([("GIT_AUTHOR_NAME", "Ann"), ("GIT_AUTHOR_EMAIL", "ann@example.org"), ("GIT_OPTIONAL_LOCKS", "0")]);
    command.envs([("GIT_COMMITTER_NAME", "Ann"), ("GIT_COMMITTER_EMAIL", "ann@example.org")]);
    command.args(["-c", "safe.directory=*", "-c", "protocol.file.allow=always"]);
    command
}

pub fn try_git<S: AsRef<OsStr>>(directory: &Path, arguments: impl IntoIterator<Item = S>) -> Output {
    git_command(directory).args(arguments).output().unwrap()
}

pub fn git<S: AsRef<OsStr>>(directory: &Path, arguments: impl IntoIterator<Item = S>) -> String {
    let output = try_git(directory, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

pub fn git_with_input<S: AsRef<OsStr>>(
    directory: &Path,
    arguments: impl IntoIterator<Item = S>,
    input: &[u8],
) -> String {
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, input).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    let output = git_command(directory).args(arguments).stdin(Stdio::from(file)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

pub fn write_file(directory: &Path, name: impl AsRef<Path>, text: impl AsRef<[u8]>) {
    let path = directory.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Commits everything and returns the commit.
pub fn commit_all(directory: &Path, message: &str) -> String {
    git(directory, ["add", "-A"]);
    git(directory, ["commit", "-q", "--allow-empty", "-m", message]);
    git(directory, ["rev-parse", "HEAD"])
}

/// Writes files with unusual names and types.
pub fn write_awkward_files(directory: &Path) {
    for name in ["with space", "two\nlines", "-dash", "größe/日本", "quote\"back\\slash", "tab\there"] {
        write_file(directory, name, format!("{name}\n"));
    }
    write_file(directory, "bin/run", "#!/bin/sh\n");
    fs::set_permissions(directory.join("bin/run"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("../README.md", directory.join("bin/link")).unwrap();
    symlink("/nowhere/at all", directory.join("dangling")).unwrap();
    write_file(directory, "picture", [0, 159, 146, 150, 0, 1]);
    write_file(directory, "empty", "");
}

/// Everything in the user's repository that must not change: files, index, HEAD, configuration, refs, logs.
#[derive(Debug, PartialEq, Eq)]
pub struct RepositoryState {
    status: String,
    refs: Vec<String>,
    files: BTreeMap<PathBuf, (u32, i64, i64, Vec<u8>)>,
}

/// Reads the state without objects and without the branch `ignored_branch` and its log.
pub fn repository_state(repository: &Path, ignored_branch: Option<&str>) -> RepositoryState {
    let mut files = BTreeMap::new();
    collect_files(repository, repository, &mut files);
    let is_excluded = |path: &Path| {
        let text = path.to_string_lossy().into_owned();
        let is_ignored = ignored_branch.is_some_and(|branch| text.ends_with(&format!("refs/heads/{branch}")));
        is_ignored || text.contains("/objects/") || text.starts_with("objects/")
    };
    files.retain(|path, _| !is_excluded(path));
    let refs = git(repository, ["for-each-ref", "--format=%(objectname) %(refname)"]);
    let ignored_ref = ignored_branch.map(|branch| format!(" refs/heads/{branch}"));
    let refs = refs
        .lines()
        .filter(|line| !ignored_ref.as_ref().is_some_and(|name| line.ends_with(name.as_str())))
        .map(str::to_owned)
        .collect();
    let bare = git(repository, ["rev-parse", "--is-bare-repository"]) == "true";
    let status = if bare {
        String::new()
    } else {
        git(repository, ["status", "--porcelain=v2", "--branch", "-z", "-uall", "--ignored"])
    };
    RepositoryState { status, refs, files }
}

fn collect_files(root: &Path, directory: &Path, files: &mut BTreeMap<PathBuf, (u32, i64, i64, Vec<u8>)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        let bytes = if metadata.is_dir() {
            collect_files(root, &path, files);
            continue;
        } else if metadata.is_symlink() {
            fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
        } else {
            fs::read(&path).unwrap()
        };
        let name = path.strip_prefix(root).unwrap().to_owned();
        files.insert(name, (metadata.mode(), metadata.mtime(), metadata.mtime_nsec(), bytes));
    }
}
