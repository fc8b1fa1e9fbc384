//! The `Provider` implementation.

use super::{Local, describe_sandbox, git_run, live_launcher, paused_error, root_exec, sandbox_name, translate_error};
use crate::has_labels;
use crate::worker_client::{file_transfer, port_connection};
use atoll_core::id::SandboxId;
use atoll_core::provider::{
    ByteStream, CacheRef, Capabilities, CreateSpec, DeadWorker, Download, Error, ExecInfo, ExecRef, ExecSpec,
    ExecStream, FileOperation, FileOperationOutput, FileResult, GitOperation, GitResult, ImageRef, ImplementProvider,
    ProviderId, ProviderPage, ProviderSandbox, PtySize, ReadScope, ResourceUsage, SandboxLookup, SnapshotRef, Transfer,
    UploadSummary, capabilities as can,
};
use atoll_core::sandbox::{IsolationTier, ProviderKind};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fs::File;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

pub const CAPABILITIES: Capabilities = Capabilities {
    isolation: can::Isolation::Namespace,
    listing: can::Listing::Exact,
    pause: can::PauseAbility::Memory,
    fork: can::ForkAbility::Idle,
    snapshot: can::SnapshotAbility::Live,
    egress: can::EgressAbility::Domains,
    output: can::OutputAbility::Split,
    attach: can::AttachAbility::FromCursor,
    files: can::FileAbility::Root,
    protected: can::ProtectionAbility::Mounts,
    worker: can::WorkerHost::Server,
    ports: can::PortAbility::Connect,
    images: can::ImageAbility::Import,
    caches: can::CacheAbility::Layers,
    ..Capabilities::NONE
};

impl ImplementProvider for Local {
    fn kind(&self) -> ProviderKind {
        ProviderKind::Local
    }

    fn capabilities(&self) -> Capabilities {
        self.maximum.apply_to(CAPABILITIES)
    }

    async fn check_availability(&self) -> Result<(), Error> {
        self.require_tier(Some(IsolationTier::Standard)).await
    }

    async fn confines_agents(&self) -> bool {
        self.host_confines_agents().await
    }

    async fn find_dead_worker(&self, sandbox: SandboxId) -> Result<DeadWorker, Error> {
        self.load_dead_worker(sandbox).await
    }

    fn disconnect_all(&self) {
        self.disconnect_workers();
    }

    async fn create(&self, spec: &CreateSpec, _key: &str) -> Result<ProviderSandbox, Error> {
        self.create_sandbox(spec).await
    }

    async fn get(&self, id: &ProviderId) -> SandboxLookup {
        match self.find_info(id).await {
            Ok(info) => {
                if info.is_alive {
                    self.ensure_connected(&info);
                }
                SandboxLookup::Found(describe_sandbox(&info))
            }
            Err(Error::Gone) => SandboxLookup::Gone,
            Err(error) => SandboxLookup::Unreachable { detail: error.to_string() },
        }
    }

    async fn list(&self, cursor: Option<&str>) -> Result<ProviderPage, Error> {
        let infos = self.call_launcher(|launcher| launcher.list_sandboxes()).await?;
        let all: BTreeMap<ProviderId, ProviderSandbox> =
            infos.iter().map(|info| (ProviderId(info.name.clone()), describe_sandbox(info))).collect();
        Ok(crate::list_page(&all, cursor, ProviderSandbox::clone))
    }

    async fn find_by_labels(&self, labels: &BTreeMap<String, String>) -> Result<Vec<ProviderSandbox>, Error> {
        let infos = self.call_launcher(|launcher| launcher.list_sandboxes()).await?;
        let fitting = infos.iter().filter(|info| has_labels(&info.labels, labels));
        Ok(fitting
            .map(|info| {
                if info.is_alive {
                    self.ensure_connected(info);
                }
                describe_sandbox(info)
            })
            .collect())
    }

    async fn destroy(&self, id: &ProviderId) -> Result<(), Error> {
        let Ok(name) = sandbox_name(id) else { return Ok(()) };
        self.disconnect_worker(id);
        self.commands.forget_sandbox(id);
        self.call_launcher(move |launcher| launcher.destroy_sandbox(&name)).await
    }

    async fn stop(&self, id: &ProviderId) -> Result<(), Error> {
        let name = self.find_info(id).await?.name;
        self.call_launcher(move |launcher| launcher.kill_sandbox(&name)).await
    }

    async fn reconnect(&self, id: &ProviderId) -> Result<(), Error> {
        let info = self.find_info(id).await?;
        self.disconnect_worker(id);
        if info.is_alive {
            self.ensure_connected(&info);
        }
        Ok(())
    }

    async fn restart_worker(&self, id: &ProviderId) -> Result<(), Error> {
        let name = self.find_info(id).await?.name;
        // Without a link, the end of the old worker is not reported as a death.
        self.disconnect_worker(id);
        self.commands.forget_sandbox(id);
        let restart = move |launcher: &atoll_jail::Launcher| {
            launcher.kill_sandbox(&name)?;
            launcher.start_worker(&name)
        };
        let info = self.call_launcher(restart).await?;
        self.ensure_connected(&info);
        Ok(())
    }

    async fn pause(&self, id: &ProviderId) -> Result<(), Error> {
        let name = self.find_info(id).await?.name;
        self.commands.pause_with(id, self.call_launcher(move |launcher| launcher.pause_sandbox(&name))).await.map(drop)
    }

