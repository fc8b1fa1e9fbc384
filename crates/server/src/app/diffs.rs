//! The difference between a sandbox's work and the commit that it started from, or the changes of one turn.

use super::targets::{absence_problem, load_sandbox};
use super::turn_diff;
use crate::auth::access::CanSee;
use crate::cursor::{decode_cursor, encode_cursor};
use crate::extract::page_size;
use crate::problem::{Code, Problem, Result};
use crate::repositories::{self, git_error_text};
use crate::state::App;
use atoll_api::events::EventData;
use atoll_api::{Diff, DiffQuery};
use atoll_core::bounds;
use atoll_core::event::{EventTypePattern, kind};
use atoll_core::id::SandboxId;
use atoll_core::provider::{CommandExit, GitOperation, Provider, ProviderId};
use atoll_core::sandbox::Repo;
use atoll_forge::CommitRange;
use atoll_store::events;
use atoll_store::sandboxes::SandboxRow;
use serde_json::json;
use std::fs::File;
use std::io::{Read, Seek};

const MAX_DIFF_BYTES: u64 = 64 << 20;
const MAX_FILES_PER_PAGE: i64 = 1000;
const CURSOR_LIST: &str = "diff";

/// Returns the patch of the changes.
pub async fn read_patch(app: &App, access: CanSee<SandboxId>, query: DiffQuery) -> Result<Vec<u8>> {
    if query.cursor.is_some() || query.limit.is_some() {
        return Err(Problem::new(Code::BadRequest, "cursor, limit: a patch has no pages; limit it with `path`"));
    }
    let row = prepare_query(app, &access, &query).await?;
    match query.turn {
        Some(turn) => {
            let edits = turn_diff::read_turn_edits(app, &row, turn, query.path.as_deref()).await?;
            Ok(turn_diff::join_patches(&edits).into_bytes())
        }
        None => compare_work(app, &row, query, true).await,
    }
}

/// Returns the patch of all changes in a sandbox whose files exist, for the server itself.
pub async fn read_whole_patch(app: &App, row: &SandboxRow) -> Result<Vec<u8>> {
    compare_work(app, row, DiffQuery::default(), true).await
}

/// Lists the changed files, sorted by path.
pub async fn list_changes(app: &App, access: CanSee<SandboxId>, query: DiffQuery) -> Result<Diff> {
    let limit = page_size(query.limit, MAX_FILES_PER_PAGE, MAX_FILES_PER_PAGE)?;
    let after = decode_cursor(CURSOR_LIST, query.cursor.as_deref())?;
    let row = prepare_query(app, &access, &query).await?;
    let mut diff = match query.turn {
        Some(turn) => {
            let edits = turn_diff::read_turn_edits(app, &row, turn, query.path.as_deref()).await?;
            let base = row.settings.repo.and_then(|repo| repo.base);
            Diff { base, files: turn_diff::combine_edits(&edits), next_cursor: None }
        }
        None => {
            let text = compare_work(app, &row, query, false).await?;
            // The text comes from inside the sandbox, so it is parsed and never passed on unchecked.
            serde_json::from_slice(&text)
                .map_err(|error| Problem::new(Code::ProviderRefused, format!("cannot parse git's output: {error}")))?
        }
    };
    cut_page(&mut diff, after.as_deref(), usize::try_from(limit).unwrap_or(0));
    Ok(diff)
}

/// Keeps the page of files after a path.
fn cut_page(diff: &mut Diff, after: Option<&str>, limit: usize) {
    diff.files.sort_by(|one, other| one.path.cmp(&other.path));
    diff.files.retain(|file| after.is_none_or(|after| file.path.as_str() > after));
    let has_more = diff.files.len() > limit;
    diff.files.truncate(limit);
    let last = diff.files.last().filter(|_| has_more);
    diff.next_cursor = last.map(|file| encode_cursor(CURSOR_LIST, &file.path));
}

async fn prepare_query(app: &App, access: &CanSee<SandboxId>, query: &DiffQuery) -> Result<SandboxRow> {
    for (field, value) in [("base", &query.base), ("path", &query.path)] {
        if let Some(value) = value {
            bounds::check_line(field, value, 4096)?;
        }
    }
    if query.turn.is_some() && query.base.is_some() {
        return Err(Problem::new(Code::BadRequest, "base, turn: only one of them can be set"));
    }
    load_sandbox(app, access).await
}

