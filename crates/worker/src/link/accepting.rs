//! Connections that the server dials, in the order in which they came. On each of them the server then serves, and
//! the worker asks: so to dial is to wait for the next one.

use super::quiet::Quiet;
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

/// A connection that was accepted, and counts as one for as long as it lives.
#[derive(Debug)]
pub struct Connection {
    pub stream: UnixStream,
    counted: OwnedSemaphorePermit,
}

impl Connection {
    pub const fn new(stream: UnixStream, counted: OwnedSemaphorePermit) -> Self {
        Self { stream, counted }
    }

    /// For somebody else to use; what it counts as is to be kept for as long.
    pub fn into_std(self) -> io::Result<(std::os::unix::net::UnixStream, OwnedSemaphorePermit)> {
        Ok((self.stream.into_std()?, self.counted))
    }
}

/// One that the server serves on.
#[derive(Debug)]
struct Served {
    socket: Quiet,
    _counted: OwnedSemaphorePermit,
}

impl Served {
    fn new(connection: Connection) -> io::Result<Self> {
        let socket = Quiet::new(connection.stream.into_std()?.into())?;
        Ok(Self { socket, _counted: connection.counted })
    }

    /// A server that waits for the first request says nothing; one that is gone has closed its end.
    fn is_alive(&self) -> bool {
        let looked = rustix::net::recv(&self.socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(looked, Err(rustix::io::Errno::WOULDBLOCK))
    }
}

/// The connections that nothing has been asked on yet.
#[derive(Default)]
pub struct Accepting {
    waiting: Mutex<VecDeque<Served>>,
    arrived: Notify,
}

impl std::fmt::Debug for Accepting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the server that dials this sandbox")
    }
}

impl Accepting {
    pub fn put(&self, connection: Connection) {
        let served = match Served::new(connection) {
            Ok(served) => served,
            Err(error) => {
                tracing::warn!(%error, "a connection of the server can't be used");
                return;
            }
        };
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // What a server that is gone left here would count against those of the next one.
        waiting.retain(Served::is_alive);
        waiting.push_back(served);
        drop(waiting);
        self.arrived.notify_one();
    }

    fn take(&self) -> Option<Served> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| waiting.pop_front()).find(Served::is_alive)
    }
}

impl Dial for Accepting {
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

impl AsyncRead for Served {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Served {
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
    async fn the_dead_are_passed_over_and_no_longer_count() {
        let (pool, count) = (Accepting::default(), Arc::new(Semaphore::new(3)));
        let mut servers = Vec::new();
        for _ in 0..2 {
            let (ours, theirs) = UnixStream::pair().unwrap();
            pool.put(Connection::new(ours, count.clone().try_acquire_owned().unwrap()));
            servers.push(theirs);
        }
        assert_eq!(count.available_permits(), 1);
        let mut living = servers.pop().unwrap();
        drop(servers);
        let mut dialled = pool.dial().await.unwrap();
        assert_eq!(count.available_permits(), 2, "the dead one is gone");
        dialled.write_all(b"ask").await.unwrap();
        let mut heard = [0; 3];
        living.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"ask");
        drop(dialled);
        assert_eq!(count.available_permits(), 3);
    }

    #[tokio::test]
    async fn whoever_dials_waits_for_the_next_one() {
        let pool = Arc::new(Accepting::default());
        let dialling = tokio::spawn({
            let pool = pool.clone();
            async move { pool.dial().await.is_ok() }
        });
        tokio::task::yield_now().await;
        let (ours, _theirs) = UnixStream::pair().unwrap();
        pool.put(Connection::new(ours, Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap()));
        assert!(dialling.await.unwrap());
    }
}
