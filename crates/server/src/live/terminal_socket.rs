//! Terminals in sandboxes over WebSocket: binary frames carry input and output, text frames carry control messages.

use super::SocketUpgrade;
use super::access_recheck::{self, AccessRecheck};
use super::event_socket::encode_frame;
use crate::app::commands::{check_size, exec_ref, find_command_target, to_command_problem};
use crate::auth::{self, Caller};
use crate::extract::{Id, Params, parse_object};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use crate::terminals::TerminalViewer;
use atoll_api::{TerminalFrame, TerminalQuery, TerminalRequest, TerminalSize};
use atoll_core::id::SandboxId;
use atoll_core::principal::ProjectAction;
use atoll_core::provider::{ExecCommand, ExecEvent, ExecInfo, ExecRef, ExecSpec, ExecStream, PtySize};
use atoll_core::sandbox::ProviderKind;
use axum::extract::ws::{Message, WebSocket};
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::response::Response;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

const PING_INTERVAL: Duration = access_recheck::RECHECK_INTERVAL;
/// A viewer that receives nothing for this time is disconnected.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum input per frame; a paste is one frame.
const MAX_INPUT_BYTES: usize = 1 << 20;
/// Queued control frames per viewer; more are dropped.
const MAX_QUEUED_FRAMES: usize = 16;
const DEFAULT_SIZE: TerminalSize = TerminalSize { cols: 80, rows: 24 };

/// Starts bash or sh. Not a login shell, which would reset the sandbox's PATH.
const DEFAULT_SHELL: &str = "if command -v bash >/dev/null 2>&1; then \
                     SHELL=$(command -v bash) PS1='\\u@\\h:\\w\\$ ' exec bash -i; else SHELL=/bin/sh exec sh -i; fi";

/// A caller, authenticated by header or ticket, with the query.
pub struct TerminalOpenRequest {
    caller: Caller,
    query: TerminalQuery,
}

impl FromRequestParts<Arc<App>> for TerminalOpenRequest {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let Params(query) = Params::<TerminalQuery>::from_request_parts(parts, app).await?;
        let caller = auth::authenticate_ticket(parts, app, query.ticket.as_deref()).await?;
        Ok(Self { caller, query })
    }
}

/// The terminal of one viewer.
struct OpenTerminal {
    kind: ProviderKind,
    exec: ExecRef,
    /// First output position, and the end of earlier output.
    cursor: u64,
    until: u64,
    may_type: bool,
}

/// Open a terminal in a sandbox, or attach to one.
///
/// Binary frames carry input and output. Text frames of the server:
/// `{"type":"opened","exec","cursor","until","may_type"}` first (output up to `until` is a replay),
/// `{"type":"gap","cursor"}` where output was dropped, `{"type":"exit","exit":{…}}` at the end,
/// `{"type":"problem","code","detail"}`. Text frames of the client: `{"type":"resize","cols","rows"}`.
/// With `exec`, attach to a running terminal: several clients can view it and type; a caller who may not work in the
/// project only views it. A terminal without clients ends after `terminal.linger`.
#[utoipa::path(get, path = "/sandboxes/{id}/terminal", tag = "sandboxes",
    params(("id" = SandboxId, Path), TerminalQuery), responses((status = 101, description = "A WebSocket")))]
pub async fn open_terminal(
    State(app): State<Arc<App>>,
    request: TerminalOpenRequest,
    Id(id): Id<SandboxId>,
    SocketUpgrade(upgrade): SocketUpgrade,
) -> Result<Response> {
    let caller = request.caller.clone();
    let permit = app.admit_reader(&caller)?;
    let opened = match request.query.exec.clone() {
        Some(exec) => attach_terminal(&app, request, id, exec).await?,
        None => start_terminal(&app, request, id).await?,
    };
    // From here on, a terminal without a viewer ends after `terminal.linger`.
    let viewer = TerminalViewer::enter(&app, opened.kind, &opened.exec);
    let in_use = app.uses.begin(id);
    let providers = app.providers()?;
    let events = providers.get(opened.kind).attach(&opened.exec, opened.cursor).await.map_err(to_command_problem)?;
    let upgrade = upgrade.max_message_size(MAX_INPUT_BYTES).max_frame_size(MAX_INPUT_BYTES).read_buffer_size(4096);
    let access = AccessRecheck::new(
        &app,
        caller,
        id,
        if opened.may_type { ProjectAction::UseSandboxes } else { ProjectAction::View },
    );
    Ok(upgrade.on_upgrade(move |socket| async move {
        metrics::gauge!(crate::metrics::READERS).increment(1.0);
        serve_terminal(&app, &opened, access, socket, events).await;
        metrics::gauge!(crate::metrics::READERS).decrement(1.0);
        drop((viewer, in_use, permit));
    }))
}

