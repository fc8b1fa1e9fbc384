//! Puppets: each speaks as an agent does, and does only what it is made to.

use crate::driver::{Driver, Launch, acp, claude, codex, opencode};
use crate::heartbeat::Settings;
use serde_json::{Value, json};
use std::path::Path;

pub(super) trait Puppet {
    /// A line of the driver, and what is said to it at once.
    fn hear(&mut self, line: &Value) -> Vec<Value>;
    /// The model gets to see whatever was told; without a turn, one begins with it.
    fn see(&mut self) -> Vec<Value>;
    /// In a turn it says something; outside of one, nothing.
    fn say(&mut self, text: &str) -> Vec<Value>;
    /// A tool is used, and done.
    fn tool(&mut self, id: &str) -> Vec<Value>;
    fn ask(&mut self, id: &str) -> Vec<Value>;
    /// The turn comes to its end, if there is one.
    fn finish(&mut self) -> Vec<Value>;
}

pub(super) fn of(name: &str) -> (Box<dyn Driver>, Box<dyn Puppet>) {
    let mut both: (Box<dyn Driver>, Box<dyn Puppet>) = match name {
        "claude" => (Box::<claude::Claude>::default(), Box::<Claude>::default()),
        "codex" => (Box::<codex::Codex>::default(), Box::<Codex>::default()),
        "acp" => (Box::new(acp::Acp::new(acp::Program::Other)), Box::<Acp>::default()),
        "acp that can be steered" => {
            (Box::new(acp::Acp::new(acp::Program::Other)), Box::new(Acp { steers: true, ..Acp::default() }))
        }
        "opencode" => (Box::<opencode::OpenCode>::default(), Box::new(OpenCode::ready())),
        other => panic!("there is no puppet for {other}"),
    };
    both.0.command(&Launch::plain(Path::new("/w"), &Settings::default()));
    both
}

#[derive(Default)]
struct Claude {
    told: Vec<Value>,
    in_turn: bool,
    asked: u64,
}

impl Claude {
    fn begin(&mut self) -> Vec<Value> {
        self.in_turn = true;
        let first = self.told.remove(0);
        vec![json!({"type": "system", "subtype": "init", "session_id": "s"}), Self::replay(&first)]
    }

    fn replay(line: &Value) -> Value {
        json!({"type": "user", "isReplay": true, "uuid": line["uuid"], "message": line["message"]})
    }

    fn over(&mut self, is_error: bool) -> Vec<Value> {
        self.in_turn = false;
        vec![json!({"type": "result", "subtype": "x", "is_error": is_error, "result": "r"})]
    }
}

impl Puppet for Claude {
    fn hear(&mut self, line: &Value) -> Vec<Value> {
        match (line["type"].as_str(), line["request"]["subtype"].as_str()) {
            (Some("user"), _) => {
                self.told.push(line.clone());
                if self.in_turn { Vec::new() } else { self.begin() }
            }
            (Some("control_request"), Some("interrupt")) if self.in_turn => self.over(true),
            _ => Vec::new(),
        }
    }

    fn see(&mut self) -> Vec<Value> {
        if !self.in_turn && self.told.is_empty() {
            return Vec::new();
        }
        let mut said = if self.in_turn { Vec::new() } else { self.begin() };
        said.extend(self.told.drain(..).map(|line| Self::replay(&line)));
        said
    }

