//! Results of a running sandbox: its current work becomes a commit on the session's branch, and the sandbox continues.
//!
//! The export runs at a tool boundary, so that no half-written file becomes part of a commit: it waits until no tool call
//! runs, and the provider pauses the agent's processes meanwhile.

use super::branch_export::{self, ExportError, ExportedWork, WorkspaceUse};
use super::lifecycle::delivers_results;
use super::targets::{SandboxTarget, find_sandbox, find_target_of};
use crate::auth::access::CanWork;
use crate::keyed_locks::run_to_completion;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::events::EventData;
use atoll_core::event::{Event, EventTypePattern, kind};
use atoll_core::id::SandboxId;
use atoll_core::provider::capabilities::PauseAbility;
use atoll_core::sandbox::{Activity, SandboxState};
use atoll_forge::ImportOutcome;
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::{events, sessions};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time-out for the end of a tool call.
const TOOL_WAIT: Duration = Duration::from_secs(30);
/// A missed wake-up costs this long.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Newest tool events to search for running calls.
const MAX_TOOL_EVENTS: usize = 500;

/// Exports the current work of a running sandbox. Does nothing if the sandbox has no repository or has ended meanwhile.
pub async fn export_live_results(app: Arc<App>, access: CanWork<SandboxId>) -> Result<()> {
    export_current_work(app, access.id).await
}

/// Like `export_live_results`, for the server itself.
pub async fn export_current_work(app: Arc<App>, id: SandboxId) -> Result<()> {
    run_to_completion(async move {
        let deadline = Instant::now() + TOOL_WAIT;
        loop {
            wait_for_tool_boundary(&app, id, deadline).await?;
            let _lock = app.sandbox_locks.lock(id).await;
            let target = find_target_of(&app, id).await?;
            if target.row.state != SandboxState::Running
                || !delivers_results(&target.row, &target.provider.capabilities())
            {
                return Ok(());
            }
            if let Some(exported) = export_paused(&app, &target).await? {
                return record_live_export(&app, id, exported).await;
            }
        }
    })
    .await
}

/// Waits until the agent runs no tool call.
async fn wait_for_tool_boundary(app: &App, id: SandboxId, deadline: Instant) -> Result<()> {
    let mut news = app.hub.subscribe_news();
    while !is_at_tool_boundary(app, &find_sandbox(app, id).await?).await? {
        if Instant::now() > deadline {
            return Err(Problem::new(
                Code::SandboxBusy,
                format!(
                    "the agent runs a tool call that did not end within {} s; try again later",
                    TOOL_WAIT.as_secs()
                ),
            ));
        }
        drop(tokio::time::timeout(POLL_INTERVAL, news.recv()).await);
    }
    Ok(())
}

async fn is_at_tool_boundary(app: &App, row: &SandboxRow) -> Result<bool> {
    match row.status.activity() {
        Activity::Working | Activity::RateLimited | Activity::Stalled | Activity::Unreachable => {}
        // No tool call makes progress.
        Activity::Starting
        | Activity::WaitingApproval
        | Activity::WaitingMessage
        | Activity::Paused
        | Activity::LimitPaused
        | Activity::TakingResults
        | Activity::Ended => return Ok(true),
    }
    let log = (row.id, row.session_id);
    let newest = app.read(async move |tx| {
        let types = [kind::AGENT_STARTED, kind::AGENT_TOOL_USE, kind::AGENT_TOOL_COMPLETED];
        let types = types.map(|name| EventTypePattern::Exact(name.into())).into();
        let filter = events::EventLogFilter { types, ..events::EventLogFilter::default() };
        let order = events::EventLogOrder::NewestFirst;
        Ok(events::read_event_page(tx, log, &filter, order, i64::MAX, MAX_TOOL_EVENTS).await?.events)
    });
    Ok(!has_running_tool(&newest.await?))
}

