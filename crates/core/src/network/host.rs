//! A host in canonical form.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A lower-case name without a trailing dot, or an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    Name(String),
    Address(IpAddr),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHost {
    #[error("empty or longer than 253 characters")]
    Length,
    #[error("not a name: use letters, digits, `-`, `_` and dots; write other letters in `xn--` form")]
    Character,
    #[error("not a name: a part between dots is empty, too long, or begins or ends with `-`")]
    Label,
    #[error("an ambiguous address: write it as four decimal numbers")]
    AmbiguousAddress,
}

impl Host {
    /// Parses a host, with or without the brackets of an IPv6 address.
    pub fn parse(text: &str) -> Result<Self, InvalidHost> {
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or(InvalidHost::Character)?;
            return inner
                .parse::<Ipv6Addr>()
                .map(|address| Self::Address(address.into()))
                .map_err(|_| InvalidHost::Character);
        }
        if text.contains(':') {
            return text
                .parse::<Ipv6Addr>()
                .map(|address| Self::Address(address.into()))
                .map_err(|_| InvalidHost::Character);
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.is_empty() || name.len() > 253 {
            return Err(InvalidHost::Length);
        }
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
            return Err(InvalidHost::Character);
        }
        let label_is_good =
            |label: &str| (1..=63).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-');
        if !name.split('.').all(label_is_good) {
            return Err(InvalidHost::Label);
        }
        // Some programs parse names that end in a number as addresses: `127.1`, `0x7f.1`, `0177.0.0.1`.
        let last = name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
        let is_number = last.bytes().all(|byte| byte.is_ascii_digit())
            || last.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if is_number {
            // The standard library accepts only the plain form, without leading zeros.
            return name
                .parse::<Ipv4Addr>()
                .map(|it| Self::Address(it.into()))
                .map_err(|_| InvalidHost::AmbiguousAddress);
        }
        Ok(Self::Name(name.to_ascii_lowercase()))
    }
}

/// Formats the host as in a URL.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// Destination of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetworkTarget {
    pub host: Host,
    pub port: u16,
}

impl NetworkTarget {
    /// Parses `host`, `host:port`, `[v6]`, `[v6]:port`. `usual` is the default port; without one, the port is required.
    pub fn parse(text: &str, usual: Option<u16>) -> Option<Self> {
        let (host, port_text) = split_host_port(text)?;
        let port = match port_text {
            Some(port_text) => parse_port(port_text)?,
            None => usual?,
        };
        Some(Self { host: Host::parse(host).ok()?, port })
    }
}

impl fmt::Display for NetworkTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Splits an authority into host and port; the host keeps its brackets.
pub(super) fn split_host_port(text: &str) -> Option<(&str, Option<&str>)> {
    if text.starts_with('[') {
        let end = text.find(']')?;
        let (host, rest) = text.split_at(end + 1);
        return match rest.strip_prefix(':') {
            Some(port) => Some((host, Some(port))),
            None => rest.is_empty().then_some((host, None)),
        };
    }
    match text.split_once(':') {
        // Two colons without brackets: the start of the port is ambiguous.
        Some((_, port)) if port.contains(':') => None,
        Some((host, port)) => Some((host, Some(port))),
        None => Some((text, None)),
    }
}

pub(super) fn parse_port(text: &str) -> Option<u16> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| plain && *port != 0)
}
