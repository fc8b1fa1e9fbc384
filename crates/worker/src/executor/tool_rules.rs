//! Decides whether a tool call is allowed, denied, or needs a person's approval. Pure.

use atoll_core::policy::{self, PolicyDecision, ToolEffect, tool_effect};
use atoll_core::sandbox::ApprovalMode;
use atoll_drivers::AgentSettings;
use atoll_drivers::{AgentRequest, RequestKind, is_tool_denied};
use serde_json::Value;
use std::collections::BTreeSet;

/// Rule name for tools that the settings deny.
const DENIED_TOOLS_RULE: &str = "denied_tools";

#[derive(Debug, Clone, PartialEq)]
pub(super) enum ToolVerdict {
    /// Allow, with other input if a rule changes it.
    Allow(Option<Value>),
    /// A person must decide.
    Person(Option<Value>),
    Deny {
        rule: String,
        reason: String,
    },
}

/// Approvals that a person has granted already.
#[derive(Debug, Default)]
pub(super) struct GrantedApprovals {
    /// Tools that are always allowed in this sandbox.
    pub always: BTreeSet<String>,
    /// The call that was approved before the agent's own rules applied, and the input that was approved.
    pub call: Option<GrantedCall>,
}

/// A call with the input that a person approved.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct GrantedCall {
    pub tool_use_id: Option<String>,
    pub input: Value,
}

impl GrantedApprovals {
    /// True if a person approved this call with this input.
    fn includes_call(&self, ask: &AgentRequest, input: Option<&Value>) -> bool {
        self.call.as_ref().is_some_and(|call| {
            call.tool_use_id.is_some()
                && call.tool_use_id == ask.tool_use_id
                && call.input == *input.unwrap_or(&ask.input)
                && ask.kind == RequestKind::Permission
        })
    }
}

