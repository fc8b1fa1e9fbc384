//! Background jobs: stored work and deadlines. Each server has one runner.

pub(crate) mod branch_workflow;
pub(crate) mod budgets;
mod checkout_layer;
mod checks;
mod clone_events;
mod create_job;
pub(crate) mod dead_worker;
mod deadline;
mod guardian_watch;
mod judge;
pub(crate) mod reaper;
mod recover;
mod recover_worker;
mod remove;
mod removed_worktrees;
mod restart;
mod results_job;
mod sandbox_command;
mod setup_cache;
mod setup_failure;
mod setup_output;
mod setup_plan;
mod setup_run;
mod silent_workers;
pub(crate) mod task_dispatcher;
mod ticket_branch;
mod validate;

pub use guardian_watch::run_guardian;

use crate::app::{idle, pausing};
use crate::job_queue::CLAIM_DURATION;
use crate::metrics::record_seconds;
use crate::problem::Result;
use crate::providers::Providers;
use crate::state::App;
use crate::telemetry::{self, FinishedSpan};
use atoll_core::job::JobKind;
use atoll_core::task::TimeoutStep;
use atoll_core::trace::{SpanId, TraceContext};
use atoll_store::jobs::{self, Job};
use atoll_store::traces;
use silent_workers::SilentWorkers;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument;

const MAX_CLAIMED_JOBS: i64 = 64;
const MAX_SLEEP: Duration = Duration::from_secs(30);
const RETENTION_INTERVAL: Duration = Duration::from_secs(3600);

/// The result of running a job.
pub(crate) enum JobOutcome {
    Finished,
    /// The job ended, and the transaction that stored its effects has deleted it.
    Deleted,
    /// Run the job again after this time.
    RetryAfter(Duration),
}

pub struct Runner {
    app: Arc<App>,
    providers: Arc<Providers>,
}

impl Runner {
    pub fn new(app: Arc<App>, providers: Arc<Providers>) -> Self {
        Self { app, providers }
    }

    /// Runs until the server stops.
    pub async fn run(self) {
        let mut stopping = self.app.stopping.clone();
        let mut running = JoinSet::new();
        let mut silence =
            tokio::time::interval((self.app.config.heartbeat.interval / 3).max(Duration::from_millis(100)));
        let mut silent_workers = SilentWorkers::default();
        let mut sweep = tokio::time::interval_at(Instant::now() + RETENTION_INTERVAL, RETENTION_INTERVAL);
        let reap_interval = self.app.config.health.reap_interval;
        let mut reaping = tokio::time::interval_at(Instant::now() + reap_interval, reap_interval);
        while let Err(problem) = recover::recover_sandboxes(&self.app, &self.providers).await {
            tracing::warn!(detail = %problem.detail, "failed to recover sandboxes of an earlier server; will retry");
            tokio::select! {
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
                _ = stopping.changed() => return,
            }
        }
        loop {
            self.start_jobs(&mut running, self.app.jobs.take_claimed());
            let wait = match self.start_due(&mut running).await {
                Ok(next) => next,
                Err(problem) => {
                    tracing::warn!(detail = %problem.detail, "failed to claim jobs; will retry");
                    Duration::from_secs(1)
                }
            };
            tokio::select! {
                () = self.app.jobs.wait() => {}
                () = tokio::time::sleep(wait) => {}
                Some(_) = running.join_next() => {}
                _ = silence.tick() => {
                    self.mark_unreachable(&mut silent_workers).await;
                    self.check_progress().await;
                    self.apply_budgets().await;
                    self.end_removed_worktrees().await;
                }
                _ = reaping.tick() => {
                    let (app, providers) = (Arc::clone(&self.app), Arc::clone(&self.providers));
                    running.spawn(async move { reap_orphans(&app, &providers).await });
                }
                _ = sweep.tick() => self.sweep_retention().await,
                _ = stopping.changed() => break,
            }
        }
        // Jobs that do not end in time run again on the next server.
        drop(
            tokio::time::timeout(Duration::from_secs(5), async { while running.join_next().await.is_some() {} }).await,
        );
    }

