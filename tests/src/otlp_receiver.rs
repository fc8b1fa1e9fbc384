//! A receiver of traces over OTLP/HTTP.

use atoll_test_wait::try_poll_for;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;

/// A span as the receiver got it. Ids are hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedSpan {
    pub name: String,
    pub trace: String,
    pub id: String,
    /// Empty without a parent.
    pub parent: String,
    /// Ended not before it began.
    pub is_ordered: bool,
    pub service: String,
}

#[derive(Debug, Clone)]
pub struct OtlpReceiver {
    pub url: String,
    spans: Arc<Mutex<Vec<ReceivedSpan>>>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn receive_spans(
    State(spans): State<Arc<Mutex<Vec<ReceivedSpan>>>>,
    body: Bytes,
) -> impl axum::response::IntoResponse {
    let request = ExportTraceServiceRequest::decode(body).expect("an export has the form of OTLP");
    for resource in request.resource_spans {
        let attributes = resource.resource.map(|resource| resource.attributes).unwrap_or_default();
        let service = attributes.iter().find(|attribute| attribute.key == "service.name");
        let service = service.map(|attribute| format!("{:?}", attribute.value)).unwrap_or_default();
        for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            spans.lock().unwrap().push(ReceivedSpan {
                name: span.name,
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                is_ordered: span.start_time_unix_nano > 0 && span.end_time_unix_nano >= span.start_time_unix_nano,
                service: service.clone(),
            });
        }
    }
    // An empty response message.
    ([(header::CONTENT_TYPE, "application/x-protobuf")], Bytes::new())
}

impl OtlpReceiver {
    pub async fn start() -> Self {
        let spans = Arc::default();
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", socket.local_addr().unwrap());
        let router = Router::new().route("/v1/traces", post(receive_spans)).with_state(Arc::clone(&spans));
        tokio::spawn(async move { axum::serve(socket, router).await });
        Self { url, spans }
    }

    pub fn spans(&self) -> Vec<ReceivedSpan> {
        self.spans.lock().unwrap().clone()
    }

    /// Waits for `count` spans of this name and trace.
    pub async fn wait_for(&self, name: &str, trace: &str, count: usize) -> Vec<ReceivedSpan> {
        let polled = try_poll_for(async || {
            let found: Vec<_> =
                self.spans().into_iter().filter(|span| span.name == name && span.trace == trace).collect();
            if found.len() >= count { Ok(found) } else { Err(found) }
        });
        polled.await.unwrap_or_else(|_| panic!("expected {count} spans `{name}`: {:#?}", self.spans()))
    }
}
