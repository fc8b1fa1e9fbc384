//! The launcher's requests.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;

use super::processes::{ProcessKind, TrackedProcess, add_usage};
use super::{DataDir, Service, TrackedSandbox};
use crate::cgroup::CgroupEnforcement;
use crate::error::Error;
use crate::file_writers::KillScope;
use crate::id_ranges::IdMap;
use crate::layers::{LayerStack, LayerStore};
use crate::record::{SandboxDir, SandboxRecord};
use crate::sandbox::{
    EnforcedLimits, Enforcement, IdMapKind, IdRange, SandboxInfo, SandboxSpec, SandboxUsage, validate_name,
};
use crate::server_user::{ServerUser, chown_spool};
use crate::tree_removal;
use crate::wire::{Answer, Request, RequestPacket};

impl Service {
    /// Handles a request. Requests that start a process are answered when it reports or exits.
    pub(super) fn handle_request(&mut self, packet: RequestPacket, descriptors: Vec<OwnedFd>) -> Result<(), Error> {
        let RequestPacket { id, request } = packet;
        match request {
            Request::Probe => {
                let report = self.probe_host();
                return self.send_answer(id, Ok(Answer::Report(Box::new(report))));
            }
            Request::KillRun { run } => {
                self.kill_run(run);
                return Ok(());
            }
            _ => {}
        }
        if let Err(error) = self.open_data_dir() {
            return self.send_answer(id, Err(error));
        }
        let answer = match request {
            Request::Probe | Request::KillRun { .. } => Ok(None),
            // These send several answers, or one when the processes are gone.
            Request::List => return self.list_sandboxes(id),
            Request::CpuTimes => return self.send_cpu_times(id),
            Request::Snapshots { kind } => return self.list_copies(id, kind),
            Request::Images => return self.list_images(id),
            Request::Kill { name } => return self.kill_sandbox(id, &name),
            Request::Destroy { name } => match validate_name(&name) {
                Ok(()) => return self.destroy_sandbox(id, &name),
                Err(error) => Err(error),
            },
            Request::Prepare(spec) => self.prepare_sandbox(spec).map(sandbox_answer),
            Request::Find { name } => self.sandbox_info(&name).map(sandbox_answer),
            Request::Resume { name } => self.resume_sandbox(&name).map(sandbox_answer),
            Request::ReleaseSpool { name } => self.release_spool(&name).map(sandbox_answer),
            Request::Fork { parent, spec } => self.fork_sandbox(&parent, spec).map(sandbox_answer),
            Request::Usage { name } => self.read_usage(&name).map(|usage| Some(Answer::Usage(usage))),
            Request::Snapshot { kind, name, label } => {
                self.create_copy(kind, &name, &label).map(|made| Some(Answer::Snapshot(made)))
            }
            Request::ForgetSnapshot { kind, label } => self.forget_copy(kind, &label).map(|()| Some(Answer::Done)),
            Request::ForgetImage { image } => self.forget_image(&image).map(|()| Some(Answer::Done)),
            Request::StartWorker { name } => self.start_worker(id, &name).map(answer_later),
            Request::Run { name, argv } => self.run_program(id, &name, &argv, descriptors).map(answer_later),
            Request::Exec { name, program } => self.exec_program(id, &name, &program, descriptors).map(answer_later),
            Request::ImportImage { image } => self.import_image(id, &image, descriptors).map(answer_later),
            Request::Pause { name } => self.pause_sandbox(id, &name).map(answer_later),
            Request::MeasureDisk { name } => self.measure_disk(id, &name).map(answer_later),
            Request::KillWriters { name, kill_all } => {
                let scope = if kill_all { KillScope::All } else { KillScope::Writers };
                self.kill_writers(id, &name, scope).map(answer_later)
            }
        };
        answer.transpose().map_or(Ok(()), |answer| self.send_answer(id, answer))
    }

