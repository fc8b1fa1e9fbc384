//! A user's worktree in a sandbox. Git in the sandbox reads and writes the workspace; the server only passes streams on.
//!
//! The sandbox's processes are paused meanwhile, so that no half-written file is copied.

use super::targets::{SandboxTarget, find_target};
use crate::auth::access::CanWork;
use crate::extract::drain_body;
use crate::keyed_locks::run_to_completion;
use crate::problem::{Code, Problem, Result};
use crate::repositories::{git_error_code, git_error_text, git_report_texts};
use crate::state::App;
use atoll_api::SyncedWorktree;
use atoll_api::events::{EventData, WorktreeSyncedIn, WorktreeSyncedOut};
use atoll_core::event::EventSource;
use atoll_core::id::SandboxId;
use atoll_core::provider::capabilities::PauseAbility;
use atoll_core::provider::{CommandExit, GitOperation, GitResult};
use atoll_core::sandbox::SandboxState;
use atoll_store::sandboxes;
use axum::body::{Body, Bytes};
use futures_util::{Stream, StreamExt, stream};
use serde_json::Value;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::sync::Arc;
use tokio::io::AsyncWriteExt;

/// Size limit of a worktree's stream.
const MAX_STREAM_BYTES: u64 = 64 << 30;
const CHUNK_BYTES: usize = 256 << 10;

/// Copies a worktree into the workspace.
pub async fn receive_worktree(app: Arc<App>, access: CanWork<SandboxId>, body: Body) -> Result<SyncedWorktree> {
    app.uses.touch(access.id);
    let target = find_target(&app, &access).await?;
    let failed = |error: io::Error| Problem::internal(format!("cannot store the worktree: {error}"));
    let file = tempfile::NamedTempFile::new_in(&app.config.data_dir).map_err(failed)?;
    let bytes = store_body(body, tokio::fs::File::from_std(file.reopen().map_err(failed)?)).await?;
    let output = tempfile::tempfile_in(&app.config.data_dir).map_err(failed)?;
    run_to_completion(async move {
        let job = GitOperation::ReceiveWorktree { stream: file.path().to_owned() };
        let done = run_paused(&app, &target, &job, output).await?;
        require_success(&done)?;
        let report = last_report(&done);
        let commit = report["commit"].as_str().unwrap_or_default().to_owned();
        let changed_files = report["changed_files"].as_u64().unwrap_or(0);
        let event = EventData::WorktreeSyncedIn(WorktreeSyncedIn { commit: commit.clone(), changed_files, bytes });
        log_sync(&app, &access, event).await?;
        Ok(SyncedWorktree { commit, changed_files, warnings: git_report_texts(&done.error_output, "warnings") })
    })
    .await
}

/// Reads the workspace's changes since `base` as a bundle, which is empty if there are none.
pub async fn send_worktree(
    app: Arc<App>,
    access: CanWork<SandboxId>,
    base: String,
) -> Result<impl Stream<Item = io::Result<Bytes>> + use<>> {
    let is_id = matches!(base.len(), 40 | 64) && base.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if !is_id {
        return Err(Problem::new(Code::BadRequest, "base: expected a full commit id"));
    }
    app.uses.touch(access.id);
    let target = find_target(&app, &access).await?;
    let failed = |error: io::Error| Problem::internal(format!("no file for the changes: {error}"));
    let file = tempfile::tempfile_in(&app.config.data_dir).map_err(failed)?;
    let mut output = file.try_clone().map_err(failed)?;
    run_to_completion(async move {
        let job = GitOperation::SendWorktree { base: base.clone() };
        let done = run_paused(&app, &target, &job, file.try_clone().map_err(failed)?).await?;
        require_success(&done)?;
        let bytes = file.metadata().map_err(failed)?.len();
        if let Some(commit) = last_report(&done)["commit"].as_str() {
            let synced = WorktreeSyncedOut { base, commit: commit.to_owned(), bytes };
            log_sync(&app, &access, EventData::WorktreeSyncedOut(synced)).await?;
        }
        Ok(())
    })
    .await?;
    output.rewind().map_err(failed)?;
    Ok(stream_file(output))
}

async fn store_body(body: Body, mut file: tokio::fs::File) -> Result<u64> {
    let mut chunks = body.into_data_stream();
    let mut bytes = 0;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| Problem::new(Code::BadRequest, "the body ended early"))?;
        bytes += chunk.len() as u64;
        if bytes > MAX_STREAM_BYTES {
            drain_body(Body::from_stream(chunks)).await;
            return Err(Problem::new(Code::TooLarge, format!("a worktree may have {MAX_STREAM_BYTES} bytes")));
        }
        file.write_all(&chunk)
            .await
            .map_err(|error| Problem::internal(format!("cannot store the worktree: {error}")))?;
    }
    file.flush().await.map_err(|error| Problem::internal(format!("cannot store the worktree: {error}")))?;
    Ok(bytes)
}

fn stream_file(file: File) -> impl Stream<Item = io::Result<Bytes>> + use<> {
    stream::unfold(Some(file), async |file| {
        let mut file = file?;
        let read = tokio::task::spawn_blocking(move || {
            let mut buffer = vec![0; CHUNK_BYTES];
            let length = file.read(&mut buffer)?;
            buffer.truncate(length);
            Ok((buffer, file))
        });
        match read.await.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok((buffer, _)) if buffer.is_empty() => None,
            Ok((buffer, file)) => Some((Ok(Bytes::from(buffer)), Some(file))),
            Err(error) => Some((Err(error), None)),
        }
    })
}

/// Runs git over the workspace while the sandbox's processes are paused. A cancelled call would leave them paused.
async fn run_paused(app: &App, target: &SandboxTarget, job: &GitOperation, output: File) -> Result<GitResult> {
    let SandboxTarget { row, provider, id } = target;
    let _lock = app.sandbox_locks.lock(row.id).await;
    let pauses = row.state == SandboxState::Running
        && provider.capabilities().pause != PauseAbility::None
        && !row.status.is_paused();
    // A sandbox without a worker has nothing to pause, and its files can still be read.
    let is_paused = pauses && provider.pause(id).await.is_ok();
    let done = provider.git(id, job, output).await;
    if is_paused && let Err(error) = provider.resume(id).await {
        tracing::warn!(sandbox = %row.id, %error, "failed to resume a sandbox after a sync of its worktree");
    }
    Ok(done?)
}

fn require_success(done: &GitResult) -> Result<()> {
    if done.exit == (CommandExit::Exited { code: 0 }) {
        return Ok(());
    }
    let text = git_error_text(&done.error_output);
    let code = match git_error_code(&done.error_output).as_deref() {
        Some("conflict") => Code::WorktreeConflict,
        Some("base_mismatch" | "not_empty") => Code::WorktreeMismatch,
        Some("bad_stream") => Code::Invalid,
        Some(_) | None => Code::ProviderRefused,
    };
    Err(Problem::new(code, text))
}

/// The report of a git job: one line of JSON.
fn last_report(done: &GitResult) -> Value {
    let line = done.error_output.lines().rev().find(|line| line.starts_with('{'));
    line.and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default()
}

async fn log_sync(app: &App, access: &CanWork<SandboxId>, data: EventData) -> Result<()> {
    let (id, actor) = (access.id, access.actor());
    app.write(async move |work| {
        let (_, mut sandbox) = work.lock_sandbox(id).await?;
        let event = data.into_event(work.now).with_source(EventSource::User, Some(actor));
        work.log(&mut sandbox, vec![event]).await?;
        Ok(sandboxes::update_sandbox(work.tx, &mut sandbox).await?)
    })
    .await
}
