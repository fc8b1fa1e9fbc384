//! The contract, kept: each call, and where it is carried out.

use super::{EPOCH, Local, failure, found, git, living, name, paused, root};
use crate::carries;
use crate::inside::files;
use atoll_core::BoxFuture;
use atoll_core::provider::{
    Answer, ByteStream, Capabilities, CreateSpec, Download, Error, ExecInfo, ExecRef, ExecSpec, ExecStream, FileDone,
    FileJob, Found, GitDone, GitJob, ImageRef, Lookup, Page, Provider, ProviderId, Size, SnapshotRef, StopMode,
    Transfer, Uploaded, Usage, Worked, capabilities as can,
};
use atoll_core::sandbox::{IsolationTier, Network, ProviderKind};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

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
            protected: can::ProtectedPaths::Mounts,
            max_memory_gb: None,
            max_cpu: None,
            max_disk_gb: None,
        }
    }

    /// The sandbox's own id is the key: there can only be one of it on this machine.
    fn isolation(&self) -> BoxFuture<'_, Option<IsolationTier>> {
        Box::pin(self.given_tier())
    }

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
            self.commands.destroyed(id);
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
            self.commands.pausing(id, self.ask(move |launcher| launcher.pause(&name))).await.map(drop)
        })
    }

    fn resume<'a>(&'a self, id: &'a ProviderId) -> Answer<'a, Found> {
        Box::pin(async move {
            let name = self.place(id).await?.name;
            let place = self.ask(move |launcher| launcher.resume(&name)).await?;
            self.commands.resumed(id);
            Ok(found(&place))
        })
    }

    fn exec<'a>(&'a self, id: &'a ProviderId, spec: &'a ExecSpec) -> Answer<'a, ExecRef> {
        Box::pin(async move {
            if let Some(socket) = self.connected(id).filter(|_| !spec.as_root) {
                match self.commands.start(id, EPOCH, &socket, spec).await {
                    // It has ended meanwhile, and the launcher knows more. Nothing was started.
                    Err(Error::Unreachable { .. }) => {}
                    started => return started,
                }
            }
            let place = self.place(id).await?;
            if !place.alive {
                return Err(Error::Refused { detail: "nothing runs in this sandbox any more".into() });
            }
            if place.paused {
                return Err(paused());
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
        Box::pin(async move { self.commands.close_stdin(exec) })
    }

    fn signal<'a>(&'a self, exec: &'a ExecRef, signal: i32) -> Answer<'a, ()> {
        Box::pin(async move { self.commands.signal(exec, signal) })
    }

    fn upload<'a>(
        &'a self,
        id: &'a ProviderId,
        transfer: &'a Transfer,
        data: ByteStream,
    ) -> Answer<'a, Worked<Uploaded>> {
        Box::pin(
            async move { files::upload(&self.worker(id).await?, &self.commands.patience(id), transfer, data).await },
        )
    }

    fn download<'a>(&'a self, id: &'a ProviderId, transfer: &'a Transfer) -> Answer<'a, Worked<Download>> {
        Box::pin(async move { files::download(&self.worker(id).await?, self.commands.patience(id), transfer).await })
    }

    fn files<'a>(&'a self, id: &'a ProviderId, job: &'a FileJob) -> Answer<'a, Worked<FileDone>> {
        Box::pin(async move { files::run(&self.worker(id).await?, &self.commands.patience(id), job).await })
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
            let known = self.disk.last(&name);
            let (usage, disk_bytes) = self
                .ask(move |launcher| {
                    let disk = known.map_or_else(|| launcher.disk(&name).map(|found| found.bytes), Ok);
                    Ok((launcher.usage(&name)?, disk?))
                })
                .await?;
            Ok(Usage {
                cpu_seconds: Duration::from_micros(usage.cpu_microseconds.unwrap_or(0)).as_secs_f64(),
                memory_bytes: usage.memory.unwrap_or(0),
                pids: usage.processes.unwrap_or(0),
                disk_bytes,
                ..Usage::default()
            })
        })
    }
}
