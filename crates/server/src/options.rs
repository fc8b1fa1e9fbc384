//! What a server is started with. The command line fills this from the configuration.

use atoll_agents::Places;
use atoll_core::continuous::Continuous;
use atoll_core::model::{Api, Auth, Price, Renewal};
use atoll_core::network::Exception;
use atoll_core::sandbox::{IsolationTier, ProviderKind, Resources};
use atoll_jail::Launcher;
use atoll_providers::DockerOptions;
use atoll_providers::fake::FakeOptions;
use atoll_store::Location;
use secrecy::SecretString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Clone)]
pub struct Options {
    pub listen: SocketAddr,
    pub data_dir: PathBuf,
    pub database: Location,
    pub tls: Option<Tls>,
    /// Further names that the Host header may have.
    pub hosts: Vec<String>,
    /// How workers elsewhere reach this server.
    pub public_url: Option<String>,
    pub metrics_public: bool,
    pub policy: Policy,
    pub limits: Limits,
    pub fake: FakeOptions,
    pub outward: Outward,
    pub models: Models,
    /// Makes sandboxes on this machine; or why it can't, in a sentence.
    pub launcher: Result<Arc<Launcher>, String>,
    pub docker: DockerOptions,
    /// Where agents' programs are looked for.
    pub agents: Places,
    /// Values that must never be stored in an event.
    pub secrets: Vec<SecretString>,
    /// Seals the stored secrets, in base64; without it a key in the data directory does.
    pub secret_key: Option<SecretString>,
}

#[derive(Debug, Clone)]
pub struct Tls {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// What sandboxes reach, beside what each may by its policy.
#[derive(Debug, Clone, Default)]
pub struct Outward {
    /// Places that are not public and may be reached nevertheless.
    pub allow_private: Vec<Exception>,
    /// The proxy that this server itself must use, `http://[user:password@]host:port`.
    pub upstream_proxy: Option<SecretString>,
    /// What is reached without it, in the form of the variable `NO_PROXY`.
    pub no_proxy: String,
    /// What one sandbox may transfer in all; 0 is no limit.
    pub max_bytes: u64,
}

/// Where models are served, and which of them sandboxes may use.
#[derive(Debug, Clone, Default)]
pub struct Models {
    pub upstreams: Vec<ModelUpstream>,
    /// Empty: every model that an upstream knows.
    pub listed: Vec<Model>,
}

#[derive(Debug, Clone)]
pub struct ModelUpstream {
    pub name: String,
    pub api: Api,
    /// Without a slash at the end.
    pub url: String,
    pub key: Option<SecretString>,
    /// The stored secret that holds the key where `key` is not set, or a project has its own.
    pub secret: Option<String>,
    pub auth: Auth,
    /// Without a key nothing is asked there.
    pub needs_key: bool,
    /// Where a login is renewed that is stored in place of a key.
    pub login: Option<Renewal>,
}

#[derive(Debug, Clone)]
pub struct Model {
    pub name: String,
    pub upstream: String,
    /// Its name at the upstream, where that is another one.
    pub model: Option<String>,
    pub context: Option<u64>,
    pub price: Option<Price>,
}

/// How long things may take, and what holds where a request is silent.
#[derive(Debug, Clone)]
pub struct Policy {
    pub lease: Duration,
    pub heartbeat: Duration,
    pub create_timeout_local: Duration,
    pub create_timeout_docker: Duration,
    pub create_timeout_external: Duration,
    pub create_timeout_fake: Duration,
    pub flush_grace: Duration,
    pub drain_for: Duration,
    pub keep_failed_for: Duration,
    /// `None`: no limit.
    pub timeout_when_done: Option<Duration>,
    pub timeout_keep: Option<Duration>,
    /// For a terminal that nobody looks at.
    pub terminal_linger: Duration,
    pub retain_events: Option<Duration>,
    pub retain_idempotency: Duration,
    pub provider: ProviderKind,
    pub agent: Option<String>,
    /// What the branches of plain runs begin with.
    pub branch_prefix: String,
    pub model: Option<String>,
    pub image: Option<String>,
    pub snapshot: Option<String>,
    pub resources: Resources,
    /// What every sandbox on this machine must have.
    pub isolation: Option<IsolationTier>,
    /// Paths of the workspace that no agent on this machine may change.
    pub protected: Vec<String>,
    /// The limits of continuous mode where nobody says anything.
    pub continuous: Continuous,
}

impl Default for Policy {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        Self {
            lease: Duration::from_secs(30),
            heartbeat: Duration::from_secs(30),
            create_timeout_local: Duration::from_secs(30),
            create_timeout_docker: Duration::from_secs(600),
            create_timeout_external: DAY,
            create_timeout_fake: Duration::from_secs(30),
            flush_grace: Duration::from_secs(30),
            drain_for: DAY,
            keep_failed_for: DAY,
            timeout_when_done: Some(Duration::from_secs(3600)),
            timeout_keep: None,
            terminal_linger: Duration::from_secs(600),
            retain_events: None,
            retain_idempotency: DAY,
            provider: ProviderKind::External,
            agent: None,
            branch_prefix: "atoll".into(),
            model: None,
            image: None,
            snapshot: None,
            resources: Resources { memory_gb: Some(4.0), cpu: Some(2.0), disk_gb: Some(8.0), pids: None },
            isolation: None,
            protected: Vec::new(),
            continuous: Continuous::default(),
        }
    }
}

/// Requests a minute for each principal; 0 is no limit.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub worker_requests: u32,
    pub messages: u32,
    pub writes: u32,
    /// Readers connected at once, all principals together.
    pub readers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { worker_requests: 6000, messages: 120, writes: 600, readers: 1000 }
    }
}
