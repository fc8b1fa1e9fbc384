//! Gemini's `generateContent`.

use super::{SseEvent, array_items, string_or_empty};
use crate::answer::{Block, ModelAnswer};
use crate::conversation::{Conversation, ConversationEntry, InputForm, Tool, text_of};
use serde_json::{Value, json};
use std::time::Duration;

pub(super) fn parse_request(body: &Value) -> Conversation {
    let mut entries = vec![ConversationEntry::System(text_of(&body["systemInstruction"]["parts"]))];
    for content in array_items(&body["contents"]) {
        let model = content["role"] == "model";
        entries.extend(array_items(&content["parts"]).filter_map(|part| parse_entry(model, part)));
    }
    let declared = array_items(&body["tools"]).flat_map(|tool| array_items(&tool["functionDeclarations"]));
    let tools = declared.map(|tool| {
        let schema = [&tool["parametersJsonSchema"], &tool["parameters"]];
        let schema = schema.into_iter().find(|schema| !schema.is_null()).cloned().unwrap_or_default();
        Tool::new(string_or_empty(&tool["name"]), InputForm::Object(schema))
    });
    Conversation {
        // The path has the model and the stream flag.
        model: String::new(),
        wants_stream: false,
        wants_stream_usage: true,
        entries,
        tools: tools.collect(),
    }
}

fn parse_entry(model: bool, part: &Value) -> Option<ConversationEntry> {
    if model {
        return Some(if part["functionCall"].is_null() {
            ConversationEntry::ModelText
        } else {
            ConversationEntry::ToolCall
        });
    }
    if !part["functionResponse"].is_null() {
        let response = &part["functionResponse"]["response"];
        // Usually `{"output": TEXT}`; else the whole JSON.
        return Some(ConversationEntry::ToolResult(
            response["output"].as_str().map_or_else(|| text_of(response), str::to_owned),
        ));
    }
    part["text"].as_str().map(|text| ConversationEntry::UserText(text.to_owned()))
}

fn usage_json(answer: &ModelAnswer) -> Value {
    let usage = &answer.usage;
    let prompt = usage.input.saturating_add(usage.cache_read).saturating_add(usage.cache_write);
    json!({
        "promptTokenCount": prompt,
        "candidatesTokenCount": usage.output,
        "cachedContentTokenCount": usage.cache_read,
        "totalTokenCount": prompt.saturating_add(usage.output),
    })
}

/// The answer's parts with the pause before each.
fn encode_parts(answer: &ModelAnswer) -> Vec<(Duration, Value)> {
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
                let call = json!({ "id": id, "name": call.tool, "args": call.input.to_object() });
                parts.push((Duration::ZERO, json!({ "functionCall": call })));
            }
        }
    }
    parts
}

fn candidates_json(conversation: &Conversation, answer: &ModelAnswer, parts: Value) -> Value {
    json!({
        "candidates": [{ "index": 0, "content": { "role": "model", "parts": parts } }],
        "modelVersion": conversation.model, "responseId": answer.id,
    })
}

fn finish_response(mut response: Value, answer: &ModelAnswer) -> Value {
    response["candidates"][0]["finishReason"] = "STOP".into();
    response["usageMetadata"] = usage_json(answer);
    response
}

pub(super) fn whole_response(conversation: &Conversation, answer: &ModelAnswer) -> Value {
    let parts: Vec<_> = encode_parts(answer).into_iter().map(|(_, part)| part).collect();
    finish_response(candidates_json(conversation, answer, parts.into()), answer)
}

pub(super) fn stream_events(conversation: &Conversation, answer: &ModelAnswer) -> Vec<SseEvent> {
    let parts = encode_parts(answer);
    let last = parts.len().saturating_sub(1);
    let events = parts.into_iter().enumerate().map(|(index, (pause, part))| {
        let response = candidates_json(conversation, answer, json!([part]));
        let response = if index == last { finish_response(response, answer) } else { response };
        SseEvent::new(None, &response).with_pause(pause)
    });
    let events: Vec<_> = events.collect();
    if events.is_empty() {
        return vec![SseEvent::new(None, &finish_response(candidates_json(conversation, answer, json!([])), answer))];
    }
    events
}
