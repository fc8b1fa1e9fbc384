//! Types of configuration values, and views that combine several keys.

use crate::sections::{Config, Continuous, CreateTimeout, Sandbox, Server};
use atoll_core::continuous::{Continuous as ContinuousLimits, MAX_CHECK_TIMEOUT_S};
use atoll_core::sandbox::{ProviderKind, Resources};
use secrecy::SecretString;
use std::path::PathBuf;
use std::time::Duration;

/// SQLite file in the data directory, the default database.
const DATABASE_FILE: &str = "atoll.db";

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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    pub cert: PathBuf,
    pub key: PathBuf,
}

atoll_core::string_enum! {
    "log format"
    LogFormat { Text = "text", Json = "json" }
}

atoll_core::string_enum! {
    "log level"
    Level { Error = "error", Warn = "warn", Info = "info", Debug = "debug", Trace = "trace" }
}

impl Config {
    /// The configured database, or SQLite in the data directory.
    pub fn database(&self) -> Database {
        self.database_url.clone().unwrap_or_else(|| Database::Sqlite { path: self.data_dir.join(DATABASE_FILE) })
    }
}

impl Server {
    pub fn tls(&self) -> Option<Tls> {
        Some(Tls { cert: self.tls_cert.clone()?, key: self.tls_key.clone()? })
    }
}

impl CreateTimeout {
    pub const fn for_provider(&self, provider: ProviderKind) -> Duration {
        match provider {
            ProviderKind::Local => self.local,
            ProviderKind::Docker => self.docker,
            ProviderKind::External => self.external,
            ProviderKind::Fake => self.fake,
        }
    }
}

impl Sandbox {
    /// The resources of a sandbox whose request and project name none.
    pub const fn resources(&self) -> Resources {
        Resources { memory_gb: Some(self.memory_gb), cpu: Some(self.cpu), disk_gb: Some(self.disk_gb), pids: None }
    }
}

impl Continuous {
    /// The limits of a session whose request and project set none.
    pub fn limits(&self) -> ContinuousLimits {
        let seconds = |time: Duration| u32::try_from(time.as_secs().max(1)).unwrap_or(u32::MAX);
        ContinuousLimits {
            iterations: Some(self.iterations),
            duration_s: Some(seconds(self.duration)),
            errors: Some(self.errors),
            cost_usd: self.cost_usd,
            check_timeout_s: Some(seconds(self.check_timeout).min(MAX_CHECK_TIMEOUT_S)),
            ..ContinuousLimits::default()
        }
    }
}
