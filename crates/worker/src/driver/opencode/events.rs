//! What the parts of OpenCode's messages mean, as events.

use super::super::{Mark, Origin, Said, event};
use crate::driver;
use crate::driver::shown::{self, clip};
use atoll_core::event::kind;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct Turn {
    /// What it works with, as its answers say.
    about: Value,
    /// Messages of the model, in this turn.
    answers: BTreeSet<String>,
    /// Parts that are thoughts: their pieces come as those of words do.
    thoughts: BTreeSet<String>,
    /// Parts that have been told.
    told: BTreeSet<String>,
    tools: BTreeMap<String, Tool>,
    /// Under which tool another session runs.
    parents: BTreeMap<String, String>,
    finish: Option<String>,
}

#[derive(Debug)]
struct Tool {
    name: String,
    input: Value,
    /// The tool under which a sub-agent uses it.
    parent: Option<String>,
}

impl Turn {
    pub(super) fn begins(&mut self, session: Option<&str>) -> Said {
        *self = Self { about: self.about.take(), ..Self::default() };
        let mut data = json!({"agent": "opencode", "native_id": session});
        for name in ["model", "cwd"] {
            if !self.about[name].is_null() {
                data[name] = self.about[name].clone();
            }
        }
        event(kind::AGENT_STARTED, &data, Mark::TurnBegins)
    }

    /// A message of the model.
    pub(super) fn answers(&mut self, info: &Value) {
        if let Some(id) = info["id"].as_str() {
            self.answers.insert(id.to_owned());
        }
        if let Some(finish) = info["finish"].as_str() {
            self.finish = Some(finish.to_owned());
        }
        self.about = json!({"model": info["modelID"], "cwd": info["path"]["cwd"]});
    }

    pub(super) fn is_answer(&self, message: &str) -> bool {
        self.answers.contains(message)
    }

    pub(super) fn has_answered(&self) -> bool {
        !self.answers.is_empty()
    }

    /// By the words that other agents have for it.
    pub(super) fn stop_reason(&self) -> &str {
        match self.finish.as_deref() {
            Some("stop") | None => "end_turn",
            Some("length") => "max_tokens",
            Some(other) => clip(other),
        }
    }

    pub(super) fn input(&self, call: &str) -> Option<Value> {
        self.tools.get(call).map(|tool| tool.input.clone())
    }

    pub(super) fn piece(&mut self, piece: &Value) -> Vec<Said> {
        let Some(text) = piece["delta"].as_str() else {
            return vec![Said::Unparsed { reason: "a piece without text".to_owned() }];
        };
        let is_thought = piece["partID"].as_str().is_some_and(|part| self.thoughts.contains(part));
        let is_answer = piece["messageID"].as_str().is_none_or(|message| self.is_answer(message));
        if piece["field"] != "text" || is_thought || !is_answer {
            return Vec::new();
        }
        vec![Said::Live(atoll_core::json::raw(&json!({"text": text})))]
    }

    /// A part of a message is there, or is more than it was. Of a sub-agent's only the tools are of interest.
    pub(super) fn part(&mut self, part: &Value, is_ours: bool) -> Vec<Said> {
        let (Some(kind), Some(id)) = (part["type"].as_str(), part["id"].as_str()) else {
            return vec![Said::Unparsed { reason: "a part without a type or a name".to_owned() }];
        };
        match kind {
            "tool" => self.tool(part, is_ours),
            "step-finish" => self.once(id, |turn| {
                let parent = if is_ours { None } else { turn.parent(part) };
                vec![Said::AnswerEnds { parent }, usage(part)]
            }),
            "text" | "reasoning" if is_ours => self.words(kind, id, part),
            "retry" if is_ours => {
                let data = json!({"attempt": part["attempt"], "error": part["error"]["data"]["message"]});
                vec![event(kind::AGENT_STREAM_ERROR, &data, Mark::Plain)]
            }
            "text" | "reasoning" | "retry" | "step-start" | "snapshot" | "patch" | "file" | "agent" | "subtask"
            | "compaction" => Vec::new(),
            other => vec![Said::Unparsed { reason: format!("a part of the unknown type `{other}`") }],
        }
    }

    fn once(&mut self, id: &str, say: impl FnOnce(&mut Self) -> Vec<Said>) -> Vec<Said> {
        if self.told.insert(id.to_owned()) { say(self) } else { Vec::new() }
    }

    fn words(&mut self, kind: &str, id: &str, part: &Value) -> Vec<Said> {
        if kind == "reasoning" {
            self.thoughts.insert(id.to_owned());
        }
        let is_answer = part["messageID"].as_str().is_some_and(|message| self.is_answer(message));
        let text = part["text"].as_str().unwrap_or_default();
        // It is whole when it has an end.
        if !is_answer || part["time"]["end"].is_null() || text.trim().is_empty() {
            return Vec::new();
        }
        let event_type = if kind == "reasoning" { kind::AGENT_THINKING } else { kind::AGENT_MESSAGE };
        let origin = self.origin(part, true);
        self.once(id, |_| vec![driver::part(event_type, &json!({"text": clip(text)}), Mark::Plain, &origin)])
    }

