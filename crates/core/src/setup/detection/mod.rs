//! Detects package managers by manifests and lock files, at the root and up to two directories below.

mod compiled;
mod javascript;
mod python;
mod scripted;

use super::setup_files::{self, Ecosystem};
use super::{RepositoryFiles, SetupCommand, SetupPlan, SetupSource, SetupStep, WORKSPACE_ROOT};
use std::collections::{BTreeMap, BTreeSet};

const MAX_STEPS: usize = 8;
const MAX_NOTES: usize = 20;
const MAX_PROJECT_DEPTH: usize = 2;

const DETECTORS: &[(Ecosystem, Detector)] = &[
    (Ecosystem::JavaScript, javascript::detect_javascript),
    (Ecosystem::Python, python::detect_python),
    (Ecosystem::Rust, compiled::detect_rust),
    (Ecosystem::Go, compiled::detect_go),
    (Ecosystem::Java, compiled::detect_java),
    (Ecosystem::Ruby, scripted::detect_ruby),
    (Ecosystem::Php, scripted::detect_php),
];

type Detector = fn(&ProjectDirectory<'_>) -> Option<DetectedProject>;

/// A directory that may hold a project.
struct ProjectDirectory<'a> {
    directory: &'a str,
    files: &'a RepositoryFiles,
}

impl ProjectDirectory<'_> {
    fn has(&self, name: &str) -> bool {
        self.files.contains(&self.path(name))
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.files.text(&self.path(name))
    }

    /// The path of a file in the repository.
    fn path(&self, name: &str) -> String {
        if self.directory == WORKSPACE_ROOT { name.to_owned() } else { format!("{}/{name}", self.directory) }
    }

    fn find_first<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        names.iter().copied().find(|name| self.has(name))
    }

    fn step(&self, argv: &[&str], reason: String, tools: &[&str]) -> SetupStep {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let (command, directory) = (SetupCommand::Argv(owned(argv)), self.directory.to_owned());
        SetupStep { command, directory, reason, tools: owned(tools) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LockFile {
    Present,
    Missing,
    /// The package manager has none.
    NotUsed,
}

/// The steps of one package manager in one directory.
struct DetectedProject {
    steps: Vec<SetupStep>,
    lock: LockFile,
    /// The project's files decide the version of each package.
    has_fixed_versions: bool,
    notes: Vec<String>,
}

impl DetectedProject {
    fn with_lock(step: SetupStep, notes: Vec<String>) -> Option<Self> {
        Some(Self { steps: vec![step], lock: LockFile::Present, has_fixed_versions: true, notes })
    }

    fn without_lock(step: SetupStep, notes: Vec<String>) -> Option<Self> {
        Some(Self { steps: vec![step], lock: LockFile::Missing, has_fixed_versions: false, notes })
    }

    /// A project without a command that would install its packages and leave its files unchanged.
    fn without_steps(note: String) -> Option<Self> {
        Some(Self { steps: Vec::new(), lock: LockFile::Missing, has_fixed_versions: true, notes: vec![note] })
    }
}

pub(super) fn detect_setup(files: &RepositoryFiles) -> SetupPlan {
    let mut plan = SetupPlan {
        source: SetupSource::Detected,
        steps: Vec::new(),
        env: BTreeMap::new(),
        ports: Vec::new(),
        key_files: Vec::new(),
        locked: true,
        notes: Vec::new(),
    };
    let mut found: Vec<(Ecosystem, &str)> = Vec::new();
    let mut left_out = 0;
    for directory in list_project_directories(files) {
        let project = ProjectDirectory { directory, files };
        for (ecosystem, detect) in DETECTORS {
            let Some(detected) = detect(&project) else { continue };
            let is_nested = directory != WORKSPACE_ROOT;
            let is_member = found.iter().any(|(above, outer)| above == ecosystem && is_below(directory, outer));
            if is_member && detected.lock != LockFile::Present {
                continue;
            }
            found.push((*ecosystem, directory));
            if is_nested && detected.lock == LockFile::Missing {
                plan.notes
                    .push(format!("{directory} has a project without a lock file, which set-up does not install."));
            } else if plan.steps.len() + detected.steps.len() > MAX_STEPS {
                left_out += 1;
            } else {
                plan.locked &= detected.has_fixed_versions;
                plan.steps.extend(detected.steps);
                plan.notes.extend(detected.notes);
            }
        }
    }
    plan.notes.truncate(MAX_NOTES);
    if left_out > 0 {
        plan.notes.push(format!(
            "Set-up leaves out {left_out} more projects of this repository: detection finds at most {MAX_STEPS} commands. \
             List your commands in .atoll/setup to choose them."
        ));
    }
    plan.key_files = select_key_files(files, found.iter().map(|(ecosystem, _)| *ecosystem).collect());
    plan
}

/// The directories with setup files, outer ones first.
fn list_project_directories(files: &RepositoryFiles) -> Vec<&str> {
    let depth = |directory: &str| if directory == WORKSPACE_ROOT { 0 } else { directory.split('/').count() };
    let directories: BTreeSet<_> = files.paths().map(|path| setup_files::split_path(path).0).collect();
    let mut projects: Vec<_> =
        directories.into_iter().filter(|directory| depth(directory) <= MAX_PROJECT_DEPTH).collect();
    projects.sort_by_key(|directory| depth(directory));
    projects
}

fn is_below(directory: &str, outer: &str) -> bool {
    outer == WORKSPACE_ROOT || directory.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'))
}

/// All setup files of the ecosystems in use: a manifest below may belong to the same workspace.
fn select_key_files(files: &RepositoryFiles, used: BTreeSet<Ecosystem>) -> Vec<String> {
    let is_used = |path: &&str| {
        setup_files::ecosystem_of(path)
            .is_some_and(|ecosystem| ecosystem == Ecosystem::Any || used.contains(&ecosystem))
    };
    files.paths().filter(is_used).map(str::to_owned).collect()
}
