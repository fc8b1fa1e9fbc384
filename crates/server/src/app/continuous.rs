//! Working until it is done: `atoll_core::continuous::next` decides, this writes, tells and leaves the jobs.

use super::inbox::{self, Draft};
use super::{Work, lifecycle};
use crate::problem::Result;
use atoll_core::continuous::check::{self, Checked};
use atoll_core::continuous::{Effect, Facts, Input, Phase, Progress, Stop, Verdict, next, sentence};
use atoll_core::event::{NewEvent, kind};
use atoll_core::id::SandboxId;
use atoll_core::job::JobKind;
use atoll_core::lifecycle::Trigger;
use atoll_core::message::{Delivery, MessageType};
use atoll_core::sandbox::{Activity, End, Reason, SandboxState, TurnState};
use atoll_store::Tx;
use atoll_store::continuous::{self as rows, Record};
use atoll_store::jobs;
use atoll_store::messages;
use atoll_store::sandboxes::{self, Sandbox};
use atoll_store::sessions::Session;
use serde_json::json;

/// Who tells the agent what failed.
const SENDER: &str = "atoll";
/// How much of a name stands in a list.
const NAME: usize = 200;
/// How much of a command's output is kept with the sandbox; the log has more.
const KEPT: usize = 1024;

const fn facts(work: &Work<'_>, sandbox: &Sandbox) -> Facts {
    Facts { steady: work.steady, cost: sandbox.cost_model_micros }
}

/// Whether the loop holds the sandbox although its agent waits.
pub async fn holds(tx: &mut dyn Tx, sandbox: &Sandbox) -> Result<bool> {
    if sandbox.settings.continuous.is_none() {
        return Ok(false);
    }
    let phase = rows::get(tx, sandbox.id).await?.map(|record| record.progress.phase);
    Ok(matches!(phase, Some(Phase::Validating | Phase::Resting)))
}

/// Whether the work has not passed, and may still.
pub async fn is_live(tx: &mut dyn Tx, sandbox: &Sandbox) -> Result<bool> {
    if sandbox.settings.continuous.is_none() {
        return Ok(false);
    }
    Ok(rows::get(tx, sandbox.id).await?.is_some_and(|record| record.progress.is_live()))
}

/// A turn began. The first one begins the loop.
pub async fn run_began(work: &mut Work<'_>, sandbox: &mut Sandbox) -> Result<()> {
    step(work, sandbox, Input::RunBegan, None).await.map(drop)
}

/// The turn ended and nothing is queued. Says whether the loop goes on.
pub async fn run_ended(work: &mut Work<'_>, sandbox: &mut Sandbox) -> Result<bool> {
    let Some((record, _)) = step(work, sandbox, Input::RunEnded, None).await? else { return Ok(false) };
    if record.progress.is_live() {
        sandbox.activity = Activity::Working;
        sandboxes::update(work.tx, sandbox).await?;
    }
    Ok(record.progress.is_live())
}

/// The agent failed. Says whether the loop has taken care of it.
pub async fn run_failed(
    work: &mut Work<'_>,
    session: &mut Session,
    sandbox: &mut Sandbox,
    reason: &Reason,
) -> Result<bool> {
    // One that can't even be started will not be by saying it again.
    if reason.code == "agent_not_started" || !is_live(work.tx, sandbox).await? {
        return Ok(false);
    }
    sandbox.turn_state = TurnState::Idle;
    sandbox.activity = Activity::Working;
    let error = Some(reason.detail.clone());
    let Some((record, effects)) = step(work, sandbox, Input::RunFailed, error).await? else { return Ok(false) };
    sandboxes::update(work.tx, sandbox).await?;
    work.out.inboxes.push(session.id);
    if effects.contains(&Effect::Finish) {
        finish(work, session, sandbox, &record).await?;
    }
    Ok(true)
}

/// A person interrupted the agent: that ends the loop, whatever it was at.
pub async fn interrupted(work: &mut Work<'_>, sandbox: &mut Sandbox) -> Result<()> {
    let Some((_, effects)) = step(work, sandbox, Input::Interrupted, None).await? else { return Ok(()) };
    // What was being checked is not done: the sandbox does not end with it, but waits for whoever took over.
    if effects.contains(&Effect::Finish) && sandbox.turn_state == TurnState::Done {
        sandbox.turn_state = TurnState::Idle;
    }
    rest(work, sandbox).await
}

