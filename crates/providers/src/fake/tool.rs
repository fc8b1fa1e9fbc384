//! The tools of the fake agent: it writes files of the tree and runs commands of the table.

use super::desk::is_interrupt;
use super::diff::{Diff, unified};
use super::tree::within;
use super::turn::{Agent, clip};
use crate::locked;
use atoll_core::event::kind;
use atoll_core::provider::{Command, ExecEvent, ExecSpec, ExecStream, Exit};
use bytes::Bytes;
use futures_util::StreamExt;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

const MAX_OUTPUT: usize = 32 << 10;
const MAX_DIFF: usize = 50_000;
const MAX_PREVIEW: usize = 2_000;
const NOTES: &str = "NOTES.md";
const COMMAND_TIMEOUT: Duration = Duration::from_secs(600);
const SIGKILL: i32 = 9;

impl Agent<'_> {
    /// One more line of notes.
    pub(super) fn note(&mut self, text: &str) {
        let old = locked(&self.place.ground.tree).read(NOTES).unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        let content = format!("{}- {}\n", String::from_utf8_lossy(&old), clip(line, 200));
        self.edit(NOTES, &content);
    }

    /// Writes a file, and says so the way a file watcher would.
    pub(super) fn edit(&mut self, file: &str, content: &str) {
        let input = json!({"file_path": file, "content": clip(content, MAX_OUTPUT)});
        let call = self.tool("Write", &input);
        let old = locked(&self.place.ground.tree).read(file).ok();
        let written = within(file).and_then(|path| {
            locked(&self.place.ground.tree).write(&path, Bytes::copy_from_slice(content.as_bytes())).map(|()| path)
        });
        match written {
            Ok(path) => {
                let old = old.map(|old| String::from_utf8_lossy(&old).into_owned());
                let Diff { added, removed, text } = unified(&path, old.as_deref(), content);
                let mut edited = json!({
                    "file_path": path,
                    "change_type": if old.is_some() { "modified" } else { "created" },
                    "lines_added": added,
                    "lines_removed": removed,
                    "diff_preview": clip(&text, MAX_PREVIEW),
                    "full_diff": clip(&text, MAX_DIFF),
                    "turn": self.turn,
                    "tool_use_id": call,
                });
                if text.len() > MAX_DIFF {
                    edited["full_diff_truncated"] = true.into();
                }
                self.emit(kind::AGENT_FILE_EDITED, edited);
                self.tool_done("Write", &call, json!({"output": format!("wrote {path}"), "is_error": false}));
            }
            Err(error) => self.tool_done("Write", &call, json!({"output": error.to_string(), "is_error": true})),
        }
    }

    /// Runs a scripted command; an interrupt kills it.
    pub(super) async fn run_command(&mut self, command: &str) {
        let call = self.tool("Bash", &json!({"command": clip(command, MAX_OUTPUT)}));
        let spec = ExecSpec {
            command: Command::Shell(command.to_owned()),
            cwd: None,
            env: BTreeMap::new(),
            stdin: false,
            as_root: false,
            terminal: None,
            timeout: Some(COMMAND_TIMEOUT),
        };
        let table = &self.place.table;
        let id = table.spawn(&self.place.ground, &spec);
        let mut output = String::new();
        let exit = match table.attach(id, 0) {
            Ok(stream) => {
                let ended = collect(stream, &mut output);
                tokio::pin!(ended);
                tokio::select! {
                    exit = &mut ended => exit,
                    () = self.desk.until(is_interrupt) => {
                        // It can't fail: the command is in the table, and its end is waited for next.
                        let _ = table.signal(id, SIGKILL);
                        ended.await
                    }
                }
            }
            Err(_) => Exit::Unknown,
        };
        let is_error = exit != Exit::Exited { code: 0 };
        let done = json!({"output": clip(&output, MAX_OUTPUT), "exit": exit, "is_error": is_error});
        self.tool_done("Bash", &call, done);
    }

    fn tool(&mut self, tool: &str, input: &Value) -> String {
        self.tools += 1;
        let call = format!("tool_{}_{}", self.turn, self.tools);
        self.emit(kind::AGENT_TOOL_USE, json!({"tool": tool, "tool_use_id": call, "input": input}));
        call
    }

    fn tool_done(&self, tool: &str, call: &str, mut data: Value) {
        data["tool"] = tool.into();
        data["tool_use_id"] = call.into();
        self.emit(kind::AGENT_TOOL_COMPLETED, data);
    }
}

async fn collect(mut stream: ExecStream, output: &mut String) -> Exit {
    while let Some(event) = stream.next().await {
        match event {
            Ok(ExecEvent::Output { data, .. }) if output.len() < MAX_OUTPUT => {
                output.push_str(&String::from_utf8_lossy(&data));
            }
            Ok(ExecEvent::Output { .. } | ExecEvent::Gap { .. }) => {}
            Ok(ExecEvent::Ended(exit)) => return exit,
            Err(_) => return Exit::Unknown,
        }
    }
    Exit::Unknown
}