    /// Starts the due jobs. Returns the time until the next one.
    async fn start_due(&self, running: &mut JoinSet<()>) -> Result<Duration> {
        let steady = self.app.clock.steady_now();
        let next = self.app.read(async move |tx| Ok(jobs::find_next_due_time(tx).await?)).await?;
        match next {
            None => return Ok(MAX_SLEEP),
            Some(next) if next > steady => return Ok(next.elapsed_since(steady).min(MAX_SLEEP)),
            Some(_) => {}
        }
        let claimed = self
            .app
            .write(async move |work| {
                Ok(jobs::claim_due_jobs(work.tx, work.steady, CLAIM_DURATION, MAX_CLAIMED_JOBS).await?)
            })
            .await?;
        let found = claimed.len();
        self.start_jobs(running, claimed);
        Ok(if found == 0 { Duration::from_millis(200) } else { Duration::ZERO })
    }

    fn start_jobs(&self, running: &mut JoinSet<()>, jobs: Vec<Job>) {
        for job in jobs {
            let (app, providers) = (Arc::clone(&self.app), Arc::clone(&self.providers));
            running.spawn(async move { run_traced_job(&app, &providers, job).await });
        }
    }

    async fn mark_unreachable(&self, silent_workers: &mut SilentWorkers) {
        if let Err(problem) = silent_workers.mark_unreachable(&self.app).await {
            tracing::debug!(detail = %problem.detail, "failed to look for unreachable sandboxes");
        }
        self.app.limiter.prune();
    }

    async fn check_progress(&self) {
        if let Err(problem) = idle::check_progress(&self.app).await {
            tracing::debug!(detail = %problem.detail, "failed to look for agents without progress");
        }
    }

    async fn apply_budgets(&self) {
        if let Err(problem) = budgets::resume_within_budget(&self.app).await {
            tracing::debug!(detail = %problem.detail, "failed to look for agents that wait for a budget");
        }
        if let Err(problem) = budgets::pause_over_budget(&self.app).await {
            tracing::debug!(detail = %problem.detail, "failed to look for projects without budget");
        }
    }

    async fn end_removed_worktrees(&self) {
        if let Err(problem) = removed_worktrees::end_removed_worktrees(&self.app).await {
            tracing::debug!(detail = %problem.detail, "failed to look for removed worktrees");
        }
    }

    async fn sweep_retention(&self) {
        match crate::retention::sweep_expired(&self.app, false, false).await {
            Ok(swept) if swept.events > 0 => tracing::info!(events = swept.events, "retention removed old events"),
            Ok(_) => {}
            Err(problem) => tracing::warn!(detail = %problem.detail, "retention failed"),
        }
    }
}

async fn reap_orphans(app: &Arc<App>, providers: &Providers) {
    match reaper::reap(app, providers, app.config.health.reap_grace, false).await {
        Ok(found) if found.orphans > 0 || found.lost > 0 => {
            tracing::info!(orphans = found.orphans, lost = found.lost, "the reaper cleaned up");
        }
        Ok(_) => {}
        Err(problem) => tracing::warn!(detail = %problem.detail, "the reaper failed; it runs again later"),
    }
}

/// Runs a job as a part of its sandbox's trace, which a restarted server continues.
async fn run_traced_job(app: &Arc<App>, providers: &Providers, job: Job) {
    let sandbox = job.sandbox_id;
    let found = app.read(async move |tx| Ok(traces::find_trace(tx, sandbox).await?)).await;
    let parent = found.ok().flatten().map_or_else(|| TraceContext::start(false), |trace| trace.context);
    let context = TraceContext { span: SpanId::random(), ..parent };
    let line = tracing::error_span!("job", job = %job.kind, %sandbox, trace_id = %context.trace);
    let (kind, attempts, began) = (job.kind, job.attempts, app.clock.now());
    let failure = telemetry::in_trace(context, Box::pin(run_job(app, providers, job))).instrument(line).await;
    if context.is_sampled {
        let span = FinishedSpan::child(parent, format!("job {kind}"), began, app.clock.now());
        let span = FinishedSpan { id: context.span, failure, ..span };
        app.telemetry.record_span(span.with("atoll.sandbox", sandbox).with("atoll.attempt", attempts));
    }
}

