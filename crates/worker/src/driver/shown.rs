//! What all drivers do alike with what agents say: bounds on what an event holds, and events beside those of a tool.

use super::{Mark, Said, event};
use atoll_core::event::kind;
use serde_json::{Value, json};

/// How much of one text an event holds.
const TEXT: usize = 32 << 10;

pub(super) fn clip(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT)]
}

/// The same, or where it is too large its beginning as text.
pub(super) fn bounded(value: &Value) -> Value {
    let text = value.to_string();
    if text.len() <= TEXT && is_flat(value, 24) { value.clone() } else { Value::String(format!("{}…", clip(&text))) }
}

fn is_flat(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(all) => levels > 0 && all.iter().all(|one| is_flat(one, levels - 1)),
        Value::Object(all) => levels > 0 && all.values().all(|one| is_flat(one, levels - 1)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

/// The words in what may be a text, or blocks of which some are text.
pub(super) fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Array(blocks) => {
            let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
            texts.join("\n")
        }
        Value::Object(object) => match object.get("message").or_else(|| object.get("text")) {
            Some(Value::String(text)) => text.clone(),
            Some(_) | None => value.to_string(),
        },
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// Sub-agents, skills and plans are tools to the agent, and more than that to whoever watches.
pub(super) fn beside_use(tool: &str, id: &str, input: &Value) -> Option<Said> {
    match tool {
        "Task" | "Agent" | "task" => {
            let data = json!({
                "tool_use_id": id, "description": input["description"], "subagent": input["subagent_type"],
            });
            Some(event(kind::AGENT_SUBAGENT_INVOKED, &data, Mark::Plain))
        }
        "Skill" | "skill" => {
            let name = input.get("skill").or_else(|| input.get("name")).or_else(|| input.get("command"));
            Some(event(kind::AGENT_SKILL_INVOKED, &json!({"tool_use_id": id, "skill": name}), Mark::Plain))
        }
        "TodoWrite" | "todowrite" => {
            let items: Vec<Value> = input["todos"].as_array().into_iter().flatten().map(todo).collect();
            Some(event(kind::AGENT_PLAN, &json!({"items": bounded(&Value::Array(items))}), Mark::Plain))
        }
        "TaskCreate" => {
            let items = json!([{"text": input["subject"], "state": "pending"}]);
            Some(event(kind::AGENT_PLAN, &json!({"items": items, "adds": true}), Mark::Plain))
        }
        _ => None,
    }
}

fn todo(item: &Value) -> Value {
    json!({"text": item["content"], "state": item["status"]})
}

pub(super) fn beside_result(tool: &str, id: &str, output: &str, is_error: bool) -> Vec<Said> {
    let data = || json!({"tool_use_id": id, "output": clip(output), "is_error": is_error});
    match tool {
        "Task" | "Agent" | "task" => vec![event(kind::AGENT_SUBAGENT_COMPLETED, &data(), Mark::Plain)],
        "Skill" | "skill" => vec![event(kind::AGENT_SKILL_COMPLETED, &data(), Mark::Plain)],
        _ => Vec::new(),
    }
}
