//! Sandboxes on this machine: Linux namespaces, created by the launcher process.
//!
//! ```text
//! create ─► launcher: prepare ─► git-in (a jail of its own) ─► worker as pid 1 ─► link ◄─► server
//! ```
//!
//! The sandbox id names its directory, cgroup and record. The launcher's files on disk are the only state, so a restart
//! loses nothing.

mod caches;
mod disk_watch;
mod git_run;
mod isolation_tier;
mod limit_notices;
mod provider;
mod root_exec;
mod snapshots;

pub use provider::CAPABILITIES;

use crate::host_maximum::HostMaximum;
use crate::sandbox_locks::SandboxLocks;
use crate::worker_client::exec::Commands;
use crate::worker_client::{LinkHost, link};
use crate::{all_labels, lock_state};
use atoll_core::id::{ProjectId, SandboxId};
use atoll_core::provider::{
    CommandExit, CreateSpec, DeadWorker, Error, Provider, ProviderId, ProviderSandbox, ProviderState, ReadOnlyMount,
};
use atoll_core::sandbox::{IsolationTier, Resources};
use atoll_jail::{Launcher, ResourceLimits, SandboxInfo, SandboxSpec};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Maximum wait for the exit status of a dead worker.
const WORKER_EXIT_TIMEOUT: Duration = Duration::from_secs(5);
const WORKER_EXIT_POLL: Duration = Duration::from_millis(20);

pub struct Local {
    /// The launcher, or the reason why there is none.
    launcher: Result<Arc<Mutex<Arc<Launcher>>>, String>,
    host: Arc<dyn LinkHost>,
    links: Mutex<HashMap<ProviderId, WorkerConnection>>,
    /// Serializes creation per sandbox.
    create_locks: SandboxLocks,
    commands: Arc<Commands>,
    disk: disk_watch::DiskWatch,
    tier: isolation_tier::TierRequirement,
    maximum: HostMaximum,
}

/// The link to a live worker.
struct WorkerConnection {
    task: AbortHandle,
    socket: PathBuf,
}

impl Local {
    /// `host` serves the workers.
    pub fn new(launcher: Result<Arc<Launcher>, String>, host: Arc<dyn LinkHost>) -> Self {
        let launcher = launcher.map(|launcher| Arc::new(Mutex::new(launcher)));
        Self {
            launcher,
            host,
            links: Mutex::default(),
            create_locks: SandboxLocks::default(),
            commands: Arc::default(),
            disk: disk_watch::DiskWatch::default(),
            tier: isolation_tier::TierRequirement::default(),
            maximum: HostMaximum::read(),
        }
    }

    /// Sets the directory of the sandboxes' files, and the size of their pool, which bound the disk of a sandbox.
    pub fn with_disk(self, dir: &Path, pool_gb: Option<f64>) -> Self {
        Self { maximum: self.maximum.with_disk(dir, pool_gb), ..self }
    }

    /// Sets the tier that every sandbox must reach.
    pub fn with_minimum_tier(self, isolation: Option<IsolationTier>) -> Self {
        Self { tier: isolation_tier::TierRequirement::with_minimum(isolation), ..self }
    }

