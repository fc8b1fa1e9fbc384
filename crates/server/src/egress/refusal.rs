//! Why a connection does not leave a sandbox, in a word for programs and a sentence for whoever reads it there.

use atoll_core::id::SandboxId;
use atoll_core::sandbox::NetworkPolicy;
use std::net::IpAddr;

/// Something that the proxy will not do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    Policy(NetworkPolicy),
    BadHost,
    Private { address: IpAddr, what: &'static str },
    OwnServer,
    ServerName { named: Option<String> },
    NotTls,
    HostHeader,
    Cap { most: u64 },
}

impl Refusal {
    /// Stands in the header `X-Atoll-Refused` and in the event.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Policy(_) => "policy",
            Self::BadHost => "bad_host",
            Self::Private { .. } => "private_address",
            Self::OwnServer => "own_server",
            Self::ServerName { .. } => "server_name",
            Self::NotTls => "not_tls",
            Self::HostHeader => "host_header",
            Self::Cap { .. } => "cap",
        }
    }

    /// Stands after the 403 in its first line.
    pub const fn phrase(&self) -> &'static str {
        match self {
            Self::Policy(_) => "Forbidden (Atoll: this sandbox's network policy does not allow the host)",
            Self::BadHost => "Forbidden (Atoll: not a plain host name or address)",
            Self::Private { .. } => "Forbidden (Atoll: the host's address is not a public one)",
            Self::OwnServer => "Forbidden (Atoll: a sandbox never reaches the Atoll server)",
            Self::ServerName { .. } => "Forbidden (Atoll: the TLS handshake names another server)",
            Self::NotTls => "Forbidden (Atoll: only TLS goes to port 443)",
            Self::HostHeader => "Forbidden (Atoll: the Host header is not the URL's)",
            Self::Cap { .. } => "Forbidden (Atoll: this sandbox has transferred all that it may)",
        }
    }

    /// `place` is what was asked for, as it was written.
    pub fn sentence(&self, sandbox: SandboxId, place: &str) -> String {
        match self {
            Self::Policy(NetworkPolicy::None) => format!(
                "{place} can't be reached: this sandbox's network policy is `none`, so nothing leaves it. Go on without \
                 the network, or ask the user to run: atoll sandbox network {sandbox} --allow {}",
                entry(place)
            ),
            Self::Policy(NetworkPolicy::Allow | NetworkPolicy::All) => format!(
                "{place} can't be reached: it is not on the list of hosts that this sandbox may reach. Use one that is, \
                 or ask the user to run: atoll sandbox network {sandbox} --allow {}",
                entry(place)
            ),
            Self::BadHost => format!(
                "{place} can't be reached: that is not a host name or address in its plain form. Write the name, or \
                 the address as four plain numbers."
            ),
            Self::Private { address, what } => format!(
                "{place} can't be reached: its address {address} is not a public one ({what}). Whoever runs the Atoll \
                 server can allow it with `network.allow_private` in its configuration."
            ),
            Self::OwnServer => format!("{place} can't be reached: a sandbox never reaches the Atoll server itself."),
            Self::ServerName { named: Some(named) } => format!(
                "the connection to {place} was closed: its TLS handshake names the server {named}. Connect to the \
                 host that you name."
            ),
            Self::ServerName { named: None } => format!(
                "the connection to {place} was closed: its TLS handshake names no server. Use a client that sends \
                 the server's name (SNI)."
            ),
            Self::NotTls => {
                format!("the connection to {place} was closed: only TLS goes to port 443.")
            }
            Self::HostHeader => format!(
                "the request to {place} was refused: its Host header is missing, doubled, or names another host \
                 than its URL."
            ),
            Self::Cap { most } => format!(
                "{place} can't be reached: this sandbox has transferred the {most} bytes that it may. Whoever runs \
                 the Atoll server can raise `network.max_bytes` in its configuration."
            ),
        }
    }
}

/// What to allow: without the ports that an entry has anyway.
fn entry(place: &str) -> &str {
    place.strip_suffix(":443").or_else(|| place.strip_suffix(":80")).unwrap_or(place)
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    Refused(Refusal),
    /// It may leave and went wrong on the way; a sentence.
    Failed(String),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_the_user_can_do() {
        let sandbox = SandboxId::new();
        let said = Refusal::Policy(NetworkPolicy::None).sentence(sandbox, "example.org:443");
        assert!(said.ends_with(&format!("atoll sandbox network {sandbox} --allow example.org")), "{said}");
        let said = Refusal::Policy(NetworkPolicy::Allow).sentence(sandbox, "example.org:8080");
        assert!(said.ends_with("--allow example.org:8080"), "{said}");
    }
}
