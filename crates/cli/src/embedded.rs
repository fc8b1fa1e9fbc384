//! A server inside this process, for a command that finds none running.

use crate::client::{Client, Connect};
use crate::failure::{Failure, Result};
use crate::serve::options;
use atoll_config::Config;
use atoll_core::id::SandboxId;
use atoll_server::Server;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::time::Instant;

/// What a server is started with, made ready while this process has no threads.
pub struct Prepared {
    options: atoll_server::Options,
}

impl Prepared {
    /// On a free port of this machine, on the data directory of the configuration.
    pub fn new(config: &Config) -> Self {
        let mut options = options::options(config, crate::launcher::start(config));
        // What is configured for others to reach a server does not concern this one.
        options.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        (options.tls, options.public_url) = (None, None);
        Self { options }
    }

    pub async fn start(self) -> Result<Embedded> {
        let data_dir = self.options.data_dir.clone();
        let server = Box::pin(Server::start(self.options)).await.map_err(|error| cant_start(&error))?;
        let connect = Connect {
            server: Some(server.url.clone()),
            token_file: Some(server.admin_token.clone()),
            data_dir: Some(data_dir),
        };
        Ok(Embedded { server, connect })
    }
}

pub struct Embedded {
    server: Server,
    connect: Connect,
}

/// How long the removal of what ended may take before the server goes nevertheless; its next start
/// goes on with it.
const REMOVAL: Duration = Duration::from_secs(10);
const GLANCE: Duration = Duration::from_millis(50);

impl Embedded {
    pub fn client(&self) -> Result<Client> {
        Client::find(&self.connect)
    }

    /// Waits until what has completed is removed at its provider, then lets go of everything.
    pub async fn stop(self, client: &Client, ended: &[SandboxId]) {
        let deadline = Instant::now() + REMOVAL;
        for id in ended {
            while Instant::now() < deadline && is_being_removed(client, *id).await {
                tokio::time::sleep(GLANCE).await;
            }
        }
        self.server.stop().await;
    }
}

/// What failed is kept for a while, and what can't be asked after is not waited for.
async fn is_being_removed(client: &Client, id: SandboxId) -> bool {
    let row = client.get(&format!("/sandboxes/{id}"), &[]).await;
    row.is_ok_and(|row| row["state"] == "completed" && !row["provider_id"].is_null())
}

fn cant_start(error: &atoll_server::Error) -> Failure {
    use atoll_server::Error as E;
    use atoll_store::Error as S;
    let (code, next) = match error {
        E::DataDir { .. } => ("data_dir", "Name another one with --data-dir."),
        E::Store(S::Locked(_)) => ("locked", "Wait for it, or name another data directory with --data-dir."),
        E::Store(S::Full { .. }) => ("disk_full", "Make room on that disk, or name another one with --data-dir."),
        _ => ("server", "`atoll doctor` looks at everything that it needs and says what to mend."),
    };
    Failure::setup(code, error).next(next)
}
