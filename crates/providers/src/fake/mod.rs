//! Sandboxes in memory, for simulations and load tests: a file tree, a scripted process table, and a worker with the real
//! dispatcher and the demo agent. It runs no programs, isolates nothing, and must be selected by name.
//!
//! Nothing outlives the process. Every task belongs to a sandbox and ends when the sandbox is destroyed or the provider
//! is dropped.

mod diff;
mod environment;
mod executor;
mod fake_link;
mod faults;
mod file_jobs;
mod memory_host;
mod process;
mod script;
mod transfer;
mod tree;
mod worker;

pub use atoll_core::fake_options::{FakeOptions, Fault, FaultKind, FaultPoint};

use crate::{all_labels, has_labels, lock_state};
use atoll_core::provider::{
    ByteStream, Capabilities, CreateSpec, Download, Error, ExecRef, ExecSpec, ExecStream, FileOperation,
    FileOperationOutput, FileResult, ImplementProvider, ProviderId, ProviderPage, ProviderSandbox, ProviderState,
    ReadScope, ResourceUsage, SandboxLookup, SnapshotRef, Transfer, UploadSummary, capabilities as can,
};
use atoll_core::sandbox::ProviderKind;
use atoll_protocol::link::WorkerLink;
use bytes::Bytes;
use environment::{SandboxRuntime, Task};
use fake_link::FakeLink;
use faults::{FaultSource, InjectedFault};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use tree::Tree;

pub const CAPABILITIES: Capabilities = Capabilities {
    isolation: can::Isolation::Simulated,
    listing: can::Listing::Exact,
    pause: can::PauseAbility::Memory,
    fork: can::ForkAbility::Live,
    snapshot: can::SnapshotAbility::Live,
    output: can::OutputAbility::Split,
    attach: can::AttachAbility::FromCursor,
    files: can::FileAbility::Workspace,
    worker: can::WorkerHost::Provider,
    ..Capabilities::NONE
};

pub struct Fake {
    options: FakeOptions,
    link: Arc<dyn WorkerLink>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sandboxes: BTreeMap<ProviderId, FakeSandbox>,
    /// By idempotency key, from the first request.
    create_attempts: HashMap<String, CreateAttempt>,
    attempt_count: u64,
    created_count: u64,
    snapshots: BTreeMap<String, FakeSnapshot>,
}

struct CreateAttempt {
    faults: Arc<FaultSource>,
    created: Option<ProviderId>,
}

struct FakeSandbox {
    description: ProviderSandbox,
    key: String,
    runtime: Arc<SandboxRuntime>,
    faults: Arc<FaultSource>,
    worker: Task,
}

struct FakeSnapshot {
    source: ProviderId,
    tree: Tree,
}

impl FakeSandbox {
    fn describe_sandbox(&self) -> ProviderSandbox {
        let state = if self.runtime.environment.is_frozen() { ProviderState::Paused } else { ProviderState::Running };
        ProviderSandbox { state, ..self.description.clone() }
    }
}

fn unreachable_error(detail: &str) -> Error {
    Error::Unreachable { detail: format!("a seeded fault: {detail}") }
}

fn refused_error(detail: impl ToString) -> Error {
    Error::Refused { detail: detail.to_string() }
}

impl Fake {
    /// `link` connects every worker to the server.
    pub fn new(options: FakeOptions, link: Arc<dyn WorkerLink>) -> Self {
        Self { options, link, state: Mutex::default() }
    }

    fn faults_for_key(&self, key: &str) -> Arc<FaultSource> {
        let mut state = lock_state(&self.state);
        if let Some(birth) = state.create_attempts.get(key) {
            return birth.faults.clone();
        }
        state.attempt_count += 1;
        let dice = Arc::new(FaultSource::new(&self.options, state.attempt_count));
        state.create_attempts.insert(key.to_owned(), CreateAttempt { faults: dice.clone(), created: None });
        dice
    }

    /// `tree` returns the initial files or the reason why there are none.
    async fn create_from_tree(
        &self,
        spec: &CreateSpec,
        key: &str,
        tree: impl Fn(&State) -> Result<Tree, Error> + Send,
    ) -> Result<ProviderSandbox, Error> {
        let dice = self.faults_for_key(key);
        match dice.draw_fault(FaultPoint::Create) {
            None => self.insert_sandbox(spec, key, &tree),
            Some(InjectedFault::Fail) => Err(unreachable_error("the sandbox was not made")),
            Some(InjectedFault::Exhaust) => {
                Err(Error::Exhausted { detail: "an injected fault".to_owned(), until: None })
            }
            Some(InjectedFault::Delay(span)) => {
                tokio::time::sleep(span).await;
                self.insert_sandbox(spec, key, &tree)
            }
            Some(InjectedFault::Drop) => {
                self.insert_sandbox(spec, key, &tree)?;
                Err(unreachable_error("the answer got lost"))
            }
            Some(InjectedFault::Duplicate) => {
                self.insert_sandbox(spec, key, &tree)?;
                self.insert_sandbox(spec, key, &tree)
            }
            Some(InjectedFault::Crash) => {
                let found = self.insert_sandbox(spec, key, &tree)?;
                if let Some(sandbox) = lock_state(&self.state).sandboxes.get(&found.id) {
                    sandbox.worker.stop();
                }
                Ok(found)
            }
        }
    }

