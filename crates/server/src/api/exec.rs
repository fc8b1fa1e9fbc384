//! `/sandboxes/{id}/exec`: a command in a sandbox, its output as it comes.

use crate::auth::{Caller, access};
use crate::extract::{Body, Id, Ids, Params};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use crate::terminals::Viewer;
use atoll_core::bounds;
use atoll_core::id::SandboxId;
use atoll_core::principal::Action;
use atoll_core::provider::{Command, Error, ExecEvent, ExecRef, ExecSpec, ProviderId, Size};
use atoll_core::sandbox::{ProviderKind, SandboxState};
use atoll_store::sandboxes;
use axum::extract::State;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use bytes::Bytes;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const LARGEST_TERMINAL: u16 = 1000;
const EXEC_ID: HeaderName = HeaderName::from_static("exec-id");

/// What to run: `argv` as it is, or `shell` by /bin/sh.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewExec {
    argv: Option<Vec<String>>,
    shell: Option<String>,
    /// Where it runs; the workspace unless named.
    cwd: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Its whole input as a text, or `true`: then its input comes by `POST …/exec/{eid}/stdin`, until one says the end.
    stdin: Option<Stdin>,
    /// As the sandbox's own root, where it has an imported one.
    #[serde(default)]
    root: bool,
    #[schema(minimum = 1)]
    timeout_s: Option<u32>,
    /// It gets a terminal of this size; `GET …/terminal?exec=` shows it. What it prints is one stream.
    terminal: Option<TerminalSize>,
}

#[derive(Debug, Clone, Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
pub enum Stdin {
    Open(bool),
    Text(String),
}

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    #[schema(minimum = 1, maximum = 1000)]
    pub cols: u16,
    #[schema(minimum = 1, maximum = 1000)]
    pub rows: u16,
}

impl TerminalSize {
    pub fn checked(self) -> Result<Size> {
        let fits = |number: u16| (1..=LARGEST_TERMINAL).contains(&number);
        if fits(self.cols) && fits(self.rows) {
            return Ok(Size { columns: self.cols, rows: self.rows });
        }
        Err(Problem::invalid(format!("cols, rows: whole numbers from 1 to {LARGEST_TERMINAL}")))
    }
}

impl From<Size> for TerminalSize {
    fn from(size: Size) -> Self {
        Self { cols: size.columns, rows: size.rows }
    }
}

impl NewExec {
    fn spec(self) -> Result<ExecSpec> {
        let command = match (self.argv, self.shell) {
            (Some(argv), None) if argv.first().is_some_and(|program| !program.is_empty()) => Command::Argv(argv),
            (None, Some(shell)) if !shell.trim().is_empty() => Command::Shell(shell),
            (Some(_), Some(_)) => return Err(Problem::invalid("give `argv` or `shell`, not both")),
            (_, _) => return Err(Problem::invalid("needs `argv` with a program, or `shell` with a command")),
        };
        let words: Vec<&String> = match &command {
            Command::Argv(argv) => argv.iter().collect(),
            Command::Shell(text) => vec![text],
        };
        if words.iter().chain(self.cwd.iter().collect::<Vec<_>>().iter()).any(|word| word.contains('\0')) {
            return Err(Problem::invalid("a command can't hold NUL characters"));
        }
        if words.iter().map(|word| word.len()).sum::<usize>() > 128 * bounds::KB {
            return Err(Problem::invalid("the command is longer than 128 KB"));
        }
        bounds::env(&self.env)?;
        if self.timeout_s == Some(0) {
            return Err(Problem::invalid("timeout_s: must be above 0"));
        }
        Ok(ExecSpec {
            command,
            cwd: self.cwd,
            env: self.env,
            stdin: !matches!(self.stdin, None | Some(Stdin::Open(false))),
            as_root: self.root,
            terminal: self.terminal.map(TerminalSize::checked).transpose()?,
            timeout: self.timeout_s.map(|seconds| Duration::from_secs(seconds.into())),
        })
    }
}

/// The sandbox's name at its provider, if the caller may do this with it and something runs there.
pub(crate) async fn place(
    app: &App,
    caller: Caller,
    id: SandboxId,
    action: Action,
) -> Result<(ProviderKind, ProviderId)> {
    app.read(move |tx| {
        Box::pin(async move {
            access::sandbox(tx, &caller, id, action).await?;
            let row = sandboxes::get(tx, id).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
            crate::app::pausing::refuse_paused(&row)?;
            super::diff::at_provider(&row).filter(|_| row.state != SandboxState::Pending).ok_or_else(|| {
                Problem::new(Code::SandboxGone, "there is nothing of it to run a command in")
                    .with("state", row.state.as_str())
            })
        })
    })
    .await
}

