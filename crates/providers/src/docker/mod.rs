//! Sandboxes as containers of a Docker engine on this machine, with the same worker inside as everywhere.
//!
//! ```text
//! create ─► volume ─► git-in (a container of its own) ─► container, worker as pid 1 ─► link ◄─► server
//! ```
//!
//! A sandbox is its directory here (`place`), its volume with the workspace, and its container, all named by its id. The
//! directory is made first and removed last, so that nothing at the engine is ever unknown here.

mod engine;
mod facts;
mod git;
mod making;
mod place;
mod program;
mod shape;

use crate::inside::exec::Commands;
use crate::inside::git::arguments;
use crate::inside::{LinkHost, Remains, files, link};
use crate::turns::Turns;
use crate::{carries, locked};
use atoll_core::BoxFuture;
use atoll_core::id::SandboxId;
use atoll_core::provider::{
    Answer, ByteStream, Capabilities, CreateSpec, Download, Error, ExecInfo, ExecRef, ExecSpec, ExecStream, Exit,
    FileDone, FileJob, Found, GitDone, GitJob, Lookup, Page, Provider, ProviderId, ProviderState, Size, StopMode,
    Transfer, Uploaded, Usage, Worked, capabilities as can,
};
use atoll_core::sandbox::{Network, ProviderKind};
use bollard::query_parameters::StatsOptions;
use bytes::Bytes;
use engine::{Engine, Phase};
use futures_util::StreamExt;
use place::{Place, Record};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

/// A container is never replaced behind its sandbox's id.
const EPOCH: u64 = 1;
/// For a container to be seen as ended once its worker no longer listens.
const SEEN: Duration = Duration::from_secs(10);
const GLANCE: Duration = Duration::from_millis(20);

#[derive(Debug, Clone)]
pub struct DockerOptions {
    /// `unix:///…`
    pub socket: String,
    /// The image of a sandbox that names none.
    pub image: Option<String>,
    /// The worker's program, or why there is none, in a sentence.
    pub worker: Result<PathBuf, String>,
}

impl Default for DockerOptions {
    fn default() -> Self {
        let worker = Err("no worker's program was named for containers".to_owned());
        Self { socket: "unix:///var/run/docker.sock".to_owned(), image: None, worker }
    }
}

pub struct Docker {
    options: DockerOptions,
    engine: Arc<Engine>,
    /// Whose containers these are, among all that an engine has.
    server: String,
    /// The directory of their directories.
    home: PathBuf,
    host: Arc<dyn LinkHost>,
    links: Mutex<HashMap<ProviderId, AbortHandle>>,
    /// One at a time makes a sandbox.
    making: Turns,
    commands: Arc<Commands>,
}

impl Docker {
    /// Nothing is asked of the engine until a sandbox is. `host` answers the workers.
    pub fn new(options: DockerOptions, server: &str, home: PathBuf, host: Arc<dyn LinkHost>) -> Self {
        Self {
            engine: Arc::new(Engine::new(&options.socket)),
            options,
            server: server.to_owned(),
            home,
            host,
            links: Mutex::default(),
            making: Turns::default(),
            commands: Arc::default(),
        }
    }

    /// Gone unless something of it is there.
    fn place(&self, id: &ProviderId) -> Result<Place, Error> {
        Some(Place::of(&self.home, id)?).filter(Place::exists).ok_or(Error::Gone)
    }

    async fn phase(&self, place: &Place) -> Result<Option<Phase>, Error> {
        self.engine.phase(&place.name()).await
    }

    async fn found(&self, place: &Place, phase: Option<Phase>) -> Result<Found, Error> {
        Ok(Found {
            id: place.id(),
            state: state(phase),
            epoch: EPOCH,
            labels: place.record().map(|record| record.labels).unwrap_or_default(),
            expires_at: None,
            notices: self.engine.facts().await?.notices(),
        })
    }

    /// Where the worker of a container that runs listens.
    async fn socket(&self, id: &ProviderId) -> Result<PathBuf, Error> {
        let place = self.place(id)?;
        match self.phase(&place).await? {
            Some(Phase::Running) => Ok(place.socket()),
            Some(Phase::Paused) => Err(Error::Refused { detail: "this sandbox is paused; resume it first".into() }),
            Some(Phase::Made | Phase::Ending | Phase::Ended(_)) | None => Err(nothing_runs()),
        }
    }