    /// Gives the spool to the server's user, unless a worker still runs.
    fn release_spool(&self, name: &str) -> Result<SandboxInfo, Error> {
        let (sandbox, record) = self.find_sandbox(name)?;
        if let Some(owner) = self.settings.server_user.filter(|_| !self.has_worker(name)) {
            let layers = &self.data_dir()?.layers;
            let spool = sandbox.dir.spool_dir(layers, &record.stack);
            if let Some(volume) = &record.stack.volume {
                for directory in [&layers.directory, &layers.layer_dir(&volume.spool)] {
                    owner.grant_access(directory, false).map_err(|error| Error::file("open", directory, error))?;
                }
            }
            chown_spool(&spool, owner.uid, owner.gid)
                .map_err(|error| Error::file("change the owner of", &spool, error))?;
        }
        self.sandbox_info(name)
    }

    fn list_sandboxes(&self, id: u64) -> Result<(), Error> {
        for name in self.sandboxes.keys() {
            match self.sandbox_info(name) {
                Ok(info) => self.send_answer(id, Ok(Answer::SandboxItem(Box::new(info))))?,
                Err(Error::Incomplete { .. }) => {}
                Err(error) => return self.send_answer(id, Err(error)),
            }
        }
        self.send_answer(id, Ok(Answer::Done))
    }

    pub(super) fn sandbox_info(&self, name: &str) -> Result<SandboxInfo, Error> {
        let (sandbox, record) = self.find_sandbox(name)?;
        let info = sandbox.dir.to_info(record, &self.data_dir()?.layers, self.has_worker(name), sandbox.exit);
        Ok(SandboxInfo {
            is_paused: self.is_paused(name),
            unprotected: sandbox.unprotected.clone(),
            seals_fix_dirs: self.seals_fix_dirs(&record.stack),
            ..info
        })
    }

    pub(super) fn find_sandbox(&self, name: &str) -> Result<(&TrackedSandbox, &SandboxRecord), Error> {
        let sandbox = self.sandboxes.get(name).ok_or_else(|| Error::UnknownSandbox { name: name.to_owned() })?;
        let record = sandbox.record.as_ref().ok_or_else(|| Error::Incomplete { name: name.to_owned() })?;
        Ok((sandbox, record))
    }

    pub(super) fn has_worker(&self, name: &str) -> bool {
        self.tracked.iter().any(|tracked| tracked.sandbox == name && tracked.kind == ProcessKind::Worker)
    }

    pub(super) fn data_dir(&self) -> Result<&DataDir, Error> {
        self.data_dir.as_ref().ok_or_else(|| Error::protocol("the data directory isn't open"))
    }

    fn read_usage(&self, name: &str) -> Result<SandboxUsage, Error> {
        let (sandbox, _) = self.find_sandbox(name)?;
        let living = self.tracked.iter().filter(|tracked| tracked.sandbox == name).map(TrackedProcess::usage);
        Ok(living.fold(sandbox.usage, add_usage))
    }

    fn prepare_sandbox(&mut self, spec: SandboxSpec) -> Result<SandboxInfo, Error> {
        spec.validate()?;
        let name = spec.name.clone();
        if let Some(sandbox) = self.sandboxes.get(&name) {
            return match sandbox.ending {
                Some(_) => Err(Error::Ending { name }),
                None => self.sandbox_info(&name),
            };
        }
        let stack = self.create_stack(&spec)?;
        if let Some(cache) = &spec.cache {
            self.record_cache_use(&cache.name);
        }
        self.create_sandbox(spec, stack)
    }

