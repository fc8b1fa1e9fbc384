//! The socket that the sandbox inherited: the server dials it, and says with the first byte of each connection what it
//! is for.

use crate::exec::{self, Exec};
use crate::link::{Accepting, Connection};
use crate::transfer;
use atoll_protocol::exec::Opening;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// More wait in the socket's own queue.
const CONNECTIONS: usize = 256;
/// For the byte that says what a connection is for.
const OPENING: Duration = Duration::from_secs(5);
/// After a failure to accept: descriptors may have run out for a moment.
const PAUSE: Duration = Duration::from_millis(100);

pub struct Acceptor {
    pub listener: UnixListener,
    pub pool: Arc<Accepting>,
    pub exec: Exec,
}

impl Acceptor {
    pub async fn run(self) {
        let count = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let Ok(counted) = count.clone().acquire_owned().await else { return };
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let (pool, exec) = (self.pool.clone(), self.exec.clone());
                    tokio::spawn(open(Connection::new(stream, counted), pool, exec));
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection of the server");
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

async fn open(mut connection: Connection, pool: Arc<Accepting>, exec: Exec) {
    let mut first = [0];
    match timeout(OPENING, connection.stream.read_exact(&mut first)).await {
        Ok(Ok(_)) => {}
        // Whoever says nothing wants nothing.
        Ok(Err(_)) | Err(_) => return,
    }
    match Opening::from_byte(first[0]) {
        Some(Opening::Http) => pool.put(connection),
        Some(Opening::Exec) => exec::serve(connection, exec).await,
        Some(Opening::Files) => transfer::serve(connection, exec).await,
        Some(Opening::Outward | Opening::Quiet) | None => {
            tracing::warn!(byte = first[0], "a connection of unknown kind is closed")
        }
    }
}
