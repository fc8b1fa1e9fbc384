//! OpenAI's Responses, with custom tools that take free text.

use super::{CREATED_AT_SECONDS, SseEvent, array_items, string_or_empty};
use crate::answer::{Block, CallInput, ModelAnswer, ScriptedCall};
use crate::code_mode;
use crate::conversation::{Conversation, ConversationEntry, InputForm, Tool, text_of};
use serde_json::{Value, json};
use std::time::Duration;

pub(super) fn parse_request(body: &Value) -> Conversation {
    let mut entries = vec![ConversationEntry::System(text_of(&body["instructions"]))];
    match &body["input"] {
        Value::String(text) => entries.push(ConversationEntry::UserText(text.clone())),
        input => entries.extend(array_items(input).filter_map(parse_entry)),
    }
    Conversation {
        model: string_or_empty(&body["model"]),
        wants_stream: body["stream"] == true,
        wants_stream_usage: true,
        entries,
        tools: array_items(&body["tools"]).chain(additional_tools(&body["input"])).flat_map(parse_tools).collect(),
    }
}

/// The newest models get their tools in the input.
fn additional_tools(input: &Value) -> impl Iterator<Item = &Value> {
    array_items(input).filter(|item| item["type"] == "additional_tools").flat_map(|item| array_items(&item["tools"]))
}

fn parse_entry(item: &Value) -> Option<ConversationEntry> {
    match item["type"].as_str().unwrap_or("message") {
        "message" => match item["role"].as_str() {
            Some("user") => Some(ConversationEntry::UserText(text_of(&item["content"]))),
            Some("assistant") => Some(ConversationEntry::ModelText),
            Some(_) => Some(ConversationEntry::System(text_of(&item["content"]))),
            None => None,
        },
        "function_call_output" | "custom_tool_call_output" | "local_shell_call_output" => {
            Some(ConversationEntry::ToolResult(text_of(&item["output"])))
        }
        "function_call" | "custom_tool_call" | "local_shell_call" => Some(ConversationEntry::ToolCall),
        // Reasoning items are neither text nor calls.
        _ => None,
    }
}

fn parse_tools(tool: &Value) -> Vec<Tool> {
    let name = string_or_empty(&tool["name"]);
    match tool["type"].as_str() {
        Some("function") => vec![Tool::new(name, InputForm::Object(tool["parameters"].clone()))],
        Some("custom") => {
            let nested = code_mode::list_nested_tools(&name, tool["description"].as_str().unwrap_or_default());
            std::iter::once(Tool::new(name, InputForm::Text)).chain(nested).collect()
        }
        Some("namespace") => {
            let within = array_items(&tool["tools"]).flat_map(parse_tools);
            within.map(|inner| Tool { namespace: Some(name.clone()), ..inner }).collect()
        }
        // Skip tools that the model's provider runs, such as a web search.
        Some(_) | None => Vec::new(),
    }
}

fn response_json(
    conversation: &Conversation,
    answer: &ModelAnswer,
    status: &str,
    output: Value,
    usage: Value,
) -> Value {
    json!({
        "id": format!("resp_{}", answer.id), "object": "response", "created_at": CREATED_AT_SECONDS, "model": conversation.model,
        "status": status, "error": null, "output": output, "usage": usage,
    })
}

fn usage_json(answer: &ModelAnswer) -> Value {
    let usage = &answer.usage;
    let input = usage.input.saturating_add(usage.cache_read).saturating_add(usage.cache_write);
    json!({
        "input_tokens": input,
        "input_tokens_details": { "cached_tokens": usage.cache_read },
        "output_tokens": usage.output,
        "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": input.saturating_add(usage.output),
    })
}

fn encode_item(
    conversation: &Conversation,
    answer: &ModelAnswer,
    index: usize,
    block: &Block,
    calls: &mut usize,
) -> Value {
    let id = format!("{}_{index}", answer.id);
    match block {
        Block::Think(text) => {
            json!({ "type": "reasoning", "id": format!("rs_{id}"), "summary": [{ "type": "summary_text", "text": text }] })
        }
        Block::Text(pieces) => {
            let text: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
            json!({
                "type": "message", "id": format!("msg_{id}"), "role": "assistant", "status": "completed",
                "content": [{ "type": "output_text", "text": text, "annotations": [] }],
            })
        }
        Block::Call(call) => {
            let call_id = format!("call_{}", answer.call_id(*calls));
            *calls += 1;
            let mut item = call_item(&id, &call_id, call);
            let tool = conversation.tools.iter().find(|tool| tool.name == call.tool);
            if let Some(namespace) = tool.and_then(|tool| tool.namespace.as_deref()) {
                item["namespace"] = namespace.into();
            }
            item
        }
    }
}

fn call_item(id: &str, call_id: &str, call: &ScriptedCall) -> Value {
    match &call.input {
        CallInput::Object(input) => json!({
            "type": "function_call", "id": format!("fc_{id}"), "call_id": call_id, "name": call.tool,
            "arguments": input.to_string(), "status": "completed",
        }),
        CallInput::Text(text) => json!({
            "type": "custom_tool_call", "id": format!("ctc_{id}"), "call_id": call_id, "name": call.tool,
            "input": text, "status": "completed",
        }),
    }
}

