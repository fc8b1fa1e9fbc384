//! Runs programs as an unprivileged user, with or without subordinate ids. Needs root to switch users, and changes
//! none of the machine's files.

use crate::local::is_root;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The user's entry in `/etc/subuid`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubordinateIds {
    /// No entry: a sandbox maps only the user's own id.
    Unassigned,
    /// A range, which `newuidmap` maps.
    Range,
}

/// Bind-mounts copies of the user and id range files with the test user's entry, in a private mount namespace.
const ASSIGN_RANGE_SCRIPT: &str = r#"
set -e
dir=$1 user=$2; shift 2
for file in passwd subuid subgid; do cp /etc/$file "$dir/$file.test"; done
echo "atoll-ordinary:x:$user:$user::/nonexistent:/bin/sh" >> "$dir/passwd.test"
for file in subuid subgid; do echo "atoll-ordinary:300000:65536" >> "$dir/$file.test"; done
for file in passwd subuid subgid; do mount --bind "$dir/$file.test" /etc/$file; done
exec "$@"
"#;

/// Returns the reason if this machine cannot run programs as such a user.
pub fn missing_requirement(user: u32, ids: SubordinateIds) -> Option<&'static str> {
    if !is_root() {
        return Some("only root can switch users");
    }
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "true"]).uid(user).gid(user).current_dir("/");
    if !command.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return Some("unprivileged users may not create user namespaces");
    }
    match ids {
        SubordinateIds::Unassigned => None,
        SubordinateIds::Range if ["/etc/subuid", "/etc/subgid"].iter().any(|file| !Path::new(file).exists()) => {
            Some("there is no /etc/subuid to mount over")
        }
        SubordinateIds::Range if !Path::new("/usr/bin/newuidmap").exists() => Some("newuidmap is not installed"),
        SubordinateIds::Range => None,
    }
}

/// A command that runs a program as the user, with a clean environment. The program dies with the tests.
pub fn user_command(user: u32, ids: SubordinateIds, dir: &Path, program: &Path) -> Command {
    let id = user.to_string();
    let become_user = ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "--pdeathsig", "KILL", "--"];
    let mut command = match ids {
        SubordinateIds::Unassigned => Command::new("env"),
        SubordinateIds::Range => {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "--", "unshare", "--mount", "sh", "-c", ASSIGN_RANGE_SCRIPT, "sh"]);
            command.arg(dir).arg(&id);
            command
        }
    };
    command.args(become_user).arg(program).stdin(Stdio::null());
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", dir.join("home"));
    command
}

/// A user with a directory that holds the user's programs and home.
#[derive(Debug, Clone)]
pub struct UnprivilegedUser {
    pub uid: u32,
    pub ids: SubordinateIds,
    pub dir: std::path::PathBuf,
}

impl UnprivilegedUser {
    /// Creates the home directory and installs the programs of Atoll.
    pub fn set_up(uid: u32, ids: SubordinateIds, dir: &Path) -> Self {
        std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::create_dir(dir.join("home")).unwrap();
        chown_tree(&dir.join("home"), uid);
        for name in ["atoll", "atoll-worker"] {
            install_program(&crate::process::find_program(name), &dir.join(name));
        }
        Self { uid, ids, dir: dir.to_owned() }
    }

    pub fn program_command(&self, name: &str) -> Command {
        user_command(self.uid, self.ids, &self.dir, &self.dir.join(name))
    }
}

/// Links or copies a program to a path where the user can run it.
pub fn install_program(from: &Path, to: &Path) {
    if std::fs::hard_link(from, to).is_err() {
        // Not in this process: a child of another test would inherit the open file, which then cannot be executed.
        assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
        std::fs::set_permissions(to, PermissionsExt::from_mode(0o755)).unwrap();
    }
}

/// Changes the owner of a directory and everything in it.
pub fn chown_tree(dir: &Path, user: u32) {
    chown(dir, Some(user), Some(user)).unwrap();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            chown_tree(&entry.path(), user);
        } else {
            std::os::unix::fs::lchown(entry.path(), Some(user), Some(user)).unwrap();
        }
    }
}
