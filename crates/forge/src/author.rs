//! The author of a sandbox's commits.

use crate::repository::HostRepository;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Author {
    pub name: String,
    pub email: String,
}

impl Default for Author {
    fn default() -> Self {
        Self { name: "Atoll".to_owned(), email: "atoll@localhost".to_owned() }
    }
}

impl HostRepository {
    /// The author from the repository's configuration, then its owner's, then Atoll.
    pub fn author(&self) -> Author {
        self.author_with_home(self.owner_home().as_deref())
    }

    fn author_with_home(&self, home: Option<&Path>) -> Author {
        // By precedence: as in git, ~/.gitconfig overrides ~/.config/git/config.
        let files: Vec<PathBuf> =
            home.map(|home| vec![home.join(".gitconfig"), home.join(".config/git/config")]).unwrap_or_default();
        let value = |key: &str| {
            let own = self.read_setting(None, home, key);
            own.or_else(|| files.iter().find_map(|file| self.read_setting(Some(file), home, key)))
        };
        match (value("user.name"), value("user.email")) {
            (Some(name), Some(email)) => Author { name, email },
            // A half-configured identity is not used.
            _ => Author::default(),
        }
    }

    fn read_setting(&self, file: Option<&Path>, home: Option<&Path>, key: &str) -> Option<String> {
        let mut run = self.git_command("reading the author's name", self.limits.lookup_timeout).ok()?.args([
            "config",
            "--null",
            "--includes",
        ]);
        if let Some(home) = home {
            run = run.env("HOME", home);
        }
        if let Some(file) = file {
            run = run.args(["--file".as_ref(), file.as_os_str()]);
        }
        let answer = run.args(["--get", key]).capture_output(4096).ok()?;
        if answer.is_success() { normalize_value(&String::from_utf8_lossy(&answer.stdout)) } else { None }
    }

    fn owner_home(&self) -> Option<PathBuf> {
        let own = || std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        self.owner
            .is_current_user()
            .then(own)
            .flatten()
            .or_else(|| home_from_passwd(self.owner.uid, &std::fs::read("/etc/passwd").ok()?))
    }
}

fn home_from_passwd(uid: u32, passwd: &[u8]) -> Option<PathBuf> {
    let uid_text = uid.to_string();
    passwd.split(|byte| *byte == b'\n').find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
        let home = fields.get(5).filter(|home| fields[2] == uid_text.as_bytes() && home.starts_with(b"/"))?;
        Some(OsString::from_vec(home.to_vec()).into())
    })
}

/// Normalizes a name like git, so that commits and messages agree.
fn normalize_value(value: &str) -> Option<String> {
    let normalized: String =
        value.chars().filter(|character| !character.is_control() && !"<>".contains(*character)).collect();
    let normalized = normalized.trim().chars().take(200).collect::<String>();
    if normalized.is_empty() { None } else { Some(normalized) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn run_git(directory: &Path, arguments: &[&str]) {
        let mut command = Command::new("git");
        command.args(arguments).current_dir(directory).env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin");
        command.envs([("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CONFIG_GLOBAL", "/dev/null")]);
        assert!(command.status().unwrap().success(), "{arguments:?}");
    }

    fn create_repository(directory: &Path) -> HostRepository {
        run_git(directory, &["init", "-q"]);
        run_git(
            directory,
            &["-c", "user.name=T", "-c", "user.email=t@t", "commit", "-q", "--allow-empty", "-m", "first"],
        );
        HostRepository::open(directory).unwrap()
    }

    #[test]
    fn the_repository_precedes_its_owner_and_the_default() {
        let (directory, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let repository = create_repository(directory.path());
        assert_eq!(repository.author_with_home(None), Author::default());
        assert_eq!(repository.author_with_home(Some(home.path())), Author::default());

        std::fs::create_dir_all(home.path().join(".config/git")).unwrap();
        let older = "[user]\n name = Older\n email = older@example.org\n";
        std::fs::write(home.path().join(".config/git/config"), older).unwrap();
        let author = |name: &str, email: &str| Author { name: name.to_owned(), email: email.to_owned() };
        assert_eq!(repository.author_with_home(Some(home.path())), author("Older", "older@example.org"));

        let inner = format!(
            "[user]\n email = work@example.org\n[includeIf \"gitdir:{}/\"]\n path = ~/work\n",
            home.path().display()
        );
        std::fs::write(
            home.path().join(".gitconfig"),
            format!("[user]\n name = Home\n{inner}[include]\n path = ~/more\n"),
        )
        .unwrap();
        std::fs::write(home.path().join("more"), "[user]\n name = Included\n").unwrap();
        assert_eq!(repository.author_with_home(Some(home.path())), author("Included", "work@example.org"));

        run_git(directory.path(), &["config", "user.name", "Own <x>\nline"]);
        assert_eq!(repository.author_with_home(Some(home.path())), author("Own xline", "work@example.org"));
        run_git(directory.path(), &["config", "user.email", "own@example.org"]);
        assert_eq!(repository.author_with_home(None), author("Own xline", "own@example.org"));
    }

    #[test]
    fn reads_home_directories_from_passwd() {
        let passwd = b"root:x:0:0:root:/root:/bin/sh\nshort:x\nann:x:1000:1000::/home/ann:/bin/sh\nodd:x:7:7::relative:/bin/sh\n";
        assert_eq!(home_from_passwd(1000, passwd).as_deref(), Some(Path::new("/home/ann")));
        assert_eq!(home_from_passwd(0, passwd).as_deref(), Some(Path::new("/root")));
        assert_eq!(home_from_passwd(7, passwd), None);
        assert_eq!(home_from_passwd(8, passwd), None);
    }
}
