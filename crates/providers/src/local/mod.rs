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
mod provider;
mod root;
mod tier;

use crate::inside::exec::Commands;
use crate::inside::{LinkHost, Remains, link};
use crate::turns::Turns;
use crate::{all_labels, locked};
use atoll_core::id::{ProjectId, SandboxId};
use atoll_core::provider::{CreateSpec, Error, Exit, Found, Provider, ProviderId, ProviderState, Shown};
use atoll_core::sandbox::{IsolationTier, Resources};
use atoll_jail::{Launcher, Limits, Place, Spec};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tokio::task::AbortHandle;

/// A local sandbox is never replaced behind its id.
const EPOCH: u64 = 1;

pub struct Local {
    /// Or why there is none, in a sentence.
    launcher: Result<Arc<Mutex<Arc<Launcher>>>, String>,
    host: Arc<dyn LinkHost>,
    links: Mutex<HashMap<ProviderId, Link>>,
    /// One at a time makes a sandbox.
    making: Turns,
    commands: Arc<Commands>,
    disk: disk::Watch,
    tier: tier::Demand,
}

/// To a worker, for as long as it lives.
struct Link {
    task: AbortHandle,
    socket: PathBuf,
}

impl Local {
    /// `host` answers the workers.
    pub fn new(launcher: Result<Arc<Launcher>, String>, host: Arc<dyn LinkHost>) -> Self {
        let launcher = launcher.map(|launcher| Arc::new(Mutex::new(launcher)));
        Self {
            launcher,
            host,
            links: Mutex::default(),
            making: Turns::default(),
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
        if let Some(socket) = self.connected(id) {
            return Ok(socket);
        }
        let place = self.place(id).await?;
        if !place.alive {
            let detail = "nothing runs in this sandbox any more, so its files can't be reached";
            return Err(Error::Refused { detail: detail.into() });
        }
        if place.paused {
            return Err(paused());
        }
        Ok(place.socket)
    }

    /// The socket of a worker that was alive and went on when it was last heard of: whoever dials it learns whether
    /// that is still so, with no need to ask the launcher before.
    fn connected(&self, id: &ProviderId) -> Option<PathBuf> {
        if self.commands.stands(id) {
            return None;
        }
        let links = locked(&self.links);
        links.get(id).filter(|link| !link.task.is_finished()).map(|link| link.socket.clone())
    }

    /// Sees to it that a living worker is connected.
    fn connect(&self, place: &Place) {
        let Ok(sandbox) = place.name.parse::<SandboxId>() else { return };
        if let Ok(launcher) = &self.launcher {
            self.disk.wake(launcher, &self.host);
        }
        let mut links = locked(&self.links);
        let id = ProviderId(place.name.clone());
        if links.get(&id).is_some_and(|link| !link.task.is_finished()) {
            return;
        }
        if place.paused {
            self.commands.found_paused(&id);
        }
        let kept = tokio::spawn(link::keep(sandbox, place.socket.clone(), Arc::clone(&self.host)));
        links.insert(id, Link { task: kept.abort_handle(), socket: place.socket.clone() });
    }

    /// Lets go of every worker; they live on, and are found again.
    pub fn disconnect_all(&self) {
        self.disk.stop();
        for (_, link) in locked(&self.links).drain() {
            link.task.abort();
        }
    }

    fn disconnect(&self, id: &ProviderId) {
        if let Some(link) = locked(&self.links).remove(id) {
            link.task.abort();
        }
    }

    /// What a dead worker left behind. How it ended is unknown when an earlier server started it.
    pub async fn remains(&self, sandbox: SandboxId) -> Result<Remains, Error> {
        let name = sandbox.to_string();
        let place = self.ask(move |launcher| launcher.spool(&name)).await?;
        Ok(Remains { spool: place.spool, exit: place.exit.map_or(Exit::Unknown, exit) })
    }

    async fn make(&self, spec: &CreateSpec) -> Result<Found, Error> {
        let name = spec.identity.sandbox.to_string();
        self.making.take(spec.identity.sandbox, self.make_once(&name, spec)).await
    }

    /// What the launcher has of a sandbox. That it could not be asked says nothing about that.
    async fn standing(&self, name: &str) -> Result<Standing, Error> {
        let name = name.to_owned();
        self.ask(move |launcher| match launcher.find(&name) {
            Ok(Some(place)) => Ok(Standing::There(Box::new(place))),
            Ok(None) => Ok(Standing::Absent),
            Err(atoll_jail::Error::HalfMade { .. }) => Ok(Standing::HalfMade),
            Err(error) => Err(error),
        })
        .await
    }

    async fn make_once(&self, name: &str, spec: &CreateSpec) -> Result<Found, Error> {
        let id = ProviderId(name.to_owned());
        let is_fork = spec.settings.forked_from.is_some();
        match self.standing(name).await? {
            // It was made before, and perhaps has ended since: what it left is for the server to take. A worker that
            // was killed on its way in has left nothing.
            Standing::There(place) if place.alive || (place.started && place.spooled) => {
                if place.alive {
                    self.connect(&place);
                }
                return Ok(found(&place));
            }
            // A fork has its files, and only waits to be started.
            Standing::There(place) if is_fork => {
                let place = self.ask(move |launcher| launcher.start_worker(&place.name)).await?;
                self.connect(&place);
                return Ok(found(&place));
            }
            Standing::Absent | Standing::HalfMade if is_fork => {
                return Err(Error::Refused { detail: "the files that it was forked with are gone; fork again".into() });
            }
            Standing::Absent => {}
            // Nobody has worked there: begun again from nothing.
            Standing::There(_) | Standing::HalfMade => self.destroy(&id).await?,
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

/// How far a sandbox has come.
enum Standing {
    Absent,
    HalfMade,
    There(Box<Place>),
}

fn wanted(spec: &CreateSpec) -> Spec {
    Spec {
        name: spec.identity.sandbox.to_string(),
        labels: all_labels(spec),
        limits: limits(spec.settings.resources),
        hostname: "atoll".to_owned(),
        image: spec.settings.image.clone(),
        snapshot: spec.settings.snapshot.clone(),
        protected: spec.settings.protected.clone(),
        programs: spec.programs.iter().map(shown).collect(),
    }
}

fn shown(shown: &Shown) -> atoll_jail::Shown {
    atoll_jail::Shown { from: shown.from.clone(), at: shown.at.clone() }
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
    let detail = without_projects(&error.to_string());
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
        | E::Locked { .. }
        | E::Launcher { .. }
        | E::Protocol { .. }
        | E::KeeperGone
        | E::Gone
        | E::Timeout { .. } => Error::Unreachable { detail },
        _ => Error::Refused { detail },
    }
}

/// The launcher knows snapshots by their project and their name; who asks knows them by their name.
fn without_projects(text: &str) -> String {
    let words = text.split(' ').map(|word| match word.split_once('.') {
        Some((project, name)) if project.parse::<ProjectId>().is_ok() => name,
        Some(_) | None => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Whoever would do it stands still.
fn paused() -> Error {
    Error::Refused { detail: "this sandbox is paused: resume it first".into() }
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
        notices: notices::notices(&place.enforced).into_iter().chain(notices::unprotected(place)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_that_cannot_be_asked_is_no_refusal() {
        for error in [
            atoll_jail::Error::Locked { path: "/data/sandboxes/.lock".into() },
            atoll_jail::Error::KeeperGone,
            atoll_jail::Error::Gone,
        ] {
            assert!(failure(&error).is_worth_a_retry(), "{error}");
        }
    }

    #[test]
    fn a_snapshot_is_named_as_whoever_asks_named_it() {
        let project = ProjectId::new();
        let said = |name: String| failure(&atoll_jail::Error::NotKept { kind: atoll_jail::Kept::Snapshot, name });
        let plain = "no snapshot is named v1.2: `atoll snapshot ls` shows those that there are";
        assert_eq!(said(format!("{project}.v1.2")), Error::Refused { detail: plain.into() });
        assert_eq!(said("v1.2".into()), Error::Refused { detail: plain.into() });
    }
}
