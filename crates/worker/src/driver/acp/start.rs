//! How agents that speak the Agent Client Protocol are started.

use super::super::tools::{self, Tool};
use super::super::{Command, Ignored, Launch, Placed};
use crate::heartbeat::Settings;
use atoll_core::sandbox::{Approvals, Mode};
use atoll_protocol::Gateway;
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// Those that something more is known about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Program {
    Gemini,
    /// Whatever program the project names; it is started without arguments.
    Other,
}

impl Program {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Gemini => "gemini",
            Self::Other => "acp",
        }
    }
}

pub(super) fn command(program: Program, launch: &Launch<'_>) -> Command {
    let path = launch.program.map_or_else(|| program.name().to_owned(), |path| path.to_string_lossy().into_owned());
    let mut argv = vec![path];
    let mut env = Vec::new();
    let (mut files, mut ignored) = (Vec::new(), Vec::new());
    match program {
        Program::Gemini => {
            argv.push("--acp".to_owned());
            argv.extend(["--approval-mode".to_owned(), mode(launch).to_owned()]);
            if let Some(model) = &launch.settings.model {
                argv.extend(["--model".to_owned(), model.clone()]);
            }
            files.push(Placed { path: PathBuf::from(".gemini/settings.json"), text: gemini_settings(launch.settings) });
            if let Some(prompt) = &launch.settings.system_prompt {
                let text = format!("{prompt}\n");
                files.push(Placed { path: PathBuf::from(".gemini/GEMINI.md"), text });
            }
            env.extend(launch.gateway.into_iter().flat_map(gemini));
        }
        // Nobody knows which of them it reads.
        Program::Other => {
            if launch.settings.model.is_some() {
                let reason = "the Agent Client Protocol has no common way to choose one";
                ignored.push(Ignored::new("model", reason));
            }
            ignored.extend(tools::ignored(launch.settings, "an agent of the Agent Client Protocol"));
            env.extend(launch.gateway.into_iter().flat_map(anthropic));
            env.extend(launch.gateway.into_iter().flat_map(openai));
            env.extend(launch.gateway.into_iter().flat_map(gemini));
        }
    }
    let env = env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Command { argv, env, files, ignored }
}

fn mode(launch: &Launch<'_>) -> &'static str {
    match (launch.settings.mode, launch.settings.approvals) {
        (Some(Mode::Exploration), _) => "plan",
        // Rules are asked about what the agent asks about.
        (_, Some(Approvals::Full)) if !launch.settings.has_rules() => "yolo",
        (_, Some(Approvals::Full | Approvals::Edits | Approvals::Ask) | None) => "default",
    }
}

/// It reports nothing, looks for no newer version of itself, and takes the key from its environment.
fn gemini_settings(settings: &Settings) -> String {
    let mut all = json!({
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": false}},
        "general": {"enableAutoUpdate": false, "enableAutoUpdateNotification": false},
        "privacy": {"usageStatisticsEnabled": false},
        "telemetry": {"enabled": false},
    });
    if let Some(tools) = &settings.tools {
        all["tools"]["core"] = tools::translated(tools, Tool::of_gemini).into();
    }
    let denied = tools::translated(&tools::denied(settings), Tool::of_gemini);
    if !denied.is_empty() {
        all["tools"]["exclude"] = denied.into();
    }
    all.to_string()
}

type Variable = (&'static str, String);

fn gemini(gateway: &Gateway) -> [Variable; 2] {
    let url = format!("{}/gemini", gateway.base_url);
    [("GOOGLE_GEMINI_BASE_URL", url), ("GEMINI_API_KEY", gateway.key.clone())]
}

fn openai(gateway: &Gateway) -> [Variable; 2] {
    let url = format!("{}/openai/v1", gateway.base_url);
    [("OPENAI_BASE_URL", url), ("OPENAI_API_KEY", gateway.key.clone())]
}

fn anthropic(gateway: &Gateway) -> [Variable; 2] {
    let url = format!("{}/anthropic", gateway.base_url);
    [("ANTHROPIC_BASE_URL", url), ("ANTHROPIC_API_KEY", gateway.key.clone())]
}

/// What a session is begun with, or gone on with.
pub(super) fn session(launch: &Launch<'_>) -> Value {
    let servers = launch.settings.mcp.iter().flatten();
    let servers: Vec<Value> = servers.map(|(name, server)| server_of(name, server)).collect();
    json!({"cwd": launch.workspace, "mcpServers": servers})
}

/// The protocol's form of what is usually written as objects.
fn server_of(name: &str, server: &Value) -> Value {
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
