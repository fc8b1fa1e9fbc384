//! `atoll-worker`: the command line of the worker.

use atoll_core::id::SandboxId;
use atoll_worker::exit::SETUP_WRONG;
use atoll_worker::program::Program;
use atoll_worker::setup::Options;
use atoll_worker::{
    Exit, container, demo, dispatcher, git, hands, init, opencode, setup, signals, transcript, transfer,
};
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
  {\"live\":{\"text\":\"h\"}}                           passed on if the link is up, never stored
  {\"activity\":\"working\"}

Lines out:
  {\"key\":1}            the event is on disk and will reach the server; one for each event, in order
  {\"message\":{…}}      a message for the agent (with --messages)
  {\"stop\":\"completing\"}  the sandbox is ending: write what is left within 2 seconds
  {\"error\":\"…\"}        a line of control that could not be followed

Exit codes:
  0  everything was sent
  2  the set-up is wrong
  3  not everything was sent in time; the rest stays in the spool
  4  another worker has taken over this sandbox
  5  the server refuses this worker

Example:
  my-agent | atoll-worker --server https://atoll.example --sandbox sbx_… --token-file token --spool spool --stdin";

/// Carries a program's events to Atoll and messages back.
///
/// Every event is on disk before its key is printed, and is sent until the server has stored it:
/// through restarts, lost connections and kill -9.
#[derive(Debug, Parser)]
#[command(name = "atoll-worker", version, after_help = AFTER_HELP)]
struct Arguments {
    /// The server's address, http:// or https://
    #[arg(long, value_name = "URL")]
    server: String,
    /// The sandbox that this worker speaks for
    #[arg(long, value_name = "ID")]
    sandbox: SandboxId,
    /// A file that holds the worker's token; only its owner should be able to read it
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// The directory that keeps what the server does not have yet; one for each sandbox
    #[arg(long, value_name = "DIR")]
    spool: PathBuf,
    /// Take events as lines of JSON from standard input
    #[arg(long, required = true)]
    stdin: bool,
    /// Take messages for the agent and hand them over on standard output
    #[arg(long)]
    messages: bool,
    /// When the input has ended, give up sending after this long [default: never]
    #[arg(long, value_name = "SECONDS")]
    flush_timeout: Option<u64>,
}

fn main() -> ExitCode {
    // What the worker itself starts, or whoever makes a sandbox. None of it is for people, so the help is silent about it.
    let inner: Vec<String> = std::env::args().skip(1).collect();
    match inner.first().map(String::as_str) {
        Some("init") => init::main(),
        Some("hands") => hands::main(),
        Some("files") => transfer::main(),
        Some("as-agent") => container::as_agent(&inner[1..]),
        Some("demo") => demo::main(&inner[1..]),
        Some("opencode") => opencode::main(&inner[1..]),
        Some("transcript") => transcript::main(&inner[1..]),
        Some("git-in" | "git-out" | "git-diff") => git::main(inner),
        Some(_) | None => by_hand(),
    }
}

/// The worker of a program at its standard input and output.
fn by_hand() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            drop(error.print());
            return if error.use_stderr() { ExitCode::from(SETUP_WRONG) } else { ExitCode::SUCCESS };
        }
    };
    let filter =
        tracing_subscriber::EnvFilter::try_from_env("ATOLL_LOG").unwrap_or_else(|_| "atoll_worker=info".into());
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    log.with_target(false).with_ansi(colours).init();
    match start(arguments) {
        Ok(Exit::Done) => ExitCode::SUCCESS,
        Ok(exit) => {
            say(&exit.to_string());
            ExitCode::from(exit.code())
        }
        Err(error) => {
            say(&format!("{error:#}"));
            ExitCode::from(SETUP_WRONG)
        }
    }
}

fn start(arguments: Arguments) -> anyhow::Result<Exit> {
    let options = Options {
        server: arguments.server,
        sandbox: arguments.sandbox,
        token_file: arguments.token_file,
        spool: arguments.spool,
        messages: arguments.messages,
        flush_timeout: arguments.flush_timeout.map(Duration::from_secs),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let worker = setup::Worker::prepare(options)?;
    let run = async {
        let told_to_go = signals::from_anyone()?;
        Ok::<_, anyhow::Error>(dispatcher::run(worker, Program::of_lines()?, told_to_go).await?)
    };
    let exit = runtime.block_on(Box::pin(run))?;
    runtime.shutdown_background();
    Ok(exit)
}

fn say(sentence: &str) {
    drop(writeln!(std::io::stderr().lock(), "atoll-worker: {sentence}"));
}
