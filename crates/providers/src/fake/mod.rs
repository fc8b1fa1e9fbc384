//! Sandboxes in memory, for simulations and load: a file tree, a scripted process table and a
//! worker that obeys the demo agent's lines. It runs no agent and isolates nothing, and it is
//! taken only when it is named.
//!
//! Everything ends with the process: an id that this one didn't make is gone. Every task belongs
//! to a sandbox and ends when it is destroyed or the provider is dropped.

mod desk;
mod diff;
mod faults;
mod files;
mod ground;
mod process;
mod script;
mod tool;
mod transfer;
mod tree;
mod turn;
mod worker;

pub use faults::{FakeOptions, Fault, FaultAt, FaultKind};

use crate::{all_labels, carries, locked};
use atoll_core::BoxFuture;
use atoll_core::provider::{
    Answer, ByteStream, Capabilities, CreateSpec, Download, Error, ExecRef, ExecSpec, ExecStream, FileDone, FileJob,
    Found, Lookup, Page, Provider, ProviderId, ProviderState, SnapshotRef, Transfer, Uploaded, Usage, Worked,
    capabilities as can,
};
use atoll_core::sandbox::ProviderKind;
use atoll_core::time::{Clock, SystemClock};
use atoll_protocol::link::WorkerLink;
use bytes::Bytes;
use desk::Desk;
use faults::{Dice, Mishap};
use ground::{Place, Task};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use tree::Tree;
use worker::Worker;

/// A fake sandbox is never replaced behind its id.
const EPOCH: u64 = 1;

pub struct Fake {
    options: FakeOptions,
    link: Arc<dyn WorkerLink>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sandboxes: BTreeMap<ProviderId, Sandbox>,
    /// By the key of their creation, from the first time it was asked for.
    births: HashMap<String, Birth>,
    asked: u64,
    made: u64,
    snapshots: BTreeMap<String, Snapshot>,
}

struct Birth {
    dice: Arc<Dice>,
    made: Option<ProviderId>,
}

struct Sandbox {
    found: Found,
    key: String,
    place: Arc<Place>,
    dice: Arc<Dice>,
    worker: Task,
}

struct Snapshot {
    of: ProviderId,
    tree: Tree,
}

impl Sandbox {
    fn found(&self) -> Found {
        let state = if self.place.ground.is_frozen() { ProviderState::Paused } else { ProviderState::Running };
        Found { state, ..self.found.clone() }
    }
}

fn lost(detail: &str) -> Error {
    Error::Unreachable { detail: format!("a seeded fault: {detail}") }
}

fn refused(detail: impl ToString) -> Error {
    Error::Refused { detail: detail.to_string() }
}

impl Fake {
    /// `link` is the way of every sandbox's worker to the server.
    pub fn new(options: FakeOptions, link: Arc<dyn WorkerLink>) -> Self {
        Self { options, link, clock: Arc::new(SystemClock::start()), state: Mutex::default() }
    }

    /// The same with another clock for the times of events.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    fn dice_of_birth(&self, key: &str) -> Arc<Dice> {
        let mut state = locked(&self.state);
        if let Some(birth) = state.births.get(key) {
            return birth.dice.clone();
        }
        state.asked += 1;
        let dice = Arc::new(Dice::new(&self.options, state.asked));
        state.births.insert(key.to_owned(), Birth { dice: dice.clone(), made: None });
        dice
    }

    /// `tree` gives the files to begin with, or says why there can't be any.
    async fn make(
        &self,
        spec: &CreateSpec,
        key: &str,
        tree: impl Fn(&State) -> Result<Tree, Error> + Send,
    ) -> Result<Found, Error> {
        let dice = self.dice_of_birth(key);
        match dice.roll(FaultAt::Create) {
            None => self.make_now(spec, key, &tree),
            Some(Mishap::Fail) => Err(lost("the sandbox was not made")),
            Some(Mishap::Delay(span)) => {
                tokio::time::sleep(span).await;
                self.make_now(spec, key, &tree)
            }
            Some(Mishap::Drop) => {
                self.make_now(spec, key, &tree)?;
                Err(lost("the answer got lost"))
            }
            Some(Mishap::Duplicate) => {
                self.make_now(spec, key, &tree)?;
                self.make_now(spec, key, &tree)
            }
            Some(Mishap::Crash) => {
                let found = self.make_now(spec, key, &tree)?;
                if let Some(sandbox) = locked(&self.state).sandboxes.get(&found.id) {
                    sandbox.worker.stop();
                }
                Ok(found)
            }
        }
    }

    fn make_now(
        &self,
        spec: &CreateSpec,
        key: &str,
        tree: impl Fn(&State) -> Result<Tree, Error>,
    ) -> Result<Found, Error> {
        let dice = self.dice_of_birth(key);
        let mut state = locked(&self.state);
        let made = state.births.get(key).and_then(|birth| birth.made.as_ref());
        if let Some(sandbox) = made.and_then(|id| state.sandboxes.get(id)) {
            return Ok(sandbox.found());
        }
        let place = Arc::new(Place::new(tree(&state)?));
        state.made += 1;
        let id = ProviderId(format!("fake_{}_{}", spec.identity.sandbox, state.made));
        let running = ProviderState::Running;
        let found = Found {
            id: id.clone(),
            state: running,
            epoch: EPOCH,
            labels: all_labels(spec),
            expires_at: None,
            notices: Vec::new(),
        };
        let worker = Worker {
            sandbox: spec.identity.sandbox,
            place: place.clone(),
            link: self.link.clone(),
            dice: dice.clone(),
            desk: Desk::new(self.clock.clone()),
        };
        let worker = Task::spawn(worker.run());
        let sandbox = Sandbox { found: found.clone(), key: key.to_owned(), place, dice: dice.clone(), worker };
        state.births.insert(key.to_owned(), Birth { dice, made: Some(id.clone()) });
        state.sandboxes.insert(id, sandbox);
        Ok(found)
    }

    fn place(&self, id: &ProviderId) -> Result<Arc<Place>, Error> {
        locked(&self.state).sandboxes.get(id).map(|sandbox| sandbox.place.clone()).ok_or(Error::Gone)
    }

    fn command(&self, exec: &ExecRef) -> Result<(Arc<Place>, u64), Error> {
        let place = self.place(&exec.sandbox)?;
        let id = exec.exec.parse().ok().filter(|_| exec.epoch == EPOCH).ok_or(Error::Gone)?;
        Ok((place, id))
    }

    /// Already gone is done.
    fn remove(&self, id: &ProviderId) {
        let mut state = locked(&self.state);
        if let Some(sandbox) = state.sandboxes.remove(id) {
            state.births.remove(&sandbox.key);
            sandbox.worker.stop();
            sandbox.place.table.kill_all();
        }
    }
}

