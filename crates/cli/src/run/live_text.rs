//! The text that an agent is writing, from the live frames of its sandbox. The finished text arrives as an event.

use super::progress::RunProgress;
use crate::connect::ConnectedClient;
use crate::event_log::log_event::LogEvent;
use crate::runtime::build_runtime;
use atoll_api::FollowedSandboxes;
use atoll_api::events::EventData;
use atoll_client::EventSocketItem;
use atoll_core::event::kind;
use atoll_core::id::SandboxId;
use std::collections::BTreeMap;
use tokio::runtime::Builder;
use tokio::sync::mpsc;

/// The view shows only the end of a longer text.
const MAX_TEXT_BYTES: usize = 8 << 10;
const MAX_BUFFERED_DELTAS: usize = 256;

/// A piece of text, and the newest stored event when the server received it.
#[derive(Debug, Clone)]
pub struct TextDelta {
    after_seq: i64,
    text: String,
}

#[derive(Debug, Default)]
pub struct LiveText {
    text: String,
    /// The event that finished the last text: earlier pieces belong to it.
    finished_seq: i64,
}

impl LiveText {
    pub fn append(&mut self, delta: &TextDelta) {
        if delta.after_seq < self.finished_seq {
            return;
        }
        self.text.push_str(&delta.text);
        let excess = self.text.len().saturating_sub(MAX_TEXT_BYTES);
        if excess > 0 {
            let start = (excess..self.text.len()).find(|at| self.text.is_char_boundary(*at)).unwrap_or(0);
            self.text.drain(..start);
        }
    }

    /// Forgets the text when its event has arrived, or when the agent does something else.
    pub fn handle_event(&mut self, event: &LogEvent) {
        match &event.data {
            EventData::AgentMessage(_)
            | EventData::AgentToolUse(_)
            | EventData::AgentStarted(_)
            | EventData::AgentInterrupted(_)
            | EventData::AgentCompleted(_)
            | EventData::AgentFailed(_) => {
                self.finished_seq = event.event.seq;
                self.text.clear();
            }
            _ => {}
        }
    }

    /// The text, while the agent works.
    pub fn visible_text(&self, progress: &RunProgress) -> &str {
        if progress.is_working() { &self.text } else { "" }
    }
}

/// Follows the live frames. The log has its own follower, so a lost piece loses nothing.
///
/// The follower has a thread of its own, because the future of an event socket cannot move between threads.
pub fn spawn_follower(client: &ConnectedClient, sandbox: SandboxId) -> mpsc::Receiver<TextDelta> {
    let (sender, deltas) = mpsc::channel(MAX_BUFFERED_DELTAS);
    let client = client.clone();
    let follow = move || {
        let Ok(runtime) = build_runtime(Builder::new_current_thread()) else { return };
        runtime.block_on(follow_text(&client, sandbox, &sender));
    };
    // Without the thread, the view shows only finished text.
    drop(std::thread::Builder::new().name("live text".to_owned()).spawn(follow));
    deltas
}

async fn follow_text(client: &ConnectedClient, sandbox: SandboxId, sender: &mpsc::Sender<TextDelta>) {
    let followed = FollowedSandboxes::Ids(vec![sandbox]);
    // A rare type: the subscription is for live frames, which it does not filter.
    let mut socket = client.open_event_socket(followed, &[kind::SANDBOX_FAILED.to_owned()], BTreeMap::new());
    loop {
        let item = tokio::select! {
            item = socket.next() => item,
            () = sender.closed() => return,
        };
        let Ok(item) = item else { return };
        let EventSocketItem::Live { after_seq, data, .. } = item else { continue };
        let Some(text) = data.get("text").and_then(|text| text.as_str()) else { continue };
        if sender.send(TextDelta { after_seq, text: text.to_owned() }).await.is_err() {
            return;
        }
    }
}

/// Waits for the next piece; pending forever without live frames.
pub async fn next_delta(deltas: &mut Option<mpsc::Receiver<TextDelta>>) -> TextDelta {
    if let Some(receiver) = deltas {
        if let Some(delta) = receiver.recv().await {
            return delta;
        }
        *deltas = None;
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_log::log_event::testing::event_at;
    use serde_json::json;

    fn delta(after_seq: i64, text: &str) -> TextDelta {
        TextDelta { after_seq, text: text.to_owned() }
    }

    #[test]
    fn the_finished_text_replaces_its_pieces() {
        let mut live = LiveText::default();
        live.append(&delta(3, "I will "));
        live.append(&delta(3, "look"));
        assert_eq!(live.text, "I will look");
        let mut message =
            event_at("2026-01-31T12:00:00.000000Z", "agent.message", Some(1), &json!({"text": "I will look"}));
        message.event.seq = 4;
        live.handle_event(&message);
        live.append(&delta(3, "look"));
        assert_eq!(live.text, "", "a late piece of the finished text");
        live.append(&delta(4, "Next"));
        assert_eq!(live.text, "Next");
    }

    #[test]
    fn keeps_only_the_end_of_a_long_text() {
        let mut live = LiveText::default();
        for _ in 0..3 {
            live.append(&delta(0, &"日本".repeat(1000)));
        }
        assert!(live.text.len() <= MAX_TEXT_BYTES && live.text.ends_with("本"));
    }
}
