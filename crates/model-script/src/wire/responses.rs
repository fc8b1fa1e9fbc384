//! OpenAI's Responses, with custom tools that take free text.

use super::{CREATED, Event, list, string};
use crate::answer::{Answer, Block, Call, Input};
use crate::conversation::{Conversation, Entry, Form, Tool, text_of};
use serde_json::{Value, json};
use std::time::Duration;

pub(super) fn read(body: &Value) -> Conversation {
    let mut entries = vec![Entry::System(text_of(&body["instructions"]))];
    match &body["input"] {
        Value::String(text) => entries.push(Entry::Told(text.clone())),
        input => entries.extend(list(input).filter_map(entry)),
    }
    Conversation {
        model: string(&body["model"]),
        stream: body["stream"] == true,
        stream_usage: true,
        entries,
        tools: list(&body["tools"]).filter_map(tool).collect(),
    }
}

fn entry(item: &Value) -> Option<Entry> {
    match item["type"].as_str().unwrap_or("message") {
        "message" => match item["role"].as_str() {
            Some("user") => Some(Entry::Told(text_of(&item["content"]))),
            Some("assistant") => Some(Entry::Said),
            Some(_) => Some(Entry::System(text_of(&item["content"]))),
            None => None,
        },
        "function_call_output" | "custom_tool_call_output" | "local_shell_call_output" => {
            Some(Entry::Result(text_of(&item["output"])))
        }
        "function_call" | "custom_tool_call" | "local_shell_call" => Some(Entry::Called),
        // Thoughts stand beside words and calls, and are neither.
        _ => None,
    }
}

fn tool(tool: &Value) -> Option<Tool> {
    let form = match tool["type"].as_str()? {
        "function" => Form::Object(tool["parameters"].clone()),
        "custom" => Form::Text,
        // What the model's own house runs, such as a search of the web.
        _ => return None,
    };
    Some(Tool { name: string(&tool["name"]), form })
}

fn response(asked: &Conversation, answer: &Answer, status: &str, output: Value, usage: Value) -> Value {
    json!({
        "id": format!("resp_{}", answer.id), "object": "response", "created_at": CREATED, "model": asked.model,
        "status": status, "error": null, "output": output, "usage": usage,
    })
}

fn usage(answer: &Answer) -> Value {
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

fn item(answer: &Answer, index: usize, block: &Block, calls: &mut usize) -> Value {
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
            call_item(&id, &call_id, call)
        }
    }
}

fn call_item(id: &str, call_id: &str, call: &Call) -> Value {
    match &call.input {
        Input::Object(input) => json!({
            "type": "function_call", "id": format!("fc_{id}"), "call_id": call_id, "name": call.tool,
            "arguments": input.to_string(), "status": "completed",
        }),
        Input::Text(text) => json!({
            "type": "custom_tool_call", "id": format!("ctc_{id}"), "call_id": call_id, "name": call.tool,
            "input": text, "status": "completed",
        }),
    }
}

fn items(answer: &Answer) -> Vec<Value> {
    let mut calls = 0;
    answer.blocks.iter().enumerate().map(|(index, block)| item(answer, index, block, &mut calls)).collect()
}

pub(super) fn whole(asked: &Conversation, answer: &Answer) -> Value {
    response(asked, answer, "completed", items(answer).into(), usage(answer))
}

pub(super) fn events(asked: &Conversation, answer: &Answer) -> Vec<Event> {
    let mut stream = Stream { events: Vec::new() };
    let begun = response(asked, answer, "in_progress", json!([]), Value::Null);
    stream.send("response.created", json!({ "response": begun }), Duration::ZERO);
    let items = items(answer);
    for (index, (block, item)) in answer.blocks.iter().zip(&items).enumerate() {
        stream.item(index, block, item);
    }
    let ended = response(asked, answer, "completed", items.into(), usage(answer));
    stream.send("response.completed", json!({ "response": ended }), Duration::ZERO);
    stream.events
}

struct Stream {
    events: Vec<Event>,
}

impl Stream {
    fn send(&mut self, name: &'static str, mut data: Value, pause: Duration) {
        data["type"] = name.into();
        data["sequence_number"] = self.events.len().into();
        self.events.push(Event::new(Some(name), &data).after(pause));
    }

    fn item(&mut self, index: usize, block: &Block, item: &Value) {
        let id = &item["id"];
        let mut begun = item.clone();
        begun["status"] = "in_progress".into();
        let empty = match block {
            Block::Think(_) => ("summary", json!([])),
            Block::Text(_) => ("content", json!([])),
            Block::Call(Call { input: Input::Object(_), .. }) => ("arguments", json!("")),
            Block::Call(Call { input: Input::Text(_), .. }) => ("input", json!("")),
        };
        begun[empty.0] = empty.1;
        self.send("response.output_item.added", json!({ "output_index": index, "item": begun }), Duration::ZERO);
        let at = json!({ "output_index": index, "item_id": id });
        let with = |more: Value| merged(&at, more);
        match block {
            Block::Think(text) => {
                let part = |text: &str| json!({ "summary_index": 0, "part": { "type": "summary_text", "text": text } });
                self.send("response.reasoning_summary_part.added", with(part("")), Duration::ZERO);
                let delta = with(json!({ "summary_index": 0, "delta": text }));
                self.send("response.reasoning_summary_text.delta", delta, Duration::ZERO);
                let done = with(json!({ "summary_index": 0, "text": text }));
                self.send("response.reasoning_summary_text.done", done, Duration::ZERO);
                self.send("response.reasoning_summary_part.done", with(part(text)), Duration::ZERO);
            }
            Block::Text(pieces) => {
                let text: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
                let part = |text: &str| json!({ "content_index": 0, "part": { "type": "output_text", "text": text, "annotations": [] } });
                self.send("response.content_part.added", with(part("")), Duration::ZERO);
                for piece in pieces {
                    let delta = with(json!({ "content_index": 0, "delta": piece.text }));
                    self.send("response.output_text.delta", delta, piece.pause);
                }
                let done = with(json!({ "content_index": 0, "text": text }));
                self.send("response.output_text.done", done, Duration::ZERO);
                self.send("response.content_part.done", with(part(&text)), Duration::ZERO);
            }
            Block::Call(Call { input: Input::Object(input), .. }) => {
                let input = input.to_string();
                let delta = with(json!({ "delta": input }));
                self.send("response.function_call_arguments.delta", delta, Duration::ZERO);
                let done = with(json!({ "arguments": input }));
                self.send("response.function_call_arguments.done", done, Duration::ZERO);
            }
            Block::Call(Call { input: Input::Text(text), .. }) => {
                self.send("response.custom_tool_call_input.delta", with(json!({ "delta": text })), Duration::ZERO);
                self.send("response.custom_tool_call_input.done", with(json!({ "input": text })), Duration::ZERO);
            }
        }
        self.send("response.output_item.done", json!({ "output_index": index, "item": item }), Duration::ZERO);
    }
}

fn merged(base: &Value, more: Value) -> Value {
    let mut merged = base.clone();
    if let (Value::Object(merged), Value::Object(more)) = (&mut merged, more) {
        merged.extend(more);
    }
    merged
}
