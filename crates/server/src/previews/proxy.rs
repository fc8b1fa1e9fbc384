//! Forwards requests and WebSockets to a port of a sandbox.

use super::headers::{confine_response, prepare_request};
use super::refusal::PreviewRefusal;
use crate::app::previews::{OpenPreview, find_preview, list_ports_of};
use crate::auth;
use crate::egress::hop_headers::requested_upgrade;
use crate::live::RECHECK_INTERVAL;
use crate::shares::SharePermit;
use crate::state::App;
use crate::uses::UseGuard;
use atoll_core::id::SandboxId;
use axum::body::Body;
use axum::extract::Request;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderValue, Method, StatusCode, Uri, Version};
use axum::response::{IntoResponse, Response};
use hyper::client::conn::http1 as client;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the head of a response: development servers compile on the first request.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(300);
/// Longest head of a response.
const MAX_HEAD_BYTES: usize = 256 << 10;
const MAX_HEADERS: usize = 256;

/// Serves a request to the preview with this token. `authority` is the request's host and port.
pub async fn serve_preview(app: Arc<App>, token: String, authority: String, request: Request) -> Response {
    match forward_request(app, &token, &authority, request).await {
        Ok(response) => response,
        Err(refusal) => refusal.into_response(),
    }
}

/// The right to one stream of a preview. It ends with the preview.
struct PreviewStream {
    app: Arc<App>,
    token: String,
    rights: watch::Receiver<()>,
    _permit: SharePermit<SandboxId>,
    _in_use: UseGuard,
}

impl PreviewStream {
    /// Waits until the preview expires, is revoked or is stale, its creator loses access, or the server stops.
    async fn wait_until_ended(&mut self) {
        let mut stopping = self.app.stopping.clone();
        loop {
            let until = match find_preview(&self.app, &self.token).await {
                Ok(preview) => preview.remaining(&self.app).min(RECHECK_INTERVAL),
                Err(refusal) if refusal.is_final() => return,
                Err(_) => RECHECK_INTERVAL,
            };
            tokio::select! {
                () = sleep(until) => {}
                _ = self.rights.changed() => {}
                _ = stopping.wait_for(|stop| *stop) => return,
            }
        }
    }
}

async fn forward_request(
    app: Arc<App>,
    token: &str,
    authority: &str,
    mut request: Request,
) -> Result<Response, PreviewRefusal> {
    // Before the first check, so that no later change is missed.
    let rights = app.tokens.subscribe();
    let preview = find_preview(&app, token).await?;
    let (mut parts, body) = request.into_parts();
    auth::identify_connection(&parts, &preview.caller)?;
    if [Method::CONNECT, Method::TRACE].contains(&parts.method) {
        return Err(PreviewRefusal::Unsupported);
    }
    let permit = app.preview_streams.acquire(preview.sandbox()).map_err(|_| PreviewRefusal::TooManyRequests)?;
    let in_use = app.uses.begin(preview.sandbox());
    let stream =
        PreviewStream { app: Arc::clone(&app), token: token.to_owned(), rights, _permit: permit, _in_use: in_use };
    let connection = connect_port(&app, &preview).await?;
    let port = preview.port();

    let host = authority.split(':').next().unwrap_or_default();
    let origin = format!("{}://{authority}", app.preview_hosts.scheme_of(host));
    let upgrade = requested_upgrade(&parts.headers);
    let client_side = upgrade.is_some().then(|| parts.extensions.remove::<OnUpgrade>()).flatten();
    prepare_request(&mut parts.headers, &origin, port, upgrade.as_ref());
    let path = parts.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    parts.uri = Uri::from(path);
    parts.version = Version::HTTP_11;
    parts.extensions.clear();
    request = Request::from_parts(parts, body);

    let bad_response = |error: hyper::Error| {
        tracing::debug!(sandbox = %preview.sandbox(), port, %error, "a preview failed");
        PreviewRefusal::BadResponse { port }
    };
    let mut response =
        send_request(connection, request, stream, client_side).await.map_err(|failure| match failure {
            SendFailure::Http(error) => bad_response(error),
            SendFailure::Timeout => PreviewRefusal::NoResponse { port },
        })?;
    let kept = upgrade.filter(|_| response.status() == StatusCode::SWITCHING_PROTOCOLS);
    confine_response(response.headers_mut(), &origin, port, kept.as_ref());
    Ok(response)
}

/// Connects to the port through the sandbox's worker.
async fn connect_port(app: &App, preview: &OpenPreview) -> Result<TcpStream, PreviewRefusal> {
    let port = preview.port();
    let connecting = preview.target.provider.connect_port(&preview.target.id, port);
    let connected = timeout(CONNECT_TIMEOUT, connecting).await.map_err(|_| PreviewRefusal::NoResponse { port })?;
    let stream = match connected {
        Ok(Some(stream)) => stream,
        Ok(None) => {
            return Err(PreviewRefusal::PortClosed { port, open: list_ports_of(app, &preview.target.row).await? });
        }
        Err(error) => return Err(crate::problem::Problem::from(error).into()),
    };
    TcpStream::from_std(stream).map_err(|error| crate::problem::Problem::internal(error).into())
}

enum SendFailure {
    Http(hyper::Error),
    Timeout,
}

impl From<hyper::Error> for SendFailure {
    fn from(error: hyper::Error) -> Self {
        Self::Http(error)
    }
}

/// Sends the request over a connection of its own, which ends with the preview.
async fn send_request(
    connection: TcpStream,
    request: Request,
    mut stream: PreviewStream,
    client_side: Option<OnUpgrade>,
) -> Result<Response, SendFailure> {
    let mut builder = client::Builder::new();
    let builder = builder.max_buf_size(MAX_HEAD_BYTES).max_headers(MAX_HEADERS);
    let (mut sender, driver) = builder.handshake(TokioIo::new(connection)).await?;
    let (upgraded, upgrading) = tokio::sync::oneshot::channel::<(OnUpgrade, OnUpgrade)>();
    tokio::spawn(async move {
        let exchange = async {
            // A failed exchange breaks the response, which the client sees.
            drop(driver.with_upgrades().await);
            let Ok((client, server)) = upgrading.await else { return };
            if let (Ok(client), Ok(server)) = tokio::join!(client, server) {
                drop(copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(server)).await);
            }
        };
        tokio::select! {
            () = exchange => {}
            () = stream.wait_until_ended() => {}
        }
    });
    let sent = timeout(RESPONSE_TIMEOUT, sender.send_request(request)).await;
    let mut response = sent.map_err(|_| SendFailure::Timeout)??;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(response.map(Body::new));
    }
    let server_side = hyper::upgrade::on(&mut response);
    if let Some(client_side) = client_side {
        // It fails only if the preview has just ended.
        drop(upgraded.send((client_side, server_side)));
        return Ok(response.map(|_| Body::empty()));
    }
    let mut refused = StatusCode::BAD_GATEWAY.into_response();
    refused.headers_mut().insert(axum::http::header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(refused)
}
