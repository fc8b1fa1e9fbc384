//! Sandboxes as containers of a Docker engine on this machine, with the usual worker.
//!
//! ```text
//! create ─► volume ─► git-in (a container of its own) ─► container, worker as pid 1 ─► link ◄─► server
//! ```
//!
//! A sandbox has a directory on the host (`container_dir`), a volume with the workspace and a container, all named by
//! its id. The directory is created first and removed last, so the server knows of everything at the engine.

mod container_dir;
mod container_spec;
mod creation;
mod engine;
mod engine_info;
mod git_container;
mod worker_binary;

use crate::host_maximum::HostMaximum;
use crate::sandbox_locks::SandboxLocks;
use crate::worker_client::exec::Commands;
use crate::worker_client::git_arguments::{open_job_input, operation_arguments};
use crate::worker_client::{LinkHost, file_transfer, link, port_connection};
use crate::{has_labels, lock_state};
use atoll_core::id::SandboxId;
use atoll_core::provider::{
    ByteStream, Capabilities, CommandExit, CreateSpec, DeadWorker, Download, Error, ExecInfo, ExecRef, ExecSpec,
    ExecStream, FileOperation, FileOperationOutput, FileResult, GitOperation, GitResult, ImplementProvider, ProviderId,
    ProviderPage, ProviderSandbox, ProviderState, PtySize, ReadScope, ResourceUsage, SandboxLookup, Transfer,
    UploadSummary, capabilities as can,
};
use atoll_core::sandbox::ProviderKind;
use bollard::query_parameters::StatsOptions;
use bytes::Bytes;
use container_dir::{ContainerDir, ContainerRecord};
use engine::{ContainerPhase, Engine};
use futures_util::StreamExt;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

pub const CAPABILITIES: Capabilities = Capabilities {
    isolation: can::Isolation::Namespace,
    listing: can::Listing::Exact,
    pause: can::PauseAbility::Memory,
    egress: can::EgressAbility::Domains,
    output: can::OutputAbility::Split,
    attach: can::AttachAbility::FromCursor,
    files: can::FileAbility::Root,
    protected: can::ProtectionAbility::Results,
    worker: can::WorkerHost::Server,
    ports: can::PortAbility::Connect,
    ..Capabilities::NONE
};

/// Time limit for the engine to report the exit of a container whose worker no longer listens.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, Clone)]
pub struct DockerOptions {
    /// `unix:///…`
    pub socket: String,
    /// The image of a sandbox that names none.
    pub image: Option<String>,
    /// The worker binary, or the reason why there is none.
    pub worker: Result<PathBuf, String>,
}

impl Default for DockerOptions {
    fn default() -> Self {
        let worker = Err("no worker binary is configured for containers".to_owned());
        Self { socket: "unix:///var/run/docker.sock".to_owned(), image: None, worker }
    }
}

pub struct Docker {
    options: DockerOptions,
    engine: Arc<Engine>,
    /// Label value that identifies this server's containers at the engine.
    server: String,
    /// Contains one directory per container.
    containers_dir: PathBuf,
    host: Arc<dyn LinkHost>,
    links: Mutex<HashMap<ProviderId, AbortHandle>>,
    /// Serializes creation per sandbox.
    create_locks: SandboxLocks,
    commands: Arc<Commands>,
    maximum: HostMaximum,
}

impl Docker {
    /// Does not contact the engine before the first request. `host` serves the workers.
    pub fn new(options: DockerOptions, server: &str, containers_dir: PathBuf, host: Arc<dyn LinkHost>) -> Self {
        Self {
            engine: Arc::new(Engine::new(&options.socket)),
            options,
            server: server.to_owned(),
            containers_dir,
            host,
            links: Mutex::default(),
            create_locks: SandboxLocks::default(),
            commands: Arc::default(),
            // The engine runs on this machine.
            maximum: HostMaximum::read(),
        }
    }

