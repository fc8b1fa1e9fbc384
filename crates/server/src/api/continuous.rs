//! How far a sandbox that works until its checks pass has come, as it is shown.

use crate::problem::Result;
use atoll_core::continuous::check::Checked;
use atoll_core::continuous::{Phase, Stop, sentence};
use atoll_core::id::SandboxId;
use atoll_core::sandbox::Settings;
use atoll_store::{Tx, continuous};
use serde::Serialize;

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = ContinuousProgress)]
pub struct ContinuousView {
    pub phase: Phase,
    /// Why it ended without having passed.
    pub stopped: Option<Stop>,
    /// The same in words.
    pub detail: Option<String>,
    /// Which run of the agent this is.
    pub iteration: u32,
    /// How many there may be.
    pub iterations: u32,
    /// Runs in a row that failed.
    pub errors: u32,
    /// What the last checks came to.
    pub checks: Vec<Checked>,
}

impl ContinuousView {
    pub async fn of(tx: &mut dyn Tx, id: SandboxId, settings: &Settings) -> Result<Option<Self>> {
        let Some(settings) = &settings.continuous else { return Ok(None) };
        let limits = settings.limits();
        let Some(record) = continuous::get(tx, id).await? else { return Ok(None) };
        let progress = record.progress;
        Ok(Some(Self {
            phase: progress.phase,
            stopped: progress.stopped,
            detail: progress.stopped.map(|stop| sentence(stop, &progress, &limits)),
            iteration: progress.iteration,
            iterations: limits.iterations,
            errors: progress.errors,
            checks: record.checks,
        }))
    }
}
