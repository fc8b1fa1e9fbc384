//! `/sandboxes/{id}/exec` once more: the commands that run, and what can be done to one.

use super::exec::{TerminalSize, named, of_command, place};
use crate::auth::Caller;
use crate::extract::{Body, Id, Ids, Params, drain};
use crate::once::Answer;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_core::principal::Action;
use atoll_core::provider::{ExecInfo, ExecRef, Exit};
use atoll_core::sandbox::ProviderKind;
use atoll_core::time::Timestamp;
use axum::extract::{Request, State};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;

const SIGNALS: [(&str, i32); 9] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("KILL", 9),
    ("USR1", 10),
    ("USR2", 12),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
];
const KILL: i32 = 9;

/// A command in a sandbox.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ExecView {
    id: String,
    argv: Vec<String>,
    started_at: Timestamp,
    /// The size of its terminal, if it has one.
    terminal: Option<TerminalSize>,
    /// How many bytes it has printed.
    cursor: u64,
    /// How many follow it at the moment.
    readers: usize,
    /// How it ended; nothing while it runs.
    #[schema(value_type = Option<Object>)]
    exit: Option<Exit>,
}

impl ExecView {
    fn new(info: ExecInfo, now: Timestamp) -> Self {
        Self {
            id: info.exec,
            argv: info.argv,
            started_at: now - info.age,
            terminal: info.terminal.map(TerminalSize::from),
            cursor: info.cursor,
            readers: info.readers,
            exit: info.ended,
        }
    }
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Execs {
    items: Vec<ExecView>,
}

/// The commands of a sandbox that run, or ended a while ago; oldest first.
#[utoipa::path(get, path = "/sandboxes/{id}/exec", tag = "sandboxes", params(("id" = SandboxId, Path)),
    responses((status = 200, body = Execs)))]
pub async fn list(State(app): State<Arc<App>>, caller: Caller, Id(id): Id<SandboxId>) -> Result<Answer> {
    let (kind, sandbox) = place(&app, caller, id, Action::See).await?;
    let infos = app.providers()?.get(kind).execs(&sandbox).await?;
    let now = app.clock.now();
    Answer::ok(Execs { items: infos.into_iter().map(|info| ExecView::new(info, now)).collect() })
}

async fn command(app: &App, caller: Caller, id: SandboxId, exec: String) -> Result<(ProviderKind, ExecRef)> {
    let (kind, sandbox) = place(app, caller, id, Action::Work).await?;
    Ok((kind, named(sandbox, exec)))
}

/// End a command with everything that it started.
///
/// One that has ended already stays as it is.
#[utoipa::path(delete, path = "/sandboxes/{id}/exec/{eid}", tag = "sandboxes",
    params(("id" = SandboxId, Path), ("eid" = String, Path)), responses((status = 200)))]
pub async fn end(State(app): State<Arc<App>>, caller: Caller, Ids(id, exec): Ids<SandboxId, String>) -> Result<Answer> {
    let (kind, exec) = command(&app, caller, id, exec).await?;
    app.providers()?.get(kind).signal(&exec, KILL).await.map_err(of_command)?;
    Answer::ok(json!({ "id": exec.exec }))
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSignal {
    /// HUP, INT, QUIT, KILL, USR1, USR2, TERM, CONT or STOP.
    signal: String,
}

impl NewSignal {
    fn number(&self) -> Result<i32> {
        let upper = self.signal.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let known = SIGNALS.iter().find(|(known, _)| *known == name);
        known.map(|(_, number)| *number).ok_or_else(|| {
            let names: Vec<&str> = SIGNALS.iter().map(|(name, _)| *name).collect();
            Problem::invalid(format!("signal: one of {}", names.join(", ")))
        })
    }
}

/// Send a signal to a command and its process group.
///
/// With a terminal it goes to who is in front there as well. KILL ends everything that the command started.
#[utoipa::path(post, path = "/sandboxes/{id}/exec/{eid}/signal", tag = "sandboxes",
    params(("id" = SandboxId, Path), ("eid" = String, Path)), request_body = NewSignal, responses((status = 200)))]
pub async fn signal(
    State(app): State<Arc<App>>,
    caller: Caller,
    Ids(id, exec): Ids<SandboxId, String>,
    Body { value, .. }: Body<NewSignal>,
) -> Result<Answer> {
    let number = value.number()?;
    let (kind, exec) = command(&app, caller, id, exec).await?;
    app.providers()?.get(kind).signal(&exec, number).await.map_err(of_command)?;
    Answer::ok(json!({ "id": exec.exec }))
}

/// Change the size of a command's terminal.
#[utoipa::path(post, path = "/sandboxes/{id}/exec/{eid}/resize", tag = "sandboxes",
    params(("id" = SandboxId, Path), ("eid" = String, Path)), request_body = TerminalSize, responses((status = 200)))]
pub async fn resize(
    State(app): State<Arc<App>>,
    caller: Caller,
    Ids(id, exec): Ids<SandboxId, String>,
    Body { value, .. }: Body<TerminalSize>,
) -> Result<Answer> {
    let size = value.checked()?;
    let (kind, exec) = command(&app, caller, id, exec).await?;
    app.providers()?.get(kind).resize(&exec, size).await.map_err(of_command)?;
    Answer::ok(json!({ "id": exec.exec }))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct InputQuery {
    /// Nothing follows.
    #[serde(default)]
    end: bool,
}

/// Give a command more input: the body as it is and as it comes, of any length.
///
/// Only one that was started with `"stdin": true` or a terminal takes it; others answer 409 `no_input`. The body is read as
/// fast as the command reads. One that breaks off leaves the input open behind what came, also with `end`.
#[utoipa::path(post, path = "/sandboxes/{id}/exec/{eid}/stdin", tag = "sandboxes",
    params(("id" = SandboxId, Path), ("eid" = String, Path), InputQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"), responses((status = 200)))]
pub async fn write(
    State(app): State<Arc<App>>,
    caller: Caller,
    Ids(id, exec): Ids<SandboxId, String>,
    Params(query): Params<InputQuery>,
    request: Request,
) -> Result<Answer> {
    let (kind, exec) = command(&app, caller, id, exec).await?;
    let (providers, mut size) = (app.providers()?, 0);
    let provider = providers.get(kind);
    // Nothing first, to hear at once whether it takes any.
    let nothing = futures_util::stream::iter([Ok(Bytes::new())]);
    let mut pieces = nothing.chain(request.into_body().into_data_stream());
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| {
            Problem::new(Code::BadRequest, format!("the body broke off after {size} bytes, which the command gets"))
        })?;
        let length = piece.len();
        if let Err(error) = provider.write(&exec, piece).await {
            drain(axum::body::Body::from_stream(pieces)).await;
            return Err(of_command(error));
        }
        size += length;
    }
    if query.end {
        provider.close_stdin(&exec).await.map_err(of_command)?;
    }
    Answer::ok(json!({ "id": exec.exec, "bytes": size }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_their_usual_names() {
        let number = |name: &str| NewSignal { signal: name.to_owned() }.number();
        for good in ["TERM", "term", "SIGTERM"] {
            assert_eq!(number(good).unwrap(), 15);
        }
        for bad in ["", "SIG", "15", "SEGV", "TERM "] {
            assert!(number(bad).unwrap_err().detail.contains("HUP, INT"), "{bad}");
        }
    }
}
