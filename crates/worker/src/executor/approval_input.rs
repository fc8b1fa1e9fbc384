//! The input of a tool as a person sees it. An input that does not fit into an event is a blob, which the worker uploads
//! before it asks: the agent waits anyway.

use crate::link::Server;
use atoll_dispatcher::link::Reply;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

/// Size limit of an input in the event: with its diff it fits.
const MAX_SHOWN_INPUT_BYTES: usize = 60 << 10;
const UPLOAD_ATTEMPTS: u32 = 5;
const ATTEMPT_PAUSE: Duration = Duration::from_secs(2);

/// An input as the event shows it.
#[derive(Debug)]
pub(super) struct ShownInput {
    pub input: Value,
    pub sha256: String,
    /// The whole text, if the event shows only its start.
    pub whole: Option<String>,
}

impl ShownInput {
    pub(super) fn new(input: &Value) -> Self {
        let text = input.to_string();
        let sha256 = hash_text(&text);
        if text.len() <= MAX_SHOWN_INPUT_BYTES {
            return Self { input: input.clone(), sha256, whole: None };
        }
        Self { input: Value::String(truncate_text(&text, MAX_SHOWN_INPUT_BYTES)), sha256, whole: Some(text) }
    }
}

pub(super) fn truncate_text(text: &str, most: usize) -> String {
    format!("{}…", &text[..text.floor_char_boundary(most)])
}

pub(super) fn hash_text(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Uploads a whole input under its hash.
pub(super) async fn upload_input(server: Server, sha256: String, text: String) -> Result<(), String> {
    let length = text.len() as u64;
    let file = write_unnamed(&server, text).await.map_err(|error| error.to_string())?;
    let mut reason = String::new();
    for _ in 0..UPLOAD_ATTEMPTS {
        match server.put_blob(&sha256, Arc::clone(&file), length).await {
            Reply::Ok(_) => return Ok(()),
            Reply::Later { why, .. } => reason = why,
            other => return Err(format!("{other:?}")),
        }
        tokio::time::sleep(ATTEMPT_PAUSE).await;
    }
    Err(reason)
}

async fn write_unnamed(server: &Server, text: String) -> std::io::Result<Arc<std::fs::File>> {
    let dir = server.spool.to_path_buf();
    let write = move || {
        let mut file = tempfile::tempfile_in(dir)?;
        file.write_all(text.as_bytes())?;
        Ok(Arc::new(file))
    };
    tokio::task::spawn_blocking(write).await.map_err(std::io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn shows_the_whole_input_or_names_its_blob() {
        let small = json!({"command": "x".repeat(50 << 10)});
        let shown = ShownInput::new(&small);
        assert_eq!((&shown.input, shown.whole.is_none()), (&small, true));
        let large = json!({"command": "ä".repeat(50 << 10)});
        let shown = ShownInput::new(&large);
        let whole = shown.whole.unwrap();
        assert_eq!((whole.as_str(), shown.sha256.as_str()), (large.to_string().as_str(), hash_text(&whole).as_str()));
        assert!(shown.input.as_str().unwrap().len() <= MAX_SHOWN_INPUT_BYTES + 3);
    }
}
