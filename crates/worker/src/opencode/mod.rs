//! The bridge to OpenCode, which is a server of its own: it speaks HTTP and sends its events as a stream, while the
//! executor speaks to agents in lines. Runs in the agent's place, starts the server beside it, and lives as long as it.
//!
//! `wire` is how it is spoken to, `server` the process, `http` the way to it.

use http::Client;
use server::Server;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use wire::{In, Out};

mod http;
mod server;
mod transcript;
pub mod wire;

pub use transcript::print as print_transcript;

/// For the server to take a conversation up, which it prepares everything for.
const OPENING: Duration = Duration::from_secs(60);
/// For a server whose stream broke to be seen gone.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// For anything else that it is asked.
const ANSWER: Duration = Duration::from_secs(30);
/// What a shell would end with, whose command was killed.
const KILLED: u8 = 128 + 9;

/// Runs until the input ends, or the server does. The arguments are the server's program, and the session to go on with.
pub fn main(arguments: &[String]) -> ExitCode {
    let Some(program) = arguments.first() else { return give_up("there is no program to start") };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return give_up(&format!("failed to begin: {error}")),
    };
    let ended = runtime.block_on(Box::pin(run(program, arguments.get(1).map(String::as_str))));
    // Whoever waits for a line that does not come is left behind.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(Fault::Said(error)) => give_up(&error),
        // It ends as its server did: whether that was for its memory, only the executor can tell.
        Err(Fault::Killed(error)) => {
            drop(writeln!(std::io::stderr().lock(), "{error}"));
            ExitCode::from(KILLED)
        }
    }
}

/// Why there is nothing to go on with.
enum Fault {
    Said(String),
    /// The server was killed, without a word of its own.
    Killed(String),
}

impl<T: Into<String>> From<T> for Fault {
    fn from(error: T) -> Self {
        Self::Said(error.into())
    }
}

fn give_up(error: &str) -> ExitCode {
    say(&Out::Failed { error: error.to_owned() });
    ExitCode::FAILURE
}

async fn run(program: &str, session: Option<&str>) -> Result<(), Fault> {
    // The server goes with it, however it is told to go.
    let mut told_to_go = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    let [Ok(terminated), Ok(interrupted)] = &mut told_to_go else { return Err("it can't hear signals".into()) };
    let mut server = Server::start(program).await?;
    let client = server.client();
    // Whoever takes the transcript out asks the server for it; without this it starts the program anew.
    let _known = transcript::Known::tell(&client);
    let mut events = tokio::time::timeout(OPENING, client.events()).await.map_err(|_| "its events do not come")??;
    let opened = tokio::time::timeout(OPENING, client.open(session)).await;
    let session = opened.map_err(|_| "it does not begin a session in time")??;
    say(&Out::Ready { session: session.clone() });

    // One after the other, so that what was said first is there first; a word to stop waits for none of it.
    let (orders, mut taken) = mpsc::unbounded_channel::<In>();
    let (worker, its_session) = (client.clone(), session.clone());
    let posting = tokio::spawn(async move {
        while let Some(order) = taken.recv().await {
            post(&worker, &its_session, order).await;
        }
    });
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    loop {
        tokio::select! {
            line = lines.next_line() => match line {
                Ok(Some(line)) => match serde_json::from_str(&line) {
                    Ok(In::Abort {}) => {
                        let (client, session) = (client.clone(), session.clone());
                        tokio::spawn(async move { post(&client, &session, In::Abort {}).await });
                    }
                    Ok(order) => drop(orders.send(order)),
                    // A line of a newer worker says nothing to this one.
                    Err(_) => {}
                },
                Ok(None) | Err(_) => break,
            },
            event = events.next() => match event {
                Ok(event) => say(&Out::Event { event }),
                // A server that is no more breaks the stream first; how it ended says more.
                Err(broken) => return Err(match tokio::time::timeout(LAST_WORDS, server.ended()).await {
                    Ok(status) => ended(status),
                    Err(_) => broken.into(),
                }),
            },
            _ = terminated.recv() => break,
            _ = interrupted.recv() => break,
            status = server.ended() => return Err(ended(status)),
        }
    }
    posting.abort();
    server.end().await;
    Ok(())
}

fn ended(status: std::io::Result<ExitStatus>) -> Fault {
    match status {
        Ok(status) if status.signal() == Some(rustix::process::Signal::KILL.as_raw()) => {
            Fault::Killed(format!("the server of OpenCode ended with {status}"))
        }
        Ok(status) => Fault::Said(format!("the server of OpenCode ended with {status}")),
        Err(error) => Fault::Said(format!("the server of OpenCode was lost: {error}")),
    }
}

/// Only a refusal means something.
async fn post(client: &Client, session: &str, order: In) {
    let (what, id, path, body) = order.request(session);
    let answered = tokio::time::timeout(ANSWER, client.post(&path, &body)).await;
    let error = match answered {
        Ok(Ok(_)) => return,
        Ok(Err(error)) => error,
        Err(_) => "it does not answer in time".to_owned(),
    };
    say(&Out::Refused { what: what.to_owned(), id, error });
}

fn say(line: &Out) {
    // Writing such an enum into memory can't fail; whoever does not read any more has no use for it.
    let mut bytes = serde_json::to_vec(line).unwrap_or_default();
    bytes.push(b'\n');
    let mut out = std::io::stdout().lock();
    drop(out.write_all(&bytes).and_then(|()| out.flush()));
}
