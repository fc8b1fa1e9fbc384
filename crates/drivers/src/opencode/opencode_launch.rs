//! Builds OpenCode's command: the bridge, with the whole configuration in one variable.

use crate::settings::AgentSettings;
use crate::tools::{self, ToolKind};
use crate::{AgentCommand, LaunchContext};
use atoll_core::model::ModelApi;
use atoll_core::sandbox::{ApprovalMode, Mode};
use atoll_protocol::Gateway;
use serde_json::{Map, Value, json};

/// Variables that turn off downloads, sharing and updates: network access is for the task only.
const OFFLINE_VARIABLES: &[&str] = &[
    "OPENCODE_DISABLE_AUTOUPDATE",
    "OPENCODE_DISABLE_MODELS_FETCH",
    "OPENCODE_DISABLE_LSP_DOWNLOAD",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS",
    "OPENCODE_DISABLE_SHARE",
    "OPENCODE_DISABLE_EXTERNAL_SKILLS",
    "OPENCODE_DISABLE_CLAUDE_CODE",
];

pub(super) fn offline_env() -> Vec<(String, String)> {
    OFFLINE_VARIABLES.iter().map(|name| ((*name).to_owned(), "1".to_owned())).collect()
}

/// Limits to assume, since the gateway does not report a model's limits.
const ASSUMED_CONTEXT_TOKENS: u32 = 128_000;
const ASSUMED_OUTPUT_TOKENS: u32 = 16_000;

/// OpenCode's own default among Gemini's models is one for images.
const DEFAULT_GEMINI_MODEL: &str = "google/gemini-3.1-pro-preview";

pub(super) fn build_command(launch: &LaunchContext<'_>) -> AgentCommand {
    let program =
        launch.agent_program.map_or_else(|| "opencode".to_owned(), |path| path.to_string_lossy().into_owned());
    let mut argv = vec![launch.worker_program.to_string_lossy().into_owned(), "opencode".to_owned(), program];
    argv.extend(launch.native_id.map(str::to_owned));
    let mut env = offline_env();
    env.push(("OPENCODE_CONFIG_CONTENT".to_owned(), build_config(launch).to_string()));
    AgentCommand { argv, env, ..AgentCommand::default() }
}

/// Exploration uses OpenCode's read-only agent.
pub(super) const fn agent_for_mode(mode: Option<Mode>) -> Option<&'static str> {
    match mode {
        Some(Mode::Exploration) => Some("plan"),
        Some(Mode::Implementation | Mode::Validation) | None => None,
    }
}

fn build_config(launch: &LaunchContext<'_>) -> Value {
    let mut all = json!({
        "autoupdate": false, "share": "disabled", "snapshot": false, "lsp": false, "formatter": false,
        "permission": build_permissions(launch.settings),
    });
    if let Some(servers) = &launch.settings.mcp {
        let servers: Map<String, Value> =
            servers.iter().map(|(name, server)| (name.clone(), convert_mcp_server(server))).collect();
        all["mcp"] = Value::Object(servers);
    }
    let model = launch.settings.model.as_deref();
    let Some(gateway) = launch.gateway else {
        if let Some(model) = model {
            all["model"] = model.into();
        }
        return all;
    };
    let api = model.map_or_else(|| default_api(gateway), api_of_model);
    let options = json!({"baseURL": format!("{}{}", gateway.base_url, base_path(api)), "apiKey": gateway.key});
    match model {
        Some(model) => {
            let package = match api {
                ModelApi::Anthropic => "@ai-sdk/anthropic",
                ModelApi::OpenAi => "@ai-sdk/openai-compatible",
                ModelApi::Gemini => "@ai-sdk/google",
            };
            let known = json!({"limit": {"context": ASSUMED_CONTEXT_TOKENS, "output": ASSUMED_OUTPUT_TOKENS}});
            all["model"] = format!("atoll/{model}").into();
            all["small_model"] = all["model"].clone();
            all["enabled_providers"] = json!(["atoll"]);
            all["provider"] = json!({"atoll": {"npm": package, "options": options, "models": {model: known}}});
        }
        // OpenCode chooses one of its known models.
        None => {
            let provider = match api {
                ModelApi::Anthropic => "anthropic",
                ModelApi::OpenAi => "openai",
                ModelApi::Gemini => "google",
            };
            all["enabled_providers"] = json!([provider]);
            all["provider"] = json!({provider: {"options": options}});
            if api == ModelApi::Gemini {
                all["model"] = DEFAULT_GEMINI_MODEL.into();
            }
        }
    }
    all
}

