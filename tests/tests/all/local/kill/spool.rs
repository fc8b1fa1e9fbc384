//! What a dead worker has left in its spool, read record by record.

use serde_json::Value;
use std::path::Path;

/// Length, checksum and key stand before each record.
const HEADER: usize = 4 + 4 + 8;

/// The whole records of a segment; one that was cut short is where it ends.
fn records(bytes: &[u8]) -> Vec<Value> {
    let mut found = Vec::new();
    let mut rest = bytes;
    while let Some((length, _)) = rest.split_first_chunk::<4>() {
        let end = HEADER + u32::from_le_bytes(*length) as usize;
        let Some(Ok(record)) = rest.get(HEADER..end).map(serde_json::from_slice) else { break };
        found.push(record);
        rest = &rest[end..];
    }
    found
}

/// The texts that an agent said, as far as they are there, in their order.
pub fn said(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut segments: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    segments.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    segments.sort();
    let records = segments.iter().flat_map(|path| records(&std::fs::read(path).unwrap_or_default()));
    let messages = records.filter(|record| record["type"] == "agent.message");
    messages.filter_map(|record| record["data"]["text"].as_str().map(str::to_owned)).collect()
}
