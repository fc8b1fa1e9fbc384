//! Finds a sandbox at its provider, for operations that the provider performs.

use super::pausing;
use super::row_wait::wait_for_row;
use crate::auth::access::{Access, Permission};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_core::provider::{Provider, ProviderId};
use atoll_core::sandbox::SandboxState;
use atoll_store::sandboxes::{self, SandboxRow};
use std::sync::Arc;
use std::time::Duration;

/// Time that an operation waits for a sandbox that starts without set-up. Clients show progress while they wait longer.
const START_WAIT: Duration = Duration::from_secs(1);

/// A sandbox that exists at its provider.
pub struct SandboxTarget {
    pub row: SandboxRow,
    pub provider: Arc<dyn Provider>,
    pub id: ProviderId,
}

pub async fn load_sandbox(app: &App, access: &Access<SandboxId, impl Permission>) -> Result<SandboxRow> {
    find_sandbox(app, access.id).await
}

/// Reads a sandbox's row without an access check, for requests that were checked before.
pub async fn find_sandbox(app: &App, id: SandboxId) -> Result<SandboxRow> {
    let row = app.read(async move |tx| Ok(sandboxes::find_sandbox(tx, id).await?)).await?;
    row.ok_or_else(|| Problem::not_found("sandbox"))
}

/// The provider does not have the sandbox: not yet, or no longer.
pub fn absence_problem(row: &SandboxRow) -> Problem {
    let problem = if is_starting(row) {
        Problem::new(Code::SandboxStarting, "the sandbox is still being created")
    } else {
        Problem::new(Code::SandboxGone, "the sandbox's files are gone")
    };
    problem.with("state", row.state.as_str())
}

const fn is_starting(row: &SandboxRow) -> bool {
    match row.state {
        SandboxState::Pending | SandboxState::Creating => true,
        // The worker reported before the provider's id was stored.
        SandboxState::Running => row.provider_id.is_none(),
        SandboxState::Completing | SandboxState::Completed | SandboxState::Failed => false,
    }
}

/// The sandbox at its provider, if its files still exist.
pub async fn find_target(app: &App, access: &Access<SandboxId, impl Permission>) -> Result<SandboxTarget> {
    find_target_of(app, access.id).await
}

/// Like `find_target`, without an access check, for work of the server itself.
pub async fn find_target_of(app: &App, id: SandboxId) -> Result<SandboxTarget> {
    let row = find_sandbox(app, id).await?;
    let Some(id) = row.provider_id.clone() else { return Err(absence_problem(&row)) };
    let provider = app.providers()?.get(row.provider);
    Ok(SandboxTarget { row, provider, id: ProviderId(id) })
}

/// The sandbox at its provider, for a person who uses it: if commands can run in it and its files can be read. Waits a
/// moment for one that starts, and wakes one that was paused because it was idle.
pub async fn find_running_target(app: &App, access: &Access<SandboxId, impl Permission>) -> Result<SandboxTarget> {
    app.uses.touch(access.id);
    if pausing::is_asleep(&find_sandbox(app, access.id).await?) {
        pausing::wake_idle(app, access.id).await?;
    }
    find_unused_target(app, access).await
}

/// Like `find_running_target`, for a look that is no use.
pub async fn find_unused_target(app: &App, access: &Access<SandboxId, impl Permission>) -> Result<SandboxTarget> {
    let providers = app.providers()?;
    // A person decides when an external worker starts.
    let starts_soon = |row: &SandboxRow| {
        is_starting(row) && !row.is_being_set_up() && providers.get(row.provider).capabilities().runs_agents()
    };
    let row = wait_for_row(app, access.id, START_WAIT, |row| !starts_soon(row)).await?;
    pausing::require_not_paused(&row)?;
    let Some(id) = row.provider_id.clone().filter(|_| !is_starting(&row)) else {
        return Err(absence_problem(&row));
    };
    let provider = providers.get(row.provider);
    Ok(SandboxTarget { row, provider, id: ProviderId(id) })
}