/// Runs a job. Returns the code of its failure.
async fn run_job(app: &Arc<App>, providers: &Providers, job: Job) -> Option<String> {
    let began = Instant::now();
    let done = match job.kind {
        JobKind::Create => create_job::create_sandbox(app, providers, &job).await,
        JobKind::CreateTimeout => deadline::fail_creation(app, &job).await,
        JobKind::Timeout => deadline::fail_at_timeout(app, &job).await,
        JobKind::FlushGrace => deadline::end_flush_grace(app, providers, &job).await,
        JobKind::Results => results_job::take_results(app, providers, &job).await,
        JobKind::Remove => remove::remove_sandbox(app, providers, &job).await,
        JobKind::EndDrain => deadline::end_drain(app, &job).await,
        JobKind::Validate => validate::validate_work(app, &job).await,
        JobKind::ContinuousDeadline => deadline::end_continuous(app, &job).await,
        JobKind::BranchWorkflow => branch_workflow::run_job(app, &job).await,
        JobKind::TaskWarning => deadline::apply_task_timeout(app, &job, TimeoutStep::Warn).await,
        JobKind::TaskInterrupt => deadline::apply_task_timeout(app, &job, TimeoutStep::Interrupt).await,
        JobKind::TaskEnd => deadline::apply_task_timeout(app, &job, TimeoutStep::End).await,
        JobKind::RecoverWorker => recover_worker::recover_worker(app, providers, &job).await,
        JobKind::EndIdle => idle::end_idle(app, job.sandbox_id).await.map(|()| JobOutcome::Finished),
        JobKind::Wake => pausing::wake_idle(app, job.sandbox_id).await.map(|()| JobOutcome::Finished),
        JobKind::Restart => restart::restart_session(app, &job).await,
    };
    record_seconds(crate::metrics::JOB_SECONDS, &[("kind", job.kind.as_str())], began.elapsed());
    let (id, claim) = (job.id, job.claim);
    if matches!(done, Ok(JobOutcome::Finished | JobOutcome::Deleted)) {
        metrics::counter!(crate::metrics::JOBS_DONE, "kind" => job.kind.as_str()).increment(1);
    }
    let failure = done.as_ref().err().map(|problem| problem.code.as_str().to_owned());
    let stored = match done {
        Ok(JobOutcome::Deleted) => Ok(true),
        Ok(JobOutcome::Finished) => app.write(async move |work| Ok(jobs::finish_job(work.tx, id, claim).await?)).await,
        Ok(JobOutcome::RetryAfter(after)) => {
            metrics::counter!(crate::metrics::JOBS_FAILED, "kind" => job.kind.as_str()).increment(1);
            postpone_job(app, &job, after).await
        }
        Err(problem) => {
            // The line of a logged problem has the job's fields.
            if !problem.is_logged() {
                tracing::warn!(detail = %problem.detail, "a job failed; will retry");
            }
            metrics::counter!(crate::metrics::JOBS_FAILED, "kind" => job.kind.as_str()).increment(1);
            postpone_job(app, &job, back_off(job.attempts)).await
        }
    };
    match stored {
        Ok(true) => {}
        Ok(false) => tracing::debug!("a job was cancelled, rescheduled or claimed again meanwhile"),
        Err(_) => tracing::debug!("failed to store a job's end; it runs again"),
    }
    failure
}

async fn postpone_job(app: &App, job: &Job, after: Duration) -> Result<bool> {
    let (id, claim) = (job.id, job.claim);
    app.write(async move |work| Ok(jobs::postpone_job(work.tx, id, claim, work.steady + after).await?)).await
}

/// Exponential back-off: 1 s, 2 s, 4 s … 5 min.
pub(crate) fn back_off(attempts: i64) -> Duration {
    Duration::from_secs(1 << attempts.clamp(0, 8)).min(Duration::from_secs(300))
}
