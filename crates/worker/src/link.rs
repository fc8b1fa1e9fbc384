//! The connection to the server: HTTP/1.1 over whatever the dialer brings.

use atoll_core::id::SandboxId;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

mod accepting;
mod blob;
mod dial;
mod quiet;
mod reply;

pub use accepting::{Accepting, Connection};
pub use dial::{BadServer, Dial, Dialer, Io};
pub use reply::{Problem, Reply};

/// From the first byte of a connection to the last byte of the answer.
const DEADLINE: Duration = Duration::from_secs(30);
/// The longest answer that is read: a prompt at its bound, with every character escaped.
const LONGEST_ANSWER: usize = 8 * atoll_core::bounds::MB;
const AGENT: &str = concat!("atoll-worker/", env!("CARGO_PKG_VERSION"));

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Where the server is and how one is known to it. Cheap to clone; each task makes a `Client` of it.
#[derive(Debug, Clone)]
pub struct Server {
    pub dialer: Arc<dyn Dial>,
    /// `/api/v1/sandboxes/<id>`, behind the server's own path.
    base: Arc<str>,
    /// None where the connection itself is the credential.
    token: Option<Arc<SecretString>>,
}

impl Server {
    pub fn new(dialer: Arc<dyn Dial>, sandbox: SandboxId, token: Option<SecretString>) -> Self {
        let base = format!("{}/api/v1/sandboxes/{sandbox}", dialer.prefix());
        Self { dialer, base: base.into(), token: token.map(Arc::new) }
    }

    /// The path of one of the sandbox's resources.
    pub fn path(&self, rest: &str) -> String {
        format!("{}/{rest}", self.base)
    }

    pub fn authorization(&self) -> Result<Option<HeaderValue>, Error> {
        let Some(token) = &self.token else { return Ok(None) };
        let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose_secret()))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    pub fn client(&self) -> Client {
        Client { server: self.clone(), connection: None }
    }
}

/// One connection, kept open from one request to the next and made anew when it breaks.
#[derive(Debug)]
pub struct Client {
    server: Server,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    /// Sends a value and says what became of it. Never fails in another way: a server that can't
    /// be reached is `Reply::Later`.
    pub async fn post(&mut self, path: &str, body: &impl Serialize) -> Reply {
        let body = match serde_json::to_vec(body) {
            Ok(body) => Bytes::from(body),
            Err(error) => return Reply::later(format!("failed to write the request: {error}")),
        };
        let path = self.server.path(path);
        match tokio::time::timeout(DEADLINE, self.send(&path, body)).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) => {
                self.connection = None;
                Reply::later(chain(&*error))
            }
            Err(_) => {
                self.connection = None;
                Reply::later(format!("no answer within {} s", DEADLINE.as_secs()))
            }
        }
    }

    async fn send(&mut self, path: &str, body: Bytes) -> Result<Reply, Error> {
        if let Some(mut kept) = self.connection.take()
            && kept.ready().await.is_ok()
        {
            match kept.send_request(self.request(path, body.clone())?).await {
                Ok(response) => return self.receive(kept, response).await,
                // The server may close a kept connection at any moment. All of a worker's requests
                // can be sent twice, so a new connection has another try at once.
                Err(error) => tracing::debug!(%error, "the kept connection was closed"),
            }
        }
        let mut fresh = self.connect().await?;
        let response = fresh.send_request(self.request(path, body)?).await?;
        self.receive(fresh, response).await
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

    fn request(&self, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, Error> {
        let mut request = Request::post(path)
            .header(HOST, self.server.dialer.host_header())
            .header(USER_AGENT, AGENT)
            .header(CONTENT_TYPE, "application/json");
        if let Some(token) = self.server.authorization()? {
            request = request.header(AUTHORIZATION, token);
        }
        Ok(request.body(Full::new(body))?)
    }

    async fn receive(
        &mut self,
        connection: SendRequest<Full<Bytes>>,
        response: hyper::Response<hyper::body::Incoming>,
    ) -> Result<Reply, Error> {
        let status = response.status();
        let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let body = Limited::new(response.into_body(), LONGEST_ANSWER).collect().await?.to_bytes();
        self.connection = Some(connection);
        Ok(Reply::of(status, after.map(Duration::from_secs), body))
    }
}

/// An error with everything that it came from.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}
