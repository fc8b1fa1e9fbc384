//! OpenAI's chat completions, which most other models speak too.

use super::{CREATED_AT_SECONDS, SseEvent, array_items, string_or_empty};
use crate::answer::{Block, ModelAnswer};
use crate::conversation::{Conversation, ConversationEntry, InputForm, Tool, text_of};
use serde_json::{Value, json};
use std::time::Duration;

pub(super) fn parse_request(body: &Value) -> Conversation {
    let mut entries = Vec::new();
    for message in array_items(&body["messages"]) {
        match message["role"].as_str() {
            Some("system" | "developer") => entries.push(ConversationEntry::System(text_of(&message["content"]))),
            Some("user") => entries.push(ConversationEntry::UserText(text_of(&message["content"]))),
            Some("tool" | "function") => entries.push(ConversationEntry::ToolResult(text_of(&message["content"]))),
            Some("assistant") => {
                entries.push(ConversationEntry::ModelText);
                entries.extend(array_items(&message["tool_calls"]).map(|_| ConversationEntry::ToolCall));
            }
            _ => {}
        }
    }
    let tools = array_items(&body["tools"]).map(|tool| match tool["type"].as_str() {
        Some("custom") => Tool::new(string_or_empty(&tool["custom"]["name"]), InputForm::Text),
        _ => {
            let function = &tool["function"];
            Tool::new(string_or_empty(&function["name"]), InputForm::Object(function["parameters"].clone()))
        }
    });
    Conversation {
        model: string_or_empty(&body["model"]),
        wants_stream: body["stream"] == true,
        wants_stream_usage: body["stream_options"]["include_usage"] == true,
        entries,
        tools: tools.collect(),
    }
}

fn usage_json(answer: &ModelAnswer) -> Value {
    let usage = &answer.usage;
    // Cached tokens are part of the prompt's count here.
    let prompt = usage.input.saturating_add(usage.cache_read).saturating_add(usage.cache_write);
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": usage.output,
        "total_tokens": prompt.saturating_add(usage.output),
        "prompt_tokens_details": { "cached_tokens": usage.cache_read },
    })
}

fn finish_reason(answer: &ModelAnswer) -> &'static str {
    if answer.has_calls() { "tool_calls" } else { "stop" }
}

fn call_json(answer: &ModelAnswer, index: usize, call: &crate::answer::ScriptedCall) -> Value {
    json!({
        "id": format!("call_{}", answer.call_id(index)), "type": "function",
        "function": { "name": call.tool, "arguments": call.input.to_object().to_string() },
    })
}

pub(super) fn whole_response(conversation: &Conversation, answer: &ModelAnswer) -> Value {
    let calls: Vec<_> = answer.calls().enumerate().map(|(index, one)| call_json(answer, index, one)).collect();
    let mut message = json!({ "role": "assistant", "content": answer.full_text() });
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    json!({
        "id": format!("chatcmpl-{}", answer.id), "object": "chat.completion", "created": CREATED_AT_SECONDS, "model": conversation.model,
        "choices": [{ "index": 0, "message": message, "finish_reason": finish_reason(answer) }],
        "usage": usage_json(answer),
    })
}

pub(super) fn stream_events(conversation: &Conversation, answer: &ModelAnswer) -> Vec<SseEvent> {
    let chunk = |choices: Value| {
        json!({
            "id": format!("chatcmpl-{}", answer.id), "object": "chat.completion.chunk", "created": CREATED_AT_SECONDS,
            "model": conversation.model, "choices": choices,
        })
    };
    let delta = |delta: Value, pause: Duration| {
        SseEvent::new(None, &chunk(json!([{ "index": 0, "delta": delta, "finish_reason": null }]))).with_pause(pause)
    };
    let mut events = vec![delta(json!({ "role": "assistant", "content": "" }), Duration::ZERO)];
    let mut calls = 0;
    for block in &answer.blocks {
        match block {
            Block::Think(text) => events.push(delta(json!({ "reasoning_content": text }), Duration::ZERO)),
            Block::Text(pieces) => {
                events.extend(pieces.iter().map(|piece| delta(json!({ "content": piece.text }), piece.pause)));
            }
            Block::Call(one) => {
                let mut call = call_json(answer, calls, one);
                call["index"] = calls.into();
                calls += 1;
                events.push(delta(json!({ "tool_calls": [call] }), Duration::ZERO));
            }
        }
    }
    let finish = json!([{ "index": 0, "delta": {}, "finish_reason": finish_reason(answer) }]);
    events.push(SseEvent::new(None, &chunk(finish)));
    if conversation.wants_stream_usage {
        let mut last = chunk(json!([]));
        last["usage"] = usage_json(answer);
        events.push(SseEvent::new(None, &last));
    }
    events.push(SseEvent { pause: Duration::ZERO, name: None, data: "[DONE]".to_owned() });
    events
}
