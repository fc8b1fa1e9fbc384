//! What all handlers share.

use crate::agents::Agents;
use crate::app::{Outbox, Work};
use crate::auth::TokenCache;
use crate::auth::tickets::Tickets;
use crate::blobs::Blobs;
use crate::egress::Egress;
use crate::gateway::Gateway;
use crate::holds::Holds;
use crate::hub::Hub;
use crate::limiter::Limiter;
use crate::options::{Options, Policy};
use crate::problem::{Problem, Result};
use crate::providers::Providers;
use crate::samples::Samples;
use crate::secrets::Secrets;
use crate::terminals::Terminals;
use atoll_core::BoxFuture;
use atoll_core::id::{ProjectId, SandboxId};
use atoll_core::redact::Redactor;
use atoll_core::time::Clock;
use atoll_store::{Store, Tx};
use metrics_exporter_prometheus::PrometheusHandle;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::sync::{Notify, Semaphore, watch};

pub struct App {
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    pub policy: Arc<Policy>,
    pub hub: Arc<Hub>,
    pub blobs: Blobs,
    pub limiter: Limiter,
    pub tokens: TokenCache,
    pub tickets: Tickets,
    pub secrets: Arc<Secrets>,
    pub agents: Arc<Agents>,
    pub terminals: Terminals,
    pub holds: Holds,
    pub metrics: PrometheusHandle,
    pub metrics_public: bool,
    /// Names this deployment at its providers.
    pub deployment: String,
    pub default_project: ProjectId,
    /// How workers elsewhere reach this server.
    pub public_url: String,
    /// Wakes the jobs' runner.
    pub jobs: Arc<Notify>,
    /// Readers that may still connect.
    pub readers: Arc<Semaphore>,
    /// What sandboxes used in the last hour.
    pub samples: Samples,
    /// Becomes true when the server stops.
    pub stopping: watch::Receiver<bool>,
    /// What leaves the sandboxes.
    pub egress: Arc<Egress>,
    /// Their way to models.
    pub gateway: Arc<Gateway>,
    pub data_dir: PathBuf,
    /// Names this data directory, which local sandboxes belong to.
    pub server_id: String,
    providers: OnceLock<Arc<Providers>>,
    owners: Mutex<HashMap<SandboxId, ProjectId>>,
}

/// Tells the rest of the server what is durable now.
fn tell(hub: &Hub, jobs: &Notify, egress: &Egress, gateway: &Gateway, blobs: &Blobs, out: Outbox) {
    if !out.blobs.is_empty() {
        blobs.let_go(out.blobs);
    }
    for (sandbox, version, network) in out.networks {
        egress.set(sandbox, version, Some(&network));
    }
    for (sandbox, most) in out.tasks {
        gateway.task_changed(sandbox, most);
    }
    hub.publish(out.events);
    for session in out.inboxes {
        hub.inbox_changed(session);
    }
    for (sandbox, state) in out.states {
        hub.state_changed(sandbox, state);
    }
    if out.jobs {
        jobs.notify_one();
    }
}

/// What `App::new` needs beside the options.
pub struct Parts {
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    pub blobs: Blobs,
    pub deployment: String,
    pub server_id: String,
    pub default_project: ProjectId,
    pub public_url: String,
    pub stopping: watch::Receiver<bool>,
    pub gateway: Gateway,
}

const OWNERS: usize = 100_000;

