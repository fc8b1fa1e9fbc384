//! Saves what a sandbox has not delivered, before the server pauses or ends it or removes its files.

use super::{blob_transfer, diffs};
use crate::problem::Result;
use crate::state::App;
use atoll_api::events::{EventData, SavedDiff, SavedWork};
use atoll_core::id::SandboxId;
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::sessions;
use sha2::{Digest, Sha256};
use std::time::Duration;

/// Time limit for computing and storing a diff.
const SAVE_TIMEOUT: Duration = Duration::from_secs(120);

/// Stores the diff since the base commit as a blob. The worker stored the transcript at the end of each turn. A failure
/// is part of the result, because the caller goes on anyway.
pub async fn save_work(app: &App, row: &SandboxRow) -> SavedWork {
    let session = row.session_id;
    let found = app.read(async move |tx| Ok(sessions::find_session(tx, session).await?)).await;
    let transcript = match found {
        Ok(session) => session.and_then(|session| session.transcript),
        Err(problem) => return SavedWork { problem: Some(problem.detail), ..SavedWork::default() },
    };
    if row.settings.repo.is_none() || row.provider_id.is_none() {
        return SavedWork { transcript, ..SavedWork::default() };
    }
    match tokio::time::timeout(SAVE_TIMEOUT, save_diff(app, row)).await {
        Ok(Ok(diff)) => SavedWork { transcript, diff, problem: None },
        Ok(Err(problem)) => SavedWork { transcript, diff: None, problem: Some(problem.detail) },
        Err(_) => {
            let problem = format!("the diff took longer than {} s", SAVE_TIMEOUT.as_secs());
            SavedWork { transcript, diff: None, problem: Some(problem) }
        }
    }
}

async fn save_diff(app: &App, row: &SandboxRow) -> Result<Option<SavedDiff>> {
    let patch = diffs::read_whole_patch(app, row).await?;
    if patch.is_empty() {
        return Ok(None);
    }
    let blob: String = Sha256::digest(&patch).iter().map(|byte| format!("{byte:02x}")).collect();
    let bytes = patch.len() as u64;
    blob_transfer::store_own_content(app, row.id, &blob, patch.into()).await?;
    Ok(Some(SavedDiff { blob, bytes }))
}

/// Saves the work and records what was saved.
pub async fn save_and_record(app: &App, id: SandboxId) -> Result<()> {
    let row = super::targets::find_sandbox(app, id).await?;
    let saved = save_work(app, &row).await;
    if saved == SavedWork::default() {
        return Ok(());
    }
    app.write(async move |work| {
        let (_, mut sandbox) = work.lock_sandbox(id).await?;
        work.log(&mut sandbox, vec![EventData::SandboxWorkSaved(saved).into_event(work.now)]).await?;
        Ok(sandboxes::update_sandbox(work.tx, &mut sandbox).await?)
    })
    .await
}
