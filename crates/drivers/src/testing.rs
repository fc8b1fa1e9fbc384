//! Helpers for the drivers' tests.

use super::{AgentEvent, AgentOutput, Driver, EventEffect};
use serde_json::Value;

/// Parses all lines that a driver wrote at once.
pub(super) fn parse_lines(bytes: &[u8]) -> Vec<Value> {
    assert!(bytes.is_empty() || bytes.last() == Some(&b'\n'), "every line must end with a line break");
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

/// Parses the only line.
pub(super) fn parse_line(bytes: &[u8]) -> Value {
    let mut all = parse_lines(bytes);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

pub(super) fn summarize_output(output: &AgentOutput) -> String {
    match output {
        AgentOutput::Event(AgentEvent { event_type, data, effect: mark, .. }) => {
            let data: Value = serde_json::from_str(data.get()).unwrap();
            let words = ["text", "tool", "output", "stop_reason", "error", "items", "cost_usd"].map(|name| &data[name]);
            let words: Vec<String> = words.iter().filter(|word| !word.is_null()).map(|word| word.to_string()).collect();
            let mark = if *mark == EventEffect::None { String::new() } else { format!(" [{mark:?}]") };
            format!("{} {}{mark}", event_type.as_str(), words.join(" "))
        }
        AgentOutput::Acknowledged { how, .. } => format!("acknowledged {how}"),
        AgentOutput::Reply(bytes) => {
            let method = |line: &Value| line["method"].as_str().map_or_else(|| line.to_string(), str::to_owned);
            format!("reply {}", parse_lines(bytes).iter().map(method).collect::<Vec<_>>().join(", "))
        }
        AgentOutput::TextDelta(data) => format!("delta {}", data.get()),
        AgentOutput::Request(request) => format!("request {:?} {} {}", request.kind, request.tool, request.input),
        other => format!("{other:?}"),
    }
}

pub(super) fn feed_line(driver: &mut dyn Driver, line: &Value) -> Vec<String> {
    driver.handle_line(line.to_string().as_bytes()).iter().map(summarize_output).collect()
}

/// Runs a tenth of the cases by default; set `ATOLL_TEST_SCALE=1` for all.
pub(super) fn proptest_config(whole: u32) -> proptest::prelude::ProptestConfig {
    let scale = std::env::var("ATOLL_TEST_SCALE").ok().and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.1);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small counts")]
    let cases = (f64::from(whole) * scale).ceil() as u32;
    proptest::prelude::ProptestConfig { cases: cases.max(1), failure_persistence: None, ..Default::default() }
}
