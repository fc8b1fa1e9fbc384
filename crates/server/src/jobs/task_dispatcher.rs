//! The task dispatcher: claims tasks for free slots and creates their sandboxes, in parallel.
//!
//! Changes of the queue wake it after their commit. It also wakes at the next due time, and now and then for safety.

use crate::app::task_dispatch::{self, TaskClaim};
use crate::app::task_work;
use crate::problem::Result;
use crate::state::App;
use atoll_core::provider::capabilities::WorkerHost;
use atoll_core::provider::{ProviderId, SandboxLookup};
use atoll_core::sandbox::Reason;
use atoll_core::task::is_pick_up_overdue;
use atoll_store::{sandboxes, task_queue};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Shortest wait after a failed look at the queue.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Renewals of a claim within its time-out.
const RENEWALS_PER_TIMEOUT: u32 = 3;

pub struct TaskDispatcher {
    app: Arc<App>,
}

impl TaskDispatcher {
    pub const fn new(app: Arc<App>) -> Self {
        Self { app }
    }

    /// Runs until the server stops.
    pub async fn run(self) {
        if !self.app.config.orchestrator.enabled {
            return;
        }
        let mut stopping = self.app.stopping.clone();
        let mut assigning = JoinSet::new();
        let interval = self.app.config.orchestrator.check_interval;
        let mut checks = tokio::time::interval_at(Instant::now() + interval, interval);
        while let Err(problem) = self.release_own_claims().await {
            tracing::warn!(detail = %problem.detail, "failed to release the claims of an earlier server; will retry");
            tokio::select! {
                () = tokio::time::sleep(RETRY_PAUSE) => {}
                _ = stopping.changed() => return,
            }
        }
        loop {
            let wait = match self.dispatch(&mut assigning).await {
                Ok(wait) => wait,
                Err(problem) => {
                    tracing::warn!(detail = %problem.detail, "failed to dispatch tasks; will retry");
                    RETRY_PAUSE
                }
            };
            tokio::select! {
                () = self.app.task_wake.notified() => {}
                () = tokio::time::sleep(wait) => {}
                Some(_) = assigning.join_next() => {}
                _ = checks.tick() => self.check_assigned().await,
                _ = stopping.changed() => break,
            }
        }
        // A claim that does not get its sandbox in time is released at the next start.
        drop(
            tokio::time::timeout(Duration::from_secs(5), async { while assigning.join_next().await.is_some() {} })
                .await,
        );
    }

    async fn release_own_claims(&self) -> Result<()> {
        let server_id = self.app.server_id.clone();
        let released =
            self.app.write(async move |work| task_dispatch::release_own_claims(work, &server_id).await).await?;
        if released > 0 {
            tracing::info!(tasks = released, "released the claims of an earlier server");
        }
        Ok(())
    }

    /// Claims what the limits admit and starts its assignment. Returns the time until the next look.
    async fn dispatch(&self, assigning: &mut JoinSet<()>) -> Result<Duration> {
        loop {
            let server_id = self.app.server_id.clone();
            let pass = self.app.write(async move |work| task_dispatch::claim_tasks(work, &server_id).await).await?;
            for claim in pass.claims {
                let app = Arc::clone(&self.app);
                assigning.spawn(async move { assign_claimed(&app, claim).await });
            }
            if !pass.is_partial {
                break;
            }
        }
        let (now, steady) = (self.app.clock.now(), self.app.clock.steady_now());
        let (available, level) = self.app.read(async move |tx| Ok(task_queue::find_next_wake_times(tx).await?)).await?;
        let waits = [available.map(|at| at.elapsed_since(steady)), level.map(|at| at.elapsed_since(now))];
        let wait = waits.into_iter().flatten().min().unwrap_or(Duration::MAX);
        // A due time that has just passed is due at the next look; the pause keeps that from becoming a busy loop.
        Ok(wait.clamp(Duration::from_millis(10), self.app.config.orchestrator.check_interval))
    }

    /// Fails assigned tasks whose worker never reported.
    async fn check_assigned(&self) {
        if let Err(problem) = fail_overdue(&self.app).await {
            tracing::debug!(detail = %problem.detail, "failed to look for tasks that are not picked up");
        }
    }
}

/// Creates the sandbox of a claimed task, and keeps the claim meanwhile: fetching a repository can take long.
async fn assign_claimed(app: &App, claim: TaskClaim) {
    let timeout = app.config.orchestrator.claim_timeout;
    let mut renewals = tokio::time::interval_at(
        Instant::now() + timeout / RENEWALS_PER_TIMEOUT,
        (timeout / RENEWALS_PER_TIMEOUT).max(Duration::from_millis(10)),
    );
    let assignment = task_dispatch::assign_task(app, claim);
    tokio::pin!(assignment);
    loop {
        tokio::select! {
            done = &mut assignment => {
                if let Err(problem) = done {
                    tracing::warn!(task = %claim.id, detail = %problem.detail, "failed to assign a task; its claim expires");
                }
                return;
            }
            _ = renewals.tick() => {
                let TaskClaim { id, number } = claim;
                let renewed = app.write(async move |work| {
                    Ok(task_queue::renew_claim(work.tx, id, number, work.steady + timeout).await?)
                });
                if let Err(problem) = renewed.await {
                    tracing::debug!(task = %id, detail = %problem.detail, "failed to renew a claim");
                }
            }
        }
    }
}

/// Counts a set-up failure for each assigned task without a sign of its worker.
async fn fail_overdue(app: &App) -> Result<()> {
    let (now, limit) = (app.clock.now(), app.config.orchestrator.pick_up_timeout);
    let before = now - limit;
    let assigned = app.read(async move |tx| Ok(task_queue::list_assigned_before(tx, before).await?)).await?;
    for (task, id, since) in assigned {
        let row = app.read(async move |tx| Ok(sandboxes::find_sandbox(tx, id).await?)).await?;
        let Some(row) = row else { continue };
        // A creation and a set-up have their own time limits, and a person starts a worker when they like.
        let provider = app.providers()?.get(row.provider);
        let is_persons = provider.capabilities().worker == WorkerHost::Person;
        if is_persons || row.is_being_set_up() || !is_pick_up_overdue(since, row.last_heartbeat, now, limit) {
            continue;
        }
        let Some(name) = row.provider_id else { continue };
        let detail = match provider.get(&ProviderId(name)).await {
            SandboxLookup::Gone => "its worker sent nothing, and the provider no longer has its sandbox",
            SandboxLookup::Found(_) => "its worker sent nothing",
            SandboxLookup::Unreachable { .. } => continue,
        };
        tracing::warn!(%task, sandbox = %id, "a task was not picked up in time");
        let reason = Reason::new("not_picked_up", detail);
        app.write(async move |work| task_work::end_task(work, id, reason).await).await?;
    }
    Ok(())
}
