//! `/snapshots`: files of sandboxes, kept by name, to begin others with.

use super::pause::place;
use crate::app::pausing;
use crate::auth::{Caller, access};
use crate::extract::{Body, Id, Params};
use crate::holds::wholly;
use crate::once::Answer;
use crate::problem::Result;
use crate::state::App;
use atoll_core::bounds;
use atoll_core::event::{NewEvent, Source};
use atoll_core::id::{ProjectId, SandboxId};
use atoll_core::principal::Action;
use atoll_core::provider::{SnapshotRef, snapshot_of};
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
    /// 1 to 32 of a-z, 0-9, `.`, `_` and `-`, beginning with a letter or digit.
    name: String,
}

/// Keep a sandbox's files as they are now, by name.
///
/// Between two turns of the agent only. `POST /sandboxes {"snapshot": name}` begins with them.
#[utoipa::path(post, path = "/sandboxes/{id}/snapshot", tag = "sandboxes", params(("id" = SandboxId, Path)),
    request_body = NewSnapshot, responses((status = 201, body = Snapshot)))]
pub async fn make(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Body { value, .. }: Body<NewSnapshot>,
) -> Result<Answer> {
    bounds::snapshot_name("name", &value.name)?;
    wholly(async move {
        let _held = app.holds.hold(id).await;
        let (row, kind, place) = place(&app, &caller, id).await?;
        pausing::refuse_paused(&row)?;
        let called = snapshot_of(row.project_id, &value.name);
        let made = app.providers()?.get(kind).snapshot(&place, &called).await?;
        app.write(move |work| {
            Box::pin(async move {
                let (_, mut sandbox) = work.locked(id).await?;
                let event = NewEvent::system("sandbox.snapshot", work.now, &json!({ "name": value.name }));
                work.log(&mut sandbox, vec![event.by(Source::User, Some(caller.actor()))]).await?;
                Ok(sandboxes::update(work.tx, &mut sandbox).await?)
            })
        })
        .await?;
        Answer::created(of_project(made))
    })
    .await
}

/// A project's snapshot.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Snapshot {
    project_id: ProjectId,
    #[serde(flatten)]
    kept: SnapshotRef,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Snapshots {
    items: Vec<Snapshot>,
}

/// Whose it is, and what it is called there.
fn of_project(mut kept: SnapshotRef) -> Option<Snapshot> {
    let (project, name) = kept.name.split_once('.')?;
    let (project_id, name) = (project.parse().ok()?, name.to_owned());
    kept.name = name;
    Some(Snapshot { project_id, kept })
}

/// The snapshots of the projects that one may see.
#[utoipa::path(get, path = "/snapshots", tag = "sandboxes", responses((status = 200, body = Snapshots)))]
pub async fn list(State(app): State<Arc<App>>, caller: Caller) -> Result<Json<Snapshots>> {
    let visible = app.read(move |tx| Box::pin(async move { access::visible(tx, &caller).await })).await?;
    let kept = app.providers()?.get(ProviderKind::Local).snapshots().await?;
    let items = kept.into_iter().filter_map(of_project).filter(|snapshot| visible.contains(snapshot.project_id));
    Ok(Json(Snapshots { items: items.collect() }))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OfProject {
    /// Whose; the default project's where absent.
    project_id: Option<ProjectId>,
}

/// Forget a snapshot. Sandboxes that began with it keep their files.
#[utoipa::path(delete, path = "/snapshots/{name}", tag = "sandboxes", params(("name" = String, Path), OfProject),
    responses((status = 200)))]
pub async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(name): Id<String>,
    Params(query): Params<OfProject>,
) -> Result<Answer> {
    caller.must_not_be_worker()?;
    let project = query.project_id.unwrap_or(app.default_project);
    app.read(move |tx| Box::pin(async move { access::check(tx, &caller, project, Action::Work, "snapshot").await }))
        .await?;
    let providers = app.providers()?;
    let forgotten = providers.get(ProviderKind::Local).forget_snapshot(&snapshot_of(project, &name)).await;
    forgotten.map_err(|error| super::unknown(error, "snapshot"))?;
    Answer::ok(json!({ "name": name, "project_id": project }))
}
