//! A look at the repository: which files there are, in which language, and how its tests are run.

use std::path::Path;

/// What is listed at most.
const MOST: usize = 500;
const DEEPEST: usize = 6;
/// Directories that hold what was made, not what was written.
const MADE: &[&str] = &["node_modules", "target", "dist", "build", "vendor", "__pycache__", "venv"];

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Survey {
    /// Relative paths, sorted.
    pub files: Vec<String>,
    /// The command that runs the tests, if there is one.
    pub test: Option<String>,
    pub is_git: bool,
}

impl Survey {
    pub(super) fn of(root: &Path) -> Self {
        let mut files = Vec::new();
        list(root, "", 0, &mut files);
        files.sort();
        let test = test_command(root, &files).filter(|command| can_run(command));
        Self { files, test, is_git: root.join(".git").exists() && can_run("git") }
    }

    /// Whether a new module and its test would be at home here.
    pub(super) fn is_python(&self) -> bool {
        self.files.iter().any(|file| file.ends_with(".py"))
    }
}

fn list(dir: &Path, prefix: &str, depth: usize, files: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let Ok(kind) = entry.file_type() else { continue };
        if name.starts_with('.') || files.len() >= MOST {
            continue;
        }
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        if kind.is_file() {
            files.push(path);
        } else if kind.is_dir() && depth < DEEPEST && !MADE.contains(&name.as_str()) {
            list(&entry.path(), &path, depth + 1, files);
        }
    }
}

fn test_command(root: &Path, files: &[String]) -> Option<String> {
    let has = |file: &str| files.iter().any(|it| it == file);
    let holds = |file: &str, text: &str| {
        has(file) && std::fs::read_to_string(root.join(file)).is_ok_and(|content| content.contains(text))
    };
    let command = if has("Makefile") && (holds("Makefile", "\ntest:") || starts(root, "Makefile", "test:")) {
        "make test"
    } else if has("Cargo.toml") {
        "cargo test --offline --quiet"
    } else if holds("package.json", "\"test\"") {
        "npm test --silent"
    } else if has("go.mod") {
        "go test ./..."
    } else if files.iter().any(|file| is_python_test(file)) {
        "python3 -B -m unittest -q"
    } else {
        return None;
    };
    Some(command.to_owned())
}

fn starts(root: &Path, file: &str, text: &str) -> bool {
    std::fs::read_to_string(root.join(file)).is_ok_and(|content| content.starts_with(text))
}

fn is_python_test(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.starts_with("test_") && name.ends_with(".py")
}

/// Whether the program that a command begins with is there.
pub(super) fn can_run(command: &str) -> bool {
    let program = command.split_whitespace().next().unwrap_or_default();
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').any(|place| Path::new(place).join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (file, content) in files {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        root
    }

    #[test]
    fn what_was_made_is_not_looked_at() {
        let root = repository(&[("a.rs", ""), ("src/b.rs", ""), ("target/x", ""), (".git/config", "")]);
        let survey = Survey::of(root.path());
        assert_eq!(survey.files, ["a.rs", "src/b.rs"]);
        assert!(survey.is_git && !survey.is_python());
    }

    #[test]
    fn the_tests_are_found() {
        let command = |files: &[(&str, &str)]| {
            let root = repository(files);
            test_command(root.path(), &Survey::of(root.path()).files)
        };
        assert_eq!(command(&[("Makefile", "all:\n\ntest:\n\ttrue\n")]).as_deref(), Some("make test"));
        assert_eq!(command(&[("Makefile", "test: all\n")]).as_deref(), Some("make test"));
        assert_eq!(command(&[("Makefile", "all:\n")]), None);
        assert_eq!(command(&[("Cargo.toml", "")]).as_deref(), Some("cargo test --offline --quiet"));
        assert_eq!(command(&[("package.json", r#"{"scripts":{"test":"x"}}"#)]).as_deref(), Some("npm test --silent"));
        assert_eq!(command(&[("package.json", "{}")]), None);
        assert_eq!(command(&[("tests/test_a.py", "")]).as_deref(), Some("python3 -B -m unittest -q"));
        assert_eq!(command(&[("README.md", "")]), None);
    }
}
