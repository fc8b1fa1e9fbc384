//! `/gc`: removal of expired data.

use crate::auth::access::Admin;
use crate::extract::Body;
use crate::problem::Result;
use crate::retention;
use crate::state::App;
use atoll_api::{GcReport, GcRequest};
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// Remove data that retention has expired.
#[utoipa::path(post, path = "/gc", tag = "admin", request_body = GcRequest, responses((status = 200, body = GcReport)))]
pub async fn collect_garbage(
    State(app): State<Arc<App>>,
    _: Admin,
    Body { value, .. }: Body<GcRequest>,
) -> Result<Json<GcReport>> {
    retention::collect_garbage(&app, value.dry_run, value.all).await.map(Json)
}
