//! Accepts the server's connections on the sandbox's socket. The first byte of each names its purpose.

use crate::exec::{self, Exec};
use crate::executor::QuiesceRequest;
use crate::link::{AcceptedConnections, Connection};
use crate::supervisor::egress_socket::{self, EgressSocket};
use crate::supervisor::{port_connection, quiesce};
use crate::transfer;
use atoll_protocol::exec::ConnectionKind;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};

/// Limit of open connections; more wait in the socket's backlog.
const MAX_CONNECTIONS: usize = 256;
/// Time for the first byte of a connection.
const OPENING_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed accept: descriptors may have run out.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

pub struct Acceptor {
    pub listener: UnixListener,
    pub handlers: Arc<ConnectionHandlers>,
}

/// The parts of the worker that handle connections.
#[derive(Debug)]
pub struct ConnectionHandlers {
    pub pool: Arc<AcceptedConnections>,
    pub exec: Exec,
    pub egress: Option<Arc<EgressSocket>>,
    pub quiesce: mpsc::Sender<QuiesceRequest>,
}

impl Acceptor {
    pub async fn run(self) {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let Ok(permit) = permits.clone().acquire_owned().await else { return };
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(serve_connection(Connection::new(stream, permit), self.handlers.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection of the server");
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    }
}

async fn serve_connection(mut connection: Connection, handlers: Arc<ConnectionHandlers>) {
    let mut first = [0];
    match timeout(OPENING_TIMEOUT, connection.stream.read_exact(&mut first)).await {
        Ok(Ok(_)) => {}
        Ok(Err(_)) | Err(_) => return,
    }
    match ConnectionKind::from_byte(first[0]) {
        Some(ConnectionKind::Http) => handlers.pool.add(connection),
        Some(ConnectionKind::Exec) => exec::serve_exec(connection, handlers.exec.clone()).await,
        Some(ConnectionKind::ProxySocket) => {
            egress_socket::send_socket(&connection.stream, handlers.egress.as_deref()).await
        }
        Some(ConnectionKind::Port) => port_connection::serve_port(connection).await,
        Some(ConnectionKind::Quiesce) => {
            quiesce::serve_quiesce(connection, handlers.quiesce.clone(), handlers.exec.spawner.clone()).await;
        }
        Some(ConnectionKind::Files) => transfer::serve_transfer(connection, handlers.exec.clone()).await,
        None => tracing::warn!(byte = first[0], "closing a connection of unknown kind"),
    }
}
