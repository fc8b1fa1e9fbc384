//! Connections to upstreams, kept and used again.

use crate::egress::stream::Stream;
use crate::egress::upstream::Upstream as Proxy;
use atoll_core::BoxFuture;
use atoll_core::network::{Host, Target};
use axum::body::Bytes;
use axum::http::Uri;
use http_body_util::Full;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;

const CONNECT: Duration = Duration::from_secs(15);
/// Upstreams close theirs after a minute or more.
const IDLE: Duration = Duration::from_secs(50);
const MOST_IDLE: usize = 32;

pub type Upstreams = Client<Dialer, Full<Bytes>>;

pub fn new(proxy: Option<Proxy>) -> Upstreams {
    let dialer = Dialer { tls: Arc::default(), proxy: proxy.map(Arc::new) };
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(MOST_IDLE)
        .build(dialer)
}

/// Trusts what the machine trusts (`SSL_CERT_FILE` included); where it has no certificates, those that the program
/// carries.
fn tls() -> Result<ClientConfig, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

async fn connector() -> io::Result<TlsConnector> {
    let made = tokio::task::spawn_blocking(tls).await.map_err(io::Error::other)?;
    made.map(|config| TlsConnector::from(Arc::new(config))).map_err(io::Error::other)
}

#[derive(Clone)]
pub struct Dialer {
    /// Made at first use: the machine's certificates take their time and their memory.
    tls: Arc<OnceCell<TlsConnector>>,
    /// The proxy that this server itself must use.
    proxy: Option<Arc<Proxy>>,
}

impl Dialer {
    async fn dial(self, uri: Uri) -> io::Result<Line> {
        let unusable = || io::Error::other("its URL can't be used");
        let is_tls = uri.scheme_str() == Some("https");
        let authority = uri.authority().ok_or_else(unusable)?;
        let target = Target::parse(authority.as_str(), Some(if is_tls { 443 } else { 80 })).ok_or_else(unusable)?;
        let late = || io::Error::new(io::ErrorKind::TimedOut, "no connection in time");
        let connected = tokio::time::timeout(CONNECT, async {
            let stream = self.plain(&target).await?;
            if !is_tls {
                return Ok(stream);
            }
            let name = match &target.host {
                Host::Name(name) => ServerName::try_from(name.clone()).map_err(|_| unusable())?,
                Host::Address(address) => ServerName::from(*address),
            };
            let tls = self.tls.get_or_try_init(connector).await?;
            Ok(Box::new(tls.connect(name, stream).await?) as Stream)
        });
        connected.await.unwrap_or_else(|_| Err(late())).map(|stream| Line(TokioIo::new(stream)))
    }

    async fn plain(&self, target: &Target) -> io::Result<Stream> {
        if let Some(proxy) = self.proxy.as_ref().filter(|proxy| !is_here(target) && proxy.serves(target)) {
            return proxy.connect(target).await;
        }
        let stream = match &target.host {
            Host::Name(name) => TcpStream::connect((name.as_str(), target.port)).await?,
            Host::Address(address) => TcpStream::connect((*address, target.port)).await?,
        };
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}

/// On this machine, where no proxy can reach.
fn is_here(target: &Target) -> bool {
    match &target.host {
        Host::Name(name) => name == "localhost",
        Host::Address(address) => address.is_loopback(),
    }
}

impl tower::Service<Uri> for Dialer {
    type Response = Line;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Line>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().dial(uri))
    }
}

/// A connection as the client wants it.
pub struct Line(TokioIo<Stream>);

impl Connection for Line {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Line {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl Write for Line {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// What went wrong, from the inside out: the outer words say nothing.
pub fn why(error: &hyper_util::client::legacy::Error) -> String {
    let mut deepest: &dyn std::error::Error = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}
