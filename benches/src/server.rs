//! The server under test, as a process of its own.

use crate::client::Client;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use uuid::Uuid;

/// The program that is named, else the one that was built beside this.
pub fn find(named: Option<PathBuf>) -> Result<PathBuf> {
    let program = match named {
        Some(program) => program,
        None => std::env::current_exe()?.with_file_name("atoll"),
    };
    ensure!(program.exists(), "{} is not there: build it with `cargo build --release -p atoll`", program.display());
    Ok(program.canonicalize()?)
}

/// Killed when dropped.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    pub token: String,
}

/// A sandbox whose worker is in this process.
#[derive(Debug, Clone)]
pub struct Sandbox {
    pub id: String,
    pub token: String,
    pub stream: Uuid,
}

impl Sandbox {
    pub fn path(&self, rest: &str) -> String {
        format!("/api/v1/sandboxes/{}/{rest}", self.id)
    }
}

/// Rates are not what is measured.
const WITHOUT_LIMITS: [&str; 3] =
    ["ATOLL_LIMITS_WORKER_REQUESTS_PER_MINUTE", "ATOLL_LIMITS_MESSAGES_PER_MINUTE", "ATOLL_LIMITS_WRITES_PER_MINUTE"];

impl Server {
    pub fn start(program: &Path, data_dir: &Path, database: Option<&str>) -> Result<Self> {
        Self::start_in(program, data_dir, database, &[])
    }

    /// With more in its environment.
    pub fn start_in(
        program: &Path,
        data_dir: &Path,
        database: Option<&str>,
        environment: &[(&str, &str)],
    ) -> Result<Self> {
        std::fs::create_dir_all(data_dir)?;
        let log = data_dir.join("server.log");
        // Ends with this process, however that ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program);
        command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data_dir);
        if let Some(url) = database {
            command.args(["--database-url", url]);
        }
        // Nobody's own configuration.
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", data_dir).current_dir(data_dir);
        command.env("ATOLL_LOG", "warn").envs(WITHOUT_LIMITS.map(|name| (name, "0")));
        command.envs(environment.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log)?);
        let mut child = command.spawn().context("can't start the server")?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.as_mut() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let started = Self::started(&line);
        let (address, token_file) = match started {
            Ok(started) => started,
            Err(error) => {
                drop((child.kill(), child.wait()));
                let said = std::fs::read_to_string(log).unwrap_or_default();
                return Err(error.context(format!("the server did not start: {line}{said}")));
            }
        };
        let token = std::fs::read_to_string(token_file)?.trim().to_owned();
        Ok(Self { child, address, token })
    }

    fn started(line: &str) -> Result<(SocketAddr, PathBuf)> {
        #[derive(Deserialize)]
        struct Listening {
            url: String,
            admin_token_file: PathBuf,
        }
        let listening: Listening = serde_json::from_str(line)?;
        Ok((listening.url.trim_start_matches("http://").parse()?, listening.admin_token_file))
    }

    pub async fn admin(&self) -> Result<Client> {
        Client::connect(self.address, &self.token).await
    }

    /// A new external sandbox that is `running`.
    pub async fn sandbox(&self) -> Result<Sandbox> {
        let mut admin = self.admin().await?;
        let body = json!({ "provider": "external" }).to_string();
        let made = admin.post(&"/api/v1/sandboxes".parse()?, body.into()).await?;
        let made: Value = serde_json::from_slice(&made)?;
        let text = |pointer: &str| made.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let id = text("/id").context("a sandbox without id")?;
        let token = text("/worker/token").context("a sandbox without worker token")?;
        let sandbox = Sandbox { id, token, stream: Uuid::now_v7() };
        let mut worker = self.worker(&sandbox).await?;
        worker.post(&sandbox.path("heartbeat").parse()?, heartbeat(&sandbox).into()).await?;
        Ok(sandbox)
    }

    /// A connection in the name of a sandbox's worker.
    pub async fn worker(&self, sandbox: &Sandbox) -> Result<Client> {
        Client::connect(self.address, &sandbox.token).await
    }

    /// How many events a sandbox has.
    pub async fn events(&self, sandbox: &Sandbox) -> Result<i64> {
        #[derive(Deserialize)]
        struct Trajectory {
            total_events: i64,
        }
        let answer: Trajectory = self.admin().await?.ask(&sandbox.path("trajectory?limit=1").parse()?).await?;
        Ok(answer.total_events)
    }

    /// A number of kilobytes out of one of the process's files, in megabytes.
    fn megabytes(&self, file: &str, field: &str) -> Result<f64> {
        let path = format!("/proc/{}/{file}", self.child.id());
        let text = std::fs::read_to_string(&path).with_context(|| format!("can't read {path}"))?;
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_suffix("kB"));
        let kilobytes: f64 = value.with_context(|| format!("{path} has no {field}"))?.trim().parse()?;
        Ok(kilobytes * 1024.0 / 1_000_000.0)
    }

    /// Its share of the machine's memory.
    pub fn pss(&self) -> Result<f64> {
        self.megabytes("smaps_rollup", "Pss:")
    }

    /// The most that it ever had in memory.
    pub fn peak(&self) -> Result<f64> {
        self.megabytes("status", "VmHWM:")
    }
}

fn heartbeat(sandbox: &Sandbox) -> String {
    let body = json!({ "stream": sandbox.stream, "boot": 1, "protocol": 1, "at": "2026-01-01T00:00:00Z",
        "last_key": 0, "activity": "working" });
    body.to_string()
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
