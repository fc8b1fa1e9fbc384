//! `Dial`: opens connections to the server; `Dialer` does so by TCP and TLS.

use atoll_core::BoxFuture;
use hyper::Uri;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection of any kind.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// Opens connections to the server. Its `Debug` form names the server.
pub trait Dial: Send + Sync + std::fmt::Debug {
    fn dial(&self) -> BoxFuture<'_, io::Result<Box<dyn Io>>>;
    /// Value of the `Host` header.
    fn host_header(&self) -> &str;
    /// Path of the server's URL, without a trailing slash.
    fn prefix(&self) -> &str;
    /// True if a dead peer may look like a silent one. On the same host the kernel reports its end at once.
    fn dies_silently(&self) -> bool {
        true
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BadServer {
    #[error("`{0}` is not a server URL; use a form like https://atoll.example or http://127.0.0.1:7700")]
    NotAnAddress(String),
    #[error("failed to set up TLS")]
    Tls(#[from] rustls::Error),
}

pub struct Dialer {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    authority: String,
    prefix: String,
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.prefix)
    }
}

impl Dialer {
    pub fn new(server: &str) -> Result<Self, BadServer> {
        let bad = || BadServer::NotAnAddress(server.to_owned());
        let uri: Uri = server.parse().map_err(|_| bad())?;
        let encrypted = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            Some(_) | None => return Err(bad()),
        };
        let authority = uri.authority().ok_or_else(bad)?;
        if authority.as_str().contains('@') || uri.query().is_some() || authority.host().is_empty() {
            return Err(bad());
        }
        // Brackets around an IPv6 address belong to the URL only.
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let tls = if encrypted {
            let name = ServerName::try_from(host.clone()).map_err(|_| bad())?;
            Some((TlsConnector::from(Arc::new(tls_config()?)), name))
        } else {
            None
        };
        Ok(Self {
            port: authority.port_u16().unwrap_or(if encrypted { 443 } else { 80 }),
            authority: authority.as_str().to_owned(),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            host,
            tls,
        })
    }

    async fn connect(&self) -> io::Result<Box<dyn Io>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            Some((connector, name)) => Ok(Box::new(connector.connect(name.clone(), stream).await?)),
            None => Ok(Box::new(stream)),
        }
    }
}

impl Dial for Dialer {
    fn dial(&self) -> BoxFuture<'_, io::Result<Box<dyn Io>>> {
        Box::pin(async move {
            let late = || io::Error::new(io::ErrorKind::TimedOut, format!("failed to connect to {self:?} in time"));
            tokio::time::timeout(CONNECT_TIMEOUT, self.connect()).await.unwrap_or_else(|_| Err(late()))
        })
    }

    fn host_header(&self) -> &str {
        &self.authority
    }

    fn prefix(&self) -> &str {
        &self.prefix
    }
}

/// Trusts the system's certificates (`SSL_CERT_FILE` included), or the built-in ones if there are none.
fn tls_config() -> Result<ClientConfig, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_server_addresses() {
        let dialer = Dialer::new("http://127.0.0.1:7700/").unwrap();
        assert_eq!((dialer.host.as_str(), dialer.port, dialer.prefix()), ("127.0.0.1", 7700, ""));
        let dialer = Dialer::new("https://atoll.example/behind/a/proxy/").unwrap();
        assert_eq!((dialer.host_header(), dialer.port, dialer.prefix()), ("atoll.example", 443, "/behind/a/proxy"));
        let dialer = Dialer::new("http://[::1]:80").unwrap();
        assert_eq!((dialer.host.as_str(), dialer.host_header()), ("::1", "[::1]:80"));
        for bad in ["", "atoll.example", "ftp://x", "http://", "http://user:word@x", "http://x/?a=b", "/x"] {
            assert!(Dialer::new(bad).is_err(), "{bad}");
        }
    }
}
