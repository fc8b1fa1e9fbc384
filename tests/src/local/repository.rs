//! A small project in a git repository, and checks that Atoll leaves the user's checkout unchanged.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

pub struct SampleRepository {
    dir: TempDir,
}

/// The complete state of a checkout that Atoll must not change.
#[derive(Debug, PartialEq, Eq)]
pub struct CheckoutState {
    pub head: String,
    pub index: Vec<u8>,
    pub status: String,
    pub refs: BTreeMap<String, String>,
    pub config: String,
    pub files: BTreeMap<PathBuf, Vec<u8>>,
}

const SAMPLE_FILES: &[(&str, &str)] = &[
    ("calc.py", "def add(a, b):\n    return a + b\n"),
    (
        "test_calc.py",
        "import unittest\n\nfrom calc import add\n\n\nclass CalcTest(unittest.TestCase):\n    def test_add(self):\n        \
         self.assertEqual(add(2, 3), 5)\n\n\nif __name__ == \"__main__\":\n    unittest.main()\n",
    ),
    ("README.md", "# calc\n\nAdds numbers.\n"),
    ("old.txt", "no longer needed\n"),
    (".gitignore", "build/\nnode_modules/\n__pycache__/\n"),
];

/// Runs git without system and user configuration.
pub fn run_git(dir: &Path, arguments: &[&str]) -> String {
    let output = git_command(dir).args(arguments).output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn git_command(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_OPTIONAL_LOCKS", "0");
    // Some tests inspect a repository that belongs to another, unprivileged user.
    command.args(["-c", "safe.directory=*", "-c", "user.name=Tester", "-c", "user.email=tester@example.org"]);
    command.arg("-C").arg(dir);
    command
}

impl SampleRepository {
    /// Creates a small Python project with a test and one commit.
    pub fn create() -> Self {
        let dir = super::create_temp_dir("atoll-repo-");
        for (name, text) in SAMPLE_FILES {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        Self::commit_files(dir)
    }

    /// Creates a repository with the files of a directory and one commit.
    pub fn copy_of(sources: &Path) -> Self {
        let dir = super::create_temp_dir("atoll-repo-");
        let status = Command::new("cp").arg("-r").arg(sources.join(".")).arg(dir.path()).status().unwrap();
        assert!(status.success(), "cannot copy {}", sources.display());
        Self::commit_files(dir)
    }

    fn commit_files(dir: TempDir) -> Self {
        run_git(dir.path(), &["init", "-q", "-b", "main"]);
        run_git(dir.path(), &["add", "-A"]);
        run_git(dir.path(), &["commit", "-q", "-m", "Begin"]);
        Self { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn path_str(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }

    pub fn run_git(&self, arguments: &[&str]) -> String {
        run_git(self.path(), arguments)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).unwrap();
    }

    pub fn head_commit(&self) -> String {
        self.run_git(&["rev-parse", "HEAD"]).trim().to_owned()
    }

    pub fn checkout_state(&self) -> CheckoutState {
        let dot_git = self.path().join(".git");
        // Read the index before `git status` can refresh it.
        let index = std::fs::read(dot_git.join("index")).unwrap();
        let refs = self.run_git(&["for-each-ref", "--format=%(refname) %(objectname)"]);
        let refs = refs.lines().filter_map(|line| line.split_once(' '));
        let mut files = read_files(self.path());
        files.retain(|path, _| !path.starts_with(".git"));
        CheckoutState {
            head: std::fs::read_to_string(dot_git.join("HEAD")).unwrap(),
            index,
            status: self.run_git(&["status", "--porcelain", "--ignored"]),
            refs: refs.map(|(name, commit)| (name.to_owned(), commit.to_owned())).collect(),
            config: std::fs::read_to_string(dot_git.join("config")).unwrap(),
            files,
        }
    }

    /// Checks that only the branch `new_branch` was added since `before`.
    #[track_caller]
    pub fn assert_untouched(&self, before: &CheckoutState, new_branch: &str) {
        let mut now = self.checkout_state();
        let branch = now.refs.remove(&format!("refs/heads/{new_branch}"));
        assert_eq!(&now, before);
        assert!(branch.is_some(), "the branch {new_branch} is missing");
    }

    /// Reads a file at a commit, or returns `None` if the commit does not contain it.
    pub fn file_at(&self, commit: &str, file: &str) -> Option<String> {
        let output = git_command(self.path()).args(["show", &format!("{commit}:{file}")]).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    /// Checks the files of a commit out into a temporary directory and reads them.
    pub fn files_at(&self, commit: &str) -> (TempDir, BTreeMap<PathBuf, Vec<u8>>) {
        let dir = super::create_temp_dir("atoll-tree-");
        let tree = dir.path().to_str().unwrap();
        self.run_git(&["clone", "-q", "--no-hardlinks", ".", tree]);
        run_git(dir.path(), &["checkout", "-q", "--detach", commit]);
        std::fs::remove_dir_all(dir.path().join(".git")).unwrap();
        let files = read_files(dir.path());
        (dir, files)
    }

    /// Checks that a sandbox's edit events, applied to the files of `base`, produce the files of `commit`.
    #[track_caller]
    pub fn assert_edits_produce(&self, base: &str, edits: &[&Value], commit: &str) {
        let (dir, _) = self.files_at(base);
        for edit in edits {
            apply_edit(dir.path(), edit);
        }
        let (_dir, expected) = self.files_at(commit);
        assert_eq!(
            decode_files(&read_files(dir.path())),
            decode_files(&expected),
            "the edit events do not produce the commit: {edits:#?}"
        );
    }
}

fn decode_files(files: &BTreeMap<PathBuf, Vec<u8>>) -> BTreeMap<&Path, String> {
    files.iter().map(|(path, bytes)| (path.as_path(), String::from_utf8_lossy(bytes).into_owned())).collect()
}

fn apply_edit(dir: &Path, edit: &Value) {
    let path = edit["file_path"].as_str().unwrap();
    if let Some(old) = edit["old_path"].as_str() {
        std::fs::create_dir_all(dir.join(path).parent().unwrap()).unwrap();
        std::fs::rename(dir.join(old), dir.join(path)).unwrap();
    }
    let diff = edit["full_diff"].as_str().unwrap();
    if !diff.contains("@@") {
        match edit["change_type"].as_str().unwrap() {
            "deleted" => std::fs::remove_file(dir.join(path)).unwrap(),
            "created" => std::fs::write(dir.join(path), "").unwrap(),
            _ => {}
        }
        return;
    }
    let file = super::create_temp_dir("atoll-patch-");
    let patch = file.path().join("patch");
    // A renamed file is at its new path already.
    let diff = match edit["old_path"].as_str() {
        Some(old) => diff.replacen(&format!("a/{old}"), &format!("a/{path}"), 1),
        None => diff.to_owned(),
    };
    let body: String = diff.lines().filter(|line| !line.starts_with("rename ")).flat_map(|line| [line, "\n"]).collect();
    std::fs::write(&patch, body).unwrap();
    run_git(dir, &["apply", "--whitespace=nowarn", patch.to_str().unwrap()]);
}

/// Reads all files under a directory. The content of a symbolic link is its target.
pub fn read_files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![dir.to_owned()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(&next).unwrap().flatten() {
            let (kind, path) = (entry.file_type().unwrap(), entry.path());
            let name = path.strip_prefix(dir).unwrap().to_owned();
            if kind.is_dir() {
                open.push(path);
            } else if kind.is_symlink() {
                found.insert(name, std::fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes());
            } else {
                found.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    found
}
