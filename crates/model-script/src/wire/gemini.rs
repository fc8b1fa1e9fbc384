//! Gemini's `generateContent`.

use super::{Event, list, string};
use crate::answer::{Answer, Block};
use crate::conversation::{Conversation, Entry, Form, Tool, text_of};
use serde_json::{Value, json};
use std::time::Duration;

pub(super) fn read(body: &Value) -> Conversation {
    let mut entries = vec![Entry::System(text_of(&body["systemInstruction"]["parts"]))];
    for content in list(&body["contents"]) {
        let model = content["role"] == "model";
        entries.extend(list(&content["parts"]).filter_map(|part| entry(model, part)));
    }
    let declared = list(&body["tools"]).flat_map(|tool| list(&tool["functionDeclarations"]));
    let tools = declared.map(|tool| {
        let schema = [&tool["parametersJsonSchema"], &tool["parameters"]];
        let schema = schema.into_iter().find(|schema| !schema.is_null()).cloned().unwrap_or_default();
        Tool { name: string(&tool["name"]), form: Form::Object(schema) }
    });
    Conversation {
        // The model and whether to stream stand in the path.
        model: String::new(),
        stream: false,
        stream_usage: true,
        entries,
        tools: tools.collect(),
    }
}

fn entry(model: bool, part: &Value) -> Option<Entry> {
    if model {
        return Some(if part["functionCall"].is_null() { Entry::Said } else { Entry::Called });
    }
    if !part["functionResponse"].is_null() {
        let response = &part["functionResponse"]["response"];
        // Mostly `{"output": TEXT}`; else the whole of it, as JSON.
        return Some(Entry::Result(response["output"].as_str().map_or_else(|| text_of(response), str::to_owned)));
    }
    part["text"].as_str().map(|text| Entry::Told(text.to_owned()))
}

fn usage(answer: &Answer) -> Value {
    let usage = &answer.usage;
    let prompt = usage.input.saturating_add(usage.cache_read).saturating_add(usage.cache_write);
    json!({
        "promptTokenCount": prompt,
        "candidatesTokenCount": usage.output,
        "cachedContentTokenCount": usage.cache_read,
        "totalTokenCount": prompt.saturating_add(usage.output),
    })
}

/// The parts of the answer, each with the pause before it.
fn parts(answer: &Answer) -> Vec<(Duration, Value)> {
    let mut parts = Vec::new();
    let mut calls = 0;
    for block in &answer.blocks {
        match block {
            Block::Think(text) => parts.push((Duration::ZERO, json!({ "text": text, "thought": true }))),
            Block::Text(pieces) => {
                parts.extend(pieces.iter().map(|piece| (piece.pause, json!({ "text": piece.text }))));
            }
            Block::Call(call) => {
                let id = format!("call_{}", answer.call_id(calls));
                calls += 1;
                let call = json!({ "id": id, "name": call.tool, "args": call.input.object() });
                parts.push((Duration::ZERO, json!({ "functionCall": call })));
            }
        }
    }
    parts
}

fn candidates(asked: &Conversation, answer: &Answer, parts: Value) -> Value {
    json!({
        "candidates": [{ "index": 0, "content": { "role": "model", "parts": parts } }],
        "modelVersion": asked.model, "responseId": answer.id,
    })
}

fn finished(mut response: Value, answer: &Answer) -> Value {
    response["candidates"][0]["finishReason"] = "STOP".into();
    response["usageMetadata"] = usage(answer);
    response
}

pub(super) fn whole(asked: &Conversation, answer: &Answer) -> Value {
    let parts: Vec<_> = parts(answer).into_iter().map(|(_, part)| part).collect();
    finished(candidates(asked, answer, parts.into()), answer)
}

pub(super) fn events(asked: &Conversation, answer: &Answer) -> Vec<Event> {
    let parts = parts(answer);
    let last = parts.len().saturating_sub(1);
    let events = parts.into_iter().enumerate().map(|(index, (pause, part))| {
        let response = candidates(asked, answer, json!([part]));
        let response = if index == last { finished(response, answer) } else { response };
        Event::new(None, &response).after(pause)
    });
    let events: Vec<_> = events.collect();
    if events.is_empty() {
        return vec![Event::new(None, &finished(candidates(asked, answer, json!([])), answer))];
    }
    events
}