    /// Creates a sandbox from its layer stack.
    pub(super) fn create_sandbox(&mut self, spec: SandboxSpec, stack: LayerStack) -> Result<SandboxInfo, Error> {
        let name = spec.name.clone();
        let store = self.data_dir()?;
        let map = match store.layers.allocate_map(&self.id_source, &self.used_id_ranges()) {
            Ok(map) => map,
            Err(error) => {
                self.discard_layers(stack.exclusive_layers());
                return Err(error);
            }
        };
        let dir = SandboxDir::new(&store.sandboxes, &name);
        let enforced = self.enforced_limits(&map, store.layers.enforces_quota(&stack));
        let record = SandboxRecord { spec, map, enforced, stack };
        let admit = |owner: ServerUser| {
            owner.grant_socket_access(&dir).map_err(|error| Error::file("give access to", &dir.directory, error))
        };
        let result = create_sandbox_dirs(&dir, &record, &store.layers)
            .and_then(|()| self.settings.server_user.map_or(Ok(()), admit));
        if let Err(error) = result {
            for path in store.layers.mark_for_removal(record.stack.exclusive_layers()) {
                // The next launcher removes the rest.
                let _ = tree_removal::remove_tree(&path);
            }
            if tree_removal::remove_tree(&dir.directory).is_err() {
                let half = TrackedSandbox::from_disk(dir, None);
                self.sandboxes.insert(name, half);
            }
            return Err(error);
        }
        let info = dir.to_info(&record, &store.layers, false, None);
        self.sandboxes.insert(name, TrackedSandbox::from_disk(dir, Some(record)));
        Ok(info)
    }

    pub(super) fn used_id_ranges(&self) -> Vec<IdRange> {
        self.sandboxes.values().filter_map(|sandbox| sandbox.record.as_ref()?.map.exclusive_range()).collect()
    }

    pub(super) fn enforced_limits(&self, map: &IdMap, bounded: bool) -> EnforcedLimits {
        let CgroupEnforcement { memory, cpu, pids } = self.cgroups.enforcement();
        EnforcedLimits {
            memory: CgroupEnforcement::enforcement_or(memory, Enforcement::PerProcess),
            cpu: CgroupEnforcement::enforcement_or(cpu, Enforcement::None),
            pids: CgroupEnforcement::enforcement_or(pids, Enforcement::PerProcess),
            open_files: Enforcement::PerProcess,
            disk: if bounded { Enforcement::Enforced } else { Enforcement::Monitored },
            ids: map.ids,
        }
    }
}

fn sandbox_answer(info: SandboxInfo) -> Option<Answer> {
    Some(Answer::Sandbox(Box::new(info)))
}

/// No answer yet: the process that was started reports it.
const fn answer_later((): ()) -> Option<Answer> {
    None
}

/// Creates a sandbox's directories. The draft of the record comes first, so that the rest can be removed with the right
/// ids; it becomes the record at the end.
pub(super) fn create_sandbox_dirs(dir: &SandboxDir, record: &SandboxRecord, layers: &LayerStore) -> Result<(), Error> {
    let failed = |path: &std::path::Path, error: io::Error| Error::file("create", path, error);
    let private =
        |path: &std::path::Path| DirBuilder::new().mode(0o700).create(path).map_err(|error| failed(path, error));
    private(&dir.directory)?;
    dir.write_draft(record).map_err(|error| failed(&dir.directory, error))?;
    private(&dir.socket_dir())?;
    let modes = [(dir.tmp_dir(layers, &record.stack), 0o1777), (dir.spool_dir(layers, &record.stack), 0o700)];
    for (path, mode) in &modes {
        private(path)?;
        fs::set_permissions(path, Permissions::from_mode(*mode)).map_err(|error| failed(path, error))?;
    }
    set_owners(&modes.map(|(path, _)| path), &record.map)?;
    dir.commit_draft().map_err(|error| failed(&dir.directory, error))
}

/// Gives the directories to the sandbox's root; for an unprivileged user the launcher has that id already.
fn set_owners(paths: &[PathBuf], map: &IdMap) -> Result<(), Error> {
    match map.ids {
        IdMapKind::SingleId | IdMapKind::SubIds => Ok(()),
        IdMapKind::OwnRange | IdMapKind::CommonRange => paths.iter().try_for_each(|path| {
            std::os::unix::fs::chown(path, map.host_uid(0), map.host_gid(0))
                .map_err(|error| Error::file("change the owner of", path, error))
        }),
    }
}
