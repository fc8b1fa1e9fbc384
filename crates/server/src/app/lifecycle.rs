//! Applies a trigger to a sandbox: the rule, the row, the event, the jobs, in one transaction.

use super::{Work, continuous, fence};
use crate::problem::Result;
use atoll_core::event::{NewEvent, Source, kind};
use atoll_core::job::JobKind;
use atoll_core::lifecycle::{Effect, Trigger, next};
use atoll_core::observe::Observation;
use atoll_core::sandbox::{Activity, End, ProviderKind, Reason, Results, SandboxState, TurnState};
use atoll_store::sandboxes::Sandbox;
use atoll_store::sessions::Session;
use atoll_store::{approvals, jobs, messages, sandboxes, sessions};
use serde_json::json;
use std::time::Duration;

/// For what comes before and after a continuous run.
const AFTER_LOOP: Duration = Duration::from_secs(600);

const fn event_type(state: SandboxState) -> &'static str {
    match state {
        SandboxState::Pending => "sandbox.pending",
        SandboxState::Creating => "sandbox.creating",
        SandboxState::Running => "sandbox.running",
        SandboxState::Completing => "sandbox.completing",
        SandboxState::Completed => "sandbox.completed",
        SandboxState::Failed => "sandbox.failed",
    }
}

const fn activity_on_entering(state: SandboxState) -> Activity {
    match state {
        SandboxState::Pending | SandboxState::Creating => Activity::Starting,
        SandboxState::Running => Activity::Working,
        SandboxState::Completing => Activity::TakingResults,
        SandboxState::Completed | SandboxState::Failed => Activity::Ended,
    }
}

/// Moves the sandbox on. The caller holds the session's lock and writes neither row for this:
/// both are written here.
pub async fn apply(
    work: &mut Work<'_>,
    session: &mut Session,
    sandbox: &mut Sandbox,
    trigger: Trigger,
    reason: Option<Reason>,
    actor: Option<String>,
) -> Result<()> {
    let step = next(sandbox.phase(), trigger)?;
    if sandbox.state == SandboxState::Running {
        continuous::sandbox_ends(work, sandbox).await?;
    }
    sandbox.state = step.to.state;
    match step.to.state {
        SandboxState::Running if has_results(sandbox) => sandbox.results = Results::Pending,
        // A person did not want them.
        SandboxState::Completed if sandbox.results == Results::Pending => sandbox.results = Results::Lost,
        SandboxState::Pending
        | SandboxState::Creating
        | SandboxState::Running
        | SandboxState::Completing
        | SandboxState::Completed
        | SandboxState::Failed => {}
    }
    sandbox.ending = step.to.ending;
    sandbox.activity = activity_on_entering(step.to.state);
    sandbox.limit_paused = None;
    sandbox.state_since = work.now;
    if step.outcome.is_some() {
        sandbox.outcome = step.outcome;
        sandbox.ended_at = Some(work.now);
    }
    if reason.is_some() {
        sandbox.reason = reason;
    }
    let source = if actor.is_some() { Source::User } else { Source::System };
    let data = json!({
        "state": sandbox.state,
        "outcome": sandbox.outcome,
        "reason": sandbox.reason,
    });
    let event = NewEvent::system(event_type(step.to.state), work.now, &data).by(source, actor);
    work.log(sandbox, vec![event]).await?;
    sandboxes::update(work.tx, sandbox).await?;
    if sandbox.state.has_ended() && session.sandbox_id == Some(sandbox.id) {
        session.sandbox_id = None;
        session.updated_at = work.now;
        sessions::update(work.tx, session).await?;
        drop_deadlines(work, sandbox).await?;
        if let Some(stream) = sandbox.stream {
            fence::free_leases(work, session, stream).await?;
        }
    }
    for effect in step.effects {
        leave_job(work, sandbox, effect).await?;
    }
    if sandbox.state == SandboxState::Failed && sandbox.provider.is_on_this_machine() {
        // Its files are kept for a look inside; its processes only as long as they have something to say.
        jobs::put(work.tx, JobKind::FlushGrace, sandbox.id, work.steady + work.policy.flush_grace).await?;
    }
    work.out.states.push((sandbox.id, sandbox.state));
    Ok(())
}

