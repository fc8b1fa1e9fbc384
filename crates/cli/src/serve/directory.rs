//! The data directory of a server that is not root, with a launcher that is.
//!
//! The directory itself stays root's, and sticky: the server makes its files in it, but can't put another in the place of
//! those that are the launcher's, which trusts them.

use atoll_jail::Owner;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;

/// What in it is the launcher's.
const LAUNCHERS: [&str; 6] = ["sandboxes", "layers", "snapshots", "images", "etc", "pool"];
/// And these files, if they are there; the second on its way to be the first.
const FILES: [&str; 2] = ["pool.btrfs", "pool.new"];
/// Workers' programs lie beside.
const WORKER: &str = "worker-";
const MODE: u32 = 0o1770;
/// So many files are named in a sentence.
const NAMED: usize = 8;

type Checked = Result<(), String>;

/// Makes it as it must be, if nothing is in it yet; else looks whether it is so.
pub fn prepare(path: &Path, owner: Owner) -> Checked {
    let cant = |error: io::Error| format!("can't use the data directory {}: {error}", path.display());
    DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(cant)?;
    let is_new = fs::read_dir(path).map_err(cant)?.next().is_none();
    if is_new {
        // Closed to everybody first: nobody else is in it when it opens.
        fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(cant)?;
        chown(path, Some(0), Some(owner.group)).map_err(cant)?;
        for name in LAUNCHERS {
            DirBuilder::new().mode(0o700).create(path.join(name)).map_err(cant)?;
        }
        return fs::set_permissions(path, Permissions::from_mode(MODE)).map_err(cant);
    }
    let found = fs::metadata(path).map_err(cant)?;
    if (found.uid(), found.gid(), found.mode() & 0o7777) != (0, owner.group, MODE) {
        return Err(format!(
            "the data directory {0} was not made for this user: chown 0:{1} {0} && chmod {MODE:o} {0}",
            path.display(),
            owner.group
        ));
    }
    for name in LAUNCHERS {
        launchers_own(&path.join(name), owner)?;
    }
    for name in FILES {
        launchers_file(&path.join(name))?;
    }
    servers_own(path, owner, cant)
}

/// A directory that the launcher trusts: the server could make one of its own only, and nothing but its own is it able
/// to move out of the way.
fn launchers_own(path: &Path, owner: Owner) -> Checked {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() && found.uid() != owner.user => Ok(()),
        Ok(_) => Err(format!("{} must be a directory of the launcher's; look where it comes from", path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => DirBuilder::new()
            .mode(0o700)
            .create(path)
            .map_err(|error| format!("can't make {}: {error}", path.display())),
        Err(error) => Err(format!("can't look at {}: {error}", path.display())),
    }
}

/// A file that root mounts: nobody else can have written to it.
fn launchers_file(path: &Path) -> Checked {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() && found.uid() == 0 && found.nlink() == 1 => Ok(()),
        Ok(_) => Err(format!("{} must be a file of the launcher's; look where it comes from", path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(format!("can't look at {}: {error}", path.display())),
    }
}

fn servers_own(path: &Path, owner: Owner, cant: impl Fn(io::Error) -> String) -> Checked {
    let mut others = Vec::new();
    for entry in fs::read_dir(path).map_err(&cant)? {
        let entry = entry.map_err(&cant)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_launchers =
            LAUNCHERS.contains(&name.as_str()) || FILES.contains(&name.as_str()) || name.starts_with(WORKER);
        if !is_launchers && entry.metadata().map_err(&cant)?.uid() != owner.user {
            others.push(entry.path().display().to_string());
        }
    }
    if others.is_empty() {
        return Ok(());
    }
    others.sort();
    let more = if others.len() > NAMED { " (and more)" } else { "" };
    others.truncate(NAMED);
    Err(format!(
        "files of the server belong to another user, as when it ran as root: chown -R {}:{} {}{more}",
        owner.user,
        owner.group,
        others.join(" ")
    ))
}

/// Whether this process, which is the user's by now, gets there.
pub fn reach(path: &Path, user: &str) -> Checked {
    fs::read_dir(path).map(drop).map_err(|error| {
        format!(
            "{user} can't reach the data directory {}: {error}; name one that others may pass through to, like \
             /var/lib/atoll, with data_dir",
            path.display()
        )
    })
}
