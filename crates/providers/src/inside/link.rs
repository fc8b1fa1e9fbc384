//! Connections to a worker in a local sandbox. Its end is a socket that it listens on; this side
//! dials, and then answers what the worker asks: whoever can dial here is this machine's Atoll.

use super::outward;
use atoll_core::BoxFuture;
use atoll_core::id::SandboxId;
use atoll_protocol::exec::Opening;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

/// How many connections wait unused, so that no request of the worker has to wait for one.
const UNUSED: usize = 2;
const MOST: usize = 256;
pub(super) const AGAIN: Duration = Duration::from_millis(100);
/// How often a worker that broke off a connection is looked after.
const LOOKS: u32 = 5;

/// Who answers the workers: the server.
pub trait LinkHost: Send + Sync {
    /// Answers what comes over `connection` until it ends; `first` is told when the first request comes.
    fn serve(&self, sandbox: SandboxId, connection: UnixStream, first: Arc<Notify>) -> BoxFuture<'static, ()>;
    /// Nobody listens at the other end any more: the worker is dead.
    fn worker_gone(&self, sandbox: SandboxId);
    /// Something of a sandbox that its provider saw by itself.
    fn notice(&self, sandbox: SandboxId, notice: Notice);
    /// Carries what programs in the sandbox send to `listener`, a socket in the sandbox's own network. The future is
    /// dropped when the link ends, and everything of it must end with it: an open socket keeps that network alive.
    fn outward(&self, sandbox: SandboxId, listener: std::net::TcpListener) -> BoxFuture<'static, ()> {
        // A host that carries nothing lets go of it.
        drop((sandbox, listener));
        Box::pin(std::future::ready(()))
    }
}

/// What a provider tells of a sandbox unasked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Its files take as much as they may, in bytes, or more. Told once each time that it comes to that.
    DiskFull { used: u64, limit: u64, kept: Kept },
}

/// How a disk's limit is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// So many processes that wrote were ended.
    Stopped(u32),
    /// Writing fails.
    Refused,
    /// Writing fails, and not for its own limit: what all sandboxes share is used up.
    SharedFull,
}

enum Change {
    Used,
    Ended { was_used: bool },
}

/// Connects and says what the connection is for.
pub(crate) async fn dial(socket: &Path, opening: Opening) -> io::Result<UnixStream> {
    dial_with(socket, opening, &[]).await
}

/// And the first thing after it in one breath: whoever listens wakes once.
pub(crate) async fn dial_with(socket: &Path, opening: Opening, first: &[u8]) -> io::Result<UnixStream> {
    let mut connection = connect(socket).await?;
    connection.write_all(&[&[opening.byte()], first].concat()).await?;
    Ok(connection)
}

/// The socket is reached through its directory's descriptor: its own path may be longer than the kernel takes.
async fn connect(socket: &Path) -> io::Result<UnixStream> {
    let (Some(dir), Some(name)) = (socket.parent(), socket.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::NotFound));
    };
    let dir = std::fs::File::open(dir)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name);
    UnixStream::connect(path).await
}

/// Whether a worker listens there; one that is just ending is waited for.
pub(super) async fn listens(socket: &Path) -> bool {
    for _ in 0..LOOKS {
        match connect(socket).await {
            Err(error) if is_dead(&error) => return false,
            Ok(_) | Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
    true
}

pub(super) fn is_dead(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound | io::ErrorKind::BrokenPipe)
}

/// Keeps connections to one worker until it is dead.
pub(crate) async fn keep(sandbox: SandboxId, socket: PathBuf, host: Arc<dyn LinkHost>) {
    let (told, mut changes) = mpsc::unbounded_channel();
    let mut serving = JoinSet::new();
    serving.spawn(outward::keep(sandbox, socket.clone(), Arc::clone(&host)));
    let (mut unused, mut open) = (0_usize, 0_usize);
    loop {
        while unused < UNUSED && open < MOST {
            match dial(&socket, Opening::Http).await {
                Ok(connection) => {
                    unused += 1;
                    open += 1;
                    serving.spawn(serve(sandbox, connection, Arc::clone(&host), told.clone()));
                }
                Err(error) if is_dead(&error) => {
                    host.worker_gone(sandbox);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%sandbox, %error, "could not connect to a worker; trying again");
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
        tokio::select! {
            change = changes.recv() => match change {
                Some(Change::Used) => unused = unused.saturating_sub(1),
                Some(Change::Ended { was_used }) => {
                    open = open.saturating_sub(1);
                    if !was_used {
                        unused = unused.saturating_sub(1);
                    }
                }
                None => return,
            },
            Some(_) = serving.join_next() => {}
        }
    }
}

async fn serve(
    sandbox: SandboxId,
    connection: UnixStream,
    host: Arc<dyn LinkHost>,
    told: mpsc::UnboundedSender<Change>,
) {
    let first = Arc::new(Notify::new());
    let served = host.serve(sandbox, connection, Arc::clone(&first));
    tokio::pin!(served);
    let was_used = tokio::select! {
        biased;
        () = first.notified() => {
            drop(told.send(Change::Used));
            served.await;
            true
        }
        () = &mut served => false,
    };
    drop(told.send(Change::Ended { was_used }));
}
