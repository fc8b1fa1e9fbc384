//! The workspace watcher: receives file changes from the spawner.

use super::Executor;
use crate::spawner::{MAX_WATCH_LINE_BYTES, Spawner, WatchEvent};
use atoll_api::events::{EventData, FileChangeType, FileEdited};
use atoll_core::event::kind;
use atoll_dispatcher::program::input::{Line, LineSplitter};
use atoll_drivers::clip_event;
use atoll_watch::{Change, ChangeType};
use rustix::pipe::{PipeFlags, pipe_with};
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
            lines: LineSplitter::with_limit(MAX_WATCH_LINE_BYTES),
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
                self.lines = LineSplitter::with_limit(MAX_WATCH_LINE_BYTES);
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
                    self.limits.record_progress(Instant::now());
                    let tool = self.conversation.only_tool().map(str::to_owned);
                    let mut data = EventData::AgentFileEdited(to_file_edited(*change, turn, tool));
                    let blob = clip_event(&mut data);
                    self.emit_raw_event(kind::AGENT_FILE_EDITED, data.to_json(), blob);
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

fn to_file_edited(change: Change, turn: i64, tool_use_id: Option<String>) -> FileEdited {
    FileEdited {
        file_path: change.file_path,
        change_type: match change.change_type {
            ChangeType::Created => FileChangeType::Created,
            ChangeType::Modified => FileChangeType::Modified,
            ChangeType::Deleted => FileChangeType::Deleted,
            ChangeType::Renamed => FileChangeType::Renamed,
        },
        old_path: change.old_path,
        lines_added: change.lines_added,
        lines_removed: change.lines_removed,
        diff_preview: change.diff_preview,
        full_diff: change.full_diff,
        full_diff_truncated: change.full_diff_truncated,
        full_diff_bytes: change.full_diff_bytes,
        full_diff_blob: None,
        binary: change.binary,
        size: change.size,
        sha256: change.sha256,
        turn: Some(turn),
        tool_use_id,
    }
}
