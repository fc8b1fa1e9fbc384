//! The downlink: a WebSocket that brings messages, approvals, limits and commands. Reconnects after a failure.
//!
//! The worker sends only what may be lost on it: lease renewals and live text.

use crate::link::{Io, Server, parse_problem};
use atoll_dispatcher::Exit;
use atoll_dispatcher::link::backoff::Backoff;
use atoll_dispatcher::link::downlink::{DownlinkChannels, DownlinkReport, OpenLeases, wait_for_leaving};
use atoll_dispatcher::link::{Problem, chain};
use atoll_protocol::frame::{ServerFrame, WorkerCommand, WorkerFrame};
use futures_util::{SinkExt, StreamExt};
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message, http::header::AUTHORIZATION};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

/// A connection without a frame for this long is dead.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Room for a prompt of the maximum size with every character escaped.
const MAX_FRAME_BYTES: usize = 8 * atoll_core::bounds::MB;

pub(super) struct Downlink {
    pub server: Server,
    pub channels: DownlinkChannels,
}

type Socket = WebSocketStream<Box<dyn Io>>;

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("failed to connect")]
    Dial(#[from] std::io::Error),
    #[error("the server refused the connection: {0}")]
    Refused(Problem),
    #[error("the WebSocket failed")]
    Socket(#[from] tungstenite::Error),
    #[error("{0}")]
    Silent(&'static str),
    #[error("the token is not a valid header value")]
    Token(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("failed to serialize a frame")]
    Frame(#[from] serde_json::Error),
    /// The worker is shutting down.
    #[error("the worker is shutting down")]
    ShuttingDown,
}

impl Downlink {
    pub(super) async fn run(mut self) {
        if !self.channels.wait_until_registered().await {
            return;
        }
        let mut backoff = Backoff::default();
        while !self.is_finished() {
            let error = match self.connect().await {
                Ok(socket) => self.serve(socket, &mut backoff).await,
                Err(error) => error,
            };
            match error {
                Error::ShuttingDown => return,
                Error::Refused(problem) if problem.code == "stream_fenced" => {
                    let exit = Exit::Fenced { detail: problem.to_string() };
                    self.channels.report(DownlinkReport::Ended(exit)).await;
                    return;
                }
                error => tracing::warn!(error = chain(&error), "the downlink failed; reconnecting"),
            }
            backoff.wait(None).await;
        }
    }

    fn is_finished(&self) -> bool {
        let phase = self.channels.phase.borrow();
        phase.ended || phase.leaving
    }

    async fn connect(&self) -> Result<Socket, Error> {
        let stream = self.channels.stream;
        let path = self.server.path(&format!("stream?stream={}&boot={}", stream.id, stream.boot));
        let uri = format!("ws://{}{path}", self.server.dialer.host_header());
        let mut request = uri.into_client_request()?;
        if let Some(token) = self.server.authorization().map_err(Error::Token)? {
            request.headers_mut().insert(AUTHORIZATION, token);
        }
        let config =
            WebSocketConfig::default().max_message_size(Some(MAX_FRAME_BYTES)).max_frame_size(Some(MAX_FRAME_BYTES));
        let connecting = async {
            let io = self.server.dialer.dial().await?;
            match client_async_with_config(request, io, Some(config)).await {
                Ok((socket, _)) => Ok(socket),
                Err(tungstenite::Error::Http(response)) => {
                    let body = response.body().as_deref().unwrap_or_default();
                    Err(Error::Refused(parse_problem(response.status(), body)))
                }
                Err(error) => Err(error.into()),
            }
        };
        timeout(CONNECT_TIMEOUT, connecting).await.unwrap_or(Err(Error::Silent("the connection timed out")))
    }

    /// Serves a connection until it fails.
    async fn serve(&mut self, mut socket: Socket, backoff: &mut Backoff) -> Error {
        match self.exchange_frames(&mut socket, backoff).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn exchange_frames(&mut self, socket: &mut Socket, backoff: &mut Backoff) -> Result<Infallible, Error> {
        // Live text from before the connection is outdated.
        while self.channels.live.try_recv().is_ok() {}
        let mut renewed = Instant::now();
        let mut last_frame_at = Instant::now();
        let mut phase = self.channels.phase.clone();
        let mut leases = self.channels.leases.clone();
        let dies_silently = self.server.dialer.dies_silently();
        loop {
            tokio::select! {
                received = socket.next() => {
                    let message = received.ok_or(tungstenite::Error::ConnectionClosed)??;
                    last_frame_at = Instant::now();
                    backoff.reset();
                    self.handle_frame(socket, message).await?;
                }
                () = wait_for_renewal(&mut leases, &mut renewed) => {
                    renewed = Instant::now();
                    let leases = leases.borrow().ids.clone();
                    if !leases.is_empty() {
                        send_frame(socket, &WorkerFrame::Renew { leases }).await?;
                    }
                }
                Some(live) = self.channels.live.recv() => {
                    let data = serde_json::from_str(live.data.get())?;
                    send_frame(socket, &WorkerFrame::Live { after_key: live.after_key, data }).await?;
                }
                () = wait_for_leaving(&mut phase) => return Err(Error::ShuttingDown),
                () = sleep_until(last_frame_at + SILENCE_TIMEOUT), if dies_silently => {
                    return Err(Error::Silent("the server sent nothing for 60 s"));
                }
            }
        }
    }

    async fn handle_frame(&self, socket: &mut Socket, message: Message) -> Result<(), Error> {
        let frame = match &message {
            Message::Text(text) => serde_json::from_str(text.as_str()),
            Message::Binary(bytes) => serde_json::from_slice(bytes),
            // The library answers pings and closes; after a close the stream ends.
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_) => return Ok(()),
        };
        match frame {
            Ok(ServerFrame::Message { message }) => self.report(DownlinkReport::Message(Box::new(message))).await,
            Ok(ServerFrame::Approval { answer }) => self.report(DownlinkReport::Answer(Box::new(answer))).await,
            Ok(ServerFrame::Limits { limits, held: exhausted }) => {
                self.report(DownlinkReport::Limits(limits, exhausted)).await
            }
            Ok(ServerFrame::Denials { calls }) => self.report(DownlinkReport::Denials(calls)).await,
            Ok(ServerFrame::Command { command: WorkerCommand::Stop { state }, .. }) => {
                self.report(DownlinkReport::Stop(state)).await
            }
            Ok(ServerFrame::Command { id, command: WorkerCommand::Unknown }) => {
                tracing::warn!(id, "ignoring a command of a newer server");
                Ok(())
            }
            Ok(ServerFrame::Ping { id }) => send_frame(socket, &WorkerFrame::Pong { id }).await,
            Ok(ServerFrame::Refused { lease, code, detail }) => {
                tracing::info!(%lease, code, detail, "the server did not renew a lease");
                Ok(())
            }
            Ok(ServerFrame::Unknown) => Ok(()),
            Err(error) => {
                tracing::warn!(%error, "ignoring a malformed frame of the server");
                Ok(())
            }
        }
    }

    async fn report(&self, report: DownlinkReport) -> Result<(), Error> {
        if self.channels.report(report).await { Ok(()) } else { Err(Error::ShuttingDown) }
    }
}

/// Returns when leases are due for renewal. Without leases no timer runs.
async fn wait_for_renewal(leases: &mut watch::Receiver<OpenLeases>, renewed: &mut Instant) {
    if leases.borrow().ids.is_empty() {
        // The sender is gone only while the worker shuts down.
        if leases.wait_for(|leases| !leases.ids.is_empty()).await.is_err() {
            std::future::pending::<()>().await;
        }
        *renewed = Instant::now();
    }
    let interval = leases.borrow().renewal_interval;
    sleep_until(*renewed + interval).await;
}

async fn send_frame(socket: &mut Socket, frame: &WorkerFrame) -> Result<(), Error> {
    let text = serde_json::to_string(frame)?;
    match timeout(SEND_TIMEOUT, socket.send(Message::text(text))).await {
        Ok(sent) => Ok(sent?),
        Err(_) => Err(Error::Silent("the server does not read")),
    }
}
