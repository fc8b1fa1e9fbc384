//! Traces: the ids that connect the spans of one request across programs, in the form of W3C Trace Context.

use std::fmt;
use std::str::FromStr;

/// An id of a trace. It is never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 16]);

/// An id of a span within its trace. It is never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId([u8; 8]);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a trace context of W3C: expected 00-TRACE-SPAN-FLAGS in hexadecimal digits")]
pub struct InvalidTraceContext;

/// Parses lower-case hexadecimal digits that are not all zero.
fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() != N * 2 || !text.bytes().all(is_digit) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    bytes.iter().any(|byte| *byte != 0).then_some(bytes)
}

macro_rules! hex_id {
    ($name:ident) => {
        impl $name {
            pub const fn bytes(self) -> [u8; size_of::<Self>()] {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl FromStr for $name {
            type Err = InvalidTraceContext;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                parse_hex(text).map(Self).ok_or(InvalidTraceContext)
            }
        }
    };
}

hex_id!(TraceId);
hex_id!(SpanId);

impl TraceId {
    /// A new id. It is never zero, because it holds a version of UUIDs.
    pub fn random() -> Self {
        Self(uuid::Uuid::now_v7().into_bytes())
    }

    /// The id of a step that happens once in the trace, such as `worker start` of a sandbox. A server that has
    /// restarted derives the same id.
    pub fn derive_span(self, step: &str, subject: &str) -> SpanId {
        // FNV-1a with 64 bits.
        let bytes = self.0.iter().copied().chain(step.bytes()).chain([0]).chain(subject.bytes());
        let hash =
            bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        SpanId(hash.max(1).to_be_bytes())
    }
}

impl SpanId {
    /// A new id. It is never zero, because it holds the variant of UUIDs.
    pub fn random() -> Self {
        let [.., a, b, c, d, e, f, g, h] = uuid::Uuid::now_v7().into_bytes();
        Self([a, b, c, d, e, f, g, h])
    }
}

/// A place in a trace: the span that new spans belong under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    pub trace: TraceId,
    pub span: SpanId,
    /// Spans are exported, and programs in the sandbox get the context.
    pub is_sampled: bool,
}

impl TraceContext {
    /// A new trace.
    pub fn start(is_sampled: bool) -> Self {
        Self { trace: TraceId::random(), span: SpanId::random(), is_sampled }
    }
}

/// The header `traceparent`, and the variable `TRACEPARENT`.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace, self.span, u8::from(self.is_sampled))
    }
}

impl FromStr for TraceContext {
    type Err = InvalidTraceContext;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('-');
        let mut next = || parts.next().ok_or(InvalidTraceContext);
        let (version, trace, span, flags) = (next()?, next()?, next()?, next()?);
        // A later version may have more parts.
        let has_form = version.len() == 2 && version != "ff" && (version != "00" || parts.next().is_none());
        let is_hex = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let flags = u8::from_str_radix(flags, 16).ok().filter(|_| is_hex(flags)).ok_or(InvalidTraceContext)?;
        if !has_form || !is_hex(version) {
            return Err(InvalidTraceContext);
        }
        Ok(Self { trace: trace.parse()?, span: span.parse()?, is_sampled: flags & 1 == 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn reads_and_writes_trace_contexts() {
        let context: TraceContext = EXAMPLE.parse().unwrap();
        assert_eq!((context.to_string().as_str(), context.is_sampled), (EXAMPLE, true));
        let not_sampled: TraceContext = EXAMPLE.replace("-01", "-00").parse().unwrap();
        assert!(!not_sampled.is_sampled);
        let later: TraceContext = format!("{}-more", EXAMPLE.replacen("00-", "cc-", 1)).parse().unwrap();
        assert_eq!(later, context);
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-+1",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e47é-00f067aa0ba902b7-01",
        ] {
            assert_eq!(bad.parse::<TraceContext>(), Err(InvalidTraceContext), "{bad}");
        }
    }

    #[test]
    fn a_derived_span_is_the_same_after_a_restart() {
        let trace: TraceId = "4bf92f3577b34da6a3ce929d0e0e4736".parse().unwrap();
        let span = trace.derive_span("worker start", "sbx_1");
        assert_eq!(span.to_string(), "bcfa55547074e60c");
        assert_ne!(span, trace.derive_span("worker start", "sbx_2"));
        assert_ne!(span, trace.derive_span("provider create", "sbx_1"));
        assert_ne!(span, TraceId::random().derive_span("worker start", "sbx_1"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_rejected(text in "\\PC{0,80}") {
            if let Ok(context) = text.parse::<TraceContext>() {
                prop_assert_eq!(context.to_string().parse::<TraceContext>(), Ok(context));
            }
        }

        #[test]
        fn new_contexts_are_valid(is_sampled in any::<bool>()) {
            let context = TraceContext::start(is_sampled);
            prop_assert_eq!(context.to_string().parse::<TraceContext>(), Ok(context));
        }
    }
}
