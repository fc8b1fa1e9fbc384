//! Which npm registry this machine uses, and what it says of a package.

use crate::failure::{Failure, Result};
use atoll_agents::known::Package;
use reqwest::Url;
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;

const USUAL: &str = "https://registry.npmjs.org";
const VARIABLES: [&str; 2] = ["npm_config_registry", "NPM_CONFIG_REGISTRY"];
/// For npm to say how it is set up.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the environment says, else what npm says, else the usual one.
pub async fn find() -> Result<Url> {
    let named = VARIABLES.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.trim().is_empty()));
    let text = match named {
        Some(named) => named,
        None => of_npm().await.unwrap_or_else(|| USUAL.to_owned()),
    };
    checked(text.trim())
}

async fn of_npm() -> Option<String> {
    let mut command = tokio::process::Command::new("npm");
    command.args(["config", "get", "registry"]).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let said = tokio::time::timeout(PATIENCE, command.output()).await.ok()?.ok()?;
    let text = String::from_utf8(said.stdout).ok()?;
    let text = text.trim();
    (said.status.success() && text.starts_with("http")).then(|| text.to_owned())
}

fn checked(text: &str) -> Result<Url> {
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "https" | "http") && url.has_host());
    url.ok_or_else(|| {
        Failure::setup("registry", "the npm registry that this machine is set up for is not a URL")
            .next("Set NPM_CONFIG_REGISTRY to the address of one, or `npm config delete registry`.")
    })
}

/// Where a version's description is.
pub fn description(registry: &Url, package: &Package, version: &str) -> Result<Url> {
    let name = package.name.replace('/', "%2f");
    let base = registry.as_str().trim_end_matches('/');
    let text = format!("{base}/{name}/{version}{}", package.suffix);
    Url::parse(&text).map_err(|error| Failure::setup("registry", format!("{text} is not a URL: {error}")))
}

/// What a registry says of one version: where its archive is, and the checksum.
pub struct Described {
    pub archive: Url,
    pub integrity: Option<String>,
}

/// Nothing is fetched in the clear that the registry itself did not say in the clear.
pub fn read(description: &Value, registry: &Url) -> Option<Described> {
    let dist = &description["dist"];
    let archive = Url::parse(dist["tarball"].as_str()?).ok()?;
    let same = archive.scheme() == registry.scheme();
    let integrity = dist["integrity"].as_str().map(str::to_owned);
    (archive.scheme() == "https" || same).then_some(Described { archive, integrity })
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_agents::Agent;
    use atoll_agents::known::Machine;
    use serde_json::json;

    #[test]
    fn a_version_is_asked_for_under_its_packages_name() {
        let registry = checked("https://npm.example.org/mirror/").unwrap();
        let url = |agent: Agent| {
            let package = agent.package(Machine::X64).unwrap();
            description(&registry, &package, "1.2.3").unwrap().to_string()
        };
        assert_eq!(url(Agent::Codex), "https://npm.example.org/mirror/@openai%2fcodex/1.2.3-linux-x64");
        assert_eq!(url(Agent::Opencode), "https://npm.example.org/mirror/opencode-linux-x64/1.2.3");
        for bad in ["", "npm", "file:///x", "ftp://x"] {
            assert!(checked(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_archive_in_the_clear_is_not_fetched_where_the_registry_is_not() {
        let registry = checked("https://npm.example.org").unwrap();
        let of = |archive: &str| read(&json!({ "dist": { "tarball": archive, "integrity": "sha512-x" } }), &registry);
        assert!(of("https://elsewhere.example.org/x.tgz").is_some());
        for bad in ["http://npm.example.org/x.tgz", "file:///etc/passwd", "x.tgz"] {
            assert!(of(bad).is_none(), "{bad}");
        }
        assert!(read(&json!({}), &registry).is_none());
    }
}
