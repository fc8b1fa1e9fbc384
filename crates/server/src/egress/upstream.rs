//! The proxy that this server itself must use to reach the Internet, where there is one.

use super::stream::{Prefixed, Stream};
use atoll_core::network::{Exception, Host, Target};
use base64::Engine;
use secrecy::{ExposeSecret, SecretString};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The longest answer to CONNECT.
const LONGEST: usize = 16 << 10;

pub struct Upstream {
    pub address: Target,
    /// The whole value of `Proxy-Authorization`.
    pub authorization: Option<SecretString>,
    direct: Vec<Direct>,
}

/// What is reached without it.
enum Direct {
    Everything,
    /// A host and all below it.
    Domain(String),
    Address(Exception),
}

impl Upstream {
    /// From `http://[user[:password]@]host[:port]`, and what `NO_PROXY` says. Nothing if it is not such a URL.
    pub fn parse(url: &SecretString, no_proxy: &str) -> Option<Self> {
        let rest = url.expose_secret().strip_prefix("http://")?;
        let rest = rest.trim_end_matches('/');
        let (user, place) = rest.rsplit_once('@').map_or((None, rest), |(user, place)| (Some(user), place));
        let authorization = match user {
            Some(user) => {
                let encoded = base64::engine::general_purpose::STANDARD.encode(percent_decoded(user)?);
                Some(SecretString::from(format!("Basic {encoded}")))
            }
            None => None,
        };
        let address = Target::parse(place, Some(80))?;
        let direct = no_proxy.split(',').map(str::trim).filter(|entry| !entry.is_empty()).filter_map(Direct::parse);
        Some(Self { address, authorization, direct: direct.collect() })
    }

    pub fn serves(&self, target: &Target) -> bool {
        !self.direct.iter().any(|direct| direct.covers(target))
    }

    /// A connection to the proxy itself.
    pub async fn dial(&self) -> io::Result<TcpStream> {
        let port = self.address.port;
        let connection = match &self.address.host {
            Host::Name(name) => TcpStream::connect((name.as_str(), port)).await?,
            Host::Address(address) => TcpStream::connect((*address, port)).await?,
        };
        connection.set_nodelay(true)?;
        Ok(connection)
    }

    /// A connection through it.
    pub async fn connect(&self, target: &Target) -> io::Result<Stream> {
        let mut connection = self.dial().await?;
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
                return Err(io::Error::other("the server's own proxy closed the connection"));
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
                            Err(io::Error::other(format!("the server's own proxy answered {code}")))
                        }
                    };
                }
                Ok(httparse::Status::Partial) if answer.len() < LONGEST => {}
                Ok(httparse::Status::Partial) | Err(_) => {
                    return Err(io::Error::other("the server's own proxy gave an answer that can't be read"));
                }
            }
        }
    }
}

impl Direct {
    fn parse(entry: &str) -> Option<Self> {
        if entry == "*" {
            return Some(Self::Everything);
        }
        if let Ok(address) = entry.parse::<Exception>() {
            return Some(Self::Address(address));
        }
        let name = entry.strip_prefix("*.").or_else(|| entry.strip_prefix('.')).unwrap_or(entry);
        match Host::parse(name).ok()? {
            Host::Name(name) => Some(Self::Domain(name)),
            Host::Address(_) => None,
        }
    }

    fn covers(&self, target: &Target) -> bool {
        match (self, &target.host) {
            (Self::Everything, _) => true,
            (Self::Domain(domain), Host::Name(name)) => {
                name.strip_suffix(domain.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
            (Self::Domain(_), Host::Address(_)) => false,
            (Self::Address(Exception::Place(place)), _) => place == target,
            (Self::Address(range @ Exception::Range { .. }), Host::Address(address)) => range.covers(target, *address),
            (Self::Address(Exception::Range { .. }), Host::Name(_)) => false,
        }
    }
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
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

    fn parsed(url: &str, no_proxy: &str) -> Option<Upstream> {
        Upstream::parse(&url.into(), no_proxy)
    }

    #[test]
    fn a_url_is_taken_apart() {
        let upstream = parsed("http://me:p%40ss@proxy.corp:3128/", "").unwrap();
        assert_eq!(upstream.address.to_string(), "proxy.corp:3128");
        assert_eq!(upstream.authorization.unwrap().expose_secret(), "Basic bWU6cEBzcw==");
        assert_eq!(parsed("http://proxy.corp", "").unwrap().address.port, 80);
        for bad in ["https://proxy.corp", "socks5://proxy.corp", "proxy.corp:3128", "http://", "http://a/b"] {
            assert!(parsed(bad, "").is_none(), "{bad}");
        }
    }

    #[test]
    fn some_hosts_are_reached_without_it() {
        let upstream = parsed("http://p:1", "corp.example, .dev, 10.0.0.0/8, special.org:8080,, 192.0.2.1").unwrap();
        let serves = |text: &str| upstream.serves(&Target::parse(text, Some(443)).unwrap());
        for direct in ["corp.example", "a.corp.example", "x.dev", "10.9.9.9", "special.org:8080", "192.0.2.1"] {
            assert!(!serves(direct), "{direct}");
        }
        for by_proxy in ["notcorp.example", "example", "11.0.0.1", "special.org:443", "mydev"] {
            assert!(serves(by_proxy), "{by_proxy}");
        }
        assert!(!parsed("http://p:1", "*").unwrap().serves(&Target::parse("a.b:1", None).unwrap()));
    }
}
