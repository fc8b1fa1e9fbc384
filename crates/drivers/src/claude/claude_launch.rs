//! Builds the command for Claude Code.

use crate::tools::{self, ToolKind};
use crate::{AgentCommand, LaunchContext};
use atoll_core::sandbox::{ApprovalMode, Mode};
use serde_json::json;

/// Variables that turn off telemetry and updates: network access is for the task only.
const OFFLINE_VARIABLES: &[&str] = &[
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
    "DISABLE_TELEMETRY",
    "DISABLE_ERROR_REPORTING",
    "DISABLE_AUTOUPDATER",
    "DISABLE_UPDATES",
];

/// Makes the agent report when nothing runs any more, background agents included.
const STATE_EVENTS_VARIABLE: &str = "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS";

pub(super) fn build_command(launch: &LaunchContext<'_>) -> AgentCommand {
    let program = launch.agent_program.map_or_else(|| "claude".to_owned(), |path| path.to_string_lossy().into_owned());
    let mut argv = vec![program];
    let mut say = |words: &[&str]| argv.extend(words.iter().map(|word| (*word).to_owned()));
    say(&["-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]);
    say(&["--include-partial-messages", "--replay-user-messages", "--permission-prompt-tool", "stdio"]);
    // Uses the repository's settings; there are no user settings in a sandbox.
    say(&["--setting-sources", "project", "--strict-mcp-config"]);
    let settings = launch.settings;
    say(&["--permission-mode", permission_mode(settings.mode, settings.approvals)]);
    if let Some(model) = &settings.model {
        say(&["--model", model]);
    }
    if let Some(tools) = &settings.tools {
        say(&["--tools", &tools::translate_names(tools, claude_tools).join(",")]);
    }
    let denied = tools::translate_names(&tools::list_denied_tools(settings), claude_tools);
    if !denied.is_empty() {
        say(&["--disallowedTools", &denied.join(",")]);
    }
    if settings.enable_skills == Some(false) {
        say(&["--disable-slash-commands"]);
    }
    if let Some(servers) = &settings.mcp {
        say(&["--mcp-config", &json!({"mcpServers": servers}).to_string()]);
    }
    if let Some(id) = launch.native_id {
        say(&["--resume", id]);
    }
    let variables = OFFLINE_VARIABLES.iter().chain([&STATE_EVENTS_VARIABLE]);
    let mut env: Vec<(String, String)> = variables.map(|name| ((*name).to_owned(), "1".to_owned())).collect();
    if let Some(gateway) = launch.gateway {
        env.push(("ANTHROPIC_BASE_URL".to_owned(), format!("{}/anthropic", gateway.base_url)));
        env.push(("ANTHROPIC_API_KEY".to_owned(), gateway.key.clone()));
    }
    AgentCommand { argv, env, ..AgentCommand::default() }
}

/// Maps approvals to the calls that the agent asks about; Atoll answers them.
const fn permission_mode(mode: Option<Mode>, approvals: Option<ApprovalMode>) -> &'static str {
    match (mode, approvals) {
        (Some(Mode::Exploration), _) => "plan",
        (_, Some(ApprovalMode::Full)) => "bypassPermissions",
        (_, Some(ApprovalMode::Edits) | None) => "acceptEdits",
        (_, Some(ApprovalMode::Ask)) => "default",
    }
}

/// Claude Code's names of a tool.
const fn claude_tools(kind: ToolKind) -> &'static [&'static str] {
    match kind {
        ToolKind::Read => &["Read"],
        ToolKind::Write => &["Write"],
        ToolKind::Edit => &["Edit"],
        ToolKind::Notebook => &["NotebookEdit"],
        ToolKind::Patch => &["Write", "Edit", "NotebookEdit"],
        ToolKind::Bash => &["Bash"],
        ToolKind::Glob => &["Glob"],
        ToolKind::Grep => &["Grep"],
        ToolKind::List => &["LS"],
        ToolKind::Task => &["Task", "Agent"],
        ToolKind::Skill => &["Skill"],
        ToolKind::WebFetch => &["WebFetch"],
        ToolKind::WebSearch => &["WebSearch"],
        ToolKind::Todo => &["TodoWrite"],
        ToolKind::Image => &[],
    }
}
