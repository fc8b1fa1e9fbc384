//! A terminal in a sandbox over a WebSocket: bytes in both directions, and a few words about them.

use super::Upgrade;
use super::rights::{self, Rights};
use crate::api::exec::{TerminalSize, named, of_command, place};
use crate::auth::{self, Caller};
use crate::extract::{Id, Params, parse};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use crate::terminals::Viewer;
use atoll_core::id::SandboxId;
use atoll_core::principal::Action;
use atoll_core::provider::{Command, ExecEvent, ExecInfo, ExecRef, ExecSpec, ExecStream, Size};
use atoll_core::sandbox::ProviderKind;
use axum::extract::ws::{Message, WebSocket};
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::response::Response;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

const PING: Duration = rights::EVERY;
/// A viewer that takes nothing for this long is gone.
const STUCK: Duration = Duration::from_secs(60);
/// What is typed at once; a paste is longer than a key.
const TYPED_BYTES: usize = 1 << 20;
/// Words for one viewer that wait to be sent; more than these are not said.
const WORDS: usize = 16;
const ORDINARY: TerminalSize = TerminalSize { cols: 80, rows: 24 };

/// The shell of somebody who names none. Not a login shell: that would forget the sandbox's PATH.
const SHELL: &str = "if command -v bash >/dev/null 2>&1; then \
                     SHELL=$(command -v bash) PS1='\\u@\\h:\\w\\$ ' exec bash -i; else SHELL=/bin/sh exec sh -i; fi";

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TerminalQuery {
    /// Columns of a new terminal; 80 unless said.
    #[param(minimum = 1, maximum = 1000)]
    cols: Option<u16>,
    /// Its rows; 24 unless said.
    #[param(minimum = 1, maximum = 1000)]
    rows: Option<u16>,
    /// Where its shell begins; the workspace unless said.
    cwd: Option<String>,
    /// Another program than bash, or sh where there is no bash.
    shell: Option<String>,
    /// A terminal that is there already, in place of a new one.
    exec: Option<String>,
    /// How many bytes of its output are known already.
    cursor: Option<u64>,
    /// A one-time ticket from `POST /ws-tickets`, for clients that can't send headers.
    ticket: Option<String>,
}

/// Somebody, by header or by ticket, and what they want.
pub struct Asked {
    caller: Caller,
    query: TerminalQuery,
}

impl FromRequestParts<Arc<App>> for Asked {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let Params(query) = Params::<TerminalQuery>::from_request_parts(parts, app).await?;
        let caller = auth::by_ticket(parts, app, query.ticket.as_deref()).await?;
        Ok(Self { caller, query })
    }
}

/// What is shown, and to whom.
struct Opened {
    kind: ProviderKind,
    exec: ExecRef,
    /// Where the viewer begins, and up to where everything is from before.
    cursor: u64,
    until: u64,
    may_type: bool,
}

/// Open a terminal in a sandbox, or look at one that is there.
///
/// Binary frames are what is typed and what is shown. Text frames of the server:
/// `{"type":"opened","exec","cursor","until","may_type"}` first (up to `until` it is what was shown before),
/// `{"type":"gap","cursor"}` where output is no longer kept, `{"type":"exit","exit":{…}}` at the end,
/// `{"type":"problem","code","detail"}`. Of the client: `{"type":"resize","cols","rows"}`.
/// With `exec` it shows a terminal that runs: several can look at one and type; who may not work in the project only looks.
/// A terminal that nobody looks at ends after `terminal.linger`.
#[utoipa::path(get, path = "/sandboxes/{id}/terminal", tag = "sandboxes",
    params(("id" = SandboxId, Path), TerminalQuery), responses((status = 101, description = "A WebSocket")))]