    /// Sees to it that a living worker is connected.
    fn connect(&self, place: &Place, phase: Option<Phase>) {
        match phase {
            Some(Phase::Running | Phase::Paused) => {}
            Some(Phase::Made | Phase::Ending | Phase::Ended(_)) | None => return,
        }
        let mut links = locked(&self.links);
        if links.get(&place.id()).is_some_and(|link| !link.is_finished()) {
            return;
        }
        let (engine, host, at) = (Arc::clone(&self.engine), Arc::clone(&self.host), place.clone());
        let kept = tokio::spawn(async move {
            // A container runs for a moment before its worker listens, which is not the same as a dead worker.
            drop(making::listens(&engine, &at).await);
            link::keep(at.sandbox, at.socket(), host).await;
        });
        links.insert(place.id(), kept.abort_handle());
    }

    /// Lets go of every worker; they live on, and are found again.
    pub fn disconnect_all(&self) {
        for (_, link) in locked(&self.links).drain() {
            link.abort();
        }
    }

    fn disconnect(&self, id: &ProviderId) {
        if let Some(link) = locked(&self.links).remove(id) {
            link.abort();
        }
    }

    /// What a dead worker left behind, also when somebody removed its container.
    pub async fn remains(&self, sandbox: SandboxId) -> Result<Remains, Error> {
        let place = self.place(&ProviderId(sandbox.to_string()))?;
        let deadline = Instant::now() + SEEN;
        let exit = loop {
            match self.phase(&place).await? {
                Some(Phase::Ended(exit)) => break exit,
                Some(Phase::Running | Phase::Ending) if Instant::now() < deadline => sleep(GLANCE).await,
                Some(Phase::Made | Phase::Running | Phase::Paused | Phase::Ending) | None => break Exit::Unknown,
            }
        };
        Ok(Remains { spool: place.spool(), exit })
    }

    /// Every sandbox of this server, by its directory, with what the engine says of its container.
    async fn all(&self) -> Result<BTreeMap<ProviderId, Found>, Error> {
        let places = Place::all(&self.home)?;
        if places.is_empty() {
            return Ok(BTreeMap::new());
        }
        let listed = self.engine.list(&[(shape::SERVER, &self.server), ("atoll", "1")]).await?;
        let phases: HashMap<&str, Phase> = listed.iter().map(|one| (one.name.as_str(), one.phase)).collect();
        let mut all = BTreeMap::new();
        for place in places {
            let phase = phases.get(place.name().as_str()).copied();
            all.insert(place.id(), self.found(&place, phase).await?);
        }
        Ok(all)
    }

    async fn job(&self, place: Place, record: Record, work: Work) -> Result<GitDone, Error> {
        let (engine, server, worker) = (Arc::clone(&self.engine), self.server.clone(), self.worker()?);
        let Work { arguments, input, output } = work;
        git::Job { engine, server, worker, place, record, arguments, input, output }.run().await
    }

    fn worker(&self) -> Result<PathBuf, Error> {
        let named = self.options.worker.clone().map_err(|why| Error::Refused { detail: why })?;
        program::check(&named)?;
        Ok(named)
    }
}

const ONLY_IN_RESULTS: &str =
    "protected paths can be changed inside this container; results that change them are refused";

/// What git is to do, and what goes in and out.
struct Work {
    arguments: Vec<String>,
    input: Option<File>,
    output: Option<File>,
}

fn state(phase: Option<Phase>) -> ProviderState {
    match phase {
        Some(Phase::Made) => ProviderState::Starting,
        Some(Phase::Running) => ProviderState::Running,
        Some(Phase::Paused) => ProviderState::Paused,
        Some(Phase::Ending) => ProviderState::Ending,
        // Its files may be there still.
        Some(Phase::Ended(_)) | None => ProviderState::Stopped,
    }
}

