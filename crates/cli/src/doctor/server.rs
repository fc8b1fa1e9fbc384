//! The server: is one there, is it well, and is the port free for one.

use super::{Check, Report, clock};
use crate::client::{Client, Connect, look, recorded};
use crate::failure::Result;
use crate::render::time;
use atoll_config::Config;
use reqwest::Url;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

const CHECK: &str = "server";

pub async fn check(config: &Config, report: &mut Report<'_>) -> Result {
    let running = match recorded(&config.data_dir) {
        Some(url) => running(config, &url, report).await?,
        None => false,
    };
    if !running {
        let port = port(config.server.listen, config.server.tls.is_some()).await;
        report.tell(port)?;
    }
    Ok(())
}

/// Whether the server that this data directory names answers.
async fn running(config: &Config, url: &Url, report: &mut Report<'_>) -> Result<bool> {
    let Ok(health) = look(url, "/healthz").await else {
        report.tell(Check::ok(CHECK, format!("none runs: the last one was at {url}")))?;
        return Ok(false);
    };
    let date = health.headers().get("date").and_then(|date| date.to_str().ok()).and_then(clock::apart);
    let said: serde_json::Value = health.json().await.unwrap_or_default();
    let Some(version) = said["version"].as_str() else {
        report.tell(Check::warn(
            CHECK,
            format!("something else answers at {url}"),
            "Start Atoll with another --listen.",
        ))?;
        return Ok(true);
    };
    report.tell(if version == env!("CARGO_PKG_VERSION") {
        Check::ok(CHECK, format!("version {version} runs at {url}"))
    } else {
        let detail = format!("version {version} runs at {url}, this is {}", env!("CARGO_PKG_VERSION"));
        Check::warn(CHECK, detail, "Restart it with this version, or use the other's command line.")
    })?;
    report.tell(readiness(url).await)?;
    if let Some(apart) = date.filter(|apart| *apart > Duration::from_secs(5)) {
        let detail = format!("the server's differs by {}", time::span(apart));
        report.tell(Check::warn("clock", detail, "Set both clocks by NTP."))?;
    }
    report.tell(token(config).await)?;
    Ok(true)
}

async fn readiness(url: &Url) -> Check {
    const REMEDY: &str = "Its log says why; most often the database can't be reached or the disk is full.";
    match look(url, "/readyz").await {
        Ok(answer) if answer.status().is_success() => Check::ok("readiness", "its database answers"),
        Ok(answer) => Check::fail("readiness", format!("it says {}", answer.status()), REMEDY),
        Err(why) => Check::fail("readiness", why, REMEDY),
    }
}

async fn token(config: &Config) -> Check {
    const CHECK: &str = "token";
    let connect = Connect { data_dir: Some(config.data_dir.clone()), ..Connect::default() };
    let asked = async {
        let client = Client::find(&connect)?;
        client.get("/projects", &[("limit", "1".to_owned())]).await?;
        Ok::<_, crate::failure::Failure>(client.found.token_origin())
    };
    match asked.await {
        Ok(origin) => Check::ok(CHECK, format!("the one in {origin} is good")),
        Err(failure) => {
            let remedy = "Unset ATOLL_TOKEN, or restart the server: it makes a new admin token where there is none.";
            Check::warn(CHECK, failure.shown(false).unwrap_or_default(), remedy)
        }
    }
}

/// Whether a server could listen there.
async fn port(address: SocketAddr, tls: bool) -> Check {
    const CHECK: &str = "port";
    let error = match TcpListener::bind(address) {
        Ok(_) => return Check::ok(CHECK, format!("{address} is free")),
        Err(error) => error,
    };
    let scheme = if tls { "https" } else { "http" };
    let atoll = match Url::parse(&format!("{scheme}://{address}")) {
        Ok(url) => look(&url, "/healthz").await.is_ok_and(|answer| answer.status().is_success()),
        Err(_) => false,
    };
    if atoll {
        return Check::warn(
            CHECK,
            format!("a server with another data directory is at {address}"),
            "Use it with --server, or start this one with another --listen.",
        );
    }
    Check::fail(
        CHECK,
        format!("can't listen on {address}: {error}"),
        "Name another address with --listen or server.listen.",
    )
}
