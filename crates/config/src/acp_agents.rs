//! The key `acp_agents`: agents of the Agent Client Protocol by name.

use atoll_core::agent::{AcpLaunch, BUILT_IN_AGENTS, is_agent_name};
use atoll_core::bounds::{MAX_ENV_VALUE_BYTES, MAX_ENV_VARIABLES};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

pub(crate) const ACP_AGENTS_FORM: &str = "{name: {program: an absolute path, arguments: [text], environment: {NAME: text}, \
     session_dir: a path below the agent's home}}";

const MAX_ARGUMENTS: usize = 64;

/// One entry of `acp_agents`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcpAgent {
    pub program: PathBuf,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_dir: Option<String>,
}

impl AcpAgent {
    /// The settings that the worker needs to start the agent.
    pub fn launch(&self) -> AcpLaunch {
        AcpLaunch {
            arguments: self.arguments.clone(),
            environment: self.environment.clone(),
            session_dir: self.session_dir.clone(),
        }
    }
}

pub(crate) fn check_acp_agents(agents: BTreeMap<String, AcpAgent>) -> Result<BTreeMap<String, AcpAgent>, String> {
    for (name, agent) in &agents {
        if !is_agent_name(name) {
            return Err(format!("`{name}` is not a name: use at most 32 of a-z, 0-9 and `-`, beginning with a letter"));
        }
        if BUILT_IN_AGENTS.contains(&name.as_str()) {
            return Err(format!("`{name}` is a built-in agent: choose another name"));
        }
        if !agent.program.is_absolute() {
            return Err(format!("the program of {name} is not an absolute path"));
        }
        let has_nul = agent.arguments.iter().chain(agent.environment.values()).any(|text| text.contains('\0'));
        if has_nul || agent.arguments.len() > MAX_ARGUMENTS {
            return Err(format!("{name} has more than {MAX_ARGUMENTS} arguments, or a NUL character in one"));
        }
        let is_variable = |name: &String| {
            let letters = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            !name.is_empty() && !name.starts_with(|first: char| first.is_ascii_digit()) && name.bytes().all(letters)
        };
        if let Some(variable) = agent.environment.keys().find(|variable| !is_variable(variable)) {
            return Err(format!("`{variable}` in the environment of {name} is not the name of a variable"));
        }
        let is_large = agent.environment.values().any(|value| value.len() > MAX_ENV_VALUE_BYTES);
        if is_large || agent.environment.len() > MAX_ENV_VARIABLES {
            return Err(format!(
                "the environment of {name} exceeds {MAX_ENV_VARIABLES} variables of {MAX_ENV_VALUE_BYTES} bytes"
            ));
        }
        let is_below_home = |path: &String| {
            let mut parts = Path::new(path).components().peekable();
            parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
        };
        if !agent.session_dir.as_ref().is_none_or(is_below_home) {
            return Err(format!("the session_dir of {name} is not a path below the agent's home"));
        }
    }
    Ok(agents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(agents: Value) -> Result<BTreeMap<String, AcpAgent>, String> {
        check_acp_agents(serde_json::from_value(agents).map_err(|error| error.to_string())?)
    }

    #[test]
    fn takes_any_number_of_agents() {
        let agents = check(json!({
            "goose": {"program": "/usr/bin/goose", "arguments": ["acp"], "environment": {"GOOSE_MODE": "auto"},
                "session_dir": ".local/share/goose"},
            "qwen": {"program": "/opt/qwen/bin/qwen", "arguments": ["--acp"]},
        }))
        .unwrap();
        assert_eq!(agents["goose"].launch().arguments, ["acp"]);
        assert_eq!(agents["qwen"].launch(), AcpLaunch { arguments: vec!["--acp".into()], ..AcpLaunch::default() });
    }

    #[test]
    fn names_the_mistake() {
        for (agents, mistake) in [
            (json!({"claude": {"program": "/a"}}), "built-in"),
            (json!({"../x": {"program": "/a"}}), "not a name"),
            (json!({"x": {"program": "a"}}), "absolute"),
            (json!({"x": {"program": "/a", "environment": {"A=B": ""}}}), "variable"),
            (json!({"x": {"program": "/a", "arguments": ["\0"]}}), "NUL"),
            (json!({"x": {"program": "/a", "session_dir": "../other"}}), "session_dir"),
            (json!({"x": {"program": "/a", "session_dir": ""}}), "session_dir"),
            (json!({"x": {"program": "/a", "path": "/b"}}), "unknown field"),
            (json!({"x": {}}), "program"),
        ] {
            let error = check(agents.clone()).unwrap_err();
            assert!(error.contains(mistake), "{agents}: {error}");
        }
    }
}
