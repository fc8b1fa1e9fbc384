//! Heartbeats: what a worker reports, and the start instructions that it gets back.

use super::row_wait::wait_for_row;
use super::{Work, fence, inbox, ingest, lifecycle, secrets, traces, transcripts};
use crate::gateway::registry_addresses;
use crate::problem::Result;
use crate::samples::FINE_SAMPLES_TIME;
use crate::state::App;
use atoll_api::events::{EventData, WorkerSilence};
use atoll_core::agent_status::{Signal, is_reported_by_events};
use atoll_core::id::SandboxId;
use atoll_core::lifecycle::Trigger;
use atoll_core::provider::capabilities::WorkerHost;
use atoll_core::registry::{ToolFile, ToolSettings, tool_settings};
use atoll_core::sandbox::{Activity, SandboxState};
use atoll_protocol::{Gateway, Heartbeat, HeartbeatAnswer, HomeFile, Start};
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::sessions::SessionRow;
use atoll_store::streams;
use atoll_store::tasks;
use atoll_store::usage_samples::{self, UsageSample};
use std::sync::Arc;
use std::time::Duration;

/// Interval of the stored resource samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(60);

/// A worker that waits for its start during set-up gets the answer at the end of set-up, or after this time.
const SETUP_WAIT: Duration = Duration::from_secs(10);

/// Records a heartbeat. While the sandbox is set up, the answer waits, so that the agent starts without a delay.
pub async fn submit_heartbeat(app: &App, id: SandboxId, beat: Heartbeat) -> Result<HeartbeatAnswer> {
    let again = beat.clone();
    let (answer, is_set_up) = app.write(async move |work| record_heartbeat(work, id, &beat).await).await?;
    if is_set_up || wait_for_row(app, id, SETUP_WAIT, |row| !row.is_being_set_up()).await?.is_being_set_up() {
        return Ok(answer);
    }
    let (answer, _) = app.write(async move |work| record_heartbeat(work, id, &again).await).await?;
    Ok(answer)
}

/// Returns the answer, and false if the sandbox is still being set up.
async fn record_heartbeat(work: &mut Work<'_>, id: SandboxId, beat: &Heartbeat) -> Result<(HeartbeatAnswer, bool)> {
    let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
    ingest::require_not_drained(&sandbox)?;
    fence::admit_stream(work, &session, &mut sandbox, beat.stream, beat.boot).await?;
    store_sample(work, &mut sandbox, beat).await?;
    mark_alive(work, &mut session, &mut sandbox).await?;
    let activity = beat.activity;
    let unstored_events = count_unstored_events(work, id, beat).await?;
    // Exact below 2^53.
    metrics::histogram!(crate::metrics::SPOOL_BACKLOG).record(unstored_events as f64);
    let are_events_stored = is_reported_by_events(activity) && unstored_events == 0;
    let is_between_runs =
        activity == Activity::WaitingMessage && super::continuous::is_between_runs(work.tx, &sandbox).await?;
    if sandbox.apply_signal(Signal::HeartbeatReceived { activity, are_events_stored, is_between_runs }) {
        sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    }
    let starting = beat.activity == Activity::Starting && sandbox.state == SandboxState::Running;
    let start = if starting { Some(start_instructions(work, &session, &mut sandbox, beat).await?) } else { None };
    let interval_s = u32::try_from(work.config.heartbeat.interval.as_secs().max(1)).unwrap_or(u32::MAX);
    Ok((HeartbeatAnswer { state: sandbox.state, interval_s, start }, !sandbox.is_being_set_up()))
}

/// Number of events that the heartbeat counts and that are not stored. The row must not be ahead of the log.
async fn count_unstored_events(work: &mut Work<'_>, id: SandboxId, beat: &Heartbeat) -> Result<i64> {
    let stream = streams::find_stream(work.tx, id, beat.stream).await?;
    Ok(beat.last_key.saturating_sub(stream.map_or(0, |stream| stream.last_key)).max(0))
}

/// Counts the heartbeat; the first one after set-up moves the sandbox to `running`.
pub async fn mark_alive(work: &mut Work<'_>, session: &mut SessionRow, sandbox: &mut SandboxRow) -> Result<()> {
    if sandbox.status.activity() == Activity::Unreachable
        && let Some(last) = sandbox.last_heartbeat
        && sandbox.apply_signal(Signal::HeartbeatsReturned)
    {
        let silence = WorkerSilence { silent_s: work.now.elapsed_since(last).as_secs() };
        work.log(sandbox, vec![EventData::WorkerReachable(silence).into_event(work.now)]).await?;
    }
    sandbox.heartbeat_count += 1;
    sandbox.first_heartbeat = sandbox.first_heartbeat.or(Some(work.now));
    sandbox.last_heartbeat = Some(work.now);
    sandbox.worker_has_exited = false;
    sandboxes::update_sandbox(work.tx, sandbox).await?;
    // A worker can start before the create job has run.
    if sandbox.state == SandboxState::Pending {
        lifecycle::apply_trigger(work, session, sandbox, Trigger::CreationRequested, None, None).await?;
    }
    if sandbox.state == SandboxState::Creating && !sandbox.is_being_set_up() {
        lifecycle::apply_trigger(work, session, sandbox, Trigger::FirstHeartbeat, None, None).await?;
    }
    Ok(())
}

