//! The open stream from the server: messages and commands. Reconnects by itself.

use crate::Exit;
use crate::backoff::Backoff;
use crate::dispatcher::{Phase, Report as Outward};
use crate::link::{Io, Problem, Server, chain};
use crate::spool::Stream;
use atoll_core::approval::ApprovalAnswer;
use atoll_core::id::LeaseId;
use atoll_core::limit::Limit;
use atoll_core::sandbox::{AgentLimits, SandboxState};
use atoll_protocol::frame::{Command, ServerFrame, WorkerFrame};
use atoll_protocol::{Heartbeat, LeasedMessage};
use futures_util::{SinkExt, StreamExt};
use serde_json::value::RawValue;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message, http::header::AUTHORIZATION};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

/// A link without a frame for so long is dead.
const SILENCE: Duration = Duration::from_secs(60);
/// Leases last three times as long.
const RENEW: Duration = Duration::from_secs(10);
const CONNECT: Duration = Duration::from_secs(30);
const SEND: Duration = Duration::from_secs(10);
/// The longest frame that is read: a prompt at its bound, with every character escaped.
const LONGEST_FRAME: usize = 8 * atoll_core::bounds::MB;

#[derive(Debug)]
pub enum Report {
    /// A message, leased to this worker.
    Message(Box<LeasedMessage>),
    /// What became of something that the agent asked.
    Answer(Box<ApprovalAnswer>),
    /// How much the agent may use, and what the server holds it back for.
    Limits(AgentLimits, Option<Limit>),
    Stop(SandboxState),
    Ended(Exit),
}

/// Streamed text, and the event after which it stands.
#[derive(Debug)]
pub struct Live {
    pub after_key: i64,
    pub data: Box<RawValue>,
}

pub struct Downlink {
    pub server: Server,
    pub stream: Stream,
    pub phase: watch::Receiver<Phase>,
    /// What the program holds and has not answered.
    pub leases: watch::Receiver<Vec<LeaseId>>,
    pub live: mpsc::Receiver<Live>,
    /// Signs of life that need no answer.
    pub beats: mpsc::Receiver<Heartbeat>,
    /// Whether it is connected.
    pub up: watch::Sender<bool>,
    pub reports: mpsc::Sender<Outward>,
}

