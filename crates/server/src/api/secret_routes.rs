//! `/secrets`: set, list, remove and reseal secrets. No response holds a value.

use crate::app::secrets;
use crate::auth::access::{Admin, CanList, ClientCaller};
use crate::extract::{Id, Params, parse_object, read_body, require_json};
use crate::idempotency::JsonResponse;
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_api::{KeyRotation, NewSecret, Page, RemoveSecretQuery, Secret, SecretListQuery};
use atoll_core::bounds;
use axum::Json;
use axum::extract::{Request, State};
use std::sync::Arc;

/// Parses the body. The error repeats nothing of it, because it could show the value.
async fn read_secret(request: Request) -> Result<NewSecret> {
    require_json(request.headers())?;
    let bytes = read_body(request, bounds::MAX_REQUEST_BYTES).await?;
    parse_object(&bytes).map_err(|_| {
        Problem::invalid(
            "the body must be {\"value\": TEXT, \"project_id\"?: ID, \"upstreams\"?: [HOST], \"expose\"?: VARIABLE, \
             \"expose_file\"?: PATH} without other fields; it is not repeated here",
        )
    })
}

/// Create or replace a secret.
///
/// Its value can be used and replaced, but never read again. The request is idempotent by itself, so it takes no
/// `Idempotency-Key`: the server stores nothing of it but the sealed value.
#[utoipa::path(put, path = "/secrets/{name}", tag = "secrets", params(("name" = String, Path, pattern = "^[A-Z_][A-Z0-9_]{0,63}$")),
    request_body = NewSecret,
    responses((status = 200, body = Secret, description = "Replaced"), (status = 201, body = Secret)))]
pub async fn put_secret(
    State(app): State<Arc<App>>,
    client: ClientCaller,
    Id(name): Id<String>,
    request: Request,
) -> Result<JsonResponse> {
    let new = read_secret(request).await?;
    secrets::submit_secret(&app, client, name, new).await
}

/// List the secrets of all visible projects and of the deployment.
#[utoipa::path(get, path = "/secrets", tag = "secrets", params(SecretListQuery),
    responses((status = 200, body = Page<Secret>)))]
pub async fn list_secrets(
    State(app): State<Arc<App>>,
    access: CanList,
    Params(query): Params<SecretListQuery>,
) -> Result<Json<Page<Secret>>> {
    secrets::list_secrets(&app, access, query).await.map(Json)
}

/// Remove a secret. Sandboxes keep its variable until they end; the worker removes its login file before the next prompt.
#[utoipa::path(delete, path = "/secrets/{name}", tag = "secrets", params(("name" = String, Path, pattern = "^[A-Z_][A-Z0-9_]{0,63}$"), RemoveSecretQuery),
    responses((status = 200, body = Secret)))]
pub async fn remove_secret(
    State(app): State<Arc<App>>,
    client: ClientCaller,
    Id(name): Id<String>,
    Params(query): Params<RemoveSecretQuery>,
) -> Result<Json<Secret>> {
    secrets::submit_removal(&app, client, name, query.project_id).await.map(Json)
}

/// Create a new key and seal every secret with it.
///
/// Older keys stay in the key file, for older backups. A key from the configuration is used as it is.
#[utoipa::path(post, path = "/secrets/rotate", tag = "secrets", responses((status = 200, body = KeyRotation)))]
pub async fn rotate_key(State(app): State<Arc<App>>, admin: Admin) -> Result<Json<KeyRotation>> {
    secrets::rotate_key(&app, admin).await.map(Json)
}
