//! `/forges`: forges of the server, and the caller's logins at them. No response holds a token.

use crate::app::forges;
use crate::auth::access::ClientCaller;
use crate::extract::Id;
use crate::problem::Result;
use crate::state::App;
use atoll_api::{Forge, ForgeList, ForgeLoginProgress, StartedForgeLogin};
use atoll_core::forge::ForgeKind;
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// List the forges with the caller's logins.
#[utoipa::path(get, path = "/forges", tag = "forges", responses((status = 200, body = ForgeList)))]
pub async fn list_forges(State(app): State<Arc<App>>, client: ClientCaller) -> Result<Json<ForgeList>> {
    forges::list_forges(&app, client).await.map(Json)
}

/// Start a login at a forge.
///
/// The user confirms the code at the forge, while the client polls. A second start replaces the first.
#[utoipa::path(post, path = "/forges/{forge}/login", tag = "forges", params(("forge" = ForgeKind, Path)),
    responses((status = 200, body = StartedForgeLogin)))]
pub async fn start_login(
    State(app): State<Arc<App>>,
    client: ClientCaller,
    Id(forge): Id<ForgeKind>,
) -> Result<Json<StartedForgeLogin>> {
    forges::start_login(&app, client, forge).await.map(Json)
}

/// Check whether the user confirmed the code.
///
/// The server asks the forge at most once per interval.
#[utoipa::path(post, path = "/forges/{forge}/login/poll", tag = "forges", params(("forge" = ForgeKind, Path)),
    responses((status = 200, body = ForgeLoginProgress)))]
pub async fn poll_login(
    State(app): State<Arc<App>>,
    client: ClientCaller,
    Id(forge): Id<ForgeKind>,
) -> Result<Json<ForgeLoginProgress>> {
    forges::poll_login(&app, client, forge).await.map(Json)
}

/// Remove the caller's login.
///
/// The server forgets the tokens. The forge lists the authorization until the user revokes it there.
#[utoipa::path(delete, path = "/forges/{forge}/login", tag = "forges", params(("forge" = ForgeKind, Path)),
    responses((status = 200, body = Forge)))]
pub async fn remove_login(
    State(app): State<Arc<App>>,
    client: ClientCaller,
    Id(forge): Id<ForgeKind>,
) -> Result<Json<Forge>> {
    forges::remove_login(&app, client, forge).await.map(Json)
}
