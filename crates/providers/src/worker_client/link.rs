//! Connections to a sandbox's worker. The worker listens on a socket; this side dials and then serves the worker's
//! requests. Only this machine's Atoll can reach the socket.

use super::egress_listener;
use atoll_core::BoxFuture;
use atoll_core::id::SandboxId;
use atoll_protocol::exec::ConnectionKind;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

/// Idle connections per worker, so that no request waits for a new one.
const SPARE_CONNECTIONS: usize = 2;
const MAX_CONNECTIONS: usize = 256;
pub(super) const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Connection attempts before a worker counts as alive.
const LIVENESS_PROBES: u32 = 5;

/// Serves the workers; implemented by the server.
pub trait LinkHost: Send + Sync {
    /// Serves `connection` until it ends and notifies `first` on the first request.
    fn serve_connection(
        &self,
        sandbox: SandboxId,
        connection: UnixStream,
        first: Arc<Notify>,
    ) -> BoxFuture<'static, ()>;
    /// Called when the worker's socket has no listener: the worker is dead.
    fn report_worker_death(&self, sandbox: SandboxId);
    /// Receives a notice about a sandbox.
    fn report_notice(&self, sandbox: SandboxId, notice: SandboxNotice);
    /// Serves connections of programs in the sandbox to `listener`, a socket in the sandbox's network. The link drops
    /// the future when it ends; everything must end with it, because an open socket keeps that network alive.
    fn serve_egress(&self, sandbox: SandboxId, listener: std::net::TcpListener) -> BoxFuture<'static, ()> {
        // The default serves nothing.
        drop((sandbox, listener));
        Box::pin(std::future::ready(()))
    }
}

/// A provider's unsolicited report about a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxNotice {
    /// Its files reached their limit, in bytes. Reported once per crossing.
    DiskFull { used: u64, limit: u64, effect: DiskLimitEffect },
    /// What a user of the sandbox should know.
    Text(String),
}

/// The effect of a reached disk limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskLimitEffect {
    /// This many writing processes were killed.
    WritersKilled(u32),
    /// Writes fail.
    WritesRefused,
    /// Writes fail because the shared pool is full.
    PoolFull,
}

enum ConnectionChange {
    Used,
    Ended { was_used: bool },
}

/// Connects and sends the connection's purpose.
pub(crate) async fn dial_worker(socket: &Path, opening: ConnectionKind) -> io::Result<UnixStream> {
    dial_and_send(socket, opening, &[]).await
}

/// Connects and sends the purpose and `first` in one write, so that the worker wakes once.
pub(crate) async fn dial_and_send(socket: &Path, opening: ConnectionKind, first: &[u8]) -> io::Result<UnixStream> {
    let mut connection = connect_socket(socket).await?;
    connection.write_all(&[&[opening.to_byte()], first].concat()).await?;
    Ok(connection)
}

/// Connects through the directory's descriptor: the path may be too long for a socket address.
async fn connect_socket(socket: &Path) -> io::Result<UnixStream> {
    let (Some(dir), Some(name)) = (socket.parent(), socket.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::NotFound));
    };
    let dir = std::fs::File::open(dir)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name);
    UnixStream::connect(path).await
}

/// True if a worker listens on the socket. Waits for one that is just ending.
pub(super) async fn is_listening(socket: &Path) -> bool {
    for _ in 0..LIVENESS_PROBES {
        match connect_socket(socket).await {
            Err(error) if is_dead(&error) => return false,
            Ok(_) | Err(_) => tokio::time::sleep(RETRY_DELAY).await,
        }
    }
    true
}

pub(super) fn is_dead(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound | io::ErrorKind::BrokenPipe)
}

/// Maintains connections to a worker until it dies.
pub(crate) async fn maintain_link(sandbox: SandboxId, socket: PathBuf, host: Arc<dyn LinkHost>) {
    let (sender, mut changes) = mpsc::unbounded_channel();
    let mut serving = JoinSet::new();
    serving.spawn(egress_listener::fetch_and_serve(sandbox, socket.clone(), Arc::clone(&host)));
    let (mut unused, mut open) = (0_usize, 0_usize);
    loop {
        while unused < SPARE_CONNECTIONS && open < MAX_CONNECTIONS {
            match dial_worker(&socket, ConnectionKind::Http).await {
                Ok(connection) => {
                    unused += 1;
                    open += 1;
                    serving.spawn(serve_until_closed(sandbox, connection, Arc::clone(&host), sender.clone()));
                }
                Err(error) if is_dead(&error) => {
                    host.report_worker_death(sandbox);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%sandbox, %error, "cannot connect to a worker; retrying");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
        tokio::select! {
            change = changes.recv() => match change {
                Some(ConnectionChange::Used) => unused = unused.saturating_sub(1),
                Some(ConnectionChange::Ended { was_used }) => {
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

async fn serve_until_closed(
    sandbox: SandboxId,
    connection: UnixStream,
    host: Arc<dyn LinkHost>,
    sender: mpsc::UnboundedSender<ConnectionChange>,
) {
    let first = Arc::new(Notify::new());
    let served = host.serve_connection(sandbox, connection, Arc::clone(&first));
    tokio::pin!(served);
    let was_used = tokio::select! {
        biased;
        () = first.notified() => {
            drop(sender.send(ConnectionChange::Used));
            served.await;
            true
        }
        () = &mut served => false,
    };
    drop(sender.send(ConnectionChange::Ended { was_used }));
}
