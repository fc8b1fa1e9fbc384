//! Creates a container and waits until its worker listens.

use super::container_dir::{ContainerDir, ContainerRecord};
use super::container_spec::{self, CommonOptions};
use super::engine::{ContainerPhase, Engine};
use super::engine_info::RootMapping;
use super::{Docker, GitCommand};
use crate::all_labels;
use crate::local::resource_limits;
use crate::worker_client::git_arguments::{ADD_PARTS_COMMAND, import_arguments, open_parts};
use atoll_core::provider::{CommandExit, CreateSpec, Error, Provider, ProviderId, ProviderSandbox, RepositorySource};
use atoll_core::sandbox::ProviderKind;
use bollard::query_parameters::{CreateContainerOptions, StartContainerOptions};
use std::fs::File;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Time limit for the worker of a started container to listen.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(60);
const SOCKET_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Socket checks between two inspections of the container.
const SOCKET_POLLS_PER_INSPECT: usize = 40;

/// Waits until the worker in a container listens; fails if the container exits.
pub(super) async fn wait_for_worker(engine: &Engine, dir: &ContainerDir) -> Result<(), Error> {
    let deadline = Instant::now() + LISTEN_TIMEOUT;
    loop {
        for _ in 0..SOCKET_POLLS_PER_INSPECT {
            if dir.socket_path().exists() {
                return Ok(());
            }
            sleep(SOCKET_POLL_INTERVAL).await;
        }
        match engine.container_phase(&dir.container_name()).await? {
            Some(ContainerPhase::Created | ContainerPhase::Running | ContainerPhase::Paused)
                if Instant::now() < deadline => {}
            Some(ContainerPhase::Created | ContainerPhase::Running | ContainerPhase::Paused) => {
                let log_tail = engine.read_log_tail(&dir.container_name()).await;
                let detail = format!("the worker did not listen within {LISTEN_TIMEOUT:?}: {log_tail}");
                return Err(Error::Refused { detail });
            }
            Some(ContainerPhase::Removing | ContainerPhase::Exited(_)) | None => {
                let log_tail = engine.read_log_tail(&dir.container_name()).await;
                return Err(Error::Refused { detail: format!("the worker did not start: {log_tail}") });
            }
        }
    }
}

impl Docker {
    pub(super) async fn create_sandbox(&self, spec: &CreateSpec) -> Result<ProviderSandbox, Error> {
        self.create_locks.run_exclusive(spec.identity.sandbox, self.create_unlocked(spec)).await
    }

    async fn create_unlocked(&self, spec: &CreateSpec) -> Result<ProviderSandbox, Error> {
        if spec.settings.snapshot.is_some() {
            return Err(Error::Unsupported { provider: ProviderKind::Docker, ability: "start from a snapshot" });
        }
        let id = ProviderId(spec.identity.sandbox.to_string());
        let dir = ContainerDir::for_id(&self.containers_dir, &id)?;
        if dir.exists() {
            let phase = self.container_phase(&dir).await?;
            let is_alive = matches!(phase, Some(ContainerPhase::Running | ContainerPhase::Paused));
            // Created earlier, and perhaps ended: the server collects its spool. A worker that was killed during its
            // start has no spool.
            if is_alive || dir.has_spooled() {
                self.ensure_connected(&dir, phase);
                return self.describe_sandbox(&dir, phase).await;
            }
            // Incomplete: start over.
            self.destroy(&id).await?;
        }
        let record = self.build_record(spec).await?;
        let result = self.create_container_for(&dir, &record, spec).await;
        if result.is_err() {
            // Report the original failure; the sweep removes what remains.
            drop(self.destroy(&id).await);
        }
        result?;
        self.ensure_connected(&dir, Some(ContainerPhase::Running));
        self.describe_sandbox(&dir, Some(ContainerPhase::Running)).await
    }

