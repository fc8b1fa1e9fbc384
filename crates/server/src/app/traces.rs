//! The trace of a sandbox: what began it, and its steps that a restarted server continues.

use super::Work;
use crate::problem::Result;
use crate::telemetry::{AGENT_TURN, FinishedSpan, WORKER_START, provider_context, worker_context};
use atoll_core::observation::Observation;
use atoll_core::sandbox::Activity;
use atoll_core::time::Timestamp;
use atoll_core::trace::TraceContext;
use atoll_store::sandboxes::SandboxRow;
use atoll_store::traces;

/// Stores the trace of a new sandbox: the one of the request, or a new one.
pub async fn begin_trace(work: &mut Work<'_>, sandbox: &SandboxRow) -> Result<()> {
    let context = work.trace.unwrap_or_else(|| TraceContext::start(false));
    Ok(traces::insert_trace(work.tx, sandbox.id, context).await?)
}

/// The variable with the trace for programs in the sandbox, if the trace is recorded.
pub async fn trace_variable(work: &mut Work<'_>, sandbox: &SandboxRow) -> Result<Option<String>> {
    let trace = traces::find_trace(work.tx, sandbox.id).await?.filter(|trace| trace.context.is_sampled);
    Ok(trace.map(|trace| worker_context(trace.context, sandbox.id).to_string()))
}

/// Records that the worker of a sandbox has started, and measures how long that took.
pub async fn record_worker_start(work: &mut Work<'_>, sandbox: &SandboxRow) -> Result<()> {
    let Some(trace) = traces::find_trace(work.tx, sandbox.id).await? else { return Ok(()) };
    // A worker can start before the server has stored that the provider created the sandbox.
    let began = trace.provider_ended_at.unwrap_or(work.now);
    let phase = [("phase", "worker")];
    crate::metrics::record_seconds(crate::metrics::CREATION_SECONDS, &phase, work.now.elapsed_since(began));
    let parent = provider_context(trace.context, sandbox.id);
    let id = worker_context(trace.context, sandbox.id).span;
    let span = FinishedSpan { id, ..FinishedSpan::child(parent, WORKER_START, began, work.now) };
    record_span(work, trace.context, span.with("atoll.sandbox", sandbox.id));
    Ok(())
}

/// Records the turns of the agent.
pub async fn observe_turn(
    work: &mut Work<'_>,
    sandbox: &SandboxRow,
    observation: Observation,
    at: Timestamp,
) -> Result<()> {
    match observation {
        Observation::TurnStarted => {
            // The worker's clock may be wrong.
            let began = at.min(work.now).max(sandbox.created_at);
            Ok(traces::set_turn_start(work.tx, sandbox.id, Some(began)).await?)
        }
        Observation::TurnEnded => end_turn(work, sandbox, at, None).await,
        Observation::Activity(Activity::WaitingMessage) => end_turn(work, sandbox, at, Some("interrupted")).await,
        Observation::AgentFailed => end_turn(work, sandbox, at, Some("agent_failed")).await,
        Observation::Activity(_) | Observation::WorkerExited | Observation::NoEffect => Ok(()),
    }
}

/// Records the end of the open turn, if there is one.
pub async fn end_turn(
    work: &mut Work<'_>,
    sandbox: &SandboxRow,
    at: Timestamp,
    failure: Option<&'static str>,
) -> Result<()> {
    let Some(trace) = traces::find_trace(work.tx, sandbox.id).await? else { return Ok(()) };
    let Some(began) = trace.turn_started_at else { return Ok(()) };
    traces::set_turn_start(work.tx, sandbox.id, None).await?;
    let parent = worker_context(trace.context, sandbox.id);
    let span = FinishedSpan::child(parent, AGENT_TURN, began, at.min(work.now));
    let span = FinishedSpan { failure: failure.map(str::to_owned), ..span };
    let span = span.with("atoll.sandbox", sandbox.id).with("atoll.turn", sandbox.status.turn().unwrap_or(0));
    let agent = sandbox.agent.as_deref().unwrap_or_default().to_owned();
    record_span(work, trace.context, span.with("atoll.agent", agent));
    Ok(())
}

fn record_span(work: &mut Work<'_>, context: TraceContext, span: FinishedSpan) {
    if context.is_sampled {
        work.out.spans.push(span);
    }
}
