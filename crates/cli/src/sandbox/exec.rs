//! `atoll sandbox exec`: runs a command and passes on its output and exit code.

use super::readiness::retry_until_running;
use super::{exec_list, shell};
use crate::arguments::parse_pair;
use crate::connect::ConnectedClient;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::references::SandboxRef;
use crate::render::text;
use crate::run::signals::Signals;
use crate::stdin_stream::stdin_body;
use atoll_api::{ErrorCode, ExecInput, ExecOutput, NewExec};
use atoll_client::{CommandStream, output_bytes};
use atoll_core::id::SandboxId;
use atoll_core::provider::{CommandExit, OutputStream};
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::FileTypeExt;
use std::time::Duration;
use tokio::time::timeout;

/// Limit on the wait for the server during a clean-up.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(5);
const TIMED_OUT: u8 = 124;
const OUT_OF_MEMORY: u8 = 125;
const UNKNOWN: u8 = 126;
const SIGNALLED: u8 = 128;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox exec sbx_… -- cargo test
  atoll sandbox exec sbx_… --shell 'ls | wc -l' --cwd src
  atoll sandbox exec sbx_… -- git apply < change.patch
  tar c src | atoll sandbox exec sbx_… -- tar x
  atoll sandbox exec sbx_… -t -- htop
  atoll sandbox exec sbx_… --list

Piped input becomes the command's input. Ctrl-C kills the command and its child processes. The exit code
is the command's own, or 128 plus the signal that killed it; 124 after a timeout, 125 when out of memory,
126 when unknown.")]
pub struct Exec {
    /// Sandbox: id, end of the id, name, branch or `last`
    id: SandboxRef,
    /// Program and its arguments
    #[arg(last = true, required_unless_present_any = ["shell", "list", "kill"], conflicts_with = "shell", value_name = "ARGV")]
    argv: Vec<String>,
    /// Run this command line with /bin/sh
    #[arg(long, value_name = "TEXT")]
    shell: Option<String>,
    /// Working directory [default: the workspace]
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Set an environment variable (repeatable)
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = parse_pair)]
    env: Vec<(String, String)>,
    /// Run as root of the sandbox; requires an image
    #[arg(long)]
    root: bool,
    /// Stop after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    timeout: Option<u32>,
    /// Ignore piped input
    #[arg(long)]
    no_stdin: bool,
    /// Run the command in a terminal; Ctrl-] detaches
    #[arg(short = 't', long = "terminal", conflicts_with = "no_stdin")]
    terminal: bool,
    /// List running and recently ended commands
    #[arg(long, conflicts_with_all = ["argv", "shell", "kill"])]
    list: bool,
    /// Kill a command and its child processes
    #[arg(long, alias = "end", value_name = "EID", conflicts_with_all = ["argv", "shell"])]
    kill: Option<String>,
}

impl Exec {
    fn request(&self, has_input: bool) -> NewExec {
        NewExec {
            argv: self.shell.is_none().then(|| self.argv.clone()),
            shell: self.shell.clone(),
            cwd: self.cwd.clone(),
            env: self.env.iter().cloned().collect(),
            stdin: has_input.then_some(ExecInput::Open(true)),
            root: self.root,
            timeout_s: self.timeout,
            terminal: None,
        }
    }
}

