//! How Codex is started, and what it is told to begin with.

use super::super::{Command, Launch, Placed};
use atoll_core::sandbox::{Approvals, Mode};
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// Where it finds the gateway's key.
const KEY: &str = "ATOLL_MODEL_KEY";

/// It looks for no newer version of itself, reports nothing, and fetches no plugins: the way out is for the work.
const QUIET: &str = "\
check_for_update_on_startup = false

[analytics]
enabled = false

[features]
plugins = false
";

pub(super) fn command(launch: &Launch<'_>) -> Command {
    let program = launch.program.map_or_else(|| "codex".to_owned(), |path| path.to_string_lossy().into_owned());
    let argv = vec![program, "app-server".to_owned()];
    let home = launch.home.join(".codex").to_string_lossy().into_owned();
    let mut env = vec![("CODEX_HOME".to_owned(), home)];
    let mut text = String::new();
    if let Some(gateway) = launch.gateway {
        text.push_str("model_provider = \"atoll\"\n");
        env.push((KEY.to_owned(), gateway.key.clone()));
    }
    text.push_str(QUIET);
    if let Some(gateway) = launch.gateway {
        let url = quoted(&format!("{}/openai/v1", gateway.base_url));
        text.push_str(&format!(
            "\n[model_providers.atoll]\nname = \"Atoll\"\nbase_url = {url}\nenv_key = \"{KEY}\"\nwire_api = \"responses\"\n"
        ));
    }
    let path = PathBuf::from(".codex/config.toml");
    Command { argv, env, files: vec![Placed { path, text }] }
}

/// A string of TOML: those of JSON are, but for one character that it must not hold.
fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// What a conversation is begun with, or gone on with.
pub(super) fn thread(launch: &Launch<'_>) -> Value {
    let settings = launch.settings;
    let mut params = json!({
        "cwd": launch.workspace,
        "approvalPolicy": policy(settings.approvals, settings.has_rules()),
        // The boundary is the sandbox that it runs in.
        "sandbox": "danger-full-access",
    });
    if let Some(model) = &settings.model {
        params["model"] = model.as_str().into();
    }
    if let Some(words) = instructions(settings.mode, settings.system_prompt.as_deref()) {
        params["developerInstructions"] = words.into();
    }
    if let Some(servers) = &settings.mcp {
        let servers: Map<String, Value> =
            servers.iter().map(|(name, server)| (name.clone(), server_of(server))).collect();
        params["config"] = json!({"mcp_servers": servers});
    }
    params
}

/// What it asks about; what becomes of the question is not its to say.
const fn policy(approvals: Option<Approvals>, has_rules: bool) -> &'static str {
    match approvals {
        Some(Approvals::Full) if !has_rules => "never",
        Some(Approvals::Full | Approvals::Edits | Approvals::Ask) | None => "untrusted",
    }
}

fn instructions(mode: Option<Mode>, prompt: Option<&str>) -> Option<String> {
    let explore = "Look around and say what you find and what you would do. Change no files.";
    match (mode, prompt) {
        (Some(Mode::Exploration), Some(prompt)) => Some(format!("{prompt}\n\n{explore}")),
        (Some(Mode::Exploration), None) => Some(explore.to_owned()),
        (Some(Mode::Implementation | Mode::Validation) | None, prompt) => prompt.map(str::to_owned),
    }
}

/// It refuses what it does not know, so only that is passed on which both forms have.
fn server_of(server: &Value) -> Value {
    const SAME: &[&str] = &["command", "args", "env", "cwd", "url"];
    let mut one: Map<String, Value> =
        SAME.iter().filter_map(|name| Some(((*name).to_owned(), server.get(name)?.clone()))).collect();
    if let Some(headers) = server.get("headers") {
        one.insert("http_headers".to_owned(), headers.clone());
    }
    Value::Object(one)
}
