//! The server's listening socket, with optional TLS, timeouts and bounded connections.

use crate::connections::{ConnectionSlot, Connections};
use atoll_config::Tls;
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the head of the next request; an idle connection closes after it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// Pause after a failed accept, such as one without a free descriptor.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Open files that the server asks for, if the system allows so many.
const WANTED_DESCRIPTORS: u64 = 65_536;

pub fn bind_socket(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Raises the limit of open files, and returns the number of connections that fit: half of the files are for others.
pub fn fit_connections(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(WANTED_DESCRIPTORS, |maximum| maximum.min(WANTED_DESCRIPTORS));
    if limit.current.is_some_and(|current| current < most)
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: limit.maximum })
    {
        tracing::warn!(%error, "failed to raise the limit of open files");
    }
    let Some(current) = getrlimit(Resource::Nofile).current else { return wanted };
    let fitting = usize::try_from(current / 2).unwrap_or(usize::MAX).max(1);
    if fitting < wanted {
        tracing::warn!(fitting, wanted, "the limit of open files allows fewer connections than limits.max_connections");
    }
    fitting.min(wanted)
}

/// Serves until `stopping` is true; open connections finish their requests.
pub fn serve_router(
    socket: TcpListener,
    tls: Option<&Tls>,
    router: Router,
    connections: Arc<Connections>,
    stopping: watch::Receiver<bool>,
) -> Result<JoinHandle<()>, String> {
    let tls = tls.map(tls_acceptor).transpose()?;
    let service = ConnectionService { tls, router, stopping };
    Ok(tokio::spawn(async move { accept_connections(socket, service, connections).await }))
}

async fn accept_connections(socket: TcpListener, service: ConnectionService, connections: Arc<Connections>) {
    let mut stopping = service.stopping.clone();
    let stopped = async move { drop(stopping.wait_for(|stop| *stop).await) };
    tokio::pin!(stopped);
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            accepted = socket.accept() => match accepted {
                Ok((stream, peer)) => {
                    // Without room, dropping the stream refuses the connection.
                    if let Some(slot) = connections.admit(peer.ip()) {
                        open.spawn(service.clone().serve(stream, peer, slot));
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "failed to accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
                }
            },
            Some(_) = open.join_next() => {}
            () = &mut stopped => break,
        }
    }
    drop(socket);
    while open.join_next().await.is_some() {}
}

/// Serves one connection.
#[derive(Clone)]
struct ConnectionService {
    tls: Option<TlsAcceptor>,
    router: Router,
    stopping: watch::Receiver<bool>,
}

impl ConnectionService {
    async fn serve(self, stream: TcpStream, peer: SocketAddr, slot: ConnectionSlot) {
        drop(stream.set_nodelay(true));
        match &self.tls {
            None => self.serve_requests(stream, peer, slot).await,
            Some(tls) => {
                if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
                    self.serve_requests(stream, peer, slot).await;
                }
            }
        }
    }

    async fn serve_requests(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: SocketAddr,
        slot: ConnectionSlot,
    ) {
        let (router, own) = (self.router.clone(), slot.clone());
        let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
            own.record_request();
            request.extensions_mut().insert(ConnectInfo(PeerAddress(peer)));
            request.extensions_mut().insert(own.clone());
            router.clone().oneshot(request.map(Body::new))
        });
        let stream = TokioIo::new(CountedStream { stream, _slot: slot.clone() });
        let mut builder = http1::Builder::new();
        let builder = builder.timer(TokioTimer::new()).header_read_timeout(IDLE_TIMEOUT);
        let serving = builder.serve_connection(stream, service).with_upgrades();
        tokio::pin!(serving);
        let mut stopping = self.stopping.clone();
        let stopped = async { drop(stopping.wait_for(|stop| *stop).await) };
        let ended = tokio::select! {
            ended = &mut serving => ended,
            () = slot.wait_until_closable() => return,
            () = stopped => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        if let Err(error) = ended {
            tracing::trace!(%error, "a connection ended");
        }
    }
}

/// A stream that holds its connection's slot, also after an upgrade to a WebSocket.
struct CountedStream<S> {
    stream: S,
    _slot: ConnectionSlot,
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

fn tls_acceptor(tls: &Tls) -> Result<TlsAcceptor, String> {
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(&tls.cert).map_err(|error| format!("{}: {error}", tls.cert.display()))?.collect();
    let certificates = certificates.map_err(|error| format!("{}: {error}", tls.cert.display()))?;
    let key = PrivateKeyDer::from_pem_file(&tls.key).map_err(|error| format!("{}: {error}", tls.key.display()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(|error| error.to_string())?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// The address of a connection's peer.
#[derive(Debug, Clone, Copy)]
pub struct PeerAddress(pub SocketAddr);
