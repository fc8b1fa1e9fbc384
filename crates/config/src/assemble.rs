//! From values by key to the typed settings.

use crate::config::{
    Agent, Agents, Config, Continuous, CreateTimeout, Database, Daytona, Docker, Git, Github, Heartbeat, Limits, Local,
    Log, Messages, Metrics, Network, Orchestrator, Provider, Providers, Retention, Sandbox, Secret, Server, Terminal,
    Timeout, Tls,
};
use crate::fake::Fake;
use crate::load::Values;
use crate::url;
use crate::value::{self, Places, Value};
use atoll_core::network::Exception;
use secrecy::{ExposeSecret, SecretString};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// The database's file in the data directory when no database is named.
const DATABASE_FILE: &str = "atoll.db";

/// A value that passed on its own and still cannot be handed out.
pub(crate) struct Unusable {
    pub(crate) key: &'static str,
    pub(crate) detail: String,
}

impl Unusable {
    fn of(key: &'static str) -> Self {
        Self { key, detail: "has no value of its type".to_owned() }
    }
}

impl Config {
    pub(crate) fn assemble(values: &Values, places: &Places<'_>) -> Result<Self, Unusable> {
        let data_dir: PathBuf = values.need("data_dir")?;
        Ok(Self {
            database: database(values, places, &data_dir)?,
            data_dir,
            redis_url: values.maybe("redis_url"),
            secret: Secret { key: values.maybe("secret.key") },
            server: Server {
                listen: values.need("server.listen")?,
                insecure_listen: values.need("server.insecure_listen")?,
                hosts: values.need("server.hosts")?,
                tls: values
                    .maybe("server.tls_cert")
                    .and_then(|cert| Some(Tls { cert, key: values.maybe("server.tls_key")? })),
                public_url: values.maybe("server.public_url"),
                user: values.maybe("server.user"),
            },
            metrics: Metrics { public: values.need("metrics.public")? },
            log: Log { format: values.word("log.format")?, level: values.word("log.level")? },
            limits: Limits {
                worker_requests_per_minute: values.need("limits.worker_requests_per_minute")?,
                messages_per_minute: values.need("limits.messages_per_minute")?,
                writes_per_minute: values.need("limits.writes_per_minute")?,
                max_live_streams: values.need("limits.max_live_streams")?,
            },
            messages: Messages { lease: values.need("messages.lease")? },
            heartbeat: Heartbeat { interval: values.need("heartbeat.interval")? },
            sandbox: sandbox(values)?,
            terminal: Terminal { linger: values.need("terminal.linger")? },
            continuous: Continuous {
                iterations: values.need("continuous.iterations")?,
                duration: values.need("continuous.duration")?,
                errors: values.need("continuous.errors")?,
                cost_usd: values.maybe("continuous.cost_usd"),
                check_timeout: values.need("continuous.check_timeout")?,
            },
            retention: Retention {
                events: values.need("retention.events")?,
                idempotency: values.need("retention.idempotency")?,
            },
            provider: Provider { default: values.word("provider.default")? },
            providers: Providers { fake: values.need("providers.fake")? },
            local: Local {
                id_base: values.need("local.id_base")?,
                tools: values.need::<Vec<String>>("local.tools")?.into_iter().map(PathBuf::from).collect(),
                worker: values.maybe("local.worker"),
                isolation: values.maybe_word("local.isolation")?,
                disk_pool_gb: values.maybe("local.disk_pool_gb"),
            },
            network: Network {
                allow_private: values.need("network.allow_private")?,
                max_bytes: values.need("network.max_bytes")?,
                upstream_proxy: values.maybe("network.upstream_proxy"),
            },
            docker: Docker {
                socket: values.need("docker.socket")?,
                image: values.maybe("docker.image"),
                worker: values.maybe("docker.worker"),
            },
            git: Git { branch_prefix: values.need("git.branch_prefix")? },
            agent: Agent { default: values.maybe("agent.default") },
            agents: Agents {
                acp: values.maybe("agents.acp.path"),
                claude: values.maybe("agents.claude.path"),
                codex: values.maybe("agents.codex.path"),
                gemini: values.maybe("agents.gemini.path"),
                opencode: values.maybe("agents.opencode.path"),
            },
            daytona: Daytona {
                enabled: values.need("daytona.enabled")?,
                api_key: values.maybe("daytona.api_key"),
                api_url: values.maybe("daytona.api_url"),
            },
            github: Github { token: values.maybe("github.token") },
            models: values.models.clone(),
            orchestrator: Orchestrator { enabled: values.need("orchestrator.enabled")? },
            secrets: values.secrets.clone(),
        })
    }
}

