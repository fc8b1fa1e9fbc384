//! What the launcher is asked for, one by one.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;

use super::processes::{Kind, Tracked, sum};
use super::{Sandbox, Service, Store};
use crate::cgroup::Enforces;
use crate::error::Error;
use crate::ids::Map;
use crate::layers::{Layers, Stack};
use crate::owner::{Owner, give_spool};
use crate::place::{Bound, Enforced, Ids, Place, Range, Spec, Usage, check_name};
use crate::record::{Home, Record};
use crate::remove;
use crate::wire::{Answer, Asked, Request};
use crate::writers::Whom;

impl Service {
    /// Does what is asked and answers; what takes longer is answered when it is done.
    pub(super) fn handle(&mut self, asked: Asked, descriptors: Vec<OwnedFd>) -> Result<(), Error> {
        let Asked { id, request } = asked;
        match request {
            Request::Probe => {
                let report = self.probe();
                return self.answer(id, Ok(Answer::Report(Box::new(report))));
            }
            Request::EndRun { run } => {
                self.end_run(run);
                return Ok(());
            }
            _ => {}
        }
        if let Err(error) = self.open() {
            return self.answer(id, Err(error));
        }
        match request {
            Request::Probe | Request::EndRun { .. } => Ok(()),
            Request::Prepare(spec) => {
                let place = self.prepare(spec).map(|place| Answer::Place(Box::new(place)));
                self.answer(id, place)
            }
            Request::StartWorker { name } => match self.start_worker(id, &name) {
                Ok(()) => Ok(()),
                Err(error) => self.answer(id, Err(error)),
            },
            Request::Run { name, argv } => match self.run(id, &name, &argv, descriptors) {
                Ok(()) => Ok(()),
                Err(error) => self.answer(id, Err(error)),
            },
            Request::Find { name } => {
                let place = self.known(&name).map(|place| Answer::Place(Box::new(place)));
                self.answer(id, place)
            }
            Request::List => self.list(id),
            Request::Kill { name } => self.kill(id, &name),
            Request::Destroy { name } => match check_name(&name) {
                Ok(()) => self.destroy(id, &name),
                Err(error) => self.answer(id, Err(error)),
            },
            Request::Disk { name } => match self.count_disk(id, &name) {
                Ok(()) => Ok(()),
                Err(error) => self.answer(id, Err(error)),
            },
            Request::StopWriters { name, everybody } => {
                let whom = if everybody { Whom::Everybody } else { Whom::Writers };
                match self.stop_writers(id, &name, whom) {
                    Ok(()) => Ok(()),
                    Err(error) => self.answer(id, Err(error)),
                }
            }
            Request::Clocks => self.clocks(id),
            Request::Pause { name } => match self.pause(id, &name) {
                Ok(()) => Ok(()),
                Err(error) => self.answer(id, Err(error)),
            },
            Request::Resume { name } => {
                let place = self.resume(&name).map(|place| Answer::Place(Box::new(place)));
                self.answer(id, place)
            }
            Request::Spool { name } => {
                let place = self.hand_out_spool(&name).map(|place| Answer::Place(Box::new(place)));
                self.answer(id, place)
            }
            Request::Usage { name } => self.answer(id, self.usage(&name).map(Answer::Usage)),
            Request::Fork { parent, spec } => {
                let place = self.fork(&parent, spec).map(|place| Answer::Place(Box::new(place)));
                self.answer(id, place)
            }
            Request::Snapshot { name, snapshot } => {
                let made = self.snapshot(&name, &snapshot).map(Answer::Snapshot);
                self.answer(id, made)
            }
            Request::Snapshots => self.list_snapshots(id),
            Request::ForgetSnapshot { snapshot } => {
                let outcome = self.forget_snapshot(&snapshot).map(|()| Answer::Done);
                self.answer(id, outcome)
            }
            Request::ImportImage { image } => match self.import(id, &image, descriptors) {
                Ok(()) => Ok(()),
                Err(error) => self.answer(id, Err(error)),
            },
            Request::Images => self.list_images(id),
            Request::ForgetImage { image } => {
                let outcome = self.forget_image(&image).map(|()| Answer::Done);
                self.answer(id, outcome)
            }
            Request::Enter { name, program } => match self.enter(id, &name, &program, descriptors) {
                Ok(()) => Ok(()),
                Err(error) => self.answer(id, Err(error)),
            },
        }
    }

    /// As long as the worker lives its spool is its own.
    fn hand_out_spool(&self, name: &str) -> Result<Place, Error> {
        let (sandbox, record) = self.sandbox(name)?;
        if let Some(owner) = self.settings.owner.filter(|_| !self.has_worker(name)) {
            let layers = &self.store()?.layers;
            let spool = sandbox.home.spool(layers, &record.stack);
            if let Some(volume) = &record.stack.volume {
                for directory in [&layers.directory, &layers.layer(&volume.spool)] {
                    owner.admit(directory, false).map_err(|error| Error::file("open", directory, error))?;
                }
            }
            give_spool(&spool, owner.user, owner.group).map_err(|error| Error::file("give away", &spool, error))?;
        }
        self.known(name)
    }

    fn list(&self, id: u64) -> Result<(), Error> {
        for name in self.sandboxes.keys() {
            match self.known(name) {
                Ok(place) => self.answer(id, Ok(Answer::Item(Box::new(place))))?,
                Err(Error::HalfMade { .. }) => {}
                Err(error) => return self.answer(id, Err(error)),
            }
        }
        self.answer(id, Ok(Answer::Done))
    }

