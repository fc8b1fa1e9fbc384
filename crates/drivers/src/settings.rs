//! The settings of a task that the worker and the drivers use. Unknown settings of a newer server are ignored.

use atoll_core::policy::{RuleAction, ToolPolicy, ToolRule};
use atoll_core::sandbox::{AgentLimits, ApprovalMode, Mode};
use atoll_core::service::Service;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct AgentSettings {
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub repo: Option<RepoSettings>,
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default, deserialize_with = "ignore_unknown")]
    pub mode: Option<Mode>,
    #[serde(default, deserialize_with = "ignore_unknown")]
    pub approvals: Option<ApprovalMode>,
    #[serde(default)]
    pub tools: Option<Vec<String>>,
    #[serde(default)]
    pub system_prompt: Option<String>,
    #[serde(default)]
    pub denied_tools: Vec<String>,
    #[serde(default)]
    pub enable_subagents: Option<bool>,
    #[serde(default)]
    pub enable_skills: Option<bool>,
    /// Continuous mode; the server runs the checks.
    #[serde(default)]
    pub continuous: Option<serde_json::Value>,
    #[serde(default)]
    pub mcp: Option<serde_json::Map<String, serde_json::Value>>,
    #[serde(default, deserialize_with = "ignore_unknown")]
    pub limits: Option<AgentLimits>,
    #[serde(default)]
    pub protected: Vec<String>,
    #[serde(default, deserialize_with = "parse_policy")]
    pub policy: ToolPolicy,
    /// Programs that run beside the agent.
    #[serde(default, deserialize_with = "ignore_unknown")]
    pub services: Option<Vec<Service>>,
    /// Names of secrets; the server may provide some of them as files.
    #[serde(default)]
    pub secrets: Option<Vec<String>>,
}

impl AgentSettings {
    /// Returns true if tool calls need a policy decision. Drivers then make the agent ask about each call.
    pub fn has_rules(&self) -> bool {
        !self.policy.is_empty() || !self.protected.is_empty()
    }
}

/// A policy that this worker cannot parse must not be ignored: every call needs an approval then.
fn parse_policy<'de, D: Deserializer<'de>>(from: D) -> Result<ToolPolicy, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    if value.is_null() {
        return Ok(ToolPolicy::default());
    }
    Ok(serde_json::from_value(value).unwrap_or_else(|error| {
        tracing::error!(%error, "failed to parse the tool policy; every tool call needs an approval");
        let all = vec!["*".to_owned()];
        let (paths, commands, hosts) = (Vec::new(), Vec::new(), Vec::new());
        let rule = ToolRule { tools: all, paths, commands, hosts, then: RuleAction::Ask, reason: None, set: None };
        ToolPolicy { rules: vec![rule], fail_closed: true }
    }))
}

/// Treats a value that this worker does not know as absent.
fn ignore_unknown<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Option<T>, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    Ok(serde_json::from_value(value).ok())
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct RepoSettings {
    #[serde(default)]
    pub branch: Option<String>,
}
