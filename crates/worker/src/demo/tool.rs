//! The demo agent's tools: it writes files and runs commands, for real.

use super::inbox::Incoming;
use super::turn::Agent;
use super::wire::{Answer, Before, Decision, Out, before};
use atoll_core::event::kind;
use atoll_core::provider::Exit;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How much of a text stands in an event.
pub(super) const MAX_OUTPUT: usize = 32 << 10;
const COMMAND_TIMEOUT: Duration = Duration::from_secs(600);
/// How long those that a command left behind can hold its output open.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// The beginning of `text`, at most `limit` bytes.
pub(super) fn clip(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

impl Agent {
    /// Writes a file; says whether that went well. The worker sees for itself what has changed.
    pub(super) fn edit(&mut self, file: &str, content: &str) -> bool {
        let wanted = json!({"file_path": file, "content": clip(content, MAX_OUTPUT)});
        let call = self.tool("Write", &wanted);
        let input = match self.before("Write", &call, &wanted) {
            Ok(input) => input,
            Err(reason) => {
                self.tool_done("Write", &call, json!({"output": reason, "is_error": true}));
                return false;
            }
        };
        let changed = |field: &str| input.as_ref().and_then(|input| input[field].as_str());
        let (file, content) = (changed("file_path").unwrap_or(file), changed("content").unwrap_or(content));
        let written = match Path::new(file).parent() {
            Some(parent) => std::fs::create_dir_all(parent).and_then(|()| std::fs::write(file, content)),
            None => std::fs::write(file, content),
        };
        let output = match &written {
            Ok(()) => format!("wrote {file}"),
            Err(error) => format!("failed to write {file}: {error}"),
        };
        self.tool_done("Write", &call, json!({"output": output, "is_error": written.is_err()}));
        written.is_ok()
    }

    /// Runs a command; an interrupt kills it.
    pub(super) fn run_command(&mut self, command: &str) -> Exit {
        let wanted = json!({"command": clip(command, MAX_OUTPUT)});
        let call = self.tool("Bash", &wanted);
        let input = match self.before("Bash", &call, &wanted) {
            Ok(input) => input,
            Err(reason) => {
                self.tool_done("Bash", &call, json!({"output": reason, "is_error": true}));
                return Exit::Unknown;
            }
        };
        let command = input.as_ref().and_then(|input| input["command"].as_str()).unwrap_or(command);
        let (exit, output) = match self.execute(command) {
            Ok(ended) => ended,
            Err(error) => (Exit::Unknown, format!("failed to run a shell: {error}")),
        };
        let is_error = exit != Exit::Exited { code: 0 };
        self.tool_done("Bash", &call, json!({"output": output, "exit": exit, "is_error": is_error}));
        exit
    }

    fn execute(&mut self, command: &str) -> std::io::Result<(Exit, String)> {
        let (reader, writer) = std::io::pipe()?;
        let child = Command::new("/bin/sh")
            .args(["-c", command])
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .process_group(0)
            .spawn()?;
        let group = Pid::from_child(&child);
        let kill = || {
            let _ = kill_process_group(group, Signal::KILL);
        };
        let heard = collect(reader)?;
        self.wait_for(child)?;
        let deadline = Instant::now() + COMMAND_TIMEOUT;
        let mut timed_out = false;
        let exit = loop {
            match self.inbox.wait((!timed_out).then_some(deadline)) {
                Some(exit) => break exit,
                None if self.inbox.has_interrupt() => kill(),
                None if Instant::now() >= deadline => {
                    timed_out = true;
                    kill();
                }
                None => {}
            }
        };
        Ok((if timed_out { Exit::TimedOut } else { exit }, heard.text()))
    }

    /// Its end comes through the inbox, like everything that the agent waits for.
    fn wait_for(&self, mut child: Child) -> std::io::Result<()> {
        let ended = self.inbox.sender();
        std::thread::Builder::new().name("wait".into()).spawn(move || {
            let exit = match child.wait() {
                Ok(status) => match (status.code(), status.signal()) {
                    (Some(code), _) => Exit::Exited { code },
                    (None, Some(signal)) => Exit::Signalled { signal },
                    (None, None) => Exit::Unknown,
                },
                Err(_) => Exit::Unknown,
            };
            // If the agent is gone, nobody waits.
            drop(ended.send(Incoming::Ended(exit)));
        })?;
        Ok(())
    }

    pub(super) fn tool(&mut self, tool: &str, input: &Value) -> String {
        self.tools += 1;
        let call = format!("tool_{}_{}", self.turn, self.tools);
        self.emit(kind::AGENT_TOOL_USE, &json!({"tool": tool, "tool_use_id": call, "input": input}));
        call
    }

    /// Asks whether the tool may be used; other input than what it wanted may come back, or why it may not.
    fn before(&mut self, tool: &str, call: &str, input: &Value) -> Result<Option<Value>, String> {
        if !self.watched {
            return Ok(None);
        }
        let asks = Before { tool_use_id: call.to_owned(), tool: tool.to_owned(), input: input.clone() };
        self.write(&Out { before: Some(asks), ..Out::default() });
        match self.inbox.wait_for_answer(&before(call)) {
            Some(Answer { decision: Decision::Allow, input, .. }) => Ok(input),
            Some(Answer { decision: Decision::Deny, reason, .. }) => {
                Err(reason.unwrap_or_else(|| "it was denied".to_owned()))
            }
            None => Err("nobody said that it may be used".to_owned()),
        }
    }

    pub(super) fn tool_done(&mut self, tool: &str, call: &str, mut data: Value) {
        data["tool"] = tool.into();
        data["tool_use_id"] = call.into();
        self.emit(kind::AGENT_TOOL_COMPLETED, &data);
        if self.watched {
            self.inbox.wait_until_seen(call);
        }
    }
}

/// What a command has said.
struct Heard {
    output: Arc<Mutex<Vec<u8>>>,
    /// Says nothing; it ends with the output.
    open: Receiver<()>,
}

impl Heard {
    fn text(&self) -> String {
        // The output has ended, or somebody whom the command left behind holds it.
        let _ = self.open.recv_timeout(LAST_WORDS);
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        clip(&String::from_utf8_lossy(&output), MAX_OUTPUT).to_owned()
    }
}

/// Reads to the end and keeps the beginning, so that a command that says much can go on.
fn collect(mut reader: impl Read + Send + 'static) -> std::io::Result<Heard> {
    let output = Arc::new(Mutex::new(Vec::new()));
    let (kept, (closed, open)) = (output.clone(), channel::<()>());
    std::thread::Builder::new().name("output".into()).spawn(move || {
        let mut chunk = vec![0; 8192];
        while let Ok(length) = reader.read(&mut chunk)
            && length > 0
        {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            let room = MAX_OUTPUT.saturating_sub(kept.len()).min(length);
            kept.extend_from_slice(&chunk[..room]);
        }
        drop(closed);
    })?;
    Ok(Heard { output, open })
}
