//! Up, ready, figures, and the pages that explain errors.

use crate::auth::Caller;
use crate::metrics as names;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::sandbox::SandboxState;
use atoll_store::{meta, sandboxes};
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::{Json, http::StatusCode};
use serde_json::json;
use std::sync::Arc;

/// The process is up.
#[utoipa::path(get, path = "/healthz", tag = "health", security(()), responses((status = 200)))]
pub async fn healthz() -> Json<serde_json::Value> {
    Json(json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") }))
}

/// The store answers, so requests can be served.
#[utoipa::path(get, path = "/readyz", tag = "health", security(()), responses((status = 200), (status = 503)))]
pub async fn readyz(State(app): State<Arc<App>>) -> Response {
    let asked = app.read(|tx| Box::pin(async move { Ok(meta::get(tx, "deployment").await?) }));
    let ready = matches!(tokio::time::timeout(std::time::Duration::from_secs(3), asked).await, Ok(Ok(Some(_))));
    if ready && !*app.stopping.borrow() {
        return Json(json!({ "status": "ready", "store": app.store.kind() })).into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": "not_ready" }))).into_response()
}

/// Sandboxes can be made and read.
#[utoipa::path(get, path = "/sandboxes/health", tag = "health", responses((status = 200)))]
pub async fn sandboxes_health(State(app): State<Arc<App>>, caller: Caller) -> Result<Json<serde_json::Value>> {
    caller.must_not_be_worker()?;
    app.read(|tx| Box::pin(async move { Ok(meta::get(tx, "deployment").await?) })).await?;
    Ok(Json(json!({ "status": "healthy", "store": app.store.kind() })))
}

/// Figures for Prometheus; with a token unless `metrics.public`.
#[utoipa::path(get, path = "/metrics", tag = "health", responses((status = 200, content_type = "text/plain", body = String)))]
pub async fn metrics(State(app): State<Arc<App>>, request: Request) -> Result<Response> {
    if !app.metrics_public {
        let (mut parts, _) = request.into_parts();
        Caller::from_request_parts(&mut parts, &app).await?.must_not_be_worker()?;
    }
    let counts = app.read(|tx| Box::pin(async move { Ok(sandboxes::count_by_state(tx).await?) })).await?;
    for state in SandboxState::ALL {
        let count = counts.iter().find(|(found, _)| found == state).map_or(0, |(_, count)| *count);
        #[allow(clippy::cast_precision_loss, reason = "a number of sandboxes")]
        metrics::gauge!(names::SANDBOXES, "state" => state.as_str()).set(count as f64);
    }
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Ok((kind, app.metrics.render()).into_response())
}

/// The page of an error code.
pub async fn error_page(code: Result<Path<String>, PathRejection>) -> Result<Response> {
    let found = Code::ALL.iter().find(|known| code.as_ref().is_ok_and(|Path(code)| known.as_str() == code));
    let page = found.ok_or_else(|| Problem::not_found("error code"))?.page();
    Ok(([(header::CONTENT_TYPE, "text/markdown; charset=utf-8")], page).into_response())
}
