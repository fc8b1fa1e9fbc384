//! `/sandboxes/{id}/network`: a sandbox's network policy and traffic.

use crate::app::network;
use crate::auth::access::{CanSee, CanWork};
use crate::extract::Body;
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::Result;
use crate::state::App;
use atoll_api::NetworkStatus;
use atoll_core::id::SandboxId;
use atoll_core::sandbox::Network;
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// Show a sandbox's network policy and its traffic.
#[utoipa::path(get, path = "/sandboxes/{id}/network", tag = "sandboxes", params(("id" = SandboxId, Path)),
    responses((status = 200, body = NetworkStatus)))]
pub async fn read_network(State(app): State<Arc<App>>, access: CanSee<SandboxId>) -> Result<Json<NetworkStatus>> {
    network::read_network(&app, access).await.map(Json)
}

/// Change a sandbox's network policy.
///
/// It applies at once: the proxy closes connections that the new policy does not allow.
#[utoipa::path(put, path = "/sandboxes/{id}/network", tag = "sandboxes", params(("id" = SandboxId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = Network, responses((status = 200, body = NetworkStatus)))]
pub async fn change_network(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    key: IdempotencyKey,
    Body { value, hash }: Body<Network>,
) -> Result<JsonResponse> {
    network::submit_change(&app, access, key.with_body(hash), value).await
}
