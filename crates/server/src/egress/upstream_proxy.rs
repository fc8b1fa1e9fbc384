//! The proxy between this server and the Internet, if one is configured.

use super::stream::{Prefixed, Stream};
use atoll_core::network::{AddressException, Host, NetworkTarget};
use base64::Engine;
use secrecy::{ExposeSecret, SecretString};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest response to CONNECT.
const MAX_RESPONSE_BYTES: usize = 16 << 10;

pub struct UpstreamProxy {
    pub address: NetworkTarget,
    /// Value of `Proxy-Authorization`.
    pub authorization: Option<SecretString>,
    direct: Vec<NoProxyEntry>,
}

/// An entry of `NO_PROXY`.
enum NoProxyEntry {
    Everything,
    /// A host and its subdomains.
    Domain(String),
    Address(AddressException),
}

impl UpstreamProxy {
    /// Parses `http://[user[:password]@]host[:port]` and the value of `NO_PROXY`.
    pub fn parse(url: &SecretString, no_proxy: &str) -> Option<Self> {
        let rest = url.expose_secret().strip_prefix("http://")?;
        let rest = rest.trim_end_matches('/');
        let (user, place) = rest.rsplit_once('@').map_or((None, rest), |(user, place)| (Some(user), place));
        let authorization = match user {
            Some(user) => {
                let encoded = base64::engine::general_purpose::STANDARD.encode(percent_decode(user)?);
                Some(SecretString::from(format!("Basic {encoded}")))
            }
            None => None,
        };
        let address = NetworkTarget::parse(place, Some(80))?;
        let direct =
            no_proxy.split(',').map(str::trim).filter(|entry| !entry.is_empty()).filter_map(NoProxyEntry::parse);
        Some(Self { address, authorization, direct: direct.collect() })
    }

    pub fn applies_to(&self, target: &NetworkTarget) -> bool {
        !self.direct.iter().any(|direct| direct.covers(target))
    }

    /// Connects to the proxy itself.
    pub async fn connect_proxy(&self) -> io::Result<TcpStream> {
        let port = self.address.port;
        let connection = match &self.address.host {
            Host::Name(name) => TcpStream::connect((name.as_str(), port)).await?,
            Host::Address(address) => TcpStream::connect((*address, port)).await?,
        };
        connection.set_nodelay(true)?;
        Ok(connection)
    }

    /// Connects to a target through the proxy.
    pub async fn connect_through(&self, target: &NetworkTarget) -> io::Result<Stream> {
        let mut connection = self.connect_proxy().await?;
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
        if let Some(authorization) = &self.authorization {
            request.push_str("Proxy-Authorization: ");
            request.push_str(authorization.expose_secret());
            request.push_str("\r\n");
        }
        request.push_str("\r\n");
        connection.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        loop {
            if connection.read_buf(&mut answer).await? == 0 {
                return Err(io::Error::other("the upstream proxy closed the connection"));
            }
            let mut headers = [httparse::EMPTY_HEADER; 64];
            let mut response = httparse::Response::new(&mut headers);
            match response.parse(&answer) {
                Ok(httparse::Status::Complete(length)) => {
                    return match response.code {
                        Some(200..=299) => {
                            let rest = answer.split_off(length);
                            Ok(Box::new(Prefixed::new(rest, Box::new(connection))))
                        }
                        code => {
                            let code = code.unwrap_or_default();
                            Err(io::Error::other(format!("the upstream proxy responded {code}")))
                        }
                    };
                }
                Ok(httparse::Status::Partial) if answer.len() < MAX_RESPONSE_BYTES => {}
                Ok(httparse::Status::Partial) | Err(_) => {
                    return Err(io::Error::other("the upstream proxy sent an invalid response"));
                }
            }
        }
    }
}

impl NoProxyEntry {
    fn parse(entry: &str) -> Option<Self> {
        if entry == "*" {
            return Some(Self::Everything);
        }
        if let Ok(address) = entry.parse::<AddressException>() {
            return Some(Self::Address(address));
        }
        let name = entry.strip_prefix("*.").or_else(|| entry.strip_prefix('.')).unwrap_or(entry);
        match Host::parse(name).ok()? {
            Host::Name(name) => Some(Self::Domain(name)),
            Host::Address(_) => None,
        }
    }

    fn covers(&self, target: &NetworkTarget) -> bool {
        match (self, &target.host) {
            (Self::Everything, _) => true,
            (Self::Domain(domain), Host::Name(name)) => {
                name.strip_suffix(domain.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
            (Self::Domain(_), Host::Address(_)) => false,
            (Self::Address(AddressException::HostPort(place)), _) => place == target,
            (Self::Address(range @ AddressException::Range { .. }), Host::Address(address)) => {
                range.covers(target, *address)
            }
            (Self::Address(AddressException::Range { .. }), Host::Name(_)) => false,
        }
    }
}

fn percent_decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let digits = [bytes.next()?, bytes.next()?];
        decoded.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str, no_proxy: &str) -> Option<UpstreamProxy> {
        UpstreamProxy::parse(&url.into(), no_proxy)
    }

    #[test]
    fn parses_the_proxy_url() {
        let upstream = parsed("http://me:p%40ss@proxy.corp:3128/", "").unwrap();
        assert_eq!(upstream.address.to_string(), "proxy.corp:3128");
        assert_eq!(upstream.authorization.unwrap().expose_secret(), "Basic bWU6cEBzcw==");
        assert_eq!(parsed("http://proxy.corp", "").unwrap().address.port, 80);
        for bad in ["https://proxy.corp", "socks5://proxy.corp", "proxy.corp:3128", "http://", "http://a/b"] {
            assert!(parsed(bad, "").is_none(), "{bad}");
        }
    }

    #[test]
    fn no_proxy_hosts_bypass_the_proxy() {
        let upstream = parsed("http://p:1", "corp.example, .dev, 10.0.0.0/8, special.org:8080,, 192.0.2.1").unwrap();
        let serves = |text: &str| upstream.applies_to(&NetworkTarget::parse(text, Some(443)).unwrap());
        for direct in ["corp.example", "a.corp.example", "x.dev", "10.9.9.9", "special.org:8080", "192.0.2.1"] {
            assert!(!serves(direct), "{direct}");
        }
        for by_proxy in ["notcorp.example", "example", "11.0.0.1", "special.org:443", "mydev"] {
            assert!(serves(by_proxy), "{by_proxy}");
        }
        assert!(!parsed("http://p:1", "*").unwrap().applies_to(&NetworkTarget::parse("a.b:1", None).unwrap()));
    }
}
