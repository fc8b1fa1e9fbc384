//! A line of the log as one flat JSON object.

use serde_json::{Map, Value};
use std::fmt;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

/// Writes `timestamp`, `level`, `target`, `message`, the fields of the event, and those of the request or job around
/// it, such as `request_id` and `trace_id`.
pub struct JsonLine;

impl<S, N> FormatEvent<S, N> for JsonLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = Map::new();
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        line.insert("timestamp".into(), time.into());
        line.insert("level".into(), event.metadata().level().as_str().into());
        line.insert("target".into(), event.metadata().target().into());
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<N>>().map(|fields| fields.as_str()).unwrap_or_default();
            if let Ok(fields) = serde_json::from_str::<Map<String, Value>>(fields) {
                line.extend(fields);
            }
        }
        event.record(&mut FieldCollector(&mut line));
        writeln!(writer, "{}", Value::Object(line))
    }
}

/// Collects the fields of an event.
struct FieldCollector<'a>(&'a mut Map<String, Value>);

impl FieldCollector<'_> {
    fn insert(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for FieldCollector<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.insert(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.insert(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::fmt::format::JsonFields;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_has_the_ids_of_its_request() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .fmt_fields(JsonFields::new())
            .event_format(JsonLine)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let request = tracing::error_span!("request", request_id = %"r1", trace_id = %"4bf9");
            request.in_scope(|| tracing::warn!(detail = %"a \"quote\"\n", count = 3_u64, "it failed"));
            tracing::info!(is_last = true, "done");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<Map<String, Value>> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let mut fields: Vec<&str> = lines[0].keys().map(String::as_str).collect();
        fields.sort_unstable();
        assert_eq!(fields, ["count", "detail", "level", "message", "request_id", "target", "timestamp", "trace_id"]);
        assert_eq!(
            (&lines[0]["request_id"], &lines[0]["trace_id"], &lines[0]["message"], &lines[0]["count"]),
            (&"r1".into(), &"4bf9".into(), &"it failed".into(), &3.into())
        );
        assert_eq!((&lines[0]["level"], &lines[0]["detail"]), (&"WARN".into(), &"a \"quote\"\n".into()));
        assert_eq!((&lines[1]["is_last"], lines[1].get("request_id")), (&true.into(), None));
    }
}
