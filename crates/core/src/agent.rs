//! Agents: names, abilities, and the paths of their programs in a sandbox.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The built-in agent that needs neither a program nor a model.
pub const DEMO_AGENT: &str = "demo";

/// Names of the agents that every configuration has.
pub const BUILT_IN_AGENTS: &[&str] = &["acp", "claude", "codex", DEMO_AGENT, "gemini", "opencode"];

/// The launch settings of an agent of the Agent Client Protocol that the configuration names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AcpLaunch {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// Directory below the home where the agent stores its sessions. Without it, only the same sandbox can resume them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_dir: Option<String>,
}

/// Returns true if the text can name an agent: it becomes part of paths.
pub fn is_agent_name(text: &str) -> bool {
    let letters = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=32).contains(&text.len())
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.bytes().all(letters)
}

/// Directory of the agents' programs in a sandbox on this machine.
pub const AGENTS_DIR: &str = "/opt/atoll/agents";

/// Returns the path of an agent's program in a sandbox on this machine.
pub fn program_path(name: &str) -> String {
    format!("{AGENTS_DIR}/{}", relative_program_path(name))
}

/// Returns the same path relative to [`AGENTS_DIR`], as providers expect it.
pub fn relative_program_path(name: &str) -> String {
    format!("{name}/bin/{name}")
}

/// Returns true if the text is safe as an agent's conversation id: it becomes part of paths and command lines.
pub fn is_valid_native_id(text: &str) -> bool {
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=128).contains(&text.len()) && !text.starts_with('-') && text.bytes().all(letters)
}

/// Abilities of an agent with its driver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Abilities {
    /// Accepts a message during a turn.
    pub steer: bool,
    /// Accepts messages during a turn and processes them later.
    pub queue: bool,
    /// Its turn can be interrupted and the conversation continued.
    pub interrupt: bool,
    pub approvals: bool,
    pub questions: bool,
    pub hooks: bool,
    pub resume: bool,
    pub fork: bool,
    pub usage: bool,
    pub plan: bool,
}

impl Abilities {
    pub const ALL: Self = Self {
        steer: true,
        queue: true,
        interrupt: true,
        approvals: true,
        questions: true,
        hooks: true,
        resume: true,
        fork: true,
        usage: true,
        plan: true,
    };

    /// Returns the names of the abilities that are present.
    pub fn names(self) -> Vec<&'static str> {
        let all = [
            ("steer", self.steer),
            ("queue", self.queue),
            ("interrupt", self.interrupt),
            ("approvals", self.approvals),
            ("questions", self.questions),
            ("hooks", self.hooks),
            ("resume", self.resume),
            ("fork", self.fork),
            ("usage", self.usage),
            ("plan", self.plan),
        ];
        all.into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_names_are_safe_in_paths() {
        assert!(["goose", "qwen-3", "a"].into_iter().chain(BUILT_IN_AGENTS.iter().copied()).all(is_agent_name));
        for bad in ["", "..", "a/b", "-a", "3a", "A", "a b", &"x".repeat(33)] {
            assert!(!is_agent_name(bad), "{bad}");
        }
    }

    #[test]
    fn conversation_ids_are_safe_in_paths() {
        for good in ["ses_e1eb886c4ffe1vglhjd3kBEGz0", "019a6b1c-0000-7000-8000-000000000000"] {
            assert!(is_valid_native_id(good), "{good}");
        }
        for bad in ["", "..", "a/b", "--help", "a b", "ä", &"x".repeat(129)] {
            assert!(!is_valid_native_id(bad), "{bad}");
        }
    }

    #[test]
    fn every_ability_has_a_name() {
        let serde_json::Value::Object(fields) = serde_json::json!(Abilities::default()) else { unreachable!() };
        for (name, _) in fields.clone() {
            let mut one = fields.clone();
            one.insert(name.clone(), true.into());
            let abilities: Abilities = serde_json::from_value(one.into()).unwrap();
            assert_eq!(abilities.names(), [name]);
        }
    }
}