async fn start_instructions(
    work: &mut Work<'_>,
    session: &SessionRow,
    sandbox: &mut SandboxRow,
    beat: &Heartbeat,
) -> Result<Start> {
    let resume = transcripts::resume_info(session, sandbox);
    let exposed = secrets::expose_variables(work, sandbox).await?;
    let mut settings = sandbox.settings.clone();
    settings.env.extend(exposed);
    for (name, value) in &sandbox.setup_environment.variables {
        settings.env.entry(name.clone()).or_insert_with(|| value.clone());
    }
    if let Some(context) = traces::trace_variable(work, sandbox).await? {
        settings.env.entry("TRACEPARENT".to_owned()).or_insert(context);
    }
    if let Some(task) = tasks::find_task_id(work.tx, sandbox.id).await? {
        settings.env.insert("TASK_ID".to_owned(), task.to_string());
    }
    let runs_agents = work.capabilities(sandbox.provider).runs_agents();
    let gateway = gateway_access(work, sandbox).await?;
    if let Some(gateway) = &gateway {
        settings.env.insert("ATOLL_GATEWAY_URL".to_owned(), gateway.base_url.clone());
        settings.env.insert("ATOLL_GATEWAY_KEY".to_owned(), gateway.key.clone());
    }
    let tools =
        if runs_agents { tool_settings(&registry_addresses(&work.config.registries)) } else { ToolSettings::default() };
    for (name, value) in tools.variables {
        settings.env.entry(name.to_owned()).or_insert(value);
    }
    let home_file = |file: ToolFile| HomeFile { path: file.path.to_owned(), text: file.text };
    Ok(Start {
        sandbox_id: sandbox.id,
        session_id: session.id,
        agent: sandbox.agent.clone(),
        prompt: inbox::first_message(work, session, sandbox, beat.stream).await?,
        settings,
        resume,
        program: runs_agents.then(|| work.agents.program_path_inside(sandbox.agent.as_deref())).flatten(),
        gateway,
        acp: sandbox.agent.as_deref().and_then(|name| work.agents.acp_launch(name)),
        project_id: Some(sandbox.project_id),
        callback_url: Some(work.public_url.clone()),
        files: tools.files.into_iter().map(home_file).collect(),
    })
}

/// The gateway's address, if the sandbox's outbound connections go through this server.
async fn gateway_access(work: &mut Work<'_>, sandbox: &SandboxRow) -> Result<Option<Gateway>> {
    if !work.capabilities(sandbox.provider).runs_agents() {
        return Ok(None);
    }
    let agents = Arc::clone(&work.agents);
    let keys = agents.project_keys(work.tx, sandbox.project_id, &sandbox.settings).await?;
    let base_url = format!("http://127.0.0.1:{}", atoll_protocol::PROXY_PORT);
    let (key, apis) = (work.gateway.placeholder_key(sandbox.id), keys.apis().collect());
    Ok(Some(Gateway { base_url, key, apis }))
}

/// Stores what the worker measured, if the server cannot measure the sandbox itself.
async fn store_sample(work: &mut Work<'_>, sandbox: &mut SandboxRow, beat: &Heartbeat) -> Result<()> {
    if work.capabilities(sandbox.provider).worker != WorkerHost::Person {
        return Ok(());
    }
    if sandbox.last_sample.is_some_and(|last| work.now.elapsed_since(last) < SAMPLE_INTERVAL) {
        return Ok(());
    }
    sandbox.last_sample = Some(work.now);
    // Out-of-range values saturate; NaN becomes 0.
    let whole = |figure: f64| figure as i64;
    let sample = UsageSample {
        at: work.now,
        cpu_milli: beat.cpu.map(|cpu| whole(cpu * 1000.0)),
        memory_bytes: beat.memory.map(whole),
        disk_bytes: beat.disk.map(whole),
        pids: None,
        network_bytes: None,
    };
    usage_samples::add_sample(work.tx, sandbox.id, &sample).await?;
    Ok(usage_samples::thin_samples(work.tx, sandbox.id, work.now - FINE_SAMPLES_TIME).await?)
}

/// Records a heartbeat sent as a plain event: without a stream, and without start instructions.
pub async fn record_plain_heartbeat(work: &mut Work<'_>, id: SandboxId) -> Result<i64> {
    let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
    ingest::require_not_drained(&sandbox)?;
    mark_alive(work, &mut session, &mut sandbox).await?;
    Ok(sandbox.last_seq)
}

/// Marks a sandbox unreachable if its last heartbeat is older than `before`.
pub async fn mark_unreachable(work: &mut Work<'_>, id: SandboxId, before: atoll_core::time::Timestamp) -> Result<()> {
    let (_, mut sandbox) = work.lock_sandbox(id).await?;
    let Some(last) = sandbox.last_heartbeat.filter(|last| *last < before) else { return Ok(()) };
    if sandbox.apply_signal(Signal::HeartbeatsMissed) {
        let silence = WorkerSilence { silent_s: work.now.elapsed_since(last).as_secs() };
        work.log(&mut sandbox, vec![EventData::WorkerUnreachable(silence).into_event(work.now)]).await?;
        sandbox.updated_at = work.now;
        sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
        work.out.states.push((sandbox.id, sandbox.state));
    }
    Ok(())
}
