//! A pending approval, and the meaning of a typed line as its answer.

use crate::render::approval::ApprovalRequest;
use atoll_api::AnswerApproval;
use atoll_api::events::ApprovalRequested;
use atoll_core::approval::ApprovalDecision;
use serde_json::Map;

/// A tool call that waits for a decision, or a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingApproval {
    pub approval_id: String,
    /// The texts of the questions; `None` for a tool call.
    questions: Option<Vec<String>>,
    /// Hash of the shown input.
    sha256: Option<String>,
}

impl From<&ApprovalRequested> for PendingApproval {
    fn from(approval: &ApprovalRequested) -> Self {
        let request = ApprovalRequest::from(approval);
        let texts = || request.questions().into_iter().map(|question| question.question).collect();
        Self {
            approval_id: approval.approval_id.clone(),
            questions: request.is_question().then(texts),
            sha256: approval.sha256.clone(),
        }
    }
}

impl PendingApproval {
    /// Says how to answer with another command.
    pub(super) fn command_hint(&self) -> String {
        let id = &self.approval_id;
        match self.questions.as_deref() {
            None => format!("answer with: atoll approve {id}, or atoll deny {id} --reason WHY"),
            Some([question]) => format!("answer with: atoll approve {id} --answer \"{question}=…\""),
            Some(_) => format!("answer with: atoll approve {id} --answer \"QUESTION=…\", once per question"),
        }
    }

    /// Says how to answer by typing.
    pub(super) fn typing_hint(&self) -> String {
        match self.questions.as_deref() {
            None => "press y to approve, a to approve always, n to deny; or type deny and a reason".to_owned(),
            Some([_]) => "type the answer".to_owned(),
            Some(_) => self.command_hint(),
        }
    }

    /// A tool call, which one key can answer.
    pub const fn is_tool_call(&self) -> bool {
        self.questions.is_none()
    }

    /// Parses a typed line as an answer; `None` if it is an ordinary message.
    pub fn parse_answer(&self, typed: &str) -> Option<AnswerApproval> {
        let typed = typed.trim();
        let answer = match self.questions.as_deref() {
            Some([question]) => {
                let answers = Map::from_iter([(question.clone(), typed.into())]);
                let decision = ApprovalDecision::Allow;
                Some(AnswerApproval { decision, reason: None, sha256: None, answers: Some(answers) })
            }
            Some(_) => None,
            None => parse_decision(typed),
        };
        answer.map(|answer| AnswerApproval { sha256: self.sha256.clone(), ..answer })
    }
}

fn parse_decision(typed: &str) -> Option<AnswerApproval> {
    let answer = |decision| Some(AnswerApproval { decision, reason: None, sha256: None, answers: None });
    match typed.to_lowercase().as_str() {
        "approve" | "allow" | "yes" | "y" => answer(ApprovalDecision::Allow),
        "approve always" | "allow always" | "always" | "a" => answer(ApprovalDecision::AllowAlways),
        "deny" | "no" | "n" => answer(ApprovalDecision::Deny),
        _ => {
            let (first, reason) = typed.split_once(char::is_whitespace)?;
            let denies = first.trim_end_matches([',', ':']).eq_ignore_ascii_case("deny");
            let reason = Some(reason.trim().to_owned());
            denies.then_some(AnswerApproval { decision: ApprovalDecision::Deny, reason, sha256: None, answers: None })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pending(questions: Option<&[&str]>) -> PendingApproval {
        let questions = questions.map(|texts| texts.iter().map(|text| (*text).to_owned()).collect());
        PendingApproval { approval_id: "apr_1".into(), questions, sha256: None }
    }

    fn answer(pending: &PendingApproval, typed: &str) -> Option<Value> {
        pending.parse_answer(typed).map(|answer| serde_json::to_value(answer).unwrap())
    }

    #[test]
    fn a_typed_line_is_an_answer_or_a_message() {
        let permission = pending(None);
        assert_eq!(answer(&permission, " Approve "), Some(json!({ "decision": "allow" })));
        assert_eq!(answer(&permission, "approve always"), Some(json!({ "decision": "allow_always" })));
        assert_eq!(answer(&permission, "deny"), Some(json!({ "decision": "deny" })));
        let why = json!({ "decision": "deny", "reason": "not on main" });
        assert_eq!(answer(&permission, "deny: not on main"), Some(why.clone()));
        assert_eq!(answer(&permission, "Deny not on main"), Some(why));
        for message in ["approve of nothing", "denying is hard", "no idea", "use the other file"] {
            assert_eq!(answer(&permission, message), None, "{message}");
        }
    }

    #[test]
    fn a_typed_line_answers_a_single_question() {
        let expected = json!({ "decision": "allow", "answers": { "Which?": "the second" } });
        assert_eq!(answer(&pending(Some(&["Which?"])), "the second"), Some(expected));
        assert_eq!(answer(&pending(Some(&["Which?", "When?"])), "the second"), None);
    }
}