/// The sandbox leaves `running`. The caller writes the row.
pub async fn sandbox_ends(work: &mut Work<'_>, sandbox: &mut Sandbox) -> Result<()> {
    step(work, sandbox, Input::SandboxEnds, None).await.map(drop)
}

/// The pause after a failed run is over: the agent is told to go on.
pub async fn rested(work: &mut Work<'_>, id: SandboxId) -> Result<()> {
    let (mut session, mut sandbox) = work.locked(id).await?;
    let error = rows::get(work.tx, id).await?.and_then(|record| record.error).unwrap_or_default();
    let Some((record, effects)) = step(work, &mut sandbox, Input::Rested, None).await? else { return Ok(()) };
    sandboxes::update(work.tx, &mut sandbox).await?;
    if effects.contains(&Effect::Tell) {
        let most = limits(&sandbox).iterations;
        let content = check::after_error(&error, record.progress.iteration.saturating_sub(1), most);
        tell(work, &mut session, content).await?;
    }
    Ok(())
}

/// What the checks of a round came to. Without effect if somebody told the agent more meanwhile, or the loop is over.
pub async fn checked(work: &mut Work<'_>, id: SandboxId, round: u32, checks: Vec<Checked>) -> Result<()> {
    let (mut session, mut sandbox) = work.locked(id).await?;
    let still = rows::get(work.tx, id)
        .await?
        .is_some_and(|record| record.progress.phase == Phase::Validating && record.progress.round == round);
    let rests = sandbox.state == SandboxState::Running && sandbox.turn_state == TurnState::Done;
    if !still || !rests {
        return Ok(());
    }
    if messages::any_open(work.tx, session.id).await? {
        // It is about to begin a run with that, and is checked after it.
        run_began(work, &mut sandbox).await?;
        return Ok(sandboxes::update(work.tx, &mut sandbox).await?);
    }
    let verdict = check::verdict(&checks);
    log_checks(work, &mut sandbox, round, verdict, &checks).await?;
    let taken = step(work, &mut sandbox, Input::Checked { round, verdict }, None).await?;
    let Some((mut record, effects)) = taken else { return Ok(()) };
    sandboxes::update(work.tx, &mut sandbox).await?;
    let text = check::message(&checks, record.progress.iteration.saturating_sub(1), limits(&sandbox).iterations);
    record.checks = checks.into_iter().map(kept).collect();
    rows::put(work.tx, id, &record).await?;
    if effects.contains(&Effect::Finish) {
        finish(work, &mut session, &mut sandbox, &record).await?;
    }
    if effects.contains(&Effect::Tell) {
        tell(work, &mut session, text).await?;
    }
    Ok(())
}

/// Its time is over, also in the middle of a run.
pub async fn deadline(work: &mut Work<'_>, id: SandboxId) -> Result<()> {
    cut_off(work, id, Input::Deadline, "The time for this task is over.").await
}

/// A request to a model was refused, since with it the sandbox could have cost more than this.
pub async fn spent_out(work: &mut Work<'_>, id: SandboxId, limit: i64) -> Result<()> {
    let (_, sandbox) = work.locked(id).await?;
    // Work that began meanwhile has money of its own.
    if most(work.tx, &sandbox).await? != Some(limit) {
        return Ok(());
    }
    cut_off(work, id, Input::SpentOut, "The money for this task is used up.").await
}

/// What the sandbox may have cost in all before the loop ends, also before it is known that it began.
pub async fn most(tx: &mut dyn Tx, sandbox: &Sandbox) -> Result<Option<i64>> {
    if sandbox.settings.continuous.is_none() {
        return Ok(None);
    }
    let limits = limits(sandbox);
    Ok(match rows::get(tx, sandbox.id).await? {
        Some(record) => record.progress.most(&limits),
        None => limits.cost,
    })
}

