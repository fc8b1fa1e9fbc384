//! Codex' transcripts: `.codex/sessions/<year>/<month>/<day>/rollout-<time>-<id>.jsonl`.

use crate::transcript::TranscriptFiles;
use std::path::{Path, PathBuf};

pub(super) const FILES: TranscriptFiles = TranscriptFiles {
    directory: &[".codex", "sessions"],
    depth: 3,
    file_suffix: |id| format!("-{id}.jsonl"),
    restore_path,
};

fn restore_path(id: &str, _workspace: &Path, first_line: &str) -> PathBuf {
    let [year, month, day, clock] = start_time(first_line);
    let name = format!("rollout-{year}-{month}-{day}T{clock}-{id}.jsonl");
    Path::new(".codex/sessions").join(year).join(month).join(day).join(name)
}

/// Returns the conversation's start as year, month, day and time; a fixed one if the line has none.
fn start_time(first_line: &str) -> [String; 4] {
    let line: serde_json::Value = serde_json::from_str(first_line).unwrap_or_default();
    let time = line["payload"]["timestamp"].as_str().or_else(|| line["timestamp"].as_str()).unwrap_or_default();
    let is_time = |text: &str| {
        text.len() >= 19
            && text.bytes().zip(b"0000-00-00T00:00:00").all(|(byte, form)| match form {
                b'0' => byte.is_ascii_digit(),
                other => byte == *other,
            })
    };
    let time = if is_time(time) { time } else { "2000-01-01T00:00:00" };
    [&time[..4], &time[5..7], &time[8..10], &time[11..19].replace(':', "-")].map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_contains_the_start_time() {
        let first = r#"{"timestamp":"2026-11-15T22:14:32.1Z","payload":{"timestamp":"2026-11-15T22:14:31.123Z"}}"#;
        let path = restore_path("id-1", Path::new("/workspace"), first);
        assert_eq!(path, Path::new(".codex/sessions/2026/11/15/rollout-2026-11-15T22-14-31-id-1.jsonl"));
    }

    #[test]
    fn an_invalid_time_does_not_reach_the_path() {
        for first in ["", "{}", r#"{"timestamp":"../../../../x"}"#, r#"{"timestamp":"2026-11-15T22:14:ää"}"#] {
            let path = restore_path("x", Path::new("/"), first);
            assert_eq!(path, Path::new(".codex/sessions/2000/01/01/rollout-2000-01-01T00-00-00-x.jsonl"), "{first}");
        }
    }
}
