//! Takes over the data directory: one launcher at a time, and what the last one left.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use super::processes::{Kind, Tracked};
use super::{Sandbox, Service, Store};
use crate::catalog::Shelf;
use crate::cgroup::Confined;
use crate::error::Error;
use crate::layers::{GONE, Layers};
use crate::place::check_name;
use crate::pool::Pool;
use crate::record::{Home, Record};
use crate::{remove, template};

/// How long a launcher whose server is gone may take to end.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

impl Service {
    /// Makes the data directory ours, once.
    pub(super) fn open(&mut self) -> Result<(), Error> {
        if self.store.is_some() {
            return Ok(());
        }
        let sandboxes = self.settings.data.join("sandboxes");
        private_directory(&sandboxes)?;
        let sandboxes =
            fs::canonicalize(&sandboxes).map_err(|error| Error::file("find the directory", &sandboxes, error))?;
        if let Some(owner) = self.settings.owner {
            owner.admit(&sandboxes, false).map_err(|error| Error::file("give access to", &sandboxes, error))?;
        }
        if self.lock.is_none() {
            self.lock = Some(lock(&sandboxes.join(".lock"))?);
        }
        if self.pool.is_none() {
            self.pool = Pool::open(&self.settings.data, self.settings.pool)?;
        }
        let above = self.pool.as_ref().map_or(&self.settings.data, |pool| &pool.directory);
        let layers = Layers::open(&above.join("layers"), &self.ids)?;
        let snapshots = Shelf::open(self.settings.data.join("snapshots"))?;
        let images = Shelf::open(self.settings.data.join("images"))?;
        let templates = self.settings.data.join("etc");
        let template = template::make(&templates)?;
        let lives = self.take_over(&sandboxes, &layers)?;
        let names: BTreeSet<String> = self.tracked.iter().map(|tracked| tracked.sandbox.clone()).collect();
        self.groups.sweep(&names);
        let shown: Vec<&Path> = lives.iter().map(|path| path.as_path()).chain([template.as_path()]).collect();
        template::prune(&templates, &shown);
        self.store = Some(Store { sandboxes, template, layers, snapshots, images });
        self.mend_stacks();
        self.sweep_layers();
        Ok(())
    }

    /// Finds the sandboxes and which of them live; returns the templates that these show.
    fn take_over(&mut self, sandboxes: &Path, layers: &Layers) -> Result<Vec<std::path::PathBuf>, Error> {
        let mut templates = Vec::new();
        let entries = fs::read_dir(sandboxes).map_err(|error| Error::file("read", sandboxes, error))?;
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.starts_with(GONE) {
                let map = Home::new(sandboxes, &name).read_map();
                // What can't be removed now is tried again next time.
                if let Ok(remover) = self.remover(&name, vec![entry.path()], map) {
                    self.tracked.push(remover);
                }
                continue;
            }
            // An empty directory was never more.
            if check_name(&name).is_err() || fs::remove_dir(entry.path()).is_ok() {
                continue;
            }
            let home = Home::new(sandboxes, &name);
            let mut record: Option<Record> = home.read().filter(|record: &Record| record.spec.name == name);
            // Half made by a launcher that is gone: nothing was in it yet, and whoever wanted it asks again.
            // (A record that is there and can't be read is another matter: there may be work beside it.)
            if !entry.path().join("record.json").exists() && remove::tree(&entry.path()).is_ok() {
                continue;
            }
            if let Some(mut life) = record.as_ref().and_then(|_| home.read_life()) {
                match life.process.find() {
                    Some(hold) => {
                        life.agent.confined.iter_mut().for_each(Confined::look);
                        templates.push(life.template);
                        self.tracked.push(Tracked {
                            sandbox: name.clone(),
                            kind: Kind::Worker,
                            hold,
                            child: false,
                            starting: None,
                            failure: None,
                            leaves: vec![life.worker, life.agent],
                        });
                    }
                    None => {
                        home.forget_life();
                        self.leave(&name, vec![life.worker, life.agent]);
                    }
                }
            }
            if let Some(owner) = self.settings.owner.filter(|_| record.is_some()) {
                // Made when the server was another user. Whoever can't be reached is told apart from that.
                let _ = owner.admit_to(&home);
            }
            if let Some(record) = record.as_mut().filter(|_| !self.has_worker(&name)) {
                // Its next worker gets what this launcher can give.
                record.enforced = self.enforced(&record.map, layers.bounds(&record.stack));
            }
            self.sandboxes.insert(name, Sandbox::found(home, record));
        }
        Ok(templates)
    }
}

pub(crate) fn private_directory(path: &Path) -> Result<(), Error> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| Error::file("make the directory", path, error))
}

fn lock(path: &Path) -> Result<File, Error> {
    let file = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|error| Error::file("open", path, error))?;
    let started = Instant::now();
    while file.try_lock().is_err() {
        if started.elapsed() > LOCK_PATIENCE {
            return Err(Error::Locked { path: path.to_path_buf() });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(file)
}
