//! Sandboxes on this machine: Linux namespaces made by the launcher, a process of its own.
//!
//! ```text
//! create ─► launcher: prepare ─► git-in (a jail of its own) ─► worker as pid 1 ─► link ◄─► server
//! ```
//!
//! A sandbox is named by its id everywhere: its directory, its cgroup, its record. What the launcher
//! finds on disk is what there is; nothing here is remembered that a restart would lose.

mod disk;
mod git;
mod layers;
mod notices;
mod root;
mod tier;

use crate::inside::exec::Commands;
use crate::inside::{LinkHost, Remains, files, link};
use crate::{all_labels, carries, locked};
use atoll_core::BoxFuture;
use atoll_core::id::SandboxId;
use atoll_core::provider::{
    Answer, ByteStream, Capabilities, CreateSpec, Download, Error, ExecInfo, ExecRef, ExecSpec, ExecStream, Exit,
    FileDone, FileJob, Found, GitDone, GitJob, ImageRef, Lookup, Page, Provider, ProviderId, ProviderState, Size,
    SnapshotRef, StopMode, Transfer, Uploaded, Usage, Worked, capabilities as can,
};
use atoll_core::sandbox::{IsolationTier, Network, ProviderKind, Resources};
use atoll_jail::{Launcher, Limits, Place, Spec};
use atoll_protocol::exec::Ask;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::AbortHandle;

/// A local sandbox is never replaced behind its id.
const EPOCH: u64 = 1;

pub struct Local {
    /// Or why there is none, in a sentence.
    launcher: Result<Arc<Mutex<Arc<Launcher>>>, String>,
    host: Arc<dyn LinkHost>,
    links: Mutex<HashMap<ProviderId, AbortHandle>>,
    /// One at a time makes a sandbox of a name.
    making: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    commands: Arc<Commands>,
    disk: disk::Watch,
    tier: tier::Demand,
}

impl Local {
    /// `host` answers the workers.
    pub fn new(launcher: Result<Arc<Launcher>, String>, host: Arc<dyn LinkHost>) -> Self {
        let launcher = launcher.map(|launcher| Arc::new(Mutex::new(launcher)));
        Self {
            launcher,
            host,
            links: Mutex::default(),
            making: Mutex::default(),
            commands: Arc::default(),
            disk: disk::Watch::default(),
            tier: tier::Demand::default(),
        }
    }

    /// What each sandbox must have, whatever it asks for itself.
    pub fn demanding(self, isolation: Option<IsolationTier>) -> Self {
        Self { tier: tier::Demand::of(isolation), ..self }
    }

