//! Builds Codex' command, its `config.toml` and the parameters of a thread.

use crate::settings::AgentSettings;
use crate::tools::{self, ToolKind};
use crate::{AgentCommand, ConfigFile, LaunchContext, UnsupportedSetting};
use atoll_core::sandbox::ApprovalMode;
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// Variable that contains the gateway's key.
const KEY_VARIABLE: &str = "ATOLL_MODEL_KEY";

/// Turns off updates, telemetry and plugins: network access is for the task only.
const OFFLINE_CONFIG: &str = "\
check_for_update_on_startup = false

[analytics]
enabled = false

[features]
plugins = false
";

/// Features that the settings disable.
struct DisabledFeatures {
    shell: bool,
    web_search: bool,
    images: bool,
    subagents: bool,
    skills: bool,
    /// Codex keeps its patch tool, but asks before each use, and Atoll denies it.
    edits: bool,
    ignored: Vec<UnsupportedSetting>,
}

impl DisabledFeatures {
    fn from_settings(settings: &AgentSettings) -> Self {
        let is_denied = |name: &str| tools::is_tool_denied(settings, name);
        let mut ignored = Vec::new();
        // Codex has no other common tools than those below.
        for name in settings.denied_tools.iter().filter(|name| ToolKind::from_name(name).is_none()) {
            ignored.push(crate::unsupported("denied_tools", format!("Codex cannot disable the tool {name}")));
        }
        let edits = is_denied("apply_patch");
        if edits {
            let by_name =
                settings.denied_tools.iter().filter_map(|name| ToolKind::from_name(name)).any(ToolKind::changes_files);
            let setting = if by_name { "denied_tools" } else { "tools" };
            let reason = "Codex keeps its patch tool, but Atoll denies each call";
            ignored.push(crate::unsupported(setting, reason));
        }
        Self {
            shell: is_denied("exec_command"),
            web_search: is_denied("web_search"),
            images: is_denied("view_image"),
            subagents: is_denied("Task"),
            skills: is_denied("Skill"),
            edits,
            ignored,
        }
    }
}

pub(super) fn build_command(launch: &LaunchContext<'_>) -> AgentCommand {
    let program = launch.agent_program.map_or_else(|| "codex".to_owned(), |path| path.to_string_lossy().into_owned());
    let argv = vec![program, "app-server".to_owned()];
    let home = launch.home.join(".codex").to_string_lossy().into_owned();
    let mut env = vec![("CODEX_HOME".to_owned(), home)];
    let without = DisabledFeatures::from_settings(launch.settings);
    let mut text = String::new();
    if without.web_search {
        text.push_str("web_search = \"disabled\"\n");
    }
    if let Some(gateway) = launch.gateway {
        text.push_str("model_provider = \"atoll\"\n");
        env.push((KEY_VARIABLE.to_owned(), gateway.key.clone()));
    }
    text.push_str(OFFLINE_CONFIG);
    // These belong to `[features]`, the last table so far.
    for (is_disabled, feature) in [
        (without.shell, "shell_tool"),
        (without.images, "view_image"),
        (without.subagents, "multi_agent"),
        (without.skills, "skill_search"),
    ] {
        if is_disabled {
            text.push_str(&format!("{feature} = false\n"));
        }
    }
    if without.skills {
        text.push_str("\n[skills]\ninclude_instructions = false\nbundled = {enabled = false}\n");
    }
    if let Some(gateway) = launch.gateway {
        let url = quote_toml(&format!("{}/openai/v1", gateway.base_url));
        text.push_str(&format!(
            "\n[model_providers.atoll]\nname = \"Atoll\"\nbase_url = {url}\nenv_key = \"{KEY_VARIABLE}\"\nwire_api = \"responses\"\n"
        ));
    }
    let path = PathBuf::from(".codex/config.toml");
    AgentCommand { argv, env, files: vec![ConfigFile { path, text }], unsupported_settings: without.ignored }
}

/// Quotes a TOML string. JSON strings are valid TOML, except for U+007F.
fn quote_toml(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Parameters of `thread/start` and `thread/resume`.
pub(super) fn thread_params(launch: &LaunchContext<'_>) -> Value {
    let settings = launch.settings;
    let mut params = json!({
        "cwd": launch.workspace,
        "approvalPolicy": approval_policy(settings),
        // Atoll's sandbox is the boundary.
        "sandbox": "danger-full-access",
    });
    if let Some(model) = &settings.model {
        params["model"] = model.as_str().into();
    }
    if let Some(words) = &settings.system_prompt {
        params["developerInstructions"] = words.as_str().into();
    }
    if let Some(servers) = &settings.mcp {
        let servers: Map<String, Value> =
            servers.iter().map(|(name, server)| (name.clone(), convert_mcp_server(server))).collect();
        params["config"] = json!({"mcp_servers": servers});
    }
    params
}

/// Maps approvals to the calls that Codex asks about; Atoll answers them.
fn approval_policy(settings: &AgentSettings) -> &'static str {
    // Atoll can deny only calls that Codex asks about.
    let asks = settings.has_rules() || DisabledFeatures::from_settings(settings).edits;
    match settings.approvals {
        Some(ApprovalMode::Full) if !asks => "never",
        Some(ApprovalMode::Full | ApprovalMode::Edits | ApprovalMode::Ask) | None => "untrusted",
    }
}

/// Codex rejects unknown fields, so only the common ones are copied.
fn convert_mcp_server(server: &Value) -> Value {
    const SAME: &[&str] = &["command", "args", "env", "cwd", "url"];
    let mut one: Map<String, Value> =
        SAME.iter().filter_map(|name| Some(((*name).to_owned(), server.get(name)?.clone()))).collect();
    if let Some(headers) = server.get("headers") {
        one.insert("http_headers".to_owned(), headers.clone());
    }
    Value::Object(one)
}
