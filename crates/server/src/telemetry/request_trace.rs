//! The trace of the request or job that runs now.

use super::{FinishedSpan, SpanOrigin};
use crate::auth::LinkedWorker;
use crate::state::App;
use atoll_core::trace::{SpanId, TraceContext};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::Instrument;

const REQUEST_ID: &str = "x-request-id";
const TRACEPARENT: &str = "traceparent";
const MAX_REQUEST_ID_CHARS: usize = 64;

tokio::task_local! {
    static CURRENT: Arc<RequestTrace>;
}

#[derive(Debug)]
struct RequestTrace {
    context: TraceContext,
    /// The caller is a user or a service.
    is_client: AtomicBool,
}

/// The trace of the request or job that runs in this task.
pub fn current_trace() -> Option<TraceContext> {
    CURRENT.try_with(|current| current.context).ok()
}

/// Records that the caller of the request is a user or a service. Only such requests have a span: workers send many.
pub fn mark_client() {
    let _ = CURRENT.try_with(|current| current.is_client.store(true, Ordering::Relaxed));
}

/// Runs work as a part of a trace.
pub async fn in_trace<T>(context: TraceContext, work: impl Future<Output = T>) -> T {
    CURRENT.scope(Arc::new(RequestTrace { context, is_client: AtomicBool::new(false) }), work).await
}

/// Returns the client's own id of the request, if it is short and plain, else a new one.
fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let given = given.filter(|id| (1..=MAX_REQUEST_ID_CHARS).contains(&id.len()) && id.bytes().all(is_plain));
    given.map_or_else(|| uuid::Uuid::now_v7().simple().to_string(), str::to_owned)
}

/// The caller's trace context. Sandboxes cannot join the trace of others.
fn caller_context(request: &Request) -> Option<TraceContext> {
    if request.extensions().get::<LinkedWorker>().is_some() {
        return None;
    }
    request.headers().get(TRACEPARENT)?.to_str().ok()?.parse().ok()
}

/// Gives each request an id and a trace: those of the caller, or new ones. Log lines have both.
pub async fn trace_request(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let caller = caller_context(&request);
    let context = match caller {
        Some(caller) => TraceContext { span: SpanId::random(), ..caller },
        None => TraceContext::start(app.telemetry.is_enabled()),
    };
    let request_id = request_id(request.headers());
    let method = request.method().clone();
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let began = app.clock.now();
    let trace = Arc::new(RequestTrace { context, is_client: AtomicBool::new(false) });
    // Of the highest level, so that lines of every level have it.
    let span = tracing::error_span!("request", request_id = %request_id, trace_id = %context.trace);
    let answering = async {
        let response = next.run(request).await;
        let took = app.clock.now().elapsed_since(began);
        tracing::debug!(%method, path, status = response.status().as_u16(), ?took, "answered a request");
        response
    };
    let mut response = CURRENT.scope(Arc::clone(&trace), answering).instrument(span).await;
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let changes = method != Method::GET && method != Method::HEAD;
    if context.is_sampled && changes && trace.is_client.load(Ordering::Relaxed) {
        let path = path.unwrap_or_default();
        let status = response.status();
        let span = FinishedSpan {
            id: context.span,
            parent: caller.map(|caller| caller.span),
            origin: SpanOrigin::Request,
            failure: status.is_server_error().then(|| status.as_str().to_owned()),
            ..FinishedSpan::child(context, format!("{method} {path}"), began, app.clock.now())
        };
        let span = span.with("http.request.method", &method).with("http.route", path);
        app.telemetry
            .record_span(span.with("http.response.status_code", status.as_u16()).with("request_id", request_id));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_only_a_plain_request_id() {
        let with =
            |id: &str| HeaderMap::from_iter([(axum::http::HeaderName::from_static(REQUEST_ID), id.parse().unwrap())]);
        assert_eq!(request_id(&with("build-17.a_b")), "build-17.a_b");
        for other in ["", "a b", "a\"b", &"x".repeat(65)] {
            let id = request_id(&with(other));
            assert!(id.len() == 32 && id != other, "{other}");
        }
        assert_eq!(request_id(&HeaderMap::new()).len(), 32);
    }
}
