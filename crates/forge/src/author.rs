//! Whose name the commits of a sandbox carry.

use crate::repository::Repository;
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

impl Repository {
    /// As the repository is configured, else as its owner is, else Atoll.
    pub fn author(&self) -> Author {
        self.author_at_home(self.home().as_deref())
    }

    fn author_at_home(&self, home: Option<&Path>) -> Author {
        // The later file wins, as with git itself.
        let files: Vec<PathBuf> =
            home.map(|home| vec![home.join(".gitconfig"), home.join(".config/git/config")]).unwrap_or_default();
        let value = |key: &str| {
            let own = self.setting(None, home, key);
            own.or_else(|| files.iter().find_map(|file| self.setting(Some(file), home, key)))
        };
        match (value("user.name"), value("user.email")) {
            (Some(name), Some(email)) => Author { name, email },
            // Half a name would join two people into one.
            _ => Author::default(),
        }
    }

    fn setting(&self, file: Option<&Path>, home: Option<&Path>, key: &str) -> Option<String> {
        let mut run =
            self.run("reading the author's name", self.bounds.quick).ok()?.args(["config", "--null", "--includes"]);
        if let Some(home) = home {
            run = run.env("HOME", home);
        }
        if let Some(file) = file {
            run = run.args(["--file".as_ref(), file.as_os_str()]);
        }
        let answer = run.args(["--get", key]).capture(4096).ok()?;
        if answer.succeeded() { clean(&String::from_utf8_lossy(&answer.stdout)) } else { None }
    }

    fn home(&self) -> Option<PathBuf> {
        let own = || std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        self.owner.is_us().then(own).flatten().or_else(|| home_of(self.owner.uid, &std::fs::read("/etc/passwd").ok()?))
    }
}

fn home_of(uid: u32, passwd: &[u8]) -> Option<PathBuf> {
    let wanted = uid.to_string();
    passwd.split(|byte| *byte == b'\n').find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
        let home = fields.get(5).filter(|home| fields[2] == wanted.as_bytes() && home.starts_with(b"/"))?;
        Some(OsString::from_vec(home.to_vec()).into())
    })
}

/// What git itself would leave of a name, so that it is the same in a commit and in a message.
fn clean(value: &str) -> Option<String> {
    let kept: String =
        value.chars().filter(|character| !character.is_control() && !"<>".contains(*character)).collect();
    let kept = kept.trim().chars().take(200).collect::<String>();
    if kept.is_empty() { None } else { Some(kept) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn git(directory: &Path, arguments: &[&str]) {
        let mut command = Command::new("git");
        command.args(arguments).current_dir(directory).env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin");
        command.envs([("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CONFIG_GLOBAL", "/dev/null")]);
        assert!(command.status().unwrap().success(), "{arguments:?}");
    }

    fn repository(directory: &Path) -> Repository {
        git(directory, &["init", "-q"]);
        git(directory, &["-c", "user.name=T", "-c", "user.email=t@t", "commit", "-q", "--allow-empty", "-m", "first"]);
        Repository::open(directory).unwrap()
    }

    #[test]
    fn the_repository_s_own_name_is_first_then_its_owner_s_then_ours() {
        let (directory, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let repository = repository(directory.path());
        assert_eq!(repository.author_at_home(None), Author::default());
        assert_eq!(repository.author_at_home(Some(home.path())), Author::default());

        std::fs::create_dir_all(home.path().join(".config/git")).unwrap();
        let older = "[user]\n name = Older\n email = older@example.org\n";
        std::fs::write(home.path().join(".config/git/config"), older).unwrap();
        let author = |name: &str, email: &str| Author { name: name.to_owned(), email: email.to_owned() };
        assert_eq!(repository.author_at_home(Some(home.path())), author("Older", "older@example.org"));

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
        assert_eq!(repository.author_at_home(Some(home.path())), author("Included", "work@example.org"));

        git(directory.path(), &["config", "user.name", "Own <x>\nline"]);
        assert_eq!(repository.author_at_home(Some(home.path())), author("Own xline", "work@example.org"));
        git(directory.path(), &["config", "user.email", "own@example.org"]);
        assert_eq!(repository.author_at_home(None), author("Own xline", "own@example.org"));
    }

    #[test]
    fn homes_are_read_from_the_list_of_users() {
        let passwd = b"root:x:0:0:root:/root:/bin/sh\nshort:x\nann:x:1000:1000::/home/ann:/bin/sh\nodd:x:7:7::relative:/bin/sh\n";
        assert_eq!(home_of(1000, passwd).as_deref(), Some(Path::new("/home/ann")));
        assert_eq!(home_of(0, passwd).as_deref(), Some(Path::new("/root")));
        assert_eq!(home_of(7, passwd), None);
        assert_eq!(home_of(8, passwd), None);
    }
}
