//! What Codex wants to know before it goes on, and the form of the answers.

use super::super::rpc;
use super::super::{Answer, Ask, AskKind, Said, take};
use super::events::Turn;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Asks {
    open: BTreeMap<String, Open>,
}

#[derive(Debug)]
struct Open {
    /// Its own name for the request.
    id: Value,
    form: Form,
}

/// What the answer looks like.
#[derive(Debug)]
enum Form {
    Decision,
    /// These, or none.
    Permissions(Value),
    Questions(Vec<Value>),
    /// Of an MCP server.
    Elicitation,
}

impl Asks {
    pub(super) fn asked(&mut self, id: &Value, method: &str, mut params: Value, turn: &Turn) -> Vec<Said> {
        let item = params["itemId"].as_str().map(str::to_owned);
        let (kind, form, tool, input) = match method {
            "item/commandExecution/requestApproval" => {
                let input = json!({"command": params["command"], "cwd": params["cwd"], "reason": params["reason"]});
                (AskKind::Permission, Form::Decision, "Bash".to_owned(), input)
            }
            "item/fileChange/requestApproval" => {
                // What is to be changed was said when the tool began.
                let (tool, changes) = turn.tool(item.as_deref().unwrap_or_default());
                let tool = tool.unwrap_or("apply_patch").to_owned();
                (AskKind::Permission, Form::Decision, tool, without_null(changes, &params["reason"]))
            }
            "item/permissions/requestApproval" => {
                let wanted = take(&mut params, "permissions");
                let input = json!({"permissions": wanted, "reason": params["reason"]});
                (AskKind::Permission, Form::Permissions(wanted), "request_permissions".to_owned(), input)
            }
            "item/tool/requestUserInput" => {
                let questions = take(&mut params, "questions");
                let form = Form::Questions(questions.as_array().cloned().unwrap_or_default());
                (AskKind::Question, form, "request_user_input".to_owned(), json!({"questions": questions}))
            }
            "mcpServer/elicitation/request" => {
                (AskKind::Question, Form::Elicitation, "mcp_elicitation".to_owned(), params)
            }
            method => return vec![Said::Reply(rpc::refuse(id, method))],
        };
        let name = id.to_string();
        self.open.insert(name.clone(), Open { id: id.clone(), form });
        vec![Said::Asks(Ask { id: name, kind, tool_use_id: item, tool, input })]
    }

    pub(super) fn answer(&mut self, ask: &str, answer: Answer) -> Vec<u8> {
        let Some(Open { id, form }) = self.open.remove(ask) else { return Vec::new() };
        let result = match form {
            Form::Decision => match answer {
                Answer::Allow { .. } | Answer::Words(_) => json!({"decision": "accept"}),
                Answer::Deny { .. } => json!({"decision": "decline"}),
            },
            Form::Permissions(wanted) => match answer {
                Answer::Allow { .. } | Answer::Words(_) => json!({"permissions": wanted}),
                Answer::Deny { .. } => json!({"permissions": {}}),
            },
            Form::Questions(questions) => json!({"answers": words(&questions, &answer)}),
            Form::Elicitation => match answer {
                Answer::Allow { .. } => json!({"action": "accept", "content": {}}),
                Answer::Words(words) => json!({"action": "accept", "content": words}),
                Answer::Deny { .. } => json!({"action": "decline"}),
            },
        };
        rpc::answer(&id, &result)
    }

    /// It does not wait any more.
    pub(super) fn resolved(&mut self, id: &Value) {
        self.open.remove(&id.to_string());
    }

    pub(super) fn forget(&mut self) {
        self.open.clear();
    }
}

fn without_null(mut input: Value, reason: &Value) -> Value {
    if !reason.is_null() && input.is_object() {
        input["reason"] = reason.clone();
    }
    input
}

/// People answer by the question's words; it wants its own name for the question.
fn words(questions: &[Value], answer: &Answer) -> Map<String, Value> {
    let one = |question: &Value| {
        let id = question["id"].as_str()?;
        let said = match answer {
            Answer::Words(words) => {
                let names = [&question["question"], &question["id"], &question["header"]];
                names.into_iter().filter_map(Value::as_str).find_map(|name| words.get(name)).cloned()
            }
            Answer::Allow { context, .. } => context.clone().map(Value::String),
            Answer::Deny { reason } => Some(Value::String(reason.clone())),
        };
        let said = match said.unwrap_or(Value::Null) {
            Value::Array(all) => all,
            Value::Null => Vec::new(),
            one => vec![one],
        };
        let texts: Vec<String> =
            said.into_iter().map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned)).collect();
        Some((id.to_owned(), json!({"answers": texts})))
    };
    questions.iter().filter_map(one).collect()
}
