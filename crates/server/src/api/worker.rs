//! What only a sandbox's own worker calls: events, heartbeats, leases and receipts.

use crate::app::{heartbeat, inbox, ingest, logins as app_logins};
use crate::auth::Caller;
use crate::extract::{Id, Ids, hash_of, must_be_json, parse, read_body};
use crate::once::{Answer, Once};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::bounds;
use atoll_core::event::{EventType, Source, kind};
use atoll_core::id::{MessageId, SandboxId};
use atoll_protocol::{
    Ack, Batch, BatchAnswer, Heartbeat, HeartbeatAnswer, LeaseAnswer, LeaseRequest, LoginsAnswer, LoginsRequest, Nack,
};
use atoll_store::{messages, sandboxes};
use axum::Json;
use axum::extract::{FromRequest, Request, State};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A body of the worker protocol: unknown fields are a newer worker's and are passed over.
pub struct WorkerBody<T>(T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for WorkerBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &Arc<App>) -> Result<Self> {
        must_be_json(request.headers())?;
        let bytes = read_body(request, bounds::REQUEST_BYTES).await?;
        Ok(Self(parse(&bytes).map_err(Problem::invalid)?))
    }
}

/// One event in the plain form, without stream and key.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub struct SingleEvent {
    event_type: EventType,
    #[serde(default = "nothing")]
    #[schema(value_type = Object)]
    event_data: Box<RawValue>,
    #[serde(default = "agent")]
    source: Source,
}

const fn agent() -> Source {
    Source::Agent
}

fn nothing() -> Box<RawValue> {
    atoll_core::json::raw(&serde_json::json!({}))
}

/// Closed, so that the document tells the two answers apart.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SingleAnswer {
    stored: u64,
    last_seq: i64,
}

/// Which of the two forms a body has.
#[derive(Debug, Deserialize)]
struct Form {
    #[serde(default)]
    event_type: Option<serde::de::IgnoredAny>,
}

/// Either a batch or a single event.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "names the two forms in the OpenAPI document")]
pub enum Posted {
    Batch(BatchAnswer),
    Single(SingleAnswer),
}

#[derive(Debug, utoipa::ToSchema)]
#[schema(as = EventsBody)]
#[allow(dead_code, reason = "names the two forms in the OpenAPI document")]
#[derive(Serialize)]
#[serde(untagged)]
pub enum EventsBody {
    Batch(Batch),
    Single(#[serde(skip)] SingleEventShape),
}

#[derive(Debug, utoipa::ToSchema)]
#[schema(as = SingleEvent)]
#[allow(dead_code, reason = "a shape for the OpenAPI document")]
pub struct SingleEventShape {
    event_type: EventType,
    #[schema(value_type = Object)]
    event_data: Option<serde_json::Value>,
    source: Option<Source>,
}

/// Take in a worker's events.
///
/// A batch, or one event in the plain form. The answer comes after they are durable.
#[utoipa::path(post, path = "/sandboxes/{id}/events", tag = "worker", params(("id" = SandboxId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = EventsBody, responses((status = 200, body = Posted)))]
pub async fn events(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    once: Once,
    request: Request,
) -> Result<Answer> {
    caller.must_be_worker_of(id)?;
    must_be_json(request.headers())?;
    let bytes = read_body(request, bounds::BATCH_BYTES).await?;
    let batch: Batch = match parse(&bytes) {
        Ok(batch) => batch,
        Err(error) => {
            let is_single = parse::<Form>(&bytes).is_ok_and(|form| form.event_type.is_some());
            if is_single {
                return single(app, caller, id, once, &bytes).await;
            }
            return Err(Problem::new(Code::NotABatch, error));
        }
    };
    let checked = ingest::check(batch, &*app.redactor(id).await?)?;
    drop(bytes);
    let answer = app.write(move |work| Box::pin(async move { ingest::ingest(work, id, checked).await })).await?;
    if let Err(problem) = crate::retention::loose_blobs(&app).await {
        tracing::warn!(?problem, "files of older transcripts could not be removed");
    }
    Answer::ok(answer)
}

async fn single(app: Arc<App>, caller: Caller, id: SandboxId, once: Once, bytes: &[u8]) -> Result<Answer> {
    let event: SingleEvent = parse(bytes).map_err(|error| Problem::new(Code::NotABatch, error))?;
    let redactor = app.redactor(id).await?;
    app.write_once(&caller, once, hash_of(bytes), move |work| {
        Box::pin(async move {
            let (stored, last_seq) = if event.event_type.as_str() == kind::AGENT_HEARTBEAT {
                (0, heartbeat::single(work, id).await?)
            } else {
                let SingleEvent { event_type, event_data, source } = event;
                (1, ingest::ingest_single(work, id, event_type, source, event_data, &redactor).await?)
            };
            Answer::ok(SingleAnswer { stored, last_seq })
        })
    })
    .await
}

/// A worker's sign of life; the first one makes the sandbox `running`.
#[utoipa::path(post, path = "/sandboxes/{id}/heartbeat", tag = "worker", params(("id" = SandboxId, Path)),
    request_body = Heartbeat, responses((status = 200, body = HeartbeatAnswer)))]
