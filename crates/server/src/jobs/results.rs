//! Takes the results out of a sandbox: its commits become a branch of the repository they came from.

use super::{Done, back_off};
use crate::app::{Work, lifecycle};
use crate::problem::{Problem, Result};
use crate::providers::Providers;
use crate::repo;
use crate::state::App;
use atoll_core::event::{NewEvent, Source};
use atoll_core::lifecycle::Trigger;
use atoll_core::provider::{Error, Exit, GitJob, Provider, ProviderId, StopMode};
use atoll_core::sandbox::{Reason, Results, SandboxState};
use atoll_forge::{Outcome, Taken};
use atoll_store::jobs::Job;
use atoll_store::sandboxes::{self, Sandbox};
use atoll_store::sessions::{self, Session};
use serde_json::json;
use std::sync::Arc;

/// How often a fault on the way is tried again before it counts as a failure.
const TRIES: i64 = 5;

enum Failed {
    /// Worth another try.
    Later(String),
    /// The work is there, but can't be had this way.
    For(&'static str, String),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        match error {
            Error::Gone => Self::For("results_lost", "the sandbox was gone before its results were out".into()),
            error if error.is_worth_a_retry() => Self::Later(error.to_string()),
            error => Self::For("results_failed", error.to_string()),
        }
    }
}

pub(crate) async fn results(app: &Arc<App>, providers: &Providers, job: &Job) -> Result<Done> {
    let id = job.sandbox_id;
    let found = app
        .read(move |tx| {
            Box::pin(async move {
                let Some(sandbox) = sandboxes::get(tx, id).await? else { return Ok(None) };
                let session = sessions::get(tx, sandbox.session_id).await?;
                Ok(session.map(|session| (session, sandbox)))
            })
        })
        .await?;
    let wanted = found.filter(|(_, row)| row.state == SandboxState::Completing && row.results == Results::Pending);
    let Some((session, row)) = wanted else { return Ok(Done::Finished) };
    match take(app, providers, &session, &row).await {
        Ok(Outcome::Branch(taken)) => store(app, &row, Some(taken)).await,
        Ok(Outcome::Nothing) => store(app, &row, None).await,
        Ok(Outcome::Protected { paths }) => refuse(app, &row, &paths).await,
        Err(Failed::Later(detail)) if job.attempts < TRIES => {
            tracing::warn!(sandbox = %id, detail, "the results could not be taken out; trying again");
            Ok(Done::Later(back_off(job.attempts)))
        }
        Err(Failed::Later(detail)) => fail(app, &row, Reason::new("results_failed", detail), None).await,
        Err(Failed::For(code, detail)) => fail(app, &row, Reason::new(code, detail), None).await,
    }
}

async fn take(
    app: &Arc<App>,
    providers: &Providers,
    session: &Session,
    row: &Sandbox,
) -> std::result::Result<Outcome, Failed> {
    let provider: &dyn Provider = providers.get(row.provider);
    let Some(name) = row.provider_id.clone() else { return Err(Error::Gone.into()) };
    let id = ProviderId(name);
    // Nothing writes to the workspace any more from here on.
    provider.stop(&id, StopMode::Force).await?;
    let (repo, base) = match &row.settings.repo {
        Some(repo) => (repo.clone(), repo.base.clone().unwrap_or_default()),
        None => return Err(Failed::For("results_failed", "it has no repository".into())),
    };
    let later = |error: std::io::Error| Failed::Later(format!("no file for the results: {error}"));
    let scratch = repo::Scratch::new(app, row.id).map_err(later)?;
    let bundle = scratch.create("results").map_err(later)?;
    let author = repo::author(&repo).await.map_err(|problem| Failed::For("results_failed", problem.detail))?;
    let job = GitJob::Out { base: base.clone(), message: session.title.clone(), author };
    let done = provider.git(&id, &job, bundle).await?;
    match done.exit {
        Exit::Exited { code: 0 } => {}
        exit => {
            let said = repo::said(&done.said);
            return Err(Failed::For("results_failed", format!("git could not read the workspace ({exit:?}): {said}")));
        }
    }
    let protected = row.settings.protected.clone();
    repo::take(&repo, scratch, base, protected).await.map_err(|problem| Failed::For("results_failed", problem.detail))
}

