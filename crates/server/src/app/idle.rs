//! Agents without progress: stalled ones are marked, idle sandboxes are paused or ended after their work is saved.

use super::pausing::Pauser;
use super::restarts::HEALTH_SENDER;
use super::targets::{SandboxTarget, find_sandbox, find_target_of};
use super::{Work, continuous, inbox, pausing, results, saved_work};
use crate::keyed_locks::run_to_completion;
use crate::problem::Result;
use crate::state::App;
use atoll_api::events::{EventData, SandboxIdle, SandboxStalled, SavedWork};
use atoll_config::Config;
use atoll_core::agent_status::Signal;
use atoll_core::health::idleness::{self, Progress, judge_progress, progress_policy};
use atoll_core::health::{HealthSettings, IdleAction};
use atoll_core::id::SandboxId;
use atoll_core::job::JobKind;
use atoll_core::message::{Delivery, MessageType};
use atoll_core::provider::Capabilities;
use atoll_core::sandbox::{Activity, Reason, ResultsAction, SandboxState};
use atoll_core::time::Timestamp;
use atoll_store::health::SandboxProgress;
use atoll_store::sandboxes::SandboxRow;
use atoll_store::{health, jobs, messages, sandboxes};
use std::sync::Arc;
use std::time::Duration;

/// Stores the uses of sandboxes, then looks for agents without progress.
pub async fn check_progress(app: &App) -> Result<()> {
    let used = app.uses.take_used();
    if !used.is_empty() {
        app.write(async move |work| {
            for id in used {
                health::record_use(work.tx, id, work.steady).await?;
            }
            Ok(())
        })
        .await?;
    }
    let now = app.clock.steady_now();
    for found in app.read(async move |tx| Ok(health::list_progress(tx).await?)).await? {
        match judge(app, &found, now) {
            Progress::Normal => {}
            Progress::Stalled => {
                let policy = progress_policy(found.settings.as_ref(), app.config.health.progress_policy());
                app.write(async move |work| mark_stalled(work, found.id, policy.stalled_after).await).await?;
            }
            Progress::Stuck => app.write(async move |work| interrupt_stuck(work, found.id).await).await?,
            Progress::Idle if action_of(app, &found)? == IdleAction::Keep => {}
            Progress::Idle => {
                app.write(async move |work| {
                    jobs::schedule_job_if_absent(work.tx, JobKind::EndIdle, found.id, work.steady).await?;
                    work.out.jobs = true;
                    Ok(())
                })
                .await?;
            }
        }
    }
    Ok(())
}

fn judge(app: &App, progress: &SandboxProgress, now: Timestamp) -> Progress {
    if progress.activity == Activity::WaitingMessage && app.uses.is_in_use(progress.id) {
        return Progress::Normal;
    }
    let policy = progress_policy(progress.settings.as_ref(), app.config.health.progress_policy());
    judge_progress(progress.activity, now.elapsed_since(progress.work_at), since_use(progress, now), policy)
}

/// The time since a person last used the sandbox; one that never was is as old as its work.
fn since_use(progress: &SandboxProgress, now: Timestamp) -> Duration {
    now.elapsed_since(progress.used_at.unwrap_or(progress.work_at))
}

async fn mark_stalled(work: &mut Work<'_>, id: SandboxId, after: Option<Duration>) -> Result<()> {
    let (_, mut sandbox) = work.lock_sandbox(id).await?;
    let Some((after, work_at)) = after.zip(sandbox.work_at) else { return Ok(()) };
    let without_work = work.steady.elapsed_since(work_at);
    // Checks of a continuous loop take their own time.
    if without_work < after
        || continuous::is_between_runs(work.tx, &sandbox).await?
        || !sandbox.apply_signal(Signal::WorkMissing)
    {
        return Ok(());
    }
    let stalled = SandboxStalled { without_work_s: without_work.as_secs() };
    work.log(&mut sandbox, vec![EventData::SandboxStalled(stalled).into_event(work.now)]).await?;
    sandbox.updated_at = work.now;
    sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    work.out.states.push((sandbox.id, sandbox.state));
    Ok(())
}

/// Interrupts an agent that is still stalled, so that it waits for a message.
async fn interrupt_stuck(work: &mut Work<'_>, id: SandboxId) -> Result<()> {
    let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
    if sandbox.status.activity() != Activity::Stalled {
        return Ok(());
    }
    // The next interrupt follows only after the same time again.
    sandbox.work_at = Some(work.steady);
    sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    let draft = inbox::MessageDraft {
        content: "Atoll: you report that you work, but nothing has happened for a long time, so Atoll interrupts you."
            .to_owned(),
        message_type: MessageType::Interrupt,
        delivery: Delivery::Steer,
        sender: Some(HEALTH_SENDER.to_owned()),
    };
    inbox::queue_message(work, &mut session, draft).await.map(drop)
}

