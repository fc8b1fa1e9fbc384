//! The host's programs as a sandbox without an image sees them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::host_view::HostView;

/// The programs that sandboxes with these options can run.
#[derive(Debug, Clone)]
pub struct VisiblePrograms {
    view: HostView,
}

/// A program of the host, seen from a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramVisibility {
    /// The first one in the sandbox's `PATH`.
    Visible(PathBuf),
    /// The host has it in a directory that sandboxes do not see.
    Hidden(PathBuf),
    Missing,
}

impl VisiblePrograms {
    /// `tool_dirs` and `data_dir` are those of the launcher's options. The home is that of this process.
    pub fn new(tool_dirs: &[PathBuf], data_dir: &Path) -> Self {
        Self { view: HostView::build(std::env::home_dir().as_deref(), tool_dirs, data_dir) }
    }

    /// Finds a program by name, first in the sandbox's `PATH` and then in this process's.
    pub fn find_program(&self, name: &str) -> ProgramVisibility {
        if name.is_empty() || name.contains('/') {
            return ProgramVisibility::Missing;
        }
        let inside = std::env::split_paths(&self.view.path).map(|directory| directory.join(name));
        let mut hidden = None;
        for path in inside.filter(|path| is_program(path)) {
            if self.is_visible(&path) {
                return ProgramVisibility::Visible(path);
            }
            hidden = hidden.or(Some(path));
        }
        let search = std::env::var_os("PATH").unwrap_or_default();
        let mut outside = std::env::split_paths(&search).filter(|directory| directory.is_absolute());
        let hidden =
            hidden.or_else(|| outside.find_map(|directory| Some(directory.join(name)).filter(|it| is_program(it))));
        hidden.map_or(ProgramVisibility::Missing, ProgramVisibility::Hidden)
    }

    /// Identifies a visible program's file without running it: its real path, size and modification time.
    pub fn fingerprint(&self, name: &str) -> Option<String> {
        let ProgramVisibility::Visible(path) = self.find_program(name) else { return None };
        let real = fs::canonicalize(path).ok()?;
        let found = fs::metadata(&real).ok()?;
        Some(format!("{} {} {}.{:09}", real.display(), found.len(), found.mtime(), found.mtime_nsec()))
    }

    /// True if the real file is in a visible directory: a link may lead elsewhere.
    fn is_visible(&self, path: &Path) -> bool {
        let is_below = |directory: &PathBuf| {
            let real = fs::canonicalize(path);
            real.is_ok_and(|real| {
                real.starts_with(directory) || fs::canonicalize(directory).is_ok_and(|it| real.starts_with(it))
            })
        };
        self.view.directories.iter().any(is_below)
    }
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn write_program(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_link_out_of_the_visible_directories_hides_a_program() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        let tools = base.join("tools");
        write_program(&tools.join("bin/atoll-test-seen"));
        write_program(&base.join("elsewhere/atoll-test-linked"));
        symlink(base.join("elsewhere/atoll-test-linked"), tools.join("bin/atoll-test-linked")).unwrap();
        fs::write(tools.join("bin/atoll-test-plain"), "").unwrap();
        let path = format!("{}:/usr/bin:/bin", tools.join("bin").display());
        let directories = vec![tools.clone(), "/usr".into(), "/bin".into()];
        let programs = VisiblePrograms { view: HostView { directories, links: Vec::new(), path, refused: Vec::new() } };

        let seen = tools.join("bin/atoll-test-seen");
        assert_eq!(programs.find_program("atoll-test-seen"), ProgramVisibility::Visible(seen.clone()));
        let linked = tools.join("bin/atoll-test-linked");
        assert_eq!(programs.find_program("atoll-test-linked"), ProgramVisibility::Hidden(linked));
        for missing in ["atoll-test-plain", "atoll-test-none", "", "../bin/sh", "/bin/sh"] {
            assert_eq!(programs.find_program(missing), ProgramVisibility::Missing, "{missing}");
        }
        assert!(matches!(programs.find_program("sh"), ProgramVisibility::Visible(_)));
        let before = programs.fingerprint("atoll-test-seen").unwrap();
        assert!(before.contains("atoll-test-seen") && programs.fingerprint("atoll-test-linked").is_none());
        fs::write(&seen, "#!/bin/sh\ntrue\n").unwrap();
        assert_ne!(programs.fingerprint("atoll-test-seen").unwrap(), before);
    }
}
