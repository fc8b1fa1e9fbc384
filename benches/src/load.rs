//! What is written: events of one kilobyte, in bodies that are ready before they are needed.

use bytes::Bytes;
use serde_json::json;
use uuid::Uuid;

pub const DATA_BYTES: usize = 1024;
/// How many events a batch of the ingest figures has.
pub const BATCH: usize = 50;
/// What agents say most.
pub const TYPES: [&str; 3] = ["agent.message", "agent.tool_use", "agent.tool_completed"];
pub const SOURCE: &str = "agent";
const AT: &str = "2026-01-01T00:00:00Z";
/// Numbers that are written into a finished body stand in a field of this width; JSON allows the spaces.
const WIDTH: usize = 16;

const TEXT: &str = "The test in `ledger::posting` fails since the last change: the sum of both sides is compared before \
    the rounding, so 0.1 + 0.2 is not 0.3. I will read the module, move the comparison behind the rounding and run the \
    suite again.\n";

/// An event's data: a JSON object of exactly `DATA_BYTES`.
pub fn data(number: usize) -> String {
    let fill = |text: &str| json!({ "number": number % 10, "text": text }).to_string();
    let mut text: String = TEXT.chars().cycle().skip(number % TEXT.len()).take(DATA_BYTES).collect();
    while fill(&text).len() > DATA_BYTES {
        text.pop();
    }
    let missing = DATA_BYTES - fill(&text).len();
    text.extend(std::iter::repeat_n('.', missing));
    fill(&text)
}

/// The bodies of one stream's batches. Only the keys differ from one to the next.
#[derive(Debug)]
pub struct Batches {
    template: Vec<u8>,
    /// Where in the template each event's key stands.
    keys: Vec<usize>,
    sent: i64,
}

impl Batches {
    pub fn new(stream: Uuid, size: usize) -> Self {
        let mut template = format!(r#"{{"stream":"{stream}","boot":1,"events":["#);
        let mut keys = Vec::with_capacity(size);
        for index in 0..size {
            template.push_str(if index == 0 { r#"{"key":"# } else { r#",{"key":"# });
            keys.push(template.len());
            template.extend(std::iter::repeat_n(' ', WIDTH));
            let (event_type, data) = (TYPES[index % TYPES.len()], data(index));
            template.push_str(&format!(r#","type":"{event_type}","source":"{SOURCE}","at":"{AT}","data":{data}}}"#));
        }
        template.push_str("]}");
        Self { template: template.into_bytes(), keys, sent: 0 }
    }

    /// The next body: a copy and some digits.
    pub fn next(&mut self) -> Bytes {
        let mut body = self.template.clone();
        for at in &self.keys {
            self.sent += 1;
            write_number(&mut body, *at, self.sent);
        }
        body.into()
    }

    /// How many events were put into bodies.
    pub fn sent(&self) -> i64 {
        self.sent
    }
}

/// The body of a single event that says when it was sent.
#[derive(Debug, Clone)]
pub struct Single {
    template: Vec<u8>,
    sent: usize,
}

impl Single {
    pub fn new() -> Self {
        let text = &data(0)[..DATA_BYTES - 100];
        let before = r#"{"event_type":"agent.message","event_data":{"sent_us":"#;
        let text = json!(text);
        let template = format!("{before}{}{}", " ".repeat(WIDTH), format_args!(r#","text":{text}}}}}"#));
        Self { template: template.into_bytes(), sent: before.len() }
    }

    pub fn body(&self, sent_us: i64) -> Bytes {
        let mut body = self.template.clone();
        write_number(&mut body, self.sent, sent_us);
        body.into()
    }
}

fn write_number(body: &mut [u8], at: usize, number: i64) {
    let digits = format!("{number:>WIDTH$}");
    body[at..at + WIDTH].copy_from_slice(digits.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn data_is_one_kilobyte_of_json() {
        for number in 0..TEXT.len() {
            let text = data(number);
            assert_eq!(text.len(), DATA_BYTES);
            assert!(serde_json::from_str::<Value>(&text).unwrap().is_object());
        }
    }

    #[test]
    fn batches_go_on_counting() {
        let mut batches = Batches::new(Uuid::nil(), 3);
        batches.next();
        let second: Value = serde_json::from_slice(&batches.next()).unwrap();
        let keys: Vec<i64> = second["events"].as_array().unwrap().iter().map(|e| e["key"].as_i64().unwrap()).collect();
        assert_eq!(keys, [4, 5, 6]);
    }

    #[test]
    fn a_single_event_carries_its_time() {
        let body: Value = serde_json::from_slice(&Single::new().body(123_456)).unwrap();
        assert_eq!(body["event_data"]["sent_us"], 123_456);
    }
}
