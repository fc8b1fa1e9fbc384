//! The lines between the driver and the bridge.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// To the bridge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum In {
    Prompt {
        /// The sender's name for it.
        id: String,
        text: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        system: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<String>,
    },
    Abort {},
    /// To something that it wants to do.
    Permission {
        id: String,
        allow: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// To its questions, in their order; absent if nobody answers them.
    Answers {
        id: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answers: Option<Vec<Vec<String>>>,
    },
}

impl In {
    /// What is asked of the server: what it is, whose name it has, where and with what.
    pub(super) fn request(self, session: &str) -> (&'static str, String, String, Value) {
        match self {
            Self::Prompt { id, text, system, agent } => {
                let mut body = json!({"parts": [{"type": "text", "text": text}]});
                for (name, value) in [("system", system), ("agent", agent)] {
                    if let Some(value) = value {
                        body[name] = value.into();
                    }
                }
                ("prompt", id, format!("/session/{session}/prompt_async"), body)
            }
            Self::Abort {} => ("abort", String::new(), format!("/session/{session}/abort"), json!({})),
            Self::Permission { id, allow, reason } => {
                let mut body = json!({"reply": if allow { "once" } else { "reject" }});
                if let Some(reason) = reason {
                    body["message"] = reason.into();
                }
                let path = format!("/permission/{}/reply", plain(&id));
                ("permission", id, path, body)
            }
            Self::Answers { id, answers: Some(answers) } => {
                let path = format!("/question/{}/reply", plain(&id));
                ("answers", id, path, json!({"answers": answers}))
            }
            Self::Answers { id, answers: None } => {
                let path = format!("/question/{}/reject", plain(&id));
                ("answers", id, path, json!({}))
            }
        }
    }
}

/// A name as a part of a path: theirs have nothing else in them.
pub(super) fn plain(id: &str) -> String {
    id.chars().filter(|it| it.is_ascii_alphanumeric() || matches!(it, '_' | '-')).collect()
}

/// From the bridge.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Out {
    Ready {
        session: String,
    },
    Event {
        #[serde(flatten)]
        event: Sent,
    },
    /// It would not take something.
    Refused {
        what: String,
        id: String,
        error: String,
    },
    /// There is no server, or none any more.
    Failed {
        error: String,
    },
}

/// An event of the server, as it is.
#[derive(Debug, Serialize)]
pub struct Sent {
    pub data: Box<RawValue>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_become_requests() {
        let prompt = In::Prompt { id: "m".to_owned(), text: "go".to_owned(), system: None, agent: None };
        let (what, id, path, body) = prompt.request("ses_1");
        assert_eq!((what, &*id, &*path), ("prompt", "m", "/session/ses_1/prompt_async"));
        assert_eq!(body, json!({"parts": [{"type": "text", "text": "go"}]}));
        let no = In::Permission { id: "per_1/../x".to_owned(), allow: false, reason: Some("no".to_owned()) };
        let (_, _, path, body) = no.request("ses_1");
        assert_eq!((&*path, body), ("/permission/per_1x/reply", json!({"reply": "reject", "message": "no"})));
        let none = In::Answers { id: "q".to_owned(), answers: None };
        assert_eq!(none.request("s").2, "/question/q/reject");
    }

    #[test]
    fn what_goes_over_the_pipe_comes_back_the_same() {
        let line = In::Answers { id: "q".to_owned(), answers: Some(vec![vec!["a".to_owned()]]) };
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(serde_json::from_str::<In>(&text).unwrap(), line);
        let abort: In = serde_json::from_str(r#"{"abort":{}}"#).unwrap();
        assert_eq!(abort, In::Abort {});
    }
}
