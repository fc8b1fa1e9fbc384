//! The egress listener: the worker creates a listening socket in the sandbox's network and hands it over.

use super::descriptor::receive_descriptor;
use super::link::{LinkHost, RETRY_DELAY, dial_worker, is_dead};
use atoll_core::id::SandboxId;
use atoll_protocol::exec::ConnectionKind;
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Time limit for the worker to hand over the socket.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);

/// Fetches the socket from the worker and serves it until the link ends. Retries without limit: a paused worker does
/// not respond, but hands the socket over when it resumes.
pub(super) async fn fetch_and_serve(sandbox: SandboxId, socket: PathBuf, host: Arc<dyn LinkHost>) {
    let mut pause = RETRY_DELAY;
    loop {
        let fetch = tokio::time::timeout(HANDOVER_TIMEOUT, fetch_listener(&socket)).await;
        match fetch.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(listener) => return host.serve_egress(sandbox, listener).await,
            // `maintain_link` reports the death.
            Err(error) if is_dead(&error) => return,
            Err(error) if pause < MAX_RETRY_DELAY => {
                tracing::warn!(%sandbox, %error, "the worker did not hand over its egress listener; retrying");
            }
            Err(error) => {
                tracing::debug!(%sandbox, %error, "the worker did not hand over its egress listener; retrying")
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_RETRY_DELAY);
    }
}

async fn fetch_listener(socket: &Path) -> io::Result<TcpListener> {
    let connection = dial_worker(socket, ConnectionKind::ProxySocket).await?;
    let (_, received) = receive_descriptor(&connection).await?;
    let listener = received.ok_or_else(|| io::Error::other("the worker sent no socket"))?;
    if !is_listener(&listener)? {
        return Err(io::Error::other("the worker did not send a listening TCP socket"));
    }
    let listener = TcpListener::from(listener);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Validates a descriptor from the sandbox.
fn is_listener(socket: &OwnedFd) -> io::Result<bool> {
    Ok(sockopt::socket_domain(socket)? == AddressFamily::INET
        && sockopt::socket_type(socket)? == SocketType::STREAM
        && sockopt::socket_acceptconn(socket)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker_client::link::SandboxNotice;
    use atoll_core::BoxFuture;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::io::IoSlice;
    use std::mem::MaybeUninit;
    use std::net::TcpStream;
    use std::os::fd::AsFd;
    use tokio::net::{UnixListener, UnixStream};
    use tokio::sync::{Notify, mpsc};

    struct RecordingHost(mpsc::UnboundedSender<()>);

    impl LinkHost for RecordingHost {
        fn serve_connection(
            &self,
            _sandbox: SandboxId,
            _connection: UnixStream,
            _first: Arc<Notify>,
        ) -> BoxFuture<'static, ()> {
            Box::pin(async {})
        }

        fn report_worker_death(&self, _sandbox: SandboxId) {}

        fn report_notice(&self, _sandbox: SandboxId, _notice: SandboxNotice) {}

        fn serve_egress(&self, _sandbox: SandboxId, _listener: TcpListener) -> BoxFuture<'static, ()> {
            let _ = self.0.send(());
            Box::pin(async {})
        }
    }

    fn send_listener(to: &UnixStream, listener: &TcpListener) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = [listener.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(to, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::empty()).unwrap();
    }

    /// With paused time, the clock jumps whenever every task waits.
    #[tokio::test(start_paused = true)]
    async fn retries_until_a_paused_worker_responds() {
        let path = std::env::temp_dir().join(format!("atoll-{}.sock", uuid::Uuid::now_v7().simple()));
        let worker = UnixListener::bind(&path).unwrap();
        let (sender, mut handed) = mpsc::unbounded_channel();
        let keeping = tokio::spawn(fetch_and_serve(SandboxId::new(), path.clone(), Arc::new(RecordingHost(sender))));
        let way_out = TcpListener::bind("127.0.0.1:0").unwrap();
        // The clock may jump before a response is seen, so each later request gets one.
        let mut connections = Vec::new();
        for attempt in 0_usize.. {
            let accepted = tokio::select! {
                accepted = worker.accept() => accepted.unwrap().0,
                _ = handed.recv() => break,
            };
            assert!(attempt < 10_000, "the listener is never accepted");
            if attempt >= 100 {
                send_listener(&accepted, &way_out);
            }
            connections.push(accepted);
        }
        assert!(connections.len() > 100);
        keeping.await.unwrap();
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn accepts_only_a_listening_tcp_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(is_listener(&OwnedFd::from(listener.try_clone().unwrap())).unwrap());
        let connected = TcpStream::connect(address).unwrap();
        assert!(!is_listener(&OwnedFd::from(connected)).unwrap());
        let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!is_listener(&OwnedFd::from(unix)).unwrap());
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(is_listener(&OwnedFd::from(file)).is_err());
    }
}
