//! The settings as the rest of Atoll uses them.

use crate::fake::Fake;
use crate::models::Models;
use atoll_core::network::Exception;
use atoll_core::sandbox::{IsolationTier, ProviderKind};
use secrecy::SecretString;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Clone)]
pub struct Config {
    pub data_dir: PathBuf,
    pub database: Database,
    pub redis_url: Option<SecretString>,
    pub secret: Secret,
    pub server: Server,
    pub metrics: Metrics,
    pub log: Log,
    pub limits: Limits,
    pub messages: Messages,
    pub heartbeat: Heartbeat,
    pub sandbox: Sandbox,
    pub terminal: Terminal,
    pub continuous: Continuous,
    pub retention: Retention,
    pub provider: Provider,
    pub providers: Providers,
    pub local: Local,
    pub network: Network,
    pub docker: Docker,
    pub git: Git,
    pub agent: Agent,
    pub agents: Agents,
    pub daytona: Daytona,
    pub github: Github,
    pub models: Models,
    pub orchestrator: Orchestrator,
    pub(crate) secrets: Vec<SecretString>,
}

#[derive(Debug, Clone)]
pub enum Database {
    Sqlite {
        path: PathBuf,
    },
    /// The URL may hold a password.
    Postgres {
        url: SecretString,
    },
}

#[derive(Debug, Clone)]
pub struct Secret {
    /// 32 bytes in base64.
    pub key: Option<SecretString>,
}

#[derive(Debug, Clone)]
pub struct Server {
    pub listen: SocketAddr,
    pub insecure_listen: bool,
    /// In lower case, each with an optional port.
    pub hosts: Vec<String>,
    pub tls: Option<Tls>,
    /// Without a slash at the end.
    pub public_url: Option<String>,
    /// Whom it becomes when root starts it.
    pub user: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    pub cert: PathBuf,
    pub key: PathBuf,
}

#[derive(Debug, Clone)]
pub struct Metrics {
    pub public: bool,
}

#[derive(Debug, Clone)]
pub struct Log {
    pub format: LogFormat,
    pub level: Level,
}

atoll_core::words! {
    "log format"
    LogFormat { Text = "text", Json = "json" }
}

atoll_core::words! {
    "log level"
    Level { Error = "error", Warn = "warn", Info = "info", Debug = "debug", Trace = "trace" }
}

/// `None` is no limit.
#[derive(Debug, Clone)]
pub struct Limits {
    pub worker_requests_per_minute: Option<NonZeroU32>,
    pub messages_per_minute: Option<NonZeroU32>,
    pub writes_per_minute: Option<NonZeroU32>,
    pub max_live_streams: usize,
}

#[derive(Debug, Clone)]
pub struct Messages {
    pub lease: Duration,
}

#[derive(Debug, Clone)]
pub struct Heartbeat {
    pub interval: Duration,
}

#[derive(Debug, Clone)]
pub struct Sandbox {
    pub create_timeout: CreateTimeout,
    pub flush_grace: Duration,
    pub drain_for: Duration,
    pub keep_failed_for: Duration,
    pub timeout: Timeout,
    pub memory_gb: f64,
    pub cpu: f64,
    pub disk_gb: f64,
    /// Paths of the workspace that no agent may change.
    pub protected: Vec<String>,
    pub snapshot: Option<String>,
    pub image: Option<String>,
    pub model: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Terminal {
    pub linger: Duration,
}

/// The limits of continuous mode where neither task nor project says anything.
#[derive(Debug, Clone)]
pub struct Continuous {
    pub iterations: u32,
    pub duration: Duration,
    pub errors: u32,
    pub cost_usd: Option<f64>,
    pub check_timeout: Duration,
}

#[derive(Debug, Clone)]
pub struct CreateTimeout {
    pub local: Duration,
    pub docker: Duration,
    pub external: Duration,
    pub fake: Duration,
}

impl CreateTimeout {
    pub const fn of(&self, provider: ProviderKind) -> Duration {
        match provider {
            ProviderKind::Local => self.local,
            ProviderKind::Docker => self.docker,
            ProviderKind::External => self.external,
            ProviderKind::Fake => self.fake,
        }
    }
}

/// `None` is never.
#[derive(Debug, Clone)]
pub struct Timeout {
    pub when_done: Option<Duration>,
    pub keep: Option<Duration>,
}

#[derive(Debug, Clone)]
pub struct Retention {
    /// `None` keeps them for ever.
    pub events: Option<Duration>,
    pub idempotency: Duration,
}

#[derive(Debug, Clone)]
pub struct Provider {
    pub default: ProviderKind,
}

#[derive(Debug, Clone)]
pub struct Providers {
    pub fake: Fake,
}

/// Sandboxes on this machine.
#[derive(Debug, Clone)]
pub struct Local {
    pub id_base: u32,
    pub tools: Vec<PathBuf>,
    pub worker: Option<PathBuf>,
    pub isolation: Option<IsolationTier>,
    /// In GiB.
    pub disk_pool_gb: Option<f64>,
}

/// What leaves sandboxes, beside what each may by its policy.
#[derive(Debug, Clone)]
pub struct Network {
    pub allow_private: Vec<Exception>,
    /// 0 is no limit.
    pub max_bytes: u64,
    pub upstream_proxy: Option<SecretString>,
}

/// Sandboxes as containers.
#[derive(Debug, Clone)]
pub struct Docker {
    pub socket: String,
    pub image: Option<String>,
    pub worker: Option<PathBuf>,
}

#[derive(Debug, Clone)]
pub struct Git {
    pub branch_prefix: String,
}

#[derive(Debug, Clone)]
pub struct Agent {
    pub default: Option<String>,
}

/// Where agents' programs are on this machine, for those that are named.
#[derive(Debug, Clone, Default)]
pub struct Agents {
    pub acp: Option<PathBuf>,
    pub claude: Option<PathBuf>,
    pub codex: Option<PathBuf>,
    pub gemini: Option<PathBuf>,
    pub opencode: Option<PathBuf>,
}

#[derive(Debug, Clone)]
pub struct Daytona {
    pub enabled: bool,
    pub api_key: Option<SecretString>,
    pub api_url: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Github {
    pub token: Option<SecretString>,
}

#[derive(Debug, Clone)]
pub struct Orchestrator {
    pub enabled: bool,
}

impl Config {
    /// Every secret that the configuration holds anywhere, for what keeps secrets out of logs and events.
    pub fn secret_values(&self) -> Vec<SecretString> {
        self.secrets.clone()
    }
}