pub async fn open(
    State(app): State<Arc<App>>,
    asked: Asked,
    Id(id): Id<SandboxId>,
    Upgrade(upgrade): Upgrade,
) -> Result<Response> {
    let permit = app.reader_permit()?;
    let caller = asked.caller.clone();
    let opened = match asked.query.exec.clone() {
        Some(exec) => look_at(&app, asked, id, exec).await?,
        None => begin(&app, asked, id).await?,
    };
    // From here on one that nobody gets to see is given up in the end.
    let viewer = Viewer::enter(&app, opened.kind, &opened.exec);
    let providers = app.providers()?;
    let events = providers.get(opened.kind).attach(&opened.exec, opened.cursor).await.map_err(of_command)?;
    let upgrade = upgrade.max_message_size(TYPED_BYTES).max_frame_size(TYPED_BYTES).read_buffer_size(4096);
    let rights = Rights::new(caller, id, if opened.may_type { Action::Work } else { Action::See });
    Ok(upgrade.on_upgrade(move |socket| async move {
        metrics::gauge!(crate::metrics::READERS).increment(1.0);
        serve(&app, &opened, rights, socket, events).await;
        metrics::gauge!(crate::metrics::READERS).decrement(1.0);
        drop((viewer, permit));
    }))
}

async fn begin(app: &App, Asked { caller, query }: Asked, id: SandboxId) -> Result<Opened> {
    if query.cursor.is_some() {
        return Err(Problem::new(Code::BadRequest, "cursor: needs `exec`, the terminal that it is of"));
    }
    let size = TerminalSize { cols: query.cols.unwrap_or(ORDINARY.cols), rows: query.rows.unwrap_or(ORDINARY.rows) };
    let size = size.checked().map_err(|problem| Problem::new(Code::BadRequest, problem.detail))?;
    if [&query.shell, &query.cwd].into_iter().flatten().any(|word| word.is_empty() || word.contains('\0')) {
        return Err(Problem::new(Code::BadRequest, "shell, cwd: neither empty nor with NUL characters"));
    }
    let (kind, place) = place(app, caller, id, Action::Work).await?;
    let argv = match query.shell {
        Some(program) => vec![program],
        None => ["/bin/sh", "-c", SHELL].map(str::to_owned).to_vec(),
    };
    let spec = ExecSpec {
        command: Command::Argv(argv),
        cwd: query.cwd,
        env: BTreeMap::new(),
        stdin: true,
        as_root: false,
        terminal: Some(size),
        timeout: None,
    };
    let exec = app.providers()?.get(kind).exec(&place, &spec).await?;
    Ok(Opened { kind, exec, cursor: 0, until: 0, may_type: true })
}

async fn look_at(app: &App, Asked { caller, query }: Asked, id: SandboxId, exec: String) -> Result<Opened> {
    if query.shell.is_some() || query.cwd.is_some() {
        return Err(Problem::new(Code::BadRequest, "shell, cwd: are for a new terminal, without `exec`"));
    }
    let (place, may_type) = match place(app, caller.clone(), id, Action::Work).await {
        Ok(place) => (place, true),
        Err(problem) if problem.code == Code::Forbidden => (place(app, caller, id, Action::See).await?, false),
        Err(problem) => return Err(problem),
    };
    let (kind, sandbox) = place;
    let providers = app.providers()?;
    let known = providers.get(kind).execs(&sandbox).await?;
    let info = known.into_iter().find(|info| info.exec == exec);
    let Some(ExecInfo { terminal, cursor: until, .. }) = info else {
        return Err(of_command(atoll_core::provider::Error::Gone));
    };
    if terminal.is_none() {
        return Err(Problem::new(Code::BadRequest, "this command has no terminal; read it at …/exec/{eid}"));
    }
    let exec = named(sandbox, exec);
    if let (true, Some(cols), Some(rows)) = (may_type, query.cols, query.rows) {
        let size = TerminalSize { cols, rows }.checked();
        let size = size.map_err(|problem| Problem::new(Code::BadRequest, problem.detail))?;
        providers.get(kind).resize(&exec, size).await.map_err(of_command)?;
    }
    Ok(Opened { kind, exec, cursor: query.cursor.unwrap_or(0), until, may_type })
}

/// Both directions beside each other: who is shown too much must still be able to type Ctrl-C.
async fn serve(app: &Arc<App>, opened: &Opened, rights: Rights, socket: WebSocket, events: ExecStream) {
    let (sink, typed) = socket.split();
    let (words, said) = mpsc::channel(WORDS);
    tokio::select! {
        () = show(app, opened, rights, Shown { sink, events, said }) => {}
        () = listen(app, opened, typed, words) => {}
    }
}

