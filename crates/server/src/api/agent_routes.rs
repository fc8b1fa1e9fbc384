//! `/agents`: the agents of this server.

use crate::agents;
use crate::auth::access::ClientCaller;
use crate::problem::Result;
use crate::state::App;
use atoll_api::AgentList;
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// List the agents that this server knows, and what each needs to run here.
///
/// Model keys are those of the default project.
#[utoipa::path(get, path = "/agents", tag = "agents", responses((status = 200, body = AgentList)))]
pub async fn list_agents(State(app): State<Arc<App>>, client: ClientCaller) -> Result<Json<AgentList>> {
    agents::list_agents(&app, client).await.map(Json)
}