/// The model's name tells which of the gateway's APIs serves it.
fn api_of_model(model: &str) -> ModelApi {
    match model {
        _ if model.starts_with("claude") => ModelApi::Anthropic,
        _ if model.starts_with("gemini") => ModelApi::Gemini,
        _ => ModelApi::OpenAi,
    }
}

/// The API whose key is available. OpenAI's comes first.
fn default_api(gateway: &Gateway) -> ModelApi {
    let order = [ModelApi::OpenAi, ModelApi::Anthropic, ModelApi::Gemini];
    order.into_iter().find(|api| gateway.apis.contains(api)).unwrap_or(ModelApi::OpenAi)
}

/// The base path of OpenCode's requests to an API of the gateway.
const fn base_path(api: ModelApi) -> &'static str {
    match api {
        ModelApi::Anthropic => "/anthropic/v1",
        ModelApi::OpenAi => "/openai/v1",
        ModelApi::Gemini => "/gemini/v1beta",
    }
}

/// Maps approvals to the calls that OpenCode asks about; Atoll answers them.
fn build_permissions(settings: &AgentSettings) -> Value {
    const HARMLESS: &[&str] =
        &["read", "glob", "grep", "list", "todowrite", "todoread", "task", "skill", "question", "lsp"];
    let (usual, harmless) = match settings.approvals {
        // Rules may concern any tool, including those that read.
        _ if !settings.policy.is_empty() => ("ask", &["question"][..]),
        Some(ApprovalMode::Full) if settings.protected.is_empty() => ("allow", &[][..]),
        Some(ApprovalMode::Full | ApprovalMode::Edits | ApprovalMode::Ask) | None => ("ask", HARMLESS),
    };
    let mut all = json!({"*": usual});
    for tool in harmless {
        all[tool] = "allow".into();
    }
    if let Some(tools) = &settings.tools {
        let usual = |tool: &str| if harmless.contains(&tool) { "allow" } else { usual };
        let named = tools::translate_names(tools, opencode_tools);
        all = json!({"*": "deny"});
        for tool in &named {
            all[tool.as_str()] = usual(tool).into();
        }
    }
    // OpenCode does not offer denied tools to the model.
    for tool in tools::translate_names(&tools::list_denied_tools(settings), opencode_tools) {
        all[tool.as_str()] = "deny".into();
    }
    all
}

fn convert_mcp_server(server: &Value) -> Value {
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

/// OpenCode has one permission for all tools that change files.
const fn opencode_tools(kind: ToolKind) -> &'static [&'static str] {
    match kind {
        ToolKind::Read => &["read"],
        ToolKind::Write | ToolKind::Edit | ToolKind::Patch => &["edit"],
        ToolKind::Bash => &["bash"],
        ToolKind::Glob => &["glob"],
        ToolKind::Grep => &["grep"],
        ToolKind::List => &["list"],
        ToolKind::Task => &["task"],
        ToolKind::Skill => &["skill"],
        ToolKind::WebFetch => &["webfetch"],
        ToolKind::WebSearch => &["websearch"],
        ToolKind::Todo => &["todowrite", "todoread"],
        ToolKind::Notebook | ToolKind::Image => &[],
    }
}
