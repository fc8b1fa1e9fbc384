//! What the tests of drivers have in common.

use super::{Driver, Mark, Said, Told};
use serde_json::Value;

/// All lines that a driver writes at once.
pub(super) fn lines(bytes: &[u8]) -> Vec<Value> {
    assert!(bytes.is_empty() || bytes.last() == Some(&b'\n'), "every line has its end");
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

/// The only one.
pub(super) fn line(bytes: &[u8]) -> Value {
    let mut all = lines(bytes);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

pub(super) fn short(said: &Said) -> String {
    match said {
        Said::Event(Told { event_type, data, mark, .. }) => {
            let data: Value = serde_json::from_str(data.get()).unwrap();
            let words = ["text", "tool", "output", "stop_reason", "error", "items", "cost_usd"].map(|name| &data[name]);
            let words: Vec<String> = words.iter().filter(|word| !word.is_null()).map(|word| word.to_string()).collect();
            let mark = if *mark == Mark::Plain { String::new() } else { format!(" [{mark:?}]") };
            format!("{} {}{mark}", event_type.as_str(), words.join(" "))
        }
        Said::Receipt { how, .. } => format!("receipt {how}"),
        Said::Reply(bytes) => {
            let said = |line: &Value| line["method"].as_str().map_or_else(|| line.to_string(), str::to_owned);
            format!("reply {}", lines(bytes).iter().map(said).collect::<Vec<_>>().join(", "))
        }
        Said::Live(data) => format!("live {}", data.get()),
        Said::Asks(ask) => format!("asks {:?} {} {}", ask.kind, ask.tool, ask.input),
        other => format!("{other:?}"),
    }
}

pub(super) fn hear(driver: &mut dyn Driver, line: &Value) -> Vec<String> {
    driver.line(line.to_string().as_bytes()).iter().map(short).collect()
}

/// A tenth by default; `ATOLL_TEST_SCALE=1` is the whole.
pub(super) fn cases(whole: u32) -> proptest::prelude::ProptestConfig {
    let scale = std::env::var("ATOLL_TEST_SCALE").ok().and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.1);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small counts")]
    let cases = (f64::from(whole) * scale).ceil() as u32;
    proptest::prelude::ProptestConfig { cases: cases.max(1), failure_persistence: None, ..Default::default() }
}
