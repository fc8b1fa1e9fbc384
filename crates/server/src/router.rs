//! The map of all routes and their handlers.

use crate::api::{
    agent_routes, approval_routes, blob_routes, branch_workflow_routes, cache_routes, command_routes, diff_routes,
    event_routes, file_routes, forge_routes, gc_routes, guardian_routes, health_routes, image_routes, limit_routes,
    message_routes, monitoring_routes, network_routes, preview_routes, project_routes, provider_routes, sandbox_routes,
    secret_routes, session_routes, sign_in_routes, snapshot_routes, task_routes, ticket_routes, token_routes,
    user_routes, webhook_routes, worker_routes, worktree_routes,
};
use crate::guard::{self, Hosts};
use crate::live::{event_socket, sse, terminal_socket, worker_socket as worker_stream};
use crate::metrics::record_seconds;
use crate::page::Page;
use crate::problem::{Code, Problem};
use crate::state::App;
use crate::telemetry::trace_request;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use std::sync::Arc;
use std::time::Instant;
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Routes under `/api/v1`.
fn api_routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(health_routes::sandboxes_health))
        .routes(routes!(monitoring_routes::read_monitoring_status))
        .routes(routes!(sandbox_routes::create_sandbox, sandbox_routes::list_sandboxes))
        .routes(routes!(sandbox_routes::preview_sandbox))
        .routes(routes!(sandbox_routes::read_sandbox, sandbox_routes::remove_sandbox))
        .routes(routes!(sandbox_routes::stop_sandbox))
        .routes(routes!(sandbox_routes::export_results))
        .routes(routes!(sandbox_routes::pause_sandbox))
        .routes(routes!(sandbox_routes::resume_sandbox))
        .routes(routes!(sandbox_routes::fork_sandbox))
        .routes(routes!(snapshot_routes::create_snapshot))
        .routes(routes!(sandbox_routes::read_resources))
        .routes(routes!(sandbox_routes::replace_worker_token))
        .routes(routes!(command_routes::start_command, command_routes::list_commands))
        .routes(routes!(command_routes::attach_command, command_routes::kill_command))
        .routes(routes!(command_routes::signal_command))
        .routes(routes!(command_routes::resize_terminal))
        .routes(routes!(command_routes::write_command_input))
        .routes(routes!(terminal_socket::open_terminal))
        .routes(routes!(
            file_routes::content::download_file,
            file_routes::content::upload_file,
            file_routes::delete_file
        ))
        .routes(routes!(file_routes::list_directory))
        .routes(routes!(file_routes::stat_file))
        .routes(routes!(file_routes::move_file))
        .routes(routes!(file_routes::create_directory))
        .routes(routes!(file_routes::tree::download_tar, file_routes::tree::upload_tar))
        .routes(routes!(approval_routes::list_pending_approvals))
        .routes(routes!(approval_routes::list_approvals))
        .routes(routes!(approval_routes::answer_approval))
        .routes(routes!(diff_routes::read_diff))
        .routes(routes!(worktree_routes::receive_worktree))
        .routes(routes!(worktree_routes::send_worktree))
        .routes(routes!(preview_routes::list_ports))
        .routes(routes!(preview_routes::create_preview, preview_routes::list_previews))
        .routes(routes!(preview_routes::revoke_preview))
        .routes(routes!(network_routes::read_network, network_routes::change_network))
        .routes(routes!(limit_routes::read_limits, limit_routes::change_limits))
        .routes(routes!(guardian_routes::list_sandbox_interventions))
        .routes(routes!(guardian_routes::read_guardian))
        .routes(routes!(guardian_routes::replay_guardian))
        .routes(routes!(guardian_routes::list_interventions))
        .routes(routes!(guardian_routes::read_intervention))
        .routes(routes!(worker_routes::submit_events, event_routes::list_events))
        .routes(routes!(sse::stream_events))
        .routes(routes!(event_routes::read_trajectory))
        .routes(routes!(event_routes::export_transcript))
        .routes(routes!(event_routes::export_log))
        .routes(routes!(worker_routes::submit_heartbeat))
        .routes(routes!(worker_stream::open_worker_socket))
        .routes(routes!(message_routes::send_message, message_routes::list_messages))
        .routes(routes!(message_routes::edit_message, message_routes::cancel_message))
        .routes(routes!(worker_routes::lease_messages))
        .routes(routes!(worker_routes::acknowledge_message))
        .routes(routes!(worker_routes::reject_message))
        .routes(routes!(worker_routes::fetch_logins))
        .routes(routes!(blob_routes::upload_blob, blob_routes::download_blob))
        .routes(routes!(event_socket::open_event_socket))
        .routes(routes!(session_routes::list_sessions))
        .routes(routes!(session_routes::read_session, session_routes::change_session))
        .routes(routes!(session_routes::resume_session))
        .routes(routes!(session_routes::fork_session))
        .routes(routes!(message_routes::send_session_message, message_routes::list_session_messages))
        .routes(routes!(message_routes::edit_session_message, message_routes::cancel_session_message))
        .routes(routes!(agent_routes::list_agents))
        .routes(routes!(provider_routes::list_providers))
        .routes(routes!(ticket_routes::create_ticket, ticket_routes::list_tickets))
        .routes(routes!(ticket_routes::read_ticket, ticket_routes::change_ticket, ticket_routes::remove_ticket))
        .routes(routes!(task_routes::create_task, task_routes::list_tasks))
        .routes(routes!(task_routes::change_tasks))
        .routes(routes!(task_routes::read_task, task_routes::change_task))
        .routes(routes!(task_routes::cancel_task))
        .routes(routes!(task_routes::retry_task))
        .routes(routes!(task_routes::read_sandbox_task))
        .routes(routes!(task_routes::report_completion))
        .routes(routes!(task_routes::record_validation))
        .routes(routes!(branch_workflow_routes::start_branch_workflow))
        .routes(routes!(branch_workflow_routes::finish_branch_workflow))
        .routes(routes!(branch_workflow_routes::merge_branch_workflow))
        .routes(routes!(branch_workflow_routes::read_branch_workflow))
        .routes(routes!(branch_workflow_routes::list_pull_requests))
        .routes(routes!(branch_workflow_routes::read_pull_request))
        .routes(routes!(project_routes::create_project, project_routes::list_projects))
        .routes(routes!(project_routes::read_project, project_routes::change_project, project_routes::remove_project))
        .routes(routes!(project_routes::list_members))
        .routes(routes!(project_routes::set_member, project_routes::remove_member))
        .routes(routes!(user_routes::create_user, user_routes::list_users))
        .routes(routes!(user_routes::read_user, user_routes::change_user, user_routes::remove_user))
        .routes(routes!(token_routes::create_token, token_routes::list_tokens))
        .routes(routes!(token_routes::remove_token))
        .routes(routes!(token_routes::issue_ticket))
        .routes(routes!(sign_in_routes::start_sign_in, sign_in_routes::list_sign_ins))
        .routes(routes!(sign_in_routes::end_sign_in))
        .routes(routes!(sign_in_routes::issue_link))
        .routes(routes!(sign_in_routes::read_me))
        .routes(routes!(snapshot_routes::list_snapshots))
        .routes(routes!(snapshot_routes::remove_snapshot))
        .routes(routes!(cache_routes::list_caches))
        .routes(routes!(cache_routes::remove_cache))
        .routes(routes!(cache_routes::prune_caches))
        .routes(routes!(image_routes::list_images, image_routes::import_image))
        .routes(routes!(image_routes::remove_image))
        .routes(routes!(secret_routes::list_secrets))
        .routes(routes!(secret_routes::rotate_key))
        .routes(routes!(secret_routes::put_secret, secret_routes::remove_secret))
        .routes(routes!(forge_routes::list_forges))
        .routes(routes!(forge_routes::start_login, forge_routes::remove_login))
        .routes(routes!(forge_routes::poll_login))
        .routes(routes!(gc_routes::collect_garbage))
        .routes(routes!(webhook_routes::receive_github_webhook))
}

