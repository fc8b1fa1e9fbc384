//! A survey of the repository: its files, its language and its test command.

use super::DemoHost;

pub(super) const UNITTEST_COMMAND: &str = "python3 -B -m unittest -q";

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RepositorySurvey {
    /// Relative paths, sorted.
    pub files: Vec<String>,
    /// The command that runs the tests, if it is known and its program exists.
    pub test_command: Option<String>,
    pub is_git: bool,
    pub has_python: bool,
}

impl RepositorySurvey {
    pub(super) fn scan_workspace(host: &impl DemoHost) -> Self {
        let has_program = |command: &str| host.has_program(command.split(' ').next().unwrap_or_default());
        let files = host.list_files();
        let test_command = find_test_command(&files, |file| host.read_file(file));
        Self {
            test_command: test_command.filter(|command| has_program(command)).map(str::to_owned),
            is_git: host.is_git_repository() && has_program("git"),
            has_python: has_program(UNITTEST_COMMAND),
            files,
        }
    }

    /// Returns true if a Python module fits the repository.
    pub(super) fn is_python(&self) -> bool {
        self.files.iter().any(|file| file.ends_with(".py"))
    }
}

fn find_test_command(files: &[String], read: impl Fn(&str) -> Option<String>) -> Option<&'static str> {
    let has = |file: &str| files.iter().any(|it| it == file);
    let content = |file: &str| if has(file) { read(file).unwrap_or_default() } else { String::new() };
    if content("Makefile").lines().any(|line| line.starts_with("test:")) {
        Some("make test")
    } else if has("Cargo.toml") {
        Some("cargo test --offline --quiet")
    } else if content("package.json").contains("\"test\"") {
        Some("npm test --silent")
    } else if has("go.mod") {
        Some("go test ./...")
    } else if files.iter().any(|file| is_python_test(file)) {
        Some(UNITTEST_COMMAND)
    } else {
        None
    }
}

fn is_python_test(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.starts_with("test_") && name.ends_with(".py")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_test_command() {
        let command = |file: &str, content: &str| find_test_command(&[file.to_owned()], |_| Some(content.to_owned()));
        assert_eq!(command("Makefile", "all:\n\ntest:\n\ttrue\n"), Some("make test"));
        assert_eq!(command("Makefile", "test: all\n"), Some("make test"));
        assert_eq!(command("Makefile", "all:\n"), None);
        assert_eq!(command("Cargo.toml", ""), Some("cargo test --offline --quiet"));
        assert_eq!(command("package.json", r#"{"scripts":{"test":"x"}}"#), Some("npm test --silent"));
        assert_eq!(command("package.json", "{}"), None);
        assert_eq!(command("tests/test_a.py", ""), Some(UNITTEST_COMMAND));
        assert_eq!(command("README.md", ""), None);
    }
}
