//! `/sandboxes/{id}/resources`: what a sandbox uses, seen from outside.

use crate::auth::{Caller, access};
use crate::extract::{Id, Params};
use crate::problem::{Code, Problem, Result};
use crate::samples::{self, Point, STEP};
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_core::principal::Action;
use atoll_core::sandbox::Resources;
use atoll_core::time::Timestamp;
use atoll_store::sandboxes;
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SeriesQuery {
    /// Only from then on; an hour is kept.
    since: Option<Timestamp>,
    /// How many seconds one point stands for.
    #[param(minimum = 10, maximum = 3600)]
    step: Option<u64>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Series {
    /// What it may use.
    limits: Option<Resources>,
    /// Absent when it does not run.
    now: Option<Point>,
    step_s: u64,
    items: Vec<Point>,
}

/// What a sandbox uses: processors, memory, disk, processes, network.
#[utoipa::path(get, path = "/sandboxes/{id}/resources", tag = "sandboxes",
    params(("id" = SandboxId, Path), SeriesQuery), responses((status = 200, body = Series)))]
pub async fn series(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Params(query): Params<SeriesQuery>,
) -> Result<Json<Series>> {
    let row = app.read(move |tx| {
        Box::pin(async move {
            access::sandbox(tx, &caller, id, Action::See).await?;
            sandboxes::get(tx, id).await?.ok_or_else(|| Problem::not_found("sandbox"))
        })
    });
    let row = row.await?;
    let step_s = query.step.unwrap_or(STEP.as_secs());
    if !(STEP.as_secs()..=3600).contains(&step_s) {
        return Err(Problem::new(Code::BadRequest, "step: a whole number of seconds from 10 to 3600"));
    }
    let now = match super::diff::at_provider(&row).filter(|_| row.state.is_live()) {
        Some((kind, place)) => Some(samples::now(&app, app.providers()?.get(kind), id, &place).await?),
        None => None,
    };
    let items = app.samples.series(id, query.since, Duration::from_secs(step_s));
    Ok(Json(Series { limits: row.settings.resources, now, step_s, items }))
}
