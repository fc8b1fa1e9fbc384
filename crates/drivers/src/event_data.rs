//! Events that several drivers build.

use super::bounded::clip_id;
use super::event_clipping::clip_text;
use super::{AgentOutput, EventEffect, ResponseRef, build_event, build_response_part};
use atoll_api::events::{
    AgentError, AgentInterrupted, AgentPlan, AgentSystemMessage, AgentText, DelegationCompleted, EventData,
    MessageInjected, SkillInvoked, SubagentInvoked, ToolCompleted, ToolUse,
};
use atoll_core::id::MessageId;
use atoll_core::message::DeliveryMethod;
use atoll_protocol::LeasedMessage;
use serde_json::{Value, json};

/// Why a driver denies a request by itself.
pub(super) const TOO_MANY_REQUESTS: &str = "the agent has too many open requests";

/// Extracts the text from a string, a list of blocks or an error object.
pub(super) fn extract_text(value: &Value) -> String {
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

/// Streamed text for live display, clipped: the complete text follows as an event.
pub(super) fn text_delta(text: &str) -> AgentOutput {
    AgentOutput::TextDelta(atoll_core::json::to_raw_json(&json!({"text": clip_text(text)})))
}

fn agent_text(text: &str, parent: Option<&str>) -> AgentText {
    AgentText { text: text.to_owned(), parent_tool_use_id: parent.map(str::to_owned), ..AgentText::default() }
}

pub(super) fn message_event(text: &str, parent: Option<&str>, response: &ResponseRef) -> AgentOutput {
    build_response_part(EventData::AgentMessage(agent_text(text, parent)), EventEffect::None, response)
}

pub(super) fn thinking_event(text: &str, parent: Option<&str>, response: &ResponseRef) -> AgentOutput {
    build_response_part(EventData::AgentThinking(agent_text(text, parent)), EventEffect::None, response)
}

/// Reports the start of a tool call. Its id is clipped.
pub(super) fn tool_started(tool: ToolUse, response: &ResponseRef) -> AgentOutput {
    let tool_use_id = clip_id(&tool.tool_use_id).to_owned();
    let effect = EventEffect::ToolStarted(tool_use_id.clone());
    let tool = ToolUse { tool_use_id, ..tool };
    build_response_part(EventData::AgentToolUse(tool), effect, response)
}

pub(super) fn tool_ended(tool: ToolCompleted) -> AgentOutput {
    let tool_use_id = clip_id(&tool.tool_use_id).to_owned();
    let effect = EventEffect::ToolEnded(tool_use_id.clone());
    build_event(EventData::AgentToolCompleted(ToolCompleted { tool_use_id, ..tool }), effect)
}

/// Ends a tool call that the driver can no longer follow, because the agent has too many.
pub(super) fn tool_forgotten(id: &str, tool: &str) -> AgentOutput {
    tool_ended(ToolCompleted {
        tool: clip_text(tool).to_owned(),
        tool_use_id: id.to_owned(),
        output: "the agent has too many running tools; Atoll no longer follows this one".into(),
        is_error: true,
        ..ToolCompleted::default()
    })
}

/// Reports a request that the driver denied, because the agent has too many open ones.
pub(super) fn too_many_requests() -> AgentOutput {
    AgentOutput::Unparsed { reason: TOO_MANY_REQUESTS.to_owned() }
}

pub(super) fn message_injected(message_id: MessageId, how: Option<DeliveryMethod>) -> AgentOutput {
    let data = MessageInjected { message_id, text: None, how };
    build_event(EventData::AgentMessageInjected(data), EventEffect::None)
}

/// Ends the turn after our interrupt, or after one of the agent itself.
pub(super) fn turn_interrupted(message: Option<&LeasedMessage>) -> AgentOutput {
    let data = AgentInterrupted {
        message_id: message.map(|message| message.id),
        text: message.map(|message| clip_text(&message.content).to_owned()),
        ..AgentInterrupted::default()
    };
    build_event(EventData::AgentInterrupted(data), EventEffect::TurnEnded)
}

pub(super) fn error_event(error: AgentError) -> AgentOutput {
    build_event(EventData::AgentError(error), EventEffect::None)
}

/// An error of which only the text is known.
pub(super) fn plain_error(text: &str) -> AgentOutput {
    error_event(AgentError { error: text.to_owned(), ..AgentError::default() })
}

pub(super) fn system_event(subtype: &str, data: Option<&Value>) -> AgentOutput {
    let data = AgentSystemMessage { subtype: subtype.to_owned(), data: data.cloned(), ..AgentSystemMessage::default() };
    build_event(EventData::AgentSystemMessage(data), EventEffect::None)
}

/// Reports the whole plan; each item has `text` and `state`.
pub(super) fn plan_event(items: Vec<Value>) -> AgentOutput {
    let data = AgentPlan { items: Value::Array(items), ..AgentPlan::default() };
    build_event(EventData::AgentPlan(data), EventEffect::None)
}

pub(super) fn subagent_invoked(tool_use_id: &str, description: &Value, subagent: &Value) -> AgentOutput {
    let (description, subagent) = (description.clone(), subagent.clone());
    let data = SubagentInvoked { tool_use_id: tool_use_id.to_owned(), description, subagent };
    build_event(EventData::AgentSubagentInvoked(data), EventEffect::None)
}

pub(super) fn subagent_completed(id: &str, output: &str, is_error: bool) -> AgentOutput {
    build_event(EventData::AgentSubagentCompleted(delegation(id, output, is_error)), EventEffect::None)
}

fn delegation(tool_use_id: &str, output: &str, is_error: bool) -> DelegationCompleted {
    let (tool_use_id, output) = (tool_use_id.to_owned(), output.to_owned());
    DelegationCompleted { tool_use_id, output, is_error, ..DelegationCompleted::default() }
}

/// Subagents, skills and plans are tools to the agent; these events report them as such.
pub(super) fn tool_use_events(tool: &str, id: &str, input: &Value) -> Option<AgentOutput> {
    match tool {
        "Task" | "Agent" | "task" => Some(subagent_invoked(id, &input["description"], &input["subagent_type"])),
        "Skill" | "skill" => {
            let name = input.get("skill").or_else(|| input.get("name")).or_else(|| input.get("command"));
            let data = SkillInvoked { tool_use_id: id.to_owned(), skill: name.cloned().unwrap_or_default() };
            Some(build_event(EventData::AgentSkillInvoked(data), EventEffect::None))
        }
        "TodoWrite" | "todowrite" => {
            let item = |item: &Value| json!({"text": item["content"], "state": item["status"]});
            Some(plan_event(input["todos"].as_array().into_iter().flatten().map(item).collect()))
        }
        "TaskCreate" => {
            let items = json!([{"text": input["subject"], "state": "pending"}]);
            Some(build_event(
                EventData::AgentPlan(AgentPlan { items, adds: true, ..AgentPlan::default() }),
                EventEffect::None,
            ))
        }
        _ => None,
    }
}

pub(super) fn tool_result_events(tool: &str, id: &str, output: &str, is_error: bool) -> Option<AgentOutput> {
    match tool {
        "Task" | "Agent" | "task" => Some(subagent_completed(id, output, is_error)),
        "Skill" | "skill" => {
            let data = delegation(id, output, is_error);
            Some(build_event(EventData::AgentSkillCompleted(data), EventEffect::None))
        }
        _ => None,
    }
}
