//! `/sandboxes/monitoring`: what all agents do.

use crate::app::monitoring;
use crate::auth::access::CanList;
use crate::problem::Result;
use crate::state::App;
use atoll_api::MonitoringStatus;
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// Show what each live agent does, and how the agents fit together.
#[utoipa::path(get, path = "/sandboxes/monitoring/status", tag = "sandboxes",
    responses((status = 200, body = MonitoringStatus)))]
pub async fn read_monitoring_status(State(app): State<Arc<App>>, access: CanList) -> Result<Json<MonitoringStatus>> {
    monitoring::read_status(&app, access).await.map(Json)
}
