//! Which worker speaks for a sandbox. Every worker call names its own stream; the newest start wins.

use super::{Work, inbox};
use crate::problem::{Code, Problem, Result};
use atoll_core::inbox::Step;
use atoll_core::sandbox::TurnState;
use atoll_store::sandboxes::Sandbox;
use atoll_store::streams::{self, Stream};
use atoll_store::{messages, sessions::Session};
use uuid::Uuid;

fn fenced() -> Problem {
    Problem::new(Code::StreamFenced, "another worker has taken over this sandbox; this one must stop")
}

/// Lets the current worker through, registers a newer one, refuses the rest. The caller writes the
/// sandbox's row afterwards.
pub async fn admit(
    work: &mut Work<'_>,
    session: &Session,
    sandbox: &mut Sandbox,
    stream: Uuid,
    boot: Option<i64>,
) -> Result<()> {
    if sandbox.stream == Some(stream) {
        return Ok(());
    }
    if streams::get(work.tx, sandbox.id, stream).await?.is_some() {
        return Err(fenced()); // it was current once, or its rest is being drained by its successor
    }
    if let (Some(boot), Some(current)) = (boot, sandbox.boot)
        && boot <= current
    {
        return Err(fenced());
    }
    streams::insert(work.tx, sandbox.id, &Stream { stream, boot, last_key: 0 }, work.now).await?;
    if let Some(replaced) = sandbox.stream {
        free_leases(work, session, replaced).await?;
        // Nobody can say what became of the old one's turn.
        if sandbox.turn_state == TurnState::Open {
            sandbox.turn_state = TurnState::Idle;
        }
    }
    sandbox.stream = Some(stream);
    sandbox.boot = boot.or(sandbox.boot);
    Ok(())
}

/// What a worker that has no say any more still held goes back to its place, for the next one.
pub async fn free_leases(work: &mut Work<'_>, session: &Session, stream: Uuid) -> Result<()> {
    for mut message in messages::open(work.tx, session.id).await? {
        if inbox::advance(&mut message, Step::StreamReplaced { stream }, work)? {
            messages::update(work.tx, &message).await?;
            work.out.inboxes.push(session.id);
        }
    }
    Ok(())
}