    /// Validates the request and builds the record before anything is created.
    async fn build_record(&self, spec: &CreateSpec) -> Result<ContainerRecord, Error> {
        self.worker_binary()?;
        let image = spec.settings.image.clone().or_else(|| self.options.image.clone()).ok_or_else(|| {
            Error::Refused { detail: "no image is set; set `image`, or docker.image for all sandboxes".into() }
        })?;
        container_spec::check_image(&image)?;
        self.engine.engine_info().await?.check_tier(spec.settings.isolation)?;
        if self.engine.engine_info().await?.root == RootMapping::HostRoot && !is_root() {
            let detail = "the container's root cannot reach its files on the host: \
                          run the server as root, or use a rootless engine of this user";
            return Err(Error::Refused { detail: detail.into() });
        }
        match self
            .engine
            .client()
            .await?
            .inspect_image(&image)
            .await
            .map_err(|error| self.engine.translate_error(&error))
        {
            Ok(_) => {}
            Err(Error::Gone) => {
                let detail = format!("the Docker engine has no image `{image}`; run `docker pull {image}`");
                return Err(Error::Refused { detail });
            }
            Err(error) => return Err(error),
        }
        let memory_bytes = resource_limits(spec.settings.resources).memory_bytes;
        Ok(ContainerRecord { labels: all_labels(spec), image, memory_bytes })
    }

    async fn create_container_for(
        &self,
        dir: &ContainerDir,
        record: &ContainerRecord,
        spec: &CreateSpec,
    ) -> Result<(), Error> {
        let worker = self.worker_binary()?;
        let common = CommonOptions { server: &self.server, worker: &worker, programs: &spec.programs };
        let translate_error = |error: bollard::errors::Error| match self.engine.translate_error(&error) {
            // The sandbox does not exist yet, so the missing object is its image or volume.
            Error::Gone => Error::Refused { detail: format!("the Docker engine refused the request: {error}") },
            error => error,
        };
        let client = self.engine.client().await?;
        dir.create_dir(record, self.engine.engine_info().await?.root)?;
        client.create_volume(container_spec::volume_request(&common, dir)).await.map_err(translate_error)?;
        if let Some(source) = &spec.source {
            self.import_source(dir, record, source).await?;
        }
        let body = container_spec::sandbox_container(&common, dir, record, &resource_limits(spec.settings.resources));
        let options = CreateContainerOptions { name: Some(dir.container_name()), ..CreateContainerOptions::default() };
        client.create_container(Some(options), body).await.map_err(translate_error)?;
        client.start_container(&dir.container_name(), None::<StartContainerOptions>).await.map_err(translate_error)?;
        wait_for_worker(&self.engine, dir).await
    }

    /// Imports the repository into the new workspace.
    async fn import_source(
        &self,
        dir: &ContainerDir,
        record: &ContainerRecord,
        source: &RepositorySource,
    ) -> Result<(), Error> {
        let bundle = File::open(&source.bundle)
            .map_err(|error| Error::Unreachable { detail: format!("cannot read the repository's bundle: {error}") })?;
        let work = GitCommand { arguments: import_arguments(source), input: Some(bundle), output: None };
        self.run_import(dir, record, work, "importing the repository").await?;
        let Some(parts) = open_parts(source)? else { return Ok(()) };
        let work = GitCommand { arguments: vec![ADD_PARTS_COMMAND.to_owned()], input: Some(parts), output: None };
        self.run_import(dir, record, work, "adding the submodules and large files").await
    }

    async fn run_import(
        &self,
        dir: &ContainerDir,
        record: &ContainerRecord,
        work: GitCommand,
        what: &str,
    ) -> Result<(), Error> {
        let done = self.run_git(dir.clone(), record.clone(), work).await?;
        match done.exit {
            CommandExit::Exited { code: 0 } => Ok(()),
            CommandExit::TimedOut => Err(Error::Refused { detail: format!("{what} timed out") }),
            exit => Err(Error::Refused { detail: format!("{what} failed ({exit:?}): {}", done.error_output) }),
        }
    }
}

/// True if this process runs as root. The owner of /proc/self tells it without `unsafe`.
fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|found| found.uid() == 0)
}