type Sink = SplitSink<WebSocket, Message>;

struct Gone;

async fn send(sink: &mut Sink, message: Message) -> Result<(), Gone> {
    match timeout(STUCK, sink.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(Gone),
    }
}

fn text(value: &Value) -> Message {
    Message::Text(value.to_string().into())
}

fn problem(problem: &Problem) -> Value {
    json!({ "type": "problem", "code": problem.code.as_str(), "detail": problem.detail })
}

/// What a viewer is sent, and what of.
struct Shown {
    sink: Sink,
    events: ExecStream,
    said: mpsc::Receiver<Value>,
}

async fn show(app: &App, opened: &Opened, mut rights: Rights, shown: Shown) {
    let Shown { mut sink, mut events, mut said } = shown;
    let Opened { exec, cursor, until, may_type, .. } = opened;
    let first = json!({ "type": "opened", "exec": exec.exec, "cursor": cursor, "until": until, "may_type": may_type });
    let mut next = Some(text(&first));
    let mut stopping = app.stopping.clone();
    let mut ping = tokio::time::interval_at(Instant::now() + PING, PING);
    loop {
        if let Some(message) = next.take()
            && send(&mut sink, message).await.is_err()
        {
            return;
        }
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(ExecEvent::Output { data, .. })) => next = Some(Message::Binary(data)),
                Some(Ok(ExecEvent::Gap { cursor })) => next = Some(text(&json!({ "type": "gap", "cursor": cursor }))),
                Some(Ok(ExecEvent::Ended(exit))) => {
                    drop(send(&mut sink, text(&json!({ "type": "exit", "exit": exit }))).await);
                    break;
                }
                Some(Err(error)) => {
                    drop(send(&mut sink, text(&problem(&error.into()))).await);
                    break;
                }
                None => break,
            },
            Some(value) = said.recv() => next = Some(text(&value)),
            _ = ping.tick() => match rights.withdrawn(app).await {
                None => next = Some(Message::Ping(Vec::new().into())),
                Some(refusal) => {
                    drop(send(&mut sink, text(&problem(&refusal))).await);
                    break;
                }
            },
            _ = stopping.changed() => {
                let ending = Problem::new(Code::ShuttingDown, "the server stops, and with it this terminal");
                drop(send(&mut sink, text(&problem(&ending))).await);
                break;
            }
        }
    }
    drop(send(&mut sink, Message::Close(None)).await);
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Word {
    Resize { cols: u16, rows: u16 },
    Pong {},
}

/// Until the viewer has gone.
async fn listen(app: &App, opened: &Opened, mut typed: SplitStream<WebSocket>, words: mpsc::Sender<Value>) {
    let mut told = false;
    while let Some(Ok(message)) = typed.next().await {
        let taken = match message {
            Message::Close(_) => return,
            Message::Ping(_) | Message::Pong(_) => continue,
            _ if !opened.may_type => {
                // Once: every key would say the same.
                if std::mem::replace(&mut told, true) {
                    continue;
                }
                Err(Problem::forbidden("you may look at this terminal, but not type"))
            }
            Message::Binary(data) => type_in(app, opened, data).await,
            Message::Text(text) => word(app, opened, &text).await,
        };
        if let Err(refusal) = taken {
            // Whoever does not read gets no more of these.
            drop(words.try_send(problem(&refusal)));
        }
    }
}

async fn type_in(app: &App, opened: &Opened, data: bytes::Bytes) -> Result<()> {
    match app.providers()?.get(opened.kind).write(&opened.exec, data).await {
        // It has ended, which the viewer is about to see.
        Ok(()) | Err(atoll_core::provider::Error::NoInput { .. }) => Ok(()),
        Err(error) => Err(of_command(error)),
    }
}

async fn word(app: &App, opened: &Opened, text: &str) -> Result<()> {
    match parse(text.as_bytes()).map_err(Problem::invalid)? {
        Word::Resize { cols, rows } => {
            let Size { columns, rows } = TerminalSize { cols, rows }.checked()?;
            let providers = app.providers()?;
            providers.get(opened.kind).resize(&opened.exec, Size { columns, rows }).await.map_err(of_command)
        }
        Word::Pong {} => Ok(()),
    }
}
