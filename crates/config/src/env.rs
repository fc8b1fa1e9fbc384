//! Every environment variable that Atoll's configuration knows, in one place.
//!
//! Each key has a name of its own, derived from the key (`server.listen` is `ATOLL_SERVER_LISTEN`). The names
//! below are the others: those that are usual elsewhere and work as they stand. Where both are set, Atoll's own
//! name wins. An empty variable counts as not set.

use crate::keys::KEYS;

/// What Atoll's own names begin with.
pub const PREFIX: &str = "ATOLL_";

/// Chooses the `atoll.<profile>.yaml` beside each file.
pub const PROFILE: &str = "ATOLL_PROFILE";

/// Where a command finds another server, and what it shows there: read by the command line, not here.
pub const SERVER: &str = "ATOLL_SERVER";
pub const TOKEN: &str = "ATOLL_TOKEN";

/// A finer choice of what is logged, read where logging is set up.
pub const LOG: &str = "ATOLL_LOG";

/// What tests and their helpers say to each other.
pub const TEST_PREFIX: &str = "ATOLL_TEST_";

pub const XDG_CONFIG_HOME: &str = "XDG_CONFIG_HOME";
pub const XDG_DATA_HOME: &str = "XDG_DATA_HOME";

/// The proxy that programs on this machine use, and what they reach without it; the first that is set counts. Read
/// where the server is started: they are not Atoll's to refuse.
pub const PROXIES: [&str; 4] = ["https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY"];
pub const NO_PROXY: [&str; 2] = ["no_proxy", "NO_PROXY"];

pub const DATABASE_URL: &str = "DATABASE_URL";
pub const DOCKER_HOST: &str = "DOCKER_HOST";
pub const REDIS_URL: &str = "REDIS_URL";
pub const DAYTONA_API_KEY: &str = "DAYTONA_API_KEY";
pub const DAYTONA_API_URL: &str = "DAYTONA_API_URL";
pub const DAYTONA_SANDBOX_EXECUTION: &str = "DAYTONA_SANDBOX_EXECUTION";
pub const GITHUB_TOKEN: &str = "GITHUB_TOKEN";
pub const ANTHROPIC_API_KEY: &str = "ANTHROPIC_API_KEY";
pub const ANTHROPIC_BASE_URL: &str = "ANTHROPIC_BASE_URL";
pub const OPENAI_API_KEY: &str = "OPENAI_API_KEY";
pub const OPENAI_BASE_URL: &str = "OPENAI_BASE_URL";
pub const GEMINI_API_KEY: &str = "GEMINI_API_KEY";
pub const GEMINI_BASE_URL: &str = "GEMINI_BASE_URL";
pub const SANDBOX_MEMORY_GB: &str = "SANDBOX_MEMORY_GB";
pub const SANDBOX_CPU: &str = "SANDBOX_CPU";
pub const SANDBOX_DISK_GB: &str = "SANDBOX_DISK_GB";
pub const SANDBOX_SNAPSHOT: &str = "SANDBOX_SNAPSHOT";
pub const SANDBOX_IMAGE: &str = "SANDBOX_IMAGE";
pub const SANDBOX_MODEL: &str = "SANDBOX_MODEL";
pub const ORCHESTRATOR_ENABLED: &str = "ORCHESTRATOR_ENABLED";

/// The name that a key has without anyone choosing it.
pub fn own_name(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', "_").to_ascii_uppercase())
}

/// Every variable that sets a key, with the key, in the table's order.
pub fn names() -> Vec<(String, &'static str)> {
    KEYS.iter().flat_map(|key| key.env_names().into_iter().map(|name| (name, key.name))).collect()
}

/// A variable that begins like ours, sets no key, and is still no mistake.
pub(crate) fn belongs_elsewhere(name: &str) -> bool {
    [PROFILE, SERVER, TOKEN, LOG].contains(&name) || name.starts_with(TEST_PREFIX)
}
