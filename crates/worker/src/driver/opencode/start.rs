//! How OpenCode is started: behind the bridge, with all of its settings in one variable.

use super::super::tools::{self, Tool};
use super::super::{Command, Launch};
use crate::heartbeat::Settings;
use atoll_core::sandbox::{Approvals, Mode};
use serde_json::{Map, Value, json};

/// It fetches and shares nothing, and looks for no newer version of itself: the way out is for the work.
const QUIET: &[&str] = &[
    "OPENCODE_DISABLE_AUTOUPDATE",
    "OPENCODE_DISABLE_MODELS_FETCH",
    "OPENCODE_DISABLE_LSP_DOWNLOAD",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS",
    "OPENCODE_DISABLE_SHARE",
    "OPENCODE_DISABLE_EXTERNAL_SKILLS",
    "OPENCODE_DISABLE_CLAUDE_CODE",
];

pub(super) fn quiet() -> Vec<(String, String)> {
    QUIET.iter().map(|name| ((*name).to_owned(), "1".to_owned())).collect()
}

/// What is known of a model that the gateway has: nothing, so what most of them can do at least.
const CONTEXT: u32 = 128_000;
const OUTPUT: u32 = 16_000;

pub(super) fn command(launch: &Launch<'_>) -> Command {
    let program = launch.program.map_or_else(|| "opencode".to_owned(), |path| path.to_string_lossy().into_owned());
    let mut argv = vec![launch.worker.to_string_lossy().into_owned(), "opencode".to_owned(), program];
    argv.extend(launch.native_id.map(str::to_owned));
    let mut env = quiet();
    env.push(("OPENCODE_CONFIG_CONTENT".to_owned(), settings(launch).to_string()));
    Command { argv, env, ..Command::default() }
}

/// The agent of its own that does the work: one that changes nothing, to look around.
pub(super) const fn agent(mode: Option<Mode>) -> Option<&'static str> {
    match mode {
        Some(Mode::Exploration) => Some("plan"),
        Some(Mode::Implementation | Mode::Validation) | None => None,
    }
}

fn settings(launch: &Launch<'_>) -> Value {
    let mut all = json!({
        "autoupdate": false, "share": "disabled", "snapshot": false, "lsp": false, "formatter": false,
        "permission": permission(launch.settings),
    });
    if let Some(servers) = &launch.settings.mcp {
        let servers: Map<String, Value> =
            servers.iter().map(|(name, server)| (name.clone(), server_of(server))).collect();
        all["mcp"] = Value::Object(servers);
    }
    let model = launch.settings.model.as_deref();
    let Some(gateway) = launch.gateway else {
        if let Some(model) = model {
            all["model"] = model.into();
        }
        return all;
    };
    // By the name one can tell which of the gateway's APIs a model is behind.
    let (package, url) = match model {
        Some(model) if model.starts_with("claude") => {
            ("@ai-sdk/anthropic", format!("{}/anthropic/v1", gateway.base_url))
        }
        Some(_) | None => ("@ai-sdk/openai-compatible", format!("{}/openai/v1", gateway.base_url)),
    };
    let options = json!({"baseURL": url, "apiKey": gateway.key});
    match model {
        Some(model) => {
            let known = json!({"limit": {"context": CONTEXT, "output": OUTPUT}});
            all["model"] = format!("atoll/{model}").into();
            all["small_model"] = all["model"].clone();
            all["enabled_providers"] = json!(["atoll"]);
            all["provider"] = json!({"atoll": {"npm": package, "options": options, "models": {model: known}}});
        }
        // One of those that it knows by itself.
        None => {
            all["enabled_providers"] = json!(["openai"]);
            all["provider"] = json!({"openai": {"options": options}});
        }
    }
    all
}

/// What it asks about; what becomes of the question is not its to say.
fn permission(settings: &Settings) -> Value {
    const HARMLESS: &[&str] =
        &["read", "glob", "grep", "list", "todowrite", "todoread", "task", "skill", "question", "lsp"];
    let (usual, harmless) = match settings.approvals {
        // Rules may be about anything, also about what is read.
        _ if !settings.policy.is_empty() => ("ask", &["question"][..]),
        Some(Approvals::Full) if settings.protected.is_empty() => ("allow", &[][..]),
        Some(Approvals::Full | Approvals::Edits | Approvals::Ask) | None => ("ask", HARMLESS),
    };
    let mut all = json!({"*": usual});
    for tool in harmless {
        all[tool] = "allow".into();
    }
    if let Some(tools) = &settings.tools {
        let usual = |tool: &str| if harmless.contains(&tool) { "allow" } else { usual };
        let named = tools::translated(tools, Tool::of_opencode);
        all = json!({"*": "deny"});
        for tool in &named {
            all[tool.as_str()] = usual(tool).into();
        }
    }
    // What is denied is not even offered to the model.
    for tool in tools::translated(&tools::denied(settings), Tool::of_opencode) {
        all[tool.as_str()] = "deny".into();
    }
    all
}

fn server_of(server: &Value) -> Value {
    match server["url"].as_str() {
        Some(url) => {
            let headers = if server["headers"].is_object() { server["headers"].clone() } else { json!({}) };
            json!({"type": "remote", "url": url, "headers": headers})
        }
        None => {
            let mut command = vec![server["command"].clone()];
            command.extend(server["args"].as_array().into_iter().flatten().cloned());
            let env = if server["env"].is_object() { server["env"].clone() } else { json!({}) };
            json!({"type": "local", "command": command, "environment": env})
        }
    }
}
