//! The `Provider` implementation.

use super::{Local, describe_sandbox, git_run, live_launcher, paused_error, root_exec, sandbox_name, translate_error};
use crate::has_labels;
use crate::worker_client::file_transfer;
use atoll_core::BoxFuture;
use atoll_core::id::SandboxId;
use atoll_core::provider::{
    ByteStream, Capabilities, CreateSpec, DeadWorker, Download, Error, ExecInfo, ExecRef, ExecSpec, ExecStream,
    FileOperation, FileOperationOutput, FileResult, GitOperation, GitResult, ImageRef, Provider, ProviderFuture,
    ProviderId, ProviderPage, ProviderSandbox, PtySize, ResourceUsage, SandboxLookup, SnapshotRef, Transfer,
    UploadSummary, capabilities as can,
};
use atoll_core::sandbox::{IsolationTier, ProviderKind};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fs::File;
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
    images: can::ImageAbility::Import,
    ..Capabilities::NONE
};

impl Provider for Local {
    fn kind(&self) -> ProviderKind {
        ProviderKind::Local
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn isolation_tier(&self) -> BoxFuture<'_, Option<IsolationTier>> {
        Box::pin(self.best_tier())
    }

    fn find_dead_worker(&self, sandbox: SandboxId) -> ProviderFuture<'_, DeadWorker> {
        Box::pin(self.load_dead_worker(sandbox))
    }

    fn disconnect_all(&self) {
        self.disconnect_workers();
    }

    fn create<'a>(&'a self, spec: &'a CreateSpec, _key: &'a str) -> ProviderFuture<'a, ProviderSandbox> {
        Box::pin(self.create_sandbox(spec))
    }

    fn get<'a>(&'a self, id: &'a ProviderId) -> BoxFuture<'a, SandboxLookup> {
        Box::pin(async move {
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
        })
    }

    fn list<'a>(&'a self, cursor: Option<&'a str>) -> ProviderFuture<'a, ProviderPage> {
        Box::pin(async move {
            let infos = self.call_launcher(|launcher| launcher.list_sandboxes()).await?;
            let all: BTreeMap<ProviderId, ProviderSandbox> =
                infos.iter().map(|info| (ProviderId(info.name.clone()), describe_sandbox(info))).collect();
            Ok(crate::list_page(&all, cursor, ProviderSandbox::clone))
        })
    }

    fn find_by_labels<'a>(&'a self, labels: &'a BTreeMap<String, String>) -> ProviderFuture<'a, Vec<ProviderSandbox>> {
        Box::pin(async move {
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
        })
    }

    fn destroy<'a>(&'a self, id: &'a ProviderId) -> ProviderFuture<'a, ()> {
        Box::pin(async move {
            let Ok(name) = sandbox_name(id) else { return Ok(()) };
            self.disconnect_worker(id);
            self.commands.forget_sandbox(id);
            self.call_launcher(move |launcher| launcher.destroy_sandbox(&name)).await
        })
    }

    fn stop<'a>(&'a self, id: &'a ProviderId) -> ProviderFuture<'a, ()> {
        Box::pin(async move {
            let name = self.find_info(id).await?.name;
            self.call_launcher(move |launcher| launcher.kill_sandbox(&name)).await
        })
    }

    fn pause<'a>(&'a self, id: &'a ProviderId) -> ProviderFuture<'a, ()> {
        Box::pin(async move {
            let name = self.find_info(id).await?.name;
            self.commands
                .pause_with(id, self.call_launcher(move |launcher| launcher.pause_sandbox(&name)))
                .await
                .map(drop)
        })
    }

    fn resume<'a>(&'a self, id: &'a ProviderId) -> ProviderFuture<'a, ProviderSandbox> {
        Box::pin(async move {
            let name = self.find_info(id).await?.name;
            let info = self.call_launcher(move |launcher| launcher.resume_sandbox(&name)).await?;
            self.commands.mark_resumed(id);
            Ok(describe_sandbox(&info))
        })
    }

    fn exec<'a>(&'a self, id: &'a ProviderId, spec: &'a ExecSpec) -> ProviderFuture<'a, ExecRef> {
        Box::pin(async move {
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
        })
    }

    fn snapshot<'a>(&'a self, id: &'a ProviderId, name: &'a str) -> ProviderFuture<'a, SnapshotRef> {
        Box::pin(self.create_snapshot(id, name))
    }

    fn snapshots(&self) -> ProviderFuture<'_, Vec<SnapshotRef>> {
        Box::pin(self.list_snapshots())
    }

    fn forget_snapshot<'a>(&'a self, name: &'a str) -> ProviderFuture<'a, ()> {
        let name = name.to_owned();
        Box::pin(self.forget_entry(move |launcher| launcher.forget_snapshot(&name)))
    }

    fn images(&self) -> ProviderFuture<'_, Vec<ImageRef>> {
        Box::pin(self.list_images())
    }

    fn import_image<'a>(&'a self, name: &'a str, archive: ByteStream) -> ProviderFuture<'a, ImageRef> {
        Box::pin(self.import_archive(name, archive))
    }

    fn forget_image<'a>(&'a self, name: &'a str) -> ProviderFuture<'a, ()> {
        let name = name.to_owned();
        Box::pin(self.forget_entry(move |launcher| launcher.forget_image(&name)))
    }

    fn fork<'a>(
        &'a self,
        id: &'a ProviderId,
        spec: &'a CreateSpec,
        _key: &'a str,
    ) -> ProviderFuture<'a, ProviderSandbox> {
        Box::pin(self.fork_files(id, spec))
    }

    fn attach<'a>(&'a self, exec: &'a ExecRef, cursor: u64) -> ProviderFuture<'a, ExecStream> {
        Box::pin(async move { self.commands.attach_reader(exec, cursor) })
    }

    fn write<'a>(&'a self, exec: &'a ExecRef, data: Bytes) -> ProviderFuture<'a, ()> {
        Box::pin(async move { self.commands.write_stdin(exec, &data).await })
    }

    fn close_stdin<'a>(&'a self, exec: &'a ExecRef) -> ProviderFuture<'a, ()> {
        Box::pin(async move { self.commands.close_stdin(exec) })
    }

    fn signal<'a>(&'a self, exec: &'a ExecRef, signal: i32) -> ProviderFuture<'a, ()> {
        Box::pin(async move { self.commands.signal_command(exec, signal) })
    }

    fn upload<'a>(
        &'a self,
        id: &'a ProviderId,
        transfer: &'a Transfer,
        data: ByteStream,
    ) -> ProviderFuture<'a, FileResult<UploadSummary>> {
        Box::pin(async move {
            file_transfer::upload_files(&self.live_socket(id).await?, &self.commands.timeout_for(id), transfer, data)
                .await
        })
    }

    fn download<'a>(&'a self, id: &'a ProviderId, transfer: &'a Transfer) -> ProviderFuture<'a, FileResult<Download>> {
        Box::pin(async move {
            file_transfer::download_files(&self.live_socket(id).await?, self.commands.timeout_for(id), transfer).await
        })
    }

    fn files<'a>(
        &'a self,
        id: &'a ProviderId,
        job: &'a FileOperation,
    ) -> ProviderFuture<'a, FileResult<FileOperationOutput>> {
        Box::pin(async move {
            file_transfer::run_job(&self.live_socket(id).await?, &self.commands.timeout_for(id), job).await
        })
    }

    fn resize<'a>(&'a self, exec: &'a ExecRef, size: PtySize) -> ProviderFuture<'a, ()> {
        Box::pin(async move { self.commands.resize_terminal(exec, size) })
    }

    fn execs<'a>(&'a self, id: &'a ProviderId) -> ProviderFuture<'a, Vec<ExecInfo>> {
        Box::pin(async move { Ok(self.commands.list_commands(id)) })
    }

    fn git<'a>(&'a self, id: &'a ProviderId, job: &'a GitOperation, output: File) -> ProviderFuture<'a, GitResult> {
        Box::pin(async move {
            let (name, job) = (self.find_info(id).await?.name, job.clone());
            self.call_launcher(move |launcher| Ok(git_run::run_job(launcher, &name, &job, output))).await?
        })
    }

    fn resources<'a>(&'a self, id: &'a ProviderId) -> ProviderFuture<'a, ResourceUsage> {
        Box::pin(async move {
            let name = self.find_info(id).await?.name;
            let known = self.disk.last_usage(&name);
            let (usage, disk_bytes) = self
                .call_launcher(move |launcher| {
                    let disk = known.map_or_else(|| launcher.measure_disk(&name).map(|found| found.bytes), Ok);
                    Ok((launcher.read_usage(&name)?, disk?))
                })
                .await?;
            Ok(ResourceUsage {
                cpu_seconds: Duration::from_micros(usage.cpu_microseconds.unwrap_or(0)).as_secs_f64(),
                memory_bytes: usage.memory.unwrap_or(0),
                pids: usage.processes.unwrap_or(0),
                disk_bytes,
                ..ResourceUsage::default()
            })
        })
    }
}
