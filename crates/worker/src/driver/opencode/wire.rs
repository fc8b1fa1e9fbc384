//! The lines of the bridge, as far as something follows from them.

use crate::driver::object;
use serde::Deserialize;
use serde_json::Value;

#[derive(Debug)]
pub(super) enum Line {
    Ready { session: String },
    Event { kind: String, properties: Value },
    Refused { what: String, id: String, error: String },
    Failed { error: String },
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Wire {
    Ready { session: String },
    Event { data: Event },
    Refused { what: String, id: String, error: String },
    Failed { error: String },
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    properties: Value,
}

pub(super) fn read(line: &[u8]) -> Result<Line, String> {
    Ok(match object(line)? {
        Wire::Ready { session } => Line::Ready { session },
        Wire::Event { data: Event { kind, properties } } => Line::Event { kind, properties },
        Wire::Refused { what, id, error } => Line::Refused { what, id, error },
        Wire::Failed { error } => Line::Failed { error },
    })
}

/// What it tells about itself and nothing follows from: it comes again in another form, or is no news here. By whole
/// names: what a later version has beside them may be news.
pub(super) fn is_known(kind: &str) -> bool {
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
    // The same in the words of its next protocol, beside those of this one.
    const AGAIN: &[&str] = &["session.next.", "permission.v2.", "question.v2."];
    KNOWN.contains(&kind) || AGAIN.iter().any(|beginning| kind.starts_with(beginning))
}
