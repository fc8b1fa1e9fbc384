//! Where git is.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// The first git that can be run in this list of directories. A relative one never counts: it would
/// depend on where we stand.
pub fn find(search: &OsStr) -> Option<PathBuf> {
    let runs =
        |path: &PathBuf| path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0);
    let directories = std::env::split_paths(search).filter(|directory| directory.is_absolute());
    directories.map(|directory| directory.join("git")).find(runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};

    #[test]
    fn only_what_can_be_run_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let (search, git) = (directory.path().as_os_str(), directory.path().join("git"));
        assert_eq!(find(search), None);
        fs::write(&git, "").unwrap();
        fs::set_permissions(&git, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(find(search), None);
        fs::set_permissions(&git, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find(search), Some(git));
        assert_eq!(find(OsStr::new("bin:.")), None);
    }
}
