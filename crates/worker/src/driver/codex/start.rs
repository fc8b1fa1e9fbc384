//! How Codex is started, and what it is told to begin with.

use super::super::tools::{self, Tool};
use super::super::{Command, Ignored, Launch, Placed};
use crate::heartbeat::Settings;
use atoll_core::sandbox::Approvals;
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

/// What it can be told to do without.
struct Without {
    shell: bool,
    web_search: bool,
    images: bool,
    subagents: bool,
    skills: bool,
    /// Not taken from it, but each is asked about, and refused.
    edits: bool,
    ignored: Vec<Ignored>,
}

impl Without {
    fn of(settings: &Settings) -> Self {
        let lacks = |name: &str| tools::is_denied(settings, name);
        let mut ignored = Vec::new();
        // Of those that are known it has no others than what follows.
        for name in settings.denied_tools.iter().filter(|name| Tool::named(name).is_none()) {
            ignored.push(Ignored::new("denied_tools", format!("Codex has no way to do without the tool {name}")));
        }
        let edits = lacks("apply_patch");
        if edits {
            let by_name = settings.denied_tools.iter().filter_map(|name| Tool::named(name)).any(Tool::changes_files);
            let setting = if by_name { "denied_tools" } else { "tools" };
            let reason = "Codex is still offered its tool for patches, but each use of it is refused";
            ignored.push(Ignored::new(setting, reason));
        }
        Self {
            shell: lacks("exec_command"),
            web_search: lacks("web_search"),
            images: lacks("view_image"),
            subagents: lacks("Task"),
            skills: lacks("Skill"),
            edits,
            ignored,
        }
    }
}

pub(super) fn command(launch: &Launch<'_>) -> Command {
    let program = launch.program.map_or_else(|| "codex".to_owned(), |path| path.to_string_lossy().into_owned());
    let argv = vec![program, "app-server".to_owned()];
    let home = launch.home.join(".codex").to_string_lossy().into_owned();
    let mut env = vec![("CODEX_HOME".to_owned(), home)];
    let without = Without::of(launch.settings);
    let mut text = String::new();
    if without.web_search {
        text.push_str("web_search = \"disabled\"\n");
    }
    if let Some(gateway) = launch.gateway {
        text.push_str("model_provider = \"atoll\"\n");
        env.push((KEY.to_owned(), gateway.key.clone()));
    }
    text.push_str(QUIET);
    // They belong to the features, which stand last there.
    for (lacks, feature) in [
        (without.shell, "shell_tool"),
        (without.images, "view_image"),
        (without.subagents, "multi_agent"),
        (without.skills, "skill_search"),
    ] {
        if lacks {
            text.push_str(&format!("{feature} = false\n"));
        }
    }
    if without.skills {
        text.push_str("\n[skills]\ninclude_instructions = false\nbundled = {enabled = false}\n");
    }
    if let Some(gateway) = launch.gateway {
        let url = quoted(&format!("{}/openai/v1", gateway.base_url));
        text.push_str(&format!(
            "\n[model_providers.atoll]\nname = \"Atoll\"\nbase_url = {url}\nenv_key = \"{KEY}\"\nwire_api = \"responses\"\n"
        ));
    }
    let path = PathBuf::from(".codex/config.toml");
    Command { argv, env, files: vec![Placed { path, text }], ignored: without.ignored }
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
        "approvalPolicy": policy(settings),
        // The boundary is the sandbox that it runs in.
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
            servers.iter().map(|(name, server)| (name.clone(), server_of(server))).collect();
        params["config"] = json!({"mcp_servers": servers});
    }
    params
}

/// What it asks about; what becomes of the question is not its to say.
fn policy(settings: &Settings) -> &'static str {
    // What it is not to do can only be refused where it asks.
    let asks = settings.has_rules() || Without::of(settings).edits;
    match settings.approvals {
        Some(Approvals::Full) if !asks => "never",
        Some(Approvals::Full | Approvals::Edits | Approvals::Ask) | None => "untrusted",
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