/// Run a command in a sandbox.
///
/// The answer is NDJSON while it runs: `{"stream","data"}` (`base64` instead of `data` where it is not
/// UTF-8), at the end `{"exit":{"kind":"exited","code":0}}`. `Exec-Id` names it for attaching again.
#[utoipa::path(post, path = "/sandboxes/{id}/exec", tag = "sandboxes", params(("id" = SandboxId, Path)),
    request_body = NewExec, responses((status = 200, description = "NDJSON", content_type = "application/x-ndjson")))]
pub async fn start(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Body { value, .. }: Body<NewExec>,
) -> Result<Response> {
    let (kind, place) = place(&app, caller, id, Action::Work).await?;
    let input = value.stdin.clone();
    let spec = value.spec()?;
    let providers = app.providers()?;
    let provider = providers.get(kind);
    let exec = provider.exec(&place, &spec).await?;
    if let Some(Stdin::Text(text)) = input {
        let said = provider.write(&exec, Bytes::from(text)).await;
        match said.and(provider.close_stdin(&exec).await) {
            // One that has ended already is in no need of it.
            Ok(()) | Err(Error::NoInput { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // A terminal is given up when nobody looks at it; whoever reads this answer does.
    let viewer = spec.terminal.map(|_| Viewer::enter(&app, kind, &exec));
    stream(&app, kind, exec, 0, viewer).await
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AttachQuery {
    /// How many bytes of output are known already.
    #[serde(default)]
    cursor: u64,
}

/// Attach again to a command that was started before.
#[utoipa::path(get, path = "/sandboxes/{id}/exec/{eid}", tag = "sandboxes",
    params(("id" = SandboxId, Path), ("eid" = String, Path), AttachQuery),
    responses((status = 200, description = "NDJSON", content_type = "application/x-ndjson")))]
pub async fn attach(
    State(app): State<Arc<App>>,
    caller: Caller,
    Ids(id, exec): Ids<SandboxId, String>,
    Params(query): Params<AttachQuery>,
) -> Result<Response> {
    let (kind, sandbox) = place(&app, caller, id, Action::Work).await?;
    stream(&app, kind, named(sandbox, exec), query.cursor, None).await
}

/// A command by the name that its beginning was answered with.
pub(crate) const fn named(sandbox: ProviderId, exec: String) -> ExecRef {
    ExecRef { sandbox, exec, epoch: 1 }
}

/// What a provider says of one command: if it doesn't know it, that means not the sandbox.
pub(crate) fn of_command(error: Error) -> Problem {
    match error {
        Error::Gone => Problem::new(
            Code::NotFound,
            "there is no such command any more: commands and terminals end with the server that started them, \
             and are forgotten a while after their end",
        ),
        error => error.into(),
    }
}

async fn stream(app: &App, kind: ProviderKind, exec: ExecRef, cursor: u64, viewer: Option<Viewer>) -> Result<Response> {
    let providers = app.providers()?;
    let events = providers.get(kind).attach(&exec, cursor).await.map_err(of_command)?;
    let lines = events.map(move |event| {
        // Leaves with the answer.
        let _viewer = &viewer;
        let line = match event {
            Ok(ExecEvent::Output { stream, data, cursor }) => match std::str::from_utf8(&data) {
                Ok(text) => json!({ "stream": stream, "data": text, "cursor": cursor }),
                Err(_) => {
                    let base64 = base64::engine::general_purpose::STANDARD.encode(&data);
                    json!({ "stream": stream, "base64": base64, "cursor": cursor })
                }
            },
            Ok(ExecEvent::Gap { cursor }) => json!({ "gap": cursor }),
            Ok(ExecEvent::Ended(exit)) => json!({ "exit": exit }),
            Err(error) => json!({ "error": error.to_string(), "exit": { "kind": "unknown" } }),
        };
        Ok::<_, std::convert::Infallible>(Bytes::from(format!("{line}\n")))
    });
    let headers = [(header::CONTENT_TYPE, "application/x-ndjson".to_owned()), (EXEC_ID, exec.exec)];
    Ok((headers, axum::body::Body::from_stream(lines)).into_response())
}
