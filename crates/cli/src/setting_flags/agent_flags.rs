//! The flags of an agent: its model, approvals, tools, rules and continuous mode.

use crate::arguments::{parse_json_file, parse_word};
use atoll_core::continuous::{Continuous, Requirement};
use atoll_core::guardian::{GuardianAction, GuardianSettings};
use atoll_core::policy::ToolPolicy;
use atoll_core::sandbox::{ApprovalMode, Mode};
use serde_json::{Map, Value};

/// An object of JSON. The alias keeps clap from taking it for a list.
type JsonObject = Map<String, Value>;

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Agent")]
pub struct AgentFlags {
    /// Agent to run [default: agent.default, or the first usable one]
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,
    /// Model of the agent
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Mode: exploration, implementation or validation
    #[arg(long, value_name = "MODE", value_parser = parse_word::<Mode>)]
    pub mode: Option<Mode>,
    /// Approval mode: full, edits or ask [default: the project's, or full if the sandbox confines the agent, or edits]
    #[arg(long, value_name = "MODE", value_parser = parse_word::<ApprovalMode>)]
    pub approvals: Option<ApprovalMode>,
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
    pub system_prompt: Option<String>,
    /// Allow only this tool (repeatable)
    #[arg(long = "tool", value_name = "NAME")]
    pub tools: Vec<String>,
    /// Disable this tool, such as WebFetch (repeatable)
    #[arg(long = "deny-tool", value_name = "NAME")]
    pub denied_tools: Vec<String>,
    /// Allow subagents [default: true]
    #[arg(long, value_name = "BOOL")]
    pub subagents: Option<bool>,
    /// Allow skills [default: true]
    #[arg(long, value_name = "BOOL")]
    pub skills: Option<bool>,
    /// Rules for tool calls: a file with JSON
    #[arg(long, value_name = "FILE", value_parser = parse_json_file::<ToolPolicy>)]
    pub policy: Option<ToolPolicy>,
    /// Strongest action of the guardian, such as nudge or pause [default: observe]
    #[arg(long, value_name = "ACTION", value_parser = parse_word::<GuardianAction>)]
    guardian: Option<GuardianAction>,
    /// Number of equal calls in a row that counts as a repetition [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1000))]
    guardian_repeats: Option<u32>,
    /// MCP servers of the agent: a file with JSON
    #[arg(long, value_name = "FILE", value_parser = parse_json_file::<JsonObject>)]
    pub mcp: Option<JsonObject>,
}

impl AgentFlags {
    /// The guardian's settings; `None` without any flag.
    pub fn guardian(&self) -> Option<GuardianSettings> {
        let settings =
            GuardianSettings { act: self.guardian, repeats: self.guardian_repeats, ..GuardianSettings::default() };
        (settings != GuardianSettings::default()).then_some(settings)
    }

    /// The settings of continuous mode; `None` without any flag.
    pub fn continuous_settings(&self) -> Option<Continuous> {
        let is_on = self.continuous || !self.checks.is_empty() || !self.require.is_empty() || self.iterations.is_some();
        is_on.then(|| Continuous {
            checks: (!self.checks.is_empty()).then(|| self.checks.clone()),
            require: (!self.require.is_empty()).then(|| self.require.clone()),
            iterations: self.iterations,
            ..Continuous::default()
        })
    }
}
