//! Anthropic's Messages.

use super::{Event, list, string};
use crate::answer::{Answer, Block};
use crate::conversation::{Conversation, Entry, Form, Tool, text_of};
use serde_json::{Value, json};
use std::time::Duration;

pub(super) fn read(body: &Value) -> Conversation {
    let mut entries = vec![Entry::System(text_of(&body["system"]))];
    for message in list(&body["messages"]) {
        let assistant = message["role"] == "assistant";
        match &message["content"] {
            Value::Array(blocks) => entries.extend(blocks.iter().filter_map(|block| entry(assistant, block))),
            _ if assistant => entries.push(Entry::Said),
            content => entries.push(Entry::Told(text_of(content))),
        }
    }
    let tools = list(&body["tools"])
        .map(|tool| Tool { name: string(&tool["name"]), form: Form::Object(tool["input_schema"].clone()) });
    Conversation {
        model: string(&body["model"]),
        stream: body["stream"] == true,
        stream_usage: true,
        entries,
        tools: tools.collect(),
    }
}

fn entry(assistant: bool, block: &Value) -> Option<Entry> {
    match (assistant, block["type"].as_str()) {
        (true, Some("tool_use")) => Some(Entry::Called),
        (true, _) => Some(Entry::Said),
        (false, Some("tool_result")) => Some(Entry::Result(text_of(&block["content"]))),
        (false, Some("text")) => Some(Entry::Told(string(&block["text"]))),
        (false, _) => None,
    }
}

fn usage(answer: &Answer, output: u64) -> Value {
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

pub(super) fn whole(asked: &Conversation, answer: &Answer) -> Value {
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
            json!({ "type": "tool_use", "id": id, "name": call.tool, "input": call.input.object() })
        }
    });
    let content: Vec<_> = content.collect();
    json!({
        "id": format!("msg_{}", answer.id), "type": "message", "role": "assistant", "model": asked.model,
        "content": content, "stop_reason": stop_reason(calls > 0), "stop_sequence": null,
        "usage": usage(answer, answer.usage.output),
    })
}

pub(super) fn events(asked: &Conversation, answer: &Answer) -> Vec<Event> {
    let start = json!({
        "id": format!("msg_{}", answer.id), "type": "message", "role": "assistant", "model": asked.model,
        "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage(answer, 1),
    });
    let mut stream = Stream { events: Vec::new() };
    stream.send("message_start", json!({ "message": start }), Duration::ZERO);
    let mut calls = 0;
    for (index, block) in answer.blocks.iter().enumerate() {
        match block {
            Block::Think(text) => {
                stream.open(index, json!({ "type": "thinking", "thinking": "", "signature": "" }));
                stream.delta(index, json!({ "type": "thinking_delta", "thinking": text }), Duration::ZERO);
                stream.delta(index, json!({ "type": "signature_delta", "signature": "scripted" }), Duration::ZERO);
            }
            Block::Text(pieces) => {
                stream.open(index, json!({ "type": "text", "text": "" }));
                for piece in pieces {
                    stream.delta(index, json!({ "type": "text_delta", "text": piece.text }), piece.pause);
                }
            }
            Block::Call(call) => {
                let id = format!("toolu_{}", answer.call_id(calls));
                calls += 1;
                stream.open(index, json!({ "type": "tool_use", "id": id, "name": call.tool, "input": {} }));
                let input = call.input.object().to_string();
                stream.delta(index, json!({ "type": "input_json_delta", "partial_json": input }), Duration::ZERO);
            }
        }
        stream.send("content_block_stop", json!({ "index": index }), Duration::ZERO);
    }
    let delta = json!({ "stop_reason": stop_reason(calls > 0), "stop_sequence": null });
    let usage = usage(answer, answer.usage.output);
    stream.send("message_delta", json!({ "delta": delta, "usage": usage }), Duration::ZERO);
    stream.send("message_stop", json!({}), Duration::ZERO);
    stream.events
}

struct Stream {
    events: Vec<Event>,
}

impl Stream {
    fn send(&mut self, name: &'static str, mut data: Value, pause: Duration) {
        data["type"] = name.into();
        self.events.push(Event::new(Some(name), &data).after(pause));
    }

    fn open(&mut self, index: usize, block: Value) {
        self.send("content_block_start", json!({ "index": index, "content_block": block }), Duration::ZERO);
    }

    fn delta(&mut self, index: usize, delta: Value, pause: Duration) {
        self.send("content_block_delta", json!({ "index": index, "delta": delta }), pause);
    }
}
