//! The server's events, inside the bridge's lines.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

#[derive(Debug, Deserialize)]
pub(super) struct ServerEvent {
    #[serde(rename = "type")]
    pub event_type: String,
    #[serde(default)]
    pub properties: Value,
}

pub(super) fn parse_event(data: &RawValue) -> Result<ServerEvent, String> {
    serde_json::from_str(data.get()).map_err(|error| error.to_string())
}

/// Server events without effect: they repeat other events or are irrelevant. Exact names, so that new ones of a later
/// version become `Unparsed`.
pub(super) fn is_ignored_event(kind: &str) -> bool {
    const KNOWN: &[&str] = &[
        "catalog.updated",
        "command.executed",
        "file.edited",
        "file.watcher.updated",
        "global.disposed",
        "installation.update-available",
        "installation.updated",
        "integration.connection.updated",
        "integration.updated",
        "lsp.client.diagnostics",
        "lsp.updated",
        "mcp.browser.open.failed",
        "mcp.tools.changed",
        "message.part.delta",
        "message.part.removed",
        "message.removed",
        "message.updated",
        "models-dev.refreshed",
        "plugin.added",
        "project.directories.updated",
        "project.updated",
        "pty.created",
        "pty.deleted",
        "pty.exited",
        "pty.updated",
        "reference.updated",
        "server.connected",
        "server.heartbeat",
        "server.instance.disposed",
        "session.compacted",
        "session.created",
        "session.deleted",
        "session.diff",
        "session.error",
        "session.idle",
        "session.status",
        "session.updated",
        "todo.updated",
        "tui.command.execute",
        "tui.prompt.append",
        "tui.session.select",
        "tui.toast.show",
        "vcs.branch.updated",
        "workspace.failed",
        "workspace.ready",
        "workspace.status",
        "worktree.failed",
        "worktree.ready",
    ];
    // OpenCode sends some events in the format of its next protocol, too.
    const AGAIN: &[&str] = &["session.next.", "permission.v2.", "question.v2."];
    KNOWN.contains(&kind) || AGAIN.iter().any(|beginning| kind.starts_with(beginning))
}
