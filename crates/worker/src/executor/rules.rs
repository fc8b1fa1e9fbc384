//! Which tools of an agent may be used, and which of them without asking a person. Pure.

use crate::driver::{Ask, AskKind, is_denied};
use crate::heartbeat::Settings;
use atoll_core::policy::{self, Decision, Does, does};
use atoll_core::sandbox::Approvals;
use serde_json::Value;
use std::collections::BTreeSet;

/// The rule of the tools that the settings name.
const DENIED: &str = "denied_tools";

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Verdict {
    /// With other input than the agent wanted, if a rule says so.
    Allow(Option<Value>),
    /// A person has to say.
    Person(Option<Value>),
    Deny {
        rule: String,
        reason: String,
    },
}

/// What people have said already.
#[derive(Debug, Default)]
pub(super) struct Agreed {
    /// Tools, once and for all, in this sandbox.
    pub always: BTreeSet<String>,
    /// The one call that was asked about before the agent's own rules had their say.
    pub call: Option<String>,
}

/// The project's rules first, then what a person said, then the approvals: without a word of the project's, edits pass
/// and commands ask.
pub(super) fn verdict(ask: &Ask, settings: &Settings, workspace: &str, agreed: &Agreed, may_change: bool) -> Verdict {
    if ask.kind == AskKind::Question {
        return Verdict::Person(None);
    }
    if is_denied(settings, &ask.tool) {
        let reason = format!("the tool {} is denied to you in this task", ask.tool);
        return Verdict::Deny { rule: DENIED.to_owned(), reason };
    }
    let Decision { verdict, input } = settings.policy.decide(&ask.tool, &ask.input, workspace, &settings.protected);
    if let (Some(_), false) = (&input, may_change) {
        let reason = "a rule wants this call to have other input, and this agent can't be given any".to_owned();
        return Verdict::Deny { rule: "change".to_owned(), reason };
    }
    let is_agreed = agreed.always.contains(&ask.tool)
        || (agreed.call.is_some() && agreed.call == ask.tool_use_id && ask.kind == AskKind::Permission);
    match verdict {
        policy::Verdict::Deny { rule, reason } => Verdict::Deny { rule, reason },
        policy::Verdict::Allow => Verdict::Allow(input),
        policy::Verdict::Ask { .. } if is_agreed => Verdict::Allow(input),
        policy::Verdict::Ask { .. } => Verdict::Person(input),
        // The agent's own rules go on; if they leave it to a person, it asks again.
        policy::Verdict::Open if ask.kind == AskKind::BeforeTool && input.is_none() => Verdict::Allow(None),
        policy::Verdict::Open if is_agreed => Verdict::Allow(input),
        policy::Verdict::Open => match (settings.approvals.unwrap_or(Approvals::Edits), does(&ask.tool)) {
            (Approvals::Full, _) | (_, Does::Reads) | (Approvals::Edits, Does::Writes) => Verdict::Allow(input),
            (Approvals::Edits, Does::Fetches | Does::Runs | Does::Other)
            | (Approvals::Ask, Does::Fetches | Does::Writes | Does::Runs | Does::Other) => Verdict::Person(input),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ask(kind: AskKind, tool: &str, input: Value) -> Ask {
        Ask { id: String::new(), kind, tool_use_id: Some("t1".to_owned()), tool: tool.to_owned(), input }
    }

    fn settings(approvals: Option<Approvals>, rules: Value) -> Settings {
        let policy = serde_json::from_value(json!({"rules": rules})).unwrap();
        Settings { approvals, policy, protected: vec!["Cargo.lock".to_owned()], ..Settings::default() }
    }

    #[test]
    fn who_is_asked_follows_from_the_policy_and_the_tool() {
        let of = |kind, tool: &str, approvals, always: &[&str]| {
            let agreed = Agreed { always: always.iter().map(|tool| (*tool).to_owned()).collect(), call: None };
            verdict(&ask(kind, tool, Value::Null), &settings(approvals, json!([])), "/workspace", &agreed, true)
        };
        let permission = |tool: &str, approvals| of(AskKind::Permission, tool, approvals, &[]);
        assert_eq!(permission("Bash", Some(Approvals::Full)), Verdict::Allow(None));
        assert_eq!(permission("Bash", None), Verdict::Person(None));
        assert_eq!(permission("Edit", None), Verdict::Allow(None));
        assert_eq!(permission("Edit", Some(Approvals::Ask)), Verdict::Person(None));
        assert_eq!(permission("Read", Some(Approvals::Ask)), Verdict::Allow(None));
        assert_eq!(of(AskKind::Permission, "Bash", Some(Approvals::Ask), &["Bash"]), Verdict::Allow(None));
        assert_eq!(of(AskKind::Question, "AskUserQuestion", Some(Approvals::Full), &[]), Verdict::Person(None));
        assert_eq!(of(AskKind::BeforeTool, "Bash", Some(Approvals::Ask), &[]), Verdict::Allow(None));
    }

    #[test]
    fn rules_come_before_approvals() {
        let rules = json!([
            {"commands": ["git push"], "then": "deny", "reason": "not yours"},
            {"paths": ["docs/**"], "then": "allow"},
            {"tools": ["WebFetch"], "then": "ask"},
        ]);
        let of = |kind, tool: &str, input: Value, approvals, agreed: &Agreed| {
            verdict(&ask(kind, tool, input), &settings(Some(approvals), rules.clone()), "/workspace", agreed, true)
        };
        let nobody = Agreed::default();
        for kind in [AskKind::BeforeTool, AskKind::Permission] {
            let push = of(kind, "Bash", json!({"command": "git push"}), Approvals::Full, &nobody);
            assert_eq!(push, Verdict::Deny { rule: "rules[0]".into(), reason: "not yours".into() });
            let write = of(kind, "Write", json!({"file_path": "docs/a.md"}), Approvals::Ask, &nobody);
            assert_eq!(write, Verdict::Allow(None));
            assert_eq!(of(kind, "WebFetch", json!({}), Approvals::Full, &nobody), Verdict::Person(None));
            let lock = of(kind, "Write", json!({"file_path": "Cargo.lock"}), Approvals::Full, &nobody);
            assert!(matches!(lock, Verdict::Deny { rule, .. } if rule == policy::PROTECTED));
        }
        let said = Agreed { call: Some("t1".into()), ..Agreed::default() };
        assert_eq!(of(AskKind::Permission, "WebFetch", json!({}), Approvals::Ask, &said), Verdict::Allow(None));
        assert_eq!(of(AskKind::BeforeTool, "WebFetch", json!({}), Approvals::Ask, &said), Verdict::Person(None));
    }

    #[test]
    fn other_input_goes_only_where_an_agent_takes_it() {
        let settings =
            settings(Some(Approvals::Edits), json!([{"tools": ["*"], "then": "change", "set": {"timeout": 1}}]));
        let of = |tool: &str, may_change| {
            let ask = ask(AskKind::BeforeTool, tool, json!({"command": "ls"}));
            verdict(&ask, &settings, "/workspace", &Agreed::default(), may_change)
        };
        let changed = Some(json!({"command": "ls", "timeout": 1}));
        assert_eq!(of("Read", true), Verdict::Allow(changed.clone()));
        assert_eq!(of("Bash", true), Verdict::Person(changed), "it would pass the agent's own rules by");
        assert!(matches!(of("Read", false), Verdict::Deny { .. }));
    }

    #[test]
    fn a_tool_that_is_denied_is_denied_under_each_of_its_names() {
        let settings =
            Settings { denied_tools: vec!["WebFetch".to_owned()], ..settings(Some(Approvals::Full), json!([])) };
        let agreed = Agreed { always: ["web_fetch".to_owned()].into(), call: None };
        for (kind, tool) in [(AskKind::BeforeTool, "webfetch"), (AskKind::Permission, "web_fetch")] {
            let said = verdict(&ask(kind, tool, Value::Null), &settings, "/workspace", &agreed, true);
            assert!(matches!(said, Verdict::Deny { rule, .. } if rule == DENIED), "{tool}");
        }
    }
}
