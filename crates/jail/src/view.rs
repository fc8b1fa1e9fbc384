//! What of the host can be seen inside: an allow-list, all of it read-only.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::inside;

/// Links or directories beside `/usr` that programs expect at the root.
const BESIDE_USR: [&str; 6] = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// Tool directories of a home that hold no secrets.
const TOOLS_OF_HOME: [&str; 6] =
    [".cargo/bin", ".rustup/toolchains", ".nvm/versions", ".pyenv", ".local/bin", "go/bin"];

/// What is made inside for each sandbox; nothing of the host can be shown there.
const RESERVED: [&str; 10] =
    ["/etc", "/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp", "/workspace", "/home/agent", "/opt/atoll"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct View {
    /// Directories of the host, shown at their own path; none lies in another.
    pub directories: Vec<PathBuf>,
    /// Links at the root, and where they point to.
    pub links: Vec<(PathBuf, PathBuf)>,
    /// Where programs are looked for.
    pub path: String,
    /// What was asked for and can't be shown, and why.
    pub refused: Vec<(PathBuf, String)>,
}

impl View {
    pub fn of(home: Option<&Path>, tools: &[PathBuf], hidden: &Path) -> Self {
        let mut view = Self {
            directories: vec!["/usr".into()],
            links: Vec::new(),
            path: inside::PATH.into(),
            refused: Vec::new(),
        };
        for path in BESIDE_USR.map(PathBuf::from) {
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
        let own = home.into_iter().flat_map(|home| TOOLS_OF_HOME.map(|tool| home.join(tool)));
        let named =
            tools.iter().flat_map(|path| if path == Path::new("/opt") { below(path) } else { vec![path.clone()] });
        for (path, asked_for) in own.map(|path| (path, false)).chain(named.map(|path| (path, true))) {
            match admissible(&path, home, hidden) {
                Ok(()) => view.add(path),
                Err(reason) if asked_for => view.refused.push((path, reason)),
                Err(_) => {}
            }
        }
        view.path = [view.path.clone()].into_iter().chain(view.programs(home)).collect::<Vec<_>>().join(":");
        view
    }

    fn add(&mut self, path: PathBuf) {
        if self.directories.iter().any(|there| path.starts_with(there)) {
            return;
        }
        self.directories.retain(|there| !there.starts_with(&path));
        self.directories.push(path);
    }

    /// The directories with programs among the tools.
    fn programs(&self, home: Option<&Path>) -> Vec<String> {
        let mut found = BTreeSet::new();
        let mut programs = Vec::new();
        for directory in self.directories.iter().filter(|path| !beside_usr(path)) {
            let below = home.and_then(|home| directory.strip_prefix(home).ok()).and_then(Path::to_str);
            let candidates = match below {
                Some(".rustup/toolchains") => vec![default_toolchain(directory).join("bin")],
                Some(".nvm/versions") => vec![newest(&directory.join("node")).join("bin")],
                Some(".pyenv") => vec![directory.join("shims"), directory.join("bin")],
                _ if directory.join("bin").is_dir() => vec![directory.join("bin")],
                _ => vec![directory.clone()],
            };
            for candidate in candidates.into_iter().filter(|path| path.is_dir()) {
                if let Some(text) = candidate.to_str().filter(|text| !text.contains(':'))
                    && found.insert(text.to_owned())
                {
                    // A toolchain itself goes before rustup's stand-ins, which need settings of the home.
                    let first = below == Some(".rustup/toolchains");
                    programs.insert(if first { 0 } else { programs.len() }, text.to_owned());
                }
            }
        }
        programs
    }
}

fn beside_usr(path: &Path) -> bool {
    path == Path::new("/usr") || BESIDE_USR.iter().any(|beside| path == Path::new(beside))
}

fn admissible(path: &Path, home: Option<&Path>, hidden: &Path) -> Result<(), String> {
    if !path.is_absolute() || path.components().any(|part| part == std::path::Component::ParentDir) {
        return Err("it is not an absolute path without `..`".to_owned());
    }
    let real = fs::canonicalize(path).map_err(|error| error.to_string())?;
    if !real.is_dir() {
        return Err("it is not a directory".to_owned());
    }
    for candidate in [path, &real] {
        if hidden.starts_with(candidate) || candidate.starts_with(hidden) {
            return Err("it would show the server's data".to_owned());
        }
        if home.is_some_and(|home| home.starts_with(candidate)) {
            return Err("it would show a whole home directory".to_owned());
        }
    }
    if let Some(reserved) =
        RESERVED.iter().find(|reserved| path.starts_with(reserved) || Path::new(reserved).starts_with(path))
    {
        return Err(format!("{reserved} is the sandbox's own"));
    }
    Ok(())
}

/// The toolchain that rustup's settings name, else the one that comes last by name.
fn default_toolchain(toolchains: &Path) -> PathBuf {
    let settings = toolchains.with_file_name("settings.toml");
    let named = fs::read_to_string(settings).ok().and_then(|text| {
        let value = text.lines().find_map(|line| line.strip_prefix("default_toolchain"))?;
        Some(toolchains.join(value.trim_start_matches([' ', '=']).trim().trim_matches('"')))
    });
    named.filter(|path| path.is_dir()).unwrap_or_else(|| newest(toolchains))
}

/// `/opt` itself is needed for the worker, so what is in it is shown one by one.
fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.is_dir() && !path.ends_with("atoll")).collect()
}

/// The entry with the highest version in its name.
fn newest(directory: &Path) -> PathBuf {
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
    fn shows_tools_of_the_home_and_no_more() {
        let base = tempfile::tempdir().unwrap();
        let home = base.path().join("home");
        for directory in
            [".cargo/bin", ".ssh", ".config", ".rustup/toolchains/1.80/bin", ".nvm/versions/node/v9.1.0/bin"]
        {
            fs::create_dir_all(home.join(directory)).unwrap();
        }
        fs::create_dir_all(home.join(".nvm/versions/node/v10.0.0/bin")).unwrap();
        assert_eq!(newest(&home.join(".nvm/versions/node")), home.join(".nvm/versions/node/v10.0.0"));
        assert_eq!(default_toolchain(&home.join(".rustup/toolchains")), home.join(".rustup/toolchains/1.80"));
        fs::create_dir_all(home.join(".rustup/toolchains/stable")).unwrap();
        fs::write(home.join(".rustup/settings.toml"), "version = \"12\"\ndefault_toolchain = \"stable\"\n").unwrap();
        assert_eq!(default_toolchain(&home.join(".rustup/toolchains")), home.join(".rustup/toolchains/stable"));

        let view = View::of(Some(&home), &[], Path::new("/srv/atoll"));
        assert!(view.directories.contains(&PathBuf::from("/usr")));
        assert!(!view.directories.iter().any(|path| path.ends_with(".ssh") || path.ends_with(".config")));
    }

    #[test]
    fn refuses_what_would_show_too_much() {
        let hidden = Path::new("/srv/atoll");
        let home = Path::new("/root");
        let refused = |path: &str| admissible(Path::new(path), Some(home), hidden).is_err();
        for path in
            ["/", "/srv", "/root", "relative", "/usr/..", "/etc", "/proc/self", "/nowhere/at/all", "/etc/passwd"]
        {
            assert!(refused(path), "{path}");
        }
        let view = View::of(None, &["/etc".into(), "/usr/lib".into()], hidden);
        assert_eq!(view.refused.len(), 1);
        assert!(!view.directories.contains(&PathBuf::from("/usr/lib")), "it is in /usr already");
    }
}
