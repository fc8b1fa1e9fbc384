//! Terminals in a sandbox, over a WebSocket.

use crate::error::Result;
use crate::http::Client;
use crate::websocket::{Received, WebSocket};
use atoll_api::{TerminalFrame, TerminalQuery, TerminalRequest, TerminalSize};
use atoll_core::id::SandboxId;

/// An open terminal.
///
/// ```no_run
/// # async fn example(client: &atoll_client::Client, sandbox: &atoll_client::api::Sandbox) -> Result<(), atoll_client::Error> {
/// use atoll_client::TerminalItem;
///
/// let mut terminal = client.open_terminal(sandbox.id, &Default::default()).await?;
/// terminal.type_input(b"ls\r".to_vec()).await;
/// loop {
///     match terminal.next().await? {
///         TerminalItem::Output(bytes) => print!("{}", String::from_utf8_lossy(&bytes)),
///         TerminalItem::Frame(_) => {}
///         TerminalItem::Disconnected { .. } => break,
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TerminalSocket {
    client: Client,
    socket: WebSocket,
}

/// An item that a terminal sends.
#[derive(Debug)]
pub enum TerminalItem {
    Output(Vec<u8>),
    Frame(TerminalFrame),
    /// The connection is lost. To resume, open the terminal again with its `exec` and `cursor`.
    Disconnected {
        cause: &'static str,
    },
}

impl Client {
    /// Opens a new terminal, or with `query.exec` one that runs already.
    pub async fn open_terminal(&self, sandbox: SandboxId, query: &TerminalQuery) -> Result<TerminalSocket> {
        let socket = self.open_websocket(&format!("/sandboxes/{sandbox}/terminal"), query).await?;
        Ok(TerminalSocket { client: self.clone(), socket })
    }
}

impl TerminalSocket {
    /// Returns the next item. Cancel safe.
    pub async fn next(&mut self) -> Result<TerminalItem> {
        Ok(match self.socket.receive().await {
            Received::Binary(data) => TerminalItem::Output(data),
            Received::Text(text) => TerminalItem::Frame(
                serde_json::from_str(&text)
                    .map_err(|error| self.client.unexpected_response(&format!("a frame is not valid: {error}")))?,
            ),
            Received::Lost(cause) => TerminalItem::Disconnected { cause },
        })
    }

    /// Sends input; `false` if the connection is lost, which the next item reports.
    pub async fn type_input(&mut self, input: Vec<u8>) -> bool {
        self.socket.send_binary(input).await
    }

    /// Changes the terminal's size; `false` if the connection is lost, which the next item reports.
    pub async fn resize(&mut self, TerminalSize { cols, rows }: TerminalSize) -> bool {
        self.socket.send_json(&TerminalRequest::Resize { cols, rows }).await
    }

    /// Closes the connection. The terminal's program runs on for a while.
    pub async fn close(self) {
        self.socket.close().await;
    }
}