impl Provider for Docker {
    fn kind(&self) -> ProviderKind {
        ProviderKind::Docker
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolation: can::Isolation::Namespace,
            listing: can::Listing::Exact,
            pause: can::PauseAbility::Memory,
            fork: can::ForkAbility::None,
            snapshot: can::SnapshotAbility::None,
            egress: can::Egress::Domains,
            output: can::OutputAbility::Split,
            attach: can::AttachAbility::FromCursor,
            files: can::FileAbility::Root,
            preview: can::PreviewAbility::None,
            protected: can::ProtectedPaths::Results,
            max_memory_gb: None,
            max_cpu: None,
            max_disk_gb: None,
        }
    }

    /// The sandbox's own id is the key: there can only be one container of that name.
    fn create<'a>(&'a self, spec: &'a CreateSpec, _key: &'a str) -> Answer<'a, Found> {
        Box::pin(async move {
            crate::demands_no_tier(self.kind(), spec)?;
            let mut made = self.make(spec).await?;
            if !spec.settings.protected.is_empty() {
                made.notices.push(ONLY_IN_RESULTS.to_owned());
            }
            Ok(made)
        })
    }

    fn get<'a>(&'a self, id: &'a ProviderId) -> BoxFuture<'a, Lookup> {
        Box::pin(async move {
            let looked = async {
                let place = self.place(id)?;
                let phase = self.phase(&place).await?;
                self.connect(&place, phase);
                self.found(&place, phase).await
            };
            match looked.await {
                Ok(found) => Lookup::Found(found),
                Err(Error::Gone) => Lookup::Gone,
                Err(error) => {
                    // A worker may live on without its engine, and needs none to be connected.
                    if let Ok(place) = self.place(id) {
                        self.connect(&place, Some(Phase::Running));
                    }
                    Lookup::Unreachable { detail: error.to_string() }
                }
            }
        })
    }

    fn list<'a>(&'a self, cursor: Option<&'a str>) -> Answer<'a, Page> {
        Box::pin(async move { Ok(crate::page(&self.all().await?, cursor, Found::clone)) })
    }

    fn find<'a>(&'a self, labels: &'a BTreeMap<String, String>) -> Answer<'a, Vec<Found>> {
        Box::pin(async move {
            let all = self.all().await?.into_values();
            let fitting: Vec<Found> = all.filter(|found| carries(&found.labels, labels)).collect();
            for found in &fitting {
                let phase = (found.state == ProviderState::Running).then_some(Phase::Running);
                self.connect(&self.place(&found.id)?, phase);
            }
            Ok(fitting)
        })
    }

    fn destroy<'a>(&'a self, id: &'a ProviderId) -> Answer<'a, ()> {
        Box::pin(async move {
            let Ok(place) = self.place(id) else { return Ok(()) };
            self.disconnect(id);
            self.commands.destroyed(id);
            let sandbox = place.sandbox.to_string();
            for job in self.engine.list(&[(shape::SERVER, &self.server), (shape::JOB, &sandbox)]).await? {
                self.engine.remove(&job.name).await?;
            }
            self.engine.remove(&place.name()).await?;
            self.engine.remove_volume(&place.name()).await?;
            place.remove()
        })
    }

    /// Ends every process; files stay. The gentle way is the server's, over the worker's link.
    fn stop<'a>(&'a self, id: &'a ProviderId, _mode: StopMode) -> Answer<'a, ()> {
        Box::pin(async move { self.engine.kill(&self.place(id)?.name()).await })
    }

    fn pause<'a>(&'a self, id: &'a ProviderId) -> Answer<'a, ()> {
        Box::pin(async move {
            let place = self.place(id)?;
            match self.phase(&place).await? {
                Some(Phase::Paused) => Ok(()),
                Some(Phase::Running) => {
                    let pause = async {
                        let paused = self.engine.client().await?.pause_container(&place.name()).await;
                        paused.map_err(|error| self.engine.told(&error))
                    };
                    self.commands.pausing(id, pause).await
                }
                Some(Phase::Made | Phase::Ending | Phase::Ended(_)) | None => Err(nothing_runs()),
            }
        })
    }

    fn resume<'a>(&'a self, id: &'a ProviderId) -> Answer<'a, Found> {
        Box::pin(async move {
            let place = self.place(id)?;
            match self.phase(&place).await? {
                Some(Phase::Paused) => {
                    let resumed = self.engine.client().await?.unpause_container(&place.name()).await;
                    resumed.map_err(|error| self.engine.told(&error))?;
                }
                Some(Phase::Running) => {}
                Some(Phase::Made | Phase::Ending | Phase::Ended(_)) | None => return Err(nothing_runs()),
            }
            self.commands.resumed(id);
            let phase = self.phase(&place).await?;
            self.connect(&place, phase);
            self.found(&place, phase).await
        })
    }

    fn exec<'a>(&'a self, id: &'a ProviderId, spec: &'a ExecSpec) -> Answer<'a, ExecRef> {
        Box::pin(async move {
            if spec.as_root {
                let detail = "root in a container may do nothing that the agent may not, so commands run as the agent";
                return Err(Error::Refused { detail: detail.into() });
            }
            self.commands.start(id, EPOCH, &self.socket(id).await?, spec).await
        })
    }

    fn attach<'a>(&'a self, exec: &'a ExecRef, cursor: u64) -> Answer<'a, ExecStream> {
        Box::pin(async move { self.commands.attach(exec, cursor) })
    }

    fn write<'a>(&'a self, exec: &'a ExecRef, data: Bytes) -> Answer<'a, ()> {
        Box::pin(async move { self.commands.write(exec, &data).await })
    }

    fn close_stdin<'a>(&'a self, exec: &'a ExecRef) -> Answer<'a, ()> {
        Box::pin(async move { self.commands.close_stdin(exec) })
    }

    fn signal<'a>(&'a self, exec: &'a ExecRef, signal: i32) -> Answer<'a, ()> {
        Box::pin(async move { self.commands.signal(exec, signal) })
    }

    fn resize<'a>(&'a self, exec: &'a ExecRef, size: Size) -> Answer<'a, ()> {
        Box::pin(async move { self.commands.resize(exec, size) })
    }

    fn execs<'a>(&'a self, id: &'a ProviderId) -> Answer<'a, Vec<ExecInfo>> {
        Box::pin(async move { Ok(self.commands.list(id)) })
    }

    fn upload<'a>(
        &'a self,
        id: &'a ProviderId,
        transfer: &'a Transfer,
        data: ByteStream,
    ) -> Answer<'a, Worked<Uploaded>> {
        Box::pin(
            async move { files::upload(&self.socket(id).await?, &self.commands.patience(id), transfer, data).await },
        )
    }

    fn download<'a>(&'a self, id: &'a ProviderId, transfer: &'a Transfer) -> Answer<'a, Worked<Download>> {
        Box::pin(async move { files::download(&self.socket(id).await?, self.commands.patience(id), transfer).await })
    }

    fn files<'a>(&'a self, id: &'a ProviderId, job: &'a FileJob) -> Answer<'a, Worked<FileDone>> {
        Box::pin(async move { files::run(&self.socket(id).await?, &self.commands.patience(id), job).await })
    }

    /// What leaves a sandbox passes the server's proxy, which decides by what is stored: here is nothing to change.
    fn set_network<'a>(&'a self, id: &'a ProviderId, _network: &'a Network) -> Answer<'a, ()> {
        Box::pin(async move { self.place(id).map(drop) })
    }

    fn git<'a>(&'a self, id: &'a ProviderId, job: &'a GitJob, output: File) -> Answer<'a, GitDone> {
        Box::pin(async move {
            let place = self.place(id)?;
            let record = place.record().ok_or(Error::Gone)?;
            self.job(place, record, Work { arguments: arguments(job), input: None, output: Some(output) }).await
        })
    }

    /// The workspace's size is the engine's to know, and it does not say.
    fn resources<'a>(&'a self, id: &'a ProviderId) -> Answer<'a, Usage> {
        Box::pin(async move {
            let name = self.place(id)?.name();
            let once = StatsOptions { stream: false, one_shot: true };
            let mut stats = Box::pin(self.engine.client().await?.stats(&name, Some(once)));
            let Some(stats) = stats.next().await else { return Ok(Usage::default()) };
            let stats = stats.map_err(|error| self.engine.told(&error))?;
            let used = stats.cpu_stats.and_then(|cpu| cpu.cpu_usage?.total_usage).unwrap_or(0);
            Ok(Usage {
                cpu_seconds: Duration::from_nanos(used).as_secs_f64(),
                memory_bytes: stats.memory_stats.and_then(|memory| memory.usage).unwrap_or(0),
                pids: stats.pids_stats.and_then(|pids| pids.current).unwrap_or(0),
                ..Usage::default()
            })
        })
    }
}

fn nothing_runs() -> Error {
    Error::Refused { detail: "nothing runs in this sandbox any more".into() }
}
