//! What the updates of an agent mean, as events.

use super::super::{Mark, Said, event};
use crate::driver::shown::{self, clip};
use atoll_core::event::kind;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// As much of one text is held before it is told in parts.
const PART: usize = 24 << 10;

#[derive(Debug, Default)]
pub(super) struct Turn {
    /// What a turn begins with: of the agent and its session.
    about: Value,
    tools: BTreeMap<String, Tool>,
    words: Option<Words>,
    /// What the session has cost, as it says itself, and how much of that has been told.
    cost: Option<f64>,
    cost_told: f64,
}

/// Text that is still being written.
#[derive(Debug)]
struct Words {
    kind: &'static str,
    /// Some say which message a piece belongs to.
    message: Value,
    text: String,
}

#[derive(Debug, Default)]
struct Tool {
    kind: String,
    name: String,
    title: String,
    input: Value,
    content: Value,
    output: String,
    has_begun: bool,
}

impl Turn {
    pub(super) fn greeted(&mut self, result: &Value) {
        self.about = json!({"version": result["agentInfo"]["version"], "program": result["agentInfo"]["name"]});
    }

    pub(super) fn opened(&mut self, result: &Value) {
        if self.about.is_object() {
            self.about["model"] = result["models"]["currentModelId"].clone();
            self.about["permission_mode"] = result["modes"]["currentModeId"].clone();
        }
    }

    pub(super) fn begins(&mut self, agent: &str, session: Option<&str>) -> Said {
        let mut data = if self.about.is_object() { self.about.clone() } else { json!({}) };
        data["agent"] = agent.into();
        data["native_id"] = session.into();
        event(kind::AGENT_STARTED, &data, Mark::TurnBegins)
    }

    /// It comes of the work, and not of the session being there.
    pub(super) fn is_work(update: &Value) -> bool {
        let kind = update["sessionUpdate"].as_str().unwrap_or_default();
        matches!(kind, "agent_message_chunk" | "agent_thought_chunk" | "tool_call" | "tool_call_update" | "plan")
    }

    /// Outside of a turn, or of another session: only what it costs is kept.
    pub(super) fn aside(&mut self, update: &Value) -> Vec<Said> {
        if let Some(cost) = cost(update) {
            (self.cost, self.cost_told) = (Some(cost), cost);
        }
        match update["sessionUpdate"].as_str() {
            Some(name) if name == "usage_update" || is_quiet(name) || Self::is_work(update) => Vec::new(),
            other => unknown(other),
        }
    }

    pub(super) fn update(&mut self, update: &Value) -> Vec<Said> {
        match update["sessionUpdate"].as_str() {
            Some("agent_message_chunk") => self.piece(kind::AGENT_MESSAGE, update),
            Some("agent_thought_chunk") => self.piece(kind::AGENT_THINKING, update),
            Some("tool_call") => {
                let mut said = self.words();
                said.extend(self.call(update, update["status"] != "pending"));
                said
            }
            Some("tool_call_update") => {
                let mut said = self.words();
                let is_known = update["rawInput"].as_object().is_some_and(|input| !input.is_empty());
                said.extend(
                    self.call(update, is_known || !matches!(update["status"].as_str(), None | Some("pending"))),
                );
                said
            }
            Some("plan") => {
                let mut said = self.words();
                said.push(plan(&update["entries"]));
                said
            }
            Some("usage_update") => {
                self.cost = cost(update).or(self.cost);
                Vec::new()
            }
            Some(name) if is_quiet(name) => Vec::new(),
            other => unknown(other),
        }
    }

    fn piece(&mut self, kind: &'static str, update: &Value) -> Vec<Said> {
        let Some(text) = update["content"]["text"].as_str() else {
            let what = update["content"]["type"].as_str().unwrap_or("nothing").to_owned();
            return vec![Said::Unparsed { reason: format!("a piece of a message that is no text but {what}") }];
        };
        let message = &update["messageId"];
        let goes_on = |words: &Words| words.kind == kind && words.message == *message && words.text.len() < PART;
        let mut said = if self.words.as_ref().is_some_and(goes_on) { Vec::new() } else { self.words() };
        let words = self.words.get_or_insert_with(|| Words { kind, message: message.clone(), text: String::new() });
        words.text.push_str(text);
        if kind == kind::AGENT_MESSAGE {
            said.push(Said::Live(atoll_core::json::raw(&json!({"text": text}))));
        }
        said
    }

