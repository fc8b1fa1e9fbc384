//! What each agent makes of the settings of a task.

use super::tools::{Tool, is_denied};
use super::*;
use serde_json::json;

fn settings(value: Value) -> Settings {
    serde_json::from_value(value).unwrap()
}

fn command(agent: &str, settings: &Settings) -> Command {
    find(agent).unwrap().command(&Launch::plain(Path::new("/atoll-worker"), settings))
}

fn file(command: &Command, name: &str) -> String {
    command.files.iter().find(|file| file.path == Path::new(name)).map(|file| file.text.clone()).unwrap_or_default()
}

fn opencode(command: &Command) -> Value {
    let (_, text) = command.env.iter().find(|(name, _)| name == "OPENCODE_CONFIG_CONTENT").unwrap();
    serde_json::from_str(text).unwrap()
}

#[test]
fn denied_tools_are_said_in_each_agent_s_own_words() {
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
        assert_eq!(command(agent, &settings).ignored, [], "{agent} follows all of it");
    }
}

#[test]
fn an_allowed_list_leaves_nothing_else() {
    let settings = settings(json!({"tools": ["Read", "Bash"], "approvals": "full"}));
    assert!(command("claude", &settings).argv.windows(2).any(|pair| pair == ["--tools", "Bash,Read"]));
    let permission = &opencode(&command("opencode", &settings))["permission"];
    assert_eq!(*permission, json!({"*": "deny", "read": "allow", "bash": "allow"}));
    let gemini: Value = serde_json::from_str(&file(&command("gemini", &settings), ".gemini/settings.json")).unwrap();
    assert_eq!(gemini["tools"]["core"], json!(["read_file", "read_many_files", "run_shell_command"]));
    let codex = command("codex", &settings);
    let config = file(&codex, ".codex/config.toml");
    assert!(config.contains("web_search = \"disabled\"") && !config.contains("shell_tool = false"), "{config}");
    assert_eq!(codex.ignored.len(), 1, "its patches can't be taken from it: {:?}", codex.ignored);
}

#[test]
fn subagents_and_skills_can_be_switched_off() {
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
fn the_system_prompt_has_its_place() {
    let settings = settings(json!({"system_prompt": "be brief"}));
    assert_eq!(file(&command("gemini", &settings), ".gemini/GEMINI.md"), "be brief\n");
    let mut claude = find("claude").unwrap();
    claude.command(&Launch::plain(Path::new("/w"), &settings));
    assert!(String::from_utf8(claude.greeting()).unwrap().contains("\"appendSystemPrompt\":\"be brief\""));
}

#[test]
fn what_an_agent_can_t_follow_is_said() {
    let all = settings(json!({
        "model": "m", "tools": ["Read"], "denied_tools": ["Bash"], "enable_subagents": false, "enable_skills": false,
    }));
    let names = |agent: &str| -> Vec<String> {
        command(agent, &all).ignored.into_iter().map(|ignored| ignored.setting).collect()
    };
    assert_eq!(names("acp"), ["model", "tools", "denied_tools", "enable_subagents", "enable_skills"]);
    assert_eq!(names("demo"), ["tools", "denied_tools", "enable_subagents", "enable_skills"]);
    let odd = settings(json!({"denied_tools": ["Frobnicate", "Edit"]}));
    let codex = command("codex", &odd).ignored;
    assert_eq!(codex.len(), 2, "{codex:?}");
    for agent in NAMES {
        assert_eq!(command(agent, &Settings::default()).ignored, [], "{agent}: nothing set, nothing ignored");
    }
}

#[test]
fn a_denied_tool_is_known_by_any_of_its_names() {
    let denied = settings(json!({"denied_tools": ["Edit", "mcp__web__fetch"], "enable_subagents": false}));
    for tool in ["edit", "replace", "apply_patch", "fileChange", "MCP__web__fetch", "Agent"] {
        assert!(is_denied(&denied, tool), "{tool}");
    }
    for tool in ["Bash", "Write", "Read", "unknown"] {
        assert!(!is_denied(&denied, tool), "{tool}");
    }
    let allowed = settings(json!({"tools": ["Read"]}));
    assert!(is_denied(&allowed, "Bash") && !is_denied(&allowed, "read_file") && !is_denied(&allowed, "housekeeping"));
    assert_eq!(Tool::named("BASH"), Some(Tool::Bash));
}

#[test]
fn a_login_file_is_none_of_those_that_are_written_anyway() {
    let settings = settings(json!({"system_prompt": "be brief", "model": "m"}));
    for agent in NAMES {
        for file in command(agent, &settings).files {
            let path = file.path.to_str().unwrap();
            assert!(atoll_core::login::path("path", path).is_err(), "{agent}: {path}");
        }
        if let Some(path) = find(agent).unwrap().login() {
            assert!(atoll_core::login::path("path", path).is_ok(), "{agent}: {path}");
        }
    }
}
