//! uv, poetry, pipenv and pip.

use super::{DetectedProject, LockFile, ProjectDirectory};
use crate::setup::setup_files::{is_requirements_file, split_path};

/// By lock file, in order of precedence: the command and its tools.
const BY_LOCK_FILE: &[(&str, &[&str], &[&str])] = &[
    ("uv.lock", &["uv", "sync", "--frozen"], &["python3", "uv"]),
    ("poetry.lock", &["poetry", "install"], &["poetry", "python3"]),
    ("Pipfile.lock", &["pipenv", "sync", "--dev"], &["pipenv", "python3"]),
];

/// Requirements files that developers of a project install, in order.
const REQUIREMENTS: &[&str] = &[
    "requirements.txt",
    "requirements-dev.txt",
    "requirements_dev.txt",
    "requirements-test.txt",
    "requirements_test.txt",
    "requirements-tests.txt",
    "dev-requirements.txt",
    "test-requirements.txt",
];

pub(super) fn detect_python(project: &ProjectDirectory<'_>) -> Option<DetectedProject> {
    if let Some((lock, command, tools)) = BY_LOCK_FILE.iter().find(|(lock, ..)| project.has(lock)) {
        return DetectedProject::with_lock(project.step(command, project.path(lock), tools), Vec::new());
    }
    detect_requirements(project).or_else(|| explain_missing_lock(project))
}

/// Installs into a virtual environment: Debian's pip refuses to change the system's packages.
fn detect_requirements(project: &ProjectDirectory<'_>) -> Option<DetectedProject> {
    let installed: Vec<&str> = REQUIREMENTS.iter().copied().filter(|name| project.has(name)).collect();
    let first = project.path(installed.first()?);
    let mut install = vec![".venv/bin/pip", "install"];
    install.extend(installed.iter().flat_map(|name| ["-r", name]));
    let reason = installed.iter().map(|name| project.path(name)).collect::<Vec<_>>().join(", ");
    let mut notes = Vec::new();
    let others: Vec<_> = list_requirements(project).filter(|name| !installed.contains(name)).collect();
    if !others.is_empty() {
        notes.push(format!("Set-up does not install {}: {first} is the default.", others.join(", ")));
    }
    let is_pinned = installed.iter().all(|name| project.text(name).is_some_and(pins_all_versions));
    if !is_pinned {
        notes.push(format!("{first} does not pin all versions with `==`, so its packages can change."));
    }
    let steps = vec![
        project.step(&["python3", "-m", "venv", ".venv"], first, &["python3"]),
        project.step(&install, reason, &["python3"]),
    ];
    Some(DetectedProject { steps, lock: LockFile::NotUsed, has_fixed_versions: is_pinned, notes })
}

fn list_requirements<'a>(project: &'a ProjectDirectory<'_>) -> impl Iterator<Item = &'a str> {
    let here = project.files.paths().map(split_path).filter(|(directory, _)| *directory == project.directory);
    here.map(|(_, name)| name).filter(|name| is_requirements_file(name))
}

fn pins_all_versions(text: &str) -> bool {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let mut packages = lines.filter(|line| !line.is_empty() && !line.starts_with('-'));
    packages.all(|line| line.contains("==") || line.contains(" @ "))
}

fn explain_missing_lock(project: &ProjectDirectory<'_>) -> Option<DetectedProject> {
    let has_table =
        |table: &str| project.text("pyproject.toml").is_some_and(|text| text.lines().any(|line| line.trim() == table));
    let manifest = match () {
        () if has_table("[project]") || has_table("[tool.poetry]") => "pyproject.toml",
        () if project.has("Pipfile") => "Pipfile",
        () if project.has("setup.py") => "setup.py",
        () => return None,
    };
    DetectedProject::without_steps(format!(
        "{} has no uv.lock, poetry.lock, Pipfile.lock or requirements.txt beside it, so set-up does not install its \
         packages: commit one, or list your commands in .atoll/setup.",
        project.path(manifest)
    ))
}
