//! Local sandboxes of a server under test, over its API.

use crate::server::Server;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);

pub struct Work<'a>(&'a Server);

impl<'a> Work<'a> {
    pub const fn new(server: &'a Server) -> Self {
        Self(server)
    }

    pub async fn make(&self, body: Value) -> Result<String> {
        let made = self.0.admin().await?.post(&"/api/v1/sandboxes".parse()?, body.to_string().into()).await?;
        let made: Value = serde_json::from_slice(&made)?;
        Ok(made["id"].as_str().context("a sandbox without id")?.to_owned())
    }

    pub async fn run_true(&self, id: &str) -> Result<()> {
        let path = format!("/api/v1/sandboxes/{id}/exec").parse()?;
        let said = self.0.admin().await?.post(&path, r#"{"argv":["true"]}"#.into()).await?;
        ensure!(said.ends_with(b"{\"exit\":{\"code\":0,\"kind\":\"exited\"}}\n"), "{}", String::from_utf8_lossy(&said));
        Ok(())
    }

    pub async fn until(&self, id: &str, states: &[&str]) -> Result<()> {
        let began = Instant::now();
        let mut admin = self.0.admin().await?;
        loop {
            let row: Value = admin.ask(&format!("/api/v1/sandboxes/{id}").parse()?).await?;
            match row["state"].as_str() {
                Some(state) if states.contains(&state) => return Ok(()),
                Some("failed") => bail!("the sandbox failed: {}", row["reason"]),
                _ if began.elapsed() > PATIENCE => bail!("the sandbox is still {}", row["state"]),
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    pub async fn events(&self, id: &str) -> Result<Vec<Value>> {
        let mut admin = self.0.admin().await?;
        let (mut all, mut cursor) = (Vec::new(), String::new());
        loop {
            let page: Value = admin.ask(&format!("/api/v1/sandboxes/{id}/events?limit=500{cursor}").parse()?).await?;
            all.extend(page["items"].as_array().into_iter().flatten().cloned());
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return Ok(all),
            }
        }
    }

    pub async fn remove(&self, id: &str) -> Result<()> {
        let mut admin = self.0.admin().await?;
        admin.delete(&format!("/api/v1/sandboxes/{id}?force=true").parse()?).await?;
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let row: Value = admin.ask(&format!("/api/v1/sandboxes/{id}").parse()?).await?;
            if row["provider_id"].is_null() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("the sandbox is still there")
    }
}
