//! Describes approvals: the request, its questions and the decision. Pure.

use super::plain_value::describe_value;
use atoll_api::events::{ApprovalAnswered, ApprovalRequested, ApprovalResolved};
use atoll_core::approval::ApprovalDecision;
use serde::Deserialize;
use serde_json::Value;

/// The request of an approval.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ApprovalRequest {
    pub kind: Option<String>,
    pub tool: Option<String>,
    pub input: Value,
    pub text: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct QuestionInput {
    question: Option<String>,
    questions: Vec<Question>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Question {
    pub question: String,
    options: Vec<QuestionOption>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct QuestionOption {
    label: String,
}

impl Question {
    /// The question with its choices.
    fn describe(&self) -> String {
        let labels: Vec<&str> = self.options.iter().map(|option| option.label.as_str()).collect();
        match labels.as_slice() {
            [] => self.question.clone(),
            labels => format!("{} ({})", self.question, labels.join(" / ")),
        }
    }
}

impl From<&ApprovalRequested> for ApprovalRequest {
    fn from(approval: &ApprovalRequested) -> Self {
        Self {
            kind: approval.kind.clone(),
            tool: approval.tool.clone(),
            input: approval.input.clone().unwrap_or_default(),
            text: approval.text.clone(),
        }
    }
}

impl ApprovalRequest {
    pub fn is_question(&self) -> bool {
        self.kind.as_deref() == Some("question")
    }

    /// The questions, if the input has any.
    pub fn questions(&self) -> Vec<Question> {
        QuestionInput::deserialize(&self.input).unwrap_or_default().questions
    }

    /// The command, the file or the whole input; a line for each question, with its choices. Not escaped.
    pub fn describe(&self) -> String {
        let argument = ["command", "file_path", "path", "url"].iter().find_map(|name| self.input.get(*name)?.as_str());
        if let Some(argument) = argument {
            return argument.to_owned();
        }
        let input = QuestionInput::deserialize(&self.input).unwrap_or_default();
        if !input.questions.is_empty() {
            return input.questions.iter().map(Question::describe).collect::<Vec<_>>().join("\n");
        }
        input.question.or_else(|| self.text.clone()).unwrap_or_else(|| describe_value(&self.input))
    }

    /// Every field of the input, or the questions. Not escaped.
    pub fn describe_whole(&self) -> String {
        match &self.input {
            Value::Object(fields) if self.questions().is_empty() && !fields.is_empty() => {
                let lines = fields.iter().map(|(name, value)| format!("{name}: {}", describe_value(value)));
                lines.collect::<Vec<_>>().join("\n")
            }
            _ => self.describe(),
        }
    }

    /// The tool and its input, or the questions. Not escaped.
    pub fn describe_with_tool(&self) -> String {
        match &self.tool {
            Some(tool) if !self.is_question() => format!("{tool}  {}", self.describe()),
            Some(_) | None => self.describe(),
        }
    }
}

/// A person's answers to questions, or the decision.
pub fn describe_answer(answered: &ApprovalAnswered) -> String {
    let answers = answered.answers.iter().flatten();
    let answers: Vec<_> = answers.map(|(question, answer)| (question, describe_value(answer))).collect();
    match answers.as_slice() {
        [] => describe_decision(answered.decision, answered.reason.as_deref()),
        [(_, answer)] => format!("answered: {answer}"),
        several => {
            let lines = several.iter().map(|(question, answer)| format!("  {question} {answer}"));
            format!("answered:\n{}", lines.collect::<Vec<_>>().join("\n"))
        }
    }
}

pub fn describe_resolution(resolved: &ApprovalResolved) -> String {
    describe_decision(resolved.decision, resolved.reason.as_deref())
}

fn describe_decision(decision: ApprovalDecision, reason: Option<&str>) -> String {
    let word = match decision {
        ApprovalDecision::Allow => "approved",
        ApprovalDecision::AllowAlways => "approved, and further calls of this tool too",
        ApprovalDecision::Deny => "denied",
    };
    reason.map_or_else(|| word.to_owned(), |reason| format!("{word}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(request: Value) -> ApprovalRequest {
        serde_json::from_value(request).unwrap()
    }

    #[test]
    fn describes_a_request() {
        let described = |value: Value| request(value).describe();
        assert_eq!(described(json!({"input": {"command": "rm -rf x", "description": "d"}})), "rm -rf x");
        assert_eq!(described(json!({"input": {"questions": [{"question": "Which?"}]}})), "Which?");
        assert_eq!(described(json!({"text": "may I?"})), "may I?");
        assert_eq!(described(json!({"input": {"a": 1}})), "a: 1");
        let command = json!({ "kind": "permission", "tool": "Bash", "input": { "command": "make test" } });
        assert_eq!(request(command).describe_with_tool(), "Bash  make test");
    }

    #[test]
    fn questions_have_their_choices() {
        let questions = json!([
            {"question": "Which?", "options": [{"label": "red"}, {"label": "blue"}]},
            {"question": "When?"},
        ]);
        let asked = request(json!({"kind": "question", "tool": "AskUserQuestion", "input": {"questions": questions}}));
        assert_eq!(asked.describe_with_tool(), "Which? (red / blue)\nWhen?");
    }

    #[test]
    fn an_answer_is_the_persons_own() {
        let answered = |value: Value| describe_answer(&serde_json::from_value(value).unwrap());
        let one = json!({"approval_id": "a", "decision": "allow", "reason": null, "answers": {"Which?": "blue"}});
        assert_eq!(answered(one), "answered: blue");
        let two = json!({"approval_id": "a", "decision": "allow", "reason": null,
                         "answers": {"Which?": ["red", "blue"], "When?": "now"}});
        assert_eq!(answered(two), "answered:\n  When? now\n  Which? red, blue");
        let no = json!({"approval_id": "a", "decision": "deny", "reason": "keep it", "answers": null});
        assert_eq!(answered(no), "denied: keep it");
    }
}