    /// Calls the launcher on a blocking thread.
    async fn call_launcher<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Launcher) -> Result<T, atoll_jail::Error> + Send + 'static,
    ) -> Result<T, Error> {
        let launcher = match &self.launcher {
            Ok(launcher) => Arc::clone(launcher),
            Err(why) => return Err(Error::Refused { detail: why.clone() }),
        };
        match tokio::task::spawn_blocking(move || question(&*live_launcher(&launcher)?)).await {
            Ok(answer) => answer.map_err(|error| translate_error(&error)),
            Err(error) => Err(Error::Unreachable { detail: error.to_string() }),
        }
    }

    async fn find_info(&self, id: &ProviderId) -> Result<SandboxInfo, Error> {
        let name = sandbox_name(id)?;
        self.call_launcher(move |launcher| launcher.find_sandbox(&name)).await?.ok_or(Error::Gone)
    }

    /// The socket of a live worker.
    async fn live_socket(&self, id: &ProviderId) -> Result<PathBuf, Error> {
        if let Some(socket) = self.connected_socket(id) {
            return Ok(socket);
        }
        let info = self.find_info(id).await?;
        if !info.is_alive {
            let detail = "the sandbox is not running, so its files are not accessible";
            return Err(Error::Refused { detail: detail.into() });
        }
        if info.is_paused {
            return Err(paused_error());
        }
        Ok(info.worker_socket)
    }

    /// The socket of a connected worker that is not paused. Dialing it shows whether the worker still lives, which
    /// saves a call to the launcher.
    fn connected_socket(&self, id: &ProviderId) -> Option<PathBuf> {
        if self.commands.is_paused(id) {
            return None;
        }
        let links = lock_state(&self.links);
        links.get(id).filter(|link| !link.task.is_finished()).map(|link| link.socket.clone())
    }

    /// Connects to a live worker unless it is connected.
    fn ensure_connected(&self, info: &SandboxInfo) {
        let Ok(sandbox) = info.name.parse::<SandboxId>() else { return };
        if let Ok(launcher) = &self.launcher {
            self.disk.start_or_wake(launcher, &self.host);
        }
        let mut links = lock_state(&self.links);
        let id = ProviderId(info.name.clone());
        if links.get(&id).is_some_and(|link| !link.task.is_finished()) {
            return;
        }
        if info.is_paused {
            self.commands.mark_paused(&id);
        }
        let task = tokio::spawn(link::maintain_link(sandbox, info.worker_socket.clone(), Arc::clone(&self.host)));
        links.insert(id, WorkerConnection { task: task.abort_handle(), socket: info.worker_socket.clone() });
    }

    /// Disconnects from every worker. The workers keep running and a later server finds them.
    fn disconnect_workers(&self) {
        self.disk.stop();
        for (_, link) in lock_state(&self.links).drain() {
            link.task.abort();
        }
    }

    fn disconnect_worker(&self, id: &ProviderId) {
        if let Some(link) = lock_state(&self.links).remove(id) {
            link.task.abort();
        }
    }

    /// Returns the spool and exit of a dead worker. The exit is unknown if an earlier server started it.
    async fn load_dead_worker(&self, sandbox: SandboxId) -> Result<DeadWorker, Error> {
        let deadline = Instant::now() + WORKER_EXIT_TIMEOUT;
        loop {
            let name = sandbox.to_string();
            let info = self.call_launcher(move |launcher| launcher.release_spool(&name)).await?;
            // The worker's connections end before the kernel has ended the sandbox's last process and knows its exit.
            if !info.is_alive || Instant::now() >= deadline {
                return Ok(DeadWorker {
                    spool: info.spool,
                    exit: info.exit.map_or(CommandExit::Unknown, provider_exit),
                });
            }
            tokio::time::sleep(WORKER_EXIT_POLL).await;
        }
    }

    async fn create_sandbox(&self, spec: &CreateSpec) -> Result<ProviderSandbox, Error> {
        let name = spec.identity.sandbox.to_string();
        self.create_locks.run_exclusive(spec.identity.sandbox, self.create_unlocked(&name, spec)).await
    }

    /// Asks the launcher how far a sandbox's creation has come; fails if the launcher does not respond.
    async fn creation_state(&self, name: &str) -> Result<CreationState, Error> {
        let name = name.to_owned();
        self.call_launcher(move |launcher| match launcher.find_sandbox(&name) {
            Ok(Some(info)) => Ok(CreationState::Exists(Box::new(info))),
            Ok(None) => Ok(CreationState::Absent),
            Err(atoll_jail::Error::Incomplete { .. }) => Ok(CreationState::Incomplete),
            Err(error) => Err(error),
        })
        .await
    }

    async fn create_unlocked(&self, name: &str, spec: &CreateSpec) -> Result<ProviderSandbox, Error> {
        let id = ProviderId(name.to_owned());
        let is_fork = spec.settings.forked_from.is_some();
        match self.creation_state(name).await? {
            // Created earlier, and perhaps ended: the server collects its spool. A worker that was killed during its
            // start has no spool.
            CreationState::Exists(info) if info.is_alive || (info.was_started && info.has_spool) => {
                if info.is_alive {
                    self.ensure_connected(&info);
                }
                return Ok(describe_sandbox(&info));
            }
            // A fork has its files and only needs a worker.
            CreationState::Exists(info) if is_fork => {
                let info = self.call_launcher(move |launcher| launcher.start_worker(&info.name)).await?;
                self.ensure_connected(&info);
                return Ok(describe_sandbox(&info));
            }
            CreationState::Absent | CreationState::Incomplete if is_fork => {
                return Err(Error::Refused { detail: "the fork's files are gone; fork again".into() });
            }
            CreationState::Absent => {}
            // No worker has run there: start over.
            CreationState::Exists(_) | CreationState::Incomplete => self.destroy(&id).await?,
        }
        self.require_tier(spec.settings.isolation).await?;
        let result = self.prepare_and_start(name.to_owned(), spec).await;
        if result.is_err() {
            // Report the original failure; the sweep removes what remains.
            drop(self.destroy(&id).await);
        }
        let info = result?;
        self.ensure_connected(&info);
        Ok(describe_sandbox(&info))
    }

    async fn prepare_and_start(&self, name: String, spec: &CreateSpec) -> Result<SandboxInfo, Error> {
        let jail = launcher_spec(spec);
        self.check_downloads(spec).await?;
        self.call_launcher(move |launcher| launcher.prepare_sandbox(&jail)).await?;
        self.fill_workspace(&name, spec).await?;
        self.call_launcher(move |launcher| launcher.start_worker(&name)).await
    }
}

