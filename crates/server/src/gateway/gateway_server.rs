//! Serves connections whose first request is for the gateway.

use super::{Body, handle_request};
use crate::egress::stream::Stream;
use crate::state::App;
use atoll_core::id::SandboxId;
use axum::http::{Request, Response, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Weak;
use std::time::Duration;

/// Idle time between two requests: agents wait for tools and people.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
const MAX_HEAD_BYTES: usize = 256 << 10;

const NOT_A_WEB_SERVER: &str = "this is Atoll's egress proxy, not a web server: use it through HTTP_PROXY and HTTPS_PROXY, \
                                which are already set; model APIs are below /anthropic, /openai and /gemini.\n";

/// Serves one connection. A client that closes it, even by half, cancels its request at the upstream.
pub async fn serve_gateway(app: Weak<App>, sandbox: SandboxId, stream: Stream) {
    let service = service_fn(move |request: Request<Incoming>| {
        let app = app.upgrade();
        async move {
            let answered = match app {
                Some(app) => handle_request(&app, sandbox, request).await,
                None => Err(request),
            };
            Ok::<_, Infallible>(answered.unwrap_or_else(|_| text_response(StatusCode::BAD_REQUEST, NOT_A_WEB_SERVER)))
        }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .half_close(false)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = serving.await {
        tracing::debug!(%sandbox, %error, "a connection to the model gateway ended");
    }
}

fn text_response(status: StatusCode, text: &'static str) -> Response<Body> {
    let body = Full::new(Bytes::from_static(text.as_bytes())).map_err(|never| match never {}).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}
