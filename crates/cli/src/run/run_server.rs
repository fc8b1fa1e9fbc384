//! The server of a run: a running one, or one embedded in this process.

use crate::connect::{Connect, ConnectedClient, recorded_url};
use crate::embedded::{EmbeddedServer, EmbeddedServerSetup};
use crate::failure::{Failure, Result};
use crate::runtime::build_runtime;
use atoll_api::{PageQuery, SandboxListQuery, StopSandbox};
use atoll_config::Config;
use atoll_core::id::SandboxId;
use atoll_core::provider::capabilities::WorkerHost;
use atoll_core::sandbox::{EndPolicy, ResultsAction, SandboxState};
use atoll_providers::capabilities_of;
use std::time::Duration;
use tokio::runtime::Builder;

/// The choice of the server. It is made before this process has threads, because an embedded server needs that.
pub enum ServerChoice {
    Running(Connect),
    Embedded {
        prepared: Box<EmbeddedServerSetup>,
        /// Why the server of the data directory cannot be used.
        instead_of: Option<Failure>,
    },
}

impl ServerChoice {
    /// Chooses the server that the user names, the one of the data directory, or an embedded one.
    pub fn choose(command: &'static str, connect: &Connect, config: &Config) -> Result<Self> {
        if connect.server.is_some() {
            return Ok(Self::Running(connect.clone()));
        }
        let connect = Connect { data_dir: Some(config.data_dir.clone()), ..connect.clone() };
        let mut instead_of = None;
        if recorded_url(&config.data_dir).is_some() {
            match probe_server(&connect)? {
                Ok(()) => return Ok(Self::Running(connect)),
                Err(failure) => instead_of = Some(failure),
            }
        }
        Ok(Self::Embedded { prepared: Box::new(EmbeddedServerSetup::new(command, config)), instead_of })
    }
}

/// Checks that the server responds and accepts the token, in a temporary runtime.
fn probe_server(connect: &Connect) -> Result<Result<()>> {
    let runtime = build_runtime(Builder::new_current_thread())?;
    Ok(runtime.block_on(async {
        let client = ConnectedClient::find(connect)?;
        client.list_projects(&PageQuery { limit: Some(1), cursor: None }).await?;
        Ok(())
    }))
}

pub struct RunServer {
    pub client: ConnectedClient,
    embedded: Option<EmbeddedServer>,
}

impl RunServer {
    pub async fn open(choice: ServerChoice) -> Result<Self> {
        let (prepared, instead_of) = match choice {
            ServerChoice::Running(connect) => {
                return Ok(Self { client: ConnectedClient::find(&connect)?, embedded: None });
            }
            ServerChoice::Embedded { prepared, instead_of } => (prepared, instead_of),
        };
        match prepared.start().await {
            Ok(server) => Ok(Self { client: server.connect_client()?, embedded: Some(server) }),
            // A server holds the directory: report why the request to it failed.
            Err(failure) if failure.has_code("locked") => {
                Err(instead_of.filter(|why| !why.has_code("no_server")).unwrap_or(failure))
            }
            Err(failure) => Err(failure),
        }
    }

    pub const fn is_embedded(&self) -> bool {
        self.embedded.is_some()
    }

    /// Stops the embedded server, if there is one, when no other run needs it.
    pub async fn shut_down(self, ended: Option<SandboxId>, report_others: impl Fn(usize)) {
        const POLL_INTERVAL: Duration = Duration::from_millis(500);
        let Some(server) = self.embedded else { return };
        let mut reported = 0;
        loop {
            let others = count_other_runs(&self.client, ended).await;
            if others == 0 {
                break;
            }
            if others != reported {
                report_others(others);
                reported = others;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        server.stop(&self.client, ended.as_slice()).await;
    }

    /// Stops the sandbox and the embedded server. The next server completes what takes too long.
    pub async fn shut_down_now(self, sandbox: Option<SandboxId>) {
        const STOP_TIMEOUT: Duration = Duration::from_secs(30);
        let Some(server) = self.embedded else { return };
        if let Some(sandbox) = sandbox {
            drop(tokio::time::timeout(STOP_TIMEOUT, stop_and_wait(&self.client, sandbox)).await);
        }
        server.stop(&self.client, sandbox.as_slice()).await;
    }

    /// Leaves at once. The store has the request to export the results, and the next server continues with it.
    pub async fn abandon(self, sandbox: Option<SandboxId>) {
        const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
        let Some(server) = self.embedded else { return };
        if let Some(sandbox) = sandbox {
            drop(tokio::time::timeout(REQUEST_TIMEOUT, request_stop(&self.client, sandbox)).await);
        }
        drop(tokio::time::timeout(REQUEST_TIMEOUT, server.stop(&self.client, &[])).await);
    }
}

async fn request_stop(client: &ConnectedClient, sandbox: SandboxId) -> Result {
    client.stop_sandbox(sandbox, &StopSandbox { results: ResultsAction::Take }).await?;
    Ok(())
}

async fn stop_and_wait(client: &ConnectedClient, sandbox: SandboxId) -> Result {
    const POLL_INTERVAL: Duration = Duration::from_millis(100);
    request_stop(client, sandbox).await?;
    while !client.get_sandbox(sandbox).await?.state.has_ended() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Counts the other runs on this server: a second `atoll run` uses the embedded server of the first.
async fn count_other_runs(client: &ConnectedClient, own: Option<SandboxId>) -> usize {
    let states = [SandboxState::Pending, SandboxState::Creating, SandboxState::Running, SandboxState::Completing];
    let mut count = 0;
    for state in states {
        let query = SandboxListQuery { state: Some(state), limit: Some(200), ..SandboxListQuery::default() };
        let Ok(page) = client.list_sandboxes(&query).await else { return 0 };
        // Kept sandboxes, and those whose worker a person runs, may never end.
        let others = page.items.iter().filter(|sandbox| {
            Some(sandbox.id) != own
                && sandbox.end == EndPolicy::WhenDone
                && capabilities_of(sandbox.provider).worker != WorkerHost::Person
        });
        count += others.count();
    }
    count
}
