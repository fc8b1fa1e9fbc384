//! Commands and terminals in sandboxes.

use super::targets::{find_running_target, find_unused_target};
use crate::auth::Caller;
use crate::auth::access::{Access, CanSee, CanWork, Permission};
use crate::extract::drain_body;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use crate::terminals::TerminalViewer;
use crate::uses::UseGuard;
use atoll_api::{Exec, ExecInput, ExecList, NewExec, TerminalSize};
use atoll_core::bounds;
use atoll_core::id::SandboxId;
use atoll_core::principal::ProjectAction;
use atoll_core::provider::{
    Error, ExecCommand, ExecInfo, ExecRef, ExecSpec, ExecStream, Provider, ProviderId, PtySize,
};
use atoll_core::sandbox::ProviderKind;
use atoll_core::time::Timestamp;
use axum::body::Body;
use bytes::Bytes;
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::Duration;

const MAX_TERMINAL_SIZE: u16 = 1000;
const MAX_COMMAND_BYTES: usize = 128 * bounds::KB;
const SIGKILL: i32 = 9;
const SIGNALS: [(&str, i32); 9] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("KILL", SIGKILL),
    ("USR1", 10),
    ("USR2", 12),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
];

pub fn check_size(size: TerminalSize) -> Result<PtySize> {
    let fits = |number: u16| (1..=MAX_TERMINAL_SIZE).contains(&number);
    if fits(size.cols) && fits(size.rows) {
        return Ok(PtySize { columns: size.cols, rows: size.rows });
    }
    Err(Problem::invalid(format!("cols, rows: whole numbers from 1 to {MAX_TERMINAL_SIZE}")))
}

fn check_exec(new: NewExec) -> Result<ExecSpec> {
    let command = match (new.argv, new.shell) {
        (Some(argv), None) if argv.first().is_some_and(|program| !program.is_empty()) => ExecCommand::Argv(argv),
        (None, Some(shell)) if !shell.trim().is_empty() => ExecCommand::Shell(shell),
        (Some(_), Some(_)) => return Err(Problem::invalid("give `argv` or `shell`, not both")),
        (_, _) => return Err(Problem::invalid("needs `argv` with a program, or `shell` with a command")),
    };
    let words: Vec<&String> = match &command {
        ExecCommand::Argv(argv) => argv.iter().collect(),
        ExecCommand::Shell(text) => vec![text],
    };
    if words.iter().copied().chain(&new.cwd).any(|word| word.contains('\0')) {
        return Err(Problem::invalid("a command cannot contain NUL characters"));
    }
    if words.iter().map(|word| word.len()).sum::<usize>() > MAX_COMMAND_BYTES {
        return Err(Problem::invalid("the command is longer than 128 KiB"));
    }
    bounds::check_env(&new.env)?;
    if new.timeout_s == Some(0) {
        return Err(Problem::invalid("timeout_s: must be above 0"));
    }
    Ok(ExecSpec {
        command,
        cwd: new.cwd,
        env: new.env,
        has_stdin: !matches!(new.stdin, None | Some(ExecInput::Open(false))),
        as_root: new.root,
        terminal: new.terminal.map(check_size).transpose()?,
        timeout: new.timeout_s.map(|seconds| Duration::from_secs(seconds.into())),
    })
}

/// A command in a sandbox, at its provider.
struct RunningCommand {
    provider: Arc<dyn Provider>,
    exec: ExecRef,
}

/// A command with its output from a cursor on.
pub struct AttachedCommand {
    pub id: String,
    pub events: ExecStream,
    /// Keeps the terminal open as long as the response is read.
    pub viewer: Option<TerminalViewer>,
    /// The sandbox is in use as long as the response is read.
    pub in_use: UseGuard,
}

/// The reference to a command by its id.
pub const fn exec_ref(sandbox: ProviderId, exec: String) -> ExecRef {
    ExecRef { sandbox, exec }
}

/// Translates a provider's error about a command: "gone" means the command, not the sandbox.
pub fn to_command_problem(error: Error) -> Problem {
    match error {
        Error::Gone => Problem::new(
            Code::NotFound,
            "there is no such command: commands and terminals end with the server that started them, and are \
             forgotten a while after their end",
        ),
        error => error.into(),
    }
}

/// Checks access and finds the sandbox at its provider, for terminals, whose caller can come from a ticket.
pub async fn find_command_target(
    app: &App,
    caller: Caller,
    id: SandboxId,
    action: ProjectAction,
) -> Result<(ProviderKind, ProviderId)> {
    let target = match action {
        ProjectAction::View => find_running_target(app, &CanSee::authorize(app, caller, id).await?).await?,
        ProjectAction::UseSandboxes | ProjectAction::Administer => {
            find_running_target(app, &CanWork::authorize(app, caller, id).await?).await?
        }
    };
    Ok((target.row.provider, target.id))
}

async fn find_command(app: &App, access: &Access<SandboxId, impl Permission>, exec: String) -> Result<RunningCommand> {
    let target = find_running_target(app, access).await?;
    Ok(RunningCommand { provider: target.provider, exec: exec_ref(target.id, exec) })
}

