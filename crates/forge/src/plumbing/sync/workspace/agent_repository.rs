//! The agent's own repository in the workspace: it shows the worktree's branch and staged files.
//!
//! It changes only when the user moved HEAD or staged other files. The agent's commits and index stay otherwise.

use super::first_sync::{passed_settings, write_shallow};
use super::{HEAD_REF, RECEIVING, STAGED_REF, SyncRefs, WorkspaceCopy, WorkspaceError, WorkspaceGit, write_if_changed};
use crate::plumbing::bundle::ObjectFormat;
use crate::plumbing::sync::stream::SyncHeader;
use std::fs;

const DEFAULT_BRANCH: &str = "main";

impl<G: WorkspaceGit> WorkspaceCopy<'_, G> {
    pub(super) fn create_agent_repository(&self, header: &SyncHeader, format: ObjectFormat) -> Result<(), G::Error> {
        let failed = |source| WorkspaceError::Io { what: RECEIVING, source };
        let object_format = format!("--object-format={}", format.name());
        self.git.init_repository(&self.root, &[&object_format])?.require_success()?;
        let git_dir = self.root.join(".git");
        for name in ["hooks", "info", "objects/info"] {
            fs::create_dir_all(git_dir.join(name)).map_err(failed)?;
        }
        let objects = self.sync_dir.join("objects");
        fs::write(git_dir.join("objects/info/alternates"), format!("{}\n", objects.display())).map_err(failed)?;
        fs::write(git_dir.join("info/exclude"), &header.excludes).map_err(failed)?;
        write_shallow(&git_dir, &header.shallow).map_err(failed)?;
        // The files have other inodes than the index of the worktree says.
        let settings = [("core.checkStat", "minimal"), ("core.trustctime", "false")];
        let author = [("user.name", header.author_name.as_str()), ("user.email", header.author_email.as_str())];
        for (name, value) in settings.into_iter().chain(author).chain(passed_settings(header)) {
            self.git.run_agent_git(RECEIVING, &["config", "--", name, value], None)?.require_success()?;
        }
        self.move_branch(header)
    }

    /// Follows the worktree's HEAD and index if they changed.
    pub(super) fn update_agent_repository(&self, header: &SyncHeader, known: &SyncRefs) -> Result<(), G::Error> {
        let has_moved = header.head.is_some() && known.get(HEAD_REF) != header.head.as_ref();
        let is_staged = header.staged.is_some() && known.get(STAGED_REF) != header.staged.as_ref();
        let excludes = self.root.join(".git/info/exclude");
        if fs::symlink_metadata(&excludes).is_ok_and(|found| found.is_file()) {
            write_if_changed(&excludes, header.excludes.as_bytes())
                .map_err(|source| WorkspaceError::Io { what: RECEIVING, source })?;
        }
        // The agent may have removed its repository.
        let is_there = (has_moved || is_staged)
            && self.git.run_agent_git(RECEIVING, &["rev-parse", "--git-dir"], None)?.is_success();
        if is_there && has_moved {
            self.move_branch(header)?;
        }
        if let Some(staged) = header.staged.as_deref().filter(|_| is_there) {
            let read = self.git.run_agent_git(RECEIVING, &["read-tree", "--reset", staged], None)?;
            read.require_success()?;
            // Exit code 1 means that files differ from the index.
            self.git.run_agent_git(RECEIVING, &["update-index", "-q", "--refresh"], None)?;
        }
        Ok(())
    }

    fn move_branch(&self, header: &SyncHeader) -> Result<(), G::Error> {
        let wanted = header.branch.as_deref().unwrap_or(DEFAULT_BRANCH);
        let checked = self.git.run_agent_git(RECEIVING, &["check-ref-format", "--branch", wanted], None)?;
        let branch = format!("refs/heads/{}", if checked.is_success() { wanted } else { DEFAULT_BRANCH });
        self.git.run_agent_git(RECEIVING, &["symbolic-ref", "HEAD", &branch], None)?.require_success()?;
        if let Some(head) = &header.head {
            let update = ["update-ref", "-m", "atoll: sync", &branch, head];
            self.git.run_agent_git(RECEIVING, &update, None)?.require_success()?;
        }
        Ok(())
    }
}
