//! The recovery job of a silent worker: asks the provider, then reconnects to the worker or restarts it.

use super::recover::{find_by_labels, record_lost_sandbox};
use super::{JobOutcome, back_off, dead_worker};
use crate::app::restarts::continue_message;
use crate::app::{inbox, lifecycle, saved_work};
use crate::problem::Result;
use crate::providers::Providers;
use crate::state::App;
use atoll_api::events::{EventData, WorkerRestarted};
use atoll_core::health::silence::{RecoveryStep, SandboxFinding, Silence, next_recovery_step};
use atoll_core::id::SandboxId;
use atoll_core::lifecycle::Trigger;
use atoll_core::provider::capabilities::WorkerHost;
use atoll_core::provider::{Error, Provider, ProviderId, ProviderState, SandboxLookup};
use atoll_core::sandbox::{Activity, Reason, SandboxState, TurnState};
use atoll_store::jobs::Job;
use atoll_store::sandboxes::SandboxRow;
use atoll_store::{health, sandboxes};
use std::sync::Arc;
use std::time::Duration;

/// Time limit of one call to the provider.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

const CONTINUE_TEXT: &str = "Atoll: this sandbox did not respond, so Atoll ended its processes and started you again. Its \
     files are unchanged. Look at what is there, then continue with your task.";

pub(crate) async fn recover_worker(app: &Arc<App>, providers: &Providers, job: &Job) -> Result<JobOutcome> {
    let id = job.sandbox_id;
    let row = app.read(async move |tx| Ok(sandboxes::find_sandbox(tx, id).await?)).await?;
    let Some(row) = row.filter(|row| is_silent(app, row)) else { return Ok(JobOutcome::Finished) };
    let provider = providers.get(row.provider);
    if provider.capabilities().worker == WorkerHost::Person {
        return Ok(JobOutcome::Finished);
    }
    let interval = app.config.heartbeat.interval;
    let finding = find_sandbox(app, &*provider, &row).await;
    let (session, steady) = (row.session_id, app.clock.steady_now());
    let earlier = app.read(async move |tx| Ok(health::list_restarts(tx, session, steady).await?)).await?;
    let verdict = app.config.health.restart_policy().judge(&earlier, steady);
    let (has_reconnected, count) = (job.attempts > 0, u32::try_from(earlier.len()).unwrap_or(u32::MAX));
    let step = next_recovery_step(finding, has_reconnected, Some(verdict), interval);
    tracing::info!(sandbox = %id, ?finding, ?step, "recovering a silent worker");
    let provider_id = ProviderId(row.provider_id.clone().unwrap_or_default());
    let called = match step {
        RecoveryStep::Wait(delay) => return Ok(JobOutcome::RetryAfter(delay.max(back_off(job.attempts)))),
        RecoveryStep::RecordLoss => {
            record_lost_sandbox(app, id).await?;
            return Ok(JobOutcome::Finished);
        }
        RecoveryStep::RecoverDeadWorker => {
            dead_worker::handle_dead_worker(Arc::clone(app), id).await;
            return Ok(JobOutcome::Finished);
        }
        RecoveryStep::GiveUp => {
            give_up(app, &row, count).await?;
            return Ok(JobOutcome::Finished);
        }
        RecoveryStep::Resume => call(async { provider.resume(&provider_id).await.map(drop) }).await,
        RecoveryStep::Reconnect => call(provider.reconnect(&provider_id)).await,
        RecoveryStep::RestartWorker => {
            let _lock = app.sandbox_locks.lock(id).await;
            // The new worker ends the turn.
            let was_in_turn = row.status.turn_state() == TurnState::Open;
            // Before the call: a crash in between must not hide a restart from the policy.
            app.write(async move |work| {
                health::record_restart(work.tx, session, work.steady).await.map_err(Into::into)
            })
            .await?;
            match call(provider.restart_worker(&provider_id)).await {
                Ok(()) => {
                    app.write(async move |work| {
                        let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
                        if sandbox.state != SandboxState::Running {
                            return Ok(());
                        }
                        let restarted = WorkerRestarted { silent_s: silence(work.now, &sandbox), earlier: count };
                        work.log(&mut sandbox, vec![EventData::WorkerRestarted(restarted).into_event(work.now)])
                            .await?;
                        sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
                        if was_in_turn {
                            inbox::queue_message(work, &mut session, continue_message(CONTINUE_TEXT.to_owned()))
                                .await?;
                        }
                        Ok(())
                    })
                    .await?;
                    let start_time = app.config.sandbox.create_timeout.for_provider(row.provider);
                    return Ok(JobOutcome::RetryAfter(start_time.max(interval)));
                }
                failed => failed,
            }
        }
    };
    match called {
        Ok(()) => Ok(JobOutcome::RetryAfter(interval)),
        Err(Error::Unsupported { .. }) if step == RecoveryStep::RestartWorker => {
            give_up(app, &row, count).await?;
            Ok(JobOutcome::Finished)
        }
        Err(error) => {
            tracing::warn!(sandbox = %id, %error, ?step, "failed to recover a silent worker; will retry");
            Ok(JobOutcome::RetryAfter(back_off(job.attempts)))
        }
    }
}