pub async fn run(exec: &Exec, client: &ConnectedClient, output: &Output) -> Result {
    let sandbox = exec.id.resolve(client).await?;
    if exec.list {
        return exec_list::print_execs(sandbox, client, output).await;
    }
    if let Some(command) = &exec.kill {
        return exec_list::kill_exec(sandbox, command, client, output).await;
    }
    if exec.terminal {
        return shell::run_on_terminal(sandbox, exec.request(false), client, output).await;
    }
    let mut signals = Signals::listen()?;
    let has_input = !exec.no_stdin && is_stdin_piped();
    let request = exec.request(has_input);
    let starting =
        retry_until_running(sandbox, client, output, async || Ok(client.run_command(sandbox, &request).await?));
    tokio::pin!(starting);
    let (mut running, interrupted) = tokio::select! {
        running = &mut starting => (running?, false),
        // The command may have started: wait for its id, to kill it.
        _ = signals.next() => match timeout(CLEANUP_TIMEOUT, &mut starting).await {
            Ok(running) => (running?, true),
            Err(_) => return Err(Failure::interrupted()),
        },
    };
    let id = running.id().map(str::to_owned);
    let id = id.ok_or_else(|| Failure::setup("not_atoll", "the server's response has no command id"))?;
    let exit = if interrupted {
        Err(Failure::interrupted())
    } else {
        tokio::select! {
            exit = attend_command(&mut running, (sandbox, &id), has_input, client, output) => exit,
            _ = signals.next() => Err(Failure::interrupted()),
        }
    };
    let exit = match exit {
        Ok(exit) => exit,
        Err(failure) => {
            // Without this client the command would run unnoticed.
            return match timeout(CLEANUP_TIMEOUT, client.kill_command(sandbox, &id)).await {
                Ok(Ok(_)) => Err(failure),
                Ok(Err(_)) | Err(_) => {
                    let list = format!("atoll sandbox exec {} --list", sandbox);
                    output.print_note(&format!("atoll: the command may still run; see `{list}`"));
                    Err(failure)
                }
            };
        }
    };
    let (code, explanation) = exit_status(exit);
    if let Some(explanation) = explanation.filter(|_| !output.json) {
        output.print_note(&format!("atoll: {explanation}"));
    }
    exit_with(code)
}

/// Prints the command's output to its end, and sends it the piped input.
async fn attend_command(
    running: &mut CommandStream,
    (sandbox, id): (SandboxId, &str),
    has_input: bool,
    client: &ConnectedClient,
    output: &Output,
) -> Result<Option<CommandExit>> {
    let reading = print_output(running, output);
    tokio::pin!(reading);
    if !has_input {
        return reading.await;
    }
    let sent = tokio::select! {
        exit = &mut reading => return exit,
        sent = client.send_command_input(sandbox, id, stdin_body(), true) => sent,
    };
    match sent {
        Ok(_) => reading.await,
        // The command takes no more input, or it has ended.
        Err(error) if error.code() == Some(ErrorCode::NoInput) => reading.await,
        Err(error) => timeout(CLEANUP_TIMEOUT, &mut reading).await.unwrap_or(Err(error.into())),
    }
}

async fn print_output(running: &mut CommandStream, output: &Output) -> Result<Option<CommandExit>> {
    let mut printer = OutputPrinter::new(output);
    let mut exit = None;
    while let Some(line) = running.next().await? {
        printer.print(&line)?;
        if let ExecOutput::Exit { exit: ended } | ExecOutput::Failed { exit: ended, .. } = line {
            exit = Some(ended);
        }
        if running.is_waiting() {
            output.flush()?;
        }
    }
    printer.finish()?;
    Ok(exit)
}

/// Ends this program with the exit code of a command.
pub(super) const fn exit_with(code: u8) -> Result {
    if code == 0 { Ok(()) } else { Err(Failure::Silent(code)) }
}

/// stdin is a pipe or a file, and neither a terminal nor a device such as /dev/null.
fn is_stdin_piped() -> bool {
    let stdin = std::io::stdin();
    let is_device = || {
        let own = rustix::io::dup(&stdin).map(File::from);
        own.and_then(|file| file.metadata().map_err(|_| rustix::io::Errno::BADF))
            .is_ok_and(|found| found.file_type().is_char_device())
    };
    !stdin.is_terminal() && !is_device()
}

/// The exit code, and an explanation if the code does not suffice.
pub(super) fn exit_status(exit: Option<CommandExit>) -> (u8, Option<&'static str>) {
    const UNKNOWN_EXIT: &str = "the command's exit status is unknown";
    match exit {
        Some(CommandExit::Exited { code }) => {
            u8::try_from(code).map_or((UNKNOWN, Some(UNKNOWN_EXIT)), |code| (code, None))
        }
        Some(CommandExit::Signalled { signal }) => (SIGNALLED.saturating_add(u8::try_from(signal).unwrap_or(0)), None),
        Some(CommandExit::OutOfMemory) => (OUT_OF_MEMORY, Some("the command was killed: the sandbox is out of memory")),
        Some(CommandExit::TimedOut) => (TIMED_OUT, Some("the command was killed: it timed out")),
        Some(CommandExit::Unknown) | None => (UNKNOWN, Some(UNKNOWN_EXIT)),
    }
}

