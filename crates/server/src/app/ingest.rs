//! Ingests a worker's batch into the event log: fence, deduplicate, number, append, observe.

use super::{
    Work, approvals, fence, guardian, heartbeat, lifecycle, limits, previews, pricing, services, traces, transcripts,
};
use crate::auth::access::WorkerOf;
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::ingest_gates::IngestTurn;
use crate::metrics::record_seconds;
use crate::problem::{Code, Problem, Result};
use crate::retention;
use crate::state::App;
use atoll_api::events::{AgentRateLimited, EventData, LogTruncated, WorkerRejected};
use atoll_config::Config;
use atoll_core::bounds;
use atoll_core::event::{EventSource, EventType, NewEvent, kind};
use atoll_core::id::SandboxId;
use atoll_core::log_quota::{self, LogUsage};
use atoll_core::observation::{Observation, is_work, observe_event};
use atoll_core::redact::Redactor;
use atoll_core::time::Timestamp;
use atoll_protocol::{Batch, BatchAnswer, BatchEvent, BatchEventKey, Rejected};
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::sessions::SessionRow;
use atoll_store::streams::{self, StreamRow};
use serde::Serialize;
use serde_json::value::RawValue;
use std::time::Instant;
use uuid::Uuid;

/// Stores a batch in the sandbox's turn.
pub async fn submit_batch(app: &App, turn: &mut IngestTurn, id: SandboxId, batch: Batch) -> Result<BatchAnswer> {
    let began = Instant::now();
    turn.delay_request(batch.events.iter().map(|event| event.get().len()).sum()).await;
    let checked = check_batch(batch, &*app.redactor(id).await?)?;
    let oldest = checked.events.iter().filter_map(|(_, event)| Some(event.as_ref().ok()?.at)).min();
    let (answer, usage) = app.write(async move |work| ingest_batch(work, id, checked).await).await?;
    record_seconds(crate::metrics::INGEST_SECONDS, &[], began.elapsed());
    if let Some(oldest) = oldest.filter(|_| answer.stored > 0) {
        record_seconds(crate::metrics::INGEST_LAG_SECONDS, &[], app.clock.now().elapsed_since(oldest));
    }
    turn.record_usage(usage);
    if let Err(problem) = retention::remove_unreferenced_blobs(app).await {
        tracing::warn!(detail = %problem.detail, "failed to remove the files of older transcripts");
    }
    Ok(answer)
}

/// The response to a plain event. It has no other fields, so that the OpenAPI document can tell it from a batch's.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlainEventResponse {
    stored: u64,
    last_seq: i64,
}

/// Stores one event that was sent without stream and key.
pub async fn submit_event(
    app: &App,
    turn: &IngestTurn,
    worker: WorkerOf,
    key: IdempotencyKey,
    event_type: EventType,
    source: EventSource,
    data: Box<RawValue>,
) -> Result<JsonResponse> {
    turn.delay_request(data.get().len()).await;
    let (id, redactor) = (worker.sandbox, app.redactor(worker.sandbox).await?);
    app.write_once(&worker.caller, key, async move |work| {
        let (stored, last_seq) = if event_type.as_str() == kind::AGENT_HEARTBEAT {
            (0, heartbeat::record_plain_heartbeat(work, id).await?)
        } else {
            (1, ingest_event(work, id, event_type, source, data, &redactor).await?)
        };
        JsonResponse::ok(PlainEventResponse { stored, last_seq })
    })
    .await
}

/// A batch whose events were checked one by one: accepted, or rejected with a reason.
#[derive(Debug)]
pub struct CheckedBatch {
    pub stream: Uuid,
    pub by: Uuid,
    pub boot: Option<i64>,
    pub is_final: bool,
    pub events: Vec<(i64, std::result::Result<NewEvent, Rejected>)>,
}

/// Checks each event on its own. Only a body that is not a batch fails as a whole.
pub fn check_batch(batch: Batch, redactor: &Redactor) -> Result<CheckedBatch> {
    if batch.events.len() > bounds::MAX_BATCH_EVENTS {
        let detail =
            format!("a batch has at most {} events, this one {}", bounds::MAX_BATCH_EVENTS, batch.events.len());
        return Err(Problem::new(Code::TooLarge, detail));
    }
    let mut events = Vec::with_capacity(batch.events.len());
    for raw in batch.events {
        events.push(check_event(&raw, redactor)?);
    }
    let by = batch.by.unwrap_or(batch.stream);
    Ok(CheckedBatch { stream: batch.stream, by, boot: batch.boot, is_final: batch.is_final, events })
}

fn check_event(raw: &RawValue, redactor: &Redactor) -> Result<(i64, std::result::Result<NewEvent, Rejected>)> {
    let reject = |key: i64, code: &str, detail: String| {
        (key, Err(Rejected { key, code: code.to_owned(), detail: lifecycle::truncate_text(&detail, 300) }))
    };
    match serde_json::from_str::<BatchEvent>(raw.get()) {
        Ok(event) => {
            let key = event.key;
            let allowed =
                bounds::check_worker_source(event.source).and_then(|()| bounds::check_event_data(event.data.get()));
            if let Err(error) = allowed {
                return Ok(reject(key, "out_of_bounds", error.to_string()));
            }
            Ok((key, Ok(to_new_event(event, redactor))))
        }
        Err(error) => {
            let key: BatchEventKey = serde_json::from_str(raw.get())
                .map_err(|_| Problem::new(Code::NotABatch, "every event needs a whole number as its `key`"))?;
            Ok(reject(key.key, "bad_event", crate::extract::describe_parse_error(&error.to_string())))
        }
    }
}