/// Ends the loop, and the run that it is at.
async fn cut_off(work: &mut Work<'_>, id: SandboxId, input: Input, words: &str) -> Result<()> {
    let (mut session, mut sandbox) = work.locked(id).await?;
    let Some((record, effects)) = step(work, &mut sandbox, input, None).await? else { return Ok(()) };
    if !effects.contains(&Effect::Finish) {
        return Ok(());
    }
    sandboxes::update(work.tx, &mut sandbox).await?;
    let in_turn = sandbox.turn_state == TurnState::Open;
    finish(work, &mut session, &mut sandbox, &record).await?;
    if sandbox.state == SandboxState::Running && in_turn {
        let content = words.to_owned();
        let sender = Some(SENDER.to_owned());
        let draft = Draft { content, message_type: MessageType::Interrupt, delivery: Delivery::Steer, sender };
        inbox::queue(work, &mut session, draft).await?;
    }
    Ok(())
}

fn limits(sandbox: &Sandbox) -> atoll_core::continuous::Limits {
    sandbox.settings.continuous.clone().unwrap_or_default().limits()
}

/// One step of the rule: the record, its events and its jobs. What is told or ended is left to the caller, who also
/// writes the row.
async fn step(
    work: &mut Work<'_>,
    sandbox: &mut Sandbox,
    input: Input,
    error: Option<String>,
) -> Result<Option<(Record, Vec<Effect>)>> {
    if sandbox.settings.continuous.is_none() {
        return Ok(None);
    }
    let (here, limits) = (facts(work, sandbox), limits(sandbox));
    let before = match rows::get(work.tx, sandbox.id).await? {
        Some(record) => record,
        // A run's first request may be heard of before its beginning is.
        None if matches!(input, Input::RunBegan | Input::RunEnded | Input::SpentOut) => {
            // For the same reason everything that the sandbox has cost is its.
            let progress = Progress::begin(Facts { cost: 0, ..here });
            let record = Record { progress, checks: Vec::new(), error: None };
            begun(work, sandbox).await?;
            record
        }
        None => return Ok(None),
    };
    let (progress, effects) = next(&before.progress, input, here, &limits);
    if before.progress.phase != progress.phase && !before.progress.is_live() {
        begun(work, sandbox).await?;
    }
    let record = Record { progress, error: error.or(before.error), checks: before.checks };
    work.out.tasks.push((sandbox.id, record.progress.most(&limits)));
    rows::put(work.tx, sandbox.id, &record).await?;
    if let Some(event) = event(work, sandbox, &record, input, &effects) {
        work.log(sandbox, vec![event]).await?;
    }
    for effect in &effects {
        match effect {
            Effect::Validate => jobs::put(work.tx, JobKind::Validate, sandbox.id, work.steady).await?,
            Effect::Rest(pause) => jobs::put(work.tx, JobKind::Validate, sandbox.id, work.steady + *pause).await?,
            Effect::Abandon => {
                jobs::cancel(work.tx, JobKind::Validate, sandbox.id).await?;
                // Whoever makes checks looks whether they are still wanted.
                work.out.states.push((sandbox.id, sandbox.state));
            }
            Effect::Finish => jobs::cancel(work.tx, JobKind::ContinuousDeadline, sandbox.id).await?,
            Effect::Tell => {}
        }
    }
    work.out.jobs |= !effects.is_empty();
    Ok(Some((record, effects)))
}

async fn begun(work: &mut Work<'_>, sandbox: &mut Sandbox) -> Result<()> {
    let Some(settings) = sandbox.settings.continuous.clone() else { return Ok(()) };
    let limits = settings.limits();
    let data = json!({
        "checks": settings.checks.clone().unwrap_or_default(),
        "require": settings.required(lifecycle::has_results(sandbox)),
        "iterations": limits.iterations,
        "errors": limits.errors,
        "duration_s": limits.duration.as_secs(),
        "cost_usd": settings.cost_usd,
    });
    work.log(sandbox, vec![NewEvent::system(kind::CONTINUOUS_STARTED, work.now, &data)]).await?;
    let due = work.steady + limits.duration;
    jobs::put(work.tx, JobKind::ContinuousDeadline, sandbox.id, due).await?;
    work.out.jobs = true;
    Ok(())
}

