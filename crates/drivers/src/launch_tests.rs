//! Tests of the settings' effect on each agent's command.

use super::tools::{ToolKind, is_tool_denied};
use super::*;
use serde_json::json;

fn settings(value: Value) -> AgentSettings {
    serde_json::from_value(value).unwrap()
}

fn command(agent: &str, settings: &AgentSettings) -> AgentCommand {
    create_driver(agent).unwrap().build_command(&LaunchContext::minimal(Path::new("/atoll-worker"), settings))
}

fn file(command: &AgentCommand, name: &str) -> String {
    command.files.iter().find(|file| file.path == Path::new(name)).map(|file| file.text.clone()).unwrap_or_default()
}

fn opencode(command: &AgentCommand) -> Value {
    let (_, text) = command.env.iter().find(|(name, _)| name == "OPENCODE_CONFIG_CONTENT").unwrap();
    serde_json::from_str(text).unwrap()
}

#[test]
fn denied_tools_use_each_agent_s_names() {
    let settings = settings(json!({"denied_tools": ["Bash", "WebSearch"], "approvals": "full"}));
    let claude = command("claude", &settings);
    let at = claude.argv.iter().position(|word| word == "--disallowedTools").unwrap();
    assert_eq!(claude.argv[at + 1], "Bash,WebSearch");
    let codex = file(&command("codex", &settings), ".codex/config.toml");
    assert!(codex.contains("shell_tool = false") && codex.contains("web_search = \"disabled\""), "{codex}");
    let permission = &opencode(&command("opencode", &settings))["permission"];
    assert_eq!((&permission["bash"], &permission["*"]), (&json!("deny"), &json!("allow")));
    let gemini: Value = serde_json::from_str(&file(&command("gemini", &settings), ".gemini/settings.json")).unwrap();
    assert_eq!(gemini["tools"]["exclude"], json!(["google_web_search", "run_shell_command"]));
    for agent in ["claude", "codex", "opencode", "gemini"] {
        assert_eq!(command(agent, &settings).unsupported_settings, [], "{agent} supports all of it");
    }
}

#[test]
fn an_allow_list_denies_other_tools() {
    let settings = settings(json!({"tools": ["Read", "Bash"], "approvals": "full"}));
    assert!(command("claude", &settings).argv.windows(2).any(|pair| pair == ["--tools", "Bash,Read"]));
    let permission = &opencode(&command("opencode", &settings))["permission"];
    assert_eq!(*permission, json!({"*": "deny", "read": "allow", "bash": "allow"}));
    let gemini: Value = serde_json::from_str(&file(&command("gemini", &settings), ".gemini/settings.json")).unwrap();
    assert_eq!(gemini["tools"]["core"], json!(["read_file", "read_many_files", "run_shell_command"]));
    let codex = command("codex", &settings);
    let config = file(&codex, ".codex/config.toml");
    assert!(config.contains("web_search = \"disabled\"") && !config.contains("shell_tool = false"), "{config}");
    assert_eq!(
        codex.unsupported_settings.len(),
        1,
        "the patch tool cannot be disabled: {:?}",
        codex.unsupported_settings
    );
}

#[test]
fn subagents_and_skills_can_be_disabled() {
    let settings = settings(json!({"enable_subagents": false, "enable_skills": false}));
    let claude = command("claude", &settings).argv.join(" ");
    assert!(claude.contains("--disallowedTools Agent,Skill,Task") && claude.contains("--disable-slash-commands"));
    let codex = file(&command("codex", &settings), ".codex/config.toml");
    for words in ["multi_agent = false", "include_instructions = false"] {
        assert!(codex.contains(words), "{codex}");
    }
    let permission = &opencode(&command("opencode", &settings))["permission"];
    assert_eq!((&permission["task"], &permission["skill"]), (&json!("deny"), &json!("deny")));
    let gemini = file(&command("gemini", &settings), ".gemini/settings.json");
    assert!(gemini.contains("invoke_agent") && gemini.contains("activate_skill"), "{gemini}");
}

#[test]
fn each_agent_gets_the_system_prompt() {
    let settings = settings(json!({"system_prompt": "be brief"}));
    assert_eq!(file(&command("gemini", &settings), ".gemini/GEMINI.md"), "be brief\n");
    let mut claude = create_driver("claude").unwrap();
    claude.build_command(&LaunchContext::minimal(Path::new("/w"), &settings));
    assert!(String::from_utf8(claude.handshake()).unwrap().contains("\"appendSystemPrompt\":\"be brief\""));
}

#[test]
fn reports_unsupported_settings() {
    let all = settings(json!({
        "model": "m", "tools": ["Read"], "denied_tools": ["Bash"], "enable_subagents": false, "enable_skills": false,
    }));
    let names = |agent: &str| -> Vec<String> {
        command(agent, &all).unsupported_settings.into_iter().map(|ignored| ignored.setting).collect()
    };
    assert_eq!(names("acp"), ["model", "tools", "denied_tools", "enable_subagents", "enable_skills"]);
    assert_eq!(names("demo"), ["tools", "denied_tools", "enable_subagents", "enable_skills"]);
    let odd = settings(json!({"denied_tools": ["Frobnicate", "Edit"]}));
    let codex = command("codex", &odd).unsupported_settings;
    assert_eq!(codex.len(), 2, "{codex:?}");
    for agent in AGENT_NAMES {
        assert_eq!(
            command(agent, &AgentSettings::default()).unsupported_settings,
            [],
            "{agent}: no settings, nothing unsupported"
        );
    }
}

#[test]
fn any_name_of_a_denied_tool_is_denied() {
    let denied = settings(json!({"denied_tools": ["Edit", "mcp__web__fetch"], "enable_subagents": false}));
    for tool in ["edit", "replace", "apply_patch", "fileChange", "MCP__web__fetch", "Agent"] {
        assert!(is_tool_denied(&denied, tool), "{tool}");
    }
    for tool in ["Bash", "Write", "Read", "unknown"] {
        assert!(!is_tool_denied(&denied, tool), "{tool}");
    }
    let allowed = settings(json!({"tools": ["Read"]}));
    assert!(
        is_tool_denied(&allowed, "Bash")
            && !is_tool_denied(&allowed, "read_file")
            && !is_tool_denied(&allowed, "housekeeping")
    );
    assert_eq!(ToolKind::from_name("BASH"), Some(ToolKind::Bash));
}

#[test]
fn login_files_and_config_files_do_not_overlap() {
    let settings = settings(json!({"system_prompt": "be brief", "model": "m"}));
    for agent in AGENT_NAMES {
        for file in command(agent, &settings).files {
            let path = file.path.to_str().unwrap();
            assert!(atoll_core::login::check_login_path("path", path).is_err(), "{agent}: {path}");
        }
        if let Some(path) = create_driver(agent).unwrap().login_path() {
            assert!(atoll_core::login::check_login_path("path", path).is_ok(), "{agent}: {path}");
        }
    }
}