fn event(work: &Work<'_>, row: &Sandbox, taken: Option<&Taken>) -> NewEvent {
    let repo = row.settings.repo.as_ref().and_then(|repo| repo.path.clone());
    let (name, data) = match taken {
        Some(taken) => (
            "git.branch_created",
            json!({
                "branch": taken.branch, "commit": taken.commit, "base": taken.base, "commits": taken.commits,
                "files": taken.files, "flagged": taken.flagged, "notes": taken.notes, "repo": repo,
            }),
        ),
        None => {
            let base = row.settings.repo.as_ref().and_then(|repo| repo.base.clone());
            ("git.nothing_changed", json!({ "base": base, "repo": repo }))
        }
    };
    NewEvent::system(name, work.now, &data).by(Source::Forge, None)
}

async fn store(app: &App, row: &Sandbox, taken: Option<Taken>) -> Result<Done> {
    let id = row.id;
    app.write(move |work| {
        Box::pin(async move {
            let (mut session, mut sandbox) = work.locked(id).await?;
            let event = event(work, &sandbox, taken.as_ref());
            work.log(&mut sandbox, vec![event]).await?;
            sandbox.results = Results::Taken;
            if let Some(taken) = &taken {
                session.branch = Some(taken.branch.clone());
                session.updated_at = work.now;
                sessions::update(work.tx, &session).await?;
            }
            if sandbox.state == SandboxState::Completing {
                lifecycle::apply(work, &mut session, &mut sandbox, Trigger::ResultsOut, None, None).await?;
            } else {
                // Somebody ended it meanwhile; the branch is there all the same.
                sandboxes::update(work.tx, &mut sandbox).await?;
            }
            Ok(Done::Finished)
        })
    })
    .await
}

/// How many files are named in a sentence; the event names more.
const NAMED: usize = 5;
const LISTED: usize = 200;

/// The work changed what it must not: nothing of it is delivered, and the files stay.
async fn refuse(app: &App, row: &Sandbox, paths: &[String]) -> Result<Done> {
    let more = if paths.len() > NAMED { format!(" and {} more", paths.len() - NAMED) } else { String::new() };
    let named: Vec<&str> = paths.iter().take(NAMED).map(String::as_str).collect();
    let detail = format!(
        "the work changes protected paths, so no branch was made: {}{more}; its files are kept for a while",
        named.join(", ")
    );
    let listed: Vec<&String> = paths.iter().take(LISTED).collect();
    let event = json!({ "paths": listed, "count": paths.len(), "protected": row.settings.protected });
    fail(app, row, Reason::new("results_protected", detail), Some(event)).await
}

/// `refused` is what was found in the results that must not be there.
async fn fail(app: &App, row: &Sandbox, reason: Reason, refused: Option<serde_json::Value>) -> Result<Done> {
    let id = row.id;
    let reason = Reason { detail: lifecycle::bounded(&reason.detail, 500), ..reason };
    app.write(move |work| {
        Box::pin(async move {
            let (mut session, mut sandbox) = work.locked(id).await?;
            if let Some(data) = refused {
                let event = NewEvent::system("guardian.protected_path", work.now, &data);
                work.log(&mut sandbox, vec![event.by(Source::Guardian, None)]).await?;
            }
            if sandbox.state == SandboxState::Completing {
                let trigger = Trigger::ResultsFailed;
                lifecycle::apply(work, &mut session, &mut sandbox, trigger, Some(reason), None).await?;
            }
            Ok::<_, Problem>(Done::Finished)
        })
    })
    .await
}
