//! Names of the files that decide what set-up runs and what it installs.

/// The tools that read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ecosystem {
    JavaScript,
    Python,
    Rust,
    Go,
    Ruby,
    Php,
    Java,
    /// Files of no single ecosystem, such as `.tool-versions`.
    Any,
}

const MANIFESTS_AND_SETTINGS: &[(Ecosystem, &[&str])] = &[
    (
        Ecosystem::JavaScript,
        &[
            "package.json",
            "pnpm-workspace.yaml",
            ".pnpmfile.cjs",
            ".npmrc",
            ".yarnrc",
            ".yarnrc.yml",
            "bunfig.toml",
            ".nvmrc",
            ".node-version",
        ],
    ),
    (
        Ecosystem::Python,
        &["pyproject.toml", "setup.py", "setup.cfg", "uv.toml", "poetry.toml", "Pipfile", ".python-version"],
    ),
    (Ecosystem::Rust, &["Cargo.toml", "rust-toolchain.toml", "rust-toolchain", ".cargo/config.toml", ".cargo/config"]),
    (Ecosystem::Go, &["go.mod", "go.work"]),
    (Ecosystem::Ruby, &["Gemfile", ".ruby-version", ".bundle/config"]),
    (Ecosystem::Php, &["composer.json"]),
    (
        Ecosystem::Java,
        &[
            "pom.xml",
            "mvnw",
            ".mvn/maven.config",
            ".mvn/extensions.xml",
            ".mvn/wrapper/maven-wrapper.properties",
            "build.gradle",
            "build.gradle.kts",
            "settings.gradle",
            "settings.gradle.kts",
            "gradle.properties",
            "gradlew",
            "gradle/libs.versions.toml",
            "gradle/wrapper/gradle-wrapper.properties",
            ".java-version",
        ],
    ),
    (
        Ecosystem::Any,
        &[
            ".tool-versions",
            "mise.toml",
            ".mise.toml",
            ".atoll/setup",
            ".devcontainer/devcontainer.json",
            ".devcontainer.json",
        ],
    ),
];

const LOCK_FILES: &[(Ecosystem, &[&str])] = &[
    (
        Ecosystem::JavaScript,
        &["package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml", "yarn.lock", "bun.lock", "bun.lockb"],
    ),
    (Ecosystem::Python, &["uv.lock", "poetry.lock", "Pipfile.lock"]),
    (Ecosystem::Rust, &["Cargo.lock"]),
    (Ecosystem::Go, &["go.sum", "go.work.sum"]),
    (Ecosystem::Ruby, &["Gemfile.lock"]),
    (Ecosystem::Php, &["composer.lock"]),
    (Ecosystem::Java, &["gradle.lockfile"]),
];

/// Directories of other people's projects, of outputs and of samples. Hidden directories are ignored as well.
const IGNORED_DIRECTORIES: &[&str] = &[
    "__fixtures__",
    "build",
    "dist",
    "example",
    "examples",
    "fixtures",
    "node_modules",
    "target",
    "testdata",
    "third_party",
    "vendor",
];

/// Hidden directories that hold setup files.
const SEARCHED_HIDDEN_DIRECTORIES: &[&str] = &[".atoll", ".bundle", ".cargo", ".devcontainer", ".mvn"];

/// Setup files deeper than this are ignored.
const MAX_DEPTH: usize = 6;
const MAX_PATH_BYTES: usize = 500;

/// True for a file that decides what set-up runs or installs. The path is relative to the repository and hostile.
pub fn is_setup_file(path: &str) -> bool {
    let (directories, name) = path.rsplit_once('/').unwrap_or(("", path));
    path.len() <= MAX_PATH_BYTES
        && !name.is_empty()
        && !path.starts_with('/')
        && (directories.is_empty() || may_hold_setup_files(directories))
        && ecosystem_of(path).is_some()
}