    /// Asks the launcher, which answers in its own time, on a thread where waiting is no harm.
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Launcher) -> Result<T, atoll_jail::Error> + Send + 'static,
    ) -> Result<T, Error> {
        let launcher = match &self.launcher {
            Ok(launcher) => Arc::clone(launcher),
            Err(why) => return Err(Error::Refused { detail: why.clone() }),
        };
        match tokio::task::spawn_blocking(move || question(&*living(&launcher)?)).await {
            Ok(answer) => answer.map_err(|error| failure(&error)),
            Err(error) => Err(Error::Unreachable { detail: error.to_string() }),
        }
    }

    async fn place(&self, id: &ProviderId) -> Result<Place, Error> {
        let name = name(id)?;
        self.ask(move |launcher| launcher.find(&name)).await?.ok_or(Error::Gone)
    }

    /// The socket of a living worker, through which its files are reached.
    async fn worker(&self, id: &ProviderId) -> Result<PathBuf, Error> {
        let place = self.place(id).await?;
        if !place.alive {
            let detail = "nothing runs in this sandbox any more, so its files can't be reached";
            return Err(Error::Refused { detail: detail.into() });
        }
        Ok(place.socket)
    }

    /// Sees to it that a living worker is connected.
    fn connect(&self, place: &Place) {
        let Ok(sandbox) = place.name.parse::<SandboxId>() else { return };
        if let Ok(launcher) = &self.launcher {
            self.disk.wake(launcher, &self.host);
        }
        let mut links = locked(&self.links);
        let id = ProviderId(place.name.clone());
        if links.get(&id).is_some_and(|link| !link.is_finished()) {
            return;
        }
        let kept = tokio::spawn(link::keep(sandbox, place.socket.clone(), Arc::clone(&self.host)));
        links.insert(id, kept.abort_handle());
    }

    /// Lets go of every worker; they live on, and are found again.
    pub fn disconnect_all(&self) {
        self.disk.stop();
        for (_, link) in locked(&self.links).drain() {
            link.abort();
        }
    }

    fn disconnect(&self, id: &ProviderId) {
        if let Some(link) = locked(&self.links).remove(id) {
            link.abort();
        }
    }

    /// What a dead worker left behind. How it ended is unknown when an earlier server started it.
    pub async fn remains(&self, sandbox: SandboxId) -> Result<Remains, Error> {
        let place = self.place(&ProviderId(sandbox.to_string())).await?;
        Ok(Remains { spool: place.spool, exit: place.exit.map_or(Exit::Unknown, exit) })
    }

    async fn make(&self, spec: &CreateSpec) -> Result<Found, Error> {
        let name = spec.identity.sandbox.to_string();
        let turn = Arc::clone(locked(&self.making).entry(name.clone()).or_default());
        let made = {
            let _turn = turn.lock().await;
            self.make_once(&name, spec).await
        };
        locked(&self.making).remove(&name);
        made
    }

    async fn make_once(&self, name: &str, spec: &CreateSpec) -> Result<Found, Error> {
        let id = ProviderId(name.to_owned());
        match self.place(&id).await {
            // It was made before, and perhaps has ended since: what it left is for the server to take.
            Ok(place) if place.alive || has_spooled(&place) => {
                if place.alive {
                    self.connect(&place);
                }
                return Ok(found(&place));
            }
            // A fork has its files, and only waits to be started.
            Ok(place) if spec.settings.forked_from.is_some() && !place.started => {
                let name = place.name;
                let place = self.ask(move |launcher| launcher.start_worker(&name)).await?;
                self.connect(&place);
                return Ok(found(&place));
            }
            Ok(_) | Err(Error::Gone) if spec.settings.forked_from.is_some() => {
                return Err(Error::Refused { detail: "the files that it was forked with are gone; fork again".into() });
            }
            Err(Error::Gone) => {}
            Err(error @ Error::Unreachable { .. }) => return Err(error),
            // Half made: begun again from nothing.
            Ok(_) | Err(_) => self.destroy(&id).await?,
        }
        self.has_tier(spec.settings.isolation).await?;
        let made = self.make_anew(name.to_owned(), spec).await;
        if made.is_err() {
            // The reason for the failure is the one to tell; what can't be removed now is swept later.
            drop(self.destroy(&id).await);
        }
        let place = made?;
        self.connect(&place);
        Ok(found(&place))
    }

    async fn make_anew(&self, name: String, spec: &CreateSpec) -> Result<Place, Error> {
        let jail = wanted(spec);
        self.ask(move |launcher| launcher.prepare(&jail)).await?;
        if let Some(source) = spec.source.clone() {
            let workspace = name.clone();
            self.ask(move |launcher| Ok(git::take_in(launcher, &workspace, &source))).await??;
        }
        self.ask(move |launcher| launcher.start_worker(&name)).await
    }
}

/// Whether a worker ever said anything in it. One that was killed on its way in has not.
fn has_spooled(place: &Place) -> bool {
    place.started && std::fs::read_dir(&place.spool).is_ok_and(|mut entries| entries.next().is_some())
}

fn wanted(spec: &CreateSpec) -> Spec {
    Spec {
        name: spec.identity.sandbox.to_string(),
        labels: all_labels(spec),
        limits: limits(spec.settings.resources),
        hostname: "atoll".to_owned(),
        image: spec.settings.image.clone(),
        snapshot: spec.settings.snapshot.clone(),
    }
}

