//! Reads a worker's spool from the host.

use serde_json::Value;
use std::path::Path;

/// Each record starts with its length, checksum and key.
const RECORD_HEADER_BYTES: usize = 4 + 4 + 8;

/// The complete records of a segment. A truncated record ends it.
fn parse_records(bytes: &[u8]) -> Vec<Value> {
    let mut found = Vec::new();
    let mut rest = bytes;
    while let Some((length, _)) = rest.split_first_chunk::<4>() {
        let end = RECORD_HEADER_BYTES + u32::from_le_bytes(*length) as usize;
        let Some(Ok(record)) = rest.get(RECORD_HEADER_BYTES..end).map(serde_json::from_slice) else { break };
        found.push(record);
        rest = &rest[end..];
    }
    found
}

/// The texts of the agent's messages in the spool, in order.
pub fn spooled_messages(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut segments: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    segments.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    segments.sort();
    let records = segments.iter().flat_map(|path| parse_records(&std::fs::read(path).unwrap_or_default()));
    let messages = records.filter(|record| record["type"] == "agent.message");
    messages.filter_map(|record| record["data"]["text"].as_str().map(str::to_owned)).collect()
}