/// False for a directory whose files are never setup files, so that readers can skip it.
pub fn may_hold_setup_files(directory: &str) -> bool {
    let is_hidden = |part: &str| part.starts_with('.') && !SEARCHED_HIDDEN_DIRECTORIES.contains(&part);
    let is_searched = |part: &str| {
        !part.is_empty()
            && !is_hidden(part)
            && !IGNORED_DIRECTORIES.contains(&part)
            && !part.chars().any(char::is_control)
    };
    directory.split('/').count() <= MAX_DEPTH && directory.split('/').all(is_searched)
}

/// The directory of the project that a setup file belongs to, and the file's name in it. `.` is the root.
pub(super) fn split_path(path: &str) -> (&str, &str) {
    let is_suffix = |name: &&str| path.strip_suffix(name).is_some_and(|above| above.is_empty() || above.ends_with('/'));
    let names = MANIFESTS_AND_SETTINGS.iter().flat_map(|(_, names)| names.iter().copied());
    let below_directory = names.filter(|name| name.contains('/')).find(is_suffix);
    let name_length = below_directory.or_else(|| path.rsplit('/').next()).map_or(path.len(), str::len);
    match path.split_at(path.len() - name_length) {
        ("", name) => (super::WORKSPACE_ROOT, name),
        (directory, name) => (directory.trim_end_matches('/'), name),
    }
}

pub(super) fn ecosystem_of(path: &str) -> Option<Ecosystem> {
    let (_, name) = split_path(path);
    let mut known = MANIFESTS_AND_SETTINGS.iter().chain(LOCK_FILES);
    let found = known.find(|(_, names)| names.contains(&name)).map(|(ecosystem, _)| *ecosystem);
    let other = || match name {
        _ if is_requirements_file(name) => Some(Ecosystem::Python),
        _ if name.ends_with(".gemspec") && !name.contains('/') => Some(Ecosystem::Ruby),
        _ => None,
    };
    found.or_else(other)
}

pub(super) fn is_lock_file(path: &str) -> bool {
    let (_, name) = split_path(path);
    LOCK_FILES.iter().any(|(_, names)| names.contains(&name))
}

/// `requirements*.txt` and `*requirements.txt`, in characters that no tool treats specially.
pub(super) fn is_requirements_file(name: &str) -> bool {
    let Some(stem) = name.strip_suffix(".txt") else { return false };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (stem.starts_with("requirements") || stem.ends_with("requirements"))
        && !stem.starts_with(['-', '.'])
        && stem.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_a_path_into_project_and_name() {
        for (path, expected) in [
            ("package.json", (".", "package.json")),
            ("web/package.json", ("web", "package.json")),
            (".cargo/config.toml", (".", ".cargo/config.toml")),
            ("a/b/.cargo/config.toml", ("a/b", ".cargo/config.toml")),
            ("app/gradle/wrapper/gradle-wrapper.properties", ("app", "gradle/wrapper/gradle-wrapper.properties")),
            ("wrapper/package.json", ("wrapper", "package.json")),
            ("x.cargo/config.toml", ("x.cargo", "config.toml")),
            ("", (".", "")),
            ("/", ("", "")),
        ] {
            assert_eq!(split_path(path), expected, "{path}");
        }
    }

    #[test]
    fn accepts_only_known_files_outside_of_ignored_directories() {
        for path in [
            "package.json",
            "a/b/c/Cargo.toml",
            ".atoll/setup",
            "requirements-dev.txt",
            "test-requirements.txt",
            "my.gemspec",
            "src/naïve dir/go.mod",
        ] {
            assert!(is_setup_file(path), "{path}");
        }
        for path in [
            "",
            "/package.json",
            "../package.json",
            "a/../package.json",
            "a//package.json",
            "a\n/package.json",
            "node_modules/a/package.json",
            "web/vendor/x/composer.json",
            ".git/package.json",
            ".venv/lib/x/pyproject.toml",
            "main.rs",
            "requirements;id.txt",
            "-requirements.txt",
            "a/b/c/d/e/f/g/package.json",
            "setup",
        ] {
            assert!(!is_setup_file(path), "{path}");
        }
    }
}