/// Routes at the root.
fn root_routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(health_routes::healthz))
        .routes(routes!(health_routes::readyz))
        .routes(routes!(health_routes::metrics))
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

/// Serves the page's files and routes; everything else is not found.
async fn serve_page(State((app, page)): State<(Arc<App>, Arc<Page>)>, request: Request) -> Response {
    let page = page.respond(request.method(), request.uri().path(), request.headers(), &app.preview_hosts);
    page.unwrap_or_else(|| Problem::not_found("path").into_response())
}

pub fn build_router(app: Arc<App>, hosts: Hosts, page: Page) -> Router {
    let (router, document) = documented_router();
    let text: Arc<str> = document.to_json().unwrap_or_default().into();
    router
        .route(
            "/api/v1/openapi.json",
            get(move || async move { ([(header::CONTENT_TYPE, "application/json")], text.to_string()) }),
        )
        .route("/docs/errors/{code}", get(health_routes::error_page))
        .fallback_service(any(serve_page).with_state((Arc::clone(&app), Arc::new(page))))
        .method_not_allowed_fallback(|| async {
            Problem::new(Code::MethodNotAllowed, "see /api/v1/openapi.json for the supported methods")
        })
        .with_state(Arc::clone(&app))
        .layer(tower_http::decompression::RequestDecompressionLayer::new())
        .layer(middleware::map_response(explain_encoding))
        .layer(middleware::from_fn_with_state((Arc::clone(&app), Arc::new(hosts)), guard::check_host_and_origin))
        .layer(middleware::from_fn_with_state(app, trace_request))
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
    record_seconds(crate::metrics::REQUEST_SECONDS, &[], began.elapsed());
    response
}
