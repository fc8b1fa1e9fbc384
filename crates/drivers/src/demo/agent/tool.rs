//! The demo agent's tools: they write files and run commands of the host.

use super::{CommandEnd, DemoAgent, DemoHost};
use crate::demo::demo_wire::{DemoAnswer, DemoDecision, DemoOutput, ToolCheck, tool_check_id};
use atoll_api::events::{EventData, ToolCompleted, ToolUse};
use atoll_core::provider::CommandExit;
use serde_json::{Value, json};
use std::time::Duration;

/// Maximum size of one text in a line of output. With its escapes the line stays below the worker's limit.
pub const MAX_OUTPUT: usize = 512 << 10;
/// Maximum size of that text as JSON.
const MAX_ESCAPED_BYTES: usize = 900 << 10;
const COMMAND_TIMEOUT: Duration = Duration::from_secs(600);

/// Returns the start of a text that fits into a line of output.
pub(super) fn clip_output(text: &str) -> &str {
    crate::event_clipping::clip_escaped(text, MAX_OUTPUT, MAX_ESCAPED_BYTES)
}

/// Returns at most the first `limit` bytes.
pub(super) fn clip_text(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

impl<H: DemoHost> DemoAgent<H> {
    /// Writes a file. The watcher reports the change.
    pub(super) async fn write_file(&mut self, file: &str, content: &str) {
        // The agent writes what it reports and what a person approves, not more.
        let content = clip_output(content);
        let request = json!({"file_path": file, "content": content});
        let call = self.start_tool("Write", &request);
        let written = match self.check_tool("Write", &call, request).await {
            Ok(input) => {
                let changed = |field: &str| input.as_ref().and_then(|input| input[field].as_str());
                let (file, content) = (changed("file_path").unwrap_or(file), changed("content").unwrap_or(content));
                let written = self.host.write_file(file, content);
                written.map(|()| format!("wrote {file}")).map_err(|error| format!("failed to write {file}: {error}"))
            }
            Err(reason) => Err(reason),
        };
        self.end_tool("Write", &call, written, None).await;
    }

    /// Runs a command; an interrupt kills it.
    pub(super) async fn run_command(&mut self, command: &str) -> CommandExit {
        let command = clip_output(command);
        let request = json!({"command": command});
        let call = self.start_tool("Bash", &request);
        let input = match self.check_tool("Bash", &call, request).await {
            Ok(input) => input,
            Err(reason) => {
                self.end_tool("Bash", &call, Err(reason), None).await;
                return CommandExit::Unknown;
            }
        };
        let command = input.as_ref().and_then(|input| input["command"].as_str()).unwrap_or(command);
        let CommandEnd { exit, output, bytes } = self.run_shell(command).await;
        let output = clip_output(&output);
        let output_bytes = Some(bytes).filter(|bytes| (output.len() as u64) < *bytes);
        self.report_tool_end(ToolCompleted {
            tool: "Bash".to_owned(),
            tool_use_id: call,
            output: output.into(),
            is_error: exit != (CommandExit::Exited { code: 0 }),
            truncated: output_bytes.is_some(),
            output_bytes,
            exit: Some(exit),
            ..ToolCompleted::default()
        })
        .await;
        exit
    }

    async fn run_shell(&mut self, command: &str) -> CommandEnd {
        if let Err(error) = self.host.start_command(command) {
            return CommandEnd::new(CommandExit::Unknown, format!("failed to run a shell: {error}"));
        }
        let deadline = self.host.now() + COMMAND_TIMEOUT;
        let mut timed_out = false;
        loop {
            match self.wait_for_input((!timed_out).then_some(deadline)).await {
                Some(end) if timed_out => return CommandEnd { exit: CommandExit::TimedOut, ..end },
                Some(end) => return end,
                None if self.inbox.has_interrupt() => self.host.kill_command(),
                None if self.host.now() >= deadline => {
                    timed_out = true;
                    self.host.kill_command();
                }
                None => {}
            }
        }
    }

    pub(super) fn start_tool(&mut self, tool: &str, input: &Value) -> String {
        self.tool_count += 1;
        let call = format!("tool_{}_{}", self.turn, self.tool_count);
        let (tool, tool_use_id, input) = (tool.to_owned(), call.clone(), input.clone());
        self.emit_event(&EventData::AgentToolUse(ToolUse { tool, tool_use_id, input, ..ToolUse::default() }));
        call
    }

    /// Asks for permission. Returns a replacement for the input, or the reason of the denial.
    async fn check_tool(&mut self, tool: &str, call: &str, input: Value) -> Result<Option<Value>, String> {
        if !self.options.is_watched {
            return Ok(None);
        }
        let check = ToolCheck { tool_use_id: call.to_owned(), tool: tool.to_owned(), input };
        self.write_output(&DemoOutput { before: Some(check), ..DemoOutput::default() });
        match self.wait_for_answer(&tool_check_id(call)).await {
            Some(DemoAnswer { decision: DemoDecision::Allow, input, .. }) => Ok(input),
            Some(DemoAnswer { decision: DemoDecision::Deny, reason, .. }) => {
                Err(reason.unwrap_or_else(|| "the tool call was denied".to_owned()))
            }
            None => Err("the tool call was not approved".to_owned()),
        }
    }

    /// Reports the tool's output, which is an error if the tool failed.
    pub(super) async fn end_tool(
        &mut self,
        tool: &str,
        call: &str,
        result: Result<String, String>,
        exit: Option<CommandExit>,
    ) {
        let is_error = result.is_err();
        let (Ok(output) | Err(output)) = result;
        let (tool, tool_use_id, output) = (tool.to_owned(), call.to_owned(), output.into());
        let end = ToolCompleted { tool, tool_use_id, output, is_error, exit, ..ToolCompleted::default() };
        self.report_tool_end(end).await;
    }

    async fn report_tool_end(&mut self, end: ToolCompleted) {
        let call = end.tool_use_id.clone();
        self.emit_event(&EventData::AgentToolCompleted(end));
        if self.options.is_watched {
            self.wait_for_scan(&call).await;
        }
    }
}
