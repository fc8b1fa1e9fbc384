//! The section `setup`: how projects are set up in their sandboxes.

use crate::format::{ALLOWED_HOSTS, Number, OneOf, SWITCH, TIME};
use crate::key::section;
use crate::sections::Config;
use atoll_core::sandbox::{Network, NetworkPolicy};
use std::time::Duration;

/// Shorter than a job's claim, so that two servers never set up the same sandbox.
const MAX_SETUP_TIME: Duration = Duration::from_secs(50 * 60);

section! {
    /// The set-up of a project before its agent starts.
    Setup at [setup] {
        /// Set projects up before the agent starts
        enabled: bool = true => SWITCH;
        /// Time limit of a project's set-up, at most 50m
        timeout: Duration = Duration::from_secs(15 * 60) => TIME;
        /// Network policy during set-up, independent of the agent's
        network: NetworkPolicy = NetworkPolicy::Packages => OneOf(NetworkPolicy::ALL);
        /// Additional hosts that set-up may reach, with the policies `packages` and `allow`
        allow: Vec<String> = Vec::new() => ALLOWED_HOSTS;
        /// Maximum size of all stored set-up layers, in GiB; the least recently used ones are evicted first
        max_cache_gb: f64 = 20.0 => Number(65536.0);
    }
}

impl Setup {
    /// The time limit of a set-up that a request bounds to `seconds`.
    pub fn time_limit(&self, seconds: Option<u32>) -> Duration {
        seconds.map_or(self.timeout, |seconds| Duration::from_secs(seconds.into())).min(MAX_SETUP_TIME)
    }

    /// The network policy of a sandbox while it is set up.
    pub fn network_policy(&self) -> Network {
        let allow = match self.network {
            NetworkPolicy::Packages | NetworkPolicy::Allow => self.allow.clone(),
            NetworkPolicy::None | NetworkPolicy::All => Vec::new(),
        };
        Network { policy: self.network, allow }
    }
}
