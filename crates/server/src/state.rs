//! The shared state of all handlers and jobs.

use crate::agents::Agents;
use crate::app::{Outbox, Work};
use crate::auth::tickets::{LINK_LIFETIME, TICKET_LIFETIME, Tickets};
use crate::auth::{Caller, PrincipalKey, TokenCache};
use crate::blobs::Blobs;
use crate::circuits::Circuits;
use crate::conductor::Conductor;
use crate::egress::{Egress, parse_upstream_proxy};
use crate::forge_access::ForgeClients;
use crate::forge_logins::ForgeLogins;
use crate::gateway::Gateway;
use crate::hub::Hub;
use crate::ingest_gates::IngestGates;
use crate::job_queue::JobQueue;
use crate::jobs::reaper::KnownOrphans;
use crate::keyed_locks::KeyedLocks;
use crate::limiter::Limiter;
use crate::options::Options;
use crate::previews::{self, PreviewHosts};
use crate::problem::{Problem, Result};
use crate::providers::Providers;
use crate::samples::Samples;
use crate::secrets::Secrets;
use crate::shares::{SharePermit, ShareUsedUp, Shares};
use crate::telemetry::{self, Telemetry};
use crate::terminals::Terminals;
use crate::uses::SandboxUses;
use atoll_config::Config;
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::redact::Redactor;
use atoll_core::time::Clock;
use atoll_store::{Store, Tx};
use metrics_exporter_prometheus::PrometheusHandle;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::sync::{Notify, watch};
use tracing::Instrument;

pub struct App {
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    pub config: Arc<Config>,
    pub hub: Arc<Hub>,
    pub blobs: Blobs,
    pub limiter: Limiter,
    pub tokens: TokenCache,
    pub tickets: Tickets,
    /// Codes of one-time links that sign in to the page.
    pub sign_in_links: Tickets,
    pub secrets: Arc<Secrets>,
    pub agents: Arc<Agents>,
    pub terminals: Terminals,
    /// Use of sandboxes by people.
    pub uses: Arc<SandboxUses>,
    pub circuits: Arc<Circuits>,
    pub known_orphans: KnownOrphans,
    pub sandbox_locks: KeyedLocks<SandboxId>,
    /// Held by the sandbox that runs the set-up of a layer, by the layer's name.
    pub setup_locks: KeyedLocks<String>,
    /// Held while steps of a session's branch workflow run.
    pub workflow_locks: KeyedLocks<SessionId>,
    pub metrics: PrometheusHandle,
    /// Identifies this deployment at its providers.
    pub deployment: String,
    pub default_project: ProjectId,
    /// The URL at which external workers reach this server.
    pub public_url: String,
    /// Turns of sandboxes to store events and blobs.
    pub event_gates: IngestGates,
    pub blob_gates: IngestGates,
    pub jobs: Arc<JobQueue>,
    /// Wakes the task dispatcher.
    pub task_wake: Arc<Notify>,
    /// Shares of the live streams.
    readers: Arc<Shares<PrincipalKey>>,
    /// Shares of the requests to previews.
    pub preview_streams: Arc<Shares<SandboxId>>,
    pub preview_hosts: PreviewHosts,
    /// Resource usage of the last hour.
    pub samples: Samples,
    pub conductor: Conductor,
    pub telemetry: Telemetry,
    /// Becomes true when the server stops.
    pub stopping: watch::Receiver<bool>,
    /// The egress proxy.
    pub egress: Arc<Egress>,
    /// The model gateway.
    pub gateway: Arc<Gateway>,
    pub forges: Arc<ForgeClients>,
    pub forge_logins: Arc<ForgeLogins>,
    /// Identifies this data directory, which local sandboxes belong to.
    pub server_id: String,
    providers: OnceLock<Arc<Providers>>,
    owners: Mutex<HashMap<SandboxId, ProjectId>>,
}

