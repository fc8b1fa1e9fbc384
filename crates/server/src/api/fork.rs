//! `/sandboxes/{id}/fork`: another sandbox that begins with the files of this one, and another
//! session that goes on from where this one's is.

use super::pause::place;
use super::sandboxes::SandboxView;
use crate::app::{create, pausing, sessions as app_sessions};
use crate::auth::Caller;
use crate::extract::{Body, Id};
use crate::holds::wholly;
use crate::once::{Answer, Once};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::bounds;
use atoll_core::id::{SandboxId, SessionId};
use atoll_core::provider::{CreateSpec, Identity};
use atoll_core::sandbox::{End, SandboxState};
use atoll_store::sandboxes;
use axum::extract::State;
use serde::Deserialize;
use std::sync::Arc;

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkSandbox {
    title: Option<String>,
    /// The first message to the fork's agent; without one it waits.
    prompt: Option<String>,
    end: Option<End>,
}

/// Make another sandbox with the files of this one as they are now.
///
/// Between two turns of the agent only; processes are not copied, and those of this one that run as
/// the agent end. From then on both go their own ways.
#[utoipa::path(post, path = "/sandboxes/{id}/fork", tag = "sandboxes",
    params(("id" = SandboxId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = ForkSandbox, responses((status = 201, body = SandboxView)))]
pub async fn fork(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    once: Once,
    Body { value, hash }: Body<ForkSandbox>,
) -> Result<Answer> {
    if let Some(title) = &value.title {
        bounds::line("title", title, bounds::TITLE_CHARS)?;
    }
    if let Some(prompt) = &value.prompt {
        bounds::content("prompt", prompt, bounds::PROMPT_BYTES)?;
    }
    wholly(async move {
        let _held = app.holds.hold(id).await;
        // Known already: the parent's processes are not ended a second time for it.
        match app.answered_before(&caller, &once, &hash).await? {
            Some(answer) => Ok(answer),
            None => make(&app, caller, id, once, value, hash).await,
        }
    })
    .await
}

async fn make(
    app: &App,
    caller: Caller,
    id: SandboxId,
    once: Once,
    value: ForkSandbox,
    hash: String,
) -> Result<Answer> {
    let (row, kind, parent) = place(app, &caller, id).await?;
    match row.state {
        SandboxState::Running | SandboxState::Failed => {}
        SandboxState::Pending | SandboxState::Creating | SandboxState::Completing | SandboxState::Completed => {
            let detail = format!("the sandbox is {}: there is nothing to fork", row.state);
            return Err(Problem::new(Code::IllegalTransition, detail).with("state", row.state.as_str()));
        }
    }
    pausing::refuse_paused(&row)?;
    let (child, session) = (SandboxId::new(), SessionId::new());
    let labels = app.read(move |tx| Box::pin(async move { Ok(sandboxes::labels(tx, id).await?) })).await?;
    let identity = Identity { deployment: app.deployment.clone(), sandbox: child, session, project: row.project_id };
    let programs = app.agents.programs(row.provider, row.agent.as_deref())?;
    let spec = CreateSpec { identity, labels, settings: row.settings.clone(), source: None, programs };
    let providers = app.providers()?;
    // The files first: with them a row can be made that holds, without them there is nothing to undo.
    let made = providers.get(kind).fork(&parent, &spec, &child.to_string()).await?;
    let (who, public_url, parent_session) = (caller.clone(), app.public_url.clone(), row.session_id);
    let answer = app
        .write_once(&caller, once, hash, move |work| {
            Box::pin(async move {
                let fork = app_sessions::fork(work, parent_session, session, value.title, who.actor()).await?;
                let mut fork = app_sessions::locked(work, fork.id).await?;
                let mut plan = app_sessions::plan_like_last(work, &fork, who.actor()).await?;
                plan.id = child;
                plan.settings.forked_from = Some(id);
                plan.end = value.end.unwrap_or(if value.prompt.is_some() { plan.end } else { End::Keep });
                plan.prompt = value.prompt;
                let made = create::next(work, &mut fork, plan).await?;
                Answer::created(SandboxView::made(made, &public_url))
            })
        })
        .await;
    // Refused, or the same request had been answered before: nobody will ask for these files.
    let is_ours = answer.as_ref().is_ok_and(|answer| answer.body["id"] == child.to_string());
    if !is_ours && let Err(error) = providers.get(kind).destroy(&made.id).await {
        tracing::warn!(sandbox = %child, %error, "a fork that nobody wants can't be removed now");
    }
    answer
}