impl Provider for Fake {
    fn kind(&self) -> ProviderKind {
        ProviderKind::Fake
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolation: can::Isolation::Simulated,
            listing: can::Listing::Exact,
            pause: can::PauseAbility::Memory,
            fork: can::ForkAbility::Live,
            snapshot: can::SnapshotAbility::Live,
            egress: can::Egress::None,
            output: can::OutputAbility::Split,
            attach: can::AttachAbility::FromCursor,
            files: can::FileAbility::Workspace,
            preview: can::PreviewAbility::None,
            protected: can::ProtectedPaths::None,
            max_memory_gb: None,
            max_cpu: None,
            max_disk_gb: None,
        }
    }

    fn create<'a>(&'a self, spec: &'a CreateSpec, key: &'a str) -> Answer<'a, Found> {
        let tree = |state: &State| match &spec.settings.snapshot {
            None => Ok(Tree::default()),
            Some(name) => match state.snapshots.get(name) {
                Some(snapshot) => Ok(snapshot.tree.clone()),
                None => Err(refused(format!("there is no snapshot `{name}`"))),
            },
        };
        Box::pin(async move {
            crate::demands_no_tier(self.kind(), spec)?;
            crate::protects_nothing(self.kind(), spec)?;
            crate::shows_nothing(self.kind(), spec)?;
            self.make(spec, key, tree).await
        })
    }

    fn get<'a>(&'a self, id: &'a ProviderId) -> BoxFuture<'a, Lookup> {
        Box::pin(async move {
            match locked(&self.state).sandboxes.get(id) {
                Some(sandbox) => Lookup::Found(sandbox.found()),
                None => Lookup::Gone,
            }
        })
    }

    fn list<'a>(&'a self, cursor: Option<&'a str>) -> Answer<'a, Page> {
        Box::pin(async move { Ok(crate::page(&locked(&self.state).sandboxes, cursor, Sandbox::found)) })
    }

    fn find<'a>(&'a self, labels: &'a BTreeMap<String, String>) -> Answer<'a, Vec<Found>> {
        Box::pin(async move {
            let state = locked(&self.state);
            let fitting = state.sandboxes.values().filter(|sandbox| carries(&sandbox.found.labels, labels));
            Ok(fitting.map(Sandbox::found).collect())
        })
    }

    fn destroy<'a>(&'a self, id: &'a ProviderId) -> Answer<'a, ()> {
        Box::pin(async move {
            let dice = locked(&self.state).sandboxes.get(id).map(|sandbox| sandbox.dice.clone());
            match dice.and_then(|dice| dice.roll(FaultAt::Destroy)) {
                None | Some(Mishap::Duplicate) => {}
                Some(Mishap::Delay(span)) => tokio::time::sleep(span).await,
                Some(Mishap::Fail) => return Err(lost("the sandbox is still there")),
                Some(Mishap::Drop) => {
                    self.remove(id);
                    return Err(lost("the answer got lost"));
                }
                Some(Mishap::Crash) => {
                    if let Some(sandbox) = locked(&self.state).sandboxes.get(id) {
                        sandbox.worker.stop();
                    }
                    return Err(lost("the worker died, the sandbox is still there"));
                }
            }
            self.remove(id);
            Ok(())
        })
    }

    fn pause<'a>(&'a self, id: &'a ProviderId) -> Answer<'a, ()> {
        Box::pin(async move {
            self.place(id)?.ground.freeze(true);
            Ok(())
        })
    }

    fn resume<'a>(&'a self, id: &'a ProviderId) -> Answer<'a, Found> {
        Box::pin(async move {
            let state = locked(&self.state);
            let sandbox = state.sandboxes.get(id).ok_or(Error::Gone)?;
            sandbox.place.ground.freeze(false);
            Ok(sandbox.found())
        })
    }

    fn exec<'a>(&'a self, id: &'a ProviderId, spec: &'a ExecSpec) -> Answer<'a, ExecRef> {
        Box::pin(async move {
            if spec.terminal.is_some() {
                return Err(Error::Unsupported { provider: self.kind(), ability: "open terminals" });
            }
            let place = self.place(id)?;
            if place.ground.is_frozen() {
                return Err(refused("the sandbox is paused"));
            }
            let exec = place.table.spawn(&place.ground, spec).to_string();
            Ok(ExecRef { sandbox: id.clone(), exec, epoch: EPOCH })
        })
    }

    fn attach<'a>(&'a self, exec: &'a ExecRef, cursor: u64) -> Answer<'a, ExecStream> {
        Box::pin(async move {
            let (place, id) = self.command(exec)?;
            place.table.attach(id, cursor)
        })
    }

    fn write<'a>(&'a self, exec: &'a ExecRef, data: Bytes) -> Answer<'a, ()> {
        Box::pin(async move {
            let (place, id) = self.command(exec)?;
            place.table.write(id, data)
        })
    }

    fn close_stdin<'a>(&'a self, exec: &'a ExecRef) -> Answer<'a, ()> {
        Box::pin(async move {
            let (place, id) = self.command(exec)?;
            place.table.close_stdin(id)
        })
    }

    fn signal<'a>(&'a self, exec: &'a ExecRef, signal: i32) -> Answer<'a, ()> {
        Box::pin(async move {
            let (place, id) = self.command(exec)?;
            place.table.signal(id, signal)
        })
    }

    fn upload<'a>(
        &'a self,
        id: &'a ProviderId,
        transfer: &'a Transfer,
        data: ByteStream,
    ) -> Answer<'a, Worked<Uploaded>> {
        Box::pin(async move {
            let (path, range) = transfer::file(transfer)?;
            let place = self.place(id)?;
            transfer::upload(&place, path, range, data).await
        })
    }

    fn download<'a>(&'a self, id: &'a ProviderId, transfer: &'a Transfer) -> Answer<'a, Worked<Download>> {
        Box::pin(async move {
            let (path, range) = transfer::file(transfer)?;
            let place = self.place(id)?;
            Ok(transfer::download(&place, path, range))
        })
    }

    fn files<'a>(&'a self, id: &'a ProviderId, job: &'a FileJob) -> Answer<'a, Worked<FileDone>> {
        Box::pin(async move { Ok(files::run(&mut locked(&self.place(id)?.ground.tree), job)) })
    }

    fn snapshot<'a>(&'a self, id: &'a ProviderId, name: &'a str) -> Answer<'a, SnapshotRef> {
        Box::pin(async move {
            let tree = locked(&self.place(id)?.ground.tree).clone();
            let mut state = locked(&self.state);
            // Asked again by the same sandbox it is taken again; another's is never overwritten.
            if state.snapshots.get(name).is_some_and(|taken| taken.of != *id) {
                return Err(refused(format!("there is a snapshot `{name}` of another sandbox")));
            }
            let bytes = Some(tree.bytes() as u64);
            state.snapshots.insert(name.to_owned(), Snapshot { of: id.clone(), tree });
            Ok(SnapshotRef { name: name.to_owned(), bytes, image: None, created_at: None })
        })
    }

    fn fork<'a>(&'a self, id: &'a ProviderId, spec: &'a CreateSpec, key: &'a str) -> Answer<'a, Found> {
        let tree = |state: &State| match state.sandboxes.get(id) {
            Some(parent) => Ok(locked(&parent.place.ground.tree).clone()),
            None => Err(Error::Gone),
        };
        Box::pin(self.make(spec, key, tree))
    }

    fn resources<'a>(&'a self, id: &'a ProviderId) -> Answer<'a, Usage> {
        Box::pin(async move {
            let place = self.place(id)?;
            let bytes = locked(&place.ground.tree).bytes() as u64;
            // Its files are in memory; the worker counts as one process.
            let pids = place.table.running() + 1;
            Ok(Usage { cpu_seconds: 0.0, memory_bytes: bytes, disk_bytes: bytes, pids, network_bytes: 0 })
        })
    }
}
