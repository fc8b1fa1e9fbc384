//! Connections of previews: the worker connects to a port of the sandbox and hands the socket to the server.
//!
//! A socket stays in the network in which it was created, so the server can use it, and the worker copies no data.

use crate::link::Connection;
use crate::ports::has_own_network;
use crate::services::LOOPBACKS;
use crate::supervisor::egress_socket::send_descriptor;
use atoll_protocol::PROXY_PORT;
use atoll_protocol::exec::{PORT_CLOSED, PORT_CONNECTED};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Time for the server to name the port.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the program to accept: its backlog may be full.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

pub async fn serve_port(mut connection: Connection) {
    let Ok(Ok(port)) = timeout(REQUEST_TIMEOUT, connection.stream.read_u16()).await else { return };
    let sent = match connect_loopback(port).await {
        Some(socket) => {
            let to = &connection.stream;
            let send = || send_descriptor(to.as_fd(), PORT_CONNECTED, socket.as_fd());
            to.async_io(Interest::WRITABLE, send).await
        }
        None => connection.stream.write_all(&[PORT_CLOSED]).await,
    };
    if let Err(error) = sent {
        tracing::warn!(%error, "failed to send a preview's socket to the server");
    }
}

async fn connect_loopback(port: u16) -> Option<TcpStream> {
    // Atoll's own port: through it, a preview could use the sandbox's network and models.
    if port == PROXY_PORT || !has_own_network() {
        return None;
    }
    for address in LOOPBACKS {
        let connected: io::Result<_> = match timeout(CONNECT_TIMEOUT, TcpStream::connect((address, port))).await {
            Ok(connected) => connected,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        if let Ok(socket) = connected {
            return Some(socket);
        }
    }
    None
}
