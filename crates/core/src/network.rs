//! Which hosts a sandbox may reach. Names and addresses are compared in one form each, and what has no such form is
//! refused: two readers of one text must not see two hosts.

mod exception;
mod host;
#[cfg(test)]
mod tests;

pub use exception::{BadException, Exception};
pub use host::{BadHost, Host, Target};

use crate::sandbox::{Network, NetworkPolicy};

/// The ports of an entry that names none.
pub const USUAL_PORTS: [u16; 2] = [80, 443];
/// The most entries of one list.
pub const MOST_ENTRIES: usize = 200;

/// One entry of `network.allow`: a host, or all below a domain, at one port or the usual two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pattern: Pattern,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    Exact(Host),
    /// Every name that ends with this; it begins with a dot, so the domain itself is not among them.
    Below(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadEntry {
    #[error("`{0}` is not a host: write a name, `*.name`, or either with `:port`, without a scheme or a path")]
    NotAHost(String),
    #[error("`*` is every host: use the policy `all` for that, or `*.name` for all below a name")]
    Everything,
    #[error("`{0}`: a `*` stands only at the beginning and for whole labels, as in `*.example.org`")]
    Star(String),
    #[error("`{0}`: a port is a number from 1 to 65535")]
    Port(String),
    #[error("`{0}` is {1}")]
    Host(String, BadHost),
}

impl Entry {
    pub fn parse(text: &str) -> Result<Self, BadEntry> {
        if text == "*" {
            return Err(BadEntry::Everything);
        }
        if text.is_empty() || text.contains(['/', '@', '?', '#', '\\']) || text.contains(char::is_whitespace) {
            return Err(BadEntry::NotAHost(text.to_owned()));
        }
        let (host, port) = host::split(text).ok_or_else(|| BadEntry::NotAHost(text.to_owned()))?;
        let port = match port {
            Some(port) => Some(host::port(port).ok_or_else(|| BadEntry::Port(text.to_owned()))?),
            None => None,
        };
        let bad = |error| BadEntry::Host(text.to_owned(), error);
        let pattern = match host.strip_prefix("*.") {
            Some(below) if below.contains('*') => return Err(BadEntry::Star(text.to_owned())),
            Some(below) => match Host::parse(below).map_err(bad)? {
                Host::Name(name) => Pattern::Below(format!(".{name}")),
                Host::Address(_) => return Err(BadEntry::Star(text.to_owned())),
            },
            None if host.contains('*') => return Err(BadEntry::Star(text.to_owned())),
            None => Pattern::Exact(Host::parse(host).map_err(bad)?),
        };
        Ok(Self { pattern, port })
    }

    fn permits(&self, target: &Target) -> bool {
        let host = match (&self.pattern, &target.host) {
            (Pattern::Exact(host), asked) => host == asked,
            (Pattern::Below(suffix), Host::Name(name)) => name.len() > suffix.len() && name.ends_with(suffix.as_str()),
            (Pattern::Below(_), Host::Address(_)) => false,
        };
        host && match self.port {
            Some(port) => port == target.port,
            None => USUAL_PORTS.contains(&target.port),
        }
    }
}

/// A policy, ready to be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    None,
    Allow(Vec<Entry>),
    All,
}

impl Rule {
    pub fn new(network: &Network) -> Result<Self, BadEntry> {
        Ok(match network.policy {
            NetworkPolicy::None => Self::None,
            NetworkPolicy::Allow => {
                Self::Allow(network.allow.iter().map(|entry| Entry::parse(entry)).collect::<Result<_, _>>()?)
            }
            NetworkPolicy::All => Self::All,
        })
    }

    pub fn permits(&self, target: &Target) -> bool {
        match self {
            Self::None => false,
            Self::Allow(entries) => entries.iter().any(|entry| entry.permits(target)),
            Self::All => true,
        }
    }

    pub const fn policy(&self) -> NetworkPolicy {
        match self {
            Self::None => NetworkPolicy::None,
            Self::Allow(_) => NetworkPolicy::Allow,
            Self::All => NetworkPolicy::All,
        }
    }
}
