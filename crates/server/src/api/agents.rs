//! `/agents`: who could do the work here.

use crate::agents::AgentView;
use crate::auth::Caller;
use crate::problem::{Problem, Result};
use crate::state::App;
use axum::Json;
use axum::extract::State;
use serde::Serialize;
use std::sync::Arc;

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct AgentList {
    items: Vec<AgentView>,
}

/// The agents that this server knows, whether each can work here, and what it lacks.
#[utoipa::path(get, path = "/agents", tag = "agents", responses((status = 200, body = AgentList)))]
pub async fn list(State(app): State<Arc<App>>, caller: Caller) -> Result<Json<AgentList>> {
    caller.must_not_be_worker()?;
    let (agents, with_paths) = (Arc::clone(&app.agents), caller.must_be_admin().is_ok());
    let items = tokio::task::spawn_blocking(move || agents.list(with_paths)).await.map_err(Problem::internal)?;
    Ok(Json(AgentList { items }))
}
