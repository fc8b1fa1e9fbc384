//! Approval requests and questions of Codex, and the format of the answers.

use super::codex_turn::CodexTurn;
use crate::bounded::{BoundedMap, HeldSize};
use crate::event_data;
use crate::json_rpc;
use crate::{AgentOutput, AgentRequest, RequestAnswer, RequestKind, take_field};
use serde_json::{Map, Value, json};

#[derive(Debug, Default)]
pub(super) struct RequestTable {
    open: BoundedMap<PendingRequest>,
}

#[derive(Debug)]
struct PendingRequest {
    /// Codex' request id.
    id: Value,
    form: AnswerForm,
}

/// The result format that a request expects.
#[derive(Debug)]
enum AnswerForm {
    Decision,
    /// Granted permissions; an empty object denies them.
    Permissions(Value),
    Questions(Vec<Value>),
    /// A question of an MCP server.
    Elicitation,
}

impl HeldSize for PendingRequest {
    fn held_bytes(&self) -> usize {
        let form = match &self.form {
            AnswerForm::Decision | AnswerForm::Elicitation => 0,
            AnswerForm::Permissions(permissions) => permissions.held_bytes(),
            AnswerForm::Questions(questions) => questions.iter().map(HeldSize::held_bytes).sum(),
        };
        self.id.held_bytes() + form
    }
}

impl RequestTable {
    pub(super) fn open_request(
        &mut self,
        id: &Value,
        method: &str,
        mut params: Value,
        turn: &CodexTurn,
    ) -> Vec<AgentOutput> {
        let item = params["itemId"].as_str().map(str::to_owned);
        let (kind, form, tool, input) = match method {
            "item/commandExecution/requestApproval" => {
                let input = json!({"command": params["command"], "cwd": params["cwd"], "reason": params["reason"]});
                (RequestKind::Permission, AnswerForm::Decision, "Bash".to_owned(), input)
            }
            "item/fileChange/requestApproval" => {
                // The tool's start reported the changes.
                let (tool, changes) = turn.running_tool(item.as_deref().unwrap_or_default());
                let tool = tool.unwrap_or("apply_patch").to_owned();
                (RequestKind::Permission, AnswerForm::Decision, tool, with_reason(changes, &params["reason"]))
            }
            "item/permissions/requestApproval" => {
                let permissions = take_field(&mut params, "permissions");
                let input = json!({"permissions": permissions, "reason": params["reason"]});
                (RequestKind::Permission, AnswerForm::Permissions(permissions), "request_permissions".to_owned(), input)
            }
            "item/tool/requestUserInput" => {
                let questions = take_field(&mut params, "questions");
                let form = AnswerForm::Questions(questions.as_array().cloned().unwrap_or_default());
                (RequestKind::Question, form, "request_user_input".to_owned(), json!({"questions": questions}))
            }
            "mcpServer/elicitation/request" => {
                (RequestKind::Question, AnswerForm::Elicitation, "mcp_elicitation".to_owned(), params)
            }
            method => return vec![AgentOutput::Reply(json_rpc::encode_method_not_found(id, method))],
        };
        let name = id.to_string();
        if !self.open.try_insert(&name, PendingRequest { id: id.clone(), form }) {
            let reply = json_rpc::encode_rejection(id, event_data::TOO_MANY_REQUESTS);
            return vec![AgentOutput::Reply(reply), event_data::too_many_requests()];
        }
        vec![AgentOutput::Request(AgentRequest { id: name, kind, tool_use_id: item, tool, input })]
    }

    pub(super) fn encode_answer(&mut self, request_id: &str, answer: RequestAnswer) -> Vec<u8> {
        let Some(PendingRequest { id, form }) = self.open.remove(request_id) else { return Vec::new() };
        let result = match form {
            AnswerForm::Decision => match answer {
                RequestAnswer::Allow { .. } | RequestAnswer::Answers(_) => json!({"decision": "accept"}),
                RequestAnswer::Deny { .. } => json!({"decision": "decline"}),
            },
            AnswerForm::Permissions(permissions) => match answer {
                RequestAnswer::Allow { .. } | RequestAnswer::Answers(_) => json!({"permissions": permissions}),
                RequestAnswer::Deny { .. } => json!({"permissions": {}}),
            },
            AnswerForm::Questions(questions) => json!({"answers": question_answers(&questions, &answer)}),
            AnswerForm::Elicitation => match answer {
                RequestAnswer::Allow { .. } => json!({"action": "accept", "content": {}}),
                RequestAnswer::Answers(words) => json!({"action": "accept", "content": words}),
                RequestAnswer::Deny { .. } => json!({"action": "decline"}),
            },
        };
        json_rpc::encode_response(&id, &result)
    }

    /// Codex no longer waits for the answer.
    pub(super) fn close_request(&mut self, id: &Value) {
        self.open.remove(&id.to_string());
    }

    pub(super) fn close_all(&mut self) {
        self.open.clear();
    }
}

fn with_reason(mut input: Value, reason: &Value) -> Value {
    if !reason.is_null() && input.is_object() {
        input["reason"] = reason.clone();
    }
    input
}

/// Maps answers by question text to answers by question id.
fn question_answers(questions: &[Value], answer: &RequestAnswer) -> Map<String, Value> {
    let one = |question: &Value| {
        let id = question["id"].as_str()?;
        let values = match answer {
            RequestAnswer::Answers(words) => {
                let names = [&question["question"], &question["id"], &question["header"]];
                names.into_iter().filter_map(Value::as_str).find_map(|name| words.get(name)).cloned()
            }
            RequestAnswer::Allow { context, .. } => context.clone().map(Value::String),
            RequestAnswer::Deny { reason } => Some(Value::String(reason.clone())),
        };
        let values = match values.unwrap_or(Value::Null) {
            Value::Array(all) => all,
            Value::Null => Vec::new(),
            one => vec![one],
        };
        let texts: Vec<String> =
            values.into_iter().map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned)).collect();
        Some((id.to_owned(), json!({"answers": texts})))
    };
    questions.iter().filter_map(one).collect()
}
