//! The key `registries`: package registries that all sandboxes use in place of the public ones.

use crate::format::check_base_url;
use crate::sections::Config;
use atoll_core::network::AllowEntry;
use atoll_core::registry::RegistryKind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub(crate) const REGISTRIES_FORM: &str = "{npm | pip | cargo | go | maven | apt: {url, secret: NAME of the secret with its token, user: NAME for basic authentication}}";

/// One entry of `registries`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegistryEntry {
    /// Without a trailing slash.
    pub url: String,
    /// Stored secret with the token. The gateway adds it; the sandbox does not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// User of basic authentication, whose password is the token; without one, the token is a bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

pub type Registries = BTreeMap<RegistryKind, RegistryEntry>;

impl RegistryEntry {
    /// The scheme and host, such as `https://npm.example`.
    pub fn origin(&self) -> &str {
        let host_start = self.url.find("://").map_or(0, |at| at + 3);
        let end = self.url[host_start..].find('/').map_or(self.url.len(), |at| host_start + at);
        &self.url[..end]
    }

    /// The path of the URL, empty or with a leading slash.
    pub fn path(&self) -> &str {
        &self.url[self.origin().len()..]
    }

    /// The host with its port, as an entry of a network policy.
    fn allow_entry(&self) -> Result<AllowEntry, String> {
        let (scheme, host) = self.origin().split_once("://").unwrap_or(("https", self.origin()));
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
        let port = if scheme == "https" { 443 } else { 80 };
        let entry = if has_port { host.to_owned() } else { format!("{host}:{port}") };
        AllowEntry::parse(&entry).map_err(|error| error.to_string())
    }
}

pub(crate) fn check_registries(mut registries: Registries) -> Result<Registries, String> {
    for (kind, entry) in &mut registries {
        check_base_url(&entry.url).map_err(|detail| format!("the URL of {kind}: {detail}"))?;
        entry.url.truncate(entry.url.trim_end_matches('/').len());
        if entry.url.contains(['\'', '"', '<', '>', '\\', '$']) {
            return Err(format!("the URL of {kind} has a character that must be percent-encoded"));
        }
        entry.allow_entry().map_err(|detail| format!("the URL of {kind}: {detail}"))?;
        if entry.secret.as_deref().is_some_and(|name| !atoll_core::secret::is_secret_name(name)) {
            return Err(format!("secret of {kind} is the name of a secret, like NPM_TOKEN"));
        }
        let is_user = |user: &String| {
            !user.is_empty() && user.len() <= 100 && !user.contains(|c: char| c == ':' || c.is_control())
        };
        if !entry.user.iter().all(is_user) || (entry.user.is_some() && entry.secret.is_none()) {
            return Err(format!("user of {kind} is a name without `:`, and needs a secret"));
        }
        if *kind == RegistryKind::Apt && entry.secret.is_some() {
            return Err("apt cannot use a secret in this version: its sources are in the image".to_owned());
        }
    }
    Ok(registries)
}

impl Config {
    /// The hosts that the policy `packages` allows: those of `network.packages`, and those of `registries`.
    pub fn package_hosts(&self) -> Vec<AllowEntry> {
        let of_registries = self.registries.values().filter_map(|entry| entry.allow_entry().ok());
        self.network.package_hosts().into_iter().chain(of_registries).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(url: &str) -> RegistryEntry {
        RegistryEntry { url: url.to_owned(), secret: None, user: None }
    }

    #[test]
    fn splits_a_url_into_origin_and_path() {
        let npm = entry("https://npm.example:8443/repository/npm");
        assert_eq!((npm.origin(), npm.path()), ("https://npm.example:8443", "/repository/npm"));
        let root = entry("http://127.0.0.1:80");
        assert_eq!((root.origin(), root.path()), ("http://127.0.0.1:80", ""));
    }

    #[test]
    fn checks_each_entry() {
        let check = |kind, entry: RegistryEntry| check_registries([(kind, entry)].into());
        let checked = check(RegistryKind::Npm, entry("https://npm.example/a/")).unwrap();
        assert_eq!(checked[&RegistryKind::Npm].url, "https://npm.example/a");
        let with = |secret: Option<&str>, user: Option<&str>| RegistryEntry {
            secret: secret.map(str::to_owned),
            user: user.map(str::to_owned),
            ..entry("https://npm.example")
        };
        assert!(check(RegistryKind::Npm, with(Some("NPM_TOKEN"), Some("ci"))).is_ok());
        for (kind, bad) in [
            (RegistryKind::Npm, entry("npm.example")),
            (RegistryKind::Npm, entry("https://user:pw@npm.example")),
            (RegistryKind::Maven, entry("https://maven.example/'x")),
            (RegistryKind::Npm, with(Some("not a name"), None)),
            (RegistryKind::Npm, with(None, Some("ci"))),
            (RegistryKind::Npm, with(Some("NPM_TOKEN"), Some("a:b"))),
            (RegistryKind::Apt, with(Some("APT_TOKEN"), None)),
        ] {
            assert!(check(kind, bad.clone()).is_err(), "{kind}: {bad:?}");
        }
    }
}