/// Prints the command's stdout and stderr to ours.
struct OutputPrinter<'a> {
    output: &'a Output,
    stdout: TerminalEscaper,
    stderr: TerminalEscaper,
}

impl<'a> OutputPrinter<'a> {
    fn new(output: &'a Output) -> Self {
        let escaper = |is_terminal: bool| TerminalEscaper { is_terminal, incomplete: Vec::new() };
        let (stdout, stderr) = (std::io::stdout().is_terminal(), std::io::stderr().is_terminal());
        Self { output, stdout: escaper(stdout), stderr: escaper(stderr) }
    }

    fn print(&mut self, line: &ExecOutput) -> Result {
        if self.output.json {
            return self.output.print_response(line);
        }
        match line {
            ExecOutput::Failed { error, .. } => self.output.print_note(&format!("atoll: {error}")),
            ExecOutput::Gap { gap } => self.output.print_note(&format!("atoll: output up to byte {gap} is lost")),
            ExecOutput::Text { .. } | ExecOutput::Binary { .. } | ExecOutput::Exit { .. } => {}
        }
        match output_bytes(line) {
            Some((OutputStream::Stderr, data)) => {
                // Nothing can be done if stderr is closed.
                drop(std::io::stderr().lock().write_all(&self.stderr.escape(&data)));
                Ok(())
            }
            Some((OutputStream::Stdout, data)) => self.output.write_bytes(&self.stdout.escape(&data)),
            None => Ok(()),
        }
    }

    /// Prints incomplete characters at the end of the output.
    fn finish(&mut self) -> Result {
        let (stdout, stderr) = (self.stdout.take_rest(), self.stderr.take_rest());
        drop(std::io::stderr().lock().write_all(&stderr));
        self.output.write_bytes(&stdout)?;
        self.output.flush()
    }
}

/// Escapes output for a terminal; passes it unchanged to a pipe.
#[derive(Debug, Default)]
struct TerminalEscaper {
    is_terminal: bool,
    /// The start of an incomplete character.
    incomplete: Vec<u8>,
}

impl TerminalEscaper {
    fn escape(&mut self, data: &[u8]) -> Vec<u8> {
        if !self.is_terminal {
            return data.to_vec();
        }
        self.incomplete.extend_from_slice(data);
        let complete = match std::str::from_utf8(&self.incomplete) {
            // An error without a length is an incomplete character, not an invalid one.
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.incomplete.len(),
        };
        let rest = self.incomplete.split_off(complete);
        let complete = std::mem::replace(&mut self.incomplete, rest);
        text::escape_block(&String::from_utf8_lossy(&complete)).into_bytes()
    }

    fn take_rest(&mut self) -> Vec<u8> {
        String::from_utf8_lossy(&std::mem::take(&mut self.incomplete)).into_owned().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exit_has_a_code() {
        let code = |exit: CommandExit| exit_status(Some(exit)).0;
        assert_eq!(code(CommandExit::Exited { code: 0 }), 0);
        assert_eq!(code(CommandExit::Exited { code: 3 }), 3);
        assert_eq!(code(CommandExit::Exited { code: -1 }), 126, "an invalid code is never 0");
        assert_eq!(code(CommandExit::Signalled { signal: 9 }), 137);
        assert_eq!(code(CommandExit::OutOfMemory), 125);
        assert_eq!(code(CommandExit::TimedOut), 124);
        assert_eq!(code(CommandExit::Unknown), 126);
        assert_eq!(exit_status(None).0, 126);
    }

    #[test]
    fn a_terminal_gets_complete_escaped_characters() {
        let mut terminal = TerminalEscaper { is_terminal: true, incomplete: Vec::new() };
        assert_eq!(terminal.escape(b"a\xc3"), b"a");
        assert_eq!(terminal.escape(b"\xa4\x1b[2J\n"), "ä␛[2J\n".as_bytes());
        assert_eq!(terminal.escape(b"\xff!"), "\u{fffd}!".as_bytes());
        assert_eq!(terminal.escape(b"\xe2\x82"), b"");
        assert_eq!(terminal.take_rest(), "\u{fffd}".as_bytes());
        let mut pipe = TerminalEscaper::default();
        assert_eq!(pipe.escape(b"\xff\x1b"), b"\xff\x1b");
    }
}