async fn call(operation: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    let timed_out = |_| Err(Error::Unreachable { detail: "the provider timed out".into() });
    tokio::time::timeout(CALL_TIMEOUT, operation).await.unwrap_or_else(timed_out)
}

fn is_silent(app: &App, row: &SandboxRow) -> bool {
    let silent_for = row.last_heartbeat.map(|last| app.clock.now().elapsed_since(last));
    row.state == SandboxState::Running
        && row.status.activity() == Activity::Unreachable
        && silent_for.is_some_and(|time| Silence::judge(time, app.config.heartbeat.interval) == Silence::Dead)
}

fn silence(now: atoll_core::time::Timestamp, row: &SandboxRow) -> u64 {
    row.last_heartbeat.map_or(0, |last| now.elapsed_since(last).as_secs())
}

async fn find_sandbox(app: &App, provider: &dyn Provider, row: &SandboxRow) -> SandboxFinding {
    let lookup = async {
        match row.provider_id.clone() {
            Some(name) => provider.get(&ProviderId(name)).await,
            // The response with its provider id was lost, and the create job asks again.
            None => find_by_labels(app, provider, row.id).await,
        }
    };
    match tokio::time::timeout(CALL_TIMEOUT, lookup).await {
        Ok(SandboxLookup::Found(found)) => match found.state {
            ProviderState::Starting | ProviderState::Running => SandboxFinding::Running,
            ProviderState::Paused => SandboxFinding::Paused,
            ProviderState::Stopped => SandboxFinding::WorkerEnded,
            // It is on its way out, so the next question finds it gone.
            ProviderState::Ending => SandboxFinding::Unknown,
        },
        Ok(SandboxLookup::Gone) if row.provider_id.is_some() => SandboxFinding::Gone,
        Ok(SandboxLookup::Gone | SandboxLookup::Unreachable { .. }) | Err(_) => SandboxFinding::Unknown,
    }
}

/// Fails a sandbox whose worker cannot be recovered, after its work is saved.
async fn give_up(app: &App, row: &SandboxRow, restarts: u32) -> Result<()> {
    let id: SandboxId = row.id;
    saved_work::save_and_record(app, id).await?;
    app.write(async move |work| {
        let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
        if sandbox.state != SandboxState::Running {
            return Ok(());
        }
        let detail = format!(
            "its worker sent no heartbeat for {} s; a new connection and {restarts} restarts did not help",
            silence(work.now, &sandbox)
        );
        let reason = Reason::new("worker_unresponsive", detail);
        lifecycle::apply_trigger(work, &mut session, &mut sandbox, Trigger::WorkFailed, Some(reason), None).await
    })
    .await
}