/// The progress of a sandbox's creation.
enum CreationState {
    Absent,
    Incomplete,
    Exists(Box<SandboxInfo>),
}

fn launcher_spec(spec: &CreateSpec) -> SandboxSpec {
    SandboxSpec {
        name: spec.identity.sandbox.to_string(),
        labels: all_labels(spec),
        limits: resource_limits(spec.settings.resources),
        hostname: "atoll".to_owned(),
        image: spec.settings.image.clone(),
        snapshot: spec.settings.snapshot.clone(),
        cache: spec.cache.as_ref().map(caches::cache_start),
        protected: spec.settings.protected.clone(),
        programs: spec.programs.iter().map(host_program).collect(),
    }
}

fn host_program(mount: &ReadOnlyMount) -> atoll_jail::HostProgram {
    atoll_jail::HostProgram { from: mount.host_path.clone(), at: mount.relative_path.clone() }
}

pub(crate) fn resource_limits(resources: Option<Resources>) -> ResourceLimits {
    let (resources, standard) = (resources.unwrap_or_default(), ResourceLimits::default());
    // Within the exact range of f64; nonsense saturates.
    let whole = |figure: f64| figure as u64;
    ResourceLimits {
        memory_bytes: resources
            .memory_gb
            .map_or(standard.memory_bytes, |gigabytes| whole(gigabytes * f64::from(1 << 30))),
        cpu_milli: resources
            .cpu
            .map_or(standard.cpu_milli, |cpu| u32::try_from(whole(cpu * 1000.0)).unwrap_or(u32::MAX)),
        pids: resources.pids.unwrap_or(standard.pids),
        disk_bytes: resources.disk_gb.map_or(standard.disk_bytes, |gigabytes| whole(gigabytes * f64::from(1 << 30))),
        ..standard
    }
}

/// Returns the launcher, restarted if it has ended: its state is on disk.
fn live_launcher(launcher: &Mutex<Arc<Launcher>>) -> Result<Arc<Launcher>, atoll_jail::Error> {
    let mut current = lock_state(launcher);
    if current.has_ended() {
        tracing::warn!("the launcher has ended; starting another");
        *current = Arc::new(Launcher::start(current.options().clone())?);
    }
    Ok(Arc::clone(&current))
}