fn to_new_event(event: BatchEvent, redactor: &Redactor) -> NewEvent {
    NewEvent {
        id: Uuid::now_v7(),
        event_type: event.event_type,
        source: event.source,
        actor: None,
        at: event.at,
        turn: event.turn,
        data: redactor.redact_raw_json(event.data),
    }
}

/// The event that replaces a rejected one, so that the spool advances and the log shows the rejection.
fn rejection_event(now: Timestamp, stream: Uuid, rejected: &Rejected) -> NewEvent {
    let Rejected { key, code, detail } = rejected.clone();
    EventData::WorkerRejected(WorkerRejected { stream, key, code, detail }).into_event(now)
}

/// Stores a whole batch or nothing.
pub async fn ingest_batch(work: &mut Work<'_>, id: SandboxId, batch: CheckedBatch) -> Result<(BatchAnswer, LogUsage)> {
    let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
    if sandbox.is_drained {
        return Ok((repeat_final_answer(work, &sandbox, &batch).await?, log_usage(&work.config, &sandbox)));
    }
    let dropped_before = sandbox.dropped_events;
    fence::admit_stream(work, &session, &mut sandbox, batch.by, batch.boot).await?;
    let known = streams::find_stream(work.tx, id, batch.stream).await?;
    let mut last_key = known.map_or(0, |stream| stream.last_key);
    if known.is_none() {
        let stream = StreamRow { id: batch.stream, boot: None, last_key: 0 };
        streams::insert_stream(work.tx, id, &stream, work.now).await?;
    }
    let stored_before = last_key;
    let mut answer = BatchAnswer::default();
    let mut accepted = Vec::with_capacity(batch.events.len());
    for (key, event) in batch.events {
        if key <= last_key {
            answer.duplicates += 1;
            continue;
        }
        if key != last_key + 1 {
            let detail = format!("the next key of this stream is {}, not {key}", stored_before + 1);
            return Err(Problem::new(Code::KeyGap, detail).with("last_key", stored_before));
        }
        last_key = key;
        match event {
            // A heartbeat updates the row; it is not stored in the log.
            Ok(event) if event.event_type.as_str() == kind::AGENT_HEARTBEAT => {
                append_events(work, &mut session, &mut sandbox, std::mem::take(&mut accepted)).await?;
                heartbeat::mark_alive(work, &mut session, &mut sandbox).await?;
                answer.stored += 1;
            }
            Ok(mut event) => {
                pricing::observe_usage(work, &sandbox, &mut event).await?;
                accepted.push(event);
                answer.stored += 1;
            }
            Err(rejected) => {
                accepted.push(rejection_event(work.now, batch.stream, &rejected));
                answer.rejected.push(rejected);
            }
        }
    }
    append_events(work, &mut session, &mut sandbox, accepted).await?;
    if last_key != stored_before {
        streams::advance_last_key(work.tx, id, batch.stream, last_key).await?;
    }
    if batch.is_final && sandbox.state.has_ended() {
        sandbox.is_drained = true;
    }
    sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    answer.last_key = last_key;
    answer.last_seq = sandbox.last_seq;
    answer.dropped = u64::try_from(sandbox.dropped_events - dropped_before).unwrap_or(0);
    answer.stored = answer.stored.saturating_sub(answer.dropped);
    metrics::counter!(crate::metrics::EVENTS_STORED).increment(answer.stored);
    metrics::counter!(crate::metrics::EVENTS_REJECTED).increment(answer.rejected.len() as u64);
    metrics::counter!(crate::metrics::EVENTS_DUPLICATE).increment(answer.duplicates);
    metrics::counter!(crate::metrics::EVENTS_DROPPED).increment(answer.dropped);
    Ok((answer, log_usage(&work.config, &sandbox)))
}

/// Answers a repeated final batch of a drained stream. Every other batch is rejected.
async fn repeat_final_answer(work: &mut Work<'_>, sandbox: &SandboxRow, batch: &CheckedBatch) -> Result<BatchAnswer> {
    let known = streams::find_stream(work.tx, sandbox.id, batch.stream).await?;
    let last_key = known.map(|stream| stream.last_key).filter(|_| batch.is_final && sandbox.stream == Some(batch.by));
    match last_key {
        Some(last_key) if batch.events.iter().all(|(key, _)| *key <= last_key) => {
            let duplicates = batch.events.len() as u64;
            Ok(BatchAnswer { duplicates, last_key, last_seq: sandbox.last_seq, ..BatchAnswer::default() })
        }
        Some(_) | None => Err(Problem::unauthorized()),
    }
}