    fn say(&mut self, text: &str) -> Vec<Value> {
        let said = json!({"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}});
        if self.in_turn { vec![said] } else { Vec::new() }
    }

    fn tool(&mut self, id: &str) -> Vec<Value> {
        let used = json!({"type": "tool_use", "id": id, "name": "Bash", "input": {}});
        let result = json!({"type": "tool_result", "tool_use_id": id, "content": "ok"});
        let both = [
            json!({"type": "assistant", "message": {"content": [used]}}),
            json!({"type": "user", "message": {"content": [result]}}),
        ];
        if self.in_turn { both.to_vec() } else { Vec::new() }
    }

    fn ask(&mut self, id: &str) -> Vec<Value> {
        self.asked += 1;
        let request = json!({"subtype": "can_use_tool", "tool_name": "Bash", "input": {}, "tool_use_id": id});
        let asks = json!({"type": "control_request", "request_id": format!("r{}", self.asked), "request": request});
        if self.in_turn { vec![asks] } else { Vec::new() }
    }

    fn finish(&mut self) -> Vec<Value> {
        if self.in_turn { self.over(false) } else { Vec::new() }
    }
}

#[derive(Default)]
struct Codex {
    turns: u64,
    in_turn: bool,
    told: Vec<Value>,
    asked: u64,
}

impl Codex {
    fn notice(method: &str, mut params: Value) -> Value {
        params["threadId"] = "t".into();
        json!({"method": method, "params": params})
    }

    fn turn(&self, status: &str) -> Value {
        json!({"turn": {"id": format!("u{}", self.turns), "status": status}})
    }

    fn over(&mut self, status: &str) -> Vec<Value> {
        self.in_turn = false;
        vec![Self::notice("turn/completed", self.turn(status))]
    }
}

impl Puppet for Codex {
    fn hear(&mut self, line: &Value) -> Vec<Value> {
        let (id, params) = (&line["id"], &line["params"]);
        let refused = || vec![json!({"id": id, "error": {"code": -1, "message": "no such turn"}})];
        match line["method"].as_str() {
            Some("initialize") => vec![json!({"id": id, "result": {}})],
            Some("thread/start") => vec![json!({"id": id, "result": {"thread": {"id": "t"}}})],
            Some("turn/start") => {
                assert!(!self.in_turn, "a turn is begun in a turn");
                self.turns += 1;
                self.in_turn = true;
                self.told = vec![params["clientUserMessageId"].clone()];
                let answer = json!({"id": id, "result": self.turn("inProgress")});
                vec![answer, Self::notice("turn/started", self.turn("inProgress"))]
            }
            Some("turn/steer") if self.in_turn => {
                self.told.push(params["clientUserMessageId"].clone());
                vec![json!({"id": id, "result": {}})]
            }
            Some("turn/interrupt") if self.in_turn => {
                // What it had taken and not come to is gone with the turn.
                self.told.clear();
                let mut said = vec![json!({"id": id, "result": {}})];
                said.extend(self.over("interrupted"));
                said
            }
            Some("turn/steer" | "turn/interrupt") => refused(),
            _ => Vec::new(),
        }
    }

    fn see(&mut self) -> Vec<Value> {
        let item = |name| json!({"item": {"type": "userMessage", "id": "i", "clientId": name}});
        self.told.drain(..).map(|name| Self::notice("item/started", item(name))).collect()
    }

    fn say(&mut self, text: &str) -> Vec<Value> {
        let said = json!({"item": {"type": "agentMessage", "id": "m", "text": text}});
        if self.in_turn { vec![Self::notice("item/completed", said)] } else { Vec::new() }
    }

    fn tool(&mut self, id: &str) -> Vec<Value> {
        let item = json!({"item": {"type": "commandExecution", "id": id, "command": "ls", "status": "completed"}});
        let both = [Self::notice("item/started", item.clone()), Self::notice("item/completed", item)];
        if self.in_turn { both.to_vec() } else { Vec::new() }
    }

    fn ask(&mut self, id: &str) -> Vec<Value> {
        self.asked += 1;
        let params = json!({"threadId": "t", "itemId": id, "command": "ls"});
        let asks = json!({"id": self.asked, "method": "item/commandExecution/requestApproval", "params": params});
        if self.in_turn { vec![asks] } else { Vec::new() }
    }

    fn finish(&mut self) -> Vec<Value> {
        if !self.in_turn {
            return Vec::new();
        }
        let mut said = self.see();
        said.extend(self.over("completed"));
        said
    }
}

#[derive(Default)]
struct Acp {
    steers: bool,
    /// The prompt that is under way.
    prompt: Option<Value>,
    /// It was told to stop, and does when it gets to it.
    is_stopping: bool,
    asked: u64,
}

impl Acp {
    fn update(update: Value) -> Value {
        json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}})
    }

    fn over(&mut self, reason: &str) -> Vec<Value> {
        self.is_stopping = false;
        let prompt = self.prompt.take();
        prompt.into_iter().map(|id| json!({"id": id, "result": {"stopReason": reason}})).collect()
    }

    fn in_turn(&self, said: Vec<Value>) -> Vec<Value> {
        if self.prompt.is_some() { said } else { Vec::new() }
    }
}

