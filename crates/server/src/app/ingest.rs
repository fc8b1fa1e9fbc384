//! Takes a worker's batch into the log: fence, dedupe, number, append, observe.

use super::{Work, approvals, fence, guardian, lifecycle, limits, priced, redacted, transcripts};
use crate::problem::{Code, Problem, Result};
use atoll_core::bounds;
use atoll_core::event::{EventType, NewEvent, Source, kind};
use atoll_core::id::SandboxId;
use atoll_core::observe::{Observation, observe};
use atoll_core::redact::Redactor;
use atoll_core::time::Timestamp;
use atoll_protocol::{Batch, BatchAnswer, BatchEvent, KeyOnly, Rejected};
use atoll_store::sandboxes::{self, Sandbox};
use atoll_store::sessions::Session;
use atoll_store::streams::{self, Stream};
use serde_json::json;
use serde_json::value::RawValue;
use uuid::Uuid;

/// A batch whose events are checked one by one: good, or bad with a reason.
#[derive(Debug)]
pub struct Checked {
    pub stream: Uuid,
    pub by: Uuid,
    pub boot: Option<i64>,
    pub is_final: bool,
    pub events: Vec<(i64, std::result::Result<NewEvent, Rejected>)>,
}

/// Checks each event by itself; only a body that isn't a batch at all is refused as a whole.
pub fn check(batch: Batch, redactor: &Redactor) -> Result<Checked> {
    if batch.events.len() > bounds::BATCH_EVENTS {
        let detail = format!("a batch has at most {} events, this one {}", bounds::BATCH_EVENTS, batch.events.len());
        return Err(Problem::new(Code::TooLarge, detail));
    }
    let mut events = Vec::with_capacity(batch.events.len());
    for raw in batch.events {
        events.push(check_event(&raw, redactor)?);
    }
    let by = batch.by.unwrap_or(batch.stream);
    Ok(Checked { stream: batch.stream, by, boot: batch.boot, is_final: batch.is_final, events })
}

fn check_event(raw: &RawValue, redactor: &Redactor) -> Result<(i64, std::result::Result<NewEvent, Rejected>)> {
    let reject = |key: i64, code: &str, detail: String| {
        (key, Err(Rejected { key, code: code.to_owned(), detail: lifecycle::bounded(&detail, 300) }))
    };
    match serde_json::from_str::<BatchEvent>(raw.get()) {
        Ok(event) => {
            let key = event.key;
            let allowed = bounds::worker_source(event.source).and_then(|()| bounds::event_data(event.data.get()));
            if let Err(error) = allowed {
                return Ok(reject(key, "out_of_bounds", error.to_string()));
            }
            Ok((key, Ok(accept(event, redactor))))
        }
        Err(error) => {
            let key: KeyOnly = serde_json::from_str(raw.get())
                .map_err(|_| Problem::new(Code::NotABatch, "every event needs a whole number as its `key`"))?;
            Ok(reject(key.key, "bad_event", crate::extract::in_words(&error.to_string())))
        }
    }
}

fn accept(event: BatchEvent, redactor: &Redactor) -> NewEvent {
    NewEvent {
        id: Uuid::now_v7(),
        event_type: event.event_type,
        source: event.source,
        actor: None,
        at: event.at,
        turn: event.turn,
        data: redacted(event.data, redactor),
    }
}

/// The event that stands in a rejected one's place, so that it can't jam the spool and isn't silent.
fn rejection(now: Timestamp, stream: Uuid, rejected: &Rejected) -> NewEvent {
    let data = json!({ "stream": stream, "key": rejected.key, "code": rejected.code, "detail": rejected.detail });
    NewEvent::system(kind::WORKER_REJECTED, now, &data)
}

/// The whole of a batch, or nothing of it.
pub async fn ingest(work: &mut Work<'_>, id: SandboxId, batch: Checked) -> Result<BatchAnswer> {
    let (mut session, mut sandbox) = work.locked(id).await?;
    if sandbox.drained {
        return last_words_again(work, &sandbox, &batch).await;
    }
    fence::admit(work, &session, &mut sandbox, batch.by, batch.boot).await?;
    let known = streams::get(work.tx, id, batch.stream).await?;
    let mut last_key = known.map_or(0, |stream| stream.last_key);
    if known.is_none() {
        let stream = Stream { stream: batch.stream, boot: None, last_key: 0 };
        streams::insert(work.tx, id, &stream, work.now).await?;
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
            // A sign of life belongs to the row, not to the log.
            Ok(event) if event.event_type.as_str() == kind::AGENT_HEARTBEAT => {
                sandbox.heartbeats += 1;
                sandbox.first_heartbeat = sandbox.first_heartbeat.or(Some(work.now));
                sandbox.last_heartbeat = Some(work.now);
                answer.stored += 1;
            }
            Ok(mut event) => {
                priced::price(work, &sandbox.settings, &mut event);
                accepted.push(event);
            }
            Err(rejected) => {
                accepted.push(rejection(work.now, batch.stream, &rejected));
                answer.rejected.push(rejected);
            }
        }
    }
    answer.stored += accepted.len() as u64 - answer.rejected.len() as u64;
    append(work, &mut session, &mut sandbox, accepted).await?;
    if last_key != stored_before {
        streams::advance(work.tx, id, batch.stream, last_key).await?;
    }
    if batch.is_final && sandbox.state.has_ended() {
        sandbox.drained = true;
    }
    sandboxes::update(work.tx, &mut sandbox).await?;
    answer.last_key = last_key;
    answer.last_seq = sandbox.last_seq;
    metrics::counter!(crate::metrics::EVENTS_STORED).increment(answer.stored);
    metrics::counter!(crate::metrics::EVENTS_REJECTED).increment(answer.rejected.len() as u64);
    metrics::counter!(crate::metrics::EVENTS_DUPLICATE).increment(answer.duplicates);
    Ok(answer)
}

