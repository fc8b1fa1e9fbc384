//! The providers of this server, and the link for workers in the server's own process.

use crate::app::{blob_transfer, heartbeat, inbox, ingest, lease_wait};
use crate::metrics::ProviderCallMeter;
use crate::options::Options;
use crate::problem::Problem;
use crate::state::App;
use crate::worker_link::WorkerLinks;
use atoll_core::BoxFuture;
use atoll_core::id::{MessageId, SandboxId};
use atoll_core::provider::Provider;
use atoll_core::provider::capabilities::ImageAbility;
use atoll_core::provider::observed::{ObserveCalls, ObservedProvider};
use atoll_core::sandbox::ProviderKind;
use atoll_protocol::link::{LinkError, WorkerLink};
use atoll_protocol::{Ack, Batch, BatchAnswer, Heartbeat, HeartbeatAnswer, LeaseAnswer, LeaseRequest, Nack};
use atoll_providers::{Docker, External, Fake, LinkHost, Local};
use bytes::Bytes;
use std::sync::{Arc, Weak};

pub struct Providers {
    /// One provider per kind, in the order of `ProviderKind::ALL`.
    providers: Vec<Arc<dyn Provider>>,
    linked: Arc<WorkerLinks>,
}

/// Builds the provider of a kind. A new provider is added here.
fn build_provider(
    kind: ProviderKind,
    options: &Options,
    app: &Arc<App>,
    linked: &Arc<WorkerLinks>,
) -> Arc<dyn Provider> {
    let link_host = || Arc::clone(linked) as Arc<dyn LinkHost>;
    match kind {
        ProviderKind::Local => Arc::new(
            Local::new(options.launcher.clone(), link_host())
                .with_minimum_tier(options.config.local.isolation)
                .with_disk(&options.config.data_dir, options.config.local.disk_pool_gb),
        ),
        ProviderKind::Docker => {
            let data_dir = &options.config.data_dir;
            let home = data_dir.canonicalize().unwrap_or_else(|_| data_dir.clone()).join("docker");
            Arc::new(Docker::new(options.docker(), &app.server_id, home, link_host()))
        }
        ProviderKind::External => Arc::new(External::new()),
        ProviderKind::Fake => {
            Arc::new(Fake::new(options.config.providers.fake.clone(), Arc::new(InProcessLink(Arc::downgrade(app)))))
        }
    }
}

impl Providers {
    pub fn new(options: &Options, app: &Arc<App>) -> Self {
        let linked = Arc::new(WorkerLinks::new(app));
        let meter: Arc<dyn ObserveCalls> = Arc::new(ProviderCallMeter);
        let build = |kind: &ProviderKind| {
            let provider = build_provider(*kind, options, app, &linked);
            Arc::new(ObservedProvider::new(provider, Arc::clone(&meter))) as Arc<dyn Provider>
        };
        Self { providers: ProviderKind::ALL.iter().map(build).collect(), linked }
    }

    pub fn get(&self, kind: ProviderKind) -> Arc<dyn Provider> {
        Arc::clone(&self.providers[kind as usize])
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<dyn Provider>> {
        self.providers.iter()
    }

    /// Providers whose sandboxes outlive the server, because the server only connects to their workers.
    pub fn with_local_workers(&self) -> impl Iterator<Item = &Arc<dyn Provider>> {
        self.providers.iter().filter(|provider| provider.capabilities().runs_agents())
    }

    /// The provider that stores images and snapshots.
    pub fn image_store(&self) -> Arc<dyn Provider> {
        let imports = |provider: &&Arc<dyn Provider>| provider.capabilities().images == ImageAbility::Import;
        Arc::clone(self.providers.iter().find(imports).unwrap_or(&self.providers[0]))
    }

    /// Disconnects from all local workers, which keep running.
    pub fn disconnect_all(&self) {
        self.providers.iter().for_each(|provider| provider.disconnect_all());
    }

    pub fn linked(&self) -> &WorkerLinks {
        &self.linked
    }
}

/// The worker link without HTTP, for the fake provider's workers and for draining spools.
pub(crate) struct InProcessLink(Weak<App>);

type LinkResult<'a, T> = BoxFuture<'a, Result<T, LinkError>>;

impl InProcessLink {
    pub(crate) fn new(app: &Arc<App>) -> Self {
        Self(Arc::downgrade(app))
    }

    fn app(&self) -> Result<Arc<App>, LinkError> {
        self.0.upgrade().ok_or_else(|| LinkError::Unavailable("the server has stopped".into()))
    }
}

fn to_link_error(problem: Problem) -> LinkError {
    if problem.is_server_error() {
        LinkError::Unavailable(problem.detail)
    } else {
        LinkError::Rejected { code: problem.code.as_str().to_owned(), detail: problem.detail }
    }
}

impl WorkerLink for InProcessLink {
    fn send_heartbeat<'a>(&'a self, sandbox: SandboxId, beat: &'a Heartbeat) -> LinkResult<'a, HeartbeatAnswer> {
        Box::pin(async move {
            heartbeat::submit_heartbeat(&*self.app()?, sandbox, beat.clone()).await.map_err(to_link_error)
        })
    }

    fn send_events<'a>(&'a self, sandbox: SandboxId, batch: &'a Batch) -> LinkResult<'a, BatchAnswer> {
        Box::pin(async move {
            let app = self.app()?;
            let mut turn = app.event_gates.enter(sandbox).await.map_err(to_link_error)?;
            ingest::submit_batch(&app, &mut turn, sandbox, batch.clone()).await.map_err(to_link_error)
        })
    }

    fn send_blob<'a>(&'a self, sandbox: SandboxId, sha256: &'a str, content: Bytes) -> LinkResult<'a, ()> {
        Box::pin(async move {
            let stored = blob_transfer::store_content(&*self.app()?, sandbox, sha256, content.into()).await;
            stored.map(drop).map_err(to_link_error)
        })
    }

    fn lease_messages<'a>(&'a self, sandbox: SandboxId, request: &'a LeaseRequest) -> LinkResult<'a, LeaseAnswer> {
        Box::pin(async move {
            lease_wait::lease_waiting(&*self.app()?, sandbox, request.clone()).await.map_err(to_link_error)
        })
    }

    fn send_ack<'a>(&'a self, sandbox: SandboxId, id: MessageId, ack: &'a Ack) -> LinkResult<'a, ()> {
        Box::pin(async move { inbox::submit_ack(&*self.app()?, sandbox, id, *ack).await.map_err(to_link_error) })
    }

    fn send_nack<'a>(&'a self, sandbox: SandboxId, id: MessageId, nack: &'a Nack) -> LinkResult<'a, ()> {
        Box::pin(
            async move { inbox::submit_nack(&*self.app()?, sandbox, id, nack.clone()).await.map_err(to_link_error) },
        )
    }
}