pub(crate) fn limits(asked: Option<Resources>) -> Limits {
    let (asked, standard) = (asked.unwrap_or_default(), Limits::default());
    // Far inside what f64 holds exactly; nonsense saturates.
    let whole = |figure: f64| figure as u64;
    Limits {
        memory_bytes: asked.memory_gb.map_or(standard.memory_bytes, |gigabytes| whole(gigabytes * f64::from(1 << 30))),
        cpu_milli: asked.cpu.map_or(standard.cpu_milli, |cpu| u32::try_from(whole(cpu * 1000.0)).unwrap_or(u32::MAX)),
        pids: asked.pids.unwrap_or(standard.pids),
        disk_bytes: asked.disk_gb.map_or(standard.disk_bytes, |gigabytes| whole(gigabytes * f64::from(1 << 30))),
        ..standard
    }
}

/// The launcher, or another in its place when it has ended: what it knew is on disk.
fn living(launcher: &Mutex<Arc<Launcher>>) -> Result<Arc<Launcher>, atoll_jail::Error> {
    let mut current = locked(launcher);
    if current.is_gone() {
        tracing::warn!("the launcher of local sandboxes has ended; starting another");
        *current = Arc::new(Launcher::start(current.options().clone())?);
    }
    Ok(Arc::clone(&current))
}

/// Only names of our own form reach the file system.
fn name(id: &ProviderId) -> Result<String, Error> {
    id.0.parse::<SandboxId>().map(|sandbox| sandbox.to_string()).map_err(|_| Error::Gone)
}

fn failure(error: &atoll_jail::Error) -> Error {
    use atoll_jail::Error as E;
    let detail = error.to_string();
    match error {
        E::Unknown { .. } => Error::Gone,
        E::Busy { .. } => Error::Busy { detail },
        // What is in the way may be gone in a moment.
        E::Ending { .. }
        | E::Alive { .. }
        | E::StillAlive { .. }
        | E::NotPaused { .. }
        | E::NotRemoved { .. }
        | E::File { .. }
        | E::Gone
        | E::Timeout { .. } => Error::Unreachable { detail },
        _ => Error::Refused { detail },
    }
}

fn exit(exit: atoll_jail::Exit) -> Exit {
    match exit {
        atoll_jail::Exit::Exited(code) => Exit::Exited { code },
        atoll_jail::Exit::Signalled(signal) => Exit::Signalled { signal },
        atoll_jail::Exit::OutOfMemory => Exit::OutOfMemory,
        atoll_jail::Exit::TimedOut => Exit::TimedOut,
        atoll_jail::Exit::Unknown => Exit::Unknown,
    }
}

fn found(place: &Place) -> Found {
    Found {
        id: ProviderId(place.name.clone()),
        state: match (place.alive, place.paused) {
            (true, false) => ProviderState::Running,
            (true, true) => ProviderState::Paused,
            (false, _) => ProviderState::Stopped,
        },
        epoch: EPOCH,
        labels: place.labels.clone(),
        expires_at: None,
        notices: notices::notices(&place.enforced),
    }
}