/// Compares the sandbox's files with their start, or the exported branch if the files are gone. Returns a patch, or the
/// JSON form of `atoll_api::Diff`.
async fn compare_work(app: &App, row: &SandboxRow, query: DiffQuery, as_patch: bool) -> Result<Vec<u8>> {
    let Some(repo) = row.settings.repo.as_ref() else {
        return Err(Problem::new(Code::NoRepository, "the sandbox was created without a repository"));
    };
    let base = query.base.unwrap_or_else(|| repo.base.clone().unwrap_or_default());
    let paths = query.path.into_iter().collect();
    // A server that only reads the store has no providers.
    match (row.provider_id.clone(), app.providers()) {
        (Some(id), Ok(providers)) => {
            let provider = providers.get(row.provider);
            compare_workspace(app, &*provider, ProviderId(id), GitOperation::Diff { base, paths, as_patch }).await
        }
        (_, _) => {
            let commit = match find_exported_commit(app, row).await? {
                Some(ExportedWork::Commit(commit)) => commit,
                Some(ExportedWork::Nothing) => base.clone(),
                None => return Err(absence_problem(row)),
            };
            compare_commits(app, repo, CommitRange { base, commit, paths }, as_patch).await
        }
    }
}

/// Runs git in the sandbox.
async fn compare_workspace(app: &App, provider: &dyn Provider, id: ProviderId, job: GitOperation) -> Result<Vec<u8>> {
    let file = scratch_file(app)?;
    let output = file.try_clone().map_err(|error| scratch_problem(&error))?;
    let done = provider.git(&id, &job, output).await?;
    if done.exit != (CommandExit::Exited { code: 0 }) {
        let detail = format!("git failed to compare ({:?}): {}", done.exit, git_error_text(&done.error_output));
        return Err(Problem::new(Code::ProviderRefused, detail));
    }
    read_scratch_file(file)
}

/// What a sandbox left in its repository.
enum ExportedWork {
    Commit(String),
    Nothing,
}

/// Finds the newest export in the event log.
async fn find_exported_commit(app: &App, row: &SandboxRow) -> Result<Option<ExportedWork>> {
    let log = (row.id, row.session_id);
    let page = app.read(async move |tx| {
        let types = [kind::GIT_BRANCH_CREATED, kind::GIT_NOTHING_CHANGED];
        let types = types.map(|name| EventTypePattern::Exact(name.into())).into();
        let filter = events::EventLogFilter { types, ..events::EventLogFilter::default() };
        Ok(events::read_event_page(tx, log, &filter, events::EventLogOrder::NewestFirst, i64::MAX, 1).await?)
    });
    let newest = page.await?.events.into_iter().next();
    Ok(newest.and_then(|event| match EventData::from_event(&event) {
        EventData::GitBranchCreated(created) => Some(ExportedWork::Commit(created.commit)),
        EventData::GitNothingChanged(_) => Some(ExportedWork::Nothing),
        _ => None,
    }))
}

async fn compare_commits(app: &App, repo: &Repo, range: CommitRange, as_patch: bool) -> Result<Vec<u8>> {
    if as_patch {
        let file = scratch_file(app)?;
        let output = file.try_clone().map_err(|error| scratch_problem(&error))?;
        repositories::write_patch(app, repo, range, output, MAX_DIFF_BYTES).await?;
        return read_scratch_file(file);
    }
    let base = range.base.clone();
    let files = repositories::list_changes(app, repo, range).await?;
    serde_json::to_vec(&json!({ "base": base, "files": files })).map_err(Problem::internal)
}

fn scratch_problem(error: &std::io::Error) -> Problem {
    Problem::internal(format!("no file for the diff: {error}"))
}

fn scratch_file(app: &App) -> Result<File> {
    tempfile::tempfile_in(&app.config.data_dir).map_err(|error| scratch_problem(&error))
}

fn read_scratch_file(mut file: File) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    file.rewind().map_err(|error| scratch_problem(&error))?;
    file.take(MAX_DIFF_BYTES + 1).read_to_end(&mut text).map_err(|error| scratch_problem(&error))?;
    if text.len() as u64 > MAX_DIFF_BYTES {
        return Err(Problem::new(Code::TooLarge, "the diff is longer than 64 MiB; limit it with `path`"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_never_skip_or_repeat_a_file() {
        let names = ["b", "a/z", "c", "a", "größe"];
        let files: Vec<_> =
            names.iter().map(|path| json!({ "path": path, "change": "added", "added": 1, "removed": 0 })).collect();
        let all = json!({ "base": "1", "files": files });
        for limit in 1..=6 {
            let (mut after, mut seen) = (None, Vec::new());
            loop {
                let mut page: Diff = serde_json::from_value(all.clone()).unwrap();
                cut_page(&mut page, after.as_deref(), limit);
                assert!(page.files.len() <= limit);
                seen.extend(page.files.into_iter().map(|file| file.path));
                let Some(next) = page.next_cursor else { break };
                after = decode_cursor(CURSOR_LIST, Some(&next)).unwrap();
            }
            assert_eq!(seen, ["a", "a/z", "b", "c", "größe"], "{limit}");
        }
    }
}