/// Decides a request: first the project's rules, then granted approvals, then the approvals setting.
pub(super) fn decide_request(
    ask: &AgentRequest,
    settings: &AgentSettings,
    workspace: &str,
    granted: &GrantedApprovals,
    may_change: bool,
) -> ToolVerdict {
    if ask.kind == RequestKind::Question {
        return ToolVerdict::Person(None);
    }
    if is_tool_denied(settings, &ask.tool) {
        let reason = format!("the tool {} is denied in this task", ask.tool);
        return ToolVerdict::Deny { rule: DENIED_TOOLS_RULE.to_owned(), reason };
    }
    let PolicyDecision { verdict, input } =
        settings.policy.decide_call(&ask.tool, &ask.input, workspace, &settings.protected);
    if let (Some(_), false) = (&input, may_change) {
        let reason = "a rule changes the input of this call, which this agent does not support".to_owned();
        return ToolVerdict::Deny { rule: "change".to_owned(), reason };
    }
    let is_granted = granted.always.contains(&ask.tool) || granted.includes_call(ask, input.as_ref());
    match verdict {
        policy::PolicyVerdict::Deny { rule, reason } => ToolVerdict::Deny { rule, reason },
        policy::PolicyVerdict::Allow => ToolVerdict::Allow(input),
        policy::PolicyVerdict::Ask { .. } if is_granted => ToolVerdict::Allow(input),
        policy::PolicyVerdict::Ask { .. } => ToolVerdict::Person(input),
        // The agent's own rules decide; it asks again if they need a person.
        policy::PolicyVerdict::NoMatchingRule if ask.kind == RequestKind::BeforeTool && input.is_none() => {
            ToolVerdict::Allow(None)
        }
        policy::PolicyVerdict::NoMatchingRule if is_granted => ToolVerdict::Allow(input),
        policy::PolicyVerdict::NoMatchingRule => {
            match (settings.approvals.unwrap_or(ApprovalMode::Edits), tool_effect(&ask.tool)) {
                (ApprovalMode::Full, _) | (_, ToolEffect::Reads) | (ApprovalMode::Edits, ToolEffect::Writes) => {
                    ToolVerdict::Allow(input)
                }
                (ApprovalMode::Edits, ToolEffect::Fetches | ToolEffect::Runs | ToolEffect::Other)
                | (
                    ApprovalMode::Ask,
                    ToolEffect::Fetches | ToolEffect::Writes | ToolEffect::Runs | ToolEffect::Other,
                ) => ToolVerdict::Person(input),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ask(kind: RequestKind, tool: &str, input: Value) -> AgentRequest {
        AgentRequest { id: String::new(), kind, tool_use_id: Some("t1".to_owned()), tool: tool.to_owned(), input }
    }

    fn settings(approvals: Option<ApprovalMode>, rules: Value) -> AgentSettings {
        let policy = serde_json::from_value(json!({"rules": rules})).unwrap();
        AgentSettings { approvals, policy, protected: vec!["Cargo.lock".to_owned()], ..AgentSettings::default() }
    }

    #[test]
    fn decides_by_approvals_setting_and_tool() {
        let of = |kind, tool: &str, approvals, always: &[&str]| {
            let granted =
                GrantedApprovals { always: always.iter().map(|tool| (*tool).to_owned()).collect(), call: None };
            decide_request(&ask(kind, tool, Value::Null), &settings(approvals, json!([])), "/workspace", &granted, true)
        };
        let permission = |tool: &str, approvals| of(RequestKind::Permission, tool, approvals, &[]);
        assert_eq!(permission("Bash", Some(ApprovalMode::Full)), ToolVerdict::Allow(None));
        assert_eq!(permission("Bash", None), ToolVerdict::Person(None));
        assert_eq!(permission("Edit", None), ToolVerdict::Allow(None));
        assert_eq!(permission("Edit", Some(ApprovalMode::Ask)), ToolVerdict::Person(None));
        assert_eq!(permission("Read", Some(ApprovalMode::Ask)), ToolVerdict::Allow(None));
        assert_eq!(of(RequestKind::Permission, "Bash", Some(ApprovalMode::Ask), &["Bash"]), ToolVerdict::Allow(None));
        assert_eq!(
            of(RequestKind::Question, "AskUserQuestion", Some(ApprovalMode::Full), &[]),
            ToolVerdict::Person(None)
        );
        assert_eq!(of(RequestKind::BeforeTool, "Bash", Some(ApprovalMode::Ask), &[]), ToolVerdict::Allow(None));
    }

    #[test]
    fn rules_take_precedence_over_approvals() {
        let rules = json!([
            {"commands": ["git push"], "then": "deny", "reason": "not yours"},
            {"paths": ["docs/**"], "then": "allow"},
            {"tools": ["WebFetch"], "then": "ask"},
        ]);
        let of = |kind, tool: &str, input: Value, approvals, granted: &GrantedApprovals| {
            decide_request(
                &ask(kind, tool, input),
                &settings(Some(approvals), rules.clone()),
                "/workspace",
                granted,
                true,
            )
        };
        let nobody = GrantedApprovals::default();
        for kind in [RequestKind::BeforeTool, RequestKind::Permission] {
            let push = of(kind, "Bash", json!({"command": "git push"}), ApprovalMode::Full, &nobody);
            assert_eq!(push, ToolVerdict::Deny { rule: "rules[0]".into(), reason: "not yours".into() });
            let write = of(kind, "Write", json!({"file_path": "docs/a.md"}), ApprovalMode::Ask, &nobody);
            assert_eq!(write, ToolVerdict::Allow(None));
            assert_eq!(of(kind, "WebFetch", json!({}), ApprovalMode::Full, &nobody), ToolVerdict::Person(None));
            let lock = of(kind, "Write", json!({"file_path": "Cargo.lock"}), ApprovalMode::Full, &nobody);
            assert!(matches!(lock, ToolVerdict::Deny { rule, .. } if rule == policy::PROTECTED_PATHS_RULE));
        }
        let call = GrantedCall { tool_use_id: Some("t1".to_owned()), input: json!({}) };
        let granted_call = GrantedApprovals { call: Some(call), ..GrantedApprovals::default() };
        assert_eq!(
            of(RequestKind::Permission, "WebFetch", json!({}), ApprovalMode::Ask, &granted_call),
            ToolVerdict::Allow(None)
        );
        assert_eq!(
            of(RequestKind::BeforeTool, "WebFetch", json!({}), ApprovalMode::Ask, &granted_call),
            ToolVerdict::Person(None)
        );
        let other = json!({"url": "https://elsewhere.example"});
        let other = of(RequestKind::Permission, "WebFetch", other, ApprovalMode::Ask, &granted_call);
        assert_eq!(other, ToolVerdict::Person(None), "the same call with another input is not approved");
    }

    #[test]
    fn changes_input_only_if_the_agent_supports_it() {
        let settings =
            settings(Some(ApprovalMode::Edits), json!([{"tools": ["*"], "then": "change", "set": {"timeout": 1}}]));
        let of = |tool: &str, may_change| {
            let ask = ask(RequestKind::BeforeTool, tool, json!({"command": "ls"}));
            decide_request(&ask, &settings, "/workspace", &GrantedApprovals::default(), may_change)
        };
        let changed = Some(json!({"command": "ls", "timeout": 1}));
        assert_eq!(of("Read", true), ToolVerdict::Allow(changed.clone()));
        assert_eq!(of("Bash", true), ToolVerdict::Person(changed), "it would pass the agent's own rules by");
        assert!(matches!(of("Read", false), ToolVerdict::Deny { .. }));
    }

    #[test]
    fn denies_a_tool_under_all_its_names() {
        let settings = AgentSettings {
            denied_tools: vec!["WebFetch".to_owned()],
            ..settings(Some(ApprovalMode::Full), json!([]))
        };
        let granted = GrantedApprovals { always: ["web_fetch".to_owned()].into(), call: None };
        for (kind, tool) in [(RequestKind::BeforeTool, "webfetch"), (RequestKind::Permission, "web_fetch")] {
            let verdict = decide_request(&ask(kind, tool, Value::Null), &settings, "/workspace", &granted, true);
            assert!(matches!(verdict, ToolVerdict::Deny { rule, .. } if rule == DENIED_TOOLS_RULE), "{tool}");
        }
    }
}