    fn insert_sandbox(
        &self,
        spec: &CreateSpec,
        key: &str,
        tree: impl Fn(&State) -> Result<Tree, Error>,
    ) -> Result<ProviderSandbox, Error> {
        let dice = self.faults_for_key(key);
        let mut state = lock_state(&self.state);
        let existing_id = state.create_attempts.get(key).and_then(|birth| birth.created.as_ref());
        if let Some(sandbox) = existing_id.and_then(|id| state.sandboxes.get(id)) {
            return Ok(sandbox.describe_sandbox());
        }
        let runtime = Arc::new(SandboxRuntime::new(tree(&state)?));
        state.created_count += 1;
        let id = ProviderId(format!("fake_{}_{}", spec.identity.sandbox, state.created_count));
        let running = ProviderState::Running;
        let found = ProviderSandbox {
            id: id.clone(),
            state: running,
            labels: all_labels(spec),
            notices: Vec::new(),
            disk_notice: None,
            cache: None,
        };
        let link = FakeLink {
            sandbox: spec.identity.sandbox,
            server: self.link.clone(),
            faults: dice.clone(),
            environment: runtime.environment.clone(),
            crash: Arc::default(),
        };
        let worker = Task::spawn(worker::run_worker(link, runtime.clone()));
        let sandbox =
            FakeSandbox { description: found.clone(), key: key.to_owned(), runtime, faults: dice.clone(), worker };
        state.create_attempts.insert(key.to_owned(), CreateAttempt { faults: dice, created: Some(id.clone()) });
        state.sandboxes.insert(id, sandbox);
        Ok(found)
    }

    fn find_runtime(&self, id: &ProviderId) -> Result<Arc<SandboxRuntime>, Error> {
        lock_state(&self.state).sandboxes.get(id).map(|sandbox| sandbox.runtime.clone()).ok_or(Error::Gone)
    }

    fn find_command(&self, exec: &ExecRef) -> Result<(Arc<SandboxRuntime>, u64), Error> {
        let runtime = self.find_runtime(&exec.sandbox)?;
        let id = exec.exec.parse().ok().ok_or(Error::Gone)?;
        Ok((runtime, id))
    }

    /// Removing an unknown sandbox succeeds.
    fn remove_sandbox(&self, id: &ProviderId) {
        let mut state = lock_state(&self.state);
        if let Some(sandbox) = state.sandboxes.remove(id) {
            state.create_attempts.remove(&sandbox.key);
            sandbox.worker.stop();
            sandbox.runtime.processes.kill_all();
        }
    }
}

