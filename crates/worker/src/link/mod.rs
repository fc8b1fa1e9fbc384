//! The way to the server: requests by HTTP, each client on a connection of its own, and a WebSocket for everything that
//! the server pushes (`downlink`).
//!
//! A `Dial` provides the connections: `Dialer` connects to the server, `AcceptedConnections` waits for the server to
//! connect.

use atoll_core::BoxFuture;
use atoll_core::id::SandboxId;
use atoll_dispatcher::link::downlink::DownlinkChannels;
use atoll_dispatcher::link::{LinkRequest, Problem, Reply, RequestSender, Resources, ServerLink, chain};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

mod accepted;
mod blob;
mod dial;
mod downlink;
mod local_socket;
mod resources;

pub use accepted::{AcceptedConnections, Connection};
pub use dial::{BadServer, Dial, Dialer, Io};

/// Time limit of one request, connecting included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Room for a prompt of the maximum size with every character escaped.
const MAX_ANSWER_BYTES: usize = 8 * atoll_core::bounds::MB;
const USER_AGENT_VALUE: &str = concat!("atoll-worker/", env!("CARGO_PKG_VERSION"));

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The server's address and the worker's credentials. Cheap to clone; each task makes its own `Client`.
#[derive(Debug, Clone)]
pub struct Server {
    pub dialer: Arc<dyn Dial>,
    /// `/api/v1/sandboxes/<id>`, behind the server's own path.
    base: Arc<str>,
    /// `None` if the connection itself is the credential.
    token: Option<Arc<SecretString>>,
    /// A directory that the agent cannot access.
    pub spool: Arc<Path>,
}

impl Server {
    pub fn new(dialer: Arc<dyn Dial>, sandbox: SandboxId, token: Option<SecretString>, spool: &Path) -> Self {
        let base = format!("{}/api/v1/sandboxes/{sandbox}", dialer.prefix());
        Self { dialer, base: base.into(), token: token.map(Arc::new), spool: spool.into() }
    }

    /// Path of one of the sandbox's resources.
    pub fn path(&self, rest: &str) -> String {
        format!("{}/{rest}", self.base)
    }

    pub fn authorization(&self) -> Result<Option<HeaderValue>, Error> {
        let Some(token) = &self.token else { return Ok(None) };
        let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose_secret()))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    pub fn client(&self) -> LinkClient {
        LinkClient { server: self.clone(), connection: None }
    }
}

impl ServerLink for Server {
    fn open_client(&self) -> Box<dyn RequestSender> {
        Box::new(self.client())
    }

    fn run_downlink(&self, channels: DownlinkChannels) -> BoxFuture<'static, ()> {
        Box::pin(downlink::Downlink { server: self.clone(), channels }.run())
    }

    fn read_resources(&self) -> Resources {
        resources::read_resources()
    }
}

/// A client with one connection, which it reuses and replaces when it breaks.
#[derive(Debug)]
pub struct LinkClient {
    server: Server,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl RequestSender for LinkClient {
    fn send<'a>(&'a mut self, request: LinkRequest<'a>) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            match request {
                LinkRequest::Heartbeat(heartbeat) => self.post("heartbeat", heartbeat).await,
                LinkRequest::Events(batch) => self.post("events", batch).await,
                LinkRequest::Blob { sha256, content } => {
                    self.send_body(Method::PUT, &format!("blobs/{sha256}"), content.clone()).await
                }
                LinkRequest::Ack(id, ack) => self.post(&format!("messages/{id}/ack"), ack).await,
                LinkRequest::Nack(id, nack) => self.post(&format!("messages/{id}/nack"), nack).await,
            }
        })
    }
}

impl LinkClient {
    /// Posts a value. An unreachable server is `Reply::Later`.
    pub async fn post(&mut self, path: &str, body: &impl Serialize) -> Reply {
        let body = match serde_json::to_vec(body) {
            Ok(body) => Bytes::from(body),
            Err(error) => return Reply::later(format!("failed to serialize the request: {error}")),
        };
        self.send_body(Method::POST, path, body).await
    }

    async fn send_body(&mut self, method: Method, path: &str, body: Bytes) -> Reply {
        let path = self.server.path(path);
        match tokio::time::timeout(REQUEST_TIMEOUT, self.send_request(&method, &path, body)).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) => {
                self.connection = None;
                Reply::later(chain(&*error))
            }
            Err(_) => {
                self.connection = None;
                Reply::later(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs()))
            }
        }
    }

    async fn send_request(&mut self, method: &Method, path: &str, body: Bytes) -> Result<Reply, Error> {
        if let Some(mut connection) = self.connection.take()
            && connection.ready().await.is_ok()
        {
            match connection.send_request(self.build_request(method, path, body.clone())?).await {
                Ok(response) => return self.read_reply(connection, response).await,
                // The server may close an idle connection at any time. All requests are idempotent: retry at once.
                Err(error) => tracing::debug!(%error, "the server closed an idle connection"),
            }
        }
        let mut fresh = self.connect().await?;
        let response = fresh.send_request(self.build_request(method, path, body)?).await?;
        self.read_reply(fresh, response).await
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Error> {
        let io = self.server.dialer.dial().await?;
        let (sender, connection) = handshake(TokioIo::new(io)).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the server ended");
            }
        });
        Ok(sender)
    }

    fn build_request(&self, method: &Method, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, Error> {
        let is_json = *method == Method::POST;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.server.dialer.host_header())
            .header(USER_AGENT, USER_AGENT_VALUE)
            .header(CONTENT_TYPE, if is_json { "application/json" } else { "application/octet-stream" });
        if let Some(token) = self.server.authorization()? {
            request = request.header(AUTHORIZATION, token);
        }
        Ok(request.body(Full::new(body))?)
    }

    async fn read_reply(
        &mut self,
        connection: SendRequest<Full<Bytes>>,
        response: hyper::Response<hyper::body::Incoming>,
    ) -> Result<Reply, Error> {
        let status = response.status();
        let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await?.to_bytes();
        self.connection = Some(connection);
        Ok(classify_response(status, after.map(Duration::from_secs), body))
    }
}

fn parse_problem(status: StatusCode, body: &[u8]) -> Problem {
    Problem::from_body(status.as_u16(), status.canonical_reason().unwrap_or("unknown"), body)
}

fn classify_response(status: StatusCode, after: Option<Duration>, body: Bytes) -> Reply {
    if status.is_success() { Reply::Ok(body) } else { Reply::from_problem(parse_problem(status, &body), after) }
}
