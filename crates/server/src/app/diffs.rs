//! The difference between a sandbox's workspace and the commit that it started from.

use super::targets::{absence_problem, load_sandbox};
use crate::auth::access::CanSee;
use crate::problem::{Code, Problem, Result};
use crate::repositories::git_error_text;
use crate::state::App;
use atoll_api::DiffQuery;
use atoll_core::bounds;
use atoll_core::id::SandboxId;
use atoll_core::provider::{CommandExit, GitOperation, ProviderId};
use std::io::{Read, Seek};

const MAX_DIFF_BYTES: u64 = 64 << 20;

/// Runs git in the sandbox. Returns a patch, or the JSON form of `atoll_api::Diff`.
pub async fn read_diff(app: &App, access: CanSee<SandboxId>, query: DiffQuery, as_patch: bool) -> Result<Vec<u8>> {
    let row = load_sandbox(app, &access).await?;
    let Some(start) = row.settings.repo.as_ref().map(|repo| repo.base.clone().unwrap_or_default()) else {
        return Err(Problem::new(Code::NoRepository, "the sandbox was created without a repository"));
    };
    let Some(id) = row.provider_id.clone() else {
        return Err(absence_problem(&row));
    };
    for (field, value) in [("base", &query.base), ("path", &query.path)] {
        if let Some(value) = value {
            bounds::check_line(field, value, 4096)?;
        }
    }
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
