//! `atoll-worker`: the command line of the worker.

use atoll_core::id::SandboxId;
use atoll_dispatcher::program::Program;
use atoll_dispatcher::{Exit, SETUP_FAILED};
use atoll_worker::setup::Options;
use atoll_worker::supervisor::{container, init, signals};
use atoll_worker::{demo, git, opencode, ports, setup, spawner, transcript, transfer};
use clap::Parser;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const AFTER_HELP: &str = "\
Lines in:
  {\"type\":\"agent.message\",\"data\":{\"text\":\"hi\"}}   an event; also source, at, turn
  {\"ack\":{\"id\":\"msg_…\",\"how\":\"injected\"}}         the agent has the message; how: injected, new_turn, restarted
  {\"nack\":{\"id\":\"msg_…\",\"handed\":false,\"reason\":\"…\",\"retry\":true}}
  {\"live\":{\"text\":\"h\"}}                           forwarded if the link is up, never stored
  {\"activity\":\"working\"}

Lines out:
  {\"key\":1}            the event is on disk and will reach the server; one for each event, in order
  {\"message\":{…}}      a message for the agent (with --messages)
  {\"stop\":\"completing\"}  the sandbox is ending: write the last lines within 2 seconds
  {\"error\":\"…\"}        an invalid control line

Exit codes:
  0  the server has everything
  2  the set-up failed
  3  some events are unsent and stay in the spool
  4  another worker has taken over this sandbox
  5  the server rejects this worker

Example:
  my-agent | atoll-worker --server https://atoll.example --sandbox sbx_… --token-file token --spool spool --stdin";

/// Send a program's events to Atoll and deliver messages to it.
///
/// The worker prints an event's key once the event is on disk, and sends the event until the server has stored it,
/// despite restarts, lost connections and kill -9.
#[derive(Debug, Parser)]
#[command(name = "atoll-worker", version, after_help = AFTER_HELP)]
struct Arguments {
    /// Server URL, http:// or https://
    #[arg(long, value_name = "URL")]
    server: String,
    /// Sandbox that this worker belongs to
    #[arg(long, value_name = "ID")]
    sandbox: SandboxId,
    /// File with the worker's token, readable by its owner only
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// Directory for unsent events, one per sandbox
    #[arg(long, value_name = "DIR")]
    spool: PathBuf,
    /// Read events as lines of JSON from stdin
    #[arg(long, required = true)]
    stdin: bool,
    /// Lease messages for the agent and print them on stdout
    #[arg(long)]
    messages: bool,
    /// Stop sending this long after the end of the input [default: never]
    #[arg(long, value_name = "SECONDS")]
    flush_timeout: Option<u64>,
}

fn main() -> ExitCode {
    // Internal subcommands, for providers and the worker itself: the help does not list them.
    let inner: Vec<String> = std::env::args().skip(1).collect();
    match inner.first().map(String::as_str) {
        Some("init") => init::main(),
        Some("spawner") => spawner::main(),
        Some("files") => transfer::main(),
        Some("as-agent") => container::run_as_agent(&inner[1..]),
        Some("demo") => demo::main(&inner[1..]),
        Some("opencode") => opencode::main(&inner[1..]),
        Some("port-programs") => ports::main(&inner[1..]),
        Some("transcript") => transcript::main(&inner[1..]),
        Some(
            "git-in" | "git-parts" | "git-out" | "git-diff" | "git-exclude" | "git-sync-in" | "git-sync-out"
            | "git-lfs-clean" | "git-lfs-smudge" | "cache-seal" | "cache-downloads",
        ) => git::main(inner),
        Some(_) | None => run_by_hand(),
    }
}

/// Runs a worker for the program at its stdin and stdout.
fn run_by_hand() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            drop(error.print());
            return if error.use_stderr() { ExitCode::from(SETUP_FAILED) } else { ExitCode::SUCCESS };
        }
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("ATOLL_LOG")
        .unwrap_or_else(|_| "atoll_worker=info,atoll_dispatcher=info".into());
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    log.with_target(false).with_ansi(colours).init();
    match run_worker(arguments) {
        Ok(Exit::Done) => ExitCode::SUCCESS,
        Ok(exit) => {
            print_error(&exit.to_string());
            ExitCode::from(exit.code())
        }
        Err(error) => {
            print_error(&format!("{error:#}"));
            ExitCode::from(SETUP_FAILED)
        }
    }
}

fn run_worker(arguments: Arguments) -> anyhow::Result<Exit> {
    let options = Options {
        server: arguments.server,
        sandbox: arguments.sandbox,
        token_file: arguments.token_file,
        spool: arguments.spool,
        messages: arguments.messages,
        flush_timeout: arguments.flush_timeout.map(Duration::from_secs),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let prepared = setup::prepare_worker(options)?;
    let run = async {
        let exit_signals = signals::receive_from_anyone()?;
        Ok::<_, anyhow::Error>(atoll_dispatcher::run_worker(prepared.worker, Program::on_stdio()?, exit_signals).await)
    };
    let exit = runtime.block_on(Box::pin(run))?;
    drop(prepared.lock);
    runtime.shutdown_background();
    Ok(exit)
}

fn print_error(message: &str) {
    drop(writeln!(std::io::stderr().lock(), "atoll-worker: {message}"));
}
