//! Snapshots of sandboxes, and imported images.

use super::pausing::require_not_paused;
use super::targets::find_target;
use crate::auth::access::{Admin, CanList, CanWork, ClientCaller};
use crate::keyed_locks::run_to_completion;
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_api::events::{EventData, SandboxSnapshot};
use atoll_api::{ImageList, Snapshot, SnapshotList};
use atoll_core::bounds;
use atoll_core::event::EventSource;
use atoll_core::id::{ProjectId, SandboxId};
use atoll_core::provider::{ByteStream, Error, ImageRef, SnapshotRef, provider_snapshot_name};
use atoll_store::sandboxes;
use std::sync::Arc;

/// A provider's "gone" means that the named thing does not exist.
pub(super) fn not_found(error: Error, kind: &str) -> Problem {
    match error {
        Error::Gone => Problem::not_found(kind),
        error => error.into(),
    }
}

/// The named project, else the default one, if the client may work in it.
pub(super) async fn working_project(app: &App, client: ClientCaller, named: Option<ProjectId>) -> Result<ProjectId> {
    Ok(CanWork::authorize(app, client.0, named.unwrap_or(app.default_project)).await?.project)
}

/// Stores a sandbox's current files under a name.
pub async fn create_snapshot(app: Arc<App>, access: CanWork<SandboxId>, name: String) -> Result<Option<Snapshot>> {
    bounds::check_snapshot_name("name", &name)?;
    run_to_completion(async move {
        let (id, actor) = (access.id, access.actor());
        let _lock = app.sandbox_locks.lock(id).await;
        let target = find_target(&app, &access).await?;
        require_not_paused(&target.row)?;
        let stored =
            target.provider.snapshot(&target.id, &provider_snapshot_name(target.row.project_id, &name)).await?;
        app.write(async move |work| {
            let (_, mut sandbox) = work.lock_sandbox(id).await?;
            let event = EventData::SandboxSnapshot(SandboxSnapshot { name }).into_event(work.now);
            work.log(&mut sandbox, vec![event.with_source(EventSource::User, Some(actor))]).await?;
            Ok(sandboxes::update_sandbox(work.tx, &mut sandbox).await?)
        })
        .await?;
        Ok(view_snapshot(stored))
    })
    .await
}

/// Splits the stored name into project and name.
fn view_snapshot(mut snapshot: SnapshotRef) -> Option<Snapshot> {
    let (project, name) = snapshot.name.split_once('.')?;
    let (project_id, name) = (project.parse().ok()?, name.to_owned());
    snapshot.name = name;
    Some(Snapshot { project_id, snapshot })
}

/// Lists the snapshots of the visible projects.
pub async fn list_snapshots(app: &App, access: CanList) -> Result<SnapshotList> {
    let stored = app.providers()?.image_store().snapshots().await?;
    let items = stored.into_iter().filter_map(view_snapshot);
    Ok(SnapshotList { items: items.filter(|snapshot| access.projects.contains(snapshot.project_id)).collect() })
}

/// Removes a snapshot. Sandboxes that started from it keep their files.
pub async fn remove_snapshot(
    app: &App,
    client: ClientCaller,
    name: &str,
    project: Option<ProjectId>,
) -> Result<ProjectId> {
    let project = working_project(app, client, project).await?;
    let removed = app.providers()?.image_store().forget_snapshot(&provider_snapshot_name(project, name)).await;
    removed.map(|()| project).map_err(|error| not_found(error, "snapshot"))
}

pub async fn list_images(app: &App, _: ClientCaller) -> Result<ImageList> {
    Ok(ImageList { items: app.providers()?.image_store().images().await? })
}

pub async fn import_image(app: &App, _: Admin, name: &str, archive: ByteStream) -> Result<ImageRef> {
    bounds::check_stored_name("name", name)?;
    Ok(app.providers()?.image_store().import_image(name, archive).await?)
}

/// Removes an image, unless a sandbox or a snapshot uses it.
pub async fn remove_image(app: &App, _: Admin, name: &str) -> Result<()> {
    let removed = app.providers()?.image_store().forget_image(name).await;
    removed.map_err(|error| not_found(error, "image"))
}
