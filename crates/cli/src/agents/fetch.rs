//! Fetches an agent's package from the registry.

use super::registry;
use crate::client::cause_of;
use crate::failure::{Failure, Result};
use crate::output::Output;
use atoll_agents::install::{Error, Installed, Integrity};
use atoll_agents::known::Package;
use atoll_agents::{Agent, Places};
use reqwest::{Client, Response, StatusCode, Url};
use serde_json::Value;
use std::time::Duration;

const CONNECT: Duration = Duration::from_secs(20);
/// For the next bytes of an answer.
const SILENCE: Duration = Duration::from_secs(60);
/// The longest description of one version.
const DESCRIPTION: usize = 4 << 20;

pub async fn install(
    places: &Places,
    agent: Agent,
    package: Package,
    version: &str,
    output: &Output,
) -> Result<Installed> {
    let registry = registry::find().await?;
    let client = client()?;
    let url = registry::description(&registry, &package, version)?;
    let answer = ask(&client, &url, agent, version).await?;
    let text = whole(answer, &url).await?;
    let described = serde_json::from_slice::<Value>(&text).ok().and_then(|value| registry::read(&value, &registry));
    let described = described.ok_or_else(|| {
        Failure::setup("registry", format!("{registry} does not say where {} {version} is", package.name))
            .next("Name another registry with NPM_CONFIG_REGISTRY.")
    })?;
    let integrity = integrity(&package, version, described.integrity.as_deref(), &registry)?;
    output.note(&format!("fetching {} {version} from {}", agent.title(), described.archive));
    let mut answer = ask(&client, &described.archive, agent, version).await?;
    let mut fetching = places.fetch(agent, package, version).map_err(|error| failed(&error))?;
    while let Some(piece) = answer.chunk().await.map_err(|error| unreachable(&described.archive, &error))? {
        fetching.write(&piece).map_err(|error| failed(&error))?;
    }
    let done = tokio::task::spawn_blocking(move || fetching.finish(&integrity)).await;
    let done = done.map_err(|error| Failure::setup("agents", format!("unpacking it broke off: {error}")))?;
    done.map_err(|error| failed(&error))
}

/// Of the version that was tried the checksum is known; of another one the registry has to say it, and is believed only
/// where nobody on the way can have changed it.
fn integrity(package: &Package, version: &str, said: Option<&str>, registry: &Url) -> Result<Integrity> {
    let known = package.integrity.filter(|_| version == package.version);
    let text = match (known, said) {
        (Some(known), _) => known,
        (None, Some(said)) if registry.scheme() == "https" || is_here(registry) => said,
        (None, Some(_)) => {
            let why = format!("{registry} is not spoken to over TLS, so its checksum of {version} proves nothing");
            return Err(Failure::setup("registry", why).next("Name a registry with an https:// address."));
        }
        (None, None) => {
            let why = format!("{registry} gives no checksum of {} {version}: it can't be checked", package.name);
            return Err(Failure::setup("registry", why).next("Name another registry with NPM_CONFIG_REGISTRY."));
        }
    };
    Integrity::read(text).map_err(|error| failed(&error))
}

fn is_here(url: &Url) -> bool {
    url.host_str().is_some_and(|host| matches!(host, "localhost" | "127.0.0.1" | "[::1]"))
}

fn client() -> Result<Client> {
    // A second installation is refused, and the first one is the same.
    drop(rustls::crypto::ring::default_provider().install_default());
    Client::builder()
        .user_agent(concat!("atoll/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT)
        .read_timeout(SILENCE)
        .redirect(reqwest::redirect::Policy::limited(5))
        .build()
        .map_err(|error| Failure::setup("http", format!("can't set up HTTP: {error}")))
}

async fn ask(client: &Client, url: &Url, agent: Agent, version: &str) -> Result<Response> {
    let answer = client.get(url.clone()).send().await.map_err(|error| unreachable(url, &error))?;
    match answer.status() {
        status if status.is_success() => Ok(answer),
        StatusCode::NOT_FOUND => {
            let what = format!("the registry has no {} {version} for this kind of machine ({url})", agent.title());
            Err(Failure::setup("no_package", what).next("Leave --version out for the one that was tried."))
        }
        status => Err(Failure::setup("registry", format!("{url} said {status}"))
            .next("Name another registry with NPM_CONFIG_REGISTRY, or try again later.")),
    }
}

async fn whole(mut answer: Response, url: &Url) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(|error| unreachable(url, &error))? {
        text.extend_from_slice(&piece);
        if text.len() > DESCRIPTION {
            return Err(Failure::setup("registry", format!("{url} says too much")));
        }
    }
    Ok(text)
}

fn unreachable(url: &Url, error: &reqwest::Error) -> Failure {
    let host = url.host_str().unwrap_or_default();
    Failure::setup("registry", format!("the npm registry at {host} can't be reached: {}", cause_of(error))).next(
        "Look at the network (HTTPS_PROXY is honoured), or name another registry with NPM_CONFIG_REGISTRY; an agent that \
         is in PATH needs none.",
    )
}

fn failed(error: &Error) -> Failure {
    let code = match error {
        Error::Mismatch { .. } => "checksum",
        Error::File { .. } => "io",
        _ => "agents",
    };
    Failure::setup(code, error)
}
