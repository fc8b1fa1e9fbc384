//! The way out of a sandbox: the worker made a listening socket in the sandbox's network and hands it over.

use super::link::{AGAIN, LinkHost, dial, is_dead};
use atoll_core::id::SandboxId;
use atoll_protocol::exec::Opening;
use rustix::net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketType, recvmsg, sockopt};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;

/// For a worker to answer; it has nothing to look up.
const ANSWER: Duration = Duration::from_secs(10);
/// Between two tries.
const LONGEST: Duration = Duration::from_secs(10);

/// Asks for the socket, and has it served until it is dropped: as long as the link lives. A paused worker answers nothing,
/// however long, and has its way out to hand over when it goes on.
pub(super) async fn keep(sandbox: SandboxId, socket: PathBuf, host: Arc<dyn LinkHost>) {
    let mut pause = AGAIN;
    loop {
        let asked = tokio::time::timeout(ANSWER, ask(&socket)).await;
        match asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(listener) => return host.outward(sandbox, listener).await,
            // Whoever keeps the link says that.
            Err(error) if is_dead(&error) => return,
            Err(error) if pause < LONGEST => {
                tracing::warn!(%sandbox, %error, "a sandbox's way out was not handed over; trying again");
            }
            Err(error) => tracing::debug!(%sandbox, %error, "a sandbox's way out was not handed over; trying again"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST);
    }
}

async fn ask(socket: &Path) -> io::Result<TcpListener> {
    let connection = dial(socket, Opening::Outward).await?;
    let received = connection.async_io(Interest::READABLE, || receive(connection.as_fd())).await?;
    let listener = received.ok_or_else(|| io::Error::other("the worker sent no socket"))?;
    if !is_listener(&listener)? {
        return Err(io::Error::other("the worker sent something else than a listening TCP socket"));
    }
    let listener = TcpListener::from(listener);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The first descriptor that comes; what else comes is closed.
fn receive(from: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(descriptors.next().and_then(|mut descriptors| descriptors.next()))
}

/// What comes from a sandbox is looked at before it is used.
fn is_listener(socket: &OwnedFd) -> io::Result<bool> {
    Ok(sockopt::socket_domain(socket)? == AddressFamily::INET
        && sockopt::socket_type(socket)? == SocketType::STREAM
        && sockopt::socket_acceptconn(socket)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inside::link::Notice;
    use atoll_core::BoxFuture;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::io::IoSlice;
    use std::net::TcpStream;
    use tokio::net::{UnixListener, UnixStream};
    use tokio::sync::{Notify, mpsc};

    struct Host(mpsc::UnboundedSender<()>);

    impl LinkHost for Host {
        fn serve(&self, _sandbox: SandboxId, _connection: UnixStream, _first: Arc<Notify>) -> BoxFuture<'static, ()> {
            Box::pin(async {})
        }

        fn worker_gone(&self, _sandbox: SandboxId) {}

        fn notice(&self, _sandbox: SandboxId, _notice: Notice) {}

        fn outward(&self, _sandbox: SandboxId, _listener: TcpListener) -> BoxFuture<'static, ()> {
            let _ = self.0.send(());
            Box::pin(async {})
        }
    }

    fn hand_over(to: &UnixStream, listener: &TcpListener) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = [listener.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(to, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::empty()).unwrap();
    }

    /// The clock jumps whenever nobody has anything to do.
    #[tokio::test(start_paused = true)]
    async fn a_worker_that_is_paused_for_hours_is_asked_again() {
        let path = std::env::temp_dir().join(format!("atoll-{}.sock", uuid::Uuid::now_v7().simple()));
        let worker = UnixListener::bind(&path).unwrap();
        let (told, mut handed) = mpsc::unbounded_channel();
        let keeping = tokio::spawn(keep(SandboxId::new(), path.clone(), Arc::new(Host(told))));
        let way_out = TcpListener::bind("127.0.0.1:0").unwrap();
        // The clock of this test may jump before an answer is seen, so that it is given to each that asks from then on.
        let mut held = Vec::new();
        for asked in 0_usize.. {
            let accepted = tokio::select! {
                accepted = worker.accept() => accepted.unwrap().0,
                _ = handed.recv() => break,
            };
            assert!(asked < 10_000, "the way out is never taken");
            if asked >= 100 {
                hand_over(&accepted, &way_out);
            }
            held.push(accepted);
        }
        assert!(held.len() > 100);
        keeping.await.unwrap();
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn only_a_listening_socket_is_taken() {
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
