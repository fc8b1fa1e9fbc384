//! The operations of the worker protocol. All transports call these: HTTP, the WebSocket and the in-process link.

use super::{heartbeat, inbox, ingest, logins};
use crate::auth::access::WorkerOf;
use crate::event_follower::RECHECK_INTERVAL;
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_core::event::{EventSource, EventType, kind};
use atoll_core::id::{MessageId, SandboxId};
use atoll_protocol::{
    Ack, Batch, BatchAnswer, Heartbeat, HeartbeatAnswer, LeaseAnswer, LeaseRequest, LoginsAnswer, LoginsRequest, Nack,
};
use atoll_store::{messages, sandboxes};
use serde::Serialize;
use serde_json::value::RawValue;
use std::time::Duration;
use tokio::time::Instant;

const MAX_LEASE_WAIT_S: u32 = 60;

pub async fn submit_heartbeat(app: &App, id: SandboxId, beat: Heartbeat) -> Result<HeartbeatAnswer> {
    app.write(async move |work| heartbeat::record_heartbeat(work, id, &beat).await).await
}

pub async fn submit_batch(app: &App, id: SandboxId, batch: Batch) -> Result<BatchAnswer> {
    let checked = ingest::check_batch(batch, &*app.redactor(id).await?)?;
    let answer = app.write(async move |work| ingest::ingest_batch(work, id, checked).await).await?;
    if let Err(problem) = crate::retention::remove_unreferenced_blobs(app).await {
        tracing::warn!(detail = %problem.detail, "failed to remove the files of older transcripts");
    }
    Ok(answer)
}

/// The response to a plain event. It has no other fields, so that the OpenAPI document can tell it from a batch's.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SingleAnswer)]
pub struct PlainEventResponse {
    stored: u64,
    last_seq: i64,
}

/// Stores one event that was sent without stream and key.
pub async fn submit_event(
    app: &App,
    worker: WorkerOf,
    key: IdempotencyKey,
    event_type: EventType,
    source: EventSource,
    data: Box<RawValue>,
) -> Result<JsonResponse> {
    let (id, redactor) = (worker.sandbox, app.redactor(worker.sandbox).await?);
    app.write_once(&worker.caller, key, async move |work| {
        let (stored, last_seq) = if event_type.as_str() == kind::AGENT_HEARTBEAT {
            (0, heartbeat::record_plain_heartbeat(work, id).await?)
        } else {
            (1, ingest::ingest_event(work, id, event_type, source, data, &redactor).await?)
        };
        JsonResponse::ok(PlainEventResponse { stored, last_seq })
    })
    .await
}

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

pub async fn submit_ack(app: &App, id: SandboxId, message: MessageId, ack: Ack) -> Result<()> {
    app.write(async move |work| inbox::record_ack(work, id, message, &ack).await).await
}

pub async fn submit_nack(app: &App, id: SandboxId, message: MessageId, nack: Nack) -> Result<()> {
    app.write(async move |work| inbox::record_nack(work, id, message, &nack).await).await
}

pub async fn fetch_logins(app: &App, id: SandboxId, request: LoginsRequest) -> Result<LoginsAnswer> {
    app.write(async move |work| logins::hand_over_logins(work, id, &request).await).await
}
