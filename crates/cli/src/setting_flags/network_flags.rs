//! The flags of a sandbox's network.

use crate::arguments::parse_word;
use atoll_core::sandbox::{Network, NetworkPolicy};

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Network")]
pub struct NetworkFlags {
    /// Network policy: none, allow, packages or all [default: the project's, or none]
    #[arg(long, value_name = "POLICY", value_parser = parse_word::<NetworkPolicy>)]
    network: Option<NetworkPolicy>,
    /// Allow a host: NAME, *.NAME, or either with :PORT (repeatable)
    #[arg(long, value_name = "HOST")]
    allow_host: Vec<String>,
}

impl NetworkFlags {
    /// The network of the request; `--allow-host` implies the policy `allow`.
    pub fn settings(&self) -> Option<Network> {
        let policy = self.network.or((!self.allow_host.is_empty()).then_some(NetworkPolicy::Allow))?;
        Some(Network { policy, allow: self.allow_host.clone() })
    }
}
