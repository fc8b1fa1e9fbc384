//! Prepares the data directory for a server that is not root and a launcher that is.
//!
//! Root owns the directory, which has the sticky bit: the server can create files in it, but cannot replace the launcher's
//! files, which the launcher trusts.

use atoll_jail::ServerUser;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;

/// The launcher's directories.
const LAUNCHER_DIRS: [&str; 7] = ["sandboxes", "layers", "snapshots", "caches", "images", "etc", "pool"];
/// The launcher's files, if they exist; it renames the second to the first.
const LAUNCHER_FILES: [&str; 2] = ["pool.btrfs", "pool.new"];
/// The prefix of workers' programs.
const WORKER_PREFIX: &str = "worker-";
const DATA_DIR_MODE: u32 = 0o1770;
/// An error message lists at most this many files.
const MAX_NAMED_FILES: usize = 8;

type CheckResult = Result<(), String>;

/// Sets up an empty or missing data directory, and checks the owners and modes of an existing one.
pub fn prepare_data_dir(path: &Path, owner: ServerUser) -> CheckResult {
    let dir_error = |error: io::Error| format!("cannot use the data directory {}: {error}", path.display());
    DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(dir_error)?;
    let is_new = fs::read_dir(path).map_err(dir_error)?.next().is_none();
    if is_new {
        // Close it to other users until its content has the right owners.
        fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(dir_error)?;
        chown(path, Some(0), Some(owner.gid)).map_err(dir_error)?;
        for name in LAUNCHER_DIRS {
            DirBuilder::new().mode(0o700).create(path.join(name)).map_err(dir_error)?;
        }
        return fs::set_permissions(path, Permissions::from_mode(DATA_DIR_MODE)).map_err(dir_error);
    }
    let found = fs::metadata(path).map_err(dir_error)?;
    if (found.uid(), found.gid(), found.mode() & 0o7777) != (0, owner.gid, DATA_DIR_MODE) {
        return Err(format!(
            "the data directory {0} has the wrong owner or mode: run chown 0:{1} {0} && chmod {DATA_DIR_MODE:o} {0}",
            path.display(),
            owner.gid
        ));
    }
    for name in LAUNCHER_DIRS {
        require_launcher_dir(&path.join(name), owner)?;
    }
    for name in LAUNCHER_FILES {
        require_launcher_file(&path.join(name))?;
    }
    require_server_files(path, owner, dir_error)
}

/// Requires a directory that does not belong to the server: the launcher trusts its content.
fn require_launcher_dir(path: &Path, owner: ServerUser) -> CheckResult {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() && found.uid() != owner.uid => Ok(()),
        Ok(_) => Err(format!("{} must be a directory of the launcher; check who created it", path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => DirBuilder::new()
            .mode(0o700)
            .create(path)
            .map_err(|error| format!("cannot create {}: {error}", path.display())),
        Err(error) => Err(format!("cannot stat {}: {error}", path.display())),
    }
}

/// Requires a file that only root can have written: root mounts it.
fn require_launcher_file(path: &Path) -> CheckResult {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() && found.uid() == 0 && found.nlink() == 1 => Ok(()),
        Ok(_) => Err(format!("{} must be a file of the launcher; check who created it", path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(format!("cannot stat {}: {error}", path.display())),
    }
}

fn require_server_files(path: &Path, owner: ServerUser, dir_error: impl Fn(io::Error) -> String) -> CheckResult {
    let mut others = Vec::new();
    for entry in fs::read_dir(path).map_err(&dir_error)? {
        let entry = entry.map_err(&dir_error)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_launchers = LAUNCHER_DIRS.contains(&name.as_str())
            || LAUNCHER_FILES.contains(&name.as_str())
            || name.starts_with(WORKER_PREFIX);
        if !is_launchers && entry.metadata().map_err(&dir_error)?.uid() != owner.uid {
            others.push(entry.path().display().to_string());
        }
    }
    if others.is_empty() {
        return Ok(());
    }
    others.sort();
    let more = if others.len() > MAX_NAMED_FILES { " (and more)" } else { "" };
    others.truncate(MAX_NAMED_FILES);
    Err(format!(
        "files of the server belong to another user, perhaps from a run as root: run chown -R {}:{} {}{more}",
        owner.uid,
        owner.gid,
        others.join(" ")
    ))
}

/// Checks that this process, which runs as the server's user now, can open the directory.
pub fn check_reachable(path: &Path, user: &str) -> CheckResult {
    fs::read_dir(path).map(drop).map_err(|error| {
        format!(
            "{user} cannot open the data directory {}: {error}; set data_dir to one below a public directory, such as \
             /var/lib/atoll",
            path.display()
        )
    })
}
