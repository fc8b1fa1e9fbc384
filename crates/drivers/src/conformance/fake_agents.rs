//! Fake agents: each speaks the protocol of a real agent and acts only on command.

use crate::settings::AgentSettings;
use crate::{Driver, LaunchContext, acp, claude, codex, opencode};
use serde_json::{Value, json};
use std::path::Path;

pub(super) trait FakeAgent {
    /// Handles one line of the driver and returns the immediate output.
    fn receive_line(&mut self, line: &Value) -> Vec<Value>;
    /// The model reads all sent messages; an idle agent starts a turn with them.
    fn read_messages(&mut self) -> Vec<Value>;
    /// Emits text, if a turn is running.
    fn say_text(&mut self, text: &str) -> Vec<Value>;
    /// Starts and ends a tool call.
    fn use_tool(&mut self, id: &str) -> Vec<Value>;
    fn ask_permission(&mut self, id: &str) -> Vec<Value>;
    /// Ends the turn, if one is running.
    fn finish_turn(&mut self) -> Vec<Value>;
}

pub(super) fn new_pair(name: &str) -> (Box<dyn Driver>, Box<dyn FakeAgent>) {
    let mut both: (Box<dyn Driver>, Box<dyn FakeAgent>) = match name {
        "claude" => (Box::<claude::ClaudeDriver>::default(), Box::<FakeClaude>::default()),
        "codex" => (Box::<codex::CodexDriver>::default(), Box::<FakeCodex>::default()),
        "acp" => (Box::new(acp::AcpDriver::new(acp::AcpAgent::generic())), Box::<FakeAcp>::default()),
        "acp with steering" => (
            Box::new(acp::AcpDriver::new(acp::AcpAgent::generic())),
            Box::new(FakeAcp { steers: true, ..FakeAcp::default() }),
        ),
        "opencode" => (Box::<opencode::OpenCodeDriver>::default(), Box::new(FakeOpenCode::ready())),
        other => panic!("no fake agent for {other}"),
    };
    both.0.build_command(&LaunchContext::minimal(Path::new("/w"), &AgentSettings::default()));
    both
}

#[derive(Default)]
struct FakeClaude {
    unread_messages: Vec<Value>,
    in_turn: bool,
    request_count: u64,
}

impl FakeClaude {
    fn begin(&mut self) -> Vec<Value> {
        self.in_turn = true;
        let first = self.unread_messages.remove(0);
        vec![json!({"type": "system", "subtype": "init", "session_id": "s"}), Self::replay(&first)]
    }

    fn replay(line: &Value) -> Value {
        json!({"type": "user", "isReplay": true, "uuid": line["uuid"], "message": line["message"]})
    }

    fn end_turn(&mut self, is_error: bool) -> Vec<Value> {
        self.in_turn = false;
        vec![json!({"type": "result", "subtype": "x", "is_error": is_error, "result": "r"})]
    }
}

impl FakeAgent for FakeClaude {
    fn receive_line(&mut self, line: &Value) -> Vec<Value> {
        match (line["type"].as_str(), line["request"]["subtype"].as_str()) {
            (Some("user"), _) => {
                self.unread_messages.push(line.clone());
                if self.in_turn { Vec::new() } else { self.begin() }
            }
            (Some("control_request"), Some("interrupt")) if self.in_turn => self.end_turn(true),
            _ => Vec::new(),
        }
    }

    fn read_messages(&mut self) -> Vec<Value> {
        if !self.in_turn && self.unread_messages.is_empty() {
            return Vec::new();
        }
        let mut lines = if self.in_turn { Vec::new() } else { self.begin() };
        lines.extend(self.unread_messages.drain(..).map(|line| Self::replay(&line)));
        lines
    }

