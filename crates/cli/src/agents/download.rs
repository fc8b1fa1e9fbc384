//! Downloads an agent's package from the npm registry.

use super::registry;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::spinner::Spinner;
use atoll_agents::install::{Error, InstalledVersion, Integrity};
use atoll_agents::known_agents::Package;
use atoll_agents::{Agent, AgentLocations};
use atoll_core::size::format_bytes;
use reqwest::{Client, Response, StatusCode, Url};
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Limit on the wait for the next bytes of a response.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Limit on the metadata of one version.
const MAX_METADATA_BYTES: usize = 4 << 20;

pub async fn download_agent(
    locations: &AgentLocations,
    agent: Agent,
    package: Package,
    version: &str,
    output: &Output,
) -> Result<InstalledVersion> {
    let registry = registry::find_registry().await?;
    let client = http_client()?;
    let url = registry::metadata_url(&registry, &package, version)?;
    let response = send_request(&client, &url, agent, version).await?;
    let text = read_metadata(response, &url).await?;
    let metadata = registry::parse_metadata(&text, &registry);
    let metadata = metadata.ok_or_else(|| {
        Failure::setup("registry", format!("{registry} has no archive URL for {} {version}", package.name))
            .with_hint("Set NPM_CONFIG_REGISTRY to another registry.")
    })?;
    let integrity = choose_integrity(&package, version, metadata.integrity.as_deref(), &registry)?;
    output.print_note(&format!("downloading {} {version} from {}", agent.display_name(), metadata.archive));
    let mut response = send_request(&client, &metadata.archive, agent, version).await?;
    let progress = Spinner::start(output, format!("downloading {} {version}", agent.display_name()));
    let (total, mut received) = (response.content_length(), 0);
    let mut download = locations.begin_install(agent, package, version).map_err(|error| install_failure(&error))?;
    while let Some(chunk) = response.chunk().await.map_err(|error| unreachable_failure(&metadata.archive, &error))? {
        download.write_chunk(&chunk).map_err(|error| install_failure(&error))?;
        received += chunk.len() as u64;
        let total = total.map(|total| format!(" of {}", format_bytes(total))).unwrap_or_default();
        progress.set_label(format!("downloading {}: {}{total}", agent.display_name(), format_bytes(received)));
    }
    progress.set_label(format!("unpacking {}", agent.display_name()));
    let done = tokio::task::spawn_blocking(move || download.verify_and_install(&integrity)).await;
    let done = done.map_err(|error| Failure::setup("agents", format!("unpacking failed: {error}")))?;
    done.map_err(|error| install_failure(&error))
}

/// The built-in checksum of the tested version; for other versions that of the registry, which counts only over TLS.
fn choose_integrity(package: &Package, version: &str, reported: Option<&str>, registry: &Url) -> Result<Integrity> {
    let known = package.integrity.filter(|_| version == package.version);
    let text = match (known, reported) {
        (Some(known), _) => known,
        (None, Some(reported)) if registry.scheme() == "https" || is_local(registry) => reported,
        (None, Some(_)) => {
            let why = format!("{registry} does not use TLS, so its checksum of {version} proves nothing");
            return Err(Failure::setup("registry", why).with_hint("Use a registry with an https:// URL."));
        }
        (None, None) => {
            let why = format!("{registry} has no checksum for {} {version}", package.name);
            return Err(Failure::setup("registry", why).with_hint("Set NPM_CONFIG_REGISTRY to another registry."));
        }
    };
    Integrity::parse_integrity(text).map_err(|error| install_failure(&error))
}

fn is_local(url: &Url) -> bool {
    url.host_str().is_some_and(|host| matches!(host, "localhost" | "127.0.0.1" | "[::1]"))
}

fn http_client() -> Result<Client> {
    // Fails if a provider is already installed, which is the same one.
    drop(rustls::crypto::ring::default_provider().install_default());
    Client::builder()
        .user_agent(concat!("atoll/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
        .redirect(reqwest::redirect::Policy::limited(5))
        .build()
        .map_err(|error| Failure::setup("http", format!("cannot set up HTTP: {error}")))
}

async fn send_request(client: &Client, url: &Url, agent: Agent, version: &str) -> Result<Response> {
    let response = client.get(url.clone()).send().await.map_err(|error| unreachable_failure(url, &error))?;
    match response.status() {
        status if status.is_success() => Ok(response),
        StatusCode::NOT_FOUND => {
            let what = format!("the registry has no {} {version} for this machine ({url})", agent.display_name());
            Err(Failure::setup("no_package", what).with_hint("Omit --version to install the tested version."))
        }
        status => Err(Failure::setup("registry", format!("{url} responded with {status}"))
            .with_hint("Try again later, or set NPM_CONFIG_REGISTRY to another registry.")),
    }
}

async fn read_metadata(mut response: Response, url: &Url) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| unreachable_failure(url, &error))? {
        text.extend_from_slice(&chunk);
        if text.len() > MAX_METADATA_BYTES {
            return Err(Failure::setup("registry", format!("the response of {url} is too large")));
        }
    }
    Ok(text)
}

fn unreachable_failure(url: &Url, error: &reqwest::Error) -> Failure {
    let host = url.host_str().unwrap_or_default();
    Failure::setup("registry", format!("cannot reach the npm registry at {host}: {}", root_cause(error))).with_hint(
        "Check the network and HTTPS_PROXY, or set NPM_CONFIG_REGISTRY to another registry. Atoll also finds agents in \
         PATH.",
    )
}

fn install_failure(error: &Error) -> Failure {
    let code = match error {
        Error::Mismatch { .. } => "checksum",
        Error::File { .. } => "io",
        _ => "agents",
    };
    Failure::setup(code, error)
}

/// The innermost error, which has the most specific message.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    if error.is_timeout() { "the request timed out".to_owned() } else { cause.to_string() }
}