    /// Returns the sandbox's directory, or `Gone`.
    fn find_dir(&self, id: &ProviderId) -> Result<ContainerDir, Error> {
        Some(ContainerDir::for_id(&self.containers_dir, id)?).filter(ContainerDir::exists).ok_or(Error::Gone)
    }

    async fn container_phase(&self, dir: &ContainerDir) -> Result<Option<ContainerPhase>, Error> {
        self.engine.container_phase(&dir.container_name()).await
    }

    async fn describe_sandbox(
        &self,
        dir: &ContainerDir,
        phase: Option<ContainerPhase>,
    ) -> Result<ProviderSandbox, Error> {
        let engine = self.engine.engine_info().await?;
        Ok(ProviderSandbox {
            id: dir.provider_id(),
            state: provider_state(phase),
            labels: dir.read_record().map(|record| record.labels).unwrap_or_default(),
            notices: engine.limit_notices(),
            disk_notice: Some(NO_DISK_LIMIT.to_owned()),
            cache: None,
        })
    }

    /// The worker socket of a running container.
    async fn worker_socket(&self, id: &ProviderId) -> Result<PathBuf, Error> {
        let dir = self.find_dir(id)?;
        match self.container_phase(&dir).await? {
            Some(ContainerPhase::Running) => Ok(dir.socket_path()),
            Some(ContainerPhase::Paused) => {
                Err(Error::Refused { detail: "the sandbox is paused; resume it first".into() })
            }
            Some(ContainerPhase::Created | ContainerPhase::Removing | ContainerPhase::Exited(_)) | None => {
                Err(not_running_error())
            }
        }
    }

    /// Connects to a live worker unless it is connected.
    fn ensure_connected(&self, dir: &ContainerDir, phase: Option<ContainerPhase>) {
        match phase {
            Some(ContainerPhase::Running | ContainerPhase::Paused) => {}
            Some(ContainerPhase::Created | ContainerPhase::Removing | ContainerPhase::Exited(_)) | None => return,
        }
        let mut links = lock_state(&self.links);
        if links.get(&dir.provider_id()).is_some_and(|link| !link.is_finished()) {
            return;
        }
        let (engine, host, at) = (Arc::clone(&self.engine), Arc::clone(&self.host), dir.clone());
        let task = tokio::spawn(async move {
            // A container runs for a moment before its worker listens; that is not a dead worker.
            drop(creation::wait_for_worker(&engine, &at).await);
            link::maintain_link(at.sandbox, at.socket_path(), host).await;
        });
        links.insert(dir.provider_id(), task.abort_handle());
    }

    /// Disconnects from every worker. The workers keep running and a later server finds them.
    fn disconnect_workers(&self) {
        for (_, link) in lock_state(&self.links).drain() {
            link.abort();
        }
    }

    fn disconnect_worker(&self, id: &ProviderId) {
        if let Some(link) = lock_state(&self.links).remove(id) {
            link.abort();
        }
    }

    /// Returns the spool and exit of a dead worker, also if its container was removed.
    async fn load_dead_worker(&self, sandbox: SandboxId) -> Result<DeadWorker, Error> {
        let dir = self.find_dir(&ProviderId(sandbox.to_string()))?;
        let deadline = Instant::now() + EXIT_TIMEOUT;
        let exit = loop {
            match self.container_phase(&dir).await? {
                Some(ContainerPhase::Exited(exit)) => break exit,
                Some(ContainerPhase::Running | ContainerPhase::Removing) if Instant::now() < deadline => {
                    sleep(POLL_INTERVAL).await
                }
                Some(
                    ContainerPhase::Created
                    | ContainerPhase::Running
                    | ContainerPhase::Paused
                    | ContainerPhase::Removing,
                )
                | None => break CommandExit::Unknown,
            }
        };
        Ok(DeadWorker { spool: dir.spool_dir(), exit })
    }

