//! The sandbox of a worktree: found by its labels on every call.

use super::Code;
use crate::connect::ConnectedClient;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::sandbox::readiness::{require_created, wait_until_created};
use atoll_api::{NewSandbox, Sandbox, SandboxListQuery, StopSandbox};
use atoll_core::id::SessionId;
use atoll_core::sandbox::{EndPolicy, ResultsAction};
use atoll_forge::worktree::{MACHINE_LABEL, WORKTREE_LABEL, is_worktree_removed, read_machine_id};
use std::collections::BTreeMap;
use std::path::Path;

const MAX_TITLE_CHARS: usize = 100;

/// Finds the newest sandbox of a worktree. Without `only_live`, also one that has ended but still has its files.
pub async fn find_sandbox(
    client: &ConnectedClient,
    identity: &str,
    session: Option<SessionId>,
    only_live: bool,
) -> Result<Option<Sandbox>> {
    let label = Some(format!("{WORKTREE_LABEL}={identity}"));
    let found = atoll_client::Client::collect_pages(async |cursor| {
        let query = SandboxListQuery {
            label: label.clone(),
            session,
            live: only_live,
            cursor,
            limit: Some(200),
            ..SandboxListQuery::default()
        };
        client.list_sandboxes(&query).await
    })
    .await?;
    let usable = found.into_iter().filter(|sandbox| sandbox.state.is_live() || sandbox.provider_id.is_some());
    Ok(usable.max_by_key(|sandbox| (sandbox.state.is_live(), sandbox.created_at)))
}

/// Creates the sandbox of a worktree and waits until it runs.
pub async fn create_sandbox(
    client: &ConnectedClient,
    code: &Code,
    labels: BTreeMap<String, String>,
    (session, title): (Option<SessionId>, Option<&str>),
    output: &Output,
) -> Result<Sandbox> {
    let title = title.and_then(|prompt| prompt.lines().map(str::trim).find(|line| !line.is_empty()));
    let request = NewSandbox {
        title: title.map(|line| line.chars().take(MAX_TITLE_CHARS).collect()),
        end: Some(EndPolicy::Keep),
        session_id: session,
        labels,
        ..code.settings.to_request()?
    };
    let created = client.create_sandbox(&request).await.map_err(Failure::from)?;
    let created = wait_until_created(created.id, client, output).await?;
    require_created(&created)?;
    Ok(created)
}

/// Stops the sandboxes whose worktrees on this machine were removed. Returns their number.
pub async fn end_removed_worktrees(client: &ConnectedClient, data_dir: &Path) -> Result<usize> {
    let Some(machine) = read_machine_id(data_dir) else { return Ok(0) };
    let label = Some(format!("{MACHINE_LABEL}={machine}"));
    let found = atoll_client::Client::collect_pages(async |cursor| {
        let query = SandboxListQuery {
            label: label.clone(),
            live: true,
            cursor,
            limit: Some(200),
            ..SandboxListQuery::default()
        };
        client.list_sandboxes(&query).await
    })
    .await?;
    let mut ended = 0;
    for sandbox in found.iter().filter(|sandbox| is_worktree_removed(&sandbox.labels)) {
        client.stop_sandbox(sandbox.id, &StopSandbox { results: ResultsAction::Discard }).await?;
        ended += 1;
    }
    Ok(ended)
}
