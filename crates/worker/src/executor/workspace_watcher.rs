//! The workspace watcher: receives file changes from the spawner.

use super::Executor;
use crate::spawner::{Spawner, WatchEvent};
use atoll_core::bounds::MAX_EVENT_DATA_BYTES;
use atoll_core::event::kind;
use atoll_dispatcher::program::input::{Line, LineSplitter};
use atoll_watch::Change;
use rustix::pipe::{PipeFlags, pipe_with};
use serde_json::json;
use serde_json::value::RawValue;
use std::io;
use std::path::PathBuf;
use tokio::net::unix::pipe::Receiver;
use tokio::time::Instant;

const CHUNK_BYTES: usize = 64 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Off,
    /// The first scan is running.
    Starting,
    On,
}

#[derive(Debug)]
pub(super) struct WorkspaceWatcher {
    spawner: Spawner,
    root: PathBuf,
    pipe: Option<Receiver>,
    lines: LineSplitter,
    state: State,
    flushes: u64,
    buffer: Vec<u8>,
}

impl WorkspaceWatcher {
    pub(super) const fn new(spawner: Spawner, root: PathBuf) -> Self {
        Self {
            spawner,
            root,
            pipe: None,
            lines: LineSplitter::new(),
            state: State::Off,
            flushes: 0,
            buffer: Vec::new(),
        }
    }

    /// Starts watching. `next_events` reports when the first scan is done.
    pub(super) fn start(&mut self) {
        let pipe = pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from);
        match pipe.and_then(|(reader, writer)| Ok((Receiver::from_owned_fd(reader)?, writer))) {
            Ok((reader, writer)) => {
                (self.pipe, self.state) = (Some(reader), State::Starting);
                self.lines = LineSplitter::new();
                self.buffer.resize(CHUNK_BYTES, 0);
                self.spawner.watch_files(self.root.clone(), writer);
            }
            Err(error) => tracing::warn!(%error, "failed to watch file changes in this turn"),
        }
    }

    pub(super) const fn is_open(&self) -> bool {
        self.pipe.is_some()
    }

    pub(super) fn is_starting(&self) -> bool {
        self.state == State::Starting
    }

    pub(super) fn is_watching(&self) -> bool {
        self.state == State::On
    }

    /// Requests all changes up to now; returns the number that `WatchEvent::Flushed` will carry.
    pub(super) fn flush(&mut self) -> u64 {
        self.flushes += 1;
        self.spawner.flush_changes(self.flushes);
        self.flushes
    }

    /// Stops watching; events that are under way still arrive.
    pub(super) fn stop(&mut self) {
        if std::mem::replace(&mut self.state, State::Off) != State::Off {
            self.spawner.stop_watching();
        }
    }

    /// Waits for events. Returns none when the spawner has stopped watching.
    pub(super) async fn next_events(&mut self) -> Vec<WatchEvent> {
        let Some(pipe) = &self.pipe else { return std::future::pending().await };
        let mut events = Vec::new();
        let is_closed = match pipe.readable().await.and_then(|()| pipe.try_read(&mut self.buffer)) {
            Ok(0) => true,
            Ok(length) => {
                self.lines.push(&self.buffer[..length], |line| events.extend(parse_event(&line)));
                false
            }
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        };
        if is_closed {
            (self.pipe, self.state) = (None, State::Off);
            self.buffer = Vec::new();
        }
        for event in &events {
            match event {
                WatchEvent::Watching if self.state == State::Starting => self.state = State::On,
                WatchEvent::Failed(error) => {
                    tracing::warn!(error, "failed to watch file changes in this turn");
                    self.stop();
                }
                WatchEvent::Watching | WatchEvent::Change(_) | WatchEvent::Flushed(_) => {}
            }
        }
        events
    }
}

impl Executor {
    pub(super) fn handle_watch_events(&mut self, events: Vec<WatchEvent>) {
        for event in events {
            match event {
                WatchEvent::Watching | WatchEvent::Failed(_) => {}
                WatchEvent::Change(change) => {
                    let turn = self.conversation.turn();
                    self.guardian.watch.record_effect();
                    self.limits.record_progress(Instant::now());
                    let data = edit_event_data(&change, turn, self.conversation.only_tool());
                    self.emit_raw_event(kind::AGENT_FILE_EDITED, data);
                }
                WatchEvent::Flushed(number) => {
                    if let Some(barrier) = &mut self.output.barrier {
                        barrier.mark_flushed(number);
                    }
                }
            }
        }
    }
}

fn parse_event(line: &Line<'_>) -> Option<WatchEvent> {
    let read = match line {
        Line::Whole(bytes) => serde_json::from_slice(bytes).map_err(|error| error.to_string()),
        Line::TooLong { bytes, .. } => Err(format!("a line of {bytes} bytes")),
    };
    if let Err(error) = &read {
        tracing::warn!(error, "failed to parse a watch event");
    }
    read.ok()
}

/// Builds the data of `agent.file_edited`. Truncates the diff further if escaping makes the event too large.
fn edit_event_data(change: &Change, turn: i64, tool: Option<&str>) -> Box<RawValue> {
    let mut change = change.clone();
    loop {
        let mut data = json!(change);
        data["turn"] = turn.into();
        if let Some(tool) = tool {
            data["tool_use_id"] = tool.into();
        }
        let data = atoll_core::json::to_raw_json(&data);
        match &mut change.full_diff {
            Some(diff) if data.get().len() > MAX_EVENT_DATA_BYTES => {
                diff.truncate(diff.floor_char_boundary(diff.len() / 2));
                change.full_diff_truncated = true;
            }
            Some(_) | None => return data,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_watch::ChangeType;
    use serde_json::Value;

    fn change(diff: &str) -> Change {
        Change {
            file_path: "a".to_owned(),
            change_type: ChangeType::Modified,
            old_path: None,
            lines_added: 1,
            lines_removed: 0,
            diff_preview: String::new(),
            full_diff: Some(diff.to_owned()),
            full_diff_truncated: false,
            binary: false,
            size: None,
            sha256: None,
        }
    }

    #[test]
    fn an_edit_has_its_turn_and_tool() {
        let data: Value = serde_json::from_str(edit_event_data(&change("+x\n"), 3, Some("t")).get()).unwrap();
        assert_eq!((&data["turn"], &data["tool_use_id"], &data["full_diff"]), (&json!(3), &json!("t"), &json!("+x\n")));
        let data: Value = serde_json::from_str(edit_event_data(&change("+x\n"), 3, None).get()).unwrap();
        assert_eq!(data.get("tool_use_id"), None);
    }

    #[test]
    fn truncates_a_diff_that_grows_by_escaping() {
        let data = edit_event_data(&change(&"\u{1}".repeat(50_000)), 1, None);
        assert!(data.get().len() <= MAX_EVENT_DATA_BYTES);
        let data: Value = serde_json::from_str(data.get()).unwrap();
        assert_eq!(data["full_diff_truncated"], true);
    }
}
