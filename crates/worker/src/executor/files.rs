//! The changes of files, as the hands see them.

use crate::files::Change;
use crate::hands::{Handle, Seen};
use crate::input::{Line, Lines};
use atoll_core::bounds::EVENT_DATA;
use rustix::pipe::{PipeFlags, pipe_with};
use serde_json::json;
use serde_json::value::RawValue;
use std::io;
use std::path::PathBuf;
use tokio::net::unix::pipe::Receiver;

const CHUNK: usize = 64 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nobody watches.
    Off,
    /// The first look is under way.
    Opening,
    On,
}

#[derive(Debug)]
pub(super) struct Files {
    hands: Handle,
    root: PathBuf,
    pipe: Option<Receiver>,
    lines: Lines,
    state: State,
    asked: u64,
    buffer: Vec<u8>,
}

impl Files {
    pub(super) const fn new(hands: Handle, root: PathBuf) -> Self {
        Self { hands, root, pipe: None, lines: Lines::new(), state: State::Off, asked: 0, buffer: Vec::new() }
    }

    /// Begins to watch. `next` says when changes are seen.
    pub(super) fn start(&mut self) {
        let made = pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from);
        match made.and_then(|(ours, theirs)| Ok((Receiver::from_owned_fd(ours)?, theirs))) {
            Ok((ours, theirs)) => {
                (self.pipe, self.state) = (Some(ours), State::Opening);
                self.lines = Lines::new();
                self.buffer.resize(CHUNK, 0);
                self.hands.watch(self.root.clone(), theirs);
            }
            Err(error) => tracing::warn!(%error, "changes of files are not seen in this turn"),
        }
    }

    pub(super) const fn is_open(&self) -> bool {
        self.pipe.is_some()
    }

    pub(super) fn is_opening(&self) -> bool {
        self.state == State::Opening
    }

    pub(super) fn is_watching(&self) -> bool {
        self.state == State::On
    }

    /// Asks for everything that has changed until now; the number comes back when it is told.
    pub(super) fn flush(&mut self) -> u64 {
        self.asked += 1;
        self.hands.flush(self.asked);
        self.asked
    }

    /// Nothing more is to be seen; what is still on its way is heard.
    pub(super) fn stop(&mut self) {
        if std::mem::replace(&mut self.state, State::Off) != State::Off {
            self.hands.unwatch();
        }
    }

    /// What was seen. Nothing, after which it is not open any more, when nobody watches.
    pub(super) async fn next(&mut self) -> Vec<Seen> {
        let Some(pipe) = &self.pipe else { return std::future::pending().await };
        let mut seen = Vec::new();
        let over = match pipe.readable().await.and_then(|()| pipe.try_read(&mut self.buffer)) {
            Ok(0) => true,
            Ok(length) => {
                self.lines.push(&self.buffer[..length], |line| seen.extend(read(&line)));
                false
            }
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        };
        if over {
            (self.pipe, self.state) = (None, State::Off);
            self.buffer = Vec::new();
        }
        for seen in &seen {
            match seen {
                Seen::Watching if self.state == State::Opening => self.state = State::On,
                Seen::Failed(error) => {
                    tracing::warn!(error, "changes of files are not seen in this turn");
                    self.stop();
                }
                Seen::Watching | Seen::Change(_) | Seen::Flushed(_) => {}
            }
        }
        seen
    }
}

fn read(line: &Line<'_>) -> Option<Seen> {
    let read = match line {
        Line::Whole(bytes) => serde_json::from_slice(bytes).map_err(|error| error.to_string()),
        Line::TooLong { bytes, .. } => Err(format!("a line of {bytes} bytes")),
    };
    if let Err(error) = &read {
        tracing::warn!(error, "what was seen of a file can't be read");
    }
    read.ok()
}

/// The data of `agent.file_edited`. A diff full of characters that take more room when they are written down is cut
/// further, so that the event is not refused.
pub(super) fn edited(change: &Change, turn: i64, tool: Option<&str>) -> Box<RawValue> {
    let mut change = change.clone();
    loop {
        let mut data = json!(change);
        data["turn"] = turn.into();
        if let Some(tool) = tool {
            data["tool_use_id"] = tool.into();
        }
        let data = atoll_core::json::raw(&data);
        match &mut change.full_diff {
            Some(diff) if data.get().len() > EVENT_DATA => {
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
    use crate::files::ChangeType;
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
    fn an_edit_names_its_turn_and_tool() {
        let data: Value = serde_json::from_str(edited(&change("+x\n"), 3, Some("t")).get()).unwrap();
        assert_eq!((&data["turn"], &data["tool_use_id"], &data["full_diff"]), (&json!(3), &json!("t"), &json!("+x\n")));
        let data: Value = serde_json::from_str(edited(&change("+x\n"), 3, None).get()).unwrap();
        assert_eq!(data.get("tool_use_id"), None);
    }

    #[test]
    fn a_diff_that_grows_when_written_down_still_fits() {
        let data = edited(&change(&"\u{1}".repeat(50_000)), 1, None);
        assert!(data.get().len() <= EVENT_DATA);
        let data: Value = serde_json::from_str(data.get()).unwrap();
        assert_eq!(data["full_diff_truncated"], true);
    }
}
