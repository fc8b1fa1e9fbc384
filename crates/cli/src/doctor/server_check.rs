//! Checks the running server, or the port for a new one.

use super::{Check, Report, clock_check};
use crate::connect::{Connect, ConnectedClient, recorded_url};
use crate::failure::Result;
use crate::render::time;
use atoll_api::{Health, PageQuery};
use atoll_client::Url;
use atoll_config::Config;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

const CHECK: &str = "server";
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

pub async fn check_server(config: &Config, report: &mut Report<'_>) -> Result {
    let running = match recorded_url(&config.data_dir) {
        Some(url) => check_running_server(config, &url, report).await?,
        None => false,
    };
    if !running {
        let port = check_port(config.server.listen, config.server.tls().is_some()).await;
        report.add(port)?;
    }
    Ok(())
}

/// Checks the server of this data directory; returns whether one responds.
async fn check_running_server(config: &Config, url: &Url, report: &mut Report<'_>) -> Result<bool> {
    let Ok(health) = probe_url(url, "/healthz").await else {
        report.add(Check::ok(CHECK, format!("no server is running; the last one was at {url}")))?;
        return Ok(false);
    };
    let date = health.headers().get("date").and_then(|date| date.to_str().ok()).and_then(clock_check::clock_skew);
    let Some(version) = health.json::<Health>().await.ok().map(|health| health.version) else {
        report.add(Check::warn(
            CHECK,
            format!("another program listens at {url}"),
            "Start Atoll with another --listen.",
        ))?;
        return Ok(true);
    };
    report.add(if version == env!("CARGO_PKG_VERSION") {
        Check::ok(CHECK, format!("version {version} at {url}"))
    } else {
        let detail = format!("version {version} at {url}, this is {}", env!("CARGO_PKG_VERSION"));
        Check::warn(CHECK, detail, "Restart the server with this version, or use the server's version of atoll.")
    })?;
    report.add(check_readiness(url).await)?;
    if let Some(apart) = date.filter(|apart| *apart > Duration::from_secs(5)) {
        let detail = format!("the server's clock differs by {}", time::format_duration(apart));
        report.add(Check::warn("clock", detail, "Synchronise both clocks with NTP."))?;
    }
    report.add(check_token(config).await)?;
    Ok(true)
}

async fn check_readiness(url: &Url) -> Check {
    const REMEDY: &str = "See the server's log; often the database is unreachable or the disk is full.";
    match probe_url(url, "/readyz").await {
        Ok(answer) if answer.status().is_success() => Check::ok("readiness", "the database is reachable"),
        Ok(answer) => Check::fail("readiness", format!("the server responds with {}", answer.status()), REMEDY),
        Err(why) => Check::fail("readiness", why, REMEDY),
    }
}

async fn check_token(config: &Config) -> Check {
    const CHECK: &str = "token";
    let connect = Connect { data_dir: Some(config.data_dir.clone()), ..Connect::default() };
    let checked = async {
        let client = ConnectedClient::find(&connect)?;
        client.list_projects(&PageQuery { limit: Some(1), cursor: None }).await?;
        Ok::<_, crate::failure::Failure>(client.address.token_origin())
    };
    match checked.await {
        Ok(origin) => Check::ok(CHECK, format!("valid, from {origin}")),
        Err(failure) => {
            let remedy = "Unset ATOLL_TOKEN, or restart the server: it creates a missing admin token.";
            Check::warn(CHECK, failure.to_text(false).unwrap_or_default(), remedy)
        }
    }
}

/// Checks that a server could listen on the address.
async fn check_port(address: SocketAddr, tls: bool) -> Check {
    const CHECK: &str = "port";
    let error = match TcpListener::bind(address) {
        Ok(_) => return Check::ok(CHECK, format!("{address} is free")),
        Err(error) => error,
    };
    let scheme = if tls { "https" } else { "http" };
    let atoll = match Url::parse(&format!("{scheme}://{address}")) {
        Ok(url) => probe_url(&url, "/healthz").await.is_ok_and(|answer| answer.status().is_success()),
        Err(_) => false,
    };
    if atoll {
        return Check::warn(
            CHECK,
            format!("a server with another data directory listens on {address}"),
            "Use that server with --server, or choose another --listen.",
        );
    }
    Check::fail(
        CHECK,
        format!("cannot listen on {address}: {error}"),
        "Choose another address with --listen or server.listen.",
    )
}

/// Gets a path of a server without a token.
async fn probe_url(url: &Url, path: &str) -> Result<reqwest::Response, String> {
    // Fails if a provider is already installed, which is the same one.
    drop(rustls::crypto::ring::default_provider().install_default());
    let mut builder = reqwest::Client::builder().timeout(PROBE_TIMEOUT);
    if atoll_client::is_loopback(url) {
        builder = builder.no_proxy();
    }
    let client = builder.build().map_err(|error| error.to_string())?;
    let request = client.get(format!("{}{path}", url.as_str().trim_end_matches('/')));
    request.send().await.map_err(|error| error.to_string())
}