/// The parts of an `App` that act after a commit.
struct OutboxTargets {
    hub: Arc<Hub>,
    jobs: Arc<JobQueue>,
    task_wake: Arc<Notify>,
    egress: Arc<Egress>,
    gateway: Arc<Gateway>,
    blobs: Blobs,
    telemetry: Telemetry,
}

impl OutboxTargets {
    /// Runs the effects of a committed transaction.
    fn publish_outbox(self, out: Outbox) {
        out.spans.into_iter().for_each(|span| self.telemetry.record_span(span));
        if !out.blobs.is_empty() {
            self.blobs.mark_unreferenced(out.blobs);
        }
        for (sandbox, version, network) in out.networks {
            self.egress.set_policy(sandbox, version, network.as_ref());
        }
        for (sandbox, most) in out.tasks {
            self.gateway.update_task_limit(sandbox, most);
        }
        self.hub.publish_events(out.events);
        for session in out.inboxes {
            self.hub.inbox_changed(session);
        }
        for (sandbox, state) in out.states {
            self.hub.state_changed(sandbox, state);
        }
        if out.jobs || !out.claimed_jobs.is_empty() {
            self.jobs.wake_runner(out.claimed_jobs);
        }
        if out.tasks_changed {
            self.task_wake.notify_one();
        }
    }
}

/// The parts of an `App` that do not come from the options.
pub struct AppParts {
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

/// The right to one live stream.
pub type ReaderPermit = SharePermit<PrincipalKey>;

const MAX_CACHED_OWNERS: usize = 100_000;

impl App {
    pub fn new(options: &Options, parts: AppParts) -> Self {
        let config = &options.config;
        let fixed = config.secret_values.clone();
        let secrets = Arc::new(Secrets::new(&config.data_dir, config.secret.key.clone(), fixed));
        let forges = Arc::new(ForgeClients::new(config.github.clone()));
        let forge_logins = ForgeLogins::new(
            parts.store.clone(),
            Arc::clone(&parts.clock),
            Arc::clone(&secrets),
            config.github.clone(),
            Arc::clone(&forges),
        );
        Self {
            store: parts.store,
            clock: parts.clock,
            config: Arc::new(options.config.clone()),
            hub: Arc::default(),
            blobs: parts.blobs,
            limiter: Limiter::new(&options.config.limits),
            tokens: TokenCache::default(),
            tickets: Tickets::new(TICKET_LIFETIME),
            sign_in_links: Tickets::new(LINK_LIFETIME),
            secrets,
            agents: Arc::new(Agents::new(options.agents.clone(), &options.config)),
            terminals: Terminals::default(),
            uses: Arc::default(),
            circuits: Arc::new(Circuits::new(options.config.health.breaker_policy())),
            known_orphans: KnownOrphans::default(),
            sandbox_locks: KeyedLocks::default(),
            setup_locks: KeyedLocks::default(),
            workflow_locks: KeyedLocks::default(),
            metrics: crate::metrics::install_recorder(),
            deployment: parts.deployment,
            default_project: parts.default_project,
            public_url: parts.public_url,
            event_gates: IngestGates::default(),
            blob_gates: IngestGates::default(),
            jobs: Arc::default(),
            task_wake: Arc::default(),
            samples: Samples::default(),
            conductor: Conductor::default(),
            telemetry: Telemetry::start(
                &options.config.telemetry.otlp,
                parse_upstream_proxy(&options.config.network, &options.no_proxy),
            ),
            readers: Arc::new(Shares::new(options.config.limits.max_live_streams)),
            preview_streams: Arc::new(Shares::new(previews::MAX_STREAMS)),
            preview_hosts: PreviewHosts::new(&options.config),
            stopping: parts.stopping,
            egress: Arc::new(Egress::new(&options.config, &options.no_proxy)),
            gateway: Arc::new(parts.gateway),
            forges,
            forge_logins: Arc::new(forge_logins),
            server_id: parts.server_id,
            providers: OnceLock::new(),
            owners: Mutex::new(HashMap::new()),
        }
    }