    /// Lists every sandbox that has a directory, with the state of its container.
    async fn list_all(&self) -> Result<BTreeMap<ProviderId, ProviderSandbox>, Error> {
        let places = ContainerDir::list_all(&self.containers_dir)?;
        if places.is_empty() {
            return Ok(BTreeMap::new());
        }
        let listed =
            self.engine.list_containers(&[(container_spec::SERVER_LABEL, &self.server), ("atoll", "1")]).await?;
        let phases: HashMap<&str, ContainerPhase> = listed.iter().map(|one| (one.name.as_str(), one.phase)).collect();
        let mut all = BTreeMap::new();
        for dir in places {
            let phase = phases.get(dir.container_name().as_str()).copied();
            all.insert(dir.provider_id(), self.describe_sandbox(&dir, phase).await?);
        }
        Ok(all)
    }

    async fn run_git(&self, dir: ContainerDir, record: ContainerRecord, work: GitCommand) -> Result<GitResult, Error> {
        let (engine, server, worker) = (Arc::clone(&self.engine), self.server.clone(), self.worker_binary()?);
        let GitCommand { arguments, input, output } = work;
        git_container::GitContainer { engine, server, worker, dir, record, arguments, input, output }.run().await
    }

    fn worker_binary(&self) -> Result<PathBuf, Error> {
        let named = self.options.worker.clone().map_err(|why| Error::Refused { detail: why })?;
        worker_binary::check_static_binary(&named)?;
        Ok(named)
    }
}

/// No engine limits the disk use of a container.
const NO_DISK_LIMIT: &str = "disk space: not limited by this engine";
const PROTECTED_IN_RESULTS_ONLY: &str =
    "protected paths are writable inside this container; results that change them are refused";

/// A git command with its input and output.
struct GitCommand {
    arguments: Vec<String>,
    input: Option<File>,
    output: Option<File>,
}

fn provider_state(phase: Option<ContainerPhase>) -> ProviderState {
    match phase {
        Some(ContainerPhase::Created) => ProviderState::Starting,
        Some(ContainerPhase::Running) => ProviderState::Running,
        Some(ContainerPhase::Paused) => ProviderState::Paused,
        Some(ContainerPhase::Removing) => ProviderState::Ending,
        // Its files may still exist.
        Some(ContainerPhase::Exited(_)) | None => ProviderState::Stopped,
    }
}

impl ImplementProvider for Docker {
    fn kind(&self) -> ProviderKind {
        ProviderKind::Docker
    }

    fn capabilities(&self) -> Capabilities {
        self.maximum.apply_to(CAPABILITIES)
    }

    async fn find_dead_worker(&self, sandbox: SandboxId) -> Result<DeadWorker, Error> {
        self.load_dead_worker(sandbox).await
    }

    fn disconnect_all(&self) {
        self.disconnect_workers();
    }

    async fn check_availability(&self) -> Result<(), Error> {
        self.engine.list_containers(&[(container_spec::SERVER_LABEL, &self.server)]).await.map(drop)
    }

    /// The sandbox id is the idempotency key: container names are unique.
    async fn create(&self, spec: &CreateSpec, _key: &str) -> Result<ProviderSandbox, Error> {
        crate::refuse_isolation_tier(self.kind(), spec)?;
        let mut sandbox = self.create_sandbox(spec).await?;
        if !spec.settings.protected.is_empty() {
            sandbox.notices.push(PROTECTED_IN_RESULTS_ONLY.to_owned());
        }
        Ok(sandbox)
    }

    async fn get(&self, id: &ProviderId) -> SandboxLookup {
        let looked = async {
            let dir = self.find_dir(id)?;
            let phase = self.container_phase(&dir).await?;
            self.ensure_connected(&dir, phase);
            self.describe_sandbox(&dir, phase).await
        };
        match looked.await {
            Ok(found) => SandboxLookup::Found(found),
            Err(Error::Gone) => SandboxLookup::Gone,
            Err(error) => {
                // A worker may outlive its engine and is reachable without it.
                if let Ok(dir) = self.find_dir(id) {
                    self.ensure_connected(&dir, Some(ContainerPhase::Running));
                }
                SandboxLookup::Unreachable { detail: error.to_string() }
            }
        }
    }

