//! The flags of an agent: its mode, approvals, tools and continuous mode.

use crate::arguments::parse_word;
use atoll_api::NewSandbox;
use atoll_core::continuous::{Continuous, Requirement};
use atoll_core::sandbox::{ApprovalMode, Mode};

#[derive(Debug, Default, clap::Args)]
pub struct AgentFlags {
    /// Mode: exploration, implementation or validation
    #[arg(long, value_name = "MODE", value_parser = parse_word::<Mode>)]
    mode: Option<Mode>,
    /// Approval mode: full, edits or ask [default: the project's, or full with strong isolation, or edits]
    #[arg(long, value_name = "MODE", value_parser = parse_word::<ApprovalMode>)]
    approvals: Option<ApprovalMode>,
    /// Work until the project's checks pass
    #[arg(long)]
    continuous: bool,
    /// Work until this command succeeds (repeatable; implies --continuous)
    #[arg(long = "check", value_name = "COMMAND")]
    checks: Vec<String>,
    /// Require clean, committed, pushed or pull_request (repeatable; implies --continuous) [default with a repository:
    /// clean and committed]
    #[arg(long = "require", value_name = "WHAT", value_parser = parse_word::<Requirement>)]
    require: Vec<Requirement>,
    /// Stop after this many runs (implies --continuous) [default: continuous.iterations]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    iterations: Option<u32>,
    /// Append this text to the agent's system prompt
    #[arg(long, value_name = "TEXT")]
    system_prompt: Option<String>,
    /// Allow only this tool (repeatable)
    #[arg(long = "tool", value_name = "NAME")]
    tools: Vec<String>,
    /// Disable this tool, such as WebFetch (repeatable)
    #[arg(long = "deny-tool", value_name = "NAME")]
    denied_tools: Vec<String>,
}

impl AgentFlags {
    /// Adds the given flags to a request; the project's defaults apply to the rest.
    pub fn add_to_request(&self, request: &mut NewSandbox) {
        request.mode = self.mode;
        request.approvals = self.approvals;
        request.system_prompt = self.system_prompt.clone();
        request.tools = (!self.tools.is_empty()).then(|| self.tools.clone());
        request.denied_tools = self.denied_tools.clone();
        request.continuous = self.continuous_settings();
    }

    fn continuous_settings(&self) -> Option<Continuous> {
        let is_on = self.continuous || !self.checks.is_empty() || !self.require.is_empty() || self.iterations.is_some();
        is_on.then(|| Continuous {
            checks: (!self.checks.is_empty()).then(|| self.checks.clone()),
            require: (!self.require.is_empty()).then(|| self.require.clone()),
            iterations: self.iterations,
            ..Continuous::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn body(flags: &AgentFlags) -> serde_json::Value {
        let mut request = NewSandbox::default();
        flags.add_to_request(&mut request);
        serde_json::to_value(request).unwrap()
    }

    #[test]
    fn sends_only_given_flags_and_a_check_implies_continuous() {
        assert_eq!(body(&AgentFlags::default()), json!({}));
        assert_eq!(body(&AgentFlags { continuous: true, ..AgentFlags::default() }), json!({"continuous": {}}));
        let checks = vec!["make test".to_owned()];
        let checked = AgentFlags { checks, mode: Some(Mode::Implementation), ..AgentFlags::default() };
        assert_eq!(body(&checked), json!({"mode": "implementation", "continuous": {"checks": ["make test"]}}));
    }
}
