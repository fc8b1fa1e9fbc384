//! `POST /gc`: removes what retention says may go.

use crate::auth::Caller;
use crate::extract::Body;
use crate::problem::Result;
use crate::retention::{self, Swept};
use crate::state::App;
use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use std::sync::Arc;

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Gc {
    /// Only say what would go.
    #[serde(default)]
    dry_run: bool,
    /// Everything of ended sandboxes that retention could ever remove, whatever its age.
    #[serde(default)]
    all: bool,
}

/// Remove what retention says may go.
#[utoipa::path(post, path = "/gc", tag = "admin", request_body = Gc, responses((status = 200, body = Swept)))]
pub async fn run(State(app): State<Arc<App>>, caller: Caller, Body { value, .. }: Body<Gc>) -> Result<Json<Swept>> {
    caller.must_be_admin()?;
    Ok(Json(retention::sweep(&app, value.dry_run, value.all).await?))
}