    async fn list(&self, cursor: Option<&str>) -> Result<ProviderPage, Error> {
        Ok(crate::list_page(&self.list_all().await?, cursor, ProviderSandbox::clone))
    }

    async fn find_by_labels(&self, labels: &BTreeMap<String, String>) -> Result<Vec<ProviderSandbox>, Error> {
        let all = self.list_all().await?.into_values();
        let fitting: Vec<ProviderSandbox> = all.filter(|found| has_labels(&found.labels, labels)).collect();
        for found in &fitting {
            let phase = (found.state == ProviderState::Running).then_some(ContainerPhase::Running);
            self.ensure_connected(&self.find_dir(&found.id)?, phase);
        }
        Ok(fitting)
    }

    async fn destroy(&self, id: &ProviderId) -> Result<(), Error> {
        let Ok(dir) = self.find_dir(id) else { return Ok(()) };
        self.disconnect_worker(id);
        self.commands.forget_sandbox(id);
        let sandbox = dir.sandbox.to_string();
        for job in self
            .engine
            .list_containers(&[(container_spec::SERVER_LABEL, &self.server), (container_spec::JOB_LABEL, &sandbox)])
            .await?
        {
            self.engine.remove_container(&job.name).await?;
        }
        self.engine.remove_container(&dir.container_name()).await?;
        self.engine.remove_volume(&dir.container_name()).await?;
        dir.remove_dir()
    }

    async fn stop(&self, id: &ProviderId) -> Result<(), Error> {
        self.engine.kill_container(&self.find_dir(id)?.container_name()).await
    }

    async fn reconnect(&self, id: &ProviderId) -> Result<(), Error> {
        let dir = self.find_dir(id)?;
        let phase = self.container_phase(&dir).await?;
        self.disconnect_worker(id);
        self.ensure_connected(&dir, phase);
        Ok(())
    }

    async fn restart_worker(&self, id: &ProviderId) -> Result<(), Error> {
        let dir = self.find_dir(id)?;
        // Without a link, the end of the old worker is not reported as a death.
        self.disconnect_worker(id);
        self.commands.forget_sandbox(id);
        self.engine.kill_container(&dir.container_name()).await?;
        self.engine.start_container(&dir.container_name()).await?;
        self.ensure_connected(&dir, Some(ContainerPhase::Running));
        Ok(())
    }

    async fn pause(&self, id: &ProviderId) -> Result<(), Error> {
        let dir = self.find_dir(id)?;
        match self.container_phase(&dir).await? {
            Some(ContainerPhase::Paused) => Ok(()),
            Some(ContainerPhase::Running) => {
                let pause = async {
                    let paused = self.engine.client().await?.pause_container(&dir.container_name()).await;
                    paused.map_err(|error| self.engine.translate_error(&error))
                };
                self.commands.pause_with(id, pause).await
            }
            Some(ContainerPhase::Created | ContainerPhase::Removing | ContainerPhase::Exited(_)) | None => {
                Err(not_running_error())
            }
        }
    }

    async fn resume(&self, id: &ProviderId) -> Result<ProviderSandbox, Error> {
        let dir = self.find_dir(id)?;
        match self.container_phase(&dir).await? {
            Some(ContainerPhase::Paused) => {
                let resumed = self.engine.client().await?.unpause_container(&dir.container_name()).await;
                resumed.map_err(|error| self.engine.translate_error(&error))?;
            }
            Some(ContainerPhase::Running) => {}
            Some(ContainerPhase::Created | ContainerPhase::Removing | ContainerPhase::Exited(_)) | None => {
                return Err(not_running_error());
            }
        }
        self.commands.mark_resumed(id);
        let phase = self.container_phase(&dir).await?;
        self.ensure_connected(&dir, phase);
        self.describe_sandbox(&dir, phase).await
    }

