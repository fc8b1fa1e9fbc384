//! What the agent waits for, and what a person's words mean as an answer to it.

use crate::approvals;
use crate::reading::entry::Entry;
use serde_json::{Value, json};

/// Something to allow or to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    pub approval_id: String,
    /// The questions themselves, where it is no permission.
    questions: Option<Vec<String>>,
}

impl Asked {
    pub(super) fn of(entry: &Entry) -> Option<Self> {
        let texts = |list: &Value| -> Vec<String> {
            let questions = list.as_array().into_iter().flatten();
            questions.filter_map(|question| question["question"].as_str().map(str::to_owned)).collect()
        };
        let is_question = entry.text("kind") == Some("question");
        Some(Self {
            approval_id: entry.text("approval_id")?.to_owned(),
            questions: is_question.then(|| texts(&entry.data["input"]["questions"])),
        })
    }

    /// How it is answered where nobody can type.
    pub(super) fn command(&self) -> String {
        let id = &self.approval_id;
        match self.questions.as_deref() {
            None => format!("answer with: atoll approve {id}, or atoll deny {id} --reason WHY"),
            Some([question]) => format!("answer with: atoll approve {id} --answer \"{question}=…\""),
            Some(_) => format!("answer with: atoll approve {id} --answer \"QUESTION=…\", once for each"),
        }
    }

    /// How it is answered by typing.
    pub(super) fn typing(&self) -> String {
        match self.questions.as_deref() {
            None => "type approve, approve always, or deny and why".to_owned(),
            Some([_]) => "type the answer".to_owned(),
            Some(_) => self.command(),
        }
    }

    /// What typed words say about it; nothing where they are a message like any other.
    pub fn word(&self, typed: &str) -> Option<Value> {
        let typed = typed.trim();
        match self.questions.as_deref() {
            Some([question]) => Some(json!({ "decision": "allow", "answers": { question.as_str(): typed } })),
            Some(_) => None,
            None => match typed.to_lowercase().as_str() {
                "approve" | "allow" | "yes" | "y" => Some(json!({ "decision": "allow" })),
                "approve always" | "allow always" | "always" => Some(json!({ "decision": "allow_always" })),
                "deny" | "no" | "n" => Some(json!({ "decision": "deny" })),
                _ => {
                    let (first, why) = typed.split_once(char::is_whitespace)?;
                    let denies = first.trim_end_matches([',', ':']).eq_ignore_ascii_case("deny");
                    denies.then(|| json!({ "decision": "deny", "reason": why.trim() }))
                }
            },
        }
    }
}

/// In one line: the tool before what it was given, or a question with what can be chosen.
pub(super) fn what(entry: &Entry) -> String {
    let asked = approvals::asked(&entry.data);
    let options = entry.data["input"]["questions"][0]["options"].as_array().into_iter().flatten();
    let options: Vec<&str> = options.filter_map(|option| option["label"].as_str()).collect();
    match entry.text("tool") {
        Some(tool) if entry.text("kind") != Some("question") => format!("{tool}  {asked}"),
        Some(_) | None if options.is_empty() => asked,
        Some(_) | None => format!("{asked} ({})", options.join(" / ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(questions: Option<&[&str]>) -> Asked {
        let questions = questions.map(|texts| texts.iter().map(|text| (*text).to_owned()).collect());
        Asked { approval_id: "apr_1".into(), questions }
    }

    #[test]
    fn typed_words_are_an_answer_or_a_message() {
        let permission = asked(None);
        assert_eq!(permission.word(" Approve "), Some(json!({ "decision": "allow" })));
        assert_eq!(permission.word("approve always"), Some(json!({ "decision": "allow_always" })));
        assert_eq!(permission.word("deny"), Some(json!({ "decision": "deny" })));
        let why = json!({ "decision": "deny", "reason": "not on main" });
        assert_eq!(permission.word("deny: not on main"), Some(why.clone()));
        assert_eq!(permission.word("Deny not on main"), Some(why));
        for message in ["approve of nothing", "denying is hard", "no idea", "use the other file"] {
            assert_eq!(permission.word(message), None, "{message}");
        }
    }

    #[test]
    fn what_is_asked_stands_there_with_what_can_be_chosen() {
        let shown = |data: Value| {
            let event = json!({ "seq": 1, "type": "approval.requested", "at": "2026-01-31T12:00:00Z", "data": data });
            what(&Entry::parse(&event.to_string()).unwrap())
        };
        let command = json!({ "kind": "permission", "tool": "Bash", "input": { "command": "make test" } });
        assert_eq!(shown(command), "Bash  make test");
        let options = json!([{ "label": "red" }, { "label": "blue" }]);
        let question = json!({ "question": "Which?", "options": options });
        let question = json!({ "kind": "question", "tool": "AskUserQuestion", "input": { "questions": [question] } });
        assert_eq!(shown(question), "Which? (red / blue)");
    }

    #[test]
    fn the_answer_to_one_question_is_whatever_is_typed() {
        let answer = json!({ "decision": "allow", "answers": { "Which?": "the second" } });
        assert_eq!(asked(Some(&["Which?"])).word("the second"), Some(answer));
        assert_eq!(asked(Some(&["Which?", "When?"])).word("the second"), None, "which one is meant?");
    }
}
