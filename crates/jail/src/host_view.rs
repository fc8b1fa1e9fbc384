//! The allow-list of host directories that are visible inside, read-only.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::init_process;

/// Links or directories beside `/usr` that programs expect.
const USR_SIBLINGS: [&str; 6] = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// Tool directories in a home that hold no secrets.
const HOME_TOOL_DIRS: [&str; 6] =
    [".cargo/bin", ".rustup/toolchains", ".nvm/versions", ".pyenv", ".local/bin", "go/bin"];

/// Paths that each sandbox has itself; no host directory can be mounted there.
const RESERVED_PATHS: [&str; 10] =
    ["/etc", "/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp", "/workspace", "/home/agent", "/opt/atoll"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostView {
    /// Host directories, mounted at the same path; none is inside another.
    pub directories: Vec<PathBuf>,
    /// Links at the root and their targets.
    pub links: Vec<(PathBuf, PathBuf)>,
    /// The `PATH` inside.
    pub path: String,
    /// Requested directories that cannot be visible, with the reason.
    pub refused: Vec<(PathBuf, String)>,
}

impl HostView {
    pub fn build(home: Option<&Path>, tools: &[PathBuf], hidden: &Path) -> Self {
        let mut view = Self {
            directories: vec!["/usr".into()],
            links: Vec::new(),
            path: init_process::DEFAULT_PATH.into(),
            refused: Vec::new(),
        };
        for path in USR_SIBLINGS.map(PathBuf::from) {
            match fs::symlink_metadata(&path) {
                Ok(metadata) if metadata.is_dir() => view.directories.push(path),
                Ok(metadata) if metadata.is_symlink() => {
                    if let Ok(target) = fs::read_link(&path) {
                        view.links.push((path, target));
                    }
                }
                Ok(_) | Err(_) => {}
            }
        }
        let own = home.into_iter().flat_map(|home| HOME_TOOL_DIRS.map(|tool| home.join(tool)));
        let named = tools
            .iter()
            .flat_map(|path| if path == Path::new("/opt") { list_subdirs(path) } else { vec![path.clone()] });
        for (path, asked_for) in own.map(|path| (path, false)).chain(named.map(|path| (path, true))) {
            match check_visible(&path, home, hidden) {
                Ok(()) => view.add_dir(path),
                Err(reason) if asked_for => view.refused.push((path, reason)),
                Err(_) => {}
            }
        }
        view.path = [view.path.clone()].into_iter().chain(view.program_dirs(home)).collect::<Vec<_>>().join(":");
        view
    }

    fn add_dir(&mut self, path: PathBuf) {
        if self.directories.iter().any(|there| path.starts_with(there)) {
            return;
        }
        self.directories.retain(|there| !there.starts_with(&path));
        self.directories.push(path);
    }

    /// The program directories among the tools, for `PATH`.
    fn program_dirs(&self, home: Option<&Path>) -> Vec<String> {
        let mut found = BTreeSet::new();
        let mut programs = Vec::new();
        for directory in self.directories.iter().filter(|path| !is_usr_sibling(path)) {
            let below = home.and_then(|home| directory.strip_prefix(home).ok()).and_then(Path::to_str);
            let candidates = match below {
                Some(".rustup/toolchains") => vec![default_toolchain(directory).join("bin")],
                Some(".nvm/versions") => vec![newest_version(&directory.join("node")).join("bin")],
                Some(".pyenv") => vec![directory.join("shims"), directory.join("bin")],
                _ if directory.join("bin").is_dir() => vec![directory.join("bin")],
                _ => vec![directory.clone()],
            };
            for candidate in candidates.into_iter().filter(|path| path.is_dir()) {
                if let Some(text) = candidate.to_str().filter(|text| !text.contains(':'))
                    && found.insert(text.to_owned())
                {
                    // A toolchain goes before rustup's shims, which need the home's settings.
                    let first = below == Some(".rustup/toolchains");
                    programs.insert(if first { 0 } else { programs.len() }, text.to_owned());
                }
            }
        }
        programs
    }
}

fn is_usr_sibling(path: &Path) -> bool {
    path == Path::new("/usr") || USR_SIBLINGS.iter().any(|sibling| path == Path::new(sibling))
}

fn check_visible(path: &Path, home: Option<&Path>, hidden: &Path) -> Result<(), String> {
    if !path.is_absolute() || path.components().any(|part| part == std::path::Component::ParentDir) {
        return Err("it is not an absolute path without `..`".to_owned());
    }
    let real = fs::canonicalize(path).map_err(|error| error.to_string())?;
    if !real.is_dir() {
        return Err("it is not a directory".to_owned());
    }
    for candidate in [path, &real] {
        if hidden.starts_with(candidate) || candidate.starts_with(hidden) {
            return Err("it would expose the server's data".to_owned());
        }
        if home.is_some_and(|home| home.starts_with(candidate)) {
            return Err("it would expose a whole home directory".to_owned());
        }
    }
    if let Some(reserved) =
        RESERVED_PATHS.iter().find(|reserved| path.starts_with(reserved) || Path::new(reserved).starts_with(path))
    {
        return Err(format!("{reserved} is reserved for the sandbox itself"));
    }
    Ok(())
}

/// The default toolchain of rustup's settings, else the last by name.
fn default_toolchain(toolchains: &Path) -> PathBuf {
    let settings = toolchains.with_file_name("settings.toml");
    let named = fs::read_to_string(settings).ok().and_then(|text| {
        let value = text.lines().find_map(|line| line.strip_prefix("default_toolchain"))?;
        Some(toolchains.join(value.trim_start_matches([' ', '=']).trim().trim_matches('"')))
    });
    named.filter(|path| path.is_dir()).unwrap_or_else(|| newest_version(toolchains))
}

/// Lists subdirectories of `/opt`: sandboxes need `/opt` itself for the worker.
fn list_subdirs(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.is_dir() && !path.ends_with("atoll")).collect()
}

