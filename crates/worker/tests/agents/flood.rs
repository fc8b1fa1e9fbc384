//! Floods every driver with every kind of line, with fresh ids and without answers. Each flood is larger than the memory
//! that the process may use, so a driver that remembers every line aborts it.
//!
//! A flood runs in a process of its own: the test runs itself again with a limit on its memory.

use crate::fuzz::{Corpus, line_kind};
use crate::golden::Replay;
use anyhow::{Context, Result, ensure};
use atoll_core::sandbox::ApprovalMode;
use atoll_drivers::response_assembly::ResponseAssembler;
use atoll_drivers::{AGENT_NAMES, AgentOutput};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::Command;

/// Names the agent to the process that runs its flood.
const AGENT_VARIABLE: &str = "ATOLL_TEST_FLOOD_AGENT";
/// Memory that a driver may use for one flood. The worker has 64 MB for everything.
const MEMORY_BYTES: u64 = 8 << 20;
/// Size of all lines of one flood.
const FLOOD_BYTES: usize = 11 << 20;
/// Approximate size of one line.
const PADDING_BYTES: usize = 14_000;

/// Fields whose text may grow.
const TEXT_FIELDS: &[&str] =
    &["text", "thinking", "title", "command", "delta", "output", "description", "prompt", "data", "message", "stderr"];
/// Fields with an object or a list that may grow.
const VALUE_FIELDS: &[&str] = &["rawInput", "input", "arguments", "metadata", "changes", "content", "questions"];

/// Kinds of lines that the recorded scenarios do not contain; `SESSION` stands for the scenario's session.
fn unrecorded_lines(agent: &str) -> Vec<Value> {
    let update =
        |update: Value| json!({"method": "session/update", "params": {"sessionId": "SESSION", "update": update}});
    let item = |item: Value| json!({"method": "item/started", "params": {"threadId": "SESSION", "item": item}});
    let event = |kind: &str, mut properties: Value| {
        properties["sessionID"] = "SESSION".into();
        json!({"event": {"data": {"type": kind, "properties": properties}}})
    };
    let part = |part: Value| event("message.part.updated", json!({ "part": part }));
    match agent {
        "acp" | "gemini" => vec![
            update(json!({"sessionUpdate": "tool_call", "toolCallId": "t", "status": "pending", "content": []})),
            update(json!({"sessionUpdate": "tool_call", "toolCallId": "t", "status": "in_progress", "rawInput": {}})),
            update(json!({"sessionUpdate": "tool_call_update", "toolCallId": "t", "title": "x"})),
            update(json!({"sessionUpdate": "agent_message_chunk", "messageId": "m", "content": {"text": "x"}})),
            update(json!({"sessionUpdate": "agent_thought_chunk", "content": {"text": "x"}})),
            update(json!({"sessionUpdate": "plan", "entries": [{"content": "x", "status": "pending"}]})),
            update(json!({"sessionUpdate": "usage_update", "cost": {"amount": 1.0}})),
            json!({"id": "r", "method": "session/request_permission", "params": {"sessionId": "SESSION",
                "toolCall": {"toolCallId": "t", "rawInput": {}}, "options": [{"kind": "allow_once", "optionId": "o"}]}}),
            json!({"id": "r", "method": "fs/read_text_file", "params": {"text": "x"}}),
        ],
        "claude" => vec![
            json!({"type": "assistant", "message": {"id": "m", "content": [
                {"type": "tool_use", "id": "t", "name": "Task", "input": {}}]}, "parent_tool_use_id": "p"}),
            json!({"type": "control_request", "request_id": "r", "request":
                {"subtype": "can_use_tool", "tool_name": "AskUserQuestion", "input": {}, "tool_use_id": "t"}}),
            json!({"type": "control_request", "request_id": "r", "request":
                {"subtype": "hook_callback", "callback_id": "after", "input": {"tool_use_id": "t"}}}),
            json!({"type": "control_request", "request_id": "r", "request": {"subtype": "unknown", "text": "x"}}),
        ],
        "codex" => vec![
            item(json!({"type": "collabAgentToolCall", "id": "t", "tool": "spawnAgent", "prompt": "x",
                "receiverThreadIds": ["r"]})),
            item(json!({"type": "mcpToolCall", "id": "t", "server": "s", "tool": "x", "arguments": {}})),
            item(json!({"type": "dynamicToolCall", "id": "t", "tool": "x", "arguments": {}})),
            item(json!({"type": "webSearch", "id": "t", "query": "x", "action": {"text": "x"}})),
            item(json!({"type": "fileChange", "id": "t", "changes": []})),
            json!({"id": "r", "method": "item/tool/requestUserInput", "params": {"itemId": "t", "questions": []}}),
            json!({"id": "r", "method": "item/permissions/requestApproval", "params":
                {"itemId": "t", "permissions": {"text": "x"}}}),
            json!({"id": "r", "method": "mcpServer/elicitation/request", "params": {"message": "x"}}),
            json!({"method": "error", "params": {"error": {"message": "x"}, "willRetry": true}}),
        ],
        "opencode" => vec![
            part(json!({"type": "tool", "id": "p", "callID": "t", "messageID": "m", "tool": "task",
                "state": {"status": "running", "input": {}, "metadata": {"sessionId": "s"}}})),
            part(json!({"type": "reasoning", "id": "p", "messageID": "m", "text": "x"})),
            part(json!({"type": "step-finish", "id": "p", "messageID": "m", "text": "x"})),
            event("message.updated", json!({"info": {"id": "m", "role": "assistant", "parentID": "x", "text": "x"}})),
            event("question.asked", json!({"id": "q", "questions": [], "tool": {"callID": "t"}})),
            event("permission.asked", json!({"id": "q", "permission": "bash", "metadata": {}})),
        ],
        _ => Vec::new(),
    }
}

