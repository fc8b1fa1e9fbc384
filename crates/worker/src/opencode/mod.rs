//! The bridge to OpenCode, which is an HTTP server with an event stream, while the executor talks to agents in lines.
//! The bridge runs as the agent's process, spawns the server and ends with it.
//!
//! `atoll_drivers::opencode::bridge` defines its lines. `request` converts them to HTTP requests, `server` owns the
//! process, `http` talks to it, and `session_export` prints a session's transcript.

use atoll_drivers::opencode::bridge::{BridgeInput, BridgeOutput};
use http::ServerClient;
use server_process::OpenCodeServer;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

mod http;
mod request;
mod server_process;
mod session_export;

pub use session_export::print_transcript;

/// Opening a session includes OpenCode's whole initialization.
const SESSION_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum wait for the server's exit after its event stream broke.
const EXIT_GRACE: Duration = Duration::from_secs(1);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// A shell's exit code for a killed command.
const EXIT_CODE_KILLED: u8 = 128 + 9;

/// Runs until the input or the server ends. Arguments: the server's program and the session to resume.
pub fn main(arguments: &[String]) -> ExitCode {
    let Some(program) = arguments.first() else {
        return exit_with_error("usage: atoll-worker opencode PROGRAM [SESSION]");
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit_with_error(&format!("failed to start the runtime: {error}")),
    };
    let ended = runtime.block_on(Box::pin(run_bridge(program, arguments.get(1).map(String::as_str))));
    // Abandons the blocking read of standard input.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(BridgeFailure::Message(error)) => exit_with_error(&error),
        // Ends like its server, so that the executor can tell whether memory ran out.
        Err(BridgeFailure::Killed(error)) => {
            drop(writeln!(std::io::stderr().lock(), "{error}"));
            ExitCode::from(EXIT_CODE_KILLED)
        }
    }
}

enum BridgeFailure {
    Message(String),
    /// The server was killed and reported no error.
    Killed(String),
}

impl<T: Into<String>> From<T> for BridgeFailure {
    fn from(error: T) -> Self {
        Self::Message(error.into())
    }
}

fn exit_with_error(error: &str) -> ExitCode {
    print_output(&BridgeOutput::Failed { error: error.to_owned() });
    ExitCode::FAILURE
}

async fn run_bridge(program: &str, session: Option<&str>) -> Result<(), BridgeFailure> {
    // A signal to the bridge ends the server, too.
    let mut stop_signals = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    let [Ok(terminated), Ok(interrupted)] = &mut stop_signals else {
        return Err("failed to install signal handlers".into());
    };
    let mut server = OpenCodeServer::start(program).await?;
    let client = server.client();
    // Lets the transcript export use this server instead of starting the program.
    let _known = session_export::AdvertisedServer::advertise(&client);
    let mut events = tokio::time::timeout(SESSION_TIMEOUT, client.open_events())
        .await
        .map_err(|_| "OpenCode's event stream timed out")??;
    let opened = tokio::time::timeout(SESSION_TIMEOUT, client.open_session(session)).await;
    let session = opened.map_err(|_| "opening a session of OpenCode timed out")??;
    print_output(&BridgeOutput::Ready { session: session.clone() });

    // Requests are posted in order; an abort does not wait for them.
    let (orders, mut received) = mpsc::unbounded_channel::<BridgeInput>();
    let (worker, its_session) = (client.clone(), session.clone());
    let posting = tokio::spawn(async move {
        while let Some(order) = received.recv().await {
            post_order(&worker, &its_session, order).await;
        }
    });
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    loop {
        tokio::select! {
            line = lines.next_line() => match line {
                Ok(Some(line)) => match serde_json::from_str(&line) {
                    Ok(BridgeInput::Abort {}) => {
                        let (client, session) = (client.clone(), session.clone());
                        tokio::spawn(async move { post_order(&client, &session, BridgeInput::Abort {}).await });
                    }
                    Ok(order) => drop(orders.send(order)),
                    // Ignores unknown lines of a newer worker.
                    Err(_) => {}
                },
                Ok(None) | Err(_) => break,
            },
            event = events.next_event() => match event {
                Ok(data) => print_output(&BridgeOutput::Event { data }),
                // If the server has ended, its exit status says more than the broken stream.
                Err(broken) => return Err(match tokio::time::timeout(EXIT_GRACE, server.wait_for_exit()).await {
                    Ok(status) => server_exit_failure(status),
                    Err(_) => broken.into(),
                }),
            },
            _ = terminated.recv() => break,
            _ = interrupted.recv() => break,
            status = server.wait_for_exit() => return Err(server_exit_failure(status)),
        }
    }
    posting.abort();
    server.stop().await;
    Ok(())
}

fn server_exit_failure(status: std::io::Result<ExitStatus>) -> BridgeFailure {
    match status {
        Ok(status) if status.signal() == Some(rustix::process::Signal::KILL.as_raw()) => {
            BridgeFailure::Killed(format!("OpenCode's server ended with {status}"))
        }
        Ok(status) => BridgeFailure::Message(format!("OpenCode's server ended with {status}")),
        Err(error) => BridgeFailure::Message(format!("failed to wait for OpenCode's server: {error}")),
    }
}

/// Posts a request and reports an error, if any.
async fn post_order(client: &ServerClient, session: &str, order: BridgeInput) {
    let (what, id, path, body) = request::build_request(order, session);
    let answered = tokio::time::timeout(REQUEST_TIMEOUT, client.post_json(&path, &body)).await;
    let error = match answered {
        Ok(Ok(_)) => return,
        Ok(Err(error)) => error,
        Err(_) => "OpenCode's server timed out".to_owned(),
    };
    print_output(&BridgeOutput::Refused { what: what.to_owned(), id, error });
}

fn print_output(line: &BridgeOutput) {
    // Serialising this enum cannot fail; write errors mean that the worker is gone.
    let mut bytes = serde_json::to_vec(line).unwrap_or_default();
    bytes.push(b'\n');
    let mut out = std::io::stdout().lock();
    drop(out.write_all(&bytes).and_then(|()| out.flush()));
}