/// The deadlines of a life that is over.
async fn drop_deadlines(work: &mut Work<'_>, sandbox: &Sandbox) -> Result<()> {
    const OF_A_LIFE: [JobKind; 7] = [
        JobKind::Create,
        JobKind::CreateTimeout,
        JobKind::Timeout,
        JobKind::FlushGrace,
        JobKind::Results,
        JobKind::Validate,
        JobKind::ContinuousDeadline,
    ];
    for kind in OF_A_LIFE {
        jobs::cancel(work.tx, kind, sandbox.id).await?;
    }
    Ok(())
}

fn create_timeout(work: &Work<'_>, provider: ProviderKind) -> Duration {
    match provider {
        ProviderKind::Local => work.policy.create_timeout_local,
        ProviderKind::Docker => work.policy.create_timeout_docker,
        ProviderKind::External => work.policy.create_timeout_external,
        ProviderKind::Fake => work.policy.create_timeout_fake,
    }
}

/// How long it may run: what it asked for, else what holds for its way of ending.
pub fn timeout(work: &Work<'_>, sandbox: &Sandbox) -> Option<Duration> {
    let asked = sandbox.settings.timeout_s.map(|seconds| Duration::from_secs(seconds.into()));
    // A loop has a limit of its own, which comes first and says more.
    let enough = sandbox.settings.continuous.as_ref().map(|continuous| continuous.limits().duration + AFTER_LOOP);
    asked.or(match sandbox.end {
        End::WhenDone => work.policy.timeout_when_done,
        End::Keep => work.policy.timeout_keep,
    }
    .map(|usual| enough.map_or(usual, |enough| usual.max(enough))))
}

async fn leave_job(work: &mut Work<'_>, sandbox: &Sandbox, effect: Effect) -> Result<()> {
    let (kind, after) = match effect {
        Effect::WatchCreation => (JobKind::CreateTimeout, Some(create_timeout(work, sandbox.provider))),
        Effect::WatchTimeout => (JobKind::Timeout, timeout(work, sandbox)),
        Effect::TakeResults => (JobKind::FlushGrace, Some(work.policy.flush_grace)),
        Effect::RemoveNow => (JobKind::Remove, Some(Duration::ZERO)),
        Effect::RemoveLater => (JobKind::Remove, Some(work.policy.keep_failed_for)),
        Effect::WatchDrain => (JobKind::EndDrain, Some(work.policy.drain_for)),
    };
    if let Some(after) = after {
        jobs::put(work.tx, kind, sandbox.id, work.steady + after).await?;
        work.out.jobs = true;
    }
    Ok(())
}

/// What a worker's event means for the row. The caller writes the row afterwards.
pub async fn observed(
    work: &mut Work<'_>,
    session: &mut Session,
    sandbox: &mut Sandbox,
    observation: Observation,
    turn: Option<i64>,
    data: &str,
) -> Result<()> {
    // What a paused sandbox, or an agent at its limit, had still to say changes nothing of its standing still.
    let running = sandbox.state == SandboxState::Running
        && sandbox.activity != Activity::Paused
        && sandbox.limit_paused.is_none();
    match observation {
        Observation::Nothing => {}
        Observation::TurnStarted => {
            sandbox.turn = Some(turn.unwrap_or_else(|| sandbox.turn.unwrap_or(0).saturating_add(1)));
            sandbox.turn_state = TurnState::Open;
            if running {
                sandbox.activity = Activity::Working;
            }
            if sandbox.state == SandboxState::Running {
                continuous::run_began(work, sandbox).await?;
            }
        }
        Observation::TurnEnded => {
            if turn.is_none_or(|turn| sandbox.turn.is_none_or(|current| turn >= current)) {
                sandbox.turn = turn.or(sandbox.turn);
                sandbox.turn_state = TurnState::Done;
                work.out.inboxes.push(session.id);
            }
            if running {
                sandbox.activity = Activity::WaitingMessage;
            }
            finish_if_done(work, session, sandbox).await?;
        }
        Observation::Activity(activity) => {
            // An agent that waits for a message is in no turn, however the last one ended.
            if activity == Activity::WaitingMessage && sandbox.turn_state == TurnState::Open {
                sandbox.turn_state = TurnState::Idle;
                work.out.inboxes.push(session.id);
            }
            // Whoever waits for a person's word may go on talking, and waits all the same.
            let still_asks = activity == Activity::Working
                && sandbox.activity == Activity::WaitingApproval
                && approvals::are_open(work.tx, sandbox.id).await?;
            let held = activity == Activity::WaitingMessage && continuous::holds(work.tx, sandbox).await?;
            if running && !still_asks && !held {
                sandbox.activity = activity;
            }
        }
        Observation::AgentFailed => {
            if sandbox.state == SandboxState::Running {
                let reason = failure(data);
                if continuous::run_failed(work, session, sandbox, &reason).await? {
                    return Ok(());
                }
                apply(work, session, sandbox, Trigger::WorkFailed, Some(reason), None).await?;
            }
        }
        Observation::WorkerLeft => match sandbox.state {
            SandboxState::Completing => flushed(work, session, sandbox).await?,
            SandboxState::Running => {
                sandbox.worker_left = true;
                sandbox.activity = Activity::Unreachable;
            }
            SandboxState::Pending | SandboxState::Creating | SandboxState::Completed | SandboxState::Failed => {}
        },
    }
    Ok(())
}

