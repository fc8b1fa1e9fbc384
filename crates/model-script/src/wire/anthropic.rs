//! Anthropic's Messages.

use super::{SseEvent, array_items, string_or_empty};
use crate::answer::{Block, ModelAnswer};
use crate::conversation::{Conversation, ConversationEntry, InputForm, Tool, text_of};
use serde_json::{Value, json};
use std::time::Duration;

pub(super) fn parse_request(body: &Value) -> Conversation {
    let mut entries = vec![ConversationEntry::System(text_of(&body["system"]))];
    for message in array_items(&body["messages"]) {
        let assistant = message["role"] == "assistant";
        match &message["content"] {
            Value::Array(blocks) => entries.extend(blocks.iter().filter_map(|block| parse_entry(assistant, block))),
            _ if assistant => entries.push(ConversationEntry::ModelText),
            content => entries.push(ConversationEntry::UserText(text_of(content))),
        }
    }
    let tools = array_items(&body["tools"])
        .map(|tool| Tool::new(string_or_empty(&tool["name"]), InputForm::Object(tool["input_schema"].clone())));
    Conversation {
        model: string_or_empty(&body["model"]),
        wants_stream: body["stream"] == true,
        wants_stream_usage: true,
        entries,
        tools: tools.collect(),
    }
}

fn parse_entry(assistant: bool, block: &Value) -> Option<ConversationEntry> {
    match (assistant, block["type"].as_str()) {
        (true, Some("tool_use")) => Some(ConversationEntry::ToolCall),
        (true, _) => Some(ConversationEntry::ModelText),
        (false, Some("tool_result")) => Some(ConversationEntry::ToolResult(text_of(&block["content"]))),
        (false, Some("text")) => Some(ConversationEntry::UserText(string_or_empty(&block["text"]))),
        (false, _) => None,
    }
}

fn usage_json(answer: &ModelAnswer, output: u64) -> Value {
    let usage = &answer.usage;
    json!({
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": output,
    })
}

const fn stop_reason(calls: bool) -> &'static str {
    if calls { "tool_use" } else { "end_turn" }
}

pub(super) fn whole_response(conversation: &Conversation, answer: &ModelAnswer) -> Value {
    let mut calls = 0;
    let content = answer.blocks.iter().map(|block| match block {
        Block::Think(text) => json!({ "type": "thinking", "thinking": text, "signature": "scripted" }),
        Block::Text(pieces) => {
            let text: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
            json!({ "type": "text", "text": text })
        }
        Block::Call(call) => {
            let id = format!("toolu_{}", answer.call_id(calls));
            calls += 1;
            json!({ "type": "tool_use", "id": id, "name": call.tool, "input": call.input.to_object() })
        }
    });
    let content: Vec<_> = content.collect();
    json!({
        "id": format!("msg_{}", answer.id), "type": "message", "role": "assistant", "model": conversation.model,
        "content": content, "stop_reason": stop_reason(calls > 0), "stop_sequence": null,
        "usage": usage_json(answer, answer.usage.output),
    })
}

pub(super) fn stream_events(conversation: &Conversation, answer: &ModelAnswer) -> Vec<SseEvent> {
    let start = json!({
        "id": format!("msg_{}", answer.id), "type": "message", "role": "assistant", "model": conversation.model,
        "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage_json(answer, 1),
    });
    let mut stream = AnthropicStream { events: Vec::new() };
    stream.push_event("message_start", json!({ "message": start }), Duration::ZERO);
    let mut calls = 0;
    for (index, block) in answer.blocks.iter().enumerate() {
        match block {
            Block::Think(text) => {
                stream.open_block(index, json!({ "type": "thinking", "thinking": "", "signature": "" }));
                stream.push_delta(index, json!({ "type": "thinking_delta", "thinking": text }), Duration::ZERO);
                stream.push_delta(index, json!({ "type": "signature_delta", "signature": "scripted" }), Duration::ZERO);
            }
            Block::Text(pieces) => {
                stream.open_block(index, json!({ "type": "text", "text": "" }));
                for piece in pieces {
                    stream.push_delta(index, json!({ "type": "text_delta", "text": piece.text }), piece.pause);
                }
            }
            Block::Call(call) => {
                let id = format!("toolu_{}", answer.call_id(calls));
                calls += 1;
                stream.open_block(index, json!({ "type": "tool_use", "id": id, "name": call.tool, "input": {} }));
                let input = call.input.to_object().to_string();
                stream.push_delta(index, json!({ "type": "input_json_delta", "partial_json": input }), Duration::ZERO);
            }
        }
        stream.push_event("content_block_stop", json!({ "index": index }), Duration::ZERO);
    }
    let delta = json!({ "stop_reason": stop_reason(calls > 0), "stop_sequence": null });
    let usage = usage_json(answer, answer.usage.output);
    stream.push_event("message_delta", json!({ "delta": delta, "usage": usage }), Duration::ZERO);
    stream.push_event("message_stop", json!({}), Duration::ZERO);
    stream.events
}

struct AnthropicStream {
    events: Vec<SseEvent>,
}

impl AnthropicStream {
    fn push_event(&mut self, name: &'static str, mut data: Value, pause: Duration) {
        data["type"] = name.into();
        self.events.push(SseEvent::new(Some(name), &data).with_pause(pause));
    }

    fn open_block(&mut self, index: usize, block: Value) {
        self.push_event("content_block_start", json!({ "index": index, "content_block": block }), Duration::ZERO);
    }

    fn push_delta(&mut self, index: usize, delta: Value, pause: Duration) {
        self.push_event("content_block_delta", json!({ "index": index, "delta": delta }), pause);
    }
}
