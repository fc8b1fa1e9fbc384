//! Git operations of the double on a bare repository.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A bare repository.
#[derive(Debug, Clone)]
pub struct BareRepository {
    git_dir: PathBuf,
}

impl BareRepository {
    pub fn new(git_dir: &Path) -> Self {
        Self { git_dir: git_dir.to_owned() }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut git = Command::new("git");
        git.arg("--git-dir").arg(&self.git_dir).args(arguments).env_clear();
        git.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        for role in ["AUTHOR", "COMMITTER"] {
            git.env(format!("GIT_{role}_NAME"), "forge").env(format!("GIT_{role}_EMAIL"), "forge@localhost");
        }
        git.output().unwrap()
    }

    /// The output of a command that must succeed.
    pub fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    pub fn branch_commit(&self, branch: &str) -> Option<String> {
        let output = self.run(&["rev-parse", "--verify", "--quiet", &format!("refs/heads/{branch}")]);
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    pub fn default_branch(&self) -> String {
        self.text(&["symbolic-ref", "--short", "HEAD"])
    }

    /// The tree of a merge; `None` if it conflicts.
    fn merge_tree(&self, base: &str, head: &str) -> Option<String> {
        let output = self.run(&["merge-tree", "--write-tree", base, head]);
        let first = String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned();
        output.status.success().then_some(first)
    }

    pub fn can_merge(&self, base: &str, head: &str) -> bool {
        self.merge_tree(base, head).is_some()
    }

    pub fn has_commits(&self, base: &str, head: &str) -> bool {
        self.text(&["rev-list", "--count", &format!("{base}..{head}")]) != "0"
    }

    /// Merges `head` into the branch `base`. Returns the new commit; `None` on a conflict.
    pub fn merge(&self, base: &str, head: &str, method: &str, title: &str) -> Option<String> {
        let before = self.branch_commit(base)?;
        let tree = self.merge_tree(&before, head)?;
        let mut arguments = vec!["commit-tree", tree.as_str(), "-m", title, "-p", before.as_str()];
        if method == "merge" {
            arguments.extend(["-p", head]);
        }
        let commit = self.text(&arguments);
        self.text(&["update-ref", &format!("refs/heads/{base}"), &commit, &before]);
        Some(commit)
    }

    pub fn create_ref(&self, name: &str, commit: &str) -> bool {
        self.run(&["update-ref", name, commit, &"0".repeat(40)]).status.success()
    }

    /// Deletes a ref. Returns false if there is none.
    pub fn delete_ref(&self, name: &str) -> bool {
        let exists = self.run(&["rev-parse", "--verify", "--quiet", name]).status.success();
        exists && self.run(&["update-ref", "-d", name]).status.success()
    }
}
