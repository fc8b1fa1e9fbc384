//! Refusals of the egress proxy, with a code for programs and a message for people and agents.

use atoll_core::id::SandboxId;
use atoll_core::sandbox::NetworkPolicy;
use std::net::IpAddr;

/// The reason why the proxy refuses a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EgressRefusal {
    Policy(NetworkPolicy),
    BadHost,
    PrivateAddress { address: IpAddr, what: &'static str },
    OwnServer,
    ServerName { named: Option<String> },
    NotTls,
    HostHeader,
    ByteLimit { most: u64 },
}

/// Every code of a refusal.
pub const REFUSAL_CODES: &[&str] =
    &["policy", "bad_host", "private_address", "own_server", "server_name", "not_tls", "host_header", "cap"];

impl EgressRefusal {
    /// The code in the header `X-Atoll-Refused` and in the event.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Policy(_) => "policy",
            Self::BadHost => "bad_host",
            Self::PrivateAddress { .. } => "private_address",
            Self::OwnServer => "own_server",
            Self::ServerName { .. } => "server_name",
            Self::NotTls => "not_tls",
            Self::HostHeader => "host_header",
            Self::ByteLimit { .. } => "cap",
        }
    }

    /// The reason phrase of the 403 status line.
    pub const fn reason_phrase(&self) -> &'static str {
        match self {
            Self::Policy(_) => "Forbidden (Atoll: this sandbox's network policy does not allow the host)",
            Self::BadHost => "Forbidden (Atoll: not a plain host name or address)",
            Self::PrivateAddress { .. } => "Forbidden (Atoll: the host's address is not a public one)",
            Self::OwnServer => "Forbidden (Atoll: a sandbox never reaches the Atoll server)",
            Self::ServerName { .. } => "Forbidden (Atoll: the TLS handshake names another server)",
            Self::NotTls => "Forbidden (Atoll: port 443 accepts only TLS)",
            Self::HostHeader => "Forbidden (Atoll: the Host header is not the URL's)",
            Self::ByteLimit { .. } => "Forbidden (Atoll: this sandbox has reached its transfer limit)",
        }
    }

    /// The message; `place` is the requested host as the program wrote it.
    pub fn message(&self, sandbox: SandboxId, place: &str) -> String {
        match self {
            Self::Policy(NetworkPolicy::None) => format!(
                "{place} is blocked: this sandbox's network policy is `none`. Continue without the network, or ask \
                 the user to run: atoll sandbox network {sandbox} --allow {}",
                allow_entry(place)
            ),
            Self::Policy(NetworkPolicy::Allow | NetworkPolicy::Packages | NetworkPolicy::All) => format!(
                "{place} is blocked: this sandbox's network policy does not allow the host. Use an allowed host, \
                 or ask the user to run: atoll sandbox network {sandbox} --allow {}",
                allow_entry(place)
            ),
            Self::BadHost => format!(
                "{place} is blocked: it is not a plain host name or address. Write the name, or the address as four \
                 decimal numbers."
            ),
            Self::PrivateAddress { address, what } => format!(
                "{place} is blocked: its address {address} is not public ({what}). The administrator of the Atoll \
                 server can allow it with `network.allow_private`."
            ),
            Self::OwnServer => format!("{place} is blocked: sandboxes cannot reach the Atoll server itself."),
            Self::ServerName { named: Some(named) } => format!(
                "the connection to {place} was closed: its TLS handshake names the server {named}. Connect to the \
                 host that you name."
            ),
            Self::ServerName { named: None } => format!(
                "the connection to {place} was closed: its TLS handshake names no server. Use a client that sends \
                 the server's name (SNI)."
            ),
            Self::NotTls => {
                format!("the connection to {place} was closed: port 443 accepts only TLS.")
            }
            Self::HostHeader => format!(
                "the request to {place} was refused: its Host header is missing, doubled, or names another host \
                 than its URL."
            ),
            Self::ByteLimit { most } => format!(
                "{place} is blocked: this sandbox has reached its transfer limit of {most} bytes. The administrator of \
                 the Atoll server can raise `network.max_bytes`."
            ),
        }
    }
}

/// The entry for `--allow`, without a default port.
fn allow_entry(place: &str) -> &str {
    place.strip_suffix(":443").or_else(|| place.strip_suffix(":80")).unwrap_or(place)
}

/// The reason why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectFailure {
    Refused(EgressRefusal),
    /// The connection is allowed but failed; the message says how.
    Failed(String),
}

impl From<EgressRefusal> for ConnectFailure {
    fn from(refusal: EgressRefusal) -> Self {
        Self::Refused(refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_command_that_allows_the_host() {
        let sandbox = SandboxId::new();
        let message = EgressRefusal::Policy(NetworkPolicy::None).message(sandbox, "example.org:443");
        assert!(message.ends_with(&format!("atoll sandbox network {sandbox} --allow example.org")), "{message}");
        let message = EgressRefusal::Policy(NetworkPolicy::Allow).message(sandbox, "example.org:8080");
        assert!(message.ends_with("--allow example.org:8080"), "{message}");
    }
}
