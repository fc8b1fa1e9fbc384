//! Finds a sandbox at its provider, for operations that the provider performs.

use super::pausing;
use crate::auth::access::{Access, Permission};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_core::provider::{Provider, ProviderId};
use atoll_core::sandbox::SandboxState;
use atoll_store::sandboxes::{self, SandboxRow};
use std::sync::Arc;

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

fn gone_problem(row: &SandboxRow, detail: &str) -> Problem {
    Problem::new(Code::SandboxGone, detail).with("state", row.state.as_str())
}

/// The sandbox at its provider, if its files still exist.
pub async fn find_target(app: &App, access: &Access<SandboxId, impl Permission>) -> Result<SandboxTarget> {
    let row = load_sandbox(app, access).await?;
    let Some(id) = row.provider_id.clone() else { return Err(gone_problem(&row, "the sandbox's files are gone")) };
    let provider = app.providers()?.get(row.provider);
    Ok(SandboxTarget { row, provider, id: ProviderId(id) })
}

/// The sandbox at its provider, if commands can run in it and its files can be read.
pub async fn find_running_target(app: &App, access: &Access<SandboxId, impl Permission>) -> Result<SandboxTarget> {
    let row = load_sandbox(app, access).await?;
    pausing::require_not_paused(&row)?;
    let Some(id) = row.provider_id.clone().filter(|_| row.state != SandboxState::Pending) else {
        return Err(gone_problem(&row, "the sandbox's files are gone"));
    };
    let provider = app.providers()?.get(row.provider);
    Ok(SandboxTarget { row, provider, id: ProviderId(id) })
}
