//! The environment variables that the configuration reads.
//!
//! Each key has its own variable, derived from its name (`server.listen` is `ATOLL_SERVER_LISTEN`). A key's declaration
//! names its other variables (`DATABASE_URL`). If both are set, Atoll's own variable wins. An empty variable counts as
//! unset. The constants below name the variables that set no key.

use crate::key::KEYS;

/// Prefix of Atoll's own variables.
pub const PREFIX: &str = "ATOLL_";

/// Selects the `atoll.<profile>.yaml` beside each file.
pub const PROFILE: &str = "ATOLL_PROFILE";

/// URL and token of the server that a command talks to. The command line reads them.
pub const SERVER: &str = "ATOLL_SERVER";
pub const TOKEN: &str = "ATOLL_TOKEN";

/// Log filter per module. The logging setup reads it.
pub const LOG: &str = "ATOLL_LOG";

/// Prefix of variables that tests use.
pub const TEST_PREFIX: &str = "ATOLL_TEST_";

pub const XDG_CONFIG_HOME: &str = "XDG_CONFIG_HOME";
pub const XDG_DATA_HOME: &str = "XDG_DATA_HOME";

/// The usual proxy variables of this machine; the first that is set wins. `atoll serve` reads them, and a malformed
/// value is no configuration error.
pub const PROXY_VARIABLES: [&str; 4] = ["https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY"];
pub const NO_PROXY: [&str; 2] = ["no_proxy", "NO_PROXY"];

/// The `ATOLL_…` variable of a key.
pub fn atoll_variable(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', "_").to_ascii_uppercase())
}

/// Every variable that sets a key, with the key's name.
pub fn variable_names() -> Vec<(String, &'static str)> {
    KEYS.iter().flat_map(|key| key.env_names().into_iter().map(|name| (name, key.name))).collect()
}

/// An `ATOLL_…` variable that sets no key and is read elsewhere.
pub(crate) fn is_reserved(name: &str) -> bool {
    [PROFILE, SERVER, TOKEN, LOG].contains(&name) || name.starts_with(TEST_PREFIX)
}
