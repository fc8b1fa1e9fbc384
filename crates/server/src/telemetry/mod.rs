//! Traces: which request a piece of work belongs to, and the export of finished spans over OTLP.
//!
//! A span is recorded when it ends, with explicit ids and times: a step can begin in one process and end in its
//! successor. The ids of steps that happen once are derived from the trace (`TraceId::derive_span`).

mod exporter;
mod otlp_client;
mod request_trace;

pub use exporter::Telemetry;
pub use request_trace::{current_trace, in_trace, mark_client, trace_request};

use atoll_core::id::SandboxId;
use atoll_core::time::Timestamp;
use atoll_core::trace::{SpanId, TraceContext, TraceId};

/// The step in which a provider creates a sandbox.
pub const PROVIDER_CREATE: &str = "provider create";
/// The step from the provider's sandbox to the worker's first heartbeat.
pub const WORKER_START: &str = "worker start";
/// A turn of the agent.
pub const AGENT_TURN: &str = "agent turn";

/// Where a span's work comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanOrigin {
    /// A request of another program.
    Request,
    /// This server.
    Server,
    /// A call of another program.
    Call,
}

/// A finished span.
#[derive(Debug, Clone)]
pub struct FinishedSpan {
    pub name: String,
    pub trace: TraceId,
    pub id: SpanId,
    pub parent: Option<SpanId>,
    pub origin: SpanOrigin,
    pub began: Timestamp,
    pub ended: Timestamp,
    pub attributes: Vec<(&'static str, String)>,
    /// The code of the failure, if the work failed.
    pub failure: Option<String>,
}

impl FinishedSpan {
    /// A span below `parent`, with a new id.
    pub fn child(parent: TraceContext, name: impl Into<String>, began: Timestamp, ended: Timestamp) -> Self {
        Self {
            name: name.into(),
            trace: parent.trace,
            id: SpanId::random(),
            parent: Some(parent.span),
            origin: SpanOrigin::Server,
            began,
            ended,
            attributes: Vec::new(),
            failure: None,
        }
    }

    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.attributes.push((name, value.to_string()));
        self
    }
}

/// The place in a sandbox's trace that the worker's work belongs under.
pub fn worker_context(context: TraceContext, sandbox: SandboxId) -> TraceContext {
    TraceContext { span: context.trace.derive_span(WORKER_START, &sandbox.to_string()), ..context }
}

/// The place in a sandbox's trace at which its provider creates it.
pub fn provider_context(context: TraceContext, sandbox: SandboxId) -> TraceContext {
    TraceContext { span: context.trace.derive_span(PROVIDER_CREATE, &sandbox.to_string()), ..context }
}
