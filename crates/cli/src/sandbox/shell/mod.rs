//! `atoll sandbox shell`: shows a terminal of a sandbox in this terminal.

mod keyboard;
mod modes;
mod shell_session;

use super::exec::{exit_status, exit_with};
use super::exec_list::print_terminals;
use super::readiness::retry_until_running;
use crate::connect::ConnectedClient;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::references::SandboxRef;
use atoll_api::{NewExec, TerminalSize};
use atoll_core::id::SandboxId;
use shell_session::ShellSession;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox shell sbx_…
  atoll sandbox shell sbx_… -- vim src/main.rs
  atoll sandbox shell sbx_… --list
  atoll sandbox shell sbx_… --exec 01989…

Ctrl-] detaches; the terminal keeps running, and --exec attaches to it again. Several clients can attach
to one terminal. The server ends a terminal without clients after `terminal.linger`. The exit code is the
shell's own, as with `exec`. Like ssh, the command passes the sandbox's output to your terminal unchanged.")]
pub struct Shell {
    /// Sandbox: id, end of the id, name, branch or `last`
    id: SandboxRef,
    /// Program to run in place of a shell
    #[arg(last = true, value_name = "ARGV", conflicts_with_all = ["exec", "list"])]
    argv: Vec<String>,
    /// Attach to a running terminal
    #[arg(long, value_name = "EID", conflicts_with = "list")]
    exec: Option<String>,
    /// Working directory [default: the workspace]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["exec", "list"])]
    cwd: Option<String>,
    /// List running terminals
    #[arg(long)]
    list: bool,
}

pub async fn run(shell: &Shell, client: &ConnectedClient, output: &Output) -> Result {
    let id = shell.id.resolve(client).await?;
    if shell.list {
        return print_terminals(id, client, output).await;
    }
    if shell.argv.is_empty() {
        let run = async || {
            let session = ShellSession::new(client, id, shell.exec.clone(), shell.cwd.clone());
            let session = if shell.exec.is_some() { session.existing() } else { session };
            run_session(session, output).await
        };
        return retry_until_running(id, client, output, run).await;
    }
    let request = NewExec { argv: Some(shell.argv.clone()), cwd: shell.cwd.clone(), ..NewExec::default() };
    run_on_terminal(id, request, client, output).await
}

/// Runs a command in a terminal of this terminal's size.
pub async fn run_on_terminal(id: SandboxId, request: NewExec, client: &ConnectedClient, output: &Output) -> Result {
    let (cols, rows) = keyboard::terminal_size();
    let request = NewExec { terminal: Some(TerminalSize { cols, rows }), ..request };
    let start = async || Ok(client.run_command(id, &request).await?);
    let running = retry_until_running(id, client, output, start).await?;
    let exec = running.id().map(str::to_owned);
    let exec = exec.ok_or_else(|| Failure::setup("not_atoll", "the server's response has no command id"))?;
    let session = ShellSession::new(client, id, Some(exec), None);
    // While the client reads this response, the server does not end the command.
    let done = run_session(session, output).await;
    drop(running);
    done
}

async fn run_session(session: ShellSession<'_>, output: &Output) -> Result {
    if output.json {
        return Err(Failure::input("a terminal has no JSON output").with_hint("Omit --json."));
    }
    let Some(exit) = session.run().await? else { return Ok(()) };
    let (code, explanation) = exit_status(Some(exit));
    if let Some(explanation) = explanation {
        output.print_note(&format!("atoll: {explanation}"));
    }
    exit_with(code)
}
