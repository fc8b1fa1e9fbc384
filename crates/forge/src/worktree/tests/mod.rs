//! Syncs between a worktree and a workspace that is a second directory, without a sandbox.

mod cases;
mod crashes;
mod interrupted;
mod property;
mod repositories;
mod untouched_files;
mod workspace_double;

use super::undo::ApplyOutcome;
use super::{ExchangeError, PreparedSync, Resolution, Worktree};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use workspace_double::{DoubleError, WorkspaceDouble};

/// Everything below a directory except `.git`: the content of files with their execution bit, the target of links, and
/// `/` for empty directories.
pub(super) type Files = BTreeMap<PathBuf, String>;

pub(super) fn read_files(root: &Path) -> Files {
    let mut found = Files::new();
    collect_files(root, root, &mut found);
    found
}

fn collect_files(root: &Path, directory: &Path, found: &mut Files) {
    let mut is_empty = true;
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        is_empty = false;
        let path = entry.path();
        let kind = entry.file_type().unwrap();
        if entry.file_name() == ".git" {
            continue;
        }
        let name = path.strip_prefix(root).unwrap().to_owned();
        if kind.is_dir() {
            collect_files(root, &path, found);
        } else if kind.is_symlink() {
            found.insert(name, format!("-> {}", std::fs::read_link(&path).unwrap().display()));
        } else {
            let is_executable = entry.metadata().unwrap().permissions().mode() & 0o100 != 0;
            let content = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
            found.insert(name, format!("{}{content}", if is_executable { "x:" } else { "f:" }));
        }
    }
    if is_empty && directory != root {
        found.insert(directory.strip_prefix(root).unwrap().to_owned(), "/".to_owned());
    }
}

pub(super) fn run_git(dir: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_OPTIONAL_LOCKS", "0");
    command.args(["-c", "user.name=T", "-c", "user.email=t@example.org", "-C"]).arg(dir).args(arguments);
    let output = command.output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const SANDBOX: &str = "sbx_test";

/// A worktree and the workspace of its sandbox.
pub(super) struct SyncFixture {
    pub dir: TempDir,
    pub worktree: Worktree,
    pub workspace: WorkspaceDouble,
}

impl SyncFixture {
    pub fn new(prepare: impl FnOnce(&Path)) -> Self {
        Self::create(|root| {
            prepare(root);
            run_git(root, &["add", "-A"]);
            run_git(root, &["commit", "-q", "--allow-empty", "-m", "first"]);
        })
    }

    pub fn without_commits() -> Self {
        Self::create(|_| {})
    }

    fn create(prepare: impl FnOnce(&Path)) -> Self {
        // In memory: sync-out waits for the disk.
        let memory = tempfile::Builder::new().prefix("atoll-sync-").tempdir_in("/dev/shm");
        let dir = memory.unwrap_or_else(|_| tempfile::tempdir().unwrap());
        let root = dir.path().join("tree");
        std::fs::create_dir(&root).unwrap();
        run_git(&root, &["init", "-q", "-b", "main"]);
        prepare(&root);
        let worktree = Worktree::open(&root).unwrap();
        let workspace = WorkspaceDouble::new(&dir.path().join("sandbox"));
        Self { dir, worktree, workspace }
    }

    pub fn root(&self) -> &Path {
        self.worktree.root()
    }

    pub fn write(&self, name: &str, text: &str) {
        write_file(self.root(), name, text);
    }

    /// Writes a file in the workspace.
    pub fn write_inside(&self, name: &str, text: &str) {
        write_file(&self.workspace.root, name, text);
    }

    /// Syncs in and returns whether everything was sent.
    pub fn sync_in(&self) -> bool {
        let state = self.worktree.read_state().unwrap();
        self.worktree.sync_in(&state, SANDBOX, |sync| self.receive(sync).map(|()| sync.is_first())).unwrap().1
    }

    pub fn receive(&self, sync: &mut PreparedSync<'_>) -> Result<(), DoubleError> {
        let stream = self.dir.path().join("stream");
        sync.write(std::fs::File::create(&stream).unwrap()).unwrap();
        self.workspace.receive(&stream)
    }

    /// Syncs in, but the command ends before it has the response.
    pub fn sync_in_unconfirmed(&self) {
        self.fail_sync_in(|sync| self.receive(sync));
    }

    /// Begins to sync in, but the sandbox gets nothing.
    pub fn lose_sync_in(&self) {
        self.fail_sync_in(|_| Ok(()));
    }

    /// Syncs in, but git in the sandbox is killed.
    pub fn lose_sync_in_at_workspace(&self) {
        self.fail_sync_in(|sync| {
            self.receive(sync).unwrap_err();
            Ok(())
        });
    }

    fn fail_sync_in(&self, mut send: impl FnMut(&mut PreparedSync<'_>) -> Result<(), DoubleError>) {
        let state = self.worktree.read_state().unwrap();
        let failed = self.worktree.sync_in(&state, SANDBOX, |sync| {
            send(sync)?;
            Err::<(), _>(DoubleError::Killed)
        });
        assert!(matches!(failed, Err(DoubleError::Killed)));
    }

    /// Fetches the workspace's changes; `None` if there are none.
    pub fn fetch(&self) -> Option<String> {
        let state = self.worktree.read_state().unwrap();
        let bundle = self.dir.path().join("bundle");
        for base in state.possible_bases(SANDBOX).into_iter().flatten() {
            match self.workspace.send(base, &bundle) {
                Err(error) if error.is_base_mismatch() => {}
                sent => {
                    self.worktree.confirm_base(&state, SANDBOX, base).unwrap();
                    sent.unwrap()?;
                    return Some(self.worktree.import_work(&bundle, base).unwrap().unwrap().commit);
                }
            }
        }
        panic!("the workspace has no known state")
    }

    pub fn sync_out(&self, resolution: Resolution) -> ApplyOutcome {
        let Some(work) = self.fetch() else { return ApplyOutcome::Applied(super::ChangeCounts::default()) };
        self.worktree.apply_work(&self.worktree.read_state().unwrap(), &work, resolution).unwrap()
    }
}

fn write_file(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}
