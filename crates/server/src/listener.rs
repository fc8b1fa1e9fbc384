//! The server's listening socket, with optional TLS.

use atoll_config::Tls;
use axum::Router;
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

pub fn bind_socket(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Serves until `stopping` is true; open connections finish their requests.
pub fn serve_router(
    socket: TcpListener,
    tls: Option<&Tls>,
    router: Router,
    stopping: watch::Receiver<bool>,
) -> Result<JoinHandle<()>, String> {
    let service = router.into_make_service_with_connect_info::<PeerAddress>();
    let until = |mut stopping: watch::Receiver<bool>| async move {
        drop(stopping.wait_for(|stop| *stop).await);
    };
    Ok(match tls {
        None => {
            let serving = axum::serve(PlainListener(socket), service).with_graceful_shutdown(until(stopping));
            tokio::spawn(async move { log_end(serving.await) })
        }
        Some(tls) => {
            let listener = TlsListener::new(socket, tls_acceptor(tls)?).map_err(|error| error.to_string())?;
            let serving = axum::serve(listener, service).with_graceful_shutdown(until(stopping));
            tokio::spawn(async move { log_end(serving.await) })
        }
    })
}

fn log_end(ended: io::Result<()>) {
    if let Err(error) = ended {
        tracing::error!(%error, "the listener failed");
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

impl Connected<IncomingStream<'_, PlainListener>> for PeerAddress {
    fn connect_info(stream: IncomingStream<'_, PlainListener>) -> Self {
        Self(*stream.remote_addr())
    }
}

impl Connected<IncomingStream<'_, TlsListener>> for PeerAddress {
    fn connect_info(stream: IncomingStream<'_, TlsListener>) -> Self {
        Self(*stream.remote_addr())
    }
}

pub struct PlainListener(TcpListener);

impl Listener for PlainListener {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        let (stream, peer) = Listener::accept(&mut self.0).await;
        drop(stream.set_nodelay(true));
        (stream, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

type AcceptedTls = (TlsStream<TcpStream>, SocketAddr);

/// Runs TLS handshakes in their own tasks, so that a slow client delays no other.
pub struct TlsListener {
    address: SocketAddr,
    ready: mpsc::Receiver<AcceptedTls>,
}

impl TlsListener {
    fn new(socket: TcpListener, acceptor: TlsAcceptor) -> io::Result<Self> {
        let address = socket.local_addr()?;
        let (sender, ready) = mpsc::channel(64);
        tokio::spawn(async move {
            while !sender.is_closed() {
                let Ok((stream, peer)) = socket.accept().await else {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let (acceptor, sender) = (acceptor.clone(), sender.clone());
                tokio::spawn(async move {
                    drop(stream.set_nodelay(true));
                    if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                        drop(sender.send((stream, peer)).await);
                    }
                });
            }
        });
        Ok(Self { address, ready })
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        match self.ready.recv().await {
            Some(accepted) => accepted,
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}
