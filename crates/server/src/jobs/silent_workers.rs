//! Marks sandboxes unreachable whose workers send no heartbeats, and starts their recovery, also when the wall clock
//! jumps.

use super::MAX_CLAIMED_JOBS;
use crate::app::heartbeat;
use crate::problem::Result;
use crate::state::App;
use atoll_core::health::silence;
use atoll_core::job::JobKind;
use atoll_core::provider::capabilities::WorkerHost;
use atoll_core::time::Timestamp;
use atoll_store::{health, jobs, sandboxes};

/// Smaller differences between the clocks are corrections of the clock's speed.
const MIN_JUMP_MICROS: i64 = 1_000_000;

/// Compares the wall clock with the steady clock.
#[derive(Debug, Default)]
pub(super) struct SilentWorkers {
    /// The jumps of the wall clock since the server started, added up.
    known_jump_micros: i64,
}

impl SilentWorkers {
    pub(super) async fn mark_unreachable(&mut self, app: &App) -> Result<()> {
        let (now, steady) = (app.clock.now(), app.clock.steady_now());
        if let Some(jump_micros) = self.detect_jump(now, steady) {
            tracing::warn!(seconds = jump_micros / 1_000_000, "the wall clock jumped");
            app.write(async move |work| Ok(sandboxes::shift_heartbeats(work.tx, now, jump_micros).await?)).await?;
        }
        let interval = app.config.heartbeat.interval;
        let before = now - silence::unreachable_after(interval);
        let silent =
            app.read(async move |tx| Ok(health::list_silent_sandboxes(tx, before, MAX_CLAIMED_JOBS).await?)).await?;
        for id in silent {
            app.write(async move |work| heartbeat::mark_unreachable(work, id, before).await).await?;
        }
        let before = now - silence::dead_after(interval);
        let dead = app.read(async move |tx| Ok(health::list_dead_sandboxes(tx, before, MAX_CLAIMED_JOBS).await?));
        for (id, provider) in dead.await? {
            // A person started an external worker and looks after it.
            if app.providers()?.get(provider).capabilities().worker == WorkerHost::Person {
                continue;
            }
            app.write(async move |work| {
                jobs::schedule_job_if_absent(work.tx, JobKind::RecoverWorker, id, work.steady).await?;
                work.out.jobs = true;
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Returns how far the wall clock has jumped since the last call.
    fn detect_jump(&mut self, now: Timestamp, steady: Timestamp) -> Option<i64> {
        let jump = now.as_micros().saturating_sub(steady.as_micros());
        let since = jump.saturating_sub(self.known_jump_micros);
        if since.abs() < MIN_JUMP_MICROS {
            return None;
        }
        self.known_jump_micros = jump;
        Some(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_each_jump_once() {
        let mut workers = SilentWorkers::default();
        let mut at = |now: i64, steady: i64| {
            workers.detect_jump(Timestamp::from_micros(now * 1_000_000), Timestamp::from_micros(steady * 1_000_000))
        };
        assert_eq!(at(100, 100), None);
        assert_eq!(at(3_710, 110), Some(3_600_000_000));
        assert_eq!(at(3_720, 120), None);
        assert_eq!(at(130, 130), Some(-3_600_000_000));
        assert_eq!(at(140, 140), None);
    }
}
