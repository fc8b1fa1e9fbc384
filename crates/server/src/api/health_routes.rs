//! Health checks, metrics and the documentation of error codes.

use crate::app::health;
use crate::auth::access::ClientCaller;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::{Health, StoreHealth};
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::{Json, http::StatusCode};
use std::sync::Arc;

/// Check that the process is up.
#[utoipa::path(get, path = "/healthz", tag = "health", security(()), responses((status = 200, body = Health)))]
pub async fn healthz() -> Json<Health> {
    Json(Health { status: "ok".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() })
}

/// Check that the database answers, so that requests can be served.
#[utoipa::path(get, path = "/readyz", tag = "health", security(()),
    responses((status = 200, body = StoreHealth), (status = 503, body = StoreHealth)))]
pub async fn readyz(State(app): State<Arc<App>>) -> Response {
    if health::is_ready(&app).await {
        return Json(store_health("ready", &app)).into_response();
    }
    let health = StoreHealth { status: "not_ready".to_owned(), store: None };
    (StatusCode::SERVICE_UNAVAILABLE, Json(health)).into_response()
}

/// Check that sandboxes can be created and read.
#[utoipa::path(get, path = "/sandboxes/health", tag = "health", responses((status = 200, body = StoreHealth)))]
pub async fn sandboxes_health(State(app): State<Arc<App>>, _: ClientCaller) -> Result<Json<StoreHealth>> {
    health::check_store(&app).await?;
    Ok(Json(store_health("healthy", &app)))
}

fn store_health(status: &str, app: &App) -> StoreHealth {
    StoreHealth { status: status.to_owned(), store: Some(app.store.database_kind().to_owned()) }
}

/// Show metrics for Prometheus. Requires a token unless `metrics.public` is set.
#[utoipa::path(get, path = "/metrics", tag = "health", responses((status = 200, content_type = "text/plain", body = String)))]
pub async fn metrics(State(app): State<Arc<App>>, request: Request) -> Result<Response> {
    if !app.config.metrics.public {
        let (mut parts, _) = request.into_parts();
        ClientCaller::from_request_parts(&mut parts, &app).await?;
    }
    health::update_gauges(&app).await?;
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Ok((kind, app.metrics.render()).into_response())
}

/// Show the documentation of an error code.
pub async fn error_page(code: Result<Path<String>, PathRejection>) -> Result<Response> {
    let found = Code::ALL.iter().find(|known| code.as_ref().is_ok_and(|Path(code)| known.as_str() == code));
    let page = found.ok_or_else(|| Problem::not_found("error code"))?.page();
    Ok(([(header::CONTENT_TYPE, "text/markdown; charset=utf-8")], page).into_response())
}
