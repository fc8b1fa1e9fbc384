//! Builds the command for agents that speak the Agent Client Protocol.

use crate::settings::AgentSettings;
use crate::tools::{self, ToolKind};
use crate::{AgentCommand, ConfigFile, LaunchContext};
use atoll_core::agent::AcpLaunch;
use atoll_core::sandbox::{ApprovalMode, Mode};
use atoll_protocol::Gateway;
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// An agent program that speaks ACP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AcpAgent {
    Gemini,
    /// Any program that the configuration names.
    Named {
        name: String,
        launch: AcpLaunch,
    },
}

impl AcpAgent {
    /// The agent `acp`, of which the configuration names only the program.
    pub(crate) fn generic() -> Self {
        Self::Named { name: "acp".to_owned(), launch: AcpLaunch::default() }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::Gemini => "gemini",
            Self::Named { name, .. } => name,
        }
    }
}

pub(super) fn build_command(program: &AcpAgent, launch: &LaunchContext<'_>) -> AgentCommand {
    let path =
        launch.agent_program.map_or_else(|| program.name().to_owned(), |path| path.to_string_lossy().into_owned());
    let mut argv = vec![path];
    let (mut env, mut configured_env) = (Vec::new(), Vec::new());
    let (mut files, mut ignored) = (Vec::new(), Vec::new());
    match program {
        AcpAgent::Gemini => {
            argv.push("--acp".to_owned());
            argv.extend(["--approval-mode".to_owned(), approval_mode(launch).to_owned()]);
            if let Some(model) = &launch.settings.model {
                argv.extend(["--model".to_owned(), model.clone()]);
            }
            files.push(ConfigFile {
                path: PathBuf::from(".gemini/settings.json"),
                text: gemini_settings(launch.settings),
            });
            if let Some(prompt) = &launch.settings.system_prompt {
                let text = format!("{prompt}\n");
                files.push(ConfigFile { path: PathBuf::from(".gemini/GEMINI.md"), text });
            }
            env.extend(launch.gateway.into_iter().flat_map(gemini_variables));
        }
        // It is unknown which API the program uses.
        AcpAgent::Named { launch: AcpLaunch { arguments, environment, .. }, .. } => {
            argv.extend(arguments.iter().cloned());
            if launch.settings.model.is_some() {
                let reason = "the Agent Client Protocol has no standard way to choose a model";
                ignored.push(crate::unsupported("model", reason));
            }
            ignored.extend(tools::unsupported_tool_settings(launch.settings, "an agent of the Agent Client Protocol"));
            env.extend(launch.gateway.into_iter().flat_map(anthropic_variables));
            env.extend(launch.gateway.into_iter().flat_map(openai_variables));
            env.extend(launch.gateway.into_iter().flat_map(gemini_variables));
            configured_env.extend(environment.clone());
        }
    }
    let env = env.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(configured_env).collect();
    AgentCommand { argv, env, files, unsupported_settings: ignored }
}

fn approval_mode(launch: &LaunchContext<'_>) -> &'static str {
    match (launch.settings.mode, launch.settings.approvals) {
        (Some(Mode::Exploration), _) => "plan",
        // The policy can only decide about calls that the agent asks about.
        (_, Some(ApprovalMode::Full)) if !launch.settings.has_rules() => "yolo",
        (_, Some(ApprovalMode::Full | ApprovalMode::Edits | ApprovalMode::Ask) | None) => "default",
    }
}

/// Turns off telemetry and updates, and selects the API key of the environment.
fn gemini_settings(settings: &AgentSettings) -> String {
    let mut all = json!({
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": false}},
        "general": {"enableAutoUpdate": false, "enableAutoUpdateNotification": false},
        "privacy": {"usageStatisticsEnabled": false},
        "telemetry": {"enabled": false},
    });
    if let Some(tools) = &settings.tools {
        all["tools"]["core"] = tools::translate_names(tools, gemini_tools).into();
    }
    let denied = tools::translate_names(&tools::list_denied_tools(settings), gemini_tools);
    if !denied.is_empty() {
        all["tools"]["exclude"] = denied.into();
    }
    all.to_string()
}

type Variable = (&'static str, String);

fn gemini_variables(gateway: &Gateway) -> [Variable; 2] {
    let url = format!("{}/gemini", gateway.base_url);
    [("GOOGLE_GEMINI_BASE_URL", url), ("GEMINI_API_KEY", gateway.key.clone())]
}

fn openai_variables(gateway: &Gateway) -> [Variable; 2] {
    let url = format!("{}/openai/v1", gateway.base_url);
    [("OPENAI_BASE_URL", url), ("OPENAI_API_KEY", gateway.key.clone())]
}

fn anthropic_variables(gateway: &Gateway) -> [Variable; 2] {
    let url = format!("{}/anthropic", gateway.base_url);
    [("ANTHROPIC_BASE_URL", url), ("ANTHROPIC_API_KEY", gateway.key.clone())]
}

/// Parameters of `session/new` and `session/load`.
pub(super) fn session_params(launch: &LaunchContext<'_>) -> Value {
    let servers = launch.settings.mcp.iter().flatten();
    let servers: Vec<Value> = servers.map(|(name, server)| convert_mcp_server(name, server)).collect();
    json!({"cwd": launch.workspace, "mcpServers": servers})
}

/// Converts an MCP server to ACP's format, which uses lists instead of objects.
fn convert_mcp_server(name: &str, server: &Value) -> Value {
    let pairs = |value: &Value| -> Vec<Value> {
        let all: Option<&Map<String, Value>> = value.as_object();
        all.into_iter().flatten().map(|(name, value)| json!({"name": name, "value": value})).collect()
    };
    match server["url"].as_str() {
        Some(url) => {
            let kind = server["type"].as_str().unwrap_or("http");
            json!({"type": kind, "name": name, "url": url, "headers": pairs(&server["headers"])})
        }
        None => {
            let arguments = if server["args"].is_array() { server["args"].clone() } else { json!([]) };
            json!({"name": name, "command": server["command"], "args": arguments, "env": pairs(&server["env"])})
        }
    }
}

/// Gemini CLI's names of a tool.
const fn gemini_tools(kind: ToolKind) -> &'static [&'static str] {
    match kind {
        ToolKind::Read => &["read_file", "read_many_files"],
        ToolKind::Write => &["write_file"],
        ToolKind::Edit => &["replace"],
        ToolKind::Patch => &["write_file", "replace"],
        ToolKind::Bash => &["run_shell_command"],
        ToolKind::Glob => &["glob"],
        ToolKind::Grep => &["grep_search", "search_file_content"],
        ToolKind::List => &["list_directory"],
        ToolKind::Task => &["invoke_agent"],
        ToolKind::Skill => &["activate_skill"],
        ToolKind::WebFetch => &["web_fetch"],
        ToolKind::WebSearch => &["google_web_search"],
        ToolKind::Todo => &["write_todos"],
        ToolKind::Notebook | ToolKind::Image => &[],
    }
}