fn action_of(app: &App, progress: &SandboxProgress) -> Result<IdleAction> {
    let capabilities = app.providers()?.get(progress.provider).capabilities();
    Ok(choose_action(&app.config, progress.settings, &capabilities))
}

fn choose_action(config: &Config, settings: Option<HealthSettings>, capabilities: &Capabilities) -> IdleAction {
    let wanted = settings.and_then(|own| own.idle_action).unwrap_or(config.health.idle_action);
    idleness::idle_action(wanted, capabilities)
}

/// Pauses or ends a sandbox if it is still idle, after its work is saved.
pub async fn end_idle(app: &Arc<App>, id: SandboxId) -> Result<()> {
    let row = find_sandbox(app, id).await?;
    if row.provider_id.is_none() {
        return Ok(());
    }
    let target = find_target_of(app, id).await?;
    if app.uses.is_in_use(id) || target.row.status.activity() != Activity::WaitingMessage {
        return Ok(());
    }
    let saved = saved_work::save_work(app, &target.row).await;
    let app = Arc::clone(app);
    run_to_completion(async move {
        let _lock = app.sandbox_locks.lock(id).await;
        let action = app.write(async move |work| Ok(find_idle(work, id).await?.map(|(_, _, action)| action))).await?;
        match action {
            // A person or a message came in between.
            None | Some(IdleAction::Keep) => Ok(()),
            Some(_) if app.uses.is_in_use(id) => Ok(()),
            Some(IdleAction::End) => {
                app.write(async move |work| {
                    if record_idle(work, id, &saved).await?.is_some() {
                        let reason = Reason::new("idle", "its agent waited, and no person used the sandbox");
                        results::end_sandbox(work, id, ResultsAction::Take, reason, None).await?;
                    }
                    Ok(())
                })
                .await
            }
            Some(IdleAction::Pause) => pause_idle(&app, &target, saved).await,
        }
    })
    .await
}

async fn pause_idle(app: &App, target: &SandboxTarget, saved: SavedWork) -> Result<()> {
    let id = target.row.id;
    target.provider.pause(&target.id).await?;
    let paused = app.write(async move |work| {
        let is_idle = record_idle(work, id, &saved).await?.is_some();
        if is_idle {
            pausing::mark_paused(work, id, Pauser::Health).await?;
        }
        Ok(is_idle)
    });
    let paused = paused.await;
    // A sandbox that is not marked as paused must not stay paused.
    if !matches!(paused, Ok(true))
        && let Err(error) = target.provider.resume(&target.id).await
    {
        tracing::warn!(sandbox = %id, %error, "failed to resume a sandbox that is no longer idle");
    }
    paused.map(drop)
}

/// The sandbox, the time since its last work or use, and what to do, if it is still idle.
async fn find_idle(work: &mut Work<'_>, id: SandboxId) -> Result<Option<(SandboxRow, Duration, IdleAction)>> {
    let (session, sandbox) = work.lock_sandbox(id).await?;
    let Some(work_at) = sandbox.work_at.filter(|_| sandbox.state == SandboxState::Running) else { return Ok(None) };
    if messages::has_open_messages(work.tx, session.id).await? {
        return Ok(None);
    }
    let used_at = health::find_last_use(work.tx, id).await?;
    let settings = sandbox.settings.health;
    let (provider, activity) = (sandbox.provider, sandbox.status.activity());
    let progress = SandboxProgress { id, provider, activity, work_at, used_at, settings };
    let (since_work, since_use) = (work.steady.elapsed_since(work_at), since_use(&progress, work.steady));
    let policy = progress_policy(settings.as_ref(), work.config.health.progress_policy());
    if judge_progress(progress.activity, since_work, since_use, policy) != Progress::Idle {
        return Ok(None);
    }
    let action = choose_action(&work.config, settings, &work.capabilities(provider));
    Ok(Some((sandbox, since_work.min(since_use), action)))
}

async fn record_idle(work: &mut Work<'_>, id: SandboxId, saved: &SavedWork) -> Result<Option<IdleAction>> {
    let Some((mut sandbox, idle_for, action)) = find_idle(work, id).await? else { return Ok(None) };
    let idle = SandboxIdle { idle_s: idle_for.as_secs(), action, saved: saved.clone() };
    work.log(&mut sandbox, vec![EventData::SandboxIdle(idle).into_event(work.now)]).await?;
    sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    Ok(Some(action))
}