/// Accepts only sandbox ids, so no other name reaches the file system.
fn sandbox_name(id: &ProviderId) -> Result<String, Error> {
    id.0.parse::<SandboxId>().map(|sandbox| sandbox.to_string()).map_err(|_| Error::Gone)
}

fn translate_error(error: &atoll_jail::Error) -> Error {
    use atoll_jail::Error as E;
    let detail = strip_project_prefixes(&error.to_string());
    match error {
        E::UnknownSandbox { .. } => Error::Gone,
        E::NotFound { kind: atoll_jail::CatalogKind::Cache, name } => Error::CacheGone { name: name.clone() },
        E::Busy { .. } => Error::Busy { detail },
        // These conditions may pass.
        E::Ending { .. }
        | E::AlreadyRunning { .. }
        | E::KillTimeout { .. }
        | E::PauseTimeout { .. }
        | E::RemoveFailed { .. }
        | E::FileFailed { .. }
        | E::DataDirLocked { .. }
        | E::LauncherStartFailed { .. }
        | E::Protocol { .. }
        | E::SpawnerGone
        | E::LauncherGone
        | E::Timeout { .. } => Error::Unreachable { detail },
        _ => Error::Refused { detail },
    }
}

/// Removes the project prefix of snapshot names: clients use the bare name.
fn strip_project_prefixes(text: &str) -> String {
    let words = text.split(' ').map(|word| match word.split_once('.') {
        Some((project, name)) if project.parse::<ProjectId>().is_ok() => name,
        Some(_) | None => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

fn paused_error() -> Error {
    Error::Refused { detail: "the sandbox is paused; resume it first".into() }
}

fn provider_exit(exit: atoll_jail::Exit) -> CommandExit {
    match exit {
        atoll_jail::Exit::Exited(code) => CommandExit::Exited { code },
        atoll_jail::Exit::Signalled(signal) => CommandExit::Signalled { signal },
        atoll_jail::Exit::OutOfMemory => CommandExit::OutOfMemory,
        atoll_jail::Exit::TimedOut => CommandExit::TimedOut,
        atoll_jail::Exit::Unknown => CommandExit::Unknown,
    }
}

fn describe_sandbox(info: &SandboxInfo) -> ProviderSandbox {
    ProviderSandbox {
        id: ProviderId(info.name.clone()),
        state: match (info.is_alive, info.is_paused) {
            (true, false) => ProviderState::Running,
            (true, true) => ProviderState::Paused,
            (false, _) => ProviderState::Stopped,
        },
        labels: info.labels.clone(),
        notices: limit_notices::limit_notices(&info.enforced)
            .into_iter()
            .chain(limit_notices::unprotected_notice(info))
            .chain(limit_notices::fixed_dirs_notice(info))
            .collect(),
        disk_notice: limit_notices::disk_notice(&info.enforced),
        cache: caches::cache_use(info),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unavailable_launcher_is_worth_a_retry() {
        for error in [
            atoll_jail::Error::DataDirLocked { path: "/data/sandboxes/.lock".into() },
            atoll_jail::Error::SpawnerGone,
            atoll_jail::Error::LauncherGone,
        ] {
            assert!(translate_error(&error).is_retryable(), "{error}");
        }
    }

    #[test]
    fn errors_name_snapshots_without_their_project() {
        let project = ProjectId::new();
        let plain_error = |name: String| {
            translate_error(&atoll_jail::Error::NotFound { kind: atoll_jail::CatalogKind::Snapshot, name })
        };
        let plain = "no snapshot is named v1.2: run `atoll snapshot ls` to list them";
        assert_eq!(plain_error(format!("{project}.v1.2")), Error::Refused { detail: plain.into() });
        assert_eq!(plain_error("v1.2".into()), Error::Refused { detail: plain.into() });
    }
}
