//! Which tools of an agent may be used without asking a person. Pure.

use crate::driver::{Ask, AskKind, is_denied};
use crate::heartbeat::Settings;
use atoll_core::sandbox::Approvals;
use std::collections::BTreeSet;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Allow,
    /// A person has to say.
    Person,
    /// The settings say no.
    Deny,
}

/// What a tool does, by the names that agents have for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    Reads,
    Edits,
    Other,
}

fn does(tool: &str) -> Does {
    match tool.to_ascii_lowercase().as_str() {
        "read"
        | "glob"
        | "grep"
        | "ls"
        | "list"
        | "todowrite"
        | "todoread"
        | "taskcreate"
        | "taskupdate"
        | "skill"
        | "read_file"
        | "read_many_files"
        | "list_directory"
        | "search_file_content"
        | "task"
        | "agent" => Does::Reads,
        "write" | "edit" | "multiedit" | "notebookedit" | "apply_patch" | "patch" | "write_file" | "replace"
        | "file_change" => Does::Edits,
        _ => Does::Other,
    }
}

/// Without a word of the project's: edits pass, commands ask.
pub(super) fn verdict(ask: &Ask, settings: &Settings, always: &BTreeSet<String>) -> Verdict {
    match ask.kind {
        AskKind::BeforeTool | AskKind::Permission if is_denied(settings, &ask.tool) => return Verdict::Deny,
        AskKind::BeforeTool => return Verdict::Allow,
        AskKind::Question => return Verdict::Person,
        AskKind::Permission => {}
    }
    if always.contains(&ask.tool) {
        return Verdict::Allow;
    }
    match (settings.approvals.unwrap_or(Approvals::Edits), does(&ask.tool)) {
        (Approvals::Full, _) | (_, Does::Reads) | (Approvals::Edits, Does::Edits) => Verdict::Allow,
        (Approvals::Edits, Does::Other) | (Approvals::Ask, Does::Edits | Does::Other) => Verdict::Person,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_asked_follows_from_the_policy_and_the_tool() {
        let of = |kind, tool: &str, approvals, always: &[&str]| {
            let (id, input) = (String::new(), serde_json::Value::Null);
            let ask = Ask { id, kind, tool_use_id: None, tool: tool.to_owned(), input };
            let settings = Settings { approvals, denied_tools: vec!["WebFetch".to_owned()], ..Settings::default() };
            verdict(&ask, &settings, &always.iter().map(|tool| (*tool).to_owned()).collect())
        };
        let permission = |tool: &str, approvals| of(AskKind::Permission, tool, approvals, &[]);
        assert_eq!(permission("Bash", Some(Approvals::Full)), Verdict::Allow);
        assert_eq!(permission("Bash", None), Verdict::Person);
        assert_eq!(permission("Edit", None), Verdict::Allow);
        assert_eq!(permission("Edit", Some(Approvals::Ask)), Verdict::Person);
        assert_eq!(permission("Read", Some(Approvals::Ask)), Verdict::Allow);
        assert_eq!(of(AskKind::Permission, "Bash", Some(Approvals::Ask), &["Bash"]), Verdict::Allow);
        assert_eq!(of(AskKind::Question, "AskUserQuestion", Some(Approvals::Full), &[]), Verdict::Person);
        assert_eq!(of(AskKind::BeforeTool, "Bash", Some(Approvals::Ask), &[]), Verdict::Allow);
        assert_eq!(of(AskKind::BeforeTool, "webfetch", Some(Approvals::Full), &[]), Verdict::Deny);
        assert_eq!(of(AskKind::Permission, "web_fetch", Some(Approvals::Full), &["web_fetch"]), Verdict::Deny);
    }
}