impl ImplementProvider for Fake {
    fn kind(&self) -> ProviderKind {
        ProviderKind::Fake
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn create(&self, spec: &CreateSpec, key: &str) -> Result<ProviderSandbox, Error> {
        let tree = |state: &State| match &spec.settings.snapshot {
            None => Ok(Tree::default()),
            Some(name) => match state.snapshots.get(name) {
                Some(snapshot) => Ok(snapshot.tree.clone()),
                None => Err(refused_error(format!("there is no snapshot `{name}`"))),
            },
        };
        crate::refuse_isolation_tier(self.kind(), spec)?;
        crate::refuse_protected_paths(self.kind(), spec)?;
        crate::refuse_programs(self.kind(), spec)?;
        self.create_from_tree(spec, key, tree).await
    }

    async fn get(&self, id: &ProviderId) -> SandboxLookup {
        match lock_state(&self.state).sandboxes.get(id) {
            Some(sandbox) => SandboxLookup::Found(sandbox.describe_sandbox()),
            None => SandboxLookup::Gone,
        }
    }

    async fn list(&self, cursor: Option<&str>) -> Result<ProviderPage, Error> {
        Ok(crate::list_page(&lock_state(&self.state).sandboxes, cursor, FakeSandbox::describe_sandbox))
    }

    async fn find_by_labels(&self, labels: &BTreeMap<String, String>) -> Result<Vec<ProviderSandbox>, Error> {
        let state = lock_state(&self.state);
        let fitting = state.sandboxes.values().filter(|sandbox| has_labels(&sandbox.description.labels, labels));
        Ok(fitting.map(FakeSandbox::describe_sandbox).collect())
    }

    async fn destroy(&self, id: &ProviderId) -> Result<(), Error> {
        let dice = lock_state(&self.state).sandboxes.get(id).map(|sandbox| sandbox.faults.clone());
        match dice.and_then(|dice| dice.draw_fault(FaultPoint::Destroy)) {
            None | Some(InjectedFault::Duplicate) => {}
            Some(InjectedFault::Delay(span)) => tokio::time::sleep(span).await,
            Some(InjectedFault::Fail | InjectedFault::Exhaust) => {
                return Err(unreachable_error("the sandbox is still there"));
            }
            Some(InjectedFault::Drop) => {
                self.remove_sandbox(id);
                return Err(unreachable_error("the answer got lost"));
            }
            Some(InjectedFault::Crash) => {
                if let Some(sandbox) = lock_state(&self.state).sandboxes.get(id) {
                    sandbox.worker.stop();
                }
                return Err(unreachable_error("the worker died, the sandbox is still there"));
            }
        }
        self.remove_sandbox(id);
        Ok(())
    }

    async fn pause(&self, id: &ProviderId) -> Result<(), Error> {
        self.find_runtime(id)?.environment.set_frozen(true);
        Ok(())
    }

    async fn resume(&self, id: &ProviderId) -> Result<ProviderSandbox, Error> {
        let state = lock_state(&self.state);
        let sandbox = state.sandboxes.get(id).ok_or(Error::Gone)?;
        sandbox.runtime.environment.set_frozen(false);
        Ok(sandbox.describe_sandbox())
    }

    async fn exec(&self, id: &ProviderId, spec: &ExecSpec) -> Result<ExecRef, Error> {
        if spec.terminal.is_some() {
            return Err(Error::Unsupported { provider: self.kind(), ability: "open terminals" });
        }
        let runtime = self.find_runtime(id)?;
        if runtime.environment.is_frozen() {
            return Err(refused_error("the sandbox is paused"));
        }
        let exec = runtime.processes.spawn_command(&runtime.environment, spec).to_string();
        Ok(ExecRef { sandbox: id.clone(), exec })
    }

    async fn attach(&self, exec: &ExecRef, cursor: u64) -> Result<ExecStream, Error> {
        let (runtime, id) = self.find_command(exec)?;
        runtime.processes.attach_output(id, cursor)
    }

    async fn write(&self, exec: &ExecRef, data: Bytes) -> Result<(), Error> {
        let (runtime, id) = self.find_command(exec)?;
        runtime.processes.write_stdin(id, data)
    }

    async fn close_stdin(&self, exec: &ExecRef) -> Result<(), Error> {
        let (runtime, id) = self.find_command(exec)?;
        runtime.processes.close_stdin(id)
    }

    async fn signal(&self, exec: &ExecRef, signal: i32) -> Result<(), Error> {
        let (runtime, id) = self.find_command(exec)?;
        runtime.processes.send_signal(id, signal)
    }

    async fn upload(
        &self,
        id: &ProviderId,
        transfer: &Transfer,
        data: ByteStream,
    ) -> Result<FileResult<UploadSummary>, Error> {
        let (path, range) = transfer::file_target(transfer)?;
        let runtime = self.find_runtime(id)?;
        transfer::upload_file(&runtime, path, range, data).await
    }

    async fn download(
        &self,
        id: &ProviderId,
        transfer: &Transfer,
        _: ReadScope,
    ) -> Result<FileResult<Download>, Error> {
        // All files of a fake sandbox are in its workspace.
        let (path, range) = transfer::file_target(transfer)?;
        let runtime = self.find_runtime(id)?;
        Ok(transfer::download_file(&runtime, path, range))
    }

    async fn files(&self, id: &ProviderId, job: &FileOperation) -> Result<FileResult<FileOperationOutput>, Error> {
        Ok(file_jobs::run_job(&mut lock_state(&self.find_runtime(id)?.environment.tree), job))
    }

    async fn snapshot(&self, id: &ProviderId, name: &str) -> Result<SnapshotRef, Error> {
        let tree = lock_state(&self.find_runtime(id)?.environment.tree).clone();
        let mut state = lock_state(&self.state);
        // The same sandbox may replace its snapshot; another sandbox may not.
        if state.snapshots.get(name).is_some_and(|existing| existing.source != *id) {
            return Err(refused_error(format!("there is a snapshot `{name}` of another sandbox")));
        }
        let bytes = Some(tree.bytes() as u64);
        state.snapshots.insert(name.to_owned(), FakeSnapshot { source: id.clone(), tree });
        Ok(SnapshotRef { name: name.to_owned(), bytes, image: None, created_at: None })
    }

    async fn fork(&self, id: &ProviderId, spec: &CreateSpec, key: &str) -> Result<ProviderSandbox, Error> {
        let tree = |state: &State| match state.sandboxes.get(id) {
            Some(parent) => Ok(lock_state(&parent.runtime.environment.tree).clone()),
            None => Err(Error::Gone),
        };
        self.create_from_tree(spec, key, tree).await
    }

    async fn resources(&self, id: &ProviderId) -> Result<ResourceUsage, Error> {
        let runtime = self.find_runtime(id)?;
        let bytes = lock_state(&runtime.environment.tree).bytes() as u64;
        // The files are in memory; the worker counts as one process.
        let pids = runtime.processes.count_running() + 1;
        Ok(ResourceUsage { cpu_seconds: 0.0, memory_bytes: bytes, disk_bytes: Some(bytes), pids, network_bytes: 0 })
    }
}
