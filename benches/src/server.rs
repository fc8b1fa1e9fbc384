//! The server under test, in a separate process.

use crate::client::HttpClient;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use std::fs::{DirBuilder, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use uuid::Uuid;

/// Returns the given program, by default `atoll` next to this executable.
pub fn find_program(named: Option<PathBuf>) -> Result<PathBuf> {
    let program = match named {
        Some(program) => program,
        None => std::env::current_exe()?.with_file_name("atoll"),
    };
    ensure!(program.exists(), "{} does not exist: build it with `cargo build --release -p atoll`", program.display());
    Ok(program.canonicalize()?)
}

/// A server process; dropping it kills it.
pub struct BenchServer {
    child: Child,
    pub address: SocketAddr,
    pub token: String,
}

/// An external sandbox whose worker is this process.
#[derive(Debug, Clone)]
pub struct ExternalSandbox {
    pub id: String,
    pub token: String,
    pub stream: Uuid,
}

impl ExternalSandbox {
    pub fn api_path(&self, rest: &str) -> String {
        format!("/api/v1/sandboxes/{}/{rest}", self.id)
    }
}

/// Set to 0: rate limits would cap the figures.
const RATE_LIMIT_VARIABLES: [&str; 3] =
    ["ATOLL_LIMITS_WORKER_REQUESTS_PER_MINUTE", "ATOLL_LIMITS_MESSAGES_PER_MINUTE", "ATOLL_LIMITS_WRITES_PER_MINUTE"];

impl BenchServer {
    pub fn start(program: &Path, data_dir: &Path, database: Option<&str>) -> Result<Self> {
        Self::start_with_env(program, data_dir, database, &[])
    }

    /// Like `start`, with additional environment variables.
    pub fn start_with_env(
        program: &Path,
        data_dir: &Path,
        database: Option<&str>,
        environment: &[(&str, &str)],
    ) -> Result<Self> {
        // The server refuses a directory with other files that other users can open.
        DirBuilder::new().recursive(true).mode(0o700).create(data_dir)?;
        let log = data_dir.join("server.log");
        // The kernel kills the server when this process ends for any reason.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program);
        command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data_dir);
        if let Some(url) = database {
            command.args(["--database-url", url]);
        }
        // Ignore the user's configuration.
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", data_dir).current_dir(data_dir);
        command.env("ATOLL_LOG", "warn").envs(RATE_LIMIT_VARIABLES.map(|name| (name, "0")));
        command.envs(environment.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log)?);
        let mut child = command.spawn().context("cannot start the server")?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.as_mut() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let started = Self::parse_listening_line(&line);
        let (address, token_file) = match started {
            Ok(started) => started,
            Err(error) => {
                drop((child.kill(), child.wait()));
                let stderr = std::fs::read_to_string(log).unwrap_or_default();
                return Err(error.context(format!("the server did not start: {line}{stderr}")));
            }
        };
        let token = std::fs::read_to_string(token_file)?.trim().to_owned();
        Ok(Self { child, address, token })
    }

    fn parse_listening_line(line: &str) -> Result<(SocketAddr, PathBuf)> {
        #[derive(Deserialize)]
        struct ListeningLine {
            url: String,
            admin_token_file: PathBuf,
        }
        let listening: ListeningLine = serde_json::from_str(line)?;
        Ok((listening.url.trim_start_matches("http://").parse()?, listening.admin_token_file))
    }

    pub async fn connect_admin(&self) -> Result<HttpClient> {
        HttpClient::connect(self.address, &self.token).await
    }

    /// Creates an external sandbox and brings it to `running`.
    pub async fn create_sandbox(&self) -> Result<ExternalSandbox> {
        let mut admin = self.connect_admin().await?;
        let body = json!({ "provider": "external" }).to_string();
        let created = admin.post(&"/api/v1/sandboxes".parse()?, body.into()).await?;
        let created: Value = serde_json::from_slice(&created)?;
        let text = |pointer: &str| created.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let id = text("/id").context("a sandbox without id")?;
        let token = text("/worker/token").context("a sandbox without worker token")?;
        let sandbox = ExternalSandbox { id, token, stream: Uuid::now_v7() };
        let mut worker = self.connect_worker(&sandbox).await?;
        worker.post(&sandbox.api_path("heartbeat").parse()?, heartbeat_body(&sandbox).into()).await?;
        Ok(sandbox)
    }

    /// Connects with the token of a sandbox's worker.
    pub async fn connect_worker(&self, sandbox: &ExternalSandbox) -> Result<HttpClient> {
        HttpClient::connect(self.address, &sandbox.token).await
    }

    /// Number of events in a sandbox's log.
    pub async fn count_events(&self, sandbox: &ExternalSandbox) -> Result<i64> {
        #[derive(Deserialize)]
        struct TrajectoryTotal {
            total_events: i64,
        }
        let answer: TrajectoryTotal =
            self.connect_admin().await?.get_json(&sandbox.api_path("trajectory?limit=1").parse()?).await?;
        Ok(answer.total_events)
    }

    /// Reads a kilobyte field of a /proc file of the server, in megabytes.
    fn read_megabytes(&self, file: &str, field: &str) -> Result<f64> {
        let path = format!("/proc/{}/{file}", self.child.id());
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_suffix("kB"));
        let kilobytes: f64 = value.with_context(|| format!("{path} has no {field}"))?.trim().parse()?;
        Ok(kilobytes * 1024.0 / 1_000_000.0)
    }

    /// Proportional set size of the server.
    pub fn pss_mb(&self) -> Result<f64> {
        self.read_megabytes("smaps_rollup", "Pss:")
    }

    /// Peak resident set size of the server.
    pub fn peak_rss_mb(&self) -> Result<f64> {
        self.read_megabytes("status", "VmHWM:")
    }
}

fn heartbeat_body(sandbox: &ExternalSandbox) -> String {
    let body = json!({ "stream": sandbox.stream, "boot": 1, "protocol": 1, "at": "2026-01-01T00:00:00Z",
        "last_key": 0, "activity": "working" });
    body.to_string()
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
