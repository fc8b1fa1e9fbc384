//! Request bodies with events of one kilobyte, built before the measurement.

use bytes::Bytes;
use serde_json::json;
use uuid::Uuid;

pub const DATA_BYTES: usize = 1024;
/// Events in one batch of the ingest figures.
pub const EVENTS_PER_BATCH: usize = 50;
/// The most frequent event types of agents.
pub const EVENT_TYPES: [&str; 3] = ["agent.message", "agent.tool_use", "agent.tool_completed"];
pub const SOURCE: &str = "agent";
const AT: &str = "2026-01-01T00:00:00Z";
/// Width of the placeholder for a number in a body; JSON allows the padding spaces.
const NUMBER_WIDTH_BYTES: usize = 16;

const SAMPLE_TEXT: &str = "The test in `ledger::posting` fails since the last change: the sum of both sides is compared before \
    the rounding, so 0.1 + 0.2 is not 0.3. I will read the module, move the comparison behind the rounding and run the \
    suite again.\n";

/// Event data: a JSON object of exactly `DATA_BYTES`.
pub fn event_data(number: usize) -> String {
    let fill = |text: &str| json!({ "number": number % 10, "text": text }).to_string();
    let mut text: String = SAMPLE_TEXT.chars().cycle().skip(number % SAMPLE_TEXT.len()).take(DATA_BYTES).collect();
    while fill(&text).len() > DATA_BYTES {
        text.pop();
    }
    let missing = DATA_BYTES - fill(&text).len();
    text.extend(std::iter::repeat_n('.', missing));
    fill(&text)
}

/// The batch bodies of one stream. Only the event keys differ between them.
#[derive(Debug)]
pub struct BatchBodies {
    template: Vec<u8>,
    /// Offset of each event's key in the template.
    key_offsets: Vec<usize>,
    sent: i64,
}

impl BatchBodies {
    pub fn new(stream: Uuid, size: usize) -> Self {
        let mut template = format!(r#"{{"stream":"{stream}","boot":1,"events":["#);
        let mut key_offsets = Vec::with_capacity(size);
        for index in 0..size {
            template.push_str(if index == 0 { r#"{"key":"# } else { r#",{"key":"# });
            key_offsets.push(template.len());
            template.extend(std::iter::repeat_n(' ', NUMBER_WIDTH_BYTES));
            let (event_type, data) = (EVENT_TYPES[index % EVENT_TYPES.len()], event_data(index));
            template.push_str(&format!(r#","type":"{event_type}","source":"{SOURCE}","at":"{AT}","data":{data}}}"#));
        }
        template.push_str("]}");
        Self { template: template.into_bytes(), key_offsets, sent: 0 }
    }

    /// Copies the template and fills in the keys.
    pub fn next_body(&mut self) -> Bytes {
        let mut body = self.template.clone();
        for at in &self.key_offsets {
            self.sent += 1;
            write_number(&mut body, *at, self.sent);
        }
        body.into()
    }

    /// Number of events in all bodies so far.
    pub fn sent_events(&self) -> i64 {
        self.sent
    }
}

/// Body with a single event that carries its send time.
#[derive(Debug, Clone)]
pub struct SingleEventBody {
    template: Vec<u8>,
    time_offset: usize,
}

impl SingleEventBody {
    pub fn new() -> Self {
        let text = &event_data(0)[..DATA_BYTES - 100];
        let before = r#"{"event_type":"agent.message","event_data":{"sent_us":"#;
        let text = json!(text);
        let template = format!("{before}{}{}", " ".repeat(NUMBER_WIDTH_BYTES), format_args!(r#","text":{text}}}}}"#));
        Self { template: template.into_bytes(), time_offset: before.len() }
    }

    pub fn body_sent_at(&self, sent_us: i64) -> Bytes {
        let mut body = self.template.clone();
        write_number(&mut body, self.time_offset, sent_us);
        body.into()
    }
}

fn write_number(body: &mut [u8], at: usize, number: i64) {
    let digits = format!("{number:>NUMBER_WIDTH_BYTES$}");
    body[at..at + NUMBER_WIDTH_BYTES].copy_from_slice(digits.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn data_is_one_kilobyte_of_json() {
        for number in 0..SAMPLE_TEXT.len() {
            let text = event_data(number);
            assert_eq!(text.len(), DATA_BYTES);
            assert!(serde_json::from_str::<Value>(&text).unwrap().is_object());
        }
    }

    #[test]
    fn batches_continue_the_keys() {
        let mut batches = BatchBodies::new(Uuid::nil(), 3);
        batches.next_body();
        let second: Value = serde_json::from_slice(&batches.next_body()).unwrap();
        let keys: Vec<i64> = second["events"].as_array().unwrap().iter().map(|e| e["key"].as_i64().unwrap()).collect();
        assert_eq!(keys, [4, 5, 6]);
    }

    #[test]
    fn a_single_event_carries_its_time() {
        let body: Value = serde_json::from_slice(&SingleEventBody::new().body_sent_at(123_456)).unwrap();
        assert_eq!(body["event_data"]["sent_us"], 123_456);
    }
}