    async fn resume(&self, id: &ProviderId) -> Result<ProviderSandbox, Error> {
        let name = self.find_info(id).await?.name;
        let info = self.call_launcher(move |launcher| launcher.resume_sandbox(&name)).await?;
        self.commands.mark_resumed(id);
        Ok(describe_sandbox(&info))
    }

    async fn exec(&self, id: &ProviderId, spec: &ExecSpec) -> Result<ExecRef, Error> {
        if let Some(socket) = self.connected_socket(id).filter(|_| !spec.as_root) {
            match self.commands.start_command(id, &socket, spec).await {
                // The worker has ended and the command did not start; ask the launcher for the state.
                Err(Error::Unreachable { .. }) => {}
                started => return started,
            }
        }
        let info = self.find_info(id).await?;
        if !info.is_alive {
            return Err(Error::Refused { detail: "the sandbox is not running".into() });
        }
        if info.is_paused {
            return Err(paused_error());
        }
        if spec.as_root {
            let launcher = match &self.launcher {
                Ok(launcher) => Arc::clone(launcher),
                Err(why) => return Err(Error::Refused { detail: why.clone() }),
            };
            let found = tokio::task::spawn_blocking(move || live_launcher(&launcher)).await;
            let launcher = match found {
                Ok(launcher) => launcher.map_err(|error| translate_error(&error))?,
                Err(error) => return Err(Error::Unreachable { detail: error.to_string() }),
            };
            let connection = root_exec::serve_root_command(launcher, &info)?;
            return self.commands.start_on_connection(id, connection, spec).await;
        }
        self.commands.start_command(id, &info.worker_socket, spec).await
    }

    async fn snapshot(&self, id: &ProviderId, name: &str) -> Result<SnapshotRef, Error> {
        self.create_snapshot(id, name).await
    }

    async fn snapshots(&self) -> Result<Vec<SnapshotRef>, Error> {
        self.list_snapshots().await
    }

    async fn forget_snapshot(&self, name: &str) -> Result<(), Error> {
        let name = name.to_owned();
        self.forget_entry(move |launcher| launcher.forget_snapshot(&name)).await
    }

    async fn seal_cache(&self, id: &ProviderId, name: &str) -> Result<CacheRef, Error> {
        self.seal_files(id, name).await
    }

    async fn caches(&self) -> Result<Vec<CacheRef>, Error> {
        self.list_caches().await
    }

    async fn forget_cache(&self, name: &str) -> Result<(), Error> {
        let name = name.to_owned();
        self.forget_entry(move |launcher| launcher.forget_cache(&name)).await
    }

    async fn images(&self) -> Result<Vec<ImageRef>, Error> {
        self.list_images().await
    }

    async fn import_image(&self, name: &str, archive: ByteStream) -> Result<ImageRef, Error> {
        self.import_archive(name, archive).await
    }

    async fn forget_image(&self, name: &str) -> Result<(), Error> {
        let name = name.to_owned();
        self.forget_entry(move |launcher| launcher.forget_image(&name)).await
    }

    async fn fork(&self, id: &ProviderId, spec: &CreateSpec, _key: &str) -> Result<ProviderSandbox, Error> {
        self.fork_files(id, spec).await
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

    async fn connect_port(&self, id: &ProviderId, port: u16) -> Result<Option<TcpStream>, Error> {
        port_connection::connect_port(&self.live_socket(id).await?, port).await
    }

    async fn upload(
        &self,
        id: &ProviderId,
        transfer: &Transfer,
        data: ByteStream,
    ) -> Result<FileResult<UploadSummary>, Error> {
        file_transfer::upload_files(&self.live_socket(id).await?, &self.commands.timeout_for(id), transfer, data).await
    }

    async fn download(
        &self,
        id: &ProviderId,
        transfer: &Transfer,
        scope: ReadScope,
    ) -> Result<FileResult<Download>, Error> {
        let socket = self.live_socket(id).await?;
        file_transfer::download_files(&socket, self.commands.timeout_for(id), transfer, scope).await
    }

    async fn files(&self, id: &ProviderId, job: &FileOperation) -> Result<FileResult<FileOperationOutput>, Error> {
        file_transfer::run_job(&self.live_socket(id).await?, &self.commands.timeout_for(id), job).await
    }

    async fn resize(&self, exec: &ExecRef, size: PtySize) -> Result<(), Error> {
        self.commands.resize_terminal(exec, size)
    }

    async fn execs(&self, id: &ProviderId) -> Result<Vec<ExecInfo>, Error> {
        Ok(self.commands.list_commands(id))
    }

    async fn git(&self, id: &ProviderId, job: &GitOperation, output: File) -> Result<GitResult, Error> {
        let (name, job) = (self.find_info(id).await?.name, job.clone());
        self.call_launcher(move |launcher| Ok(git_run::run_job(launcher, &name, &job, output))).await?
    }

    async fn resources(&self, id: &ProviderId) -> Result<ResourceUsage, Error> {
        let name = self.find_info(id).await?.name;
        let known = self.disk.last_usage(&name);
        let (usage, disk_bytes) = self
            .call_launcher(move |launcher| {
                // Without a figure of the disk monitor, such as directly after the start, the launcher measures now.
                let disk = known.or_else(|| Some(launcher.measure_disk(&name).ok()?.bytes));
                Ok((launcher.read_usage(&name)?, disk))
            })
            .await?;
        Ok(ResourceUsage {
            cpu_seconds: Duration::from_micros(usage.cpu_microseconds.unwrap_or(0)).as_secs_f64(),
            memory_bytes: usage.memory.unwrap_or(0),
            pids: usage.processes.unwrap_or(0),
            disk_bytes,
            ..ResourceUsage::default()
        })
    }
}
