//! OpenAI's chat completions, which most other models speak too.

use super::{CREATED, Event, list, string};
use crate::answer::{Answer, Block};
use crate::conversation::{Conversation, Entry, Form, Tool, text_of};
use serde_json::{Value, json};
use std::time::Duration;

pub(super) fn read(body: &Value) -> Conversation {
    let mut entries = Vec::new();
    for message in list(&body["messages"]) {
        match message["role"].as_str() {
            Some("system" | "developer") => entries.push(Entry::System(text_of(&message["content"]))),
            Some("user") => entries.push(Entry::Told(text_of(&message["content"]))),
            Some("tool" | "function") => entries.push(Entry::Result(text_of(&message["content"]))),
            Some("assistant") => {
                entries.push(Entry::Said);
                entries.extend(list(&message["tool_calls"]).map(|_| Entry::Called));
            }
            _ => {}
        }
    }
    let tools = list(&body["tools"]).map(|tool| match tool["type"].as_str() {
        Some("custom") => Tool { name: string(&tool["custom"]["name"]), form: Form::Text },
        _ => {
            let function = &tool["function"];
            Tool { name: string(&function["name"]), form: Form::Object(function["parameters"].clone()) }
        }
    });
    Conversation {
        model: string(&body["model"]),
        stream: body["stream"] == true,
        stream_usage: body["stream_options"]["include_usage"] == true,
        entries,
        tools: tools.collect(),
    }
}

fn usage(answer: &Answer) -> Value {
    let usage = &answer.usage;
    // Here the cached ones are part of the prompt, not beside it.
    let prompt = usage.input.saturating_add(usage.cache_read).saturating_add(usage.cache_write);
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": usage.output,
        "total_tokens": prompt.saturating_add(usage.output),
        "prompt_tokens_details": { "cached_tokens": usage.cache_read },
    })
}

fn finish_reason(answer: &Answer) -> &'static str {
    if answer.has_calls() { "tool_calls" } else { "stop" }
}

fn call(answer: &Answer, index: usize, call: &crate::answer::Call) -> Value {
    json!({
        "id": format!("call_{}", answer.call_id(index)), "type": "function",
        "function": { "name": call.tool, "arguments": call.input.object().to_string() },
    })
}

pub(super) fn whole(asked: &Conversation, answer: &Answer) -> Value {
    let calls: Vec<_> = answer.calls().enumerate().map(|(index, one)| call(answer, index, one)).collect();
    let mut message = json!({ "role": "assistant", "content": answer.full_text() });
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    json!({
        "id": format!("chatcmpl-{}", answer.id), "object": "chat.completion", "created": CREATED, "model": asked.model,
        "choices": [{ "index": 0, "message": message, "finish_reason": finish_reason(answer) }],
        "usage": usage(answer),
    })
}

pub(super) fn events(asked: &Conversation, answer: &Answer) -> Vec<Event> {
    let chunk = |choices: Value| {
        json!({
            "id": format!("chatcmpl-{}", answer.id), "object": "chat.completion.chunk", "created": CREATED,
            "model": asked.model, "choices": choices,
        })
    };
    let delta = |delta: Value, pause: Duration| {
        Event::new(None, &chunk(json!([{ "index": 0, "delta": delta, "finish_reason": null }]))).after(pause)
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
                let mut call = call(answer, calls, one);
                call["index"] = calls.into();
                calls += 1;
                events.push(delta(json!({ "tool_calls": [call] }), Duration::ZERO));
            }
        }
    }
    let finish = json!([{ "index": 0, "delta": {}, "finish_reason": finish_reason(answer) }]);
    events.push(Event::new(None, &chunk(finish)));
    if asked.stream_usage {
        let mut last = chunk(json!([]));
        last["usage"] = usage(answer);
        events.push(Event::new(None, &last));
    }
    events.push(Event { pause: Duration::ZERO, name: None, data: "[DONE]".to_owned() });
    events
}
