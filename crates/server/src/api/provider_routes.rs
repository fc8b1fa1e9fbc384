//! `/providers`: the providers of this server.

use crate::app::provider_list;
use crate::auth::access::ClientCaller;
use crate::problem::Result;
use crate::state::App;
use atoll_api::ProviderList;
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// List the providers, with their capabilities and limits.
#[utoipa::path(get, path = "/providers", tag = "providers", responses((status = 200, body = ProviderList)))]
pub async fn list_providers(State(app): State<Arc<App>>, client: ClientCaller) -> Result<Json<ProviderList>> {
    provider_list::list_providers(&app, client).await.map(Json)
}
