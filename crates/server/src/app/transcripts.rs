//! The agent's own transcript of a session: which blob holds it, and how the next sandbox gets it.

use super::Work;
use crate::problem::Result;
use atoll_core::agent::is_valid_native_id;
use atoll_core::event::{NewEvent, kind};
use atoll_core::id::SandboxId;
use atoll_protocol::Resume;
use atoll_store::sandboxes::SandboxRow;
use atoll_store::sessions::{self, SessionRow};
use atoll_store::{blobs, sandboxes};
use serde::Deserialize;

/// The fields of a transcript event that the server reads.
#[derive(Deserialize)]
struct TranscriptData {
    #[serde(default)]
    native_id: Option<String>,
    #[serde(default)]
    blob: Option<String>,
}

/// Updates the session from a worker's event. The native id and the transcript change together, so that they always match.
pub async fn observe_event(
    work: &mut Work<'_>,
    session: &mut SessionRow,
    sandbox: &SandboxRow,
    event: &NewEvent,
) -> Result<()> {
    let named = match event.event_type.as_str() {
        kind::AGENT_STARTED | kind::AGENT_TRANSCRIPT => serde_json::from_str::<TranscriptData>(event.data.get()).ok(),
        _ => return Ok(()),
    };
    // Late events of an earlier sandbox are outdated.
    if session.last_sandbox_id != Some(sandbox.id) {
        return Ok(());
    }
    let Some((native_id, blob)) = named.and_then(|transcript| Some((transcript.native_id?, transcript.blob))) else {
        return Ok(());
    };
    if !is_valid_native_id(&native_id) {
        return Ok(());
    }
    match (event.event_type.as_str(), blob) {
        (kind::AGENT_TRANSCRIPT, Some(blob)) if blobs::find_blob(work.tx, sandbox.id, &blob).await?.is_some() => {
            let older = session.transcript.replace(blob.clone()).filter(|older| *older != blob);
            session.native_id = Some(native_id);
            if let Some(older) = older {
                forget_blob(work, session, sandbox.id, &older).await?;
            }
        }
        (kind::AGENT_STARTED, _) if session.transcript.is_none() && session.native_id.as_ref() != Some(&native_id) => {
            session.native_id = Some(native_id);
        }
        _ => return Ok(()),
    }
    session.updated_at = work.now;
    Ok(sessions::update_session(work.tx, session).await?)
}

/// Removes an older transcript, unless a fork still uses it.
async fn forget_blob(work: &mut Work<'_>, session: &SessionRow, sandbox: SandboxId, older: &str) -> Result<()> {
    if !sessions::others_have_transcript(work.tx, session.id, sandbox, older).await?
        && let Some(file) = blobs::delete_blob(work.tx, sandbox, older).await?
    {
        work.out.blobs.push(file);
    }
    Ok(())
}

/// Copies the transcript to a new sandbox. A different agent starts without one.
pub async fn hand_over_transcript(work: &mut Work<'_>, session: &mut SessionRow, sandbox: &SandboxRow) -> Result<()> {
    let last = match session.last_sandbox_id {
        Some(last) => sandboxes::find_sandbox(work.tx, last).await?,
        None => return Ok(()),
    };
    let Some(last) = last else { return Ok(()) };
    if last.agent != sandbox.agent {
        (session.native_id, session.transcript) = (None, None);
        return Ok(());
    }
    let Some(name) = session.transcript.clone() else { return Ok(()) };
    match blobs::find_blob(work.tx, last.id, &name).await? {
        Some(stored) => blobs::insert_blob(work.tx, sandbox.id, &name, &stored, work.now).await?,
        None => session.transcript = None,
    }
    Ok(())
}

/// The worker's instructions for resuming the conversation.
pub fn resume_info(session: &SessionRow, sandbox: &SandboxRow) -> Option<Resume> {
    let native_id = session.native_id.clone()?;
    // A fork has its parent's files, including the agent's transcript.
    let in_place = sandbox.settings.forked_from.is_some();
    Some(Resume { native_id: Some(native_id), transcript: session.transcript.clone(), in_place })
}
