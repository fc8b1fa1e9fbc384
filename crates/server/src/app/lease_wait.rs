//! Leases messages for a worker that waits for them.

use super::inbox;
use crate::event_follower::RECHECK_INTERVAL;
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_protocol::{LeaseAnswer, LeaseRequest};
use atoll_store::{messages, sandboxes};
use std::time::Duration;
use tokio::time::Instant;

const MAX_LEASE_WAIT_S: u32 = 60;

async fn lease_once(app: &App, id: SandboxId, request: LeaseRequest) -> Result<LeaseAnswer> {
    app.write(async move |work| inbox::lease_messages(work, id, &request).await).await
}

/// Leases messages. Waits for one for up to `wait_s`.
pub async fn lease_waiting(app: &App, id: SandboxId, request: LeaseRequest) -> Result<LeaseAnswer> {
    let until = Instant::now() + Duration::from_secs(request.wait_s.min(MAX_LEASE_WAIT_S).into());
    let (mut inboxes, mut states) = (app.hub.subscribe_inboxes(), app.hub.subscribe_states());
    let mut stopping = app.stopping.clone();
    let owner = app.read(async move |tx| Ok(sandboxes::find_owner_ids(tx, id).await?)).await?;
    let (session, _) = owner.ok_or_else(|| Problem::not_found("sandbox"))?;
    let mut answer = lease_once(app, id, request.clone()).await?;
    let is_empty = |answer: &LeaseAnswer| answer.items.is_empty() && answer.lost.is_empty() && answer.state.is_none();
    while is_empty(&answer) && Instant::now() < until && !*stopping.borrow() {
        let pause = (Instant::now() + RECHECK_INTERVAL).min(until);
        tokio::select! {
            changed = inboxes.recv() => if changed.is_ok_and(|changed| changed != session) { continue },
            changed = states.recv() => if changed.is_ok_and(|(changed, _)| changed != id) { continue },
            _ = stopping.changed() => {}
            () = tokio::time::sleep_until(pause) => {}
        }
        // A read is cheaper than a write transaction, and most wake-ups are for nothing.
        let steady = app.clock.steady_now();
        let is_due = app.read(async move |tx| {
            let row = sandboxes::find_sandbox(tx, id).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
            let available = messages::list_leasable_messages(tx, session, row.status.turn_state(), steady, 1).await?;
            Ok(!available.is_empty() || !row.state.accepts_messages())
        });
        if is_due.await? {
            answer = lease_once(app, id, LeaseRequest { renew: Vec::new(), ..request.clone() }).await?;
        }
    }
    Ok(answer)
}
