//! The map of all routes and their handlers.

use crate::api::{
    agents, approvals, blobs, commands, diff, events, files, gc, health, images, limits, messages, network, projects,
    sandboxes, secrets, sessions, snapshots, tokens, users, worker,
};
use crate::guard::{self, Hosts};
use crate::live::{event_socket, sse, terminal_socket, worker_socket as worker_stream};
use crate::problem::{Code, Problem};
use crate::state::App;
use axum::Router;
use axum::extract::Request;
use axum::http::Method;
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::sync::Arc;
use std::time::Instant;
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Routes under `/api/v1`.
fn api_routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(health::sandboxes_health))
        .routes(routes!(sandboxes::create_sandbox, sandboxes::list_sandboxes))
        .routes(routes!(sandboxes::read_sandbox, sandboxes::remove_sandbox))
        .routes(routes!(sandboxes::stop_sandbox))
        .routes(routes!(sandboxes::export_results))
        .routes(routes!(sandboxes::pause_sandbox))
        .routes(routes!(sandboxes::resume_sandbox))
        .routes(routes!(sandboxes::fork_sandbox))
        .routes(routes!(snapshots::create_snapshot))
        .routes(routes!(sandboxes::read_resources))
        .routes(routes!(sandboxes::replace_worker_token))
        .routes(routes!(commands::start_command, commands::list_commands))
        .routes(routes!(commands::attach_command, commands::kill_command))
        .routes(routes!(commands::signal_command))
        .routes(routes!(commands::resize_terminal))
        .routes(routes!(commands::write_command_input))
        .routes(routes!(terminal_socket::open_terminal))
        .routes(routes!(files::content::download_file, files::content::upload_file, files::delete_file))
        .routes(routes!(files::list_directory))
        .routes(routes!(files::stat_file))
        .routes(routes!(files::move_file))
        .routes(routes!(files::create_directory))
        .routes(routes!(files::tree::download_tar, files::tree::upload_tar))
        .routes(routes!(approvals::list_pending_approvals))
        .routes(routes!(approvals::list_approvals))
        .routes(routes!(approvals::answer_approval))
        .routes(routes!(diff::read_diff))
        .routes(routes!(network::read_network, network::change_network))
        .routes(routes!(limits::read_limits, limits::change_limits))
        .routes(routes!(worker::submit_events, events::list_events))
        .routes(routes!(sse::stream_events))
        .routes(routes!(events::read_trajectory))
        .routes(routes!(events::export_transcript))
        .routes(routes!(worker::submit_heartbeat))
        .routes(routes!(worker_stream::open_worker_socket))
        .routes(routes!(messages::send_message, messages::list_messages))
        .routes(routes!(messages::edit_message, messages::cancel_message))
        .routes(routes!(worker::lease_messages))
        .routes(routes!(worker::acknowledge_message))
        .routes(routes!(worker::reject_message))
        .routes(routes!(worker::fetch_logins))
        .routes(routes!(blobs::upload_blob, blobs::download_blob))
        .routes(routes!(event_socket::open_event_socket))
        .routes(routes!(sessions::list_sessions))
        .routes(routes!(sessions::read_session, sessions::change_session))
        .routes(routes!(sessions::resume_session))
        .routes(routes!(sessions::fork_session))
        .routes(routes!(messages::send_session_message, messages::list_session_messages))
        .routes(routes!(messages::edit_session_message, messages::cancel_session_message))
        .routes(routes!(agents::list_agents))
        .routes(routes!(projects::create_project, projects::list_projects))
        .routes(routes!(projects::read_project, projects::change_project, projects::remove_project))
        .routes(routes!(projects::list_members))
        .routes(routes!(projects::set_member, projects::remove_member))
        .routes(routes!(users::create_user, users::list_users))
        .routes(routes!(users::read_user, users::change_user, users::remove_user))
        .routes(routes!(tokens::create_token, tokens::list_tokens))
        .routes(routes!(tokens::remove_token))
        .routes(routes!(tokens::issue_ticket))
        .routes(routes!(snapshots::list_snapshots))
        .routes(routes!(snapshots::remove_snapshot))
        .routes(routes!(images::list_images, images::import_image))
        .routes(routes!(images::remove_image))
        .routes(routes!(secrets::list_secrets))
        .routes(routes!(secrets::rotate_key))
        .routes(routes!(secrets::put_secret, secrets::remove_secret))
        .routes(routes!(gc::collect_garbage))
}

/// Routes at the root.
fn root_routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::metrics))
}

fn documented_router() -> (Router<Arc<App>>, OpenApi) {
    let (router, mut document) =
        OpenApiRouter::new().merge(root_routes()).nest("/api/v1", api_routes()).split_for_parts();
    document.info.title = "Atoll".into();
    document.info.version = env!("CARGO_PKG_VERSION").into();
    document.info.description = Some("Run coding agents in sandboxes you own.".into());
    document.info.license = Some(utoipa::openapi::LicenseBuilder::new().name("Apache-2.0").build());
    let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    document.components.get_or_insert_default().add_security_scheme("token", scheme);
    document.security = Some(vec![SecurityRequirement::new("token", Vec::<String>::new())]);
    crate::openapi::add_problems(&mut document);
    atoll_api::events::add_event_schemas(&mut document);
    crate::openapi::widen_unsigned(&mut document);
    (router, document)
}

/// The OpenAPI document, generated from the handlers.
pub fn openapi_document() -> OpenApi {
    documented_router().1
}

pub fn build_router(app: Arc<App>, hosts: Hosts) -> Router {
    let (router, document) = documented_router();
    let text: Arc<str> = document.to_json().unwrap_or_default().into();
    router
        .route(
            "/api/v1/openapi.json",
            get(move || async move { ([(header::CONTENT_TYPE, "application/json")], text.to_string()) }),
        )
        .route("/docs/errors/{code}", get(health::error_page))
        .fallback(|| async { Problem::not_found("path") })
        .method_not_allowed_fallback(|| async {
            Problem::new(Code::MethodNotAllowed, "see /api/v1/openapi.json for the supported methods")
        })
        .with_state(app)
        .layer(tower_http::decompression::RequestDecompressionLayer::new())
        .layer(middleware::map_response(explain_encoding))
        .layer(middleware::from_fn_with_state(Arc::new(hosts), guard::check_host_and_origin))
        .layer(middleware::from_fn(record_metrics))
}

/// Adds a problem document to the decompression layer's bare 415 response.
async fn explain_encoding(response: Response) -> Response {
    let silent = !response.headers().contains_key(header::CONTENT_TYPE);
    if silent && response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE {
        return Problem::new(Code::UnsupportedMediaType, "send the body unencoded, or with `Content-Encoding: gzip`")
            .into_response();
    }
    response
}

/// Maps unknown methods to "other", so that metric labels stay bounded.
fn known_method(method: &Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    KNOWN.into_iter().find(|known| method.as_str() == *known).unwrap_or("other")
}

/// Counts and times every request.
async fn record_metrics(request: Request, next: Next) -> Response {
    let method = known_method(request.method());
    let began = Instant::now();
    let response = next.run(request).await;
    let class = format!("{}xx", response.status().as_u16() / 100);
    metrics::counter!(crate::metrics::REQUESTS, "method" => method, "status" => class).increment(1);
    metrics::histogram!(crate::metrics::REQUEST_SECONDS).record(began.elapsed().as_secs_f64());
    response
}
