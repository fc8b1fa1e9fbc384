//! The setup files of a directory: of its checked-out commit, or of the directory itself outside of git.

use crate::failure::{Failure, Result};
use atoll_core::setup::{MAX_SETUP_FILE_BYTES, RepositoryFiles, may_hold_setup_files};
use atoll_forge::HostRepository;
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Entries to look at in a directory without git.
const MAX_ENTRIES: usize = 50_000;

/// The setup files of a project.
#[derive(Debug)]
pub struct ProjectFiles {
    /// The top of the worktree, or the directory itself.
    pub directory: PathBuf,
    /// The checked-out commit; `None` outside of git.
    pub commit: Option<String>,
    pub files: RepositoryFiles,
}

impl ProjectFiles {
    pub fn read(path: &Path) -> Result<Self> {
        match Self::read_commit(path) {
            Ok(project) => Ok(project),
            Err(
                atoll_forge::Error::NotARepository { .. }
                | atoll_forge::Error::NoCommits { .. }
                | atoll_forge::Error::HeadUnborn { .. }
                | atoll_forge::Error::GitMissing,
            ) => Self::read_directory(path)
                .map_err(|error| Failure::input(format!("cannot read {}: {error}", path.display()))),
            Err(error) => Err(Failure::setup(error.code(), error)),
        }
    }

    fn read_commit(path: &Path) -> Result<Self, atoll_forge::Error> {
        let repository = HostRepository::open(path)?;
        let commit = repository.head()?.commit;
        let files = repository.read_setup_files(&commit)?;
        let directory = repository.work_tree().unwrap_or_else(|| repository.git_dir()).to_owned();
        Ok(Self { directory, commit: Some(commit), files })
    }

    fn read_directory(path: &Path) -> io::Result<Self> {
        let directory = path.canonicalize()?;
        let mut files = RepositoryFiles::default();
        let mut entries_left = MAX_ENTRIES;
        collect_files(&directory, "", &mut files, &mut entries_left)?;
        Ok(Self { directory, commit: None, files })
    }
}

/// Adds the setup files below `prefix`; follows no symbolic links.
fn collect_files(root: &Path, prefix: &str, files: &mut RepositoryFiles, entries_left: &mut usize) -> io::Result<()> {
    for entry in fs::read_dir(root.join(prefix))? {
        let entry = entry?;
        if *entries_left == 0 {
            return Ok(());
        }
        *entries_left -= 1;
        let Some(path) = entry.file_name().to_str().map(|name| format!("{prefix}{name}")) else { continue };
        let kind = entry.file_type()?;
        if kind.is_file() && files.accepts(&path) {
            let content = read_file(&root.join(&path))?;
            files.insert(path, content);
        } else if kind.is_dir() && may_hold_setup_files(&path) {
            // A directory that this user cannot read is no reason to fail.
            drop(collect_files(root, &format!("{path}/"), files, entries_left));
        }
    }
    Ok(())
}

/// Reads a file; `None` if it is too large.
fn read_file(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let mut content = Vec::new();
    file.take(MAX_SETUP_FILE_BYTES + 1).read_to_end(&mut content)?;
    Ok((content.len() as u64 <= MAX_SETUP_FILE_BYTES).then_some(content))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn reads_a_directory_without_git_and_follows_no_links() {
        let base = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = base.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        };
        for name in
            ["package.json", "web/package-lock.json", ".cargo/config.toml", "node_modules/a/package.json", "main.rs"]
        {
            write(name);
        }
        symlink("/etc/passwd", base.path().join("Cargo.lock")).unwrap();
        symlink(base.path(), base.path().join("again")).unwrap();
        let project = ProjectFiles::read_directory(base.path()).unwrap();
        assert_eq!(
            project.files.paths().collect::<Vec<_>>(),
            [".cargo/config.toml", "package.json", "web/package-lock.json"]
        );
        assert_eq!(project.files.text("web/package-lock.json"), Some("web/package-lock.json"));
        assert!(ProjectFiles::read(&base.path().join("missing")).is_err());
    }
}
