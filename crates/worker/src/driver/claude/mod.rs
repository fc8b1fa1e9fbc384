//! Claude Code: `claude -p` with lines of JSON both ways, and its control protocol on the same two pipes.
//!
//! `start` is how it is started, `wire` what its lines look like, `events` what they mean. A message is a line with a
//! name of ours, which comes back when the model gets to see it: that is its receipt. Hooks are questions that it asks
//! before and after each tool, and waits for.

use super::{Abilities, Answer, Ask, AskKind, Command, Driver, Keeping, Launch, Said, Standing, line_of};
use crate::transcript::Agent;
use atoll_core::id::MessageId;
use atoll_core::message::MessageType;
use atoll_protocol::LeasedMessage;
use events::Turn;
use serde_json::{Value, json};
use std::collections::BTreeMap;

mod events;
mod start;
#[cfg(test)]
mod tests;
mod wire;

const BEFORE: &str = "before";
const AFTER: &str = "after";
const GREETING: &str = "greeting";
/// In seconds: a little more than a day, after which nobody is waited for any more.
const PATIENCE: u32 = 25 * 60 * 60;

#[derive(Debug, Default)]
pub(super) struct Claude {
    turn: Turn,
    /// Told, and not seen by the model so far.
    told: Vec<MessageId>,
    interrupt: Option<LeasedMessage>,
    /// What it waits for: its name for the request, by ours.
    asked: BTreeMap<String, Asked>,
    /// Tools that have run, and the request that waits until their changes were looked at.
    ran: BTreeMap<String, String>,
    system_prompt: Option<String>,
    requests: u64,
}

#[derive(Debug)]
enum Asked {
    Before,
    Permission { input: Value },
}

impl Driver for Claude {
    fn abilities(&self) -> Abilities {
        Abilities {
            steer: true,
            queue: true,
            interrupt: true,
            approvals: true,
            questions: true,
            hooks: true,
            resume: true,
            fork: true,
            usage: true,
            plan: true,
        }
    }

    fn keeping(&self) -> Option<Keeping> {
        Some(Keeping { agent: Agent::Claude, live: false, env: Vec::new() })
    }

    fn login(&self) -> Option<&'static str> {
        Some(".claude/.credentials.json")
    }

    fn command(&mut self, launch: &Launch<'_>) -> Command {
        // A conversation that goes on goes on counting, too.
        let spent = if launch.native_id.is_some() { self.turn.spent() } else { 0.0 };
        let turn = Turn::after(spent);
        *self = Self { turn, system_prompt: launch.settings.system_prompt.clone(), ..Self::default() };
        start::command(launch)
    }

    fn greeting(&mut self) -> Vec<u8> {
        // A rule may leave a call to a person, and people take their time.
        let hook = |id: &str| json!([{"matcher": "*", "hookCallbackIds": [id], "timeout": PATIENCE}]);
        let mut request =
            json!({"subtype": "initialize", "hooks": {"PreToolUse": hook(BEFORE), "PostToolUse": hook(AFTER)}});
        if let Some(prompt) = &self.system_prompt {
            request["appendSystemPrompt"] = prompt.as_str().into();
        }
        line_of(&json!({"type": "control_request", "request_id": GREETING, "request": request}))
    }

    fn tell(&mut self, message: &LeasedMessage, standing: Standing) -> Vec<u8> {
        match (message.message_type, standing) {
            (MessageType::Interrupt, _) => {
                self.requests += 1;
                self.interrupt = Some(message.clone());
                let id = format!("interrupt-{}", self.requests);
                line_of(&json!({"type": "control_request", "request_id": id, "request": {"subtype": "interrupt"}}))
            }
            (MessageType::UserMessage | MessageType::GuardianNudge | MessageType::System, standing) => {
                self.told.push(message.id);
                let mut line = json!({
                    "type": "user",
                    "message": {"role": "user", "content": [{"type": "text", "text": message.content}]},
                    "parent_tool_use_id": null,
                    "uuid": message.id.uuid(),
                });
                if standing == Standing::InTurn {
                    line["priority"] = "next".into();
                }
                line_of(&line)
            }
        }
    }

    fn tells_reasons(&self) -> bool {
        true
    }

    fn tool_seen(&mut self, tool_use_id: &str) -> Option<Vec<u8>> {
        let request = self.ran.remove(tool_use_id)?;
        Some(response(&request, &json!({})))
    }

    fn line(&mut self, line: &[u8]) -> Vec<Said> {
        match wire::read(line) {
            Ok(line) => self.heard(line),
            Err(reason) => vec![Said::Unparsed { reason }],
        }
    }

    fn answer(&mut self, ask: &str, answer: Answer) -> Vec<u8> {
        let Some(asked) = self.asked.remove(ask) else { return Vec::new() };
        let answer = match asked {
            Asked::Before => before(answer),
            Asked::Permission { input } => permission(answer, input),
        };
        response(ask, &answer)
    }
}

