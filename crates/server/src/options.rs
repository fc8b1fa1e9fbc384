//! The inputs of a server: the configuration, and what the process that starts it provides.

use crate::page::PageFile;
use atoll_agents::AgentLocations;
use atoll_config::{Config, Database};
use atoll_jail::Launcher;
use atoll_providers::DockerOptions;
use atoll_store::DatabaseLocation;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, Clone)]
pub struct Options {
    pub config: Config,
    /// The command that runs the server, for the message of a second one on the same data directory.
    pub command: &'static str,
    /// Hosts that the server reaches without its upstream proxy, in the form of the variable `NO_PROXY`.
    pub no_proxy: String,
    /// The launcher of local sandboxes, or the reason why there is none.
    pub launcher: Result<Arc<Launcher>, String>,
    /// The worker binary for containers, or the reason why there is none.
    pub docker_worker: Result<PathBuf, String>,
    /// The files of the web page; none if the program was built without it.
    pub page: &'static [PageFile],
    /// Where agents' programs are looked for.
    pub agents: AgentLocations,
}

impl Options {
    pub fn store_location(&self) -> DatabaseLocation {
        match self.config.database() {
            Database::Sqlite { path } => DatabaseLocation::Sqlite(path),
            Database::Postgres { url } => DatabaseLocation::Postgres(url),
        }
    }

    pub fn docker(&self) -> DockerOptions {
        let docker = &self.config.docker;
        DockerOptions { socket: docker.socket.clone(), image: docker.image.clone(), worker: self.docker_worker.clone() }
    }
}
