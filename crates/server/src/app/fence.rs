//! Fencing: every worker request names its stream, and only the newest stream of a sandbox is accepted.

use super::{Work, inbox};
use crate::problem::{Code, Problem, Result};
use atoll_core::agent_status::Signal;
use atoll_core::inbox::DeliveryInput;

use atoll_store::sandboxes::SandboxRow;
use atoll_store::streams::{self, StreamRow};
use atoll_store::{messages, sessions::SessionRow};
use uuid::Uuid;

fn fenced_problem() -> Problem {
    Problem::new(Code::StreamFenced, "another worker has taken over this sandbox; this one must stop")
}

/// Accepts the current stream, registers a newer one and rejects the rest. The caller writes the sandbox's row.
pub async fn admit_stream(
    work: &mut Work<'_>,
    session: &SessionRow,
    sandbox: &mut SandboxRow,
    stream: Uuid,
    boot: Option<i64>,
) -> Result<()> {
    if sandbox.stream == Some(stream) {
        return Ok(());
    }
    if streams::find_stream(work.tx, sandbox.id, stream).await?.is_some() {
        return Err(fenced_problem()); // an earlier stream, or one that its successor drains
    }
    if let (Some(boot), Some(current)) = (boot, sandbox.boot)
        && boot <= current
    {
        return Err(fenced_problem());
    }
    streams::insert_stream(work.tx, sandbox.id, &StreamRow { id: stream, boot, last_key: 0 }, work.now).await?;
    if let Some(replaced) = sandbox.stream {
        release_leases(work, session, replaced).await?;
        sandbox.apply_signal(Signal::WorkerReplaced);
    }
    sandbox.stream = Some(stream);
    sandbox.boot = boot.or(sandbox.boot);
    Ok(())
}

/// Returns the messages that a replaced stream leased to the queue.
pub async fn release_leases(work: &mut Work<'_>, session: &SessionRow, stream: Uuid) -> Result<()> {
    for mut message in messages::list_open_messages(work.tx, session.id).await? {
        if inbox::apply_step(&mut message, DeliveryInput::StreamReplaced { stream }, work)? {
            messages::update_message(work.tx, &message).await?;
            work.out.inboxes.push(session.id);
        }
    }
    Ok(())
}