pub async fn beat(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    WorkerBody(heartbeat): WorkerBody<Heartbeat>,
) -> Result<Json<HeartbeatAnswer>> {
    caller.must_be_worker_of(id)?;
    let answer =
        app.write(move |work| Box::pin(async move { heartbeat::heartbeat(work, id, &heartbeat).await })).await?;
    Ok(Json(answer))
}

const LONGEST_WAIT: u32 = 60;

/// Leases messages; waits for one where `wait_s` says so.
pub async fn lease_waiting(app: &App, id: SandboxId, request: LeaseRequest) -> Result<LeaseAnswer> {
    let until = Instant::now() + Duration::from_secs(request.wait_s.min(LONGEST_WAIT).into());
    let (mut inboxes, mut states) = (app.hub.inboxes(), app.hub.states());
    let mut stopping = app.stopping.clone();
    let owner = app.read(move |tx| Box::pin(async move { Ok(sandboxes::owner(tx, id).await?) })).await?;
    let (session, _) = owner.ok_or_else(|| Problem::not_found("sandbox"))?;
    let lease =
        |request: LeaseRequest| app.write(move |work| Box::pin(async move { inbox::lease(work, id, &request).await }));
    let mut answer = lease(request.clone()).await?;
    let nothing = |answer: &LeaseAnswer| answer.items.is_empty() && answer.lost.is_empty() && answer.state.is_none();
    while nothing(&answer) && Instant::now() < until && !*stopping.borrow() {
        let pause = (Instant::now() + crate::follow::LOOK_AGAIN).min(until);
        tokio::select! {
            changed = inboxes.recv() => if changed.is_ok_and(|changed| changed != session) { continue },
            changed = states.recv() => if changed.is_ok_and(|(changed, _)| changed != id) { continue },
            _ = stopping.changed() => {}
            () = tokio::time::sleep_until(pause) => {}
        }
        // Most looks find nothing; reading is cheaper than a transaction.
        let steady = app.clock.steady();
        let look = app.read(move |tx| {
            Box::pin(async move {
                let row = sandboxes::get(tx, id).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
                let waiting = messages::available(tx, session, row.turn_state, steady, 1).await?;
                Ok(!waiting.is_empty() || !row.state.takes_messages())
            })
        });
        if look.await? {
            answer = lease(LeaseRequest { renew: Vec::new(), ..request.clone() }).await?;
        }
    }
    Ok(answer)
}

/// Lease messages for the agent.
#[utoipa::path(post, path = "/sandboxes/{id}/messages/lease", tag = "worker", params(("id" = SandboxId, Path)),
    request_body = LeaseRequest, responses((status = 200, body = LeaseAnswer)))]
pub async fn lease(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    WorkerBody(request): WorkerBody<LeaseRequest>,
) -> Result<Json<LeaseAnswer>> {
    caller.must_be_worker_of(id)?;
    Ok(Json(lease_waiting(&app, id, request).await?))
}

/// The agent has the message.
#[utoipa::path(post, path = "/sandboxes/{id}/messages/{mid}/ack", tag = "worker",
    params(("id" = SandboxId, Path), ("mid" = MessageId, Path)), request_body = Ack, responses((status = 200)))]
pub async fn ack(
    State(app): State<Arc<App>>,
    caller: Caller,
    Ids(id, mid): Ids<SandboxId, MessageId>,
    WorkerBody(ack): WorkerBody<Ack>,
) -> Result<Answer> {
    caller.must_be_worker_of(id)?;
    app.write(move |work| Box::pin(async move { inbox::ack(work, id, mid, &ack).await })).await?;
    Answer::ok(serde_json::json!({}))
}

/// The agent does not have the message, or nobody can say.
#[utoipa::path(post, path = "/sandboxes/{id}/messages/{mid}/nack", tag = "worker",
    params(("id" = SandboxId, Path), ("mid" = MessageId, Path)), request_body = Nack, responses((status = 200)))]
pub async fn nack(
    State(app): State<Arc<App>>,
    caller: Caller,
    Ids(id, mid): Ids<SandboxId, MessageId>,
    WorkerBody(nack): WorkerBody<Nack>,
) -> Result<Answer> {
    caller.must_be_worker_of(id)?;
    app.write(move |work| Box::pin(async move { inbox::nack(work, id, mid, &nack).await })).await?;
    Answer::ok(serde_json::json!({}))
}

/// The login files that the agent shall find, as they are now: asked for before each prompt.
#[utoipa::path(post, path = "/sandboxes/{id}/logins", tag = "worker", params(("id" = SandboxId, Path)),
    request_body = LoginsRequest, responses((status = 200, body = LoginsAnswer)))]
pub async fn logins(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    WorkerBody(request): WorkerBody<LoginsRequest>,
) -> Result<Json<LoginsAnswer>> {
    caller.must_be_worker_of(id)?;
    let answer =
        app.write(move |work| Box::pin(async move { app_logins::hand_over(work, id, &request).await })).await?;
    Ok(Json(answer))
}
