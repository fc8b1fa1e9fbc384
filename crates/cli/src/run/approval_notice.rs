//! The notice of a run whose agent may ask for approvals that its user cannot see. Pure.

use atoll_core::policy::RuleAction;
use atoll_core::sandbox::{ApprovalMode, Settings};

/// The notice for a run without a terminal; `None` if the agent needs no approvals.
pub fn describe_unattended_approvals(settings: &Settings) -> Option<String> {
    let has_asking_rules =
        settings.policy.as_ref().is_some_and(|policy| policy.rules.iter().any(|rule| rule.then == RuleAction::Ask));
    let (cause, remedy) = match settings.approvals {
        Some(ApprovalMode::Full) if has_asking_rules => ("rules of its policy", "change the rules"),
        Some(ApprovalMode::Full) | None => return None,
        Some(ApprovalMode::Edits) => ("approvals: edits", "choose --approvals full"),
        Some(ApprovalMode::Ask) => ("approvals: ask", "choose --approvals full or edits"),
    };
    Some(format!(
        "the agent may ask for approvals ({cause}), and this run has no terminal to answer on; it waits until you answer \
         with `atoll approvals` from another terminal, or {remedy}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn notice(settings: Value) -> Option<String> {
        describe_unattended_approvals(&serde_json::from_value(settings).unwrap())
    }

    #[test]
    fn reports_approvals_that_an_agent_may_ask_for() {
        assert_eq!(notice(json!({ "approvals": "full" })), None);
        assert_eq!(notice(json!({})), None, "the provider runs no agent");
        for mode in ["edits", "ask"] {
            let text = notice(json!({ "approvals": mode })).unwrap();
            assert!(text.contains(&format!("approvals: {mode}")) && text.contains("--approvals full"), "{text}");
        }
        let rules = |then| json!({ "approvals": "full", "policy": { "rules": [{ "tools": ["Bash"], "then": then }] } });
        assert!(notice(rules("ask")).unwrap().contains("rules of its policy"));
        assert_eq!(notice(rules("deny")), None);
    }
}