    async fn exec(&self, id: &ProviderId, spec: &ExecSpec) -> Result<ExecRef, Error> {
        if spec.as_root {
            let detail = "root in a container has no more rights than the agent; run the command as the agent";
            return Err(Error::Refused { detail: detail.into() });
        }
        self.commands.start_command(id, &self.worker_socket(id).await?, spec).await
    }

    async fn attach(&self, exec: &ExecRef, cursor: u64) -> Result<ExecStream, Error> {
        self.commands.attach_reader(exec, cursor)
    }

    async fn write(&self, exec: &ExecRef, data: Bytes) -> Result<(), Error> {
        self.commands.write_stdin(exec, &data).await
    }

    async fn close_stdin(&self, exec: &ExecRef) -> Result<(), Error> {
        self.commands.close_stdin(exec)
    }

    async fn signal(&self, exec: &ExecRef, signal: i32) -> Result<(), Error> {
        self.commands.signal_command(exec, signal)
    }

    async fn resize(&self, exec: &ExecRef, size: PtySize) -> Result<(), Error> {
        self.commands.resize_terminal(exec, size)
    }

    async fn execs(&self, id: &ProviderId) -> Result<Vec<ExecInfo>, Error> {
        Ok(self.commands.list_commands(id))
    }

    async fn connect_port(&self, id: &ProviderId, port: u16) -> Result<Option<TcpStream>, Error> {
        port_connection::connect_port(&self.worker_socket(id).await?, port).await
    }

    async fn upload(
        &self,
        id: &ProviderId,
        transfer: &Transfer,
        data: ByteStream,
    ) -> Result<FileResult<UploadSummary>, Error> {
        file_transfer::upload_files(&self.worker_socket(id).await?, &self.commands.timeout_for(id), transfer, data)
            .await
    }

    async fn download(
        &self,
        id: &ProviderId,
        transfer: &Transfer,
        scope: ReadScope,
    ) -> Result<FileResult<Download>, Error> {
        let socket = self.worker_socket(id).await?;
        file_transfer::download_files(&socket, self.commands.timeout_for(id), transfer, scope).await
    }

    async fn files(&self, id: &ProviderId, job: &FileOperation) -> Result<FileResult<FileOperationOutput>, Error> {
        file_transfer::run_job(&self.worker_socket(id).await?, &self.commands.timeout_for(id), job).await
    }

    async fn git(&self, id: &ProviderId, job: &GitOperation, output: File) -> Result<GitResult, Error> {
        let dir = self.find_dir(id)?;
        let record = dir.read_record().ok_or(Error::Gone)?;
        let (arguments, input) = (operation_arguments(job), open_job_input(job)?);
        self.run_git(dir, record, GitCommand { arguments, input, output: Some(output) }).await
    }

    /// Reports no disk use: the engine does not expose a volume's size.
    async fn resources(&self, id: &ProviderId) -> Result<ResourceUsage, Error> {
        let name = self.find_dir(id)?.container_name();
        let once = StatsOptions { stream: false, one_shot: true };
        let mut stats = Box::pin(self.engine.client().await?.stats(&name, Some(once)));
        let Some(stats) = stats.next().await else { return Ok(ResourceUsage::default()) };
        let stats = stats.map_err(|error| self.engine.translate_error(&error))?;
        let used = stats.cpu_stats.and_then(|cpu| cpu.cpu_usage?.total_usage).unwrap_or(0);
        Ok(ResourceUsage {
            cpu_seconds: Duration::from_nanos(used).as_secs_f64(),
            memory_bytes: stats.memory_stats.and_then(|memory| memory.usage).unwrap_or(0),
            pids: stats.pids_stats.and_then(|pids| pids.current).unwrap_or(0),
            ..ResourceUsage::default()
        })
    }
}

fn not_running_error() -> Error {
    Error::Refused { detail: "the sandbox is not running".into() }
}