    fn say_text(&mut self, text: &str) -> Vec<Value> {
        let message = json!({"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}});
        if self.in_turn { vec![message] } else { Vec::new() }
    }

    fn use_tool(&mut self, id: &str) -> Vec<Value> {
        let used = json!({"type": "tool_use", "id": id, "name": "Bash", "input": {}});
        let result = json!({"type": "tool_result", "tool_use_id": id, "content": "ok"});
        let both = [
            json!({"type": "assistant", "message": {"content": [used]}}),
            json!({"type": "user", "message": {"content": [result]}}),
        ];
        if self.in_turn { both.to_vec() } else { Vec::new() }
    }

    fn ask_permission(&mut self, id: &str) -> Vec<Value> {
        self.request_count += 1;
        let request = json!({"subtype": "can_use_tool", "tool_name": "Bash", "input": {}, "tool_use_id": id});
        let asks =
            json!({"type": "control_request", "request_id": format!("r{}", self.request_count), "request": request});
        if self.in_turn { vec![asks] } else { Vec::new() }
    }

    fn finish_turn(&mut self) -> Vec<Value> {
        if self.in_turn { self.end_turn(false) } else { Vec::new() }
    }
}

#[derive(Default)]
struct FakeCodex {
    turns: u64,
    in_turn: bool,
    unread_messages: Vec<Value>,
    request_count: u64,
}

impl FakeCodex {
    fn notice(method: &str, mut params: Value) -> Value {
        params["threadId"] = "t".into();
        json!({"method": method, "params": params})
    }

    fn turn(&self, status: &str) -> Value {
        json!({"turn": {"id": format!("u{}", self.turns), "status": status}})
    }

    fn end_turn(&mut self, status: &str) -> Vec<Value> {
        self.in_turn = false;
        vec![Self::notice("turn/completed", self.turn(status))]
    }
}

impl FakeAgent for FakeCodex {
    fn receive_line(&mut self, line: &Value) -> Vec<Value> {
        let (id, params) = (&line["id"], &line["params"]);
        let refused = || vec![json!({"id": id, "error": {"code": -1, "message": "no such turn"}})];
        match line["method"].as_str() {
            Some("initialize") => vec![json!({"id": id, "result": {}})],
            Some("thread/start") => vec![json!({"id": id, "result": {"thread": {"id": "t"}}})],
            Some("turn/start") => {
                assert!(!self.in_turn, "turn/start during a turn");
                self.turns += 1;
                self.in_turn = true;
                self.unread_messages = vec![params["clientUserMessageId"].clone()];
                let answer = json!({"id": id, "result": self.turn("inProgress")});
                vec![answer, Self::notice("turn/started", self.turn("inProgress"))]
            }
            Some("turn/steer") if self.in_turn => {
                self.unread_messages.push(params["clientUserMessageId"].clone());
                vec![json!({"id": id, "result": {}})]
            }
            Some("turn/interrupt") if self.in_turn => {
                // Codex drops steers that the model has not read.
                self.unread_messages.clear();
                let mut lines = vec![json!({"id": id, "result": {}})];
                lines.extend(self.end_turn("interrupted"));
                lines
            }
            Some("turn/steer" | "turn/interrupt") => refused(),
            _ => Vec::new(),
        }
    }

    fn read_messages(&mut self) -> Vec<Value> {
        let item = |name| json!({"item": {"type": "userMessage", "id": "i", "clientId": name}});
        self.unread_messages.drain(..).map(|name| Self::notice("item/started", item(name))).collect()
    }

    fn say_text(&mut self, text: &str) -> Vec<Value> {
        let item = json!({"item": {"type": "agentMessage", "id": "m", "text": text}});
        if self.in_turn { vec![Self::notice("item/completed", item)] } else { Vec::new() }
    }

    fn use_tool(&mut self, id: &str) -> Vec<Value> {
        let item = json!({"item": {"type": "commandExecution", "id": id, "command": "ls", "status": "completed"}});
        let both = [Self::notice("item/started", item.clone()), Self::notice("item/completed", item)];
        if self.in_turn { both.to_vec() } else { Vec::new() }
    }

    fn ask_permission(&mut self, id: &str) -> Vec<Value> {
        self.request_count += 1;
        let params = json!({"threadId": "t", "itemId": id, "command": "ls"});
        let asks =
            json!({"id": self.request_count, "method": "item/commandExecution/requestApproval", "params": params});
        if self.in_turn { vec![asks] } else { Vec::new() }
    }

    fn finish_turn(&mut self) -> Vec<Value> {
        if !self.in_turn {
            return Vec::new();
        }
        let mut lines = self.read_messages();
        lines.extend(self.end_turn("completed"));
        lines
    }
}

#[derive(Default)]
struct FakeAcp {
    steers: bool,
    /// Id of the running prompt request.
    prompt: Option<Value>,
    /// A cancel has arrived; the agent stops at the next step.
    is_stopping: bool,
    request_count: u64,
}

impl FakeAcp {
    fn update(update: Value) -> Value {
        json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}})
    }

    fn end_turn(&mut self, reason: &str) -> Vec<Value> {
        self.is_stopping = false;
        let prompt = self.prompt.take();
        prompt.into_iter().map(|id| json!({"id": id, "result": {"stopReason": reason}})).collect()
    }

    fn in_turn(&self, lines: Vec<Value>) -> Vec<Value> {
        if self.prompt.is_some() { lines } else { Vec::new() }
    }
}

impl FakeAgent for FakeAcp {
    fn receive_line(&mut self, line: &Value) -> Vec<Value> {
        let id = &line["id"];
        match line["method"].as_str() {
            Some("initialize") => {
                vec![json!({"id": id, "result": {"_meta": {"steering": {"supported": self.steers}}}})]
            }
            Some("session/new") => vec![json!({"id": id, "result": {"sessionId": "s"}})],
            Some("session/prompt") => {
                assert!(self.prompt.is_none(), "a second prompt during a prompt");
                self.prompt = Some(id.clone());
                Vec::new()
            }
            Some("_session/steering") if self.prompt.is_some() => {
                vec![json!({"id": id, "result": {"outcome": "injected"}})]
            }
            Some("_session/steering") => vec![json!({"id": id, "error": {"message": "no turn"}})],
            Some("session/cancel") => {
                self.is_stopping = self.prompt.is_some();
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// ACP has no acknowledgement: work on the prompt implies it.
    fn read_messages(&mut self) -> Vec<Value> {
        if self.is_stopping { self.end_turn("cancelled") } else { self.say_text("hm") }
    }

    fn say_text(&mut self, text: &str) -> Vec<Value> {
        let words = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}});
        self.in_turn(vec![Self::update(words)])
    }