impl Claude {
    fn heard(&mut self, line: wire::Line) -> Vec<Said> {
        match line {
            wire::Line::Request { id, request } => self.requested(id, request),
            wire::Line::Response { id, error } => self.answered(&id, error),
            wire::Line::Replay { uuid } => self.seen_by_model(uuid),
            wire::Line::Result(result) => {
                let interrupt = self.interrupt.take();
                // Whatever it waited for, it does not any more.
                self.asked.clear();
                self.ran.clear();
                self.turn.over(&result, interrupt.as_ref())
            }
            wire::Line::Other(line) => self.turn.events(line),
            wire::Line::Nothing => Vec::new(),
        }
    }

    fn requested(&mut self, id: String, request: wire::Request) -> Vec<Said> {
        match request {
            wire::Request::Hook { callback, tool_use_id, tool, input } if callback == BEFORE => {
                self.asked.insert(id.clone(), Asked::Before);
                vec![Said::Asks(Ask { id, kind: AskKind::BeforeTool, tool_use_id, tool, input })]
            }
            wire::Request::Hook { tool_use_id: Some(tool_use_id), .. } => {
                self.ran.insert(tool_use_id.clone(), id);
                vec![Said::ToolRan { tool_use_id }]
            }
            wire::Request::Hook { tool_use_id: None, .. } => vec![Said::Reply(response(&id, &json!({})))],
            wire::Request::Permission { tool_use_id, tool, input } => {
                let kind = if tool == "AskUserQuestion" { AskKind::Question } else { AskKind::Permission };
                self.asked.insert(id.clone(), Asked::Permission { input: input.clone() });
                vec![Said::Asks(Ask { id, kind, tool_use_id, tool, input })]
            }
            wire::Request::Cancelled => {
                self.asked.remove(&id);
                Vec::new()
            }
            wire::Request::Unknown { subtype } => {
                let error = format!("`{subtype}` is not served here");
                let response = json!({"type": "control_response",
                    "response": {"subtype": "error", "request_id": id, "error": error}});
                vec![Said::Reply(line_of(&response))]
            }
        }
    }

    /// To something that was asked of it: only a refusal means something.
    fn answered(&mut self, id: &str, error: Option<String>) -> Vec<Said> {
        match error {
            Some(error) if id == GREETING => vec![Said::Failed { error: format!("it could not be set up: {error}") }],
            Some(_) | None => Vec::new(),
        }
    }

    fn seen_by_model(&mut self, uuid: uuid::Uuid) -> Vec<Said> {
        let id = MessageId::from_uuid(uuid);
        let Some(at) = self.told.iter().position(|told| *told == id) else { return Vec::new() };
        self.told.remove(at);
        self.turn.receipt(id)
    }
}

fn response(request: &str, answer: &Value) -> Vec<u8> {
    let response = json!({"subtype": "success", "request_id": request, "response": answer});
    line_of(&json!({"type": "control_response", "response": response}))
}

/// To the hook before a tool. Without anything to say, the agent's own rules go on.
fn before(answer: Answer) -> Value {
    let mut output = json!({"hookEventName": "PreToolUse"});
    match answer {
        Answer::Allow { input, context } => {
            if let Some(input) = input {
                output["permissionDecision"] = "allow".into();
                output["updatedInput"] = input;
            }
            if let Some(context) = context {
                output["additionalContext"] = context.into();
            }
        }
        Answer::Deny { reason } => {
            output["permissionDecision"] = "deny".into();
            output["permissionDecisionReason"] = reason.into();
        }
        Answer::Words(_) => {}
    }
    json!({"hookSpecificOutput": output})
}

fn permission(answer: Answer, asked: Value) -> Value {
    match answer {
        Answer::Allow { input, .. } => json!({"behavior": "allow", "updatedInput": input.unwrap_or(asked)}),
        Answer::Words(words) => {
            let mut input = asked;
            if input.is_object() {
                input["answers"] = words;
            }
            json!({"behavior": "allow", "updatedInput": input})
        }
        Answer::Deny { reason } => json!({"behavior": "deny", "message": reason, "interrupt": false}),
    }
}