impl Provider for Local {
    fn kind(&self) -> ProviderKind {
        ProviderKind::Local
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolation: can::Isolation::Namespace,
            listing: can::Listing::Exact,
            pause: can::PauseAbility::Memory,
            fork: can::ForkAbility::Idle,
            snapshot: can::SnapshotAbility::Live,
            egress: can::Egress::Domains,
            output: can::OutputAbility::Split,
            attach: can::AttachAbility::FromCursor,
            files: can::FileAbility::Root,
            preview: can::PreviewAbility::None,
            max_memory_gb: None,
            max_cpu: None,
            max_disk_gb: None,
        }
    }

    /// The sandbox's own id is the key: there can only be one of it on this machine.
    fn create<'a>(&'a self, spec: &'a CreateSpec, _key: &'a str) -> Answer<'a, Found> {
        Box::pin(self.make(spec))
    }

    fn get<'a>(&'a self, id: &'a ProviderId) -> BoxFuture<'a, Lookup> {
        Box::pin(async move {
            match self.place(id).await {
                Ok(place) => {
                    if place.alive {
                        self.connect(&place);
                    }
                    Lookup::Found(found(&place))
                }
                Err(Error::Gone) => Lookup::Gone,
                Err(error) => Lookup::Unreachable { detail: error.to_string() },
            }
        })
    }

    fn list<'a>(&'a self, cursor: Option<&'a str>) -> Answer<'a, Page> {
        Box::pin(async move {
            let places = self.ask(|launcher| launcher.list()).await?;
            let all: BTreeMap<ProviderId, Found> =
                places.iter().map(|place| (ProviderId(place.name.clone()), found(place))).collect();
            Ok(crate::page(&all, cursor, Found::clone))
        })
    }

    fn find<'a>(&'a self, labels: &'a BTreeMap<String, String>) -> Answer<'a, Vec<Found>> {
        Box::pin(async move {
            let places = self.ask(|launcher| launcher.list()).await?;
            let fitting = places.iter().filter(|place| carries(&place.labels, labels));
            Ok(fitting
                .map(|place| {
                    if place.alive {
                        self.connect(place);
                    }
                    found(place)
                })
                .collect())
        })
    }

    fn destroy<'a>(&'a self, id: &'a ProviderId) -> Answer<'a, ()> {
        Box::pin(async move {
            let Ok(name) = name(id) else { return Ok(()) };
            self.disconnect(id);
            self.ask(move |launcher| launcher.destroy(&name)).await
        })
    }

    /// Ends every process; files stay. The gentle way is the server's, over the worker's link.
    fn stop<'a>(&'a self, id: &'a ProviderId, _mode: StopMode) -> Answer<'a, ()> {
        Box::pin(async move {
            let name = self.place(id).await?.name;
            self.ask(move |launcher| launcher.kill(&name)).await
        })
    }

    fn pause<'a>(&'a self, id: &'a ProviderId) -> Answer<'a, ()> {
        Box::pin(async move {
            let name = self.place(id).await?.name;
            self.ask(move |launcher| launcher.pause(&name)).await.map(drop)
        })
    }

    fn resume<'a>(&'a self, id: &'a ProviderId) -> Answer<'a, Found> {
        Box::pin(async move {
            let name = self.place(id).await?.name;
            self.ask(move |launcher| launcher.resume(&name)).await.map(|place| found(&place))
        })
    }

    fn exec<'a>(&'a self, id: &'a ProviderId, spec: &'a ExecSpec) -> Answer<'a, ExecRef> {
        Box::pin(async move {
            let place = self.place(id).await?;
            if !place.alive {
                return Err(Error::Refused { detail: "nothing runs in this sandbox any more".into() });
            }
            if place.paused {
                return Err(Error::Refused {
                    detail: "this sandbox is paused: resume it to run something in it".into(),
                });
            }
            if spec.as_root {
                let launcher = match &self.launcher {
                    Ok(launcher) => Arc::clone(launcher),
                    Err(why) => return Err(Error::Refused { detail: why.clone() }),
                };
                let found = tokio::task::spawn_blocking(move || living(&launcher)).await;
                let launcher = match found {
                    Ok(launcher) => launcher.map_err(|error| failure(&error))?,
                    Err(error) => return Err(Error::Unreachable { detail: error.to_string() }),
                };
                let connection = root::serve(launcher, &place)?;
                return self.commands.start_over(id, EPOCH, connection, spec).await;
            }
            self.commands.start(id, EPOCH, &place.socket, spec).await
        })
    }

    fn snapshot<'a>(&'a self, id: &'a ProviderId, name: &'a str) -> Answer<'a, SnapshotRef> {
        Box::pin(self.keep_files(id, name))
    }

    fn snapshots(&self) -> Answer<'_, Vec<SnapshotRef>> {
        Box::pin(self.list_snapshots())
    }

    fn forget_snapshot<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        let name = name.to_owned();
        Box::pin(self.forget(move |launcher| launcher.forget_snapshot(&name)))
    }

    fn images(&self) -> Answer<'_, Vec<ImageRef>> {
        Box::pin(self.list_images())
    }

    fn import_image<'a>(&'a self, name: &'a str, archive: ByteStream) -> Answer<'a, ImageRef> {
        Box::pin(self.take_image(name, archive))
    }

    fn forget_image<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        let name = name.to_owned();
        Box::pin(self.forget(move |launcher| launcher.forget_image(&name)))
    }

    fn fork<'a>(&'a self, id: &'a ProviderId, spec: &'a CreateSpec, _key: &'a str) -> Answer<'a, Found> {
        Box::pin(self.fork_files(id, spec))
    }

    fn attach<'a>(&'a self, exec: &'a ExecRef, cursor: u64) -> Answer<'a, ExecStream> {
        Box::pin(async move { self.commands.attach(exec, cursor) })
    }

    fn write<'a>(&'a self, exec: &'a ExecRef, data: Bytes) -> Answer<'a, ()> {
        Box::pin(async move { self.commands.write(exec, &data).await })
    }

    fn close_stdin<'a>(&'a self, exec: &'a ExecRef) -> Answer<'a, ()> {
        Box::pin(async move { self.commands.ask(exec, Ask::CloseStdin) })
    }

    fn signal<'a>(&'a self, exec: &'a ExecRef, signal: i32) -> Answer<'a, ()> {
        Box::pin(async move { self.commands.ask(exec, Ask::Signal(signal)) })
    }

    fn upload<'a>(
        &'a self,
        id: &'a ProviderId,
        transfer: &'a Transfer,
        data: ByteStream,
    ) -> Answer<'a, Worked<Uploaded>> {
        Box::pin(async move { files::upload(&self.worker(id).await?, transfer, data).await })
    }

    fn download<'a>(&'a self, id: &'a ProviderId, transfer: &'a Transfer) -> Answer<'a, Worked<Download>> {
        Box::pin(async move { files::download(&self.worker(id).await?, transfer).await })
    }

    fn files<'a>(&'a self, id: &'a ProviderId, job: &'a FileJob) -> Answer<'a, Worked<FileDone>> {
        Box::pin(async move { files::run(&self.worker(id).await?, job).await })
    }

    fn resize<'a>(&'a self, exec: &'a ExecRef, size: Size) -> Answer<'a, ()> {
        Box::pin(async move { self.commands.resize(exec, size) })
    }

    fn execs<'a>(&'a self, id: &'a ProviderId) -> Answer<'a, Vec<ExecInfo>> {
        Box::pin(async move { Ok(self.commands.list(id)) })
    }

    fn git<'a>(&'a self, id: &'a ProviderId, job: &'a GitJob, output: File) -> Answer<'a, GitDone> {
        Box::pin(async move {
            let (name, job) = (self.place(id).await?.name, job.clone());
            self.ask(move |launcher| Ok(git::run(launcher, &name, &job, output))).await?
        })
    }

    /// What leaves a sandbox passes the server's proxy, which decides by what is stored: here is nothing to change.
    fn set_network<'a>(&'a self, id: &'a ProviderId, _network: &'a Network) -> Answer<'a, ()> {
        Box::pin(async move { self.place(id).await.map(drop) })
    }

    fn resources<'a>(&'a self, id: &'a ProviderId) -> Answer<'a, Usage> {
        Box::pin(async move {
            let name = self.place(id).await?.name;
            let (usage, disk) = self.ask(move |launcher| Ok((launcher.usage(&name)?, launcher.disk(&name)?))).await?;
            Ok(Usage {
                cpu_seconds: Duration::from_micros(usage.cpu_microseconds.unwrap_or(0)).as_secs_f64(),
                memory_bytes: usage.memory.unwrap_or(0),
                pids: usage.processes.unwrap_or(0),
                disk_bytes: disk.bytes,
                ..Usage::default()
            })
        })
    }
}
