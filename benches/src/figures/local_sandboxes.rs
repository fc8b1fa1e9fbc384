//! A client for local sandboxes of the server under test.

use crate::server::BenchServer;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const STATE_TIMEOUT: Duration = Duration::from_secs(120);

pub struct LocalSandboxes<'a>(&'a BenchServer);

impl<'a> LocalSandboxes<'a> {
    pub const fn new(server: &'a BenchServer) -> Self {
        Self(server)
    }

    pub async fn create_sandbox(&self, body: Value) -> Result<String> {
        let created =
            self.0.connect_admin().await?.post(&"/api/v1/sandboxes".parse()?, body.to_string().into()).await?;
        let created: Value = serde_json::from_slice(&created)?;
        Ok(created["id"].as_str().context("the sandbox has no id")?.to_owned())
    }

    /// Runs `true`; the server waits for a sandbox that starts.
    pub async fn run_true(&self, id: &str) -> Result<()> {
        self.run_command(id, &["true"]).await
    }

    pub async fn run_command(&self, id: &str, argv: &[&str]) -> Result<()> {
        let path = format!("/api/v1/sandboxes/{id}/exec").parse()?;
        let body = json!({ "argv": argv }).to_string();
        let output = self.0.connect_admin().await?.post(&path, body.into()).await?;
        let last = output.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        let exit: Value = serde_json::from_slice(last)?;
        ensure!(exit["exit"]["code"] == 0, "{}", String::from_utf8_lossy(&output));
        Ok(())
    }

    pub async fn wait_for_state(&self, id: &str, states: &[&str]) -> Result<()> {
        let began = Instant::now();
        let mut admin = self.0.connect_admin().await?;
        loop {
            let row: Value = admin.get_json(&format!("/api/v1/sandboxes/{id}").parse()?).await?;
            match row["state"].as_str() {
                Some(state) if states.contains(&state) => return Ok(()),
                Some("failed") => bail!("the sandbox failed: {}", row["reason"]),
                _ if began.elapsed() > STATE_TIMEOUT => bail!("the sandbox is still {}", row["state"]),
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    pub async fn list_events(&self, id: &str) -> Result<Vec<Value>> {
        let mut admin = self.0.connect_admin().await?;
        let (mut all, mut cursor) = (Vec::new(), String::new());
        loop {
            let page: Value =
                admin.get_json(&format!("/api/v1/sandboxes/{id}/events?limit=500{cursor}").parse()?).await?;
            all.extend(page["items"].as_array().into_iter().flatten().cloned());
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return Ok(all),
            }
        }
    }

    pub async fn delete_sandbox(&self, id: &str) -> Result<()> {
        let mut admin = self.0.connect_admin().await?;
        admin.delete(&format!("/api/v1/sandboxes/{id}?force=true").parse()?).await?;
        let began = Instant::now();
        while began.elapsed() < STATE_TIMEOUT {
            let row: Value = admin.get_json(&format!("/api/v1/sandboxes/{id}").parse()?).await?;
            if row["provider_id"].is_null() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("the sandbox still exists")
    }
}
