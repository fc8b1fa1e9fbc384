//! A pool of connections that the server opened. The server serves HTTP on them, so dialling means waiting for the
//! next one.

use super::local_socket::LocalSocket;
use super::{Dial, Io};
use atoll_core::BoxFuture;
use rustix::net::RecvFlags;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::{Notify, OwnedSemaphorePermit};

/// An accepted connection with its permit of the connection limit.
#[derive(Debug)]
pub struct Connection {
    pub stream: UnixStream,
    permit: OwnedSemaphorePermit,
}

impl Connection {
    pub const fn new(stream: UnixStream, permit: OwnedSemaphorePermit) -> Self {
        Self { stream, permit }
    }

    /// Converts the socket; keep the permit as long as the socket is open.
    pub fn into_std(self) -> io::Result<(std::os::unix::net::UnixStream, OwnedSemaphorePermit)> {
        Ok((self.stream.into_std()?, self.permit))
    }
}

/// A connection on which the server serves HTTP.
#[derive(Debug)]
struct HttpConnection {
    socket: LocalSocket,
    _permit: OwnedSemaphorePermit,
}

impl HttpConnection {
    fn new(connection: Connection) -> io::Result<Self> {
        let socket = LocalSocket::new(connection.stream.into_std()?.into())?;
        Ok(Self { socket, _permit: connection.permit })
    }

    /// A live server sends nothing before the first request; a dead one has closed its end.
    fn is_alive(&self) -> bool {
        let peeked = rustix::net::recv(&self.socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(peeked, Err(rustix::io::Errno::WOULDBLOCK))
    }
}

/// Connections without a request yet, oldest first.
#[derive(Default)]
pub struct AcceptedConnections {
    waiting: Mutex<VecDeque<HttpConnection>>,
    arrived: Notify,
}

impl std::fmt::Debug for AcceptedConnections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the server that connects to this sandbox")
    }
}

impl AcceptedConnections {
    pub fn add(&self, connection: Connection) {
        let connection = match HttpConnection::new(connection) {
            Ok(connection) => connection,
            Err(error) => {
                tracing::warn!(%error, "failed to use a connection of the server");
                return;
            }
        };
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // Dead connections would use up the limit for the next server.
        waiting.retain(HttpConnection::is_alive);
        waiting.push_back(connection);
        drop(waiting);
        self.arrived.notify_one();
    }

    fn take(&self) -> Option<HttpConnection> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| waiting.pop_front()).find(HttpConnection::is_alive)
    }
}

impl Dial for AcceptedConnections {
    fn dial(&self) -> BoxFuture<'_, io::Result<Box<dyn Io>>> {
        Box::pin(async move {
            loop {
                if let Some(connection) = self.take() {
                    return Ok(Box::new(connection) as Box<dyn Io>);
                }
                self.arrived.notified().await;
            }
        })
    }

    fn host_header(&self) -> &'static str {
        "localhost"
    }

    fn prefix(&self) -> &'static str {
        ""
    }

    fn dies_silently(&self) -> bool {
        false
    }
}

impl AsyncRead for HttpConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buffer)
    }
}

impl AsyncWrite for HttpConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::Semaphore;

    #[tokio::test]
    async fn skips_dead_connections_and_frees_their_permits() {
        let (pool, count) = (AcceptedConnections::default(), Arc::new(Semaphore::new(3)));
        let mut servers = Vec::new();
        for _ in 0..2 {
            let (worker_end, server_end) = UnixStream::pair().unwrap();
            pool.add(Connection::new(worker_end, count.clone().try_acquire_owned().unwrap()));
            servers.push(server_end);
        }
        assert_eq!(count.available_permits(), 1);
        let mut living = servers.pop().unwrap();
        // Shut down, not only dropped: a process that another test forks holds its copy until it executes its program.
        servers.pop().unwrap().shutdown().await.unwrap();
        let mut dialled = pool.dial().await.unwrap();
        assert_eq!(count.available_permits(), 2, "the dead connection is dropped");
        dialled.write_all(b"ask").await.unwrap();
        let mut received = [0; 3];
        living.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"ask");
        drop(dialled);
        assert_eq!(count.available_permits(), 3);
    }

    #[tokio::test]
    async fn dialling_waits_for_the_next_connection() {
        let pool = Arc::new(AcceptedConnections::default());
        let dialling = tokio::spawn({
            let pool = pool.clone();
            async move { pool.dial().await.is_ok() }
        });
        tokio::task::yield_now().await;
        let (worker_end, _server_end) = UnixStream::pair().unwrap();
        pool.add(Connection::new(worker_end, Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap()));
        assert!(dialling.await.unwrap());
    }
}
