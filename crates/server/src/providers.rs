//! The providers that this server has, and the link of workers that live in its own process.

use crate::api::worker::lease_waiting;
use crate::app::{heartbeat, inbox, ingest};
use crate::linked::Linked;
use crate::options::Options;
use crate::problem::Problem;
use crate::state::App;
use atoll_core::BoxFuture;
use atoll_core::id::{MessageId, SandboxId};
use atoll_core::provider::{Error, Provider};
use atoll_core::sandbox::ProviderKind;
use atoll_protocol::link::{LinkError, WorkerLink};
use atoll_protocol::{Ack, Batch, BatchAnswer, Heartbeat, HeartbeatAnswer, LeaseAnswer, LeaseRequest, Nack};
use atoll_providers::inside::Remains;
use atoll_providers::{Docker, External, Fake, LinkHost, Local};
use std::sync::{Arc, Weak};

pub struct Providers {
    local: Local,
    docker: Docker,
    linked: Arc<Linked>,
    external: External,
    fake: Fake,
}

impl Providers {
    pub fn new(options: &Options, app: &Arc<App>) -> Self {
        let link = Arc::new(InProcess(Arc::downgrade(app)));
        let linked = Arc::new(Linked::new(app));
        let local = Local::new(options.launcher.clone(), Arc::clone(&linked) as Arc<dyn LinkHost>)
            .demanding(options.policy.isolation);
        let home = options.data_dir.canonicalize().unwrap_or_else(|_| options.data_dir.clone()).join("docker");
        let docker =
            Docker::new(options.docker.clone(), &app.server_id, home, Arc::clone(&linked) as Arc<dyn LinkHost>);
        Self { local, docker, linked, external: External::new(), fake: Fake::new(options.fake.clone(), link) }
    }

    pub fn get(&self, kind: ProviderKind) -> &dyn Provider {
        match kind {
            ProviderKind::Local => &self.local,
            ProviderKind::Docker => &self.docker,
            ProviderKind::External => &self.external,
            ProviderKind::Fake => &self.fake,
        }
    }
}

impl Providers {
    pub fn local(&self) -> &Local {
        &self.local
    }

    /// Those whose sandboxes outlive a server and are its successor's to find.
    pub fn on_this_machine(&self) -> [&dyn Provider; 2] {
        [&self.local, &self.docker]
    }

    /// What a dead worker on this machine left behind.
    pub async fn remains(&self, kind: ProviderKind, sandbox: SandboxId) -> Result<Remains, Error> {
        match kind {
            ProviderKind::Local => self.local.remains(sandbox).await,
            ProviderKind::Docker => self.docker.remains(sandbox).await,
            ProviderKind::External | ProviderKind::Fake => Err(Error::Gone),
        }
    }

    /// Lets go of every worker on this machine; they live on.
    pub fn disconnect_all(&self) {
        self.local.disconnect_all();
        self.docker.disconnect_all();
    }

    pub fn linked(&self) -> &Linked {
        &self.linked
    }
}

/// A worker in this process goes the same way as one over HTTP, less the HTTP.
struct InProcess(Weak<App>);

type Said<'a, T> = BoxFuture<'a, Result<T, LinkError>>;

impl InProcess {
    fn app(&self) -> Result<Arc<App>, LinkError> {
        self.0.upgrade().ok_or_else(|| LinkError::Unavailable("the server has stopped".into()))
    }
}

fn refused(problem: Problem) -> LinkError {
    if problem.code.status().is_server_error() {
        LinkError::Unavailable(problem.detail)
    } else {
        LinkError::Refused { code: problem.code.as_str().to_owned(), detail: problem.detail }
    }
}

impl WorkerLink for InProcess {
    fn heartbeat<'a>(&'a self, sandbox: SandboxId, beat: &'a Heartbeat) -> Said<'a, HeartbeatAnswer> {
        let beat = beat.clone();
        Box::pin(async move {
            let app = self.app()?;
            let work = app.write(move |work| Box::pin(async move { heartbeat::heartbeat(work, sandbox, &beat).await }));
            work.await.map_err(refused)
        })
    }

    fn events<'a>(&'a self, sandbox: SandboxId, batch: &'a Batch) -> Said<'a, BatchAnswer> {
        let batch = batch.clone();
        Box::pin(async move {
            let app = self.app()?;
            let redactor = app.redactor(sandbox).await.map_err(refused)?;
            let checked = ingest::check(batch, &redactor).map_err(refused)?;
            let work = app.write(move |work| Box::pin(async move { ingest::ingest(work, sandbox, checked).await }));
            work.await.map_err(refused)
        })
    }

    fn lease<'a>(&'a self, sandbox: SandboxId, request: &'a LeaseRequest) -> Said<'a, LeaseAnswer> {
        let request = request.clone();
        Box::pin(async move { lease_waiting(&*self.app()?, sandbox, request).await.map_err(refused) })
    }

    fn ack<'a>(&'a self, sandbox: SandboxId, id: MessageId, ack: &'a Ack) -> Said<'a, ()> {
        let ack = *ack;
        Box::pin(async move {
            let app = self.app()?;
            let work = app.write(move |work| Box::pin(async move { inbox::ack(work, sandbox, id, &ack).await }));
            work.await.map_err(refused)
        })
    }

    fn nack<'a>(&'a self, sandbox: SandboxId, id: MessageId, nack: &'a Nack) -> Said<'a, ()> {
        let nack = nack.clone();
        Box::pin(async move {
            let app = self.app()?;
            let work = app.write(move |work| Box::pin(async move { inbox::nack(work, sandbox, id, &nack).await }));
            work.await.map_err(refused)
        })
    }
}
