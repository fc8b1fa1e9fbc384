//! `/sandboxes/{id}/pause` and `/resume`: everything in it stands still, and goes on.

use super::sandboxes::SandboxView;
use crate::app::pausing;
use crate::auth::{Caller, access};
use crate::extract::Id;
use crate::holds::wholly;
use crate::once::Answer;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_core::principal::Action;
use atoll_core::provider::ProviderId;
use atoll_core::sandbox::{Activity, ProviderKind};
use atoll_store::sandboxes::{self, Sandbox};
use axum::extract::State;
use std::sync::Arc;

async fn row(app: &App, caller: &Caller, id: SandboxId) -> Result<Sandbox> {
    let who = caller.clone();
    let row = app.read(move |tx| {
        Box::pin(async move {
            access::sandbox(tx, &who, id, Action::Work).await?;
            sandboxes::get(tx, id).await?.ok_or_else(|| Problem::not_found("sandbox"))
        })
    });
    row.await
}

/// The sandbox as its provider knows it, for whom may work in it.
pub(super) async fn place(app: &App, caller: &Caller, id: SandboxId) -> Result<(Sandbox, ProviderKind, ProviderId)> {
    let row = row(app, caller, id).await?;
    let gone = || Problem::new(Code::SandboxGone, "its provider has nothing of it").with("state", row.state.as_str());
    let (kind, place) = super::diff::at_provider(&row).ok_or_else(gone)?;
    Ok((row, kind, place))
}

/// Let everything in a sandbox stand still. It keeps its memory.
#[utoipa::path(post, path = "/sandboxes/{id}/pause", tag = "sandboxes", params(("id" = SandboxId, Path)),
    responses((status = 200, body = SandboxView)))]
pub async fn pause(State(app): State<Arc<App>>, caller: Caller, Id(id): Id<SandboxId>) -> Result<Answer> {
    wholly(async move {
        let _held = app.holds.hold(id).await;
        pausing::check(&row(&app, &caller, id).await?)?;
        let (_, kind, place) = place(&app, &caller, id).await?;
        let providers = app.providers()?;
        providers.get(kind).pause(&place).await?;
        let actor = caller.actor();
        let paused = app.write(move |work| {
            Box::pin(async move {
                let row = pausing::paused(work, id, actor).await?;
                // Its turn may have ended while it was asked to stand still.
                pausing::check(&row)?;
                Answer::ok(SandboxView::new(row, sandboxes::labels(work.tx, id).await?))
            })
        });
        let paused = paused.await;
        // What is not said to stand must not: nobody would let it go on.
        if paused.is_err()
            && let Err(error) = providers.get(kind).resume(&place).await
        {
            tracing::warn!(sandbox = %id, %error, "a sandbox that could not be said to be paused can't go on");
        }
        paused
    })
    .await
}

/// Let a paused sandbox go on.
#[utoipa::path(post, path = "/sandboxes/{id}/resume", tag = "sandboxes", params(("id" = SandboxId, Path)),
    responses((status = 200, body = SandboxView)))]
pub async fn resume(State(app): State<Arc<App>>, caller: Caller, Id(id): Id<SandboxId>) -> Result<Answer> {
    wholly(async move {
        let _held = app.holds.hold(id).await;
        pausing::check(&row(&app, &caller, id).await?)?;
        let (_, kind, place) = place(&app, &caller, id).await?;
        go_on(&app, &caller, id, kind, &place).await
    })
    .await
}

async fn go_on(app: &App, caller: &Caller, id: SandboxId, kind: ProviderKind, place: &ProviderId) -> Result<Answer> {
    app.providers()?.get(kind).resume(place).await?;
    let actor = caller.actor();
    app.write(move |work| {
        Box::pin(async move {
            let row = pausing::resumed(work, id, actor).await?;
            Answer::ok(SandboxView::new(row, sandboxes::labels(work.tx, id).await?))
        })
    })
    .await
}

/// Whoever is to end must be able to hear of it: a paused sandbox goes on before it is stopped. If
/// that fails it is ended by force, as every one that does not listen.
pub(super) async fn wake(app: &Arc<App>, caller: &Caller, id: SandboxId) -> Result<()> {
    let is_paused = place(app, caller, id).await.is_ok_and(|(row, ..)| row.activity == Activity::Paused);
    if !is_paused {
        return Ok(());
    }
    let (app, caller) = (Arc::clone(app), caller.clone());
    wholly(async move {
        let _held = app.holds.hold(id).await;
        let Ok((row, kind, place)) = place(&app, &caller, id).await else { return Ok(()) };
        if row.activity == Activity::Paused
            && let Err(problem) = go_on(&app, &caller, id, kind, &place).await
        {
            tracing::warn!(sandbox = %id, detail = %problem.detail, "a paused sandbox that is to stop can't go on");
        }
        Ok(())
    })
    .await
}
