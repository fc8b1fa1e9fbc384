//! A host in the one form that it is compared in.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A name in lower case without a dot at its end, or an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    Name(String),
    Address(IpAddr),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadHost {
    #[error("empty or longer than 253 characters")]
    Length,
    #[error("not a name: it may hold letters, digits, `-`, `_` and dots; other letters in their `xn--` form")]
    Character,
    #[error("not a name: a part between dots is empty, too long, or begins or ends with `-`")]
    Label,
    #[error("an address in a form that programs read in different ways: write it as four plain numbers")]
    OddAddress,
}

impl Host {
    /// With or without the brackets of an IPv6 address.
    pub fn parse(text: &str) -> Result<Self, BadHost> {
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or(BadHost::Character)?;
            return inner
                .parse::<Ipv6Addr>()
                .map(|address| Self::Address(address.into()))
                .map_err(|_| BadHost::Character);
        }
        if text.contains(':') {
            return text
                .parse::<Ipv6Addr>()
                .map(|address| Self::Address(address.into()))
                .map_err(|_| BadHost::Character);
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.is_empty() || name.len() > 253 {
            return Err(BadHost::Length);
        }
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
            return Err(BadHost::Character);
        }
        let label_is_good =
            |label: &str| (1..=63).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-');
        if !name.split('.').all(label_is_good) {
            return Err(BadHost::Label);
        }
        // What ends in a number is an address to somebody: `127.1`, `0x7f.1`, `2130706433`, `0177.0.0.1`.
        let last = name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
        let is_number = last.bytes().all(|byte| byte.is_ascii_digit())
            || last.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if is_number {
            // The standard library takes the plain form only, without leading zeros.
            return name.parse::<Ipv4Addr>().map(|it| Self::Address(it.into())).map_err(|_| BadHost::OddAddress);
        }
        Ok(Self::Name(name.to_ascii_lowercase()))
    }
}

/// As it stands in a URL.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// Where a connection wants to go.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    pub host: Host,
    pub port: u16,
}

impl Target {
    /// `host`, `host:port`, `[v6]`, `[v6]:port`; without a port it is `usual`, and if that is nothing, an error.
    pub fn parse(text: &str, usual: Option<u16>) -> Option<Self> {
        let (host, given) = split(text)?;
        let port = match given {
            Some(given) => port(given)?,
            None => usual?,
        };
        Some(Self { host: Host::parse(host).ok()?, port })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Host and port of an authority; the host keeps its brackets.
pub(super) fn split(text: &str) -> Option<(&str, Option<&str>)> {
    if text.starts_with('[') {
        let end = text.find(']')?;
        let (host, rest) = text.split_at(end + 1);
        return match rest.strip_prefix(':') {
            Some(port) => Some((host, Some(port))),
            None => rest.is_empty().then_some((host, None)),
        };
    }
    match text.split_once(':') {
        // Two colons without brackets: nobody knows which one begins the port.
        Some((_, port)) if port.contains(':') => None,
        Some((host, port)) => Some((host, Some(port))),
        None => Some((text, None)),
    }
}

pub(super) fn port(text: &str) -> Option<u16> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| plain && *port != 0)
}
