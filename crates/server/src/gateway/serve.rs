//! Connections of a sandbox that speak to the gateway and to nothing else.

use super::{Body, answer};
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

/// Between two requests: agents think, wait for tools and for people.
const BETWEEN: Duration = Duration::from_secs(600);
const LONGEST_HEAD: usize = 256 << 10;

const NOT_FOR_BROWSERS: &str = "this is Atoll's way out of the sandbox, not a web server: name it in HTTP_PROXY and \
                                HTTPS_PROXY, as it is there already; models are below /anthropic, /openai and /gemini.\n";

/// A client that goes away ends its request here and at the upstream: half a connection is not enough.
pub async fn serve(app: Weak<App>, sandbox: SandboxId, stream: Stream) {
    let service = service_fn(move |request: Request<Incoming>| {
        let app = app.upgrade();
        async move {
            let answered = match app {
                Some(app) => answer(&app, sandbox, request).await,
                None => Err(request),
            };
            Ok::<_, Infallible>(answered.unwrap_or_else(|_| plain(StatusCode::BAD_REQUEST, NOT_FOR_BROWSERS)))
        }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(BETWEEN)
        .max_buf_size(LONGEST_HEAD)
        .half_close(false)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = serving.await {
        tracing::debug!(%sandbox, %error, "a connection to the model gateway ended");
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    let body = Full::new(Bytes::from_static(text.as_bytes())).map_err(|never| match never {}).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}