async fn start_terminal(
    app: &App,
    TerminalOpenRequest { caller, query }: TerminalOpenRequest,
    id: SandboxId,
) -> Result<OpenTerminal> {
    if query.cursor.is_some() {
        return Err(Problem::new(Code::BadRequest, "cursor: requires `exec`"));
    }
    let size =
        TerminalSize { cols: query.cols.unwrap_or(DEFAULT_SIZE.cols), rows: query.rows.unwrap_or(DEFAULT_SIZE.rows) };
    let size = check_size(size).map_err(|problem| Problem::new(Code::BadRequest, problem.detail))?;
    if [&query.shell, &query.cwd].into_iter().flatten().any(|word| word.is_empty() || word.contains('\0')) {
        return Err(Problem::new(Code::BadRequest, "shell, cwd: must not be empty or contain NUL characters"));
    }
    let (kind, place) = find_command_target(app, caller, id, ProjectAction::UseSandboxes).await?;
    let argv = match query.shell {
        Some(program) => vec![program],
        None => ["/bin/sh", "-c", DEFAULT_SHELL].map(str::to_owned).to_vec(),
    };
    let spec = ExecSpec {
        command: ExecCommand::Argv(argv),
        cwd: query.cwd,
        env: BTreeMap::new(),
        has_stdin: true,
        as_root: false,
        terminal: Some(size),
        timeout: None,
    };
    let exec = app.providers()?.get(kind).exec(&place, &spec).await?;
    Ok(OpenTerminal { kind, exec, cursor: 0, until: 0, may_type: true })
}

async fn attach_terminal(
    app: &App,
    TerminalOpenRequest { caller, query }: TerminalOpenRequest,
    id: SandboxId,
    exec: String,
) -> Result<OpenTerminal> {
    if query.shell.is_some() || query.cwd.is_some() {
        return Err(Problem::new(Code::BadRequest, "shell, cwd: allowed only without `exec`"));
    }
    let (place, may_type) = match find_command_target(app, caller.clone(), id, ProjectAction::UseSandboxes).await {
        Ok(place) => (place, true),
        Err(problem) if problem.code == Code::Forbidden => {
            (find_command_target(app, caller, id, ProjectAction::View).await?, false)
        }
        Err(problem) => return Err(problem),
    };
    let (kind, sandbox) = place;
    let providers = app.providers()?;
    let known = providers.get(kind).execs(&sandbox).await?;
    let info = known.into_iter().find(|info| info.exec == exec);
    let Some(ExecInfo { terminal, cursor: until, .. }) = info else {
        return Err(to_command_problem(atoll_core::provider::Error::Gone));
    };
    if terminal.is_none() {
        return Err(Problem::new(Code::BadRequest, "this command has no terminal; read its output at …/exec/{eid}"));
    }
    let exec = exec_ref(sandbox, exec);
    if let (true, Some(cols), Some(rows)) = (may_type, query.cols, query.rows) {
        let size = check_size(TerminalSize { cols, rows });
        let size = size.map_err(|problem| Problem::new(Code::BadRequest, problem.detail))?;
        providers.get(kind).resize(&exec, size).await.map_err(to_command_problem)?;
    }
    Ok(OpenTerminal { kind, exec, cursor: query.cursor.unwrap_or(0), until, may_type })
}

/// Runs both directions concurrently: Ctrl-C must work while there is much output.
async fn serve_terminal(
    app: &Arc<App>,
    opened: &OpenTerminal,
    access: AccessRecheck,
    socket: WebSocket,
    events: ExecStream,
) {
    let (sink, typed) = socket.split();
    let (queue, frames) = mpsc::channel(MAX_QUEUED_FRAMES);
    tokio::select! {
        () = send_output(app, opened, access, TerminalOutput { sink, events, frames }) => {}
        () = read_input(app, opened, typed, queue) => {}
    }
}

type Sink = SplitSink<WebSocket, Message>;

struct ViewerGone;

