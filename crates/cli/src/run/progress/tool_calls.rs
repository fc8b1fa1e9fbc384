//! Tool calls in progress.

use crate::render::text;
use crate::render::tool_input::describe_input;
use atoll_api::events::{ToolCompleted, ToolUse};
use atoll_core::time::Timestamp;
use std::time::Duration;

/// Limit on open calls, for agents that do not report the end of their calls.
const MAX_CALLS: usize = 200;

#[derive(Debug)]
struct ToolCall {
    id: String,
    description: String,
    started_at: Timestamp,
    /// An edit event has reported the change of this call.
    is_edit: bool,
}

#[derive(Debug, Default)]
pub struct ToolCalls(Vec<ToolCall>);

/// A tool call that has ended.
pub struct FinishedCall {
    pub description: String,
    pub duration: Option<Duration>,
    pub is_edit: bool,
}

/// The tool and its most telling argument, escaped.
pub fn describe_call(call: &ToolUse) -> String {
    let tool = text::escape_clipped(&call.tool, 40);
    let input = text::escape_clipped(describe_input(&call.input).trim(), 400);
    if input.is_empty() { tool } else { format!("{tool}  {input}") }
}

impl ToolCalls {
    pub fn start_call(&mut self, call: &ToolUse, started_at: Timestamp) {
        if call.tool_use_id.is_empty() {
            return;
        }
        if self.0.len() >= MAX_CALLS {
            self.0.remove(0);
        }
        let (id, description) = (call.tool_use_id.clone(), describe_call(call));
        self.0.push(ToolCall { id, description, started_at, is_edit: false });
    }

    pub fn mark_edited(&mut self, id: Option<&str>) {
        let call = self.0.iter_mut().find(|call| Some(call.id.as_str()) == id);
        if let Some(call) = call {
            call.is_edit = true;
        }
    }

    pub fn finish_call(&mut self, done: &ToolCompleted, ended_at: Timestamp) -> FinishedCall {
        let at = self.0.iter().position(|call| call.id == done.tool_use_id);
        match at.map(|at| self.0.remove(at)) {
            Some(call) => FinishedCall {
                duration: Some(ended_at.elapsed_since(call.started_at)),
                description: call.description,
                is_edit: call.is_edit,
            },
            // The call started before the first event that we have.
            None => FinishedCall { description: text::escape_clipped(&done.tool, 40), duration: None, is_edit: false },
        }
    }

    /// The newest open call other than `except`.
    pub fn newest_open(&self, except: Option<&str>) -> Option<String> {
        self.0.iter().rev().find(|call| Some(call.id.as_str()) != except).map(|call| call.description.clone())
    }

    pub fn clear_calls(&mut self) {
        self.0.clear();
    }
}
