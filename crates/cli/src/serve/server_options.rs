//! Turns the configuration into the options of a server.

use atoll_config::{Config, env};
use atoll_jail::Launcher;
use atoll_server::Options;
use secrecy::SecretString;
use std::sync::Arc;

pub fn server_options(command: &'static str, config: &Config, launcher: Result<Arc<Launcher>, String>) -> Options {
    let mut config = config.clone();
    // Without a configured proxy, the server uses the proxy variables of this machine.
    let from_env = || first_variable(&env::PROXY_VARIABLES).map(SecretString::from);
    config.network.upstream_proxy = config.network.upstream_proxy.or_else(from_env);
    Options {
        command,
        no_proxy: first_variable(&env::NO_PROXY).unwrap_or_default(),
        launcher,
        docker_worker: crate::launcher::find_container_worker(&config),
        page: crate::page::PAGE,
        agents: crate::agents::search_paths(&config),
        config,
    }
}

/// The first of these variables that is set.
fn first_variable(names: &[&str]) -> Option<String> {
    let values = names.iter().filter_map(|name| std::env::var(name).ok());
    values.map(|value| value.trim().to_owned()).find(|value| !value.is_empty())
}