impl Puppet for Acp {
    fn hear(&mut self, line: &Value) -> Vec<Value> {
        let id = &line["id"];
        match line["method"].as_str() {
            Some("initialize") => {
                vec![json!({"id": id, "result": {"_meta": {"steering": {"supported": self.steers}}}})]
            }
            Some("session/new") => vec![json!({"id": id, "result": {"sessionId": "s"}})],
            Some("session/prompt") => {
                assert!(self.prompt.is_none(), "a prompt in a prompt");
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

    /// That it works on it is all that is seen.
    fn see(&mut self) -> Vec<Value> {
        if self.is_stopping { self.over("cancelled") } else { self.say("hm") }
    }

    fn say(&mut self, text: &str) -> Vec<Value> {
        let words = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}});
        self.in_turn(vec![Self::update(words)])
    }

    fn tool(&mut self, id: &str) -> Vec<Value> {
        let call = |kind: &str, status: &str| {
            Self::update(json!({"sessionUpdate": kind, "toolCallId": id, "kind": "execute", "status": status}))
        };
        self.in_turn(vec![call("tool_call", "in_progress"), call("tool_call_update", "completed")])
    }

    fn ask(&mut self, id: &str) -> Vec<Value> {
        self.asked += 1;
        let options = json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
        let params = json!({"sessionId": "s", "options": options, "toolCall": {"toolCallId": id, "kind": "execute"}});
        self.in_turn(vec![json!({"id": self.asked, "method": "session/request_permission", "params": params})])
    }

    fn finish(&mut self) -> Vec<Value> {
        self.over("end_turn")
    }
}

/// Its bridge, rather.
#[derive(Default)]
struct OpenCode {
    is_ready: bool,
    stored: u64,
    answers: u64,
    /// Stored, and not answered.
    unseen: u64,
    in_turn: bool,
    asked: u64,
}

impl OpenCode {
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

    /// Nobody greets it: that it is there is the first that it says.
    fn first(&mut self) -> Vec<Value> {
        if std::mem::replace(&mut self.is_ready, true) {
            return Vec::new();
        }
        vec![json!({"ready": {"session": "s"}})]
    }

    fn over(&mut self) -> Vec<Value> {
        self.in_turn = false;
        self.unseen = 0;
        vec![Self::event("session.idle", json!({}))]
    }

    fn part(part: Value) -> Value {
        Self::event("message.part.updated", json!({"part": part}))
    }
}

impl Puppet for OpenCode {
    fn hear(&mut self, line: &Value) -> Vec<Value> {
        if let Some(prompt) = line.get("prompt") {
            self.stored += 1;
            self.unseen += 1;
            let name = format!("u{}", self.stored);
            let text = json!({"type": "text", "id": format!("p{name}"), "messageID": name, "text": prompt["text"]});
            let mut said = vec![Self::part(text)];
            if !self.in_turn {
                said.push(self.busy());
            }
            return said;
        }
        if line.get("abort").is_some() && self.in_turn { self.over() } else { Vec::new() }
    }

    fn see(&mut self) -> Vec<Value> {
        let mut said = self.first();
        if self.in_turn && self.unseen > 0 {
            self.unseen = 0;
            self.answers += 1;
            let (id, parent) = (format!("a{}", self.answers), format!("u{}", self.stored));
            let info = json!({"id": id, "role": "assistant", "parentID": parent});
            said.push(Self::event("message.updated", json!({"info": info})));
        }
        said
    }

    fn say(&mut self, text: &str) -> Vec<Value> {
        let mut said = self.see();
        let message = format!("a{}", self.answers);
        let part =
            json!({"type": "text", "id": format!("w{text}"), "messageID": message, "text": text, "time": {"end": 1}});
        if self.in_turn {
            said.push(Self::part(part));
        }
        said
    }

    fn tool(&mut self, id: &str) -> Vec<Value> {
        let part = |status: &str| {
            Self::part(json!({"type": "tool", "id": "p", "callID": id, "tool": "bash", "state": {"status": status}}))
        };
        if self.in_turn { vec![part("running"), part("completed")] } else { Vec::new() }
    }

    fn ask(&mut self, _: &str) -> Vec<Value> {
        self.asked += 1;
        let asks = json!({"id": format!("per{}", self.asked), "permission": "bash", "patterns": []});
        if self.in_turn { vec![Self::event("permission.asked", asks)] } else { Vec::new() }
    }

    fn finish(&mut self) -> Vec<Value> {
        let mut said = self.see();
        if self.in_turn {
            said.extend(self.over());
        }
        said
    }
}
