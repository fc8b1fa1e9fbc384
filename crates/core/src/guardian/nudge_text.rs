//! The guardian's words: messages to the agent, which begin with sender and reason, and the note of a restart.

use super::{Detector, Finding};

/// Begins every message of the guardian.
const SENDER: &str = "Atoll's guardian:";
/// Bounds the agent's own words in a message.
const MAX_QUOTE_CHARS: usize = 200;

/// The message to the agent about a finding.
pub fn nudge_text(finding: &Finding) -> String {
    let (tool, path) = (quote(finding.tool.as_deref(), "a tool"), quote(finding.path.as_deref(), "a file"));
    let (times, detail) = (finding.times.unwrap_or(1), quote(finding.detail.as_deref(), ""));
    let text = match finding.detector {
        Detector::RepeatedCall => format!(
            "you have called {tool} {times} times in a row with the same input and got the same result. Doing it again will change nothing: look at what it says, and try something else."
        ),
        Detector::RepeatedError => format!(
            "you have got the same error {times} times: `{detail}`. Your attempts do not address its cause: find out what causes it before you try again."
        ),
        Detector::Alternating => format!(
            "you have made the same two calls in turn {times} times, with the same results. Neither will change anything: decide what you need to know, and try something else."
        ),
        Detector::Talking => format!(
            "you have written {times} texts in a row without using a tool. Take the next step of the task now, or end your turn and say what you need."
        ),
        Detector::BackAndForth => format!(
            "you have undone your own edits of `{path}` {times} times. Decide which version is right, and why, before you edit it again."
        ),
        Detector::TestsWorse => format!(
            "more tests fail than before your changes, and {times} runs in a row have not improved this ({detail}). Undo what broke them, or fix it before you go on."
        ),
        Detector::NoFileChange => format!(
            "you have worked for {times} minutes without changing a file. If you know enough, make the change; otherwise end your turn and say what is missing."
        ),
        Detector::OutsideFiles => format!(
            "`{path}` does not belong to the files of this task. Undo this change, and say so if the task cannot be done without it."
        ),
        Detector::ProtectedPath => format!(
            "`{path}` is protected and cannot be changed here. Leave it as it is, and say so if the task cannot be done without changing it."
        ),
        Detector::SecretInOutput => format!(
            "your output contains {detail}. Do not print, store or commit credentials; remove it from every file that you wrote it to."
        ),
        Detector::Spending => format!(
            "this task spends faster than planned ({detail}). Take smaller steps: read less at once, and use fewer subagents."
        ),
        Detector::ContextFull => format!(
            "your context window is {times} % full. Write down what is done and what remains, and finish the current step first."
        ),
        Detector::Judge => detail,
    };
    format!("{SENDER} {text}")
}

/// The sentence for people about a finding that the agent did not react to.
pub fn escalation_text(finding: &Finding) -> String {
    let (tool, path) = (quote(finding.tool.as_deref(), "a tool"), quote(finding.path.as_deref(), "a file"));
    let (times, detail) = (finding.times.unwrap_or(1), quote(finding.detail.as_deref(), ""));
    match finding.detector {
        Detector::RepeatedCall => format!("The agent called {tool} {times} times in a row with the same result."),
        Detector::RepeatedError => format!("The agent got the same error {times} times: {detail}"),
        Detector::Alternating => format!("The agent made the same two calls in turn {times} times."),
        Detector::Talking => format!("The agent wrote {times} texts in a row without using a tool."),
        Detector::BackAndForth => format!("The agent undid its own edits of {path} {times} times."),
        Detector::TestsWorse => format!("{times} test runs in a row were worse than before: {detail}."),
        Detector::NoFileChange => format!("The agent worked for {times} minutes without changing a file."),
        Detector::OutsideFiles => format!("The agent changed {path}, which is not a file of its task."),
        Detector::ProtectedPath => format!("A call of {tool} would change the protected path {path}."),
        Detector::SecretInOutput => format!("The agent's output contains {detail}."),
        Detector::Spending => format!("The sandbox spends faster than planned: {detail}."),
        Detector::ContextFull => format!("The agent's context window is {times} % full."),
        Detector::Judge => format!("The judge: {detail}"),
    }
}

/// The note with which a session continues in a fresh sandbox.
pub fn handover_text(finding: &Finding) -> String {
    format!(
        "{SENDER} your last sandbox was ended, because its agent made no progress. {} Your files and your conversation until then are here. Start with a look at the state of the work, choose another approach, and go on with the task.",
        escalation_text(finding)
    )
}

fn quote(text: Option<&str>, default: &str) -> String {
    let text = text.filter(|text| !text.is_empty()).unwrap_or(default);
    text.chars().filter(|c| !c.is_control()).take(MAX_QUOTE_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nudge_begins_with_the_sender_and_says_something() {
        for detector in Detector::ALL {
            let finding = Finding { detail: Some("say less".to_owned()), ..Finding::new(*detector, 1, "", [1]) };
            let text = nudge_text(&finding);
            assert!(text.starts_with("Atoll's guardian: ") && text.len() > 20, "{text}");
            assert!(!escalation_text(&finding).is_empty() && handover_text(&finding).starts_with("Atoll's guardian: "));
        }
    }
}