fn sandbox(values: &Values) -> Result<Sandbox, Unusable> {
    Ok(Sandbox {
        create_timeout: CreateTimeout {
            local: values.need("sandbox.create_timeout.local")?,
            docker: values.need("sandbox.create_timeout.docker")?,
            external: values.need("sandbox.create_timeout.external")?,
            fake: values.need("sandbox.create_timeout.fake")?,
        },
        flush_grace: values.need("sandbox.flush_grace")?,
        drain_for: values.need("sandbox.drain_for")?,
        keep_failed_for: values.need("sandbox.keep_failed_for")?,
        timeout: Timeout {
            when_done: values.need("sandbox.timeout.when_done")?,
            keep: values.need("sandbox.timeout.keep")?,
        },
        memory_gb: values.need("sandbox.memory_gb")?,
        cpu: values.need("sandbox.cpu")?,
        disk_gb: values.need("sandbox.disk_gb")?,
        protected: values.need("sandbox.protected")?,
        snapshot: values.maybe("sandbox.snapshot"),
        image: values.maybe("sandbox.image"),
        model: values.maybe("sandbox.model"),
    })
}

fn database(values: &Values, places: &Places<'_>, data_dir: &Path) -> Result<Database, Unusable> {
    let Some(url) = values.maybe::<SecretString>("database_url") else {
        return Ok(Database::Sqlite { path: data_dir.join(DATABASE_FILE) });
    };
    match url::sqlite_path(url.expose_secret()) {
        Some(file) => value::path(file, places)
            .map(|path| Database::Sqlite { path })
            .map_err(|detail| Unusable { key: "database_url", detail }),
        None => Ok(Database::Postgres { url }),
    }
}

impl Values {
    fn maybe<T: Take>(&self, key: &str) -> Option<T> {
        self.get(key).and_then(T::take)
    }

    fn need<T: Take>(&self, key: &'static str) -> Result<T, Unusable> {
        self.maybe(key).ok_or_else(|| Unusable::of(key))
    }

    fn maybe_word<T: FromStr>(&self, key: &'static str) -> Result<Option<T>, Unusable> {
        self.maybe::<String>(key).map(|word| word.parse().map_err(|_| Unusable::of(key))).transpose()
    }

    fn word<T: FromStr>(&self, key: &'static str) -> Result<T, Unusable> {
        self.need::<String>(key)?.parse().map_err(|_| Unusable::of(key))
    }
}

/// A type that settings of some kind are handed out as.
trait Take: Sized {
    fn take(value: &Value) -> Option<Self>;
}

macro_rules! take {
    ($($type:ty: $pattern:pat => $taken:expr;)+) => {$(
        impl Take for $type {
            fn take(value: &Value) -> Option<Self> {
                match value {
                    $pattern => $taken,
                    _ => None,
                }
            }
        }
    )+};
}

take! {
    String: Value::Text(text) => Some(text.clone());
    PathBuf: Value::Path(path) => Some(path.clone());
    bool: Value::Bool(value) => Some(*value);
    u32: Value::Integer(value) => u32::try_from(*value).ok();
    u64: Value::Integer(value) => Some(*value);
    Vec<Exception>: Value::List(items) => items.iter().map(|item| item.parse().ok()).collect();
    usize: Value::Integer(value) => usize::try_from(*value).ok();
    // Zero is no limit.
    Option<NonZeroU32>: Value::Integer(value) => u32::try_from(*value).ok().map(NonZeroU32::new);
    f64: Value::Number(value) => Some(*value);
    Duration: Value::Duration(value) => *value;
    // Nothing is never.
    Option<Duration>: Value::Duration(value) => Some(*value);
    SocketAddr: Value::Address(address) => Some(*address);
    Vec<String>: Value::List(items) => Some(items.clone());
    SecretString: Value::Secret(secret) | Value::SecretUrl(secret) => Some(secret.clone());
    Fake: Value::Structure(json) => serde_json::from_value(json.clone()).ok();
}
