//! The hosts of package registries: the policy `packages` allows them.

use super::{AllowEntry, InvalidAllowEntry};
use std::collections::BTreeMap;

/// The registries of each ecosystem. Hosts that accept uploads or serve arbitrary content are left out on purpose, such
/// as github.com and storage.googleapis.com.
const DEFAULT_PACKAGE_HOSTS: &[(&str, &[&str])] = &[
    ("apt", &["deb.debian.org", "security.debian.org", "archive.ubuntu.com", "security.ubuntu.com"]),
    ("cargo", &["index.crates.io", "static.crates.io"]),
    ("composer", &["repo.packagist.org", "api.github.com", "codeload.github.com"]),
    ("go", &["proxy.golang.org", "sum.golang.org"]),
    ("gradle", &["plugins.gradle.org", "plugins-artifacts.gradle.org", "services.gradle.org"]),
    ("hex", &["repo.hex.pm", "builds.hex.pm"]),
    ("maven", &["repo.maven.apache.org"]),
    ("npm", &["registry.npmjs.org", "registry.yarnpkg.com", "repo.yarnpkg.com"]),
    ("nuget", &["api.nuget.org"]),
    ("pypi", &["pypi.org", "files.pythonhosted.org"]),
    ("rubygems", &["rubygems.org", "index.rubygems.org"]),
];

/// Host patterns by ecosystem, as `network.packages` configures them.
pub type HostsByEcosystem = BTreeMap<String, Vec<String>>;

/// The entries that the policy `packages` allows: the default hosts, where `configured` replaces an ecosystem's hosts
/// or adds an ecosystem. An empty list removes an ecosystem.
pub fn resolve_package_hosts(configured: &HostsByEcosystem) -> Result<Vec<AllowEntry>, InvalidAllowEntry> {
    let replaced = |ecosystem: &str| configured.contains_key(ecosystem);
    let defaults = DEFAULT_PACKAGE_HOSTS.iter().filter(|(ecosystem, _)| !replaced(ecosystem));
    let default_hosts = defaults.flat_map(|(_, hosts)| hosts.iter().copied());
    let configured_hosts = configured.values().flatten().map(String::as_str);
    default_hosts.chain(configured_hosts).map(AllowEntry::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{NetworkRule, NetworkTarget};
    use crate::sandbox::{Network, NetworkPolicy};

    fn permits(configured: &[(&str, &[&str])], allow: &[&str], target: &str) -> bool {
        let owned = |hosts: &[&str]| hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>();
        let configured = configured.iter().map(|(name, hosts)| ((*name).to_owned(), owned(hosts))).collect();
        let packages = resolve_package_hosts(&configured).unwrap();
        let network = Network { policy: NetworkPolicy::Packages, allow: owned(allow) };
        NetworkRule::new(&network, &packages).unwrap().permits(&NetworkTarget::parse(target, Some(443)).unwrap())
    }

    #[test]
    fn the_default_hosts_are_valid_entries() {
        assert!(resolve_package_hosts(&HostsByEcosystem::new()).is_ok());
    }

    #[test]
    fn packages_permits_the_registries_and_the_listed_hosts() {
        assert!(permits(&[], &[], "registry.npmjs.org"));
        assert!(permits(&[], &[], "files.pythonhosted.org"));
        assert!(!permits(&[], &[], "github.com"));
        assert!(permits(&[], &["github.com"], "github.com"));
        assert!(!permits(&[], &[], "registry.npmjs.org:22"));
    }

    #[test]
    fn the_configuration_replaces_adds_and_removes_ecosystems() {
        let mirror: &[(&str, &[&str])] = &[("npm", &["npm.corp.example:8443"])];
        assert!(permits(mirror, &[], "npm.corp.example:8443"));
        assert!(!permits(mirror, &[], "registry.npmjs.org"));
        assert!(permits(mirror, &[], "pypi.org"));
        assert!(permits(&[("internal", &["*.corp.example"])], &[], "a.corp.example"));
        assert!(!permits(&[("pypi", &[])], &[], "pypi.org"));
        let invalid = [("npm".to_owned(), vec!["https://npm.example".to_owned()])].into();
        assert!(resolve_package_hosts(&invalid).is_err());
    }
}
