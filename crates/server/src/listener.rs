//! The socket, with TLS where it is configured.

use crate::options::Tls;
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

const HANDSHAKE: Duration = Duration::from_secs(10);

pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Serves until `stopping` says so; connections that are open then may end what they are doing.
pub fn serve(
    socket: TcpListener,
    tls: Option<&Tls>,
    router: Router,
    stopping: watch::Receiver<bool>,
) -> Result<JoinHandle<()>, String> {
    let service = router.into_make_service_with_connect_info::<Peer>();
    let until = |mut stopping: watch::Receiver<bool>| async move {
        drop(stopping.wait_for(|stop| *stop).await);
    };
    Ok(match tls {
        None => {
            let serving = axum::serve(PlainListener(socket), service).with_graceful_shutdown(until(stopping));
            tokio::spawn(async move { report(serving.await) })
        }
        Some(tls) => {
            let listener = TlsListener::new(socket, acceptor(tls)?).map_err(|error| error.to_string())?;
            let serving = axum::serve(listener, service).with_graceful_shutdown(until(stopping));
            tokio::spawn(async move { report(serving.await) })
        }
    })
}

fn report(ended: io::Result<()>) {
    if let Err(error) = ended {
        tracing::error!(%error, "the listener ended");
    }
}

fn acceptor(tls: &Tls) -> Result<TlsAcceptor, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(&tls.certificate)
        .map_err(|error| format!("{}: {error}", tls.certificate.display()))?
        .collect();
    let certificates = certificates.map_err(|error| format!("{}: {error}", tls.certificate.display()))?;
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

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

impl Connected<IncomingStream<'_, PlainListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, PlainListener>) -> Self {
        Self(*stream.remote_addr())
    }
}

impl Connected<IncomingStream<'_, TlsListener>> for Peer {
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

type Accepted = (TlsStream<TcpStream>, SocketAddr);

/// Handshakes happen beside the accepting, so that a slow client holds up nobody.
pub struct TlsListener {
    address: SocketAddr,
    ready: mpsc::Receiver<Accepted>,
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
                    if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
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
