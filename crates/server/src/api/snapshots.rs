//! `/snapshots`: files of sandboxes, kept by name, to begin others with.

use super::pause::place;
use crate::app::pausing;
use crate::auth::Caller;
use crate::extract::{Body, Id};
use crate::once::Answer;
use crate::problem::Result;
use crate::state::App;
use atoll_core::bounds;
use atoll_core::event::{NewEvent, Source};
use atoll_core::id::SandboxId;
use atoll_core::provider::SnapshotRef;
use atoll_core::sandbox::ProviderKind;
use atoll_store::sandboxes;
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSnapshot {
    /// 1 to 64 of a-z, 0-9, `.`, `_` and `-`, beginning with a letter or digit.
    name: String,
}

/// Keep a sandbox's files as they are now, by name.
///
/// Between two turns of the agent only. `POST /sandboxes {"snapshot": name}` begins with them.
#[utoipa::path(post, path = "/sandboxes/{id}/snapshot", tag = "sandboxes", params(("id" = SandboxId, Path)),
    request_body = NewSnapshot, responses((status = 201, body = SnapshotRef)))]
pub async fn make(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Body { value, .. }: Body<NewSnapshot>,
) -> Result<Answer> {
    let (row, kind, place) = place(&app, &caller, id).await?;
    checked(&value.name)?;
    pausing::refuse_paused(&row)?;
    let made = app.providers()?.get(kind).snapshot(&place, &value.name).await?;
    let name = value.name.clone();
    app.write(move |work| {
        Box::pin(async move {
            let (_, mut sandbox) = work.locked(id).await?;
            let event = NewEvent::system("sandbox.snapshot", work.now, &json!({ "name": name }));
            work.log(&mut sandbox, vec![event.by(Source::User, Some(caller.actor()))]).await?;
            Ok(sandboxes::update(work.tx, &mut sandbox).await?)
        })
    })
    .await?;
    Answer::created(made)
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Snapshots {
    items: Vec<SnapshotRef>,
}

/// The snapshots of this machine.
#[utoipa::path(get, path = "/snapshots", tag = "sandboxes", responses((status = 200, body = Snapshots)))]
pub async fn list(State(app): State<Arc<App>>, caller: Caller) -> Result<Json<Snapshots>> {
    caller.must_not_be_worker()?;
    Ok(Json(Snapshots { items: app.providers()?.get(ProviderKind::Local).snapshots().await? }))
}

/// Forget a snapshot. Sandboxes that began with it keep their files.
#[utoipa::path(delete, path = "/snapshots/{name}", tag = "sandboxes", params(("name" = String, Path)),
    responses((status = 200)))]
pub async fn remove(State(app): State<Arc<App>>, caller: Caller, Id(name): Id<String>) -> Result<Answer> {
    caller.must_be_admin()?;
    let provider = app.providers()?;
    provider
        .get(ProviderKind::Local)
        .forget_snapshot(&name)
        .await
        .map_err(|error| super::unknown(error, "snapshot"))?;
    Answer::ok(json!({ "name": name }))
}

/// Only what is spelled like one can be one.
pub(super) fn checked(name: &str) -> Result<()> {
    Ok(bounds::stored_name("name", name)?)
}
