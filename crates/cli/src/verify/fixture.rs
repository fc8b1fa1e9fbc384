//! The temporary directory of a verification, with a small repository and canary files.

use crate::failure::{Failure, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use uuid::Uuid;

pub struct Fixture {
    pub dir: PathBuf,
    /// The commit of the repository's HEAD.
    pub head: String,
    /// Files outside of every sandbox that all users of this machine can read.
    pub canaries: Vec<PathBuf>,
    /// The content of the canaries.
    pub secret: String,
}

const README: &str = "# A repository to try Atoll on\n";

impl Fixture {
    pub fn create() -> Result<Self> {
        let name = format!("atoll-verify-{}", Uuid::now_v7().simple());
        let dir = std::env::temp_dir().join(&name);
        let secret = Uuid::new_v4().to_string();
        // Every early return drops it, which removes the files so far.
        let mut fixture = Self {
            canaries: vec![dir.join("canary"), Path::new("/var/tmp").join(&name)],
            dir,
            head: String::new(),
            secret,
        };
        fixture.create_files().map_err(|error| {
            Failure::setup("ground", format!("cannot create {}: {error}", fixture.dir.display()))
                .with_hint("Free space there, or set TMPDIR.")
        })?;
        fixture.head = fixture.create_repository()?;
        Ok(fixture)
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    pub fn repository_dir(&self) -> PathBuf {
        self.dir.join("repository")
    }

    fn create_files(&mut self) -> std::io::Result<()> {
        std::fs::create_dir(&self.dir)?;
        std::fs::create_dir(self.repository_dir())?;
        // Skip canaries in directories that are not writable; the first one is in our own directory.
        let secret = self.secret.clone();
        self.canaries.retain(|path| std::fs::write(path, &secret).is_ok());
        std::fs::write(self.repository_dir().join("README.md"), README)
    }

    fn create_repository(&self) -> Result<String> {
        self.run_git(&["init", "--quiet", "--initial-branch", "main"])?;
        self.run_git(&["add", "README.md"])?;
        self.run_git(&["commit", "--quiet", "--message", "The beginning"])?;
        self.run_git(&["rev-parse", "HEAD"])
    }

    /// Runs git in the repository without the user's configuration.
    pub fn run_git(&self, arguments: &[&str]) -> Result<String> {
        let mut git = Command::new("git");
        git.arg("-C").arg(self.repository_dir()).args(arguments);
        git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        for (name, value) in [
            ("GIT_AUTHOR_NAME", "Atoll"),
            ("GIT_AUTHOR_EMAIL", "atoll@localhost"),
            ("GIT_COMMITTER_NAME", "Atoll"),
            ("GIT_COMMITTER_EMAIL", "atoll@localhost"),
        ] {
            git.env(name, value);
        }
        let done = git
            .output()
            .map_err(|error| Failure::setup("git", format!("cannot run git: {error}")).with_hint("Install git."))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        if done.status.success() {
            Ok(text(&done.stdout))
        } else {
            Err(Failure::setup("git", format!("git {}: {}", arguments.join(" "), text(&done.stderr))))
        }
    }

    /// The checkout has not changed.
    pub fn is_checkout_untouched(&self) -> Result<bool> {
        let readme = std::fs::read_to_string(self.repository_dir().join("README.md"));
        Ok(self.run_git(&["symbolic-ref", "HEAD"])? == "refs/heads/main"
            && self.run_git(&["rev-parse", "HEAD"])? == self.head
            && self.run_git(&["status", "--porcelain", "--ignored"])?.is_empty()
            && readme.is_ok_and(|text| text == README))
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        for canary in &self.canaries {
            drop(std::fs::remove_file(canary));
        }
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixture_is_complete_and_removes_itself() {
        let ground = Fixture::create().unwrap();
        assert!(ground.is_checkout_untouched().unwrap());
        assert!(ground.canaries.iter().all(|canary| canary.exists()));
        std::fs::write(ground.repository_dir().join("new"), "x").unwrap();
        assert!(!ground.is_checkout_untouched().unwrap());
        let (dir, canaries) = (ground.dir.clone(), ground.canaries.clone());
        drop(ground);
        assert!(!dir.exists() && !canaries.iter().any(|canary| canary.exists()));
    }
}