pub async fn start_command(app: &Arc<App>, access: CanWork<SandboxId>, new: NewExec) -> Result<AttachedCommand> {
    let target = find_running_target(app, &access).await?;
    let input = new.stdin.clone();
    let spec = check_exec(new)?;
    let exec = target.provider.exec(&target.id, &spec).await?;
    if let Some(ExecInput::Text(text)) = input {
        let written = target.provider.write(&exec, Bytes::from(text)).await;
        match written.and(target.provider.close_stdin(&exec).await) {
            // A command that has already ended needs no input.
            Ok(()) | Err(Error::NoInput { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let viewer = spec.terminal.map(|_| TerminalViewer::enter(app, target.row.provider, &exec));
    let events = target.provider.attach(&exec, 0).await.map_err(to_command_problem)?;
    Ok(AttachedCommand { id: exec.exec, events, viewer, in_use: app.uses.begin(access.id) })
}

pub async fn attach_command(
    app: &App,
    access: CanWork<SandboxId>,
    exec: String,
    cursor: u64,
) -> Result<AttachedCommand> {
    let command = find_command(app, &access, exec).await?;
    let events = command.provider.attach(&command.exec, cursor).await.map_err(to_command_problem)?;
    Ok(AttachedCommand { id: command.exec.exec, events, viewer: None, in_use: app.uses.begin(access.id) })
}

fn view_exec(info: ExecInfo, now: Timestamp) -> Exec {
    Exec {
        id: info.exec,
        argv: info.argv,
        started_at: now - info.age,
        terminal: info.terminal.map(|size| TerminalSize { cols: size.columns, rows: size.rows }),
        cursor: info.cursor,
        readers: info.readers,
        exit: info.ended,
    }
}

/// Lists running and recently ended commands, oldest first.
pub async fn list_commands(app: &App, access: CanSee<SandboxId>) -> Result<ExecList> {
    let target = find_unused_target(app, &access).await?;
    let infos = target.provider.execs(&target.id).await?;
    let now = app.clock.now();
    Ok(ExecList { items: infos.into_iter().map(|info| view_exec(info, now)).collect() })
}

pub async fn kill_command(app: &App, access: CanWork<SandboxId>, exec: String) -> Result<String> {
    send_signal(app, &access, exec, SIGKILL).await
}

async fn send_signal(app: &App, access: &CanWork<SandboxId>, exec: String, signal: i32) -> Result<String> {
    let command = find_command(app, access, exec).await?;
    command.provider.signal(&command.exec, signal).await.map_err(to_command_problem)?;
    Ok(command.exec.exec)
}

/// Parses the name of a signal, with or without `SIG`.
fn signal_number(signal: &str) -> Result<i32> {
    let upper = signal.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let known = SIGNALS.iter().find(|(known, _)| *known == name);
    known.map(|(_, number)| *number).ok_or_else(|| {
        let names: Vec<&str> = SIGNALS.iter().map(|(name, _)| *name).collect();
        Problem::invalid(format!("signal: one of {}", names.join(", ")))
    })
}

pub async fn signal_command(app: &App, access: CanWork<SandboxId>, exec: String, signal: &str) -> Result<String> {
    let number = signal_number(signal)?;
    send_signal(app, &access, exec, number).await
}

pub async fn resize_terminal(
    app: &App,
    access: CanWork<SandboxId>,
    exec: String,
    size: TerminalSize,
) -> Result<String> {
    let size = check_size(size)?;
    let command = find_command(app, &access, exec).await?;
    command.provider.resize(&command.exec, size).await.map_err(to_command_problem)?;
    Ok(command.exec.exec)
}

/// Streams a body into a command's input. Returns the number of bytes.
pub async fn write_input(
    app: &App,
    access: CanWork<SandboxId>,
    exec: String,
    body: Body,
    closes: bool,
) -> Result<(String, usize)> {
    let command = find_command(app, &access, exec).await?;
    let mut size = 0;
    // An empty chunk first, so that a command without input fails at once.
    let probe = futures_util::stream::iter([Ok(Bytes::new())]);
    let mut chunks = probe.chain(body.into_data_stream());
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| {
            Problem::new(Code::BadRequest, format!("the body ended early, after {size} bytes that the command got"))
        })?;
        let length = chunk.len();
        if let Err(error) = command.provider.write(&command.exec, chunk).await {
            drain_body(Body::from_stream(chunks)).await;
            return Err(to_command_problem(error));
        }
        size += length;
    }
    if closes {
        command.provider.close_stdin(&command.exec).await.map_err(to_command_problem)?;
    }
    Ok((command.exec.exec, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_signal_names() {
        for good in ["TERM", "term", "SIGTERM"] {
            assert_eq!(signal_number(good).unwrap(), 15);
        }
        for bad in ["", "SIG", "15", "SEGV", "TERM "] {
            assert!(signal_number(bad).unwrap_err().detail.contains("HUP, INT"), "{bad}");
        }
    }
}
