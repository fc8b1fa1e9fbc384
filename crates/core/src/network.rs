//! Network policies. Hosts and addresses are compared in one canonical form; a text without one is rejected, so that
//! two parsers never see two different hosts.

mod exception;
mod host;
mod packages;
#[cfg(test)]
mod tests;

pub use exception::{AddressException, InvalidException};
pub use host::{Host, InvalidHost, NetworkTarget};
pub use packages::{HostsByEcosystem, resolve_package_hosts};

use crate::sandbox::{Network, NetworkPolicy};

/// Ports of an entry without a port.
pub const DEFAULT_PORTS: [u16; 2] = [80, 443];
/// Maximum number of entries in a list.
pub const MAX_ALLOW_ENTRIES: usize = 200;

/// One entry of `network.allow`: a host or all subdomains of a domain, at one port or the usual two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowEntry {
    pattern: HostPattern,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum HostPattern {
    Exact(Host),
    /// All names with this suffix. It starts with a dot, so the domain itself does not match.
    Subdomains(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAllowEntry {
    #[error("`{0}` is not a host: write a name, `*.name`, or either with `:port`, without a scheme or a path")]
    NotAHost(String),
    #[error("`*` matches every host: use the policy `all` instead, or `*.name` for all subdomains")]
    MatchesEverything,
    #[error("`{0}`: `*` is allowed only at the start and for whole labels, as in `*.example.org`")]
    MisplacedWildcard(String),
    #[error("`{0}`: a port is a number from 1 to 65535")]
    InvalidPort(String),
    #[error("`{0}` is {1}")]
    InvalidHost(String, InvalidHost),
}

impl AllowEntry {
    pub fn parse(text: &str) -> Result<Self, InvalidAllowEntry> {
        if text == "*" {
            return Err(InvalidAllowEntry::MatchesEverything);
        }
        if text.is_empty() || text.contains(['/', '@', '?', '#', '\\']) || text.contains(char::is_whitespace) {
            return Err(InvalidAllowEntry::NotAHost(text.to_owned()));
        }
        let (host, port) = host::split_host_port(text).ok_or_else(|| InvalidAllowEntry::NotAHost(text.to_owned()))?;
        let port = match port {
            Some(port) => Some(host::parse_port(port).ok_or_else(|| InvalidAllowEntry::InvalidPort(text.to_owned()))?),
            None => None,
        };
        let bad = |error| InvalidAllowEntry::InvalidHost(text.to_owned(), error);
        let pattern = match host.strip_prefix("*.") {
            Some(below) if below.contains('*') => return Err(InvalidAllowEntry::MisplacedWildcard(text.to_owned())),
            Some(below) => match Host::parse(below).map_err(bad)? {
                Host::Name(name) => HostPattern::Subdomains(format!(".{name}")),
                Host::Address(_) => return Err(InvalidAllowEntry::MisplacedWildcard(text.to_owned())),
            },
            None if host.contains('*') => return Err(InvalidAllowEntry::MisplacedWildcard(text.to_owned())),
            None => HostPattern::Exact(Host::parse(host).map_err(bad)?),
        };
        Ok(Self { pattern, port })
    }

    fn permits(&self, target: &NetworkTarget) -> bool {
        let host = match (&self.pattern, &target.host) {
            (HostPattern::Exact(host), target_host) => host == target_host,
            (HostPattern::Subdomains(suffix), Host::Name(name)) => {
                name.len() > suffix.len() && name.ends_with(suffix.as_str())
            }
            (HostPattern::Subdomains(_), Host::Address(_)) => false,
        };
        host && match self.port {
            Some(port) => port == target.port,
            None => DEFAULT_PORTS.contains(&target.port),
        }
    }
}

/// A policy, parsed for matching.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkRule {
    None,
    Allow(Vec<AllowEntry>),
    /// The package registries and the listed hosts.
    Packages(Vec<AllowEntry>),
    All,
}

impl NetworkRule {
    /// `packages` are the entries of the policy `packages`; see [`resolve_package_hosts`].
    pub fn new(network: &Network, packages: &[AllowEntry]) -> Result<Self, InvalidAllowEntry> {
        let listed = || network.allow.iter().map(|entry| AllowEntry::parse(entry));
        Ok(match network.policy {
            NetworkPolicy::None => Self::None,
            NetworkPolicy::Allow => Self::Allow(listed().collect::<Result<_, _>>()?),
            NetworkPolicy::Packages => {
                Self::Packages(packages.iter().cloned().map(Ok).chain(listed()).collect::<Result<_, _>>()?)
            }
            NetworkPolicy::All => Self::All,
        })
    }

    pub fn permits(&self, target: &NetworkTarget) -> bool {
        match self {
            Self::None => false,
            Self::Allow(entries) | Self::Packages(entries) => entries.iter().any(|entry| entry.permits(target)),
            Self::All => true,
        }
    }

    pub const fn policy(&self) -> NetworkPolicy {
        match self {
            Self::None => NetworkPolicy::None,
            Self::Allow(_) => NetworkPolicy::Allow,
            Self::Packages(_) => NetworkPolicy::Packages,
            Self::All => NetworkPolicy::All,
        }
    }
}
