//! The ground to try everything on: a directory of its own with a small repository and canaries,
//! which is gone afterwards.

use crate::failure::{Failure, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use uuid::Uuid;

pub struct Ground {
    pub dir: PathBuf,
    /// The commit that the repository is at.
    pub head: String,
    /// Files that everybody on this machine can read, outside of every sandbox.
    pub canaries: Vec<PathBuf>,
    /// What they hold.
    pub secret: String,
}

const README: &str = "# A repository to try Atoll on\n";

impl Ground {
    pub fn make() -> Result<Self> {
        let name = format!("atoll-verify-{}", Uuid::now_v7().simple());
        let dir = std::env::temp_dir().join(&name);
        let secret = Uuid::new_v4().to_string();
        // Dropped on every way out of here, with what is there until then.
        let mut ground = Self {
            canaries: vec![dir.join("canary"), Path::new("/var/tmp").join(&name)],
            dir,
            head: String::new(),
            secret,
        };
        ground.lay().map_err(|error| {
            Failure::setup("ground", format!("can't make {}: {error}", ground.dir.display()))
                .next("Make room there, or name another place with TMPDIR.")
        })?;
        ground.head = ground.make_repository()?;
        Ok(ground)
    }

    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    pub fn repository(&self) -> PathBuf {
        self.dir.join("repository")
    }

    fn lay(&mut self) -> std::io::Result<()> {
        std::fs::create_dir(&self.dir)?;
        std::fs::create_dir(self.repository())?;
        // Where it can't be put it can't be seen either; the first one is in a place that we made.
        let secret = self.secret.clone();
        self.canaries.retain(|path| std::fs::write(path, &secret).is_ok());
        std::fs::write(self.repository().join("README.md"), README)
    }

    fn make_repository(&self) -> Result<String> {
        self.git(&["init", "--quiet", "--initial-branch", "main"])?;
        self.git(&["add", "README.md"])?;
        self.git(&["commit", "--quiet", "--message", "The beginning"])?;
        self.git(&["rev-parse", "HEAD"])
    }

    /// Git over the repository, with nobody's configuration.
    pub fn git(&self, arguments: &[&str]) -> Result<String> {
        let mut git = Command::new("git");
        git.arg("-C").arg(self.repository()).args(arguments);
        git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        for (name, value) in [
            ("GIT_AUTHOR_NAME", "Atoll"),
            ("GIT_AUTHOR_EMAIL", "atoll@localhost"),
            ("GIT_COMMITTER_NAME", "Atoll"),
            ("GIT_COMMITTER_EMAIL", "atoll@localhost"),
        ] {
            git.env(name, value);
        }
        let done = git.output().map_err(|error| {
            Failure::setup("git", format!("can't run git: {error}")).next("Install git: Atoll needs it.")
        })?;
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        if done.status.success() {
            Ok(said(&done.stdout))
        } else {
            Err(Failure::setup("git", format!("git {}: {}", arguments.join(" "), said(&done.stderr))))
        }
    }

    /// Whether the checkout is as it was.
    pub fn is_untouched(&self) -> Result<bool> {
        let readme = std::fs::read_to_string(self.repository().join("README.md"));
        Ok(self.git(&["symbolic-ref", "HEAD"])? == "refs/heads/main"
            && self.git(&["rev-parse", "HEAD"])? == self.head
            && self.git(&["status", "--porcelain", "--ignored"])?.is_empty()
            && readme.is_ok_and(|text| text == README))
    }
}

impl Drop for Ground {
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
    fn a_ground_is_whole_and_goes() {
        let ground = Ground::make().unwrap();
        assert!(ground.is_untouched().unwrap());
        assert!(ground.canaries.iter().all(|canary| canary.exists()));
        std::fs::write(ground.repository().join("new"), "x").unwrap();
        assert!(!ground.is_untouched().unwrap());
        let (dir, canaries) = (ground.dir.clone(), ground.canaries.clone());
        drop(ground);
        assert!(!dir.exists() && !canaries.iter().any(|canary| canary.exists()));
    }
}