    /// What was written is whole.
    fn words(&mut self) -> Vec<Said> {
        match self.words.take() {
            Some(words) if !words.text.trim().is_empty() => {
                vec![event(words.kind, &json!({"text": clip(&words.text)}), Mark::Plain)]
            }
            Some(_) | None => Vec::new(),
        }
    }

    /// It wants to use a tool, which may be the first that is heard of it.
    pub(super) fn asked(&mut self, call: &Value) -> Vec<Said> {
        let mut said = self.words();
        said.extend(self.call(call, true));
        said
    }

    pub(super) fn tool(&self, call: &Value) -> (String, Value) {
        match call["toolCallId"].as_str().and_then(|id| self.tools.get(id)) {
            Some(tool) => (tool.called(), tool.shown()),
            None => ("unknown".to_owned(), call.clone()),
        }
    }

    fn call(&mut self, call: &Value, is_complete: bool) -> Vec<Said> {
        let Some(id) = call["toolCallId"].as_str() else {
            return vec![Said::Unparsed { reason: "a tool without a name".to_owned() }];
        };
        let tool = self.tools.entry(id.to_owned()).or_default();
        tool.take(call);
        let mut said = Vec::new();
        if is_complete && !tool.has_begun {
            tool.has_begun = true;
            let (name, input) = (tool.called(), tool.shown());
            let data = json!({"tool": name, "tool_use_id": id, "title": clip(&tool.title),
                "input": shown::bounded(&input)});
            said.push(event(kind::AGENT_TOOL_USE, &data, Mark::ToolBegins(id.to_owned())));
            said.extend(shown::beside_use(&name, id, &input));
        }
        let is_error = match call["status"].as_str() {
            Some("completed") => false,
            Some("failed") => true,
            Some(_) | None => return said,
        };
        let output = tool.output(call);
        said.extend(self.end(id, &output, is_error));
        said
    }

    fn end(&mut self, id: &str, output: &str, is_error: bool) -> Vec<Said> {
        let Some(tool) = self.tools.remove(id) else { return Vec::new() };
        let name = tool.called();
        let data = json!({"tool": name, "tool_use_id": id, "output": clip(output), "is_error": is_error});
        let mut said = vec![event(kind::AGENT_TOOL_COMPLETED, &data, Mark::ToolEnds(id.to_owned()))];
        said.extend(shown::beside_result(&name, id, output, is_error));
        said
    }

    /// Nothing more comes: what was under way is broken off.
    pub(super) fn ends(&mut self) -> Vec<Said> {
        let mut said = self.words();
        let open: Vec<String> =
            self.tools.iter().filter(|(_, tool)| tool.has_begun).map(|(id, _)| id.clone()).collect();
        for id in open {
            said.extend(self.end(&id, "broken off", true));
        }
        self.tools.clear();
        said
    }

    /// What the turn took, in one of the forms in which agents say it.
    pub(super) fn usage(&mut self, result: &Value) -> Vec<Said> {
        let cost = self.cost.map(|cost| (cost - self.cost_told).max(0.0));
        self.cost_told = self.cost.unwrap_or(self.cost_told);
        let usage = &result["usage"];
        let quota = &result["_meta"]["quota"]["token_count"];
        let of = |names: [&Value; 2]| names.into_iter().find_map(Value::as_i64).unwrap_or(0);
        let (input, output) = (
            of([&usage["inputTokens"], &quota["input_tokens"]]),
            of([&usage["outputTokens"], &quota["output_tokens"]]),
        );
        let (read, written) =
            (of([&usage["cachedReadTokens"], &Value::Null]), of([&usage["cachedWriteTokens"], &Value::Null]));
        if input == 0 && output == 0 && cost.is_none_or(|cost| cost == 0.0) {
            return Vec::new();
        }
        let mut data = json!({"input_tokens": input, "output_tokens": output, "cache_read_tokens": read,
            "cache_write_tokens": written});
        if let Some(cost) = cost {
            data["cost_usd"] = cost.into();
        }
        // Where one model did it all, it is named.
        if let Some([one]) = result["_meta"]["quota"]["model_usage"].as_array().map(Vec::as_slice) {
            data["model"] = one["model"].clone();
        }
        vec![event(kind::AGENT_USAGE, &data, Mark::Plain)]
    }
}

