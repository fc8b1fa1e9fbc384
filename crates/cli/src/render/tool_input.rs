//! Describes the input of tools, which every agent shapes in its own way.

use serde::Deserialize;
use serde_json::Value;

/// Arguments that describe a tool call best, in this order.
const TELLING_ARGUMENTS: [&str; 8] =
    ["command", "file_path", "path", "pattern", "query", "url", "description", "prompt"];

/// The most telling argument of a tool call, or the whole input. Not escaped.
pub fn describe_input(input: &Value) -> String {
    match TELLING_ARGUMENTS.iter().find_map(|name| input.get(*name)?.as_str()) {
        Some(text) => text.to_owned(),
        None => compact_json(input),
    }
}

/// JSON on one line; nothing for `null` and `{}`.
pub fn compact_json(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Object(map) if map.is_empty() => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

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
    pub options: Vec<QuestionOption>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct QuestionOption {
    pub label: String,
}

impl ApprovalRequest {
    pub fn is_question(&self) -> bool {
        self.kind.as_deref() == Some("question")
    }

    /// The questions, if the input has any.
    pub fn questions(&self) -> Vec<Question> {
        QuestionInput::deserialize(&self.input).unwrap_or_default().questions
    }

    /// One line: the command, the file, the question, or the whole input. Not escaped.
    pub fn describe(&self) -> String {
        let argument = ["command", "file_path", "path", "url"].iter().find_map(|name| self.input.get(*name)?.as_str());
        let questions = QuestionInput::deserialize(&self.input).unwrap_or_default();
        let first = || questions.questions.first().map(|question| question.question.clone());
        let named = argument.map(str::to_owned).or_else(|| questions.question.clone()).or_else(first);
        named.or_else(|| self.text.clone()).unwrap_or_else(|| self.input.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn describes_an_approval_in_one_line() {
        let described = |request: Value| serde_json::from_value::<ApprovalRequest>(request).unwrap().describe();
        assert_eq!(described(json!({"input": {"command": "rm -rf x", "description": "d"}})), "rm -rf x");
        assert_eq!(described(json!({"input": {"questions": [{"question": "Which?"}]}})), "Which?");
        assert_eq!(described(json!({"text": "may I?"})), "may I?");
        assert_eq!(described(json!({"input": {"a": 1}})), r#"{"a":1}"#);
    }
}
