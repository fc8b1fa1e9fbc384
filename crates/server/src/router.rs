//! The map: every route and the file that handles it.

use crate::api::{
    agents, approvals, blobs, commands, diff, events, exec, files, fork, gc, health, images, limits, messages, network,
    pause, projects, resources, results, sandboxes, secrets, sessions, snapshots, tokens, trajectory, transcript,
    users, worker,
};
use crate::guard::{self, Hosts};
use crate::live::{client, sse, terminal, worker as worker_stream};
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

/// Everything under `/api/v1`.
fn api() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(health::sandboxes_health))
        .routes(routes!(sandboxes::make, sandboxes::list))
        .routes(routes!(sandboxes::get, sandboxes::remove))
        .routes(routes!(sandboxes::stop))
        .routes(routes!(results::take))
        .routes(routes!(pause::pause))
        .routes(routes!(pause::resume))
        .routes(routes!(fork::fork))
        .routes(routes!(snapshots::make))
        .routes(routes!(resources::series))
        .routes(routes!(sandboxes::worker_token))
        .routes(routes!(exec::start, commands::list))
        .routes(routes!(exec::attach, commands::end))
        .routes(routes!(commands::signal))
        .routes(routes!(commands::resize))
        .routes(routes!(commands::write))
        .routes(routes!(terminal::open))
        .routes(routes!(files::content::get, files::content::write, files::delete))
        .routes(routes!(files::list))
        .routes(routes!(files::stat))
        .routes(routes!(files::rename))
        .routes(routes!(files::make_directory))
        .routes(routes!(files::tree::get, files::tree::put))
        .routes(routes!(approvals::waiting))
        .routes(routes!(approvals::list))
        .routes(routes!(approvals::answer))
        .routes(routes!(diff::get))
        .routes(routes!(network::get, network::change))
        .routes(routes!(limits::get, limits::change))
        .routes(routes!(worker::events, events::list))
        .routes(routes!(sse::stream))
        .routes(routes!(trajectory::get))
        .routes(routes!(transcript::get))
        .routes(routes!(worker::beat))
        .routes(routes!(worker_stream::open))
        .routes(routes!(messages::send, messages::list))
        .routes(routes!(messages::edit, messages::cancel))
        .routes(routes!(worker::lease))
        .routes(routes!(worker::ack))
        .routes(routes!(worker::nack))
        .routes(routes!(worker::logins))
        .routes(routes!(blobs::put, blobs::get))
        .routes(routes!(client::open))
        .routes(routes!(sessions::list))
        .routes(routes!(sessions::get, sessions::change))
        .routes(routes!(sessions::resume))
        .routes(routes!(sessions::fork))
        .routes(routes!(messages::send_to_session, messages::list_of_session))
        .routes(routes!(messages::edit_of_session, messages::cancel_of_session))
        .routes(routes!(agents::list))
        .routes(routes!(projects::make, projects::list))
        .routes(routes!(projects::get, projects::change, projects::remove))
        .routes(routes!(projects::members))
        .routes(routes!(projects::set_member, projects::remove_member))
        .routes(routes!(users::make, users::list))
        .routes(routes!(users::get, users::change, users::remove))
        .routes(routes!(tokens::make, tokens::list))
        .routes(routes!(tokens::remove))
        .routes(routes!(tokens::ticket))
        .routes(routes!(snapshots::list))
        .routes(routes!(snapshots::remove))
        .routes(routes!(images::list, images::import))
        .routes(routes!(images::remove))
        .routes(routes!(secrets::list))
        .routes(routes!(secrets::rotate))
        .routes(routes!(secrets::put, secrets::remove))
        .routes(routes!(gc::run))
}

/// What stands at the root.
fn root() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::metrics))
}

fn documented() -> (Router<Arc<App>>, OpenApi) {
    let (router, mut document) = OpenApiRouter::new().merge(root()).nest("/api/v1", api()).split_for_parts();
    document.info.title = "Atoll".into();
    document.info.version = env!("CARGO_PKG_VERSION").into();
    document.info.description = Some("Run coding agents in sandboxes you own.".into());
    document.info.license = Some(utoipa::openapi::LicenseBuilder::new().name("Apache-2.0").build());
    let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    document.components.get_or_insert_default().add_security_scheme("token", scheme);
    document.security = Some(vec![SecurityRequirement::new("token", Vec::<String>::new())]);
    crate::openapi::add_problems(&mut document);
    crate::openapi::widen_unsigned(&mut document);
    (router, document)
}

/// The OpenAPI document, made from the handlers themselves.
pub fn openapi() -> OpenApi {
    documented().1
}

pub fn build(app: Arc<App>, hosts: Hosts) -> Router {
    let (router, document) = documented();
    let text: Arc<str> = document.to_json().unwrap_or_default().into();
    router
        .route(
            "/api/v1/openapi.json",
            get(move || async move { ([(header::CONTENT_TYPE, "application/json")], text.to_string()) }),
        )
        .route("/docs/errors/{code}", get(health::error_page))
        .fallback(|| async { Problem::not_found("path") })
        .method_not_allowed_fallback(|| async {
            Problem::new(Code::MethodNotAllowed, "the OpenAPI document at /api/v1/openapi.json lists what there is")
        })
        .with_state(app)
        .layer(tower_http::decompression::RequestDecompressionLayer::new())
        .layer(middleware::map_response(name_the_encoding))
        .layer(middleware::from_fn_with_state(Arc::new(hosts), guard::guard))
        .layer(middleware::from_fn(observe))
}

/// The layer below refuses a body in an encoding that it doesn't know, without a word.
async fn name_the_encoding(response: Response) -> Response {
    let silent = !response.headers().contains_key(header::CONTENT_TYPE);
    if silent && response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE {
        return Problem::new(Code::UnsupportedMediaType, "send the body as it is, or with `Content-Encoding: gzip`")
            .into_response();
    }
    response
}

/// A client can make up methods; metrics have a bounded number of labels.
fn known_method(method: &Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    KNOWN.into_iter().find(|known| method.as_str() == *known).unwrap_or("other")
}

/// Counts and times every request.
async fn observe(request: Request, next: Next) -> Response {
    let method = known_method(request.method());
    let began = Instant::now();
    let response = next.run(request).await;
    let class = format!("{}xx", response.status().as_u16() / 100);
    metrics::counter!(crate::metrics::REQUESTS, "method" => method, "status" => class).increment(1);
    metrics::histogram!(crate::metrics::REQUEST_SECONDS).record(began.elapsed().as_secs_f64());
    response
}
