//! Opens the data directory: locks it, adopts running sandboxes and removes leftovers.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use super::processes::{ProcessKind, TrackedProcess};
use super::{DataDir, Service, TrackedSandbox};
use crate::catalog::{Catalog, UnreadableEntry};
use crate::cgroup::CpuConfinement;
use crate::disk_pool::DiskPool;
use crate::error::Error;
use crate::layers::{LayerStore, REMOVING_PREFIX};
use crate::record::{SandboxDir, SandboxRecord};
use crate::sandbox::validate_name;
use crate::{etc_template, tree_removal};

/// Time-out for the previous launcher to end after its server.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

impl Service {
    /// Opens the data directory, once.
    pub(super) fn open_data_dir(&mut self) -> Result<(), Error> {
        if self.data_dir.is_some() {
            return Ok(());
        }
        let sandboxes = self.settings.data_dir.join("sandboxes");
        create_private_dir(&sandboxes)?;
        let sandboxes =
            fs::canonicalize(&sandboxes).map_err(|error| Error::file("resolve the directory", &sandboxes, error))?;
        if let Some(server_user) = self.settings.server_user {
            server_user
                .grant_access(&sandboxes, false)
                .map_err(|error| Error::file("give access to", &sandboxes, error))?;
        }
        if self.lock.is_none() {
            self.lock = Some(lock_file(&sandboxes.join(".lock"))?);
        }
        if self.pool.is_none() {
            self.pool = DiskPool::open(&self.settings.data_dir, self.settings.pool_bytes)?;
        }
        let parent = self.pool.as_ref().map_or(&self.settings.data_dir, |pool| &pool.directory);
        let layers = LayerStore::open(&parent.join("layers"), &self.id_source)?;
        let snapshots = Catalog::open(self.settings.data_dir.join("snapshots"), UnreadableEntry::Keep)?;
        let caches = Catalog::open(self.settings.data_dir.join("caches"), UnreadableEntry::Remove)?;
        let images = Catalog::open(self.settings.data_dir.join("images"), UnreadableEntry::Keep)?;
        let templates = self.settings.data_dir.join("etc");
        let template = etc_template::create_template(&templates)?;
        let adopted_templates = self.adopt_sandboxes(&sandboxes, &layers)?;
        let names: BTreeSet<String> = self.tracked.iter().map(|tracked| tracked.sandbox.clone()).collect();
        self.cgroups.remove_stale(&names);
        let used_templates: Vec<&Path> =
            adopted_templates.iter().map(|path| path.as_path()).chain([template.as_path()]).collect();
        etc_template::prune_templates(&templates, &used_templates);
        self.data_dir = Some(DataDir { sandboxes, template, layers, snapshots, caches, images });
        self.repair_stacks();
        self.check_caches();
        self.collect_unused_layers();
        Ok(())
    }

    /// Finds the sandboxes and their running workers; returns the `/etc` templates that these use.
    fn adopt_sandboxes(&mut self, sandboxes: &Path, layers: &LayerStore) -> Result<Vec<std::path::PathBuf>, Error> {
        let mut templates = Vec::new();
        let entries = fs::read_dir(sandboxes).map_err(|error| Error::file("read", sandboxes, error))?;
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.starts_with(REMOVING_PREFIX) {
                let map = SandboxDir::new(sandboxes, &name).read_map();
                // The next launcher retries what cannot be removed now.
                if let Ok(remover) = self.spawn_remover(&name, vec![entry.path()], map) {
                    self.tracked.push(remover);
                }
                continue;
            }
            // An empty directory never was a sandbox.
            if validate_name(&name).is_err() || fs::remove_dir(entry.path()).is_ok() {
                continue;
            }
            let dir = SandboxDir::new(sandboxes, &name);
            let mut record: Option<SandboxRecord> =
                dir.read_record().filter(|record: &SandboxRecord| record.spec.name == name);
            // Incomplete: no work was in it, and its client will retry. An unreadable record is different: there may be
            // work beside it.
            if !entry.path().join("record.json").exists() && tree_removal::remove_tree(&entry.path()).is_ok() {
                continue;
            }
            if let Some(mut worker_record) = record.as_ref().and_then(|_| dir.read_worker_record()) {
                match worker_record.process.open_if_same() {
                    Some(pidfd) => {
                        worker_record.agent.confined.iter_mut().for_each(CpuConfinement::refresh);
                        templates.push(worker_record.template);
                        self.tracked.push(TrackedProcess {
                            sandbox: name.clone(),
                            kind: ProcessKind::Worker,
                            pidfd,
                            is_child: false,
                            starting: None,
                            failure: None,
                            cgroups: vec![worker_record.worker, worker_record.agent],
                        });
                    }
                    None => {
                        dir.clear_worker_record();
                        self.remove_cgroups(&name, vec![worker_record.worker, worker_record.agent]);
                    }
                }
            }
            if let Some(server_user) = self.settings.server_user.filter(|_| record.is_some()) {
                // The server ran as another user then. A sandbox that it cannot reach shows up as such later.
                let _ = server_user.grant_socket_access(&dir);
            }
            if let Some(record) = record.as_mut().filter(|_| !self.has_worker(&name)) {
                // The next worker gets this launcher's limits.
                record.enforced = self.enforced_limits(&record.map, layers.enforces_quota(&record.stack));
            }
            self.sandboxes.insert(name, TrackedSandbox::from_disk(dir, record));
        }
        Ok(templates)
    }
}

pub(crate) fn create_private_dir(path: &Path) -> Result<(), Error> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| Error::file("create the directory", path, error))
}

fn lock_file(path: &Path) -> Result<File, Error> {
    let file = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|error| Error::file("open", path, error))?;
    let started = Instant::now();
    while file.try_lock().is_err() {
        if started.elapsed() > LOCK_TIMEOUT {
            return Err(Error::DataDirLocked { path: path.to_path_buf() });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(file)
}