fn encode_items(conversation: &Conversation, answer: &ModelAnswer) -> Vec<Value> {
    let mut calls = 0;
    let blocks = answer.blocks.iter().enumerate();
    blocks.map(|(index, block)| encode_item(conversation, answer, index, block, &mut calls)).collect()
}

pub(super) fn whole_response(conversation: &Conversation, answer: &ModelAnswer) -> Value {
    response_json(conversation, answer, "completed", encode_items(conversation, answer).into(), usage_json(answer))
}

pub(super) fn stream_events(conversation: &Conversation, answer: &ModelAnswer) -> Vec<SseEvent> {
    let mut stream = ResponsesStream { events: Vec::new() };
    let response = response_json(conversation, answer, "in_progress", json!([]), Value::Null);
    stream.push_event("response.created", json!({ "response": response }), Duration::ZERO);
    let items = encode_items(conversation, answer);
    for (index, (block, item)) in answer.blocks.iter().zip(&items).enumerate() {
        stream.push_item(index, block, item);
    }
    let ended = response_json(conversation, answer, "completed", items.into(), usage_json(answer));
    stream.push_event("response.completed", json!({ "response": ended }), Duration::ZERO);
    stream.events
}

struct ResponsesStream {
    events: Vec<SseEvent>,
}

impl ResponsesStream {
    fn push_event(&mut self, name: &'static str, mut data: Value, pause: Duration) {
        data["type"] = name.into();
        data["sequence_number"] = self.events.len().into();
        self.events.push(SseEvent::new(Some(name), &data).with_pause(pause));
    }

    fn push_item(&mut self, index: usize, block: &Block, item: &Value) {
        let id = &item["id"];
        let mut added = item.clone();
        added["status"] = "in_progress".into();
        let empty = match block {
            Block::Think(_) => ("summary", json!([])),
            Block::Text(_) => ("content", json!([])),
            Block::Call(ScriptedCall { input: CallInput::Object(_), .. }) => ("arguments", json!("")),
            Block::Call(ScriptedCall { input: CallInput::Text(_), .. }) => ("input", json!("")),
        };
        added[empty.0] = empty.1;
        self.push_event("response.output_item.added", json!({ "output_index": index, "item": added }), Duration::ZERO);
        let at = json!({ "output_index": index, "item_id": id });
        let with = |more: Value| merge_objects(&at, more);
        match block {
            Block::Think(text) => {
                let part = |text: &str| json!({ "summary_index": 0, "part": { "type": "summary_text", "text": text } });
                self.push_event("response.reasoning_summary_part.added", with(part("")), Duration::ZERO);
                let delta = with(json!({ "summary_index": 0, "delta": text }));
                self.push_event("response.reasoning_summary_text.delta", delta, Duration::ZERO);
                let done = with(json!({ "summary_index": 0, "text": text }));
                self.push_event("response.reasoning_summary_text.done", done, Duration::ZERO);
                self.push_event("response.reasoning_summary_part.done", with(part(text)), Duration::ZERO);
            }
            Block::Text(pieces) => {
                let text: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
                let part = |text: &str| json!({ "content_index": 0, "part": { "type": "output_text", "text": text, "annotations": [] } });
                self.push_event("response.content_part.added", with(part("")), Duration::ZERO);
                for piece in pieces {
                    let delta = with(json!({ "content_index": 0, "delta": piece.text }));
                    self.push_event("response.output_text.delta", delta, piece.pause);
                }
                let done = with(json!({ "content_index": 0, "text": text }));
                self.push_event("response.output_text.done", done, Duration::ZERO);
                self.push_event("response.content_part.done", with(part(&text)), Duration::ZERO);
            }
            Block::Call(ScriptedCall { input: CallInput::Object(input), .. }) => {
                let input = input.to_string();
                let delta = with(json!({ "delta": input }));
                self.push_event("response.function_call_arguments.delta", delta, Duration::ZERO);
                let done = with(json!({ "arguments": input }));
                self.push_event("response.function_call_arguments.done", done, Duration::ZERO);
            }
            Block::Call(ScriptedCall { input: CallInput::Text(text), .. }) => {
                self.push_event(
                    "response.custom_tool_call_input.delta",
                    with(json!({ "delta": text })),
                    Duration::ZERO,
                );
                self.push_event("response.custom_tool_call_input.done", with(json!({ "input": text })), Duration::ZERO);
            }
        }
        self.push_event("response.output_item.done", json!({ "output_index": index, "item": item }), Duration::ZERO);
    }
}

fn merge_objects(base: &Value, more: Value) -> Value {
    let mut merged = base.clone();
    if let (Value::Object(merged), Value::Object(more)) = (&mut merged, more) {
        merged.extend(more);
    }
    merged
}
