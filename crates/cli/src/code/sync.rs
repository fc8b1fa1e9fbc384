//! Sync-in and sync-out over the server's API.

use crate::chunk_channel::{ChunkWriter, chunk_channel};
use crate::connect::ConnectedClient;
use crate::failure::{Failure, Result};
use crate::stdin_stream::chunk_body;
use atoll_api::SyncedWorktree;
use atoll_core::id::SandboxId;
use atoll_forge::worktree::{ExchangeError, FetchedWork, PreparedSync, Worktree, WorktreeLock, WorktreeState};
use std::io::{BufWriter, Write};
use std::sync::Arc;
use tempfile::NamedTempFile;
use tokio::runtime::Handle;

const BUFFER_BYTES: usize = 1 << 20;

/// Runs git and file operations on a thread that may block.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Failure::setup("internal", format!("a thread failed: {error}"))))
}

pub async fn lock_worktree(worktree: Arc<Worktree>, holder: String, wait: bool) -> Result<WorktreeLock> {
    run_blocking(move || Ok(worktree.lock(&holder, wait)?)).await
}

impl ExchangeError for Failure {
    fn is_base_mismatch(&self) -> bool {
        self.has_code("worktree_mismatch")
    }
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
        let send = |sync: &mut PreparedSync<'_>| send_worktree(sync, &client, sandbox);
        let (state, received, warnings) = worktree.sync_in(&state, &sandbox.to_string(), send)?;
        Ok((state, warnings.into_iter().chain(received.warnings).collect()))
    })
    .await
}

fn send_worktree(sync: &mut PreparedSync<'_>, client: &ConnectedClient, sandbox: SandboxId) -> Result<SyncedWorktree> {
    let (sender, chunks) = chunk_channel();
    let (written, response) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut stream = BufWriter::with_capacity(BUFFER_BYTES, ChunkWriter(sender));
            sync.write(&mut stream)?;
            stream.flush().map_err(Failure::from)
        });
        let response = Handle::current().block_on(client.send_worktree(sandbox, chunk_body(chunks)));
        (writer.join(), response)
    });
    match (response, written) {
        (Ok(received), _) => Ok(received),
        // A broken stream is only the consequence of the error here.
        (Err(error), Ok(Err(failure))) if error.code().is_none() => {
            drop(error);
            Err(failure)
        }
        (Err(error), _) => Err(error.into()),
    }
}

/// Fetches and checks the sandbox's changes; `None` if there are none. Returns the record with the state that they build on.
pub async fn fetch_work(
    worktree: &Arc<Worktree>,
    client: &ConnectedClient,
    sandbox: SandboxId,
    state: &WorktreeState,
) -> Result<(WorktreeState, Option<FetchedWork>)> {
    let mut failure = Failure::setup("worktree_mismatch", "the sandbox never received this worktree");
    for base in state.possible_bases(&sandbox.to_string()).into_iter().flatten() {
        match download_work(client, sandbox, base).await {
            Err(error) if error.is_base_mismatch() => failure = error,
            downloaded => {
                let (bundle, worktree) = (downloaded?, Arc::clone(worktree));
                let (base, state) = (base.to_owned(), state.clone());
                return run_blocking(move || {
                    let state = worktree.confirm_base(&state, &sandbox.to_string(), &base)?;
                    Ok((state, worktree.import_work(bundle.path(), &base)?))
                })
                .await;
            }
        }
    }
    Err(failure)
}

async fn download_work(client: &ConnectedClient, sandbox: SandboxId, base: &str) -> Result<NamedTempFile> {
    let failed = |error: std::io::Error| Failure::setup("io", format!("cannot store the sandbox's changes: {error}"));
    let mut bundle = NamedTempFile::new().map_err(failed)?;
    let mut response = client.fetch_worktree(sandbox, base).await?;
    while let Some(chunk) = client.read_chunk(&mut response).await? {
        bundle.write_all(&chunk).map_err(failed)?;
    }
    Ok(bundle)
}
