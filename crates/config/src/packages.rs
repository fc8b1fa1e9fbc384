//! The key `network.packages`: hosts of package registries by ecosystem.

use crate::sections::Network;
use atoll_core::network::{AllowEntry, HostsByEcosystem, MAX_ALLOW_ENTRIES, resolve_package_hosts};

pub(crate) const PACKAGES_FORM: &str = "{ecosystem: [host, *.host, or either with :port]}";

pub(crate) fn check_packages(packages: HostsByEcosystem) -> Result<HostsByEcosystem, String> {
    let count: usize = packages.values().map(Vec::len).sum();
    if count > MAX_ALLOW_ENTRIES {
        return Err(format!("at most {MAX_ALLOW_ENTRIES} hosts, found {count}"));
    }
    resolve_package_hosts(&packages).map_err(|error| error.to_string())?;
    Ok(packages)
}

impl Network {
    /// The entries that the policy `packages` allows.
    pub fn package_hosts(&self) -> Vec<AllowEntry> {
        // `check_packages` has parsed every entry; an unparsed map allows no host.
        resolve_package_hosts(&self.packages).unwrap_or_default()
    }
}
