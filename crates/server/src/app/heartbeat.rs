//! A worker's sign of life.

use super::{Work, fence, inbox, ingest, lifecycle, secrets, transcripts};
use crate::agents::Agents;
use crate::problem::Result;
use atoll_core::id::SandboxId;
use atoll_core::lifecycle::Trigger;
use atoll_core::sandbox::{Activity, ProviderKind, SandboxState};
use atoll_protocol::{Gateway, Heartbeat, HeartbeatAnswer, Start};
use atoll_store::sandboxes::{self, Sample, Sandbox};
use atoll_store::sessions::Session;
use atoll_store::streams;
use std::time::Duration;

/// One sample is kept in this time, for graphs.
const SAMPLE_EVERY: Duration = Duration::from_secs(600);

pub async fn heartbeat(work: &mut Work<'_>, id: SandboxId, beat: &Heartbeat) -> Result<HeartbeatAnswer> {
    let (mut session, mut sandbox) = work.locked(id).await?;
    ingest::refuse_drained(&sandbox)?;
    fence::admit(work, &session, &mut sandbox, beat.stream, beat.boot).await?;
    keep_sample(work, &mut sandbox, beat).await?;
    alive(work, &mut session, &mut sandbox).await?;
    let may_change = sandbox.state == SandboxState::Running && sandbox.activity != Activity::Paused;
    let is_told = !is_told_by_events(beat.activity) || is_stored(work, id, beat).await?;
    let held = beat.activity == Activity::WaitingMessage && super::continuous::holds(work.tx, &sandbox).await?;
    let activity = match sandbox.limit_paused {
        Some(_) => Some(Activity::LimitPaused),
        None => Some(beat.activity).filter(|activity| is_told && may_claim(*activity) && !held),
    };
    if may_change
        && let Some(activity) = activity
        && sandbox.activity != activity
    {
        sandbox.activity = activity;
        sandboxes::update(work.tx, &mut sandbox).await?;
    }
    let starting = beat.activity == Activity::Starting && sandbox.state == SandboxState::Running;
    let start = if starting { Some(start(work, &session, &mut sandbox, beat).await?) } else { None };
    let interval_s = u32::try_from(work.policy.heartbeat.as_secs().max(1)).unwrap_or(u32::MAX);
    Ok(HeartbeatAnswer { state: sandbox.state, interval_s, start })
}

/// The row is never ahead of the log: what events say counts when they are there, and then by themselves.
async fn is_stored(work: &mut Work<'_>, id: SandboxId, beat: &Heartbeat) -> Result<bool> {
    let stream = streams::get(work.tx, id, beat.stream).await?;
    Ok(stream.is_some_and(|stream| stream.last_key >= beat.last_key))
}

/// Whether a change to it shows in the log, too.
const fn is_told_by_events(activity: Activity) -> bool {
    match activity {
        Activity::Working | Activity::WaitingApproval | Activity::WaitingMessage | Activity::RateLimited => true,
        Activity::Starting
        | Activity::LimitPaused
        | Activity::Stalled
        | Activity::Paused
        | Activity::Unreachable
        | Activity::TakingResults
        | Activity::Ended => false,
    }
}

/// Counts the sign of life; the first one makes the sandbox `running`.
async fn alive(work: &mut Work<'_>, session: &mut Session, sandbox: &mut Sandbox) -> Result<()> {
    sandbox.heartbeats += 1;
    sandbox.first_heartbeat = sandbox.first_heartbeat.or(Some(work.now));
    sandbox.last_heartbeat = Some(work.now);
    sandbox.worker_left = false;
    sandboxes::update(work.tx, sandbox).await?;
    // A worker may speak before the job that asks the provider has run.
    if sandbox.state == SandboxState::Pending {
        lifecycle::apply(work, session, sandbox, Trigger::ProviderAsked, None, None).await?;
    }
    if sandbox.state == SandboxState::Creating {
        lifecycle::apply(work, session, sandbox, Trigger::FirstHeartbeat, None, None).await?;
    }
    Ok(())
}

