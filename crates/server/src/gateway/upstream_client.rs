//! The pooled HTTP client for upstreams.

use crate::egress::stream::Stream;
use crate::egress::upstream_proxy::UpstreamProxy as Proxy;
use atoll_core::BoxFuture;
use atoll_core::network::{Host, NetworkTarget};
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

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Shorter than the upstreams' own idle timeout of a minute or more.
const IDLE_TIMEOUT: Duration = Duration::from_secs(50);
const MAX_IDLE_CONNECTIONS: usize = 32;

pub type UpstreamClient = Client<UpstreamConnector, Full<Bytes>>;

pub fn new_client(proxy: Option<Proxy>) -> UpstreamClient {
    let dialer = UpstreamConnector { tls: Arc::default(), proxy: proxy.map(Arc::new) };
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
        .build(dialer)
}

/// Trusts the machine's certificates (including `SSL_CERT_FILE`), or the built-in ones if there are none.
fn tls_config() -> Result<ClientConfig, rustls::Error> {
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

async fn tls_connector() -> io::Result<TlsConnector> {
    let config_result = tokio::task::spawn_blocking(tls_config).await.map_err(io::Error::other)?;
    config_result.map(|config| TlsConnector::from(Arc::new(config))).map_err(io::Error::other)
}

#[derive(Clone)]
pub struct UpstreamConnector {
    /// Loaded at first use: the machine's certificates take time and memory.
    tls: Arc<OnceCell<TlsConnector>>,
    /// The proxy between this server and the Internet.
    proxy: Option<Arc<Proxy>>,
}

impl UpstreamConnector {
    async fn connect_upstream(self, uri: Uri) -> io::Result<UpstreamConnection> {
        let unusable = || io::Error::other("invalid URL");
        let is_tls = uri.scheme_str() == Some("https");
        let authority = uri.authority().ok_or_else(unusable)?;
        let target =
            NetworkTarget::parse(authority.as_str(), Some(if is_tls { 443 } else { 80 })).ok_or_else(unusable)?;
        let late = || io::Error::new(io::ErrorKind::TimedOut, "connecting timed out");
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, async {
            let stream = self.connect_tcp(&target).await?;
            if !is_tls {
                return Ok(stream);
            }
            let name = match &target.host {
                Host::Name(name) => ServerName::try_from(name.clone()).map_err(|_| unusable())?,
                Host::Address(address) => ServerName::from(*address),
            };
            let tls = self.tls.get_or_try_init(tls_connector).await?;
            Ok(Box::new(tls.connect(name, stream).await?) as Stream)
        });
        connected.await.unwrap_or_else(|_| Err(late())).map(|stream| UpstreamConnection(TokioIo::new(stream)))
    }

    async fn connect_tcp(&self, target: &NetworkTarget) -> io::Result<Stream> {
        if let Some(proxy) = self.proxy.as_ref().filter(|proxy| !is_loopback(target) && proxy.applies_to(target)) {
            return proxy.connect_through(target).await;
        }
        let stream = match &target.host {
            Host::Name(name) => TcpStream::connect((name.as_str(), target.port)).await?,
            Host::Address(address) => TcpStream::connect((*address, target.port)).await?,
        };
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}

/// True for this machine, which no proxy can reach.
fn is_loopback(target: &NetworkTarget) -> bool {
    match &target.host {
        Host::Name(name) => name == "localhost",
        Host::Address(address) => address.is_loopback(),
    }
}

impl tower::Service<Uri> for UpstreamConnector {
    type Response = UpstreamConnection;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<UpstreamConnection>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect_upstream(uri))
    }
}

/// A connection in the form that hyper's client requires.
pub struct UpstreamConnection(TokioIo<Stream>);

impl Connection for UpstreamConnection {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for UpstreamConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl Write for UpstreamConnection {
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

/// The innermost error message; the outer ones are generic.
pub fn root_cause(error: &hyper_util::client::legacy::Error) -> String {
    let mut deepest: &dyn std::error::Error = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}
