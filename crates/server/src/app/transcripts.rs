//! The agent's own transcript of a session: which blob it is, and how the next sandbox gets it.

use super::Work;
use crate::problem::Result;
use atoll_core::agent::is_native_id;
use atoll_core::event::{NewEvent, kind};
use atoll_core::id::SandboxId;
use atoll_protocol::Resume;
use atoll_store::sandboxes::Sandbox;
use atoll_store::sessions::{self, Session};
use atoll_store::{blobs, sandboxes};
use serde::Deserialize;

/// As much of the events as is needed.
#[derive(Deserialize)]
struct Said {
    #[serde(default)]
    native_id: Option<String>,
    #[serde(default)]
    blob: Option<String>,
}

/// An event of a worker is about to be stored. The name of a conversation and its transcript change together, so that
/// one is never taken for the other's.
pub async fn observed(work: &mut Work<'_>, session: &mut Session, sandbox: &Sandbox, event: &NewEvent) -> Result<()> {
    let named = match event.event_type.as_str() {
        kind::AGENT_STARTED | kind::AGENT_TRANSCRIPT => serde_json::from_str::<Said>(event.data.get()).ok(),
        _ => return Ok(()),
    };
    // What an earlier sandbox still had to say is older than what the session has.
    if session.last_sandbox_id != Some(sandbox.id) {
        return Ok(());
    }
    let Some((native_id, blob)) = named.and_then(|said| Some((said.native_id?, said.blob))) else { return Ok(()) };
    if !is_native_id(&native_id) {
        return Ok(());
    }
    match (event.event_type.as_str(), blob) {
        (kind::AGENT_TRANSCRIPT, Some(blob)) if blobs::get(work.tx, sandbox.id, &blob).await?.is_some() => {
            let older = session.transcript.replace(blob.clone()).filter(|older| *older != blob);
            session.native_id = Some(native_id);
            if let Some(older) = older {
                forget(work, session, sandbox.id, &older).await?;
            }
        }
        (kind::AGENT_STARTED, _) if session.transcript.is_none() && session.native_id.as_ref() != Some(&native_id) => {
            session.native_id = Some(native_id);
        }
        _ => return Ok(()),
    }
    session.updated_at = work.now;
    Ok(sessions::update(work.tx, session).await?)
}

/// Only the newest one is kept, unless a fork goes on from it.
async fn forget(work: &mut Work<'_>, session: &Session, sandbox: SandboxId, older: &str) -> Result<()> {
    if !sessions::others_have_transcript(work.tx, session.id, sandbox, older).await?
        && let Some(file) = blobs::forget(work.tx, sandbox, older).await?
    {
        work.out.blobs.push(file);
    }
    Ok(())
}

/// A new sandbox gets what the session's last one had; an agent that never had that conversation begins another.
pub async fn hand_over(work: &mut Work<'_>, session: &mut Session, sandbox: &Sandbox) -> Result<()> {
    let last = match session.last_sandbox_id {
        Some(last) => sandboxes::get(work.tx, last).await?,
        None => return Ok(()),
    };
    let Some(last) = last else { return Ok(()) };
    if last.agent != sandbox.agent {
        (session.native_id, session.transcript) = (None, None);
        return Ok(());
    }
    let Some(name) = session.transcript.clone() else { return Ok(()) };
    match blobs::get(work.tx, last.id, &name).await? {
        Some(stored) => blobs::insert(work.tx, sandbox.id, &name, &stored, work.now).await?,
        None => session.transcript = None,
    }
    Ok(())
}

/// What its worker is told about the session's past.
pub fn resume(session: &Session, sandbox: &Sandbox) -> Option<Resume> {
    let native_id = session.native_id.clone()?;
    // A fork has the files of its parent, and the agent's among them.
    let in_place = sandbox.settings.forked_from.is_some();
    Some(Resume { native_id: Some(native_id), transcript: session.transcript.clone(), in_place })
}
