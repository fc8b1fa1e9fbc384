//! Routes of the worker protocol: events, heartbeats, leases, acknowledgements and logins.

use crate::app::ingest::{self, PlainEventResponse};
use crate::app::{heartbeat, inbox, lease_wait, logins};
use crate::auth::access::WorkerOf;
use crate::extract::{SubId, parse_object, read_body, require_json, sha256_hex};
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::events::Empty;
use atoll_core::bounds;
use atoll_core::event::{EventSource, EventType};
use atoll_core::id::{MessageId, SandboxId};
use atoll_protocol::{
    Ack, Batch, BatchAnswer, Heartbeat, HeartbeatAnswer, LeaseAnswer, LeaseRequest, LoginsAnswer, LoginsRequest, Nack,
};
use axum::Json;
use axum::extract::{FromRequest, Request, State};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;

/// A body of the worker protocol. It ignores unknown fields, because a newer worker may send more.
pub struct WorkerBody<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for WorkerBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &Arc<App>) -> Result<Self> {
        require_json(request.headers())?;
        let bytes = read_body(request, bounds::MAX_REQUEST_BYTES).await?;
        Ok(Self(parse_object(&bytes).map_err(Problem::invalid)?))
    }
}

/// Time for the body of a batch; a worker gives a request up sooner.
const BATCH_TIMEOUT: Duration = Duration::from_secs(60);

/// One event without stream and key.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub struct SingleEvent {
    event_type: EventType,
    #[serde(default = "empty_data")]
    #[schema(value_type = Object)]
    event_data: Box<RawValue>,
    #[serde(default = "agent_source")]
    source: EventSource,
}

const fn agent_source() -> EventSource {
    EventSource::Agent
}

fn empty_data() -> Box<RawValue> {
    atoll_core::json::to_raw_json(&serde_json::json!({}))
}

/// Detects a plain event.
#[derive(Debug, Deserialize)]
struct BodyForm {
    #[serde(default)]
    event_type: Option<serde::de::IgnoredAny>,
}

/// The response to a batch or to a plain event.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "names the two forms in the OpenAPI document")]
pub enum Posted {
    Batch(BatchAnswer),
    Single(PlainEventResponse),
}

/// A batch, or one plain event.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "names the two forms in the OpenAPI document")]
pub enum EventsBody {
    Batch(Batch),
    Single(SingleEvent),
}

/// Store a worker's events.
///
/// The body is a batch, or one plain event. The response comes after the events are durable.
#[utoipa::path(post, path = "/sandboxes/{id}/events", tag = "worker", params(("id" = SandboxId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = EventsBody, responses((status = 200, body = Posted)))]
pub async fn submit_events(
    State(app): State<Arc<App>>,
    worker: WorkerOf,
    key: IdempotencyKey,
    request: Request,
) -> Result<JsonResponse> {
    require_json(request.headers())?;
    let mut turn = app.event_gates.enter(worker.sandbox).await?;
    // The sandbox's next request waits for this one, so a sender that has gone silently must not keep the turn.
    let reading = tokio::time::timeout(BATCH_TIMEOUT, read_body(request, bounds::MAX_BATCH_BYTES));
    let late = || Problem::new(Code::RateLimited, "the body did not arrive in time").retry_after(1);
    let bytes = reading.await.map_err(|_| late())??;
    match parse_object::<Batch>(&bytes) {
        Ok(batch) => {
            drop(bytes);
            JsonResponse::ok(ingest::submit_batch(&app, &mut turn, worker.sandbox, batch).await?)
        }
        Err(_) if parse_object::<BodyForm>(&bytes).is_ok_and(|form| form.event_type.is_some()) => {
            let event = parse_object(&bytes).map_err(|error| Problem::new(Code::NotABatch, error))?;
            let SingleEvent { event_type, event_data, source } = event;
            let key = key.with_body(sha256_hex(&bytes));
            ingest::submit_event(&app, &turn, worker, key, event_type, source, event_data).await
        }
        Err(error) => Err(Problem::new(Code::NotABatch, error)),
    }
}

/// Report that the worker is alive. The first heartbeat moves the sandbox to `running`.
#[utoipa::path(post, path = "/sandboxes/{id}/heartbeat", tag = "worker", params(("id" = SandboxId, Path)),
    request_body = Heartbeat, responses((status = 200, body = HeartbeatAnswer)))]
pub async fn submit_heartbeat(
    State(app): State<Arc<App>>,
    worker: WorkerOf,
    WorkerBody(heartbeat): WorkerBody<Heartbeat>,
) -> Result<Json<HeartbeatAnswer>> {
    heartbeat::submit_heartbeat(&app, worker.sandbox, heartbeat).await.map(Json)
}

/// Lease messages for the agent.
#[utoipa::path(post, path = "/sandboxes/{id}/messages/lease", tag = "worker", params(("id" = SandboxId, Path)),
    request_body = LeaseRequest, responses((status = 200, body = LeaseAnswer)))]
pub async fn lease_messages(
    State(app): State<Arc<App>>,
    worker: WorkerOf,
    WorkerBody(request): WorkerBody<LeaseRequest>,
) -> Result<Json<LeaseAnswer>> {
    lease_wait::lease_waiting(&app, worker.sandbox, request).await.map(Json)
}

/// Acknowledge that the agent has a message.
#[utoipa::path(post, path = "/sandboxes/{id}/messages/{mid}/ack", tag = "worker",
    params(("id" = SandboxId, Path), ("mid" = MessageId, Path)), request_body = Ack, responses((status = 200, body = Empty)))]
pub async fn acknowledge_message(
    State(app): State<Arc<App>>,
    worker: WorkerOf,
    SubId(message): SubId<MessageId>,
    WorkerBody(ack): WorkerBody<Ack>,
) -> Result<Json<Empty>> {
    inbox::submit_ack(&app, worker.sandbox, message, ack).await?;
    Ok(Json(Empty {}))
}

/// Report that the agent does not have a message, or that its delivery is unknown.
#[utoipa::path(post, path = "/sandboxes/{id}/messages/{mid}/nack", tag = "worker",
    params(("id" = SandboxId, Path), ("mid" = MessageId, Path)), request_body = Nack, responses((status = 200, body = Empty)))]
pub async fn reject_message(
    State(app): State<Arc<App>>,
    worker: WorkerOf,
    SubId(message): SubId<MessageId>,
    WorkerBody(nack): WorkerBody<Nack>,
) -> Result<Json<Empty>> {
    inbox::submit_nack(&app, worker.sandbox, message, nack).await?;
    Ok(Json(Empty {}))
}

/// Fetch the current login files for the agent, before each prompt.
#[utoipa::path(post, path = "/sandboxes/{id}/logins", tag = "worker", params(("id" = SandboxId, Path)),
    request_body = LoginsRequest, responses((status = 200, body = LoginsAnswer)))]
pub async fn fetch_logins(
    State(app): State<Arc<App>>,
    worker: WorkerOf,
    WorkerBody(request): WorkerBody<LoginsRequest>,
) -> Result<Json<LoginsAnswer>> {
    logins::fetch_logins(&app, worker.sandbox, request).await.map(Json)
}
