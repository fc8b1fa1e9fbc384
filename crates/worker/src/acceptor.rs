//! The socket that the sandbox inherited: the server dials it, and says with the first byte of each connection what it
//! is for.

use crate::exec::{self, Exec};
use crate::executor::Quiet;
use crate::link::{Accepting, Connection};
use crate::outward::{self, Outward};
use crate::quiet;
use crate::transfer;
use atoll_protocol::exec::Opening;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};

/// More wait in the socket's own queue.
const CONNECTIONS: usize = 256;
/// For the byte that says what a connection is for.
const OPENING: Duration = Duration::from_secs(5);
/// After a failure to accept: descriptors may have run out for a moment.
const PAUSE: Duration = Duration::from_millis(100);

pub struct Acceptor {
    pub listener: UnixListener,
    pub doors: Arc<Doors>,
}

/// Where a connection may lead.
#[derive(Debug)]
pub struct Doors {
    pub pool: Arc<Accepting>,
    pub exec: Exec,
    pub outward: Option<Arc<Outward>>,
    pub asks: mpsc::Sender<Quiet>,
}

impl Acceptor {
    pub async fn run(self) {
        let count = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let Ok(counted) = count.clone().acquire_owned().await else { return };
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(open(Connection::new(stream, counted), self.doors.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection of the server");
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

async fn open(mut connection: Connection, doors: Arc<Doors>) {
    let mut first = [0];
    match timeout(OPENING, connection.stream.read_exact(&mut first)).await {
        Ok(Ok(_)) => {}
        // Whoever says nothing wants nothing.
        Ok(Err(_)) | Err(_) => return,
    }
    match Opening::from_byte(first[0]) {
        Some(Opening::Http) => doors.pool.put(connection),
        Some(Opening::Exec) => exec::serve(connection, doors.exec.clone()).await,
        Some(Opening::Outward) => outward::hand_over(&connection.stream, doors.outward.as_deref()).await,
        Some(Opening::Quiet) => quiet::serve(connection, doors.asks.clone(), doors.exec.hands.clone()).await,
        Some(Opening::Files) => transfer::serve(connection, doors.exec.clone()).await,
        None => tracing::warn!(byte = first[0], "a connection of unknown kind is closed"),
    }
}