/// Replaces every id, except the session's, and adds padding.
fn vary_line(value: &mut Value, number: usize, padding: &str) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                let lower = name.to_ascii_lowercase();
                let is_session = ["session", "thread", "callback_id"].iter().any(|part| lower.contains(part));
                match field {
                    Value::String(text) if lower.ends_with("id") && !is_session => *text = format!("{text}-{number}"),
                    Value::String(text) if TEXT_FIELDS.contains(&name.as_str()) => text.push_str(padding),
                    Value::Array(ids) if lower.ends_with("ids") => *ids = vec![format!("x-{number}").into()],
                    Value::Object(inner) if VALUE_FIELDS.contains(&name.as_str()) && inner.is_empty() => {
                        inner.insert("x".to_owned(), padding.into());
                    }
                    Value::Array(items) if VALUE_FIELDS.contains(&name.as_str()) && items.is_empty() => {
                        items.push(json!({"type": "text", "text": padding}));
                    }
                    other => vary_line(other, number, padding),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| vary_line(item, number, padding)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Finds the id of the session in the lines of a scenario.
fn find_session(value: &Value) -> Option<&str> {
    match value {
        Value::Object(fields) => {
            let named = ["sessionId", "threadId", "sessionID"].iter().find_map(|name| fields.get(*name)?.as_str());
            named.or_else(|| fields.values().find_map(find_session))
        }
        Value::Array(items) => items.iter().find_map(find_session),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// Sends variations of a line after the steps of its scenario.
fn flood_driver(agent: &str, steps: &[Value], line: &Value) -> Result<()> {
    let mut replay = Replay::new(agent, ApprovalMode::Ask)?;
    for step in steps {
        replay.run_step(step)?;
    }
    let mut assembler = ResponseAssembler::default();
    let padding = "x".repeat(PADDING_BYTES);
    let (mut sent, mut number) = (0, 0);
    while sent < FLOOD_BYTES {
        let mut line = line.clone();
        vary_line(&mut line, number, &padding);
        let line = line.to_string();
        // A line without any text to grow counts like the others.
        sent += line.len().max(PADDING_BYTES);
        number += 1;
        for output in replay.driver.handle_line(line.as_bytes()) {
            if let AgentOutput::Event(event) = output {
                assembler.observe_event(event.event_type.as_str(), event.data.get(), Some(1), &event.response);
            }
        }
    }
    Ok(())
}

fn run_floods(agent: &str) -> Result<()> {
    let corpus = Corpus::for_agent(agent)?;
    limit_memory()?;
    let mut kinds = BTreeSet::new();
    for scenario in &corpus.scenarios {
        for (at, step) in scenario.iter().enumerate() {
            let line = &step["line"];
            if line.is_object() && kinds.insert(line_kind(line)) {
                report(&format!("{agent}: {}", line_kind(line)));
                flood_driver(agent, &scenario[..at], line)?;
            }
        }
    }
    let Some(scenario) = corpus.scenarios.first() else { return Ok(()) };
    let is_work = |step: &Value| {
        let kind = line_kind(&step["line"]);
        ["tool", "item/started", "assistant"].iter().any(|word| kind.contains(word))
    };
    let in_turn = scenario.iter().position(is_work).unwrap_or(scenario.len() - 1);
    let session = scenario[..=in_turn].iter().rev().find_map(find_session).unwrap_or_default();
    for line in unrecorded_lines(agent) {
        let line = serde_json::from_str(&line.to_string().replace("SESSION", session))?;
        report(&format!("{agent}: {}", line_kind(&line)));
        flood_driver(agent, &scenario[..=in_turn], &line)?;
    }
    Ok(())
}

/// Limits the process to the memory that it has now and [`MEMORY_BYTES`].
fn limit_memory() -> Result<()> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let used = status.lines().find_map(|line| line.strip_prefix("VmData:")?.trim().strip_suffix(" kB"));
    let used: u64 = used.context("no VmData in /proc/self/status")?.trim().parse()?;
    let limit = Some(used * 1024 + MEMORY_BYTES);
    Ok(setrlimit(Resource::Data, Rlimit { current: limit, maximum: limit })?)
}

/// Tells the parent which flood runs.
fn report(text: &str) {
    drop(std::io::Write::write_all(&mut std::io::stderr().lock(), format!("{text}\n").as_bytes()));
}

/// Runs a driver's floods in a child process with limited memory.
fn check_floods(agent: &str) -> Result<()> {
    ensure!(AGENT_NAMES.contains(&agent), "{agent} has no driver");
    if std::env::var(AGENT_VARIABLE).is_ok_and(|chosen| chosen == agent) {
        return run_floods(agent);
    }
    let test = format!("flood::{agent}");
    let mut child = Command::new(std::env::current_exe()?);
    // One thread: each thread's heap would count.
    child.args(["--exact", &test, "--nocapture", "--test-threads=1"]).env(AGENT_VARIABLE, agent);
    let output = child.output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let last_lines: Vec<&str> = text.lines().rev().take(5).collect();
    ensure!(output.status.success(), "{:?}; last lines, newest first: {last_lines:#?}", output.status);
    Ok(())
}

macro_rules! flood_tests {
    ($($agent:ident),+) => {
        $(#[test]
        fn $agent() -> Result<()> {
            check_floods(stringify!($agent))
        })+

        #[test]
        fn covers_every_driver() {
            assert_eq!(AGENT_NAMES, [$(stringify!($agent)),+]);
        }
    };
}

flood_tests!(acp, claude, codex, demo, gemini, opencode);
