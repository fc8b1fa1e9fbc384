//! The exporter: a bounded queue and a thread that sends it. It never delays the server.

use super::otlp_client::OtlpClient;
use super::{FinishedSpan, SpanOrigin};
use atoll_config::Otlp;
use atoll_core::time::Timestamp;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanEvents, SpanLinks, SpanProcessor,
};
use secrecy::ExposeSecret;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::runtime::Handle;

/// Spans that wait for their export; further ones are dropped.
const MAX_QUEUED_SPANS: usize = 2048;
const MAX_BATCH_SPANS: usize = 256;
const EXPORT_INTERVAL: Duration = Duration::from_secs(2);
/// Time for the last export when the server stops.
const LAST_EXPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// The exporter of spans. Without a configured endpoint it exports nothing.
#[derive(Clone, Default)]
pub struct Telemetry(Option<Arc<BatchSpanProcessor>>);

impl std::fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_enabled() { "Telemetry(enabled)" } else { "Telemetry(disabled)" })
    }
}

impl Telemetry {
    /// Starts the exporter if an endpoint is configured.
    pub fn start(config: &Otlp, proxy: Option<crate::egress::UpstreamProxy>) -> Self {
        let (Some(endpoint), Ok(runtime)) = (&config.endpoint, Handle::try_current()) else { return Self(None) };
        let headers = config.headers.as_ref().map(|text| parse_headers(text.expose_secret())).unwrap_or_default();
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(OtlpClient::new(runtime, proxy))
            .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
            .with_headers(headers)
            .build();
        let exporter = match exporter {
            Ok(exporter) => exporter,
            Err(error) => {
                tracing::warn!(%error, "cannot export traces; check telemetry.otlp.endpoint");
                return Self(None);
            }
        };
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(MAX_QUEUED_SPANS)
            .with_max_export_batch_size(MAX_BATCH_SPANS)
            .with_scheduled_delay(EXPORT_INTERVAL)
            .build();
        let mut processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches).build();
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        // The standard variables OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence.
        let name = std::env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty());
        let resource = Resource::builder().with_service_name(name.unwrap_or_else(|| "atoll".into()));
        processor.set_resource(&resource.with_attribute(version).build());
        Self(Some(Arc::new(processor)))
    }

    pub const fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Queues a span for its export. A full queue drops it.
    pub fn record_span(&self, span: FinishedSpan) {
        if let Some(processor) = &self.0 {
            processor.on_end(to_span_data(span));
        }
    }

    /// Exports the queued spans, and ends the exporter.
    pub async fn stop(&self) {
        if let Some(processor) = self.0.clone() {
            let last = move || processor.shutdown_with_timeout(LAST_EXPORT_TIMEOUT);
            drop(tokio::task::spawn_blocking(last).await);
        }
    }
}

/// Parses `name=value,name=value`, as OTEL_EXPORTER_OTLP_HEADERS has it.
fn parse_headers(text: &str) -> HashMap<String, String> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect()
}

fn to_system_time(at: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(at.as_micros()).unwrap_or(0))
}

fn to_span_data(span: FinishedSpan) -> SpanData {
    let id = |span: atoll_core::trace::SpanId| SpanId::from_bytes(span.bytes());
    let trace = TraceId::from_bytes(span.trace.bytes());
    SpanData {
        span_context: SpanContext::new(trace, id(span.id), TraceFlags::SAMPLED, false, TraceState::NONE),
        parent_span_id: span.parent.map_or(SpanId::INVALID, id),
        parent_span_is_remote: span.origin == SpanOrigin::Request,
        span_kind: match span.origin {
            SpanOrigin::Request => SpanKind::Server,
            SpanOrigin::Server => SpanKind::Internal,
            SpanOrigin::Call => SpanKind::Client,
        },
        name: span.name.into(),
        start_time: to_system_time(span.began),
        end_time: to_system_time(span.ended.max(span.began)),
        attributes: span.attributes.into_iter().map(|(name, value)| KeyValue::new(name, value)).collect(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: span.failure.map_or(Status::Unset, Status::error),
        instrumentation_scope: InstrumentationScope::builder("atoll").build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_standard_form_of_headers() {
        let headers = parse_headers("authorization=Basic YTpi==, x-team = a ,bad");
        let expected = [("authorization", "Basic YTpi=="), ("x-team", "a")];
        assert_eq!(headers, HashMap::from(expected.map(|(name, value)| (name.to_owned(), value.to_owned()))));
    }

    #[tokio::test]
    async fn nothing_is_exported_without_an_endpoint() {
        let telemetry = Telemetry::start(&Otlp::default(), None);
        assert!(!telemetry.is_enabled());
        telemetry.stop().await;
    }
}
