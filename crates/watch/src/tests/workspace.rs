//! A test workspace, and a model that applies reports.

use super::patch::apply_patch;
use crate::*;
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use tempfile::TempDir;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    Notices,
    Scanning,
}

pub const MODES: [Mode; 2] = [Mode::Notices, Mode::Scanning];

pub struct TestWorkspace {
    pub directory: TempDir,
}

impl TestWorkspace {
    pub fn new() -> Self {
        Self { directory: tempfile::Builder::new().prefix("atoll-files-").tempdir().unwrap() }
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    pub fn write_file(&self, path: &str, content: impl AsRef<[u8]>) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), content).unwrap();
    }

    pub fn run_git(&self, arguments: &[&str]) {
        let output = Command::new("git")
            .args(["-c", "user.name=n", "-c", "user.email=n@example.org"])
            .args(arguments)
            .current_dir(self.directory.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    pub fn commit_all(&self) {
        if !self.path(".git").exists() {
            self.run_git(&["init", "-q", "-b", "main"]);
        }
        self.run_git(&["add", "-A"]);
        self.run_git(&["commit", "-q", "--allow-empty", "-m", "all"]);
    }

    pub fn start_watcher(&self, mode: Mode) -> Watcher {
        self.start_watcher_with(mode, Options::default())
    }

    pub fn start_watcher_with(&self, mode: Mode, options: Options) -> Watcher {
        let notify = match mode {
            Mode::Notices => Some(Inotify::new().unwrap()),
            Mode::Scanning => None,
        };
        let watch = Watcher::start_with(self.directory.path(), options, notify).unwrap();
        assert_eq!(watch.inotify_fd().is_some(), mode == Mode::Notices);
        watch
    }

    /// Reads all files, and links by their targets, except `.git` and `ignored`.
    pub fn read_contents(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        let mut waiting = vec![self.directory.path().to_path_buf()];
        while let Some(directory) = waiting.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap();
                let meta = fs::symlink_metadata(&path).unwrap();
                let relative = path.strip_prefix(self.directory.path()).unwrap().to_str().unwrap().to_owned();
                if meta.is_dir() && name != ".git" && name != "ignored" {
                    waiting.push(path);
                } else if meta.is_symlink() {
                    found.insert(relative, fs::read_link(&path).unwrap().to_str().unwrap().to_owned());
                } else if meta.is_file() {
                    found.insert(relative, fs::read_to_string(&path).unwrap());
                }
            }
        }
        found
    }
}

/// Applies reports to a model of the old tree.
pub fn apply_changes(model: &mut BTreeMap<String, String>, changes: &[Change]) -> Result<(), String> {
    for change in changes {
        let problem = |reason: &str| format!("{reason}: {change:?}");
        let old = match change.change_type {
            ChangeType::Created if model.contains_key(&change.file_path) => return Err(problem("created twice")),
            ChangeType::Created => String::new(),
            ChangeType::Modified => model.get(&change.file_path).ok_or_else(|| problem("unknown"))?.clone(),
            ChangeType::Deleted => model.remove(&change.file_path).ok_or_else(|| problem("unknown"))?,
            ChangeType::Renamed => {
                let old = change.old_path.as_ref().ok_or_else(|| problem("from where"))?;
                model.remove(old).ok_or_else(|| problem("unknown"))?
            }
        };
        let diff = change.full_diff.as_ref().ok_or_else(|| problem("no diff"))?;
        let new = apply_patch(&old, diff).map_err(|error| problem(&error))?;
        let starting = |mark: char, header: &str| {
            let lines = diff.split_inclusive('\n').filter(|line| line.starts_with(mark));
            u64::try_from(lines.count() - usize::from(diff.contains(header))).unwrap()
        };
        if !diff.is_empty()
            && (change.lines_added, change.lines_removed) != (starting('+', "+++ "), starting('-', "--- "))
        {
            return Err(problem("counts"));
        }
        match change.change_type {
            ChangeType::Deleted if new.is_empty() => {}
            ChangeType::Deleted => return Err(problem("something is left")),
            ChangeType::Created | ChangeType::Modified | ChangeType::Renamed => {
                model.insert(change.file_path.clone(), new);
            }
        }
    }
    Ok(())
}

/// Summarizes a batch: `created a`, `renamed a b`.
pub fn summarize(changes: &[Change]) -> Vec<String> {
    changes
        .iter()
        .map(|change| {
            let kind = format!("{:?}", change.change_type).to_lowercase();
            match &change.old_path {
                Some(old) => format!("{kind} {old} {}", change.file_path),
                None => format!("{kind} {}", change.file_path),
            }
        })
        .collect()
}