/// The agent's own words for why it failed, bounded.
fn failure(data: &str) -> Reason {
    let said: serde_json::Value = serde_json::from_str(data).unwrap_or_default();
    let word = |key: &str| said.get(key).and_then(|value| value.as_str()).map(|text| bounded(text, 500));
    // Words that a worker of Atoll's own says; anything else is the agent's own and stands in the detail.
    const KNOWN: [&str; 4] = ["out_of_memory", "agent_crashed", "agent_exited", "agent_not_started"];
    let said_reason = word("reason").unwrap_or_default();
    let code = KNOWN.into_iter().find(|known| said_reason == *known).unwrap_or("agent_failed");
    let detail = word("error").or_else(|| word("detail")).or_else(|| word("reason"));
    Reason::new(code, detail.unwrap_or_else(|| "the agent reported failure".into()))
}

pub fn bounded(text: &str, most: usize) -> String {
    text.chars().filter(|c| *c != '\0').take(most).collect()
}

/// "The turn ended and nothing is queued or leased", and the step that follows, are one transaction.
pub async fn finish_if_done(work: &mut Work<'_>, session: &mut Session, sandbox: &mut Sandbox) -> Result<()> {
    let idle = sandbox.state == SandboxState::Running && sandbox.turn_state == TurnState::Done;
    let matters = sandbox.end == End::WhenDone || sandbox.settings.continuous.is_some();
    if !idle || !matters || messages::any_open(work.tx, session.id).await? {
        return Ok(());
    }
    if continuous::run_ended(work, sandbox).await? || sandbox.end == End::Keep {
        return Ok(());
    }
    apply(work, session, sandbox, Trigger::WorkDone, None, None).await
}

/// A worker that has taken its leave has nothing left to flush: there is nothing to wait for.
pub async fn complete_if_left(work: &mut Work<'_>, session: &mut Session, sandbox: &mut Sandbox) -> Result<()> {
    if sandbox.state == SandboxState::Completing && sandbox.worker_left {
        flushed(work, session, sandbox).await?;
    }
    Ok(())
}

/// The worker of a completing sandbox has nothing more to say: what is left are its results, if it has any.
pub async fn flushed(work: &mut Work<'_>, session: &mut Session, sandbox: &mut Sandbox) -> Result<()> {
    if sandbox.results != Results::Pending {
        return apply(work, session, sandbox, Trigger::ResultsOut, None, None).await;
    }
    jobs::cancel(work.tx, JobKind::FlushGrace, sandbox.id).await?;
    // The worker's leave and its end both lead here; the results are taken once.
    jobs::put_if_absent(work.tx, JobKind::Results, sandbox.id, work.steady).await?;
    work.out.jobs = true;
    Ok(())
}

/// Whether its work comes out as something of its own: a branch.
pub fn has_results(sandbox: &Sandbox) -> bool {
    match sandbox.provider {
        ProviderKind::Local | ProviderKind::Docker => {
            sandbox.settings.repo.is_some() && sandbox.settings.deliver != Some(false)
        }
        ProviderKind::External | ProviderKind::Fake => false,
    }
}

/// Notes in the log that the worker's words may have been lost.
pub fn worker_lost(work: &Work<'_>, sandbox: &Sandbox, last_key: i64, detail: &str) -> NewEvent {
    let data = json!({ "stream": sandbox.stream, "last_key": last_key, "detail": detail });
    NewEvent::system(kind::WORKER_LOST, work.now, &data)
}
