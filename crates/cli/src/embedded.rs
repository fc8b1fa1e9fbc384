//! A server in this process, for commands that find no running one.

use crate::connect::{Connect, ConnectedClient};
use crate::failure::Result;
use crate::serve::{server_options, start_failure};
use atoll_config::Config;
use atoll_core::id::SandboxId;
use atoll_core::sandbox::SandboxState;
use atoll_server::Server;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::time::Instant;

/// The options of an embedded server, prepared before this process has threads.
pub struct EmbeddedServerSetup {
    options: atoll_server::Options,
}

impl EmbeddedServerSetup {
    /// Listens on a free loopback port and uses the configured data directory.
    pub fn new(command: &'static str, config: &Config) -> Self {
        let mut options = server_options::server_options(command, config, crate::launcher::start_launcher(config));
        // Other machines do not use an embedded server.
        let server = &mut options.config.server;
        server.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        (server.tls_cert, server.tls_key, server.public_url) = (None, None, None);
        Self { options }
    }

    pub async fn start(self) -> Result<EmbeddedServer> {
        let data_dir = self.options.config.data_dir.clone();
        let server = Box::pin(Server::start(self.options)).await.map_err(start_failure)?;
        let connect = Connect {
            server: Some(server.url.clone()),
            token_file: Some(server.admin_token.clone()),
            data_dir: Some(data_dir),
        };
        Ok(EmbeddedServer { server, connect })
    }
}

pub struct EmbeddedServer {
    server: Server,
    connect: Connect,
}

/// Limit on the wait for the removal of ended sandboxes; the next server continues it.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

impl EmbeddedServer {
    pub fn connect_client(&self) -> Result<ConnectedClient> {
        ConnectedClient::find(&self.connect)
    }

    /// Waits until the provider has removed the completed sandboxes, then stops the server.
    pub async fn stop(self, client: &ConnectedClient, ended: &[SandboxId]) {
        let deadline = Instant::now() + REMOVAL_TIMEOUT;
        for id in ended {
            while Instant::now() < deadline && is_being_removed(client, *id).await {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        self.server.stop().await;
    }
}

/// The provider still removes the completed sandbox; failed sandboxes stay for a while.
async fn is_being_removed(client: &ConnectedClient, id: SandboxId) -> bool {
    let sandbox = client.get_sandbox(id).await;
    sandbox.is_ok_and(|sandbox| sandbox.state == SandboxState::Completed && sandbox.provider_id.is_some())
}