    pub(super) fn known(&self, name: &str) -> Result<Place, Error> {
        let (sandbox, record) = self.sandbox(name)?;
        let place = sandbox.home.place(record, &self.store()?.layers, self.has_worker(name), sandbox.exit);
        Ok(Place { paused: self.is_paused(name), unprotected: sandbox.unprotected.clone(), ..place })
    }

    pub(super) fn sandbox(&self, name: &str) -> Result<(&Sandbox, &Record), Error> {
        let sandbox = self.sandboxes.get(name).ok_or_else(|| Error::Unknown { name: name.to_owned() })?;
        let record = sandbox.record.as_ref().ok_or_else(|| Error::HalfMade { name: name.to_owned() })?;
        Ok((sandbox, record))
    }

    pub(super) fn has_worker(&self, name: &str) -> bool {
        self.tracked.iter().any(|tracked| tracked.sandbox == name && tracked.kind == Kind::Worker)
    }

    pub(super) fn store(&self) -> Result<&Store, Error> {
        self.store.as_ref().ok_or_else(|| Error::protocol("the data directory isn't open"))
    }

    fn usage(&self, name: &str) -> Result<Usage, Error> {
        let (sandbox, _) = self.sandbox(name)?;
        let living = self.tracked.iter().filter(|tracked| tracked.sandbox == name).map(Tracked::usage);
        Ok(living.fold(sandbox.usage, sum))
    }

    fn prepare(&mut self, spec: Spec) -> Result<Place, Error> {
        spec.check()?;
        let name = spec.name.clone();
        if let Some(sandbox) = self.sandboxes.get(&name) {
            return match sandbox.ending {
                Some(_) => Err(Error::Ending { name }),
                None => self.known(&name),
            };
        }
        let stack = self.stack_for(&spec)?;
        self.make_sandbox(spec, stack)
    }

    /// Makes a sandbox whose top layer is there.
    pub(super) fn make_sandbox(&mut self, spec: Spec, stack: Stack) -> Result<Place, Error> {
        let name = spec.name.clone();
        let store = self.store()?;
        let map = match store.layers.map_for_another(&self.ids, &self.used()) {
            Ok(map) => map,
            Err(error) => {
                self.discard_layers(stack.own());
                return Err(error);
            }
        };
        let home = Home::new(&store.sandboxes, &name);
        let enforced = self.enforced(&map, store.layers.bounds(&stack));
        let record = Record { spec, map, enforced, stack };
        let admit =
            |owner: Owner| owner.admit_to(&home).map_err(|error| Error::file("give access to", &home.directory, error));
        let made = make(&home, &record, &store.layers).and_then(|()| self.settings.owner.map_or(Ok(()), admit));
        if let Err(error) = made {
            for path in store.layers.discard(record.stack.own()) {
                // What stays is swept when the next launcher starts.
                let _ = remove::tree(&path);
            }
            if remove::tree(&home.directory).is_err() {
                let half = Sandbox::found(home, None);
                self.sandboxes.insert(name, half);
            }
            return Err(error);
        }
        let place = home.place(&record, &store.layers, false, None);
        self.sandboxes.insert(name, Sandbox::found(home, Some(record)));
        Ok(place)
    }

    pub(super) fn used(&self) -> Vec<Range> {
        self.sandboxes.values().filter_map(|sandbox| sandbox.record.as_ref()?.map.range()).collect()
    }

    pub(super) fn enforced(&self, map: &Map, bounded: bool) -> Enforced {
        let Enforces { memory, cpu, pids } = self.groups.enforces();
        Enforced {
            memory: Enforces::bound(memory, Bound::PerProcess),
            cpu: Enforces::bound(cpu, Bound::No),
            pids: Enforces::bound(pids, Bound::PerProcess),
            open_files: Bound::PerProcess,
            disk: if bounded { Bound::Enforced } else { Bound::Watched },
            ids: map.ids,
        }
    }
}

/// Makes a sandbox's directories. A draft of the record comes first: with it the rest can be removed under the right
/// ids. It becomes the record when all is there.
pub(super) fn make(home: &Home, record: &Record, layers: &Layers) -> Result<(), Error> {
    let failed = |path: &std::path::Path, error: io::Error| Error::file("make", path, error);
    let private =
        |path: &std::path::Path| DirBuilder::new().mode(0o700).create(path).map_err(|error| failed(path, error));
    private(&home.directory)?;
    home.write_draft(record).map_err(|error| failed(&home.directory, error))?;
    private(&home.link())?;
    let modes = [(home.temporary(layers, &record.stack), 0o1777), (home.spool(layers, &record.stack), 0o700)];
    for (path, mode) in &modes {
        private(path)?;
        fs::set_permissions(path, Permissions::from_mode(*mode)).map_err(|error| failed(path, error))?;
    }
    give(&modes.map(|(path, _)| path), &record.map)?;
    home.confirm().map_err(|error| failed(&home.directory, error))
}

/// Gives the directories to those inside who shall own them: root, which as an ordinary user's launcher it is already.
fn give(paths: &[PathBuf], map: &Map) -> Result<(), Error> {
    match map.ids {
        Ids::Single | Ids::Shared => Ok(()),
        Ids::Own | Ids::Common => paths.iter().try_for_each(|path| {
            std::os::unix::fs::chown(path, map.user(0), map.group(0))
                .map_err(|error| Error::file("give away", path, error))
        }),
    }
}
