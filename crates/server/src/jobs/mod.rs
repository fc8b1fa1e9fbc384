//! Background jobs: what rows asked for, and what time brings. One runner per server.

pub(crate) mod budgets;
mod checks;
mod create;
mod deadline;
pub(crate) mod gone;
mod recover;
mod remove;
mod results;
mod validate;

use crate::problem::Result;
use crate::providers::Providers;
use crate::state::App;
use atoll_core::job::JobKind;
use atoll_core::time::Timestamp;
use atoll_store::jobs::{self, Job};
use atoll_store::sandboxes;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A job that is not finished within this comes again.
const HOLD: Duration = Duration::from_secs(3600);
const AT_ONCE: i64 = 64;
const LONGEST_SLEEP: Duration = Duration::from_secs(30);
const RETENTION_EVERY: Duration = Duration::from_secs(3600);

/// What a job's run leads to.
pub(crate) enum Done {
    Finished,
    /// Again after this.
    Later(Duration),
}

pub struct Runner {
    app: Arc<App>,
    providers: Arc<Providers>,
}

impl Runner {
    pub fn new(app: Arc<App>, providers: Arc<Providers>) -> Self {
        Self { app, providers }
    }

    /// Until the server stops.
    pub async fn run(self) {
        let mut stopping = self.app.stopping.clone();
        let mut running = JoinSet::new();
        let mut silence = tokio::time::interval((self.app.policy.heartbeat / 3).max(Duration::from_millis(100)));
        let mut sweep = tokio::time::interval_at(Instant::now() + RETENTION_EVERY, RETENTION_EVERY);
        while let Err(problem) = recover::recover(&self.app, &self.providers).await {
            tracing::warn!(detail = %problem.detail, "could not look after what an earlier server left; trying again");
            tokio::select! {
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
                _ = stopping.changed() => return,
            }
        }
        loop {
            let wait = match self.start_due(&mut running).await {
                Ok(next) => next,
                Err(problem) => {
                    tracing::warn!(detail = %problem.detail, "could not look for jobs; trying again");
                    Duration::from_secs(1)
                }
            };
            tokio::select! {
                () = self.app.jobs.notified() => {}
                () = tokio::time::sleep(wait) => {}
                Some(_) = running.join_next() => {}
                _ = silence.tick() => {
                    self.mark_silent().await;
                    self.look_at_budgets().await;
                }
                _ = sweep.tick() => self.sweep().await,
                _ = stopping.changed() => break,
            }
        }
        // What is under way ends by itself or is taken up by the next server.
        drop(
            tokio::time::timeout(Duration::from_secs(5), async { while running.join_next().await.is_some() {} }).await,
        );
    }

    /// Starts what is due; says how long there is nothing further.
    async fn start_due(&self, running: &mut JoinSet<()>) -> Result<Duration> {
        let steady = self.app.clock.steady();
        let next = self.app.read(|tx| Box::pin(async move { Ok(jobs::next_due(tx).await?) })).await?;
        match next {
            None => return Ok(LONGEST_SLEEP),
            Some(next) if next > steady => return Ok(next.elapsed_since(steady).min(LONGEST_SLEEP)),
            Some(_) => {}
        }
        let claimed = self
            .app
            .write(move |work| Box::pin(async move { Ok(jobs::claim(work.tx, work.steady, HOLD, AT_ONCE).await?) }))
            .await?;
        let found = claimed.len();
        for job in claimed {
            let (app, providers) = (Arc::clone(&self.app), Arc::clone(&self.providers));
            running.spawn(async move { run_one(&app, &providers, job).await });
        }
        Ok(if found == 0 { Duration::from_millis(200) } else { Duration::ZERO })
    }

    async fn mark_silent(&self) {
        let before = self.app.clock.now() - self.app.policy.heartbeat * 3 / 2;
        if let Err(problem) = mark_silent(&self.app, before).await {
            tracing::debug!(detail = %problem.detail, "could not look for silent sandboxes");
        }
        self.app.limiter.tidy();
    }

    async fn look_at_budgets(&self) {
        if let Err(problem) = budgets::look(&self.app).await {
            tracing::debug!(detail = %problem.detail, "could not look who waits for a budget");
        }
    }

    async fn sweep(&self) {
        match crate::retention::sweep(&self.app, false, false).await {
            Ok(swept) if swept.events > 0 => tracing::info!(events = swept.events, "retention removed old events"),
            Ok(_) => {}
            Err(problem) => tracing::warn!(detail = %problem.detail, "retention could not run"),
        }
    }
}

async fn mark_silent(app: &App, before: Timestamp) -> Result<()> {
    let silent = app.read(move |tx| Box::pin(async move { Ok(sandboxes::silent(tx, before, AT_ONCE).await?) })).await?;
    for id in silent {
        app.write(move |work| Box::pin(async move { crate::app::heartbeat::mark_unreachable(work, id, before).await }))
            .await?;
    }
    Ok(())
}

async fn run_one(app: &Arc<App>, providers: &Providers, job: Job) {
    let done = match job.kind {
        JobKind::Create => create::create(app, providers, &job).await,
        JobKind::CreateTimeout => deadline::create_timeout(app, &job).await,
        JobKind::Timeout => deadline::timeout(app, &job).await,
        JobKind::FlushGrace => deadline::flush_grace(app, providers, &job).await,
        JobKind::Results => results::results(app, providers, &job).await,
        JobKind::Remove => remove::remove(app, providers, &job).await,
        JobKind::EndDrain => deadline::end_drain(app, &job).await,
        JobKind::Validate => validate::validate(app, &job).await,
        JobKind::ContinuousDeadline => deadline::continuous(app, &job).await,
    };
    let id = job.id;
    let stored = match done {
        Ok(Done::Finished) => {
            metrics::counter!(crate::metrics::JOBS_DONE, "kind" => job.kind.as_str()).increment(1);
            app.write(move |work| Box::pin(async move { Ok(jobs::finish(work.tx, id).await?) })).await
        }
        Ok(Done::Later(after)) => {
            metrics::counter!(crate::metrics::JOBS_FAILED, "kind" => job.kind.as_str()).increment(1);
            postpone(app, &job, after).await
        }
        Err(problem) => {
            tracing::warn!(kind = %job.kind, sandbox = %job.sandbox_id, detail = %problem.detail, "a job failed; it comes again");
            metrics::counter!(crate::metrics::JOBS_FAILED, "kind" => job.kind.as_str()).increment(1);
            postpone(app, &job, back_off(job.attempts)).await
        }
    };
    if stored.is_err() {
        tracing::debug!(kind = %job.kind, "a job's end could not be stored; it comes again");
    }
}

async fn postpone(app: &App, job: &Job, after: Duration) -> Result<()> {
    let id = job.id;
    app.write(move |work| Box::pin(async move { Ok(jobs::postpone(work.tx, id, work.steady + after).await?) })).await
}

/// 1 s, 2 s, 4 s … 5 min.
pub(crate) fn back_off(attempts: i64) -> Duration {
    Duration::from_secs(1 << attempts.clamp(0, 8)).min(Duration::from_secs(300))
}