impl Tool {
    fn take(&mut self, call: &Value) {
        for (field, name) in [(&mut self.kind, "kind"), (&mut self.name, "name"), (&mut self.title, "title")] {
            if let Some(text) = call[name].as_str() {
                text.clone_into(field);
            }
        }
        let is_more = |value: &Value| match value {
            Value::Object(all) => !all.is_empty(),
            Value::Array(all) => !all.is_empty(),
            Value::Null => false,
            Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
        };
        if is_more(&call["rawInput"]) {
            self.input = call["rawInput"].clone();
        }
        if is_more(&call["content"]) {
            self.content = call["content"].clone();
        }
        if let Some(text) = call["_meta"]["terminal_output_delta"]["data"].as_str() {
            let room = PART.saturating_sub(self.output.len());
            self.output.push_str(&text[..text.floor_char_boundary(room)]);
        }
    }

    /// By the names that other agents have for the same, where there are some.
    fn called(&self) -> String {
        let name = match self.kind.as_str() {
            "execute" => "Bash",
            "edit" => "Edit",
            "read" => "Read",
            "search" => "Grep",
            "fetch" => "WebFetch",
            "delete" => "Delete",
            "move" => "Move",
            "think" => "Think",
            _ => [&*self.name, &*self.title].into_iter().find(|name| !name.is_empty()).unwrap_or("unknown"),
        };
        clip(name).to_owned()
    }

    /// What it is to do: as it says, or what it shows of it.
    fn shown(&self) -> Value {
        if !self.input.is_null() {
            return self.input.clone();
        }
        match self.kind.as_str() {
            "execute" => json!({"command": self.title, "content": self.content}),
            _ => json!({"title": self.title, "content": self.content}),
        }
    }

    fn output(&self, call: &Value) -> String {
        let raw = &call["rawOutput"];
        match (raw.as_str(), raw["output"].as_str()) {
            (Some(text), _) | (None, Some(text)) if !text.is_empty() => return text.to_owned(),
            _ => {}
        }
        let blocks = call["content"].as_array().into_iter().flatten();
        let texts: Vec<&str> = blocks.filter_map(|block| block["content"]["text"].as_str()).collect();
        if texts.is_empty() { self.output.clone() } else { texts.join("\n") }
    }
}

/// Updates of what the session offers, and what it was told itself.
fn is_quiet(name: &str) -> bool {
    matches!(
        name,
        "user_message_chunk"
            | "available_commands_update"
            | "current_mode_update"
            | "current_model_update"
            | "config_option_update"
            | "session_info_update"
    )
}

fn unknown(name: Option<&str>) -> Vec<Said> {
    vec![Said::Unparsed { reason: format!("an update of the unknown kind {name:?}") }]
}

fn cost(update: &Value) -> Option<f64> {
    let cost = &update["cost"];
    cost["amount"].as_f64().filter(|_| cost["currency"].as_str().is_none_or(|currency| currency == "USD"))
}

fn plan(entries: &Value) -> Said {
    let one = |entry: &Value| json!({"text": entry["content"], "state": entry["status"]});
    let items: Vec<Value> = entries.as_array().into_iter().flatten().map(one).collect();
    event(kind::AGENT_PLAN, &json!({"items": shown::bounded(&Value::Array(items))}), Mark::Plain)
}
