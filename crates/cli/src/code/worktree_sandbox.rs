//! The sandbox of a worktree: found by its labels on every call.

use super::Code;
use crate::connect::ConnectedClient;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::sandbox::readiness::{require_created, wait_until_created};
use atoll_api::{NewSandbox, Sandbox, SandboxListQuery, StopSandbox};
use atoll_core::id::SessionId;
use atoll_core::sandbox::{EndPolicy, ResultsAction};
use atoll_forge::worktree::read_identity;
use std::collections::BTreeMap;
use std::path::Path;

/// The identity of the worktree.
const WORKTREE_LABEL: &str = "worktree";
/// The machine and the file that tell whether the worktree still exists.
const MACHINE_LABEL: &str = "worktree.machine";
const PATH_LABEL: &str = "worktree.path";
const MAX_LABEL_BYTES: usize = 255;
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

/// The labels of a worktree's sandbox.
pub fn worktree_labels(identity: &str, path: &Path, data_dir: &Path) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([(WORKTREE_LABEL.to_owned(), identity.to_owned())]);
    // Without both, the sandbox does not end with its worktree.
    let path = path.to_str().filter(|path| path.len() <= MAX_LABEL_BYTES);
    if let (Some(path), Some(machine)) = (path, read_machine_id(data_dir, true)) {
        labels.extend([(PATH_LABEL.to_owned(), path.to_owned()), (MACHINE_LABEL.to_owned(), machine)]);
    }
    labels
}

/// Stops the sandboxes whose worktrees on this machine were removed. Returns their number.
pub async fn end_removed_worktrees(client: &ConnectedClient, data_dir: &Path) -> Result<usize> {
    let Some(machine) = read_machine_id(data_dir, false) else { return Ok(0) };
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
    for sandbox in found.iter().filter(|sandbox| is_removed(&sandbox.labels)) {
        client.stop_sandbox(sandbox.id, &StopSandbox { results: ResultsAction::Discard }).await?;
        ended += 1;
    }
    Ok(ended)
}

/// True if the worktree's file is gone, or belongs to another worktree by now.
fn is_removed(labels: &BTreeMap<String, String>) -> bool {
    match (labels.get(WORKTREE_LABEL), labels.get(PATH_LABEL)) {
        (Some(identity), Some(path)) => read_identity(Path::new(path)).as_ref() != Some(identity),
        _ => false,
    }
}

/// A random id of this data directory. Host names are not unique enough to end sandboxes by.
fn read_machine_id(data_dir: &Path, create: bool) -> Option<String> {
    let path = data_dir.join("machine-id");
    if let Ok(text) = std::fs::read_to_string(&path) {
        return Some(text.trim().to_owned()).filter(|id| !id.is_empty());
    }
    if !create {
        return None;
    }
    let id = atoll_core::id::SandboxId::new().to_string();
    std::fs::create_dir_all(data_dir).ok()?;
    std::fs::write(&path, format!("{id}\n")).ok()?;
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_or_foreign_file_ends_a_worktree() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("state.json");
        let labels = worktree_labels("one", &file, dir.path());
        assert_eq!(labels.len(), 3);
        assert!(is_removed(&labels));
        std::fs::write(&file, r#"{"identity":"one"}"#).unwrap();
        assert!(!is_removed(&labels));
        std::fs::write(&file, r#"{"identity":"two"}"#).unwrap();
        assert!(is_removed(&labels));
        assert!(!is_removed(&BTreeMap::new()));
        assert_eq!(worktree_labels("one", &file, dir.path()), labels, "the machine's id stays");
    }
}