type Socket = WebSocketStream<Box<dyn Io>>;

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("failed to connect")]
    Dial(#[from] std::io::Error),
    #[error("the server said no: {0}")]
    Refused(Problem),
    #[error("the WebSocket failed")]
    Socket(#[from] tungstenite::Error),
    #[error("{0}")]
    Silent(&'static str),
    #[error("the token can't be sent")]
    Token(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("a frame can't be written")]
    Frame(#[from] serde_json::Error),
    /// The worker is going.
    #[error("nobody listens any more")]
    Over,
}

impl Downlink {
    pub async fn run(mut self) {
        // The server has to know this stream before it leases anything to it.
        if self.phase.wait_for(|phase| phase.registered).await.is_err() {
            return;
        }
        let mut backoff = Backoff::default();
        while !self.is_over() {
            let error = match self.connect().await {
                Ok(socket) => {
                    let served = self.serve(socket, &mut backoff).await;
                    self.up.send_replace(false);
                    match served {
                        Ok(never) => match never {},
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            match error {
                Error::Over => return,
                Error::Refused(problem) if problem.code == "stream_fenced" => {
                    let exit = Exit::Fenced { detail: problem.to_string() };
                    drop(self.reports.send(Outward::Downlink(Report::Ended(exit))).await);
                    return;
                }
                error => tracing::warn!(error = chain(&error), "the message link is down; connecting again"),
            }
            backoff.wait(None).await;
        }
    }

    fn is_over(&self) -> bool {
        let phase = self.phase.borrow();
        phase.ended || phase.leaving
    }

    async fn connect(&self) -> Result<Socket, Error> {
        let path = self.server.path(&format!("stream?stream={}&boot={}", self.stream.id, self.stream.boot));
        let uri = format!("ws://{}{path}", self.server.dialer.host_header());
        let mut request = uri.into_client_request()?;
        if let Some(token) = self.server.authorization().map_err(Error::Token)? {
            request.headers_mut().insert(AUTHORIZATION, token);
        }
        let config =
            WebSocketConfig::default().max_message_size(Some(LONGEST_FRAME)).max_frame_size(Some(LONGEST_FRAME));
        let connecting = async {
            let io = self.server.dialer.dial().await?;
            match client_async_with_config(request, io, Some(config)).await {
                Ok((socket, _)) => Ok(socket),
                Err(tungstenite::Error::Http(response)) => {
                    let body = response.body().as_deref().unwrap_or_default();
                    Err(Error::Refused(Problem::of(response.status(), body)))
                }
                Err(error) => Err(error.into()),
            }
        };
        timeout(CONNECT, connecting).await.unwrap_or(Err(Error::Silent("no WebSocket in time")))
    }

    /// Until the link breaks.
    async fn serve(&mut self, mut socket: Socket, backoff: &mut Backoff) -> Result<std::convert::Infallible, Error> {
        // What was said while the link was down is not news any more.
        while self.live.try_recv().is_ok() {}
        while self.beats.try_recv().is_ok() {}
        self.up.send_replace(true);
        let mut renewed = Instant::now();
        let mut heard = Instant::now();
        let mut phase = self.phase.clone();
        let mut leases = self.leases.clone();
        let dies_silently = self.server.dialer.dies_silently();
        loop {
            tokio::select! {
                received = socket.next() => {
                    let message = received.ok_or(tungstenite::Error::ConnectionClosed)??;
                    heard = Instant::now();
                    backoff.reset();
                    self.receive(&mut socket, message).await?;
                }
                () = renewal_due(&mut leases, &mut renewed) => {
                    renewed = Instant::now();
                    let leases = leases.borrow().clone();
                    if !leases.is_empty() {
                        send(&mut socket, &WorkerFrame::Renew { leases }).await?;
                    }
                }
                Some(live) = self.live.recv() => {
                    let data = serde_json::from_str(live.data.get())?;
                    send(&mut socket, &WorkerFrame::Live { after_key: live.after_key, data }).await?;
                }
                Some(heartbeat) = self.beats.recv() => {
                    send(&mut socket, &WorkerFrame::Heartbeat { heartbeat, quiet: true }).await?;
                }
                // A message that came now would be given back, come again, be given back, and so on.
                () = leaving(&mut phase) => return Err(Error::Over),
                () = sleep_until(heard + SILENCE), if dies_silently => return Err(Error::Silent("the server was silent for 60 s")),
            }
        }
    }

    async fn receive(&self, socket: &mut Socket, message: Message) -> Result<(), Error> {
        let frame = match &message {
            Message::Text(text) => serde_json::from_str(text.as_str()),
            Message::Binary(bytes) => serde_json::from_slice(bytes),
            // The library answers pings and closes; the end of the stream follows a close.
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_) => return Ok(()),
        };
        match frame {
            Ok(ServerFrame::Message { message }) => self.report(Report::Message(Box::new(message))).await,
            Ok(ServerFrame::Approval { answer }) => self.report(Report::Answer(Box::new(answer))).await,
            Ok(ServerFrame::Limits { limits, held }) => self.report(Report::Limits(limits, held)).await,
            Ok(ServerFrame::Command { command: Command::Stop { state }, .. }) => self.report(Report::Stop(state)).await,
            Ok(ServerFrame::Command { id, command: Command::Unknown }) => {
                tracing::warn!(id, "a command of a newer server is passed over");
                Ok(())
            }
            Ok(ServerFrame::Ping { id }) => send(socket, &WorkerFrame::Pong { id }).await,
            Ok(ServerFrame::Refused { id, lease, code, detail }) => {
                let message = id.map(|id| id.to_string());
                tracing::info!(message, %lease, code, detail, "the server did not renew a lease");
                Ok(())
            }
            // Heartbeats and answers go over requests of their own.
            Ok(ServerFrame::Heartbeat { .. } | ServerFrame::Settled { .. } | ServerFrame::Unknown) => Ok(()),
            Err(error) => {
                tracing::warn!(%error, "a frame of the server can't be read and is passed over");
                Ok(())
            }
        }
    }

    async fn report(&self, report: Report) -> Result<(), Error> {
        self.reports.send(Outward::Downlink(report)).await.map_err(|_| Error::Over)
    }
}

/// When there is something to renew, and it is time to. With nothing to renew, no clock runs.
async fn renewal_due(leases: &mut watch::Receiver<Vec<LeaseId>>, renewed: &mut Instant) {
    if leases.borrow().is_empty() {
        // If nobody says so any more, the worker is going.
        if leases.wait_for(|leases| !leases.is_empty()).await.is_err() {
            std::future::pending::<()>().await;
        }
        *renewed = Instant::now();
    }
    sleep_until(*renewed + RENEW).await;
}

async fn leaving(phase: &mut watch::Receiver<Phase>) {
    // If nobody says so any more, the worker is going too.
    drop(phase.wait_for(|phase| phase.leaving).await);
}

async fn send(socket: &mut Socket, frame: &WorkerFrame) -> Result<(), Error> {
    let text = serde_json::to_string(frame)?;
    match timeout(SEND, socket.send(Message::text(text))).await {
        Ok(sent) => Ok(sent?),
        Err(_) => Err(Error::Silent("the server does not read")),
    }
}
