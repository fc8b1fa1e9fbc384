//! Converts lines of the driver to requests of OpenCode's server.

use atoll_drivers::opencode::bridge::BridgeInput;
use serde_json::{Value, json};

/// Returns the request's kind, id, path and body.
pub(super) fn build_request(line: BridgeInput, session: &str) -> (&'static str, String, String, Value) {
    match line {
        BridgeInput::Prompt { id, text, system, agent, stored } => {
            let mut body = json!({"parts": [{"type": "text", "text": text}]});
            if let Some(stored) = stored {
                body["messageID"] = stored.message_id.into();
                body["parts"][0]["id"] = stored.part_id.into();
            }
            for (name, value) in [("system", system), ("agent", agent)] {
                if let Some(value) = value {
                    body[name] = value.into();
                }
            }
            ("prompt", id, format!("/session/{session}/prompt_async"), body)
        }
        BridgeInput::Abort {} => ("abort", String::new(), format!("/session/{session}/abort"), json!({})),
        BridgeInput::Permission { id, allow, reason } => {
            let mut body = json!({"reply": if allow { "once" } else { "reject" }});
            if let Some(reason) = reason {
                body["message"] = reason.into();
            }
            let path = format!("/permission/{}/reply", sanitize_id(&id));
            ("permission", id, path, body)
        }
        BridgeInput::Answers { id, answers: Some(answers) } => {
            let path = format!("/question/{}/reply", sanitize_id(&id));
            ("answers", id, path, json!({"answers": answers}))
        }
        BridgeInput::Answers { id, answers: None } => {
            let path = format!("/question/{}/reject", sanitize_id(&id));
            ("answers", id, path, json!({}))
        }
    }
}

/// Removes characters that OpenCode's ids do not contain, so that an id is safe in a path.
pub(super) fn sanitize_id(id: &str) -> String {
    id.chars().filter(|it| it.is_ascii_alphanumeric() || matches!(it, '_' | '-')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_drivers::opencode::bridge::StoredPrompt;

    #[test]
    fn converts_lines_to_requests() {
        let prompt = |stored| BridgeInput::Prompt {
            id: "m".to_owned(),
            text: "go".to_owned(),
            system: None,
            agent: None,
            stored,
        };
        let (what, id, path, body) = build_request(prompt(None), "ses_1");
        assert_eq!((what, &*id, &*path), ("prompt", "m", "/session/ses_1/prompt_async"));
        assert_eq!(body, json!({"parts": [{"type": "text", "text": "go"}]}));
        let stored = StoredPrompt { message_id: "msg_1".to_owned(), part_id: "prt_1".to_owned() };
        let body = build_request(prompt(Some(stored)), "ses_1").3;
        assert_eq!(body, json!({"messageID": "msg_1", "parts": [{"id": "prt_1", "type": "text", "text": "go"}]}));
        let no = BridgeInput::Permission { id: "per_1/../x".to_owned(), allow: false, reason: Some("no".to_owned()) };
        let (_, _, path, body) = build_request(no, "ses_1");
        assert_eq!((&*path, body), ("/permission/per_1x/reply", json!({"reply": "reject", "message": "no"})));
        let none = BridgeInput::Answers { id: "q".to_owned(), answers: None };
        assert_eq!(build_request(none, "s").2, "/question/q/reject");
    }
}
