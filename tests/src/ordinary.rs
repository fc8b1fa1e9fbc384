//! Programs as somebody without any privilege, who may have a range of ids or only their own. Needs root, to become
//! somebody else; nothing of the machine's own files is changed.

use crate::local::is_root;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// What `/etc/subuid` gives to the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// Nothing: a sandbox has the user's own id alone.
    Own,
    /// A range, which `newuidmap` gives out.
    Range,
}

/// Hangs copies with one more line over the files that name users and their ranges, in a mount namespace of its own.
const GIVE_RANGE: &str = r#"
set -e
dir=$1 user=$2; shift 2
for file in passwd subuid subgid; do cp /etc/$file "$dir/$file.test"; done
echo "atoll-ordinary:x:$user:$user::/nonexistent:/bin/sh" >> "$dir/passwd.test"
for file in subuid subgid; do echo "atoll-ordinary:300000:65536" >> "$dir/$file.test"; done
for file in passwd subuid subgid; do mount --bind "$dir/$file.test" /etc/$file; done
exec "$@"
"#;

/// Why there is no such user here.
pub fn missing(user: u32, ids: Ids) -> Option<&'static str> {
    if !is_root() {
        return Some("only root can become somebody else");
    }
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "true"]).uid(user).gid(user).current_dir("/");
    if !command.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return Some("ordinary users may not make user namespaces");
    }
    match ids {
        Ids::Own => None,
        Ids::Range if ["/etc/subuid", "/etc/subgid"].iter().any(|file| !Path::new(file).exists()) => {
            Some("there is no /etc/subuid to hang another over")
        }
        Ids::Range if !Path::new("/usr/bin/newuidmap").exists() => Some("newuidmap is not installed"),
        Ids::Range => None,
    }
}

/// To run a program as the user. It ends with these tests, and has an environment without anybody's settings.
pub fn command(user: u32, ids: Ids, dir: &Path, program: &Path) -> Command {
    let id = user.to_string();
    let become_user = ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "--pdeathsig", "KILL", "--"];
    let mut command = match ids {
        Ids::Own => Command::new("env"),
        Ids::Range => {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "--", "unshare", "--mount", "sh", "-c", GIVE_RANGE, "sh"]);
            command.arg(dir).arg(&id);
            command
        }
    };
    command.args(become_user).arg(program).stdin(Stdio::null());
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", dir.join("home"));
    command
}

/// Who runs a program, and the directory that has it and their home.
#[derive(Debug, Clone)]
pub struct Person {
    pub user: u32,
    pub ids: Ids,
    pub dir: std::path::PathBuf,
}

impl Person {
    /// Settles somebody in a directory, with the programs that they need.
    pub fn settle(user: u32, ids: Ids, dir: &Path) -> Self {
        std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::create_dir(dir.join("home")).unwrap();
        own(&dir.join("home"), user);
        for name in ["atoll", "atoll-worker"] {
            install(&crate::process::program(name), &dir.join(name));
        }
        Self { user, ids, dir: dir.to_owned() }
    }

    pub fn command(&self, name: &str) -> Command {
        command(self.user, self.ids, &self.dir, &self.dir.join(name))
    }
}

/// Puts a program where the user can run it.
pub fn install(from: &Path, to: &Path) {
    if std::fs::hard_link(from, to).is_err() {
        std::fs::copy(from, to).unwrap();
        std::fs::set_permissions(to, PermissionsExt::from_mode(0o755)).unwrap();
    }
}

/// Gives a directory and all that is in it to the user.
pub fn own(dir: &Path, user: u32) {
    chown(dir, Some(user), Some(user)).unwrap();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            own(&entry.path(), user);
        } else {
            std::os::unix::fs::lchown(entry.path(), Some(user), Some(user)).unwrap();
        }
    }
}