    /// Sets the providers once at start-up: they need the `App` to be built first.
    pub fn set_providers(&self, providers: Arc<Providers>) {
        drop(self.providers.set(providers));
    }

    pub fn providers(&self) -> Result<Arc<Providers>> {
        self.providers.get().cloned().ok_or_else(|| {
            Problem::new(crate::problem::Code::ShuttingDown, "the server is not ready yet").retry_after(1)
        })
    }

    /// Reads in one consistent snapshot.
    pub async fn read<R, F>(&self, work: F) -> Result<R>
    where
        R: Send + 'static,
        F: AsyncFnOnce(&mut dyn Tx) -> Result<R> + Send + 'static,
    {
        self.store.read(work).await
    }

    /// Runs the work in one transaction, then its outbox.
    pub async fn write<R, F>(&self, work: F) -> Result<R>
    where
        R: Send + 'static,
        F: AsyncFnOnce(&mut Work<'_>) -> Result<R> + Send + 'static,
    {
        let (now, steady, config) = (self.clock.now(), self.clock.steady_now(), Arc::clone(&self.config));
        let (secrets, agents) = (Arc::clone(&self.secrets), Arc::clone(&self.agents));
        let circuits = Arc::clone(&self.circuits);
        let (gateway, providers, public_url) = (Arc::clone(&self.gateway), self.providers()?, self.public_url.clone());
        let (trace, span) = (telemetry::current_trace(), tracing::Span::current());
        let targets = OutboxTargets {
            hub: Arc::clone(&self.hub),
            jobs: Arc::clone(&self.jobs),
            task_wake: Arc::clone(&self.task_wake),
            egress: Arc::clone(&self.egress),
            gateway: Arc::clone(&self.gateway),
            blobs: self.blobs.clone(),
            telemetry: self.telemetry.clone(),
        };
        let publish = move |(value, out): (R, Outbox)| {
            targets.publish_outbox(out);
            value
        };
        let done = self.store.write_then(
            async move |tx| {
                let out = Outbox::default();
                let mut transaction = Work {
                    tx,
                    out,
                    now,
                    steady,
                    config,
                    secrets,
                    agents,
                    gateway,
                    providers,
                    circuits,
                    public_url,
                    trace,
                };
                let value = work(&mut transaction).instrument(span).await?;
                Ok((value, transaction.out))
            },
            publish,
        );
        done.await
    }

    /// The redactor of a sandbox's project.
    pub async fn redactor(&self, sandbox: SandboxId) -> Result<Arc<Redactor>> {
        let project = self.project_of(sandbox).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
        Ok(self.secrets.redactor(project))
    }

    /// The project of a sandbox, which never changes.
    pub async fn project_of(&self, sandbox: SandboxId) -> Result<Option<ProjectId>> {
        let known = self.owners.lock().unwrap_or_else(PoisonError::into_inner).get(&sandbox).copied();
        if known.is_some() {
            return Ok(known);
        }
        let found = self.read(async move |tx| Ok(atoll_store::sandboxes::find_owner_ids(tx, sandbox).await?)).await?;
        if let Some((_, project)) = found {
            let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
            if owners.len() >= MAX_CACHED_OWNERS {
                owners.clear();
            }
            owners.insert(sandbox, project);
            return Ok(Some(project));
        }
        Ok(None)
    }

    /// Admits a live stream. One principal gets at most its share of them.
    pub fn admit_reader(&self, caller: &Caller) -> Result<ReaderPermit> {
        self.readers.acquire(caller.key()).map_err(|ShareUsedUp| {
            let detail =
                "close some streams, or raise limits.max_live_streams; a principal gets at most a quarter of them";
            Problem::new(crate::problem::Code::TooManyReaders, detail).retry_after(5)
        })
    }
}
