//! A small project in a git repository, as a user has one, and what must not change in it.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

pub struct Repository {
    dir: TempDir,
}

/// Everything of a checkout that a user would miss.
#[derive(Debug, PartialEq, Eq)]
pub struct Checkout {
    pub head: String,
    pub index: Vec<u8>,
    pub status: String,
    pub refs: BTreeMap<String, String>,
    pub config: String,
    pub files: BTreeMap<PathBuf, Vec<u8>>,
}

const FILES: &[(&str, &str)] = &[
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

/// Git without anybody's settings.
pub fn git(dir: &Path, arguments: &[&str]) -> String {
    let output = git_command(dir).args(arguments).output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn git_command(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_OPTIONAL_LOCKS", "0");
    // A repository of somebody else is looked at as well, in tests that make one for an ordinary user.
    command.args(["-c", "safe.directory=*", "-c", "user.name=Tester", "-c", "user.email=tester@example.org"]);
    command.arg("-C").arg(dir);
    command
}

impl Repository {
    /// A small python project with a test, one commit.
    pub fn sample() -> Self {
        let dir = super::directory("atoll-repo-");
        for (name, text) in FILES {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        git(dir.path(), &["init", "-q", "-b", "main"]);
        git(dir.path(), &["add", "-A"]);
        git(dir.path(), &["commit", "-q", "-m", "Begin"]);
        Self { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn text(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }

    pub fn git(&self, arguments: &[&str]) -> String {
        git(self.path(), arguments)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).unwrap();
    }

    pub fn head(&self) -> String {
        self.git(&["rev-parse", "HEAD"]).trim().to_owned()
    }

    pub fn checkout(&self) -> Checkout {
        let dot_git = self.path().join(".git");
        // Before anything that could refresh it.
        let index = std::fs::read(dot_git.join("index")).unwrap();
        let refs = self.git(&["for-each-ref", "--format=%(refname) %(objectname)"]);
        let refs = refs.lines().filter_map(|line| line.split_once(' '));
        let mut files = files(self.path());
        files.retain(|path, _| !path.starts_with(".git"));
        Checkout {
            head: std::fs::read_to_string(dot_git.join("HEAD")).unwrap(),
            index,
            status: self.git(&["status", "--porcelain", "--ignored"]),
            refs: refs.map(|(name, commit)| (name.to_owned(), commit.to_owned())).collect(),
            config: std::fs::read_to_string(dot_git.join("config")).unwrap(),
            files,
        }
    }

    /// The checkout is as it was `before`, but for the branch of this name.
    #[track_caller]
    pub fn is_untouched(&self, before: &Checkout, but: &str) {
        let mut now = self.checkout();
        let branch = now.refs.remove(&format!("refs/heads/{but}"));
        assert_eq!(&now, before);
        assert!(branch.is_some(), "there is a branch {but}");
    }

    /// A file as it is at a commit; nothing if it isn't there.
    pub fn show(&self, commit: &str, file: &str) -> Option<String> {
        let output = git_command(self.path()).args(["show", &format!("{commit}:{file}")]).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    /// The files of a commit, in a directory of their own.
    pub fn files_at(&self, commit: &str) -> (TempDir, BTreeMap<PathBuf, Vec<u8>>) {
        let dir = super::directory("atoll-tree-");
        let tree = dir.path().to_str().unwrap();
        self.git(&["clone", "-q", "--no-hardlinks", ".", tree]);
        git(dir.path(), &["checkout", "-q", "--detach", commit]);
        std::fs::remove_dir_all(dir.path().join(".git")).unwrap();
        let files = files(dir.path());
        (dir, files)
    }

    /// What a sandbox tells of its edits, laid upon the files that it began with, is what came out.
    #[track_caller]
    pub fn edits_give(&self, base: &str, edits: &[&Value], commit: &str) {
        let (dir, _) = self.files_at(base);
        for edit in edits {
            apply(dir.path(), edit);
        }
        let (_kept, wanted) = self.files_at(commit);
        assert_eq!(texts(&files(dir.path())), texts(&wanted), "the edits are the change: {edits:#?}");
    }
}

fn texts(files: &BTreeMap<PathBuf, Vec<u8>>) -> BTreeMap<&Path, String> {
    files.iter().map(|(path, bytes)| (path.as_path(), String::from_utf8_lossy(bytes).into_owned())).collect()
}

fn apply(dir: &Path, edit: &Value) {
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
    let file = super::directory("atoll-patch-");
    let patch = file.path().join("patch");
    // A renamed file stands at its new place by now.
    let diff = match edit["old_path"].as_str() {
        Some(old) => diff.replacen(&format!("a/{old}"), &format!("a/{path}"), 1),
        None => diff.to_owned(),
    };
    let body: String = diff.lines().filter(|line| !line.starts_with("rename ")).flat_map(|line| [line, "\n"]).collect();
    std::fs::write(&patch, body).unwrap();
    git(dir, &["apply", "--whitespace=nowarn", patch.to_str().unwrap()]);
}

/// All files under a directory with what they hold; a link holds its target.
pub fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
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
