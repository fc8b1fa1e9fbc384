//! Sync-in and sync-out over the server's API.

use super::worktree_failure;
use crate::chunk_channel::{ChunkWriter, chunk_channel};
use crate::connect::ConnectedClient;
use crate::failure::{Failure, Result};
use crate::stdin_stream::chunk_body;
use atoll_core::id::SandboxId;
use atoll_forge::worktree::{FetchedWork, Worktree, WorktreeState};
use std::io::{BufWriter, Write};
use std::sync::Arc;
use tokio::runtime::Handle;

const BUFFER_BYTES: usize = 1 << 20;

/// Runs git and file operations on a thread that may block.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Failure::setup("internal", format!("a thread failed: {error}"))))
}

/// Sends what the sandbox lacks, and records the state that both have. Returns warnings.
pub async fn sync_in(
    worktree: &Arc<Worktree>,
    client: &ConnectedClient,
    sandbox: SandboxId,
    state: WorktreeState,
) -> Result<(WorktreeState, Vec<String>)> {
    let (worktree, client) = (Arc::clone(worktree), client.clone());
    run_blocking(move || {
        let known = state.base.as_deref().filter(|_| state.sandbox.as_deref() == Some(&*sandbox.to_string()));
        let mut sync = worktree.prepare_sync(known).map_err(worktree_failure)?;
        let (sender, chunks) = chunk_channel();
        let (written, response) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut stream = BufWriter::with_capacity(BUFFER_BYTES, ChunkWriter(sender));
                sync.write(&mut stream).map_err(worktree_failure)?;
                stream.flush().map_err(Failure::from)
            });
            let response = Handle::current().block_on(client.send_worktree(sandbox, chunk_body(chunks)));
            (writer.join(), response)
        });
        let received = match (response, written) {
            (Ok(received), _) => received,
            // A broken stream is only the consequence of the error here.
            (Err(error), Ok(Err(failure))) if error.code().is_none() => {
                drop(error);
                return Err(failure);
            }
            (Err(error), _) => return Err(error.into()),
        };
        worktree.confirm_sync(&sync).map_err(worktree_failure)?;
        let base = Some(sync.commit().to_owned());
        let state = WorktreeState { sandbox: Some(sandbox.to_string()), base, ..state };
        worktree.write_state(&state).map_err(worktree_failure)?;
        Ok((state, sync.warnings.iter().cloned().chain(received.warnings).collect()))
    })
    .await
}

/// Fetches and checks the sandbox's changes; `None` if there are none.
pub async fn fetch_work(
    worktree: &Arc<Worktree>,
    client: &ConnectedClient,
    sandbox: SandboxId,
    state: &WorktreeState,
) -> Result<Option<FetchedWork>> {
    let unknown = || Failure::setup("worktree_mismatch", "the sandbox never received this worktree");
    let base = state.base.clone().filter(|_| state.sandbox.as_deref() == Some(&*sandbox.to_string()));
    let base = base.ok_or_else(unknown)?;
    let failed = |error: std::io::Error| Failure::setup("io", format!("cannot store the sandbox's changes: {error}"));
    let mut bundle = tempfile::NamedTempFile::new().map_err(failed)?;
    let mut response = client.fetch_worktree(sandbox, &base).await?;
    while let Some(chunk) = client.read_chunk(&mut response).await? {
        bundle.write_all(&chunk).map_err(failed)?;
    }
    let worktree = Arc::clone(worktree);
    run_blocking(move || worktree.import_work(bundle.path(), &base).map_err(worktree_failure)).await
}
