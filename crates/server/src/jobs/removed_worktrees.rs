//! Ends the sandboxes of worktrees on this machine that were removed. A server on another machine learns it from the next
//! `atoll code` or `atoll gc`.

use crate::app::results;
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_forge::worktree::{MACHINE_LABEL, is_worktree_removed, read_machine_id};
use atoll_store::sandboxes::{self, SandboxFilter};
use std::sync::Arc;

const MAX_SANDBOXES: i64 = 1000;

pub(super) async fn end_removed_worktrees(app: &Arc<App>) -> Result<()> {
    let Some(machine) = read_machine_id(&app.config.data_dir) else { return Ok(()) };
    let label = Some((MACHINE_LABEL.to_owned(), Some(machine)));
    let filter = SandboxFilter { label, is_live: true, ..SandboxFilter::default() };
    let found = app.read(async move |tx| {
        let mut labelled = Vec::new();
        for sandbox in sandboxes::list_sandboxes(tx, &filter, None, MAX_SANDBOXES).await? {
            labelled.push((sandbox.id, sandboxes::list_labels(tx, sandbox.id).await?));
        }
        Ok(labelled)
    });
    let found = found.await?;
    // A file system may be slow.
    let removed = tokio::task::spawn_blocking(move || -> Vec<SandboxId> {
        found.into_iter().filter(|(_, labels)| is_worktree_removed(labels)).map(|(id, _)| id).collect()
    });
    for id in removed.await.map_err(Problem::internal)? {
        tracing::info!(sandbox = %id, "the worktree of a sandbox was removed");
        app.write(async move |work| results::end_removed_worktree(work, id).await.map(drop)).await?;
    }
    Ok(())
}