/// True if a tool call of the current turn has not ended. The events are newest first.
fn has_running_tool(newest: &[Event]) -> bool {
    let mut completed = BTreeSet::new();
    for event in newest {
        match EventData::from_event(event) {
            EventData::AgentToolCompleted(call) => {
                completed.insert(call.tool_use_id);
            }
            EventData::AgentToolUse(call) if !completed.contains(&call.tool_use_id) => return true,
            EventData::AgentStarted(_) => return false,
            _ => {}
        }
    }
    false
}

/// Pauses the agent's processes and exports the work. Returns `None` if a tool call started before the pause.
async fn export_paused(app: &App, target: &SandboxTarget) -> Result<Option<ExportedWork>> {
    let SandboxTarget { row, provider, id } = target;
    let pauses = provider.capabilities().pause != PauseAbility::None && !row.status.is_paused();
    if pauses {
        provider.pause(id).await?;
    }
    let exported = export_at_boundary(app, target).await;
    if pauses && let Err(error) = provider.resume(id).await {
        tracing::warn!(sandbox = %row.id, %error, "failed to resume a sandbox after an export of its results");
    }
    exported
}

async fn export_at_boundary(
    app: &App,
    SandboxTarget { row, provider, id }: &SandboxTarget,
) -> Result<Option<ExportedWork>> {
    let row = find_sandbox(app, row.id).await?;
    if !is_at_tool_boundary(app, &row).await? {
        return Ok(None);
    }
    let session_id = row.session_id;
    let session = app.read(async move |tx| Ok(sessions::find_session(tx, session_id).await?)).await?;
    let session = session.ok_or_else(|| Problem::not_found("session"))?;
    let exported = branch_export::export_branch(app, &**provider, id, (&session, &row), WorkspaceUse::Continues);
    match exported.await {
        Ok(ExportedWork { outcome: ImportOutcome::Protected { paths }, .. }) => {
            let detail = format!("the work changes protected paths, so no branch was made: {}", paths.join(", "));
            Err(Problem::new(Code::ProviderRefused, super::lifecycle::truncate_text(&detail, 500)))
        }
        Ok(exported) => Ok(Some(exported)),
        Err(ExportError::Retry(detail)) => Err(Problem::new(Code::ProviderUnreachable, detail)),
        Err(ExportError::Permanent(_, detail)) => Err(Problem::new(Code::ProviderRefused, detail)),
    }
}

/// Records the branch. The results stay pending: the agent can change more.
async fn record_live_export(app: &App, id: SandboxId, mut exported: ExportedWork) -> Result<()> {
    exported.warnings.extend(exported.describe_unsaved());
    let is_new = match &exported.outcome {
        ImportOutcome::Branch(result) => result.previous.as_ref() != Some(&result.commit),
        ImportOutcome::NoNewCommits | ImportOutcome::Protected { .. } => false,
    };
    if !is_new {
        return Ok(());
    }
    app.write(async move |work| {
        let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
        branch_export::record_export(work, &mut session, &mut sandbox, &exported).await?;
        Ok(sandboxes::update_sandbox(work.tx, &mut sandbox).await?)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn event(event_type: &str, data: &Value) -> Event {
        let event = json!({
            "id": "01890000-0000-7000-8000-000000000000", "sandbox_id": SandboxId::new(), "seq": 1, "type": event_type,
            "source": "agent", "at": "2026-01-01T00:00:00Z", "received_at": "2026-01-01T00:00:00Z", "data": data,
        });
        serde_json::from_str(&event.to_string()).unwrap()
    }

    #[test]
    fn a_tool_call_runs_until_it_completes_or_the_next_turn_starts() {
        let used = |id: &str| event("agent.tool_use", &json!({ "tool": "Bash", "tool_use_id": id, "input": {} }));
        let completed = |id: &str| {
            let data = json!({ "tool": "Bash", "tool_use_id": id, "output": "", "is_error": false });
            event("agent.tool_completed", &data)
        };
        let started = || event("agent.started", &json!({}));
        assert!(!has_running_tool(&[]));
        assert!(has_running_tool(&[used("1"), started()]));
        assert!(!has_running_tool(&[completed("1"), used("1"), started()]));
        assert!(has_running_tool(&[completed("1"), used("2"), used("1"), started()]));
        assert!(!has_running_tool(&[started(), used("1")]));
    }
}
