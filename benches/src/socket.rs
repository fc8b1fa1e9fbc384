//! WebSockets to the server: a worker's stream or a reader's subscription.

use crate::client::connect_tcp;
use anyhow::{Context, Result, bail};
use futures_util::{SinkExt, StreamExt};
use hyper::header::AUTHORIZATION;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
use tokio_tungstenite::{WebSocketStream, client_async};

const FRAME_TIMEOUT: Duration = Duration::from_secs(60);

pub struct ServerSocket(WebSocketStream<TcpStream>);

impl ServerSocket {
    pub async fn connect(address: SocketAddr, path: &str, token: &str) -> Result<Self> {
        let mut request = format!("ws://{address}{path}").into_client_request()?;
        request.headers_mut().insert(AUTHORIZATION, format!("Bearer {token}").parse()?);
        let (socket, _) = client_async(request, connect_tcp(address).await?)
            .await
            .with_context(|| format!("no WebSocket at {path}"))?;
        Ok(Self(socket))
    }

    pub async fn send_text(&mut self, text: String) -> Result<()> {
        Ok(self.0.send(Message::Text(text.into())).await?)
    }

    /// Waits for the next text frame, at most `FRAME_TIMEOUT`.
    pub async fn next_text(&mut self) -> Result<Utf8Bytes> {
        loop {
            let frame = timeout(FRAME_TIMEOUT, self.0.next()).await.context("the server sent no frame in time")?;
            match frame.context("the WebSocket ended")?? {
                Message::Text(text) => return Ok(text),
                Message::Ping(_) | Message::Pong(_) => {}
                other => bail!("unexpected frame: {other:?}"),
            }
        }
    }
}