impl App {
    pub fn new(options: &Options, parts: Parts) -> Self {
        Self {
            store: parts.store,
            clock: parts.clock,
            policy: Arc::new(options.policy.clone()),
            hub: Arc::default(),
            blobs: parts.blobs,
            limiter: Limiter::new(options.limits),
            tokens: TokenCache::default(),
            tickets: Tickets::default(),
            secrets: Arc::new(Secrets::new(&options.data_dir, options.secret_key.clone(), options.secrets.clone())),
            agents: Arc::new(Agents::new(options.agents.clone(), &options.models)),
            terminals: Terminals::default(),
            holds: Holds::default(),
            metrics: crate::metrics::install(),
            metrics_public: options.metrics_public,
            deployment: parts.deployment,
            default_project: parts.default_project,
            public_url: parts.public_url,
            jobs: Arc::default(),
            samples: Samples::default(),
            readers: Arc::new(Semaphore::new(options.limits.readers)),
            stopping: parts.stopping,
            egress: Arc::new(Egress::new(&options.outward)),
            gateway: Arc::new(parts.gateway),
            data_dir: options.data_dir.clone(),
            server_id: parts.server_id,
            providers: OnceLock::new(),
            owners: Mutex::new(HashMap::new()),
        }
    }

    /// Said once, when the server starts: the providers need this in turn.
    pub fn set_providers(&self, providers: Arc<Providers>) {
        drop(self.providers.set(providers));
    }

    pub fn providers(&self) -> Result<Arc<Providers>> {
        self.providers.get().cloned().ok_or_else(|| {
            Problem::new(crate::problem::Code::ShuttingDown, "the server is not ready yet").retry_after(1)
        })
    }

    /// Reads on one consistent view.
    pub async fn read<R, F>(&self, work: F) -> Result<R>
    where
        R: Send + 'static,
        F: for<'t> FnOnce(&'t mut dyn Tx) -> BoxFuture<'t, Result<R>> + Send + 'static,
    {
        self.store.read(work).await
    }

    /// Does the work in one transaction; when it is durable, tells the rest of the server.
    pub async fn write<R, F>(&self, work: F) -> Result<R>
    where
        R: Send + 'static,
        F: for<'w, 't> FnOnce(&'w mut Work<'t>) -> BoxFuture<'w, Result<R>> + Send + 'static,
    {
        let (now, steady, policy) = (self.clock.now(), self.clock.steady(), Arc::clone(&self.policy));
        let (secrets, agents) = (Arc::clone(&self.secrets), Arc::clone(&self.agents));
        let (gateway, informed) = (Arc::clone(&self.gateway), Arc::clone(&self.gateway));
        let (hub, jobs, egress) = (Arc::clone(&self.hub), Arc::clone(&self.jobs), Arc::clone(&self.egress));
        let blobs = self.blobs.clone();
        let told = move |(value, out): (R, Outbox)| {
            tell(&hub, &jobs, &egress, &informed, &blobs, out);
            value
        };
        let done = self.store.write_then(
            move |tx| {
                Box::pin(async move {
                    let mut begun = Work { tx, out: Outbox::default(), now, steady, policy, secrets, agents, gateway };
                    let value = work(&mut begun).await?;
                    Ok((value, begun.out))
                })
            },
            told,
        );
        done.await
    }

    /// What takes the secrets that a sandbox's project knows out of text now.
    pub async fn redactor(&self, sandbox: SandboxId) -> Result<Arc<Redactor>> {
        let project = self.project_of(sandbox).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
        Ok(self.secrets.redactor(project))
    }

    /// Which project a sandbox belongs to; that never changes.
    pub async fn project_of(&self, sandbox: SandboxId) -> Result<Option<ProjectId>> {
        let known = self.owners.lock().unwrap_or_else(PoisonError::into_inner).get(&sandbox).copied();
        if known.is_some() {
            return Ok(known);
        }
        let found =
            self.read(move |tx| Box::pin(async move { Ok(atoll_store::sandboxes::owner(tx, sandbox).await?) })).await?;
        if let Some((_, project)) = found {
            let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
            if owners.len() >= OWNERS {
                owners.clear();
            }
            owners.insert(sandbox, project);
            return Ok(Some(project));
        }
        Ok(None)
    }

    pub fn reader_permit(&self) -> Result<tokio::sync::OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.readers).try_acquire_owned();
        permit.map_err(|_| {
            Problem::new(crate::problem::Code::TooManyReaders, "close some, or raise limits.max_live_streams")
                .retry_after(5)
        })
    }
}
