//! `/agents`: who could do the work here.

use crate::agents::AgentView;
use crate::auth::Caller;
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_core::sandbox::Settings;
use axum::Json;
use axum::extract::State;
use serde::Serialize;
use std::sync::Arc;

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct AgentList {
    items: Vec<AgentView>,
}

/// The agents that this server knows, whether each can work here, and what it lacks.
///
/// Keys are those of the default project.
#[utoipa::path(get, path = "/agents", tag = "agents", responses((status = 200, body = AgentList)))]
pub async fn list(State(app): State<Arc<App>>, caller: Caller) -> Result<Json<AgentList>> {
    caller.must_not_be_worker()?;
    let (agents, project) = (Arc::clone(&app.agents), app.default_project);
    let keys =
        app.read(move |tx| Box::pin(async move { agents.keys(tx, project, &Settings::default()).await })).await?;
    let (agents, with_paths) = (Arc::clone(&app.agents), caller.must_be_admin().is_ok());
    let items = tokio::task::spawn_blocking(move || agents.list(&keys, with_paths)).await;
    let items = items.map_err(Problem::internal)?;
    Ok(Json(AgentList { items }))
}