async fn send_message(sink: &mut Sink, message: Message) -> Result<(), ViewerGone> {
    match timeout(SEND_TIMEOUT, sink.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(ViewerGone),
    }
}

fn text_frame(frame: &TerminalFrame) -> Message {
    Message::Text(encode_frame(frame).into())
}

fn problem_frame(problem: &Problem) -> TerminalFrame {
    TerminalFrame::Problem { code: problem.code.as_str().to_owned(), detail: problem.detail.clone() }
}

/// The socket's send half and its sources.
struct TerminalOutput {
    sink: Sink,
    events: ExecStream,
    frames: mpsc::Receiver<TerminalFrame>,
}

async fn send_output(app: &App, opened: &OpenTerminal, mut access: AccessRecheck, output: TerminalOutput) {
    let TerminalOutput { mut sink, mut events, mut frames } = output;
    let OpenTerminal { ref exec, cursor, until, may_type, .. } = *opened;
    let first = TerminalFrame::Opened { exec: exec.exec.clone(), cursor, until, may_type };
    let mut next = Some(text_frame(&first));
    let mut stopping = app.stopping.clone();
    let mut ping = tokio::time::interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
    loop {
        if let Some(message) = next.take()
            && send_message(&mut sink, message).await.is_err()
        {
            return;
        }
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(ExecEvent::Output { data, .. })) => next = Some(Message::Binary(data)),
                Some(Ok(ExecEvent::Gap { cursor })) => next = Some(text_frame(&TerminalFrame::Gap { cursor })),
                Some(Ok(ExecEvent::Ended(exit))) => {
                    drop(send_message(&mut sink, text_frame(&TerminalFrame::Exit { exit })).await);
                    break;
                }
                Some(Err(error)) => {
                    drop(send_message(&mut sink, text_frame(&problem_frame(&error.into()))).await);
                    break;
                }
                None => break,
            },
            Some(value) = frames.recv() => next = Some(text_frame(&value)),
            _ = ping.tick() => next = Some(Message::Ping(Vec::new().into())),
            () = access.wait_until_due() => match access.check_again(app).await {
                None => {}
                Some(refusal) => {
                    drop(send_message(&mut sink, text_frame(&problem_frame(&refusal))).await);
                    break;
                }
            },
            _ = stopping.changed() => {
                let ending = Problem::new(Code::ShuttingDown, "the server is stopping, and the terminal ends");
                drop(send_message(&mut sink, text_frame(&problem_frame(&ending))).await);
                break;
            }
        }
    }
    drop(send_message(&mut sink, Message::Close(None)).await);
}

/// Reads input until the viewer disconnects.
async fn read_input(
    app: &App,
    opened: &OpenTerminal,
    mut typed: SplitStream<WebSocket>,
    queue: mpsc::Sender<TerminalFrame>,
) {
    let mut is_reported = false;
    while let Some(Ok(message)) = typed.next().await {
        let result = match message {
            Message::Close(_) => return,
            Message::Ping(_) | Message::Pong(_) => continue,
            _ if !opened.may_type => {
                // Report once, not for every key.
                if std::mem::replace(&mut is_reported, true) {
                    continue;
                }
                Err(Problem::forbidden("you may view this terminal, but not type"))
            }
            Message::Binary(data) => write_input(app, opened, data).await,
            Message::Text(text) => handle_request(app, opened, &text).await,
        };
        if let Err(refusal) = result {
            // Drop the report if the viewer's queue is full.
            drop(queue.try_send(problem_frame(&refusal)));
        }
    }
}

async fn write_input(app: &App, opened: &OpenTerminal, data: bytes::Bytes) -> Result<()> {
    match app.providers()?.get(opened.kind).write(&opened.exec, data).await {
        // The command has ended; the viewer gets its exit.
        Ok(()) | Err(atoll_core::provider::Error::NoInput { .. }) => Ok(()),
        Err(error) => Err(to_command_problem(error)),
    }
}

async fn handle_request(app: &App, opened: &OpenTerminal, text: &str) -> Result<()> {
    match parse_object(text.as_bytes()).map_err(Problem::invalid)? {
        TerminalRequest::Resize { cols, rows } => {
            let PtySize { columns, rows } = check_size(TerminalSize { cols, rows })?;
            let providers = app.providers()?;
            providers.get(opened.kind).resize(&opened.exec, PtySize { columns, rows }).await.map_err(to_command_problem)
        }
        TerminalRequest::Pong {} => Ok(()),
    }
}