/// The entry with the highest version number in its name.
fn newest_version(directory: &Path) -> PathBuf {
    let version = |path: &PathBuf| -> Vec<u64> {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.split(|letter: char| !letter.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.is_dir()).max_by_key(version).unwrap_or_else(|| directory.join("none"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposes_only_tool_directories_of_the_home() {
        let base = tempfile::tempdir().unwrap();
        let home = base.path().join("home");
        for directory in
            [".cargo/bin", ".ssh", ".config", ".rustup/toolchains/1.80/bin", ".nvm/versions/node/v9.1.0/bin"]
        {
            fs::create_dir_all(home.join(directory)).unwrap();
        }
        fs::create_dir_all(home.join(".nvm/versions/node/v10.0.0/bin")).unwrap();
        assert_eq!(newest_version(&home.join(".nvm/versions/node")), home.join(".nvm/versions/node/v10.0.0"));
        assert_eq!(default_toolchain(&home.join(".rustup/toolchains")), home.join(".rustup/toolchains/1.80"));
        fs::create_dir_all(home.join(".rustup/toolchains/stable")).unwrap();
        fs::write(home.join(".rustup/settings.toml"), "version = \"12\"\ndefault_toolchain = \"stable\"\n").unwrap();
        assert_eq!(default_toolchain(&home.join(".rustup/toolchains")), home.join(".rustup/toolchains/stable"));

        let view = HostView::build(Some(&home), &[], Path::new("/srv/atoll"));
        assert!(view.directories.contains(&PathBuf::from("/usr")));
        assert!(!view.directories.iter().any(|path| path.ends_with(".ssh") || path.ends_with(".config")));
    }

    #[test]
    fn refuses_directories_that_expose_too_much() {
        let hidden = Path::new("/srv/atoll");
        let home = Path::new("/root");
        let refused = |path: &str| check_visible(Path::new(path), Some(home), hidden).is_err();
        for path in
            ["/", "/srv", "/root", "relative", "/usr/..", "/etc", "/proc/self", "/nowhere/at/all", "/etc/passwd"]
        {
            assert!(refused(path), "{path}");
        }
        let view = HostView::build(None, &["/etc".into(), "/usr/lib".into()], hidden);
        assert_eq!(view.refused.len(), 1);
        assert!(!view.directories.contains(&PathBuf::from("/usr/lib")), "it is in /usr already");
    }
}