    /// Of a sub-agent's model nothing is known.
    fn origin(&self, part: &Value, is_ours: bool) -> Origin {
        let model = self.about["model"].as_str().filter(|_| is_ours).map(str::to_owned);
        part["messageID"].as_str().map_or(Origin::Unsaid, |id| Origin::Named { id: id.to_owned(), model })
    }

    fn tool(&mut self, part: &Value, is_ours: bool) -> Vec<Said> {
        let Some(id) = part["callID"].as_str() else {
            return vec![Said::Unparsed { reason: "a tool without a name".to_owned() }];
        };
        let (state, is_told) = (&part["state"], self.told.contains(id));
        if let (Some(session), false) = (state["metadata"]["sessionId"].as_str(), is_told) {
            self.parents.insert(session.to_owned(), id.to_owned());
        }
        let (output, is_error) = match state["status"].as_str() {
            Some("pending") => return Vec::new(),
            _ if is_told => return Vec::new(),
            Some("running") => return self.begin(id, part, is_ours),
            Some("completed") => (shown::text_of(&state["output"]), false),
            Some("error") => (shown::text_of(&state["error"]), true),
            other => return vec![Said::Unparsed { reason: format!("a tool in the unknown state {other:?}") }],
        };
        let mut said = self.begin(id, part, is_ours);
        said.extend(self.end(id, &output, is_error, &state["metadata"]["exit"]));
        said
    }

    fn begin(&mut self, id: &str, part: &Value, is_ours: bool) -> Vec<Said> {
        if self.tools.contains_key(id) {
            return Vec::new();
        }
        let name = part["tool"].as_str().unwrap_or_default().to_owned();
        let parent = if is_ours { None } else { self.parent(part) };
        let tool = Tool { name, input: part["state"]["input"].clone(), parent };
        let mut data = json!({"tool": tool.name, "tool_use_id": id, "input": shown::bounded(&tool.input)});
        if let Some(parent) = &tool.parent {
            data["parent_tool_use_id"] = parent.as_str().into();
        }
        let (mark, origin) = (Mark::ToolBegins(id.to_owned()), self.origin(part, is_ours));
        let mut said = vec![driver::part(kind::AGENT_TOOL_USE, &data, mark, &origin)];
        said.extend(shown::beside_use(&tool.name, id, &tool.input));
        self.tools.insert(id.to_owned(), tool);
        said
    }

    /// The tool that the part's session was begun by, or the one sub-agent that works; of several nobody knows which,
    /// but that they are not one.
    fn parent(&self, part: &Value) -> Option<String> {
        let session = part["sessionID"].as_str();
        if let Some(parent) = session.and_then(|session| self.parents.get(session)) {
            return Some(parent.clone());
        }
        let mut agents = self.tools.iter().filter(|(_, tool)| tool.name == "task");
        match (agents.next(), agents.next()) {
            (Some((id, _)), None) => Some(id.clone()),
            (_, _) => session.map(str::to_owned),
        }
    }

    fn end(&mut self, id: &str, output: &str, is_error: bool, exit: &Value) -> Vec<Said> {
        let Some(tool) = self.tools.remove(id) else { return Vec::new() };
        self.told.insert(id.to_owned());
        let mut data = json!({"tool": tool.name, "tool_use_id": id, "output": clip(output), "is_error": is_error});
        if let Some(parent) = tool.parent {
            data["parent_tool_use_id"] = parent.into();
        }
        if !exit.is_null() {
            data["exit_code"] = exit.clone();
        }
        let mut said = vec![event(kind::AGENT_TOOL_COMPLETED, &data, Mark::ToolEnds(id.to_owned()))];
        said.extend(shown::beside_result(&tool.name, id, output, is_error));
        said
    }

    /// Nothing more comes: what was under way is broken off.
    pub(super) fn ends(&mut self) -> Vec<Said> {
        let open: Vec<String> = self.tools.keys().cloned().collect();
        open.iter().flat_map(|id| self.end(id, "broken off", true, &Value::Null)).collect()
    }
}

fn usage(part: &Value) -> Said {
    let tokens = &part["tokens"];
    let of = |value: &Value| value.as_i64().unwrap_or(0);
    let mut data = json!({
        "input_tokens": of(&tokens["input"]),
        "output_tokens": of(&tokens["output"]).saturating_add(of(&tokens["reasoning"])),
        "cache_read_tokens": of(&tokens["cache"]["read"]),
        "cache_write_tokens": of(&tokens["cache"]["write"]),
    });
    // Of a model that it has no price for it says nothing at all.
    if let Some(cost) = part["cost"].as_f64().filter(|cost| *cost > 0.0) {
        data["cost_usd"] = cost.into();
    }
    event(kind::AGENT_USAGE, &data, Mark::Plain)
}