    fn use_tool(&mut self, id: &str) -> Vec<Value> {
        let call = |kind: &str, status: &str| {
            Self::update(json!({"sessionUpdate": kind, "toolCallId": id, "kind": "execute", "status": status}))
        };
        self.in_turn(vec![call("tool_call", "in_progress"), call("tool_call_update", "completed")])
    }

    fn ask_permission(&mut self, id: &str) -> Vec<Value> {
        self.request_count += 1;
        let options = json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
        let params = json!({"sessionId": "s", "options": options, "toolCall": {"toolCallId": id, "kind": "execute"}});
        self.in_turn(vec![json!({"id": self.request_count, "method": "session/request_permission", "params": params})])
    }

    fn finish_turn(&mut self) -> Vec<Value> {
        self.end_turn("end_turn")
    }
}

/// The bridge to OpenCode.
#[derive(Default)]
struct FakeOpenCode {
    is_ready: bool,
    stored: u64,
    answers: u64,
    /// Stored messages without a response.
    unseen: u64,
    in_turn: bool,
    request_count: u64,
}

impl FakeOpenCode {
    fn ready() -> Self {
        Self::default()
    }

    fn event(kind: &str, mut properties: Value) -> Value {
        properties["sessionID"] = "s".into();
        json!({"event": {"data": {"type": kind, "properties": properties}}})
    }

    fn busy(&mut self) -> Value {
        self.in_turn = true;
        Self::event("session.status", json!({"status": {"type": "busy"}}))
    }

    /// The bridge reports `ready` without a handshake.
    fn first(&mut self) -> Vec<Value> {
        if std::mem::replace(&mut self.is_ready, true) {
            return Vec::new();
        }
        vec![json!({"ready": {"session": "s"}})]
    }

    fn end_turn(&mut self) -> Vec<Value> {
        self.in_turn = false;
        self.unseen = 0;
        vec![Self::event("session.idle", json!({}))]
    }

    fn part(part: Value) -> Value {
        Self::event("message.part.updated", json!({"part": part}))
    }
}

impl FakeAgent for FakeOpenCode {
    fn receive_line(&mut self, line: &Value) -> Vec<Value> {
        if let Some(prompt) = line.get("prompt") {
            self.stored += 1;
            self.unseen += 1;
            let name = format!("u{}", self.stored);
            let text = json!({"type": "text", "id": format!("p{name}"), "messageID": name, "text": prompt["text"]});
            let mut lines = vec![Self::part(text)];
            if !self.in_turn {
                lines.push(self.busy());
            }
            return lines;
        }
        if line.get("abort").is_some() && self.in_turn { self.end_turn() } else { Vec::new() }
    }

    fn read_messages(&mut self) -> Vec<Value> {
        let mut lines = self.first();
        if self.in_turn && self.unseen > 0 {
            self.unseen = 0;
            self.answers += 1;
            let (id, parent) = (format!("a{}", self.answers), format!("u{}", self.stored));
            let info = json!({"id": id, "role": "assistant", "parentID": parent});
            lines.push(Self::event("message.updated", json!({"info": info})));
        }
        lines
    }

    fn say_text(&mut self, text: &str) -> Vec<Value> {
        let mut lines = self.read_messages();
        let message = format!("a{}", self.answers);
        let part =
            json!({"type": "text", "id": format!("w{text}"), "messageID": message, "text": text, "time": {"end": 1}});
        if self.in_turn {
            lines.push(Self::part(part));
        }
        lines
    }

    fn use_tool(&mut self, id: &str) -> Vec<Value> {
        let part = |status: &str| {
            Self::part(json!({"type": "tool", "id": "p", "callID": id, "tool": "bash", "state": {"status": status}}))
        };
        if self.in_turn { vec![part("running"), part("completed")] } else { Vec::new() }
    }

    fn ask_permission(&mut self, _: &str) -> Vec<Value> {
        self.request_count += 1;
        let asks = json!({"id": format!("per{}", self.request_count), "permission": "bash", "patterns": []});
        if self.in_turn { vec![Self::event("permission.asked", asks)] } else { Vec::new() }
    }

    fn finish_turn(&mut self) -> Vec<Value> {
        let mut lines = self.read_messages();
        if self.in_turn {
            lines.extend(self.end_turn());
        }
        lines
    }
}