fn event(work: &Work<'_>, sandbox: &Sandbox, record: &Record, input: Input, effects: &[Effect]) -> Option<NewEvent> {
    let progress = &record.progress;
    let limits = limits(sandbox);
    let of = |name, data: &serde_json::Value| Some(NewEvent::system(name, work.now, data));
    if let Some(stop) = progress.stopped.filter(|_| effects.contains(&Effect::Finish)) {
        let data = json!({
            "reason": stop, "detail": sentence(stop, progress, &limits), "iteration": progress.iteration,
            "errors": progress.errors, "last_error": (stop == Stop::Errors).then_some(&record.error),
        });
        return of(kind::CONTINUOUS_STOPPED, &data);
    }
    if effects.contains(&Effect::Finish) {
        return of(kind::CONTINUOUS_PASSED, &json!({ "iteration": progress.iteration }));
    }
    if effects.contains(&Effect::Validate) {
        let data = json!({ "iteration": progress.iteration, "iterations": limits.iterations, "round": progress.round });
        return of(kind::CONTINUOUS_VALIDATING, &data);
    }
    if input == Input::RunFailed && !effects.is_empty() {
        let data = json!({
            "iteration": progress.iteration, "errors": progress.errors, "errors_limit": limits.errors,
            "error": record.error,
        });
        return of(kind::CONTINUOUS_RUN_FAILED, &data);
    }
    None
}

async fn log_checks(
    work: &mut Work<'_>,
    sandbox: &mut Sandbox,
    round: u32,
    verdict: Verdict,
    checks: &[Checked],
) -> Result<()> {
    let mut events = Vec::new();
    for check in checks {
        let mut data = json!(check);
        data["round"] = round.into();
        events.push(NewEvent::system(kind::CONTINUOUS_CHECK, work.now, &data));
    }
    let named = |wanted: Verdict| -> Vec<String> {
        let some = checks.iter().filter(|check| check.verdict == wanted);
        some.map(|check| lifecycle::bounded(&check.name, NAME)).collect()
    };
    let data = json!({
        "round": round, "verdict": verdict, "passed": named(Verdict::Passed).len(),
        "failed": named(Verdict::Failed), "unknown": named(Verdict::Unknown),
    });
    events.push(NewEvent::system(kind::CONTINUOUS_CHECKED, work.now, &data));
    work.log(sandbox, events).await
}

fn kept(check: Checked) -> Checked {
    let output = check::end(&check.output, KEPT).to_owned();
    Checked { name: lifecycle::bounded(&check.name, NAME), output, ..check }
}

async fn tell(work: &mut Work<'_>, session: &mut Session, content: String) -> Result<()> {
    let sender = Some(SENDER.to_owned());
    let draft = Draft { content, message_type: MessageType::System, delivery: Delivery::Queue, sender };
    inbox::queue(work, session, draft).await.map(drop)
}

/// The loop is over: so is the sandbox, where it is to end with its work.
async fn finish(work: &mut Work<'_>, session: &mut Session, sandbox: &mut Sandbox, record: &Record) -> Result<()> {
    if sandbox.state != SandboxState::Running {
        return Ok(());
    }
    let stop = match record.progress.stopped {
        None if sandbox.end == End::WhenDone => {
            return lifecycle::apply(work, session, sandbox, Trigger::WorkDone, None, None).await;
        }
        None | Some(Stop::Interrupted | Stop::SandboxEnded) => return rest(work, sandbox).await,
        Some(stop @ (Stop::Iterations | Stop::Cost | Stop::Duration | Stop::Errors | Stop::Undecided)) => stop,
    };
    let mut detail = sentence(stop, &record.progress, &limits(sandbox));
    if let (Stop::Errors, Some(error)) = (stop, &record.error) {
        detail = format!("{detail}; the last one: {error}");
    }
    let reason = Some(Reason::new(&format!("continuous_{stop}"), lifecycle::bounded(&detail, 500)));
    match (sandbox.end, stop) {
        (End::WhenDone, _) => {
            lifecycle::apply(work, session, sandbox, Trigger::WorkUnfinished, reason, None).await?;
            lifecycle::complete_if_left(work, session, sandbox).await
        }
        (End::Keep, Stop::Errors) => lifecycle::apply(work, session, sandbox, Trigger::WorkFailed, reason, None).await,
        (End::Keep, _) => rest(work, sandbox).await,
    }
}

async fn rest(work: &mut Work<'_>, sandbox: &mut Sandbox) -> Result<()> {
    if sandbox.activity == Activity::Working && sandbox.turn_state != TurnState::Open {
        sandbox.activity = Activity::WaitingMessage;
    }
    Ok(sandboxes::update(work.tx, sandbox).await?)
}
