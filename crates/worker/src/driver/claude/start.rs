//! How Claude Code is started.

use super::super::tools::{self, Tool};
use super::super::{Command, Launch};
use atoll_core::sandbox::{Approvals, Mode};
use serde_json::json;

/// It reports nothing to its makers and looks for no newer version of itself: the way out is for the work.
const QUIET: &[&str] = &[
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
    "DISABLE_TELEMETRY",
    "DISABLE_ERROR_REPORTING",
    "DISABLE_AUTOUPDATER",
    "DISABLE_UPDATES",
];

pub(super) fn command(launch: &Launch<'_>) -> Command {
    let program = launch.program.map_or_else(|| "claude".to_owned(), |path| path.to_string_lossy().into_owned());
    let mut argv = vec![program];
    let mut say = |words: &[&str]| argv.extend(words.iter().map(|word| (*word).to_owned()));
    say(&["-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]);
    say(&["--include-partial-messages", "--replay-user-messages", "--permission-prompt-tool", "stdio"]);
    // Of the repository's own settings those hold; nothing of a user's is here.
    say(&["--setting-sources", "project", "--strict-mcp-config"]);
    let settings = launch.settings;
    say(&["--permission-mode", permissions(settings.mode, settings.approvals)]);
    if let Some(model) = &settings.model {
        say(&["--model", model]);
    }
    if let Some(tools) = &settings.tools {
        say(&["--tools", &tools::translated(tools, Tool::of_claude).join(",")]);
    }
    let denied = tools::translated(&tools::denied(settings), Tool::of_claude);
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
    let mut env: Vec<(String, String)> = QUIET.iter().map(|name| ((*name).to_owned(), "1".to_owned())).collect();
    if let Some(gateway) = launch.gateway {
        env.push(("ANTHROPIC_BASE_URL".to_owned(), format!("{}/anthropic", gateway.base_url)));
        env.push(("ANTHROPIC_API_KEY".to_owned(), gateway.key.clone()));
    }
    Command { argv, env, ..Command::default() }
}

/// What it asks about by itself; what becomes of the question is not its to say.
const fn permissions(mode: Option<Mode>, approvals: Option<Approvals>) -> &'static str {
    match (mode, approvals) {
        (Some(Mode::Exploration), _) => "plan",
        (_, Some(Approvals::Full)) => "bypassPermissions",
        (_, Some(Approvals::Edits) | None) => "acceptEdits",
        (_, Some(Approvals::Ask)) => "default",
    }
}
