//! Finds git.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Finds the first executable git in a search path. Skips relative directories, which depend on the current directory.
pub fn find_git(search: &OsStr) -> Option<PathBuf> {
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
    fn finds_only_executable_files() {
        let directory = tempfile::tempdir().unwrap();
        let (search, git) = (directory.path().as_os_str(), directory.path().join("git"));
        assert_eq!(find_git(search), None);
        fs::write(&git, "").unwrap();
        fs::set_permissions(&git, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(find_git(search), None);
        fs::set_permissions(&git, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find_git(search), Some(git));
        assert_eq!(find_git(OsStr::new("bin:.")), None);
    }
}