/// What a worker can know of its agent; the rest is the server's to say.
const fn may_claim(activity: Activity) -> bool {
    match activity {
        Activity::Starting
        | Activity::Working
        | Activity::WaitingApproval
        | Activity::WaitingMessage
        | Activity::RateLimited
        | Activity::Stalled => true,
        // Which limit it is, its events say.
        Activity::LimitPaused
        | Activity::Paused
        | Activity::Unreachable
        | Activity::TakingResults
        | Activity::Ended => false,
    }
}

async fn start(work: &mut Work<'_>, session: &Session, sandbox: &mut Sandbox, beat: &Heartbeat) -> Result<Start> {
    let resume = transcripts::resume(session, sandbox);
    let exposed = secrets::hand_over(work, sandbox).await?;
    let mut settings = sandbox.settings.clone();
    settings.env.extend(exposed);
    let gateway = gateway(work, sandbox);
    if let Some(gateway) = &gateway {
        settings.env.insert("ATOLL_GATEWAY_URL".to_owned(), gateway.base_url.clone());
        settings.env.insert("ATOLL_GATEWAY_KEY".to_owned(), gateway.key.clone());
    }
    Ok(Start {
        sandbox_id: sandbox.id,
        session_id: session.id,
        agent: sandbox.agent.clone(),
        prompt: inbox::first_message(work, session, sandbox, beat.stream).await?,
        settings,
        resume,
        program: Agents::inside(sandbox.provider, sandbox.agent.as_deref()),
        gateway,
    })
}

/// Only where the worker has handed its way out to this server: the gateway is at the other end of it.
pub const fn has_gateway(provider: ProviderKind) -> bool {
    match provider {
        ProviderKind::Local | ProviderKind::Docker => true,
        ProviderKind::External | ProviderKind::Fake => false,
    }
}

fn gateway(work: &Work<'_>, sandbox: &Sandbox) -> Option<Gateway> {
    has_gateway(sandbox.provider).then(|| {
        let base_url = format!("http://127.0.0.1:{}", atoll_worker::outward::PORT);
        Gateway { base_url, key: work.gateway.placeholder(sandbox.id) }
    })
}

async fn keep_sample(work: &mut Work<'_>, sandbox: &mut Sandbox, beat: &Heartbeat) -> Result<()> {
    if sandbox.last_sample.is_some_and(|last| work.now.elapsed_since(last) < SAMPLE_EVERY) {
        return Ok(());
    }
    sandbox.last_sample = Some(work.now);
    // Out-of-range figures saturate; a nonsense one (NaN) becomes 0.
    let whole = |figure: f64| figure as i64;
    let sample = Sample {
        at: work.now,
        cpu_milli: beat.cpu.map(|cpu| whole(cpu * 1000.0)),
        memory_bytes: beat.memory.map(whole),
        disk_bytes: beat.disk.map(whole),
    };
    Ok(sandboxes::add_sample(work.tx, sandbox.id, &sample).await?)
}

/// A heartbeat in the plain form of a single event: no stream, no start.
pub async fn single(work: &mut Work<'_>, id: SandboxId) -> Result<i64> {
    let (mut session, mut sandbox) = work.locked(id).await?;
    ingest::refuse_drained(&sandbox)?;
    alive(work, &mut session, &mut sandbox).await?;
    Ok(sandbox.last_seq)
}

/// Sandboxes that have been silent for too long say so.
pub async fn mark_unreachable(work: &mut Work<'_>, id: SandboxId, before: atoll_core::time::Timestamp) -> Result<()> {
    let (_, mut sandbox) = work.locked(id).await?;
    let silent = sandbox.last_heartbeat.is_some_and(|last| last < before);
    let may_be_silent = matches!(sandbox.activity, Activity::Unreachable | Activity::Paused);
    if sandbox.state == SandboxState::Running && silent && !may_be_silent {
        sandbox.activity = Activity::Unreachable;
        sandbox.updated_at = work.now;
        sandboxes::update(work.tx, &mut sandbox).await?;
        work.out.states.push((sandbox.id, sandbox.state));
    }
    Ok(())
}