/// The size of a sandbox's log, and its quota.
pub fn log_usage(config: &Config, sandbox: &SandboxRow) -> LogUsage {
    let whole = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
    let quota = Some(config.limits.log_bytes_per_sandbox).filter(|quota| *quota > 0);
    LogUsage { used: whole(sandbox.log_bytes).saturating_add(whole(sandbox.blob_bytes)), quota }
}

/// Returns the event if the log's quota admits it. The first other one is replaced by the event that reports this; the
/// rest is only counted.
fn admit_event(work: &Work<'_>, sandbox: &mut SandboxRow, unstored: &[NewEvent], event: NewEvent) -> Option<NewEvent> {
    let size = |event: &NewEvent| log_quota::event_size(event.data.get());
    let mut usage = log_usage(&work.config, sandbox);
    usage.used = usage.used.saturating_add(unstored.iter().map(size).sum());
    if sandbox.dropped_events == 0 && usage.admits(size(&event)) {
        return Some(event);
    }
    sandbox.dropped_events += 1;
    let LogUsage { used, quota } = usage;
    (sandbox.dropped_events == 1).then(|| {
        let reached = LogTruncated { log_bytes: used, quota_bytes: quota.unwrap_or(used) };
        EventData::LogTruncated(reached).into_event(work.now)
    })
}

/// Appends events in runs, so that a transition follows directly after the event that causes it.
async fn append_events(
    work: &mut Work<'_>,
    session: &mut SessionRow,
    sandbox: &mut SandboxRow,
    events: Vec<NewEvent>,
) -> Result<()> {
    let mut run = Vec::with_capacity(events.len());
    for event in events {
        let observation = observe_event(event.event_type.as_str());
        approvals::observe_event(work, sandbox.id, &event).await?;
        transcripts::observe_event(work, session, sandbox, &event).await?;
        services::observe_event(work, sandbox, &event).await?;
        previews::observe_event(work, sandbox, &event).await?;
        let warning = limits::observe_event(sandbox, &event);
        let nudge = guardian::nudge_for_event(&event);
        let (turn, source, at) = (event.turn, event.source, event.at);
        if is_work(event.event_type.as_str()) {
            sandbox.work_at = Some(work.steady);
        }
        if event.event_type.as_str() == kind::AGENT_RATE_LIMITED {
            let limited = serde_json::from_str::<AgentRateLimited>(event.data.get()).ok();
            sandbox.rate_limited_until = limited.and_then(|limited| limited.until);
        }
        let failure_data =
            if observation == Observation::AgentFailed { event.data.get().to_owned() } else { String::new() };
        run.extend(admit_event(work, sandbox, &run, event));
        if warning.is_some() || nudge.is_some() {
            work.log(sandbox, std::mem::take(&mut run)).await?;
            if let Some(warning) = warning {
                limits::notify_agent(work, session, sandbox, warning).await?;
            }
            if let Some(nudge) = nudge {
                guardian::deliver_nudge(work, session, sandbox, nudge).await?;
            }
            continue;
        }
        // The server's own rejection events carry no observation.
        if observation == Observation::NoEffect || source == EventSource::System {
            continue;
        }
        match observation {
            Observation::TurnStarted if sandbox.settings.continuous.is_none() => {}
            Observation::Activity(_) | Observation::NoEffect => {}
            Observation::TurnStarted
            | Observation::TurnEnded
            | Observation::AgentFailed
            | Observation::WorkerExited => {
                work.log(sandbox, std::mem::take(&mut run)).await?;
            }
        }
        traces::observe_turn(work, sandbox, observation, at).await?;
        lifecycle::apply_observation(work, session, sandbox, observation, turn, &failure_data).await?;
    }
    work.log(sandbox, run).await
}

/// Rejects a worker that sent its final batch or whose drain time is over.
pub fn require_not_drained(sandbox: &SandboxRow) -> Result<()> {
    if sandbox.is_drained && sandbox.state.has_ended() { Err(Problem::unauthorized()) } else { Ok(()) }
}

/// Stores one event sent without stream and key.
pub async fn ingest_event(
    work: &mut Work<'_>,
    id: SandboxId,
    event_type: EventType,
    source: EventSource,
    data: Box<RawValue>,
    redactor: &Redactor,
) -> Result<i64> {
    bounds::check_worker_source(source)?;
    bounds::check_event_data(data.get())?;
    let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
    require_not_drained(&sandbox)?;
    let event = NewEvent {
        id: Uuid::now_v7(),
        event_type,
        source,
        actor: None,
        at: work.now,
        turn: None,
        data: redactor.redact_raw_json(data),
    };
    append_events(work, &mut session, &mut sandbox, vec![event]).await?;
    sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    metrics::counter!(crate::metrics::EVENTS_STORED).increment(1);
    Ok(sandbox.last_seq)
}

/// Rejects blobs of a drained worker.
pub async fn require_open_stream(app: &App, id: SandboxId) -> Result<()> {
    let row = app.read(async move |tx| Ok(sandboxes::find_sandbox(tx, id).await?)).await?;
    require_not_drained(&row.ok_or_else(Problem::unauthorized)?)
}
