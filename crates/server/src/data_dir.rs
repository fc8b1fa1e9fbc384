//! The data directory: private to the user of the server, because it holds tokens, keys and the database.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

/// Files that only a data directory has.
const MARKER_FILES: [&str; 2] = ["atoll.db", "admin-token"];
/// Entries that commands and the launcher create in a data directory before its first server.
const EARLY_ENTRIES: [&str; 8] = ["agents", "sandboxes", "layers", "snapshots", "caches", "images", "etc", "pool"];
const WORKER_PREFIX: &str = "worker-";
const GROUP_AND_OTHERS: u32 = 0o077;
/// Mode of a data directory that root shares with the group of `server.user`.
const SHARED_MODE: u32 = 0o1770;

/// Creates the data directory with mode 0700. Closes an existing one to other users, or refuses it.
pub fn secure_data_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let found = fs::metadata(path)?;
    let user = rustix::process::geteuid().as_raw();
    if ![0, user].contains(&found.uid()) {
        let detail = format!(
            "it belongs to another user, who could replace its files: use another directory, or run chown {user} {}",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, detail));
    }
    let is_shared_by_root = found.uid() == 0 && found.mode() & 0o7777 == SHARED_MODE;
    if found.mode() & GROUP_AND_OTHERS == 0 || is_shared_by_root {
        return Ok(());
    }
    let names =
        fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.file_name())).collect::<io::Result<Vec<_>>>()?;
    if !is_data_dir(names.iter().map(AsRef::as_ref)) {
        let detail = format!(
            "other users can open it, and it has files that are not Atoll's: use an empty directory, or run chmod 700 {}",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, detail));
    }
    fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(|error| {
        let detail = format!("other users can open it, and its mode cannot be changed to 700: {error}");
        io::Error::new(error.kind(), detail)
    })
}

/// The directory is empty or was made by Atoll, so that Atoll may change its mode.
fn is_data_dir<'a>(names: impl Iterator<Item = &'a OsStr> + Clone) -> bool {
    let is_early = |name: &OsStr| {
        let name = name.to_string_lossy();
        EARLY_ENTRIES.contains(&name.as_ref()) || name.starts_with(WORKER_PREFIX)
    };
    names.clone().any(|name| MARKER_FILES.iter().any(|marker| name == *marker)) || names.clone().all(is_early)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn closes_an_existing_data_directory_to_other_users() {
        let base = tempfile::tempdir().unwrap();
        for (name, files) in [
            ("new", None),
            ("empty", Some(&[][..])),
            ("used", Some(&["atoll.db", "notes.txt"][..])),
            ("early", Some(&["agents"][..])),
        ] {
            let dir = base.path().join(name);
            if let Some(files) = files {
                fs::create_dir(&dir).unwrap();
                files.iter().for_each(|file| fs::write(dir.join(file), "").unwrap());
                fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
            }
            secure_data_dir(&dir).unwrap();
            assert_eq!(mode_of(&dir), 0o700, "{name}");
        }
    }

    #[test]
    fn refuses_a_directory_of_another_user() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(12_345), None).unwrap();
        let refused = secure_data_dir(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("belongs to another user") && refused.contains("chown 0 "), "{refused}");
    }

    #[test]
    fn refuses_a_directory_with_other_files_that_others_can_open() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("home");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("thesis.tex"), "").unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(0o750)).unwrap();
        let refused = secure_data_dir(&dir).unwrap_err().to_string();
        assert!(refused.contains("chmod 700") && mode_of(&dir) == 0o750, "{refused}");
        fs::set_permissions(&dir, Permissions::from_mode(0o700)).unwrap();
        secure_data_dir(&dir).unwrap();
    }
}
