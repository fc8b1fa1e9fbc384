//! `/images`: imported roots, to begin sandboxes with.

use crate::auth::Caller;
use crate::extract::{Id, Params};
use crate::once::Answer;
use crate::problem::Result;
use crate::state::App;
use atoll_core::bounds;
use atoll_core::provider::{Error, ImageRef};
use atoll_core::sandbox::ProviderKind;
use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Images {
    items: Vec<ImageRef>,
}

/// The images of this machine.
#[utoipa::path(get, path = "/images", tag = "sandboxes", responses((status = 200, body = Images)))]
pub async fn list(State(app): State<Arc<App>>, caller: Caller) -> Result<Json<Images>> {
    caller.must_not_be_worker()?;
    Ok(Json(Images { items: app.providers()?.get(ProviderKind::Local).images().await? }))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ImportQuery {
    /// 1 to 64 of a-z, 0-9, `.`, `_` and `-`, beginning with a letter or digit.
    name: String,
}

/// Import a root: a tar of it, or what `docker save` or an OCI archive holds.
#[utoipa::path(post, path = "/images", tag = "sandboxes", params(ImportQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = ImageRef)))]
pub async fn import(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(query): Params<ImportQuery>,
    request: Request,
) -> Result<Answer> {
    caller.must_be_admin()?;
    bounds::stored_name("name", &query.name)?;
    let body: Body = request.into_body();
    let broken = |error: axum::Error| Error::Refused { detail: format!("the archive broke off: {error}") };
    let archive = Box::pin(body.into_data_stream().map(move |piece| piece.map_err(broken)));
    Answer::created(app.providers()?.get(ProviderKind::Local).import_image(&query.name, archive).await?)
}

/// Forget an image. One that a sandbox or a snapshot stands on stays.
#[utoipa::path(delete, path = "/images/{name}", tag = "sandboxes", params(("name" = String, Path)),
    responses((status = 200)))]
pub async fn remove(State(app): State<Arc<App>>, caller: Caller, Id(name): Id<String>) -> Result<Answer> {
    caller.must_be_admin()?;
    let providers = app.providers()?;
    providers.get(ProviderKind::Local).forget_image(&name).await.map_err(|error| super::unknown(error, "image"))?;
    Answer::ok(json!({ "name": name }))
}
