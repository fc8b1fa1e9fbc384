//! The npm registry: its URL and the metadata of packages.

use crate::failure::{Failure, Result};
use atoll_agents::known_agents::Package;
use reqwest::Url;
use serde::Deserialize;
use std::process::Stdio;
use std::time::Duration;

const DEFAULT_REGISTRY: &str = "https://registry.npmjs.org";
const VARIABLES: [&str; 2] = ["npm_config_registry", "NPM_CONFIG_REGISTRY"];
/// Limit on `npm config get`.
const NPM_TIMEOUT: Duration = Duration::from_secs(20);

/// The registry of the environment, of npm's configuration, or the default one.
pub async fn find_registry() -> Result<Url> {
    let named = VARIABLES.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.trim().is_empty()));
    let text = match named {
        Some(named) => named,
        None => npm_registry().await.unwrap_or_else(|| DEFAULT_REGISTRY.to_owned()),
    };
    parse_registry(text.trim())
}

async fn npm_registry() -> Option<String> {
    let mut command = tokio::process::Command::new("npm");
    command.args(["config", "get", "registry"]).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(NPM_TIMEOUT, command.output()).await.ok()?.ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && text.starts_with("http")).then(|| text.to_owned())
}

fn parse_registry(text: &str) -> Result<Url> {
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "https" | "http") && url.has_host());
    url.ok_or_else(|| {
        Failure::setup("registry", "the configured npm registry is not a URL")
            .with_hint("Set NPM_CONFIG_REGISTRY, or run `npm config delete registry`.")
    })
}

/// The URL of a version's metadata.
pub fn metadata_url(registry: &Url, package: &Package, version: &str) -> Result<Url> {
    let name = package.name.replace('/', "%2f");
    let base = registry.as_str().trim_end_matches('/');
    let text = format!("{base}/{name}/{version}{}", package.suffix);
    Url::parse(&text).map_err(|error| Failure::setup("registry", format!("{text} is not a URL: {error}")))
}

/// A version's archive and its checksum.
pub struct PackageMetadata {
    pub archive: Url,
    pub integrity: Option<String>,
}

#[derive(Deserialize)]
struct VersionDocument {
    dist: Distribution,
}

#[derive(Deserialize)]
struct Distribution {
    tarball: String,
    integrity: Option<String>,
}

/// Parses a version's metadata; a registry with TLS must not refer to an archive without.
pub fn parse_metadata(document: &[u8], registry: &Url) -> Option<PackageMetadata> {
    let Distribution { tarball, integrity } = serde_json::from_slice::<VersionDocument>(document).ok()?.dist;
    let archive = Url::parse(&tarball).ok()?;
    let is_safe = archive.scheme() == "https" || archive.scheme() == registry.scheme();
    is_safe.then_some(PackageMetadata { archive, integrity })
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_agents::Agent;
    use atoll_agents::known_agents::Platform;
    use serde_json::json;

    #[test]
    fn metadata_urls_contain_the_package_name() {
        let registry = parse_registry("https://npm.example.org/mirror/").unwrap();
        let url = |agent: Agent| {
            let package = agent.package_for(Platform::X64).unwrap();
            metadata_url(&registry, &package, "1.2.3").unwrap().to_string()
        };
        assert_eq!(url(Agent::Codex), "https://npm.example.org/mirror/@openai%2fcodex/1.2.3-linux-x64");
        assert_eq!(url(Agent::Opencode), "https://npm.example.org/mirror/opencode-linux-x64/1.2.3");
        for bad in ["", "npm", "file:///x", "ftp://x"] {
            assert!(parse_registry(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rejects_archives_over_plain_http() {
        let registry = parse_registry("https://npm.example.org").unwrap();
        let of = |archive: &str| {
            let document = json!({ "dist": { "tarball": archive, "integrity": "sha512-x" } });
            parse_metadata(document.to_string().as_bytes(), &registry)
        };
        assert!(of("https://elsewhere.example.org/x.tgz").is_some());
        for bad in ["http://npm.example.org/x.tgz", "file:///etc/passwd", "x.tgz"] {
            assert!(of(bad).is_none(), "{bad}");
        }
        assert!(parse_metadata(b"{}", &registry).is_none());
    }
}