/// A worker that did not hear the answer to its final batch says it again: that is answered, nothing else.
async fn last_words_again(work: &mut Work<'_>, sandbox: &Sandbox, batch: &Checked) -> Result<BatchAnswer> {
    let known = streams::get(work.tx, sandbox.id, batch.stream).await?;
    let last_key = known.map(|stream| stream.last_key).filter(|_| batch.is_final && sandbox.stream == Some(batch.by));
    match last_key {
        Some(last_key) if batch.events.iter().all(|(key, _)| *key <= last_key) => {
            let duplicates = batch.events.len() as u64;
            Ok(BatchAnswer { duplicates, last_key, last_seq: sandbox.last_seq, ..BatchAnswer::default() })
        }
        Some(_) | None => Err(Problem::unauthorized()),
    }
}

/// Appends in runs: a transition that an event causes stands right behind it in the log.
async fn append(
    work: &mut Work<'_>,
    session: &mut Session,
    sandbox: &mut Sandbox,
    events: Vec<NewEvent>,
) -> Result<()> {
    let mut run = Vec::with_capacity(events.len());
    for event in events {
        let observation = observe(event.event_type.as_str());
        approvals::observed(work, sandbox.id, &event).await?;
        transcripts::observed(work, session, sandbox, &event).await?;
        let warning = limits::observed(sandbox, &event);
        let nudge = guardian::observed(sandbox, &event);
        if warning.is_some() || nudge.is_some() {
            run.push(event);
            work.log(sandbox, std::mem::take(&mut run)).await?;
            if let Some(warning) = warning {
                limits::say(work, session, sandbox, warning).await?;
            }
            if let Some(nudge) = nudge {
                guardian::nudge(work, session, sandbox, nudge).await?;
            }
            continue;
        }
        let turn = event.turn;
        // The server's own rejections say nothing about the agent.
        if observation == Observation::Nothing || event.source == Source::System {
            run.push(event);
            continue;
        }
        let said = if observation == Observation::AgentFailed { event.data.get().to_owned() } else { String::new() };
        run.push(event);
        match observation {
            Observation::TurnStarted if sandbox.settings.continuous.is_none() => {}
            Observation::Activity(_) | Observation::Nothing => {}
            Observation::TurnStarted | Observation::TurnEnded | Observation::AgentFailed | Observation::WorkerLeft => {
                work.log(sandbox, std::mem::take(&mut run)).await?;
            }
        }
        lifecycle::observed(work, session, sandbox, observation, turn, &said).await?;
    }
    work.log(sandbox, run).await
}

/// A worker that said "nothing follows", or whose time for draining is over, has no say any more.
pub fn refuse_drained(sandbox: &Sandbox) -> Result<()> {
    if sandbox.drained && sandbox.state.has_ended() { Err(Problem::unauthorized()) } else { Ok(()) }
}

/// One event in the plain form, without stream and key.
pub async fn ingest_single(
    work: &mut Work<'_>,
    id: SandboxId,
    event_type: EventType,
    source: Source,
    data: Box<RawValue>,
    redactor: &Redactor,
) -> Result<i64> {
    bounds::worker_source(source)?;
    bounds::event_data(data.get())?;
    let (mut session, mut sandbox) = work.locked(id).await?;
    refuse_drained(&sandbox)?;
    let event = NewEvent {
        id: Uuid::now_v7(),
        event_type,
        source,
        actor: None,
        at: work.now,
        turn: None,
        data: redacted(data, redactor),
    };
    append(work, &mut session, &mut sandbox, vec![event]).await?;
    sandboxes::update(work.tx, &mut sandbox).await?;
    metrics::counter!(crate::metrics::EVENTS_STORED).increment(1);
    Ok(sandbox.last_seq)
}
