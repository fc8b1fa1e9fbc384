//! The difference between a sandbox's workspace and the commit that it started from, or the changes of one turn.

use super::targets::{absence_problem, load_sandbox};
use super::turn_diff;
use crate::auth::access::CanSee;
use crate::cursor::{decode_cursor, encode_cursor};
use crate::extract::page_size;
use crate::problem::{Code, Problem, Result};
use crate::repositories::git_error_text;
use crate::state::App;
use atoll_api::{Diff, DiffQuery};
use atoll_core::bounds;
use atoll_core::id::SandboxId;
use atoll_core::provider::{CommandExit, GitOperation, ProviderId};
use atoll_store::sandboxes::SandboxRow;
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
        None => compare_workspace(app, &row, query, true).await,
    }
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
            let text = compare_workspace(app, &row, query, false).await?;
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

/// Runs git in the sandbox. Returns a patch, or the JSON form of `atoll_api::Diff`.
async fn compare_workspace(app: &App, row: &SandboxRow, query: DiffQuery, as_patch: bool) -> Result<Vec<u8>> {
    let Some(start) = row.settings.repo.as_ref().map(|repo| repo.base.clone().unwrap_or_default()) else {
        return Err(Problem::new(Code::NoRepository, "the sandbox was created without a repository"));
    };
    let Some(id) = row.provider_id.clone() else {
        return Err(absence_problem(row));
    };
    let base = query.base.unwrap_or(start);
    let job = GitOperation::Diff { base, paths: query.path.into_iter().collect(), as_patch };
    let failed = |error: std::io::Error| Problem::internal(format!("no file for the diff: {error}"));
    let mut file = tempfile::tempfile_in(&app.config.data_dir).map_err(failed)?;
    let output = file.try_clone().map_err(failed)?;
    let done = app.providers()?.get(row.provider).git(&ProviderId(id), &job, output).await?;
    if done.exit != (CommandExit::Exited { code: 0 }) {
        let detail = format!("git failed to compare ({:?}): {}", done.exit, git_error_text(&done.error_output));
        return Err(Problem::new(Code::ProviderRefused, detail));
    }
    let mut text = Vec::new();
    file.rewind().map_err(failed)?;
    file.take(MAX_DIFF_BYTES + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_DIFF_BYTES {
        return Err(Problem::new(Code::TooLarge, "the diff is longer than 64 MiB; limit it with `path`"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
