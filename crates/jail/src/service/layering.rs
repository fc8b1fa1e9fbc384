//! Seals, forks and keeps sandboxes' files.
//!
//! The order of steps is what keeps them safe: a sandbox's record names its new top before anything is written there, and
//! nobody else refers to the sealed layer before the sandbox has let go of it. A launcher that ends in between leaves
//! at most a layer that nobody refers to, or a record that is one step ahead of the mounts: the next one mends both.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;

use super::Service;
use super::processes::{Kind, Tracked};
use crate::catalog::{COUNTED, KeptSnapshot, Snapshot, counted, now};
use crate::error::{Error, Kept};
use crate::join::{self, Exchange};
use crate::layers::{Base, Beginning, MOST, Stack};
use crate::place::{Place, Spec, check_label};
use crate::wire::Answer;
use crate::{kernel, maps, measure};

/// Who the layers' remover works for.
const NOBODY: &str = ".layers";

impl Service {
    /// What a new sandbox stands on, with a fresh top.
    pub(super) fn stack_for(&mut self, spec: &Spec) -> Result<Stack, Error> {
        if let Some(stack) = self.volume_for(spec)? {
            return Ok(stack);
        }
        if spec.image.is_some() || spec.snapshot.is_some() {
            self.must_stack(&spec.name)?;
        }
        let store = self.store()?;
        let missing = |kind, name: &str| Error::NotKept { kind, name: name.to_owned() };
        let image = match &spec.image {
            None => None,
            Some(name) => {
                let kept = store.images.kept.get(name).ok_or_else(|| missing(Kept::Image, name))?;
                Some(Base { name: name.clone(), layer: kept.layer.clone() })
            }
        };
        let Some(name) = &spec.snapshot else {
            let top = store.layers.make(Beginning::Empty, image.is_some())?;
            return Ok(Stack { top, below: Vec::new(), image, volume: None });
        };
        let kept = store.snapshots.kept.get(name).ok_or_else(|| missing(Kept::Snapshot, name))?;
        same_root(image.as_ref(), kept)?;
        let top = store.layers.make(Beginning::Above, kept.image.is_some())?;
        Ok(Stack { top, below: kept.layers.clone(), image: kept.image.clone(), volume: None })
    }

    pub(super) fn fork(&mut self, parent: &str, spec: Spec) -> Result<Place, Error> {
        spec.check()?;
        if let Some(sandbox) = self.sandboxes.get(&spec.name) {
            return match sandbox.ending {
                Some(_) => Err(Error::Ending { name: spec.name }),
                None => self.known(&spec.name),
            };
        }
        if spec.image.is_some() || spec.snapshot.is_some() {
            return Err(Error::Spec { reason: "a fork has its parent's files, not an image's or a snapshot's".into() });
        }
        if let Some(stack) = self.fork_volume(parent, spec.limits.disk_bytes)? {
            return self.make_sandbox(spec, stack);
        }
        let (below, image) = self.seal(parent)?;
        let top = self.store()?.layers.make(Beginning::Above, image.is_some())?;
        self.make_sandbox(spec, Stack { top, below, image, volume: None })
    }

    /// Lets a sandbox go on with a fresh top; returns what lies below it now.
    fn seal(&mut self, name: &str) -> Result<(Vec<String>, Option<Base>), Error> {
        self.may_seal(name)?;
        self.seal_now(name)
    }

    /// Nobody is at work on its files whom the launcher let in.
    pub(super) fn may_seal(&self, name: &str) -> Result<(), Error> {
        self.may_start(name)?;
        self.await_starting(name);
        if self.tracked.iter().any(|tracked| tracked.sandbox == name && matches!(tracked.kind, Kind::Run { .. })) {
            return Err(Error::Busy { name: name.to_owned(), reason: "a program works on its files".to_owned() });
        }
        if self.is_paused(name) {
            return Err(Error::Busy { name: name.to_owned(), reason: "it is paused".to_owned() });
        }
        Ok(())
    }

    fn seal_now(&mut self, name: &str) -> Result<(Vec<String>, Option<Base>), Error> {
        let (_, record) = self.sandbox(name)?;
        let (old, layers) = (record.clone(), &self.store()?.layers);
        if !old.stack.below.is_empty() && layers.is_untouched(&old.stack.top) {
            return Ok((old.stack.below, old.stack.image));
        }
        if old.stack.below.len() >= MOST {
            return Err(Error::TooDeep { name: name.to_owned(), layers: old.stack.below.len() });
        }
        self.must_stack(name)?;
        let fresh = self.store()?.layers.make(Beginning::Above, old.stack.image.is_some())?;
        let mut record = old.clone();
        record.stack = old.stack.sealed(fresh.clone());
        if let Err(error) = self.put_record(name, &record) {
            self.discard_layers([fresh.as_str()]);
            return Err(error);
        }
        if let Err(error) = self.exchange(name) {
            // Some of its files are the new ones already: what is written there must not be lost. All that it had lies
            // below them.
            if self.may_show(name, &fresh) {
                return Err(error);
            }
            // It goes on with what it had; nobody has seen the other. Should the record not be written, the next
            // launcher sees by the mounts how it is.
            if let Some(sandbox) = self.sandboxes.get_mut(name) {
                sandbox.record = Some(old.clone());
            }
            self.put_record(name, &old)?;
            self.discard_layers([fresh.as_str()]);
            return Err(error);
        }
        Ok((record.stack.below, record.stack.image))
    }

    /// Whether a sandbox writes to a layer anywhere, or did while its worker lived.
    fn may_show(&self, name: &str, layer: &str) -> bool {
        let life = self.sandbox(name).ok().and_then(|(sandbox, _)| sandbox.home.read_life());
        let mounts = life.and_then(|life| fs::read_to_string(format!("/proc/{}/mountinfo", life.process.pid)).ok());
        mounts.is_none_or(|mounts| join::shows(&mounts, layer))
    }

    fn put_record(&mut self, name: &str, record: &crate::record::Record) -> Result<(), Error> {
        let Some(sandbox) = self.sandboxes.get_mut(name) else { return Err(Error::Unknown { name: name.to_owned() }) };
        let home = &sandbox.home;
        home.replace(record).map_err(|error| Error::file("write the record in", &home.directory, error))?;
        sandbox.record = Some(record.clone());
        Ok(())
    }

    /// Gives a living sandbox the files that its record names.
    fn exchange(&mut self, name: &str) -> Result<(), Error> {
        let (_, record) = self.sandbox(name)?;
        let (map, stack, protected) = (record.map.clone(), record.stack.clone(), record.spec.protected.clone());
        let failed = |failure| Error::step(name, failure);
        let namespace = self.mapping(&map).map_err(failed)?;
        let is_worker = |tracked: &&Tracked| tracked.sandbox == name && tracked.kind == Kind::Worker;
        let Some(worker) = self.tracked.iter().find(is_worker) else { return Ok(()) };
        let layers = &self.store()?.layers;
        let store = match namespace {
            Some(namespace) => Some(layers.tree(&namespace).map_err(failed)?),
            None => None,
        };
        let process = worker.hold.as_fd();
        let exchange = Exchange { process, map: &map, layers, stack: &stack, protected: &protected, store };
        // The lock stays with the helper too: if this process ends now, the next launcher waits until it is done.
        join::exchange(&exchange, || kernel::close_copy(self.socket.as_fd())).map_err(failed)
    }

    pub(super) fn snapshot(&mut self, name: &str, snapshot: &str) -> Result<Snapshot, Error> {
        check_label(snapshot)?;
        if self.store()?.snapshots.kept.contains_key(snapshot) {
            return Err(Error::Taken { kind: Kept::Snapshot, name: snapshot.to_owned() });
        }
        let kept = match self.copy_for_keeping(name)? {
            Some((layer, image, beside)) => {
                let (layers, beside) = (vec![layer], Some(beside));
                KeptSnapshot { name: snapshot.to_owned(), created_at: now(), layers, image, beside }
            }
            None => {
                let (layers, image) = self.seal(name)?;
                KeptSnapshot { name: snapshot.to_owned(), created_at: now(), layers, image, beside: None }
            }
        };
        if let Err(error) = self.store_mut()?.snapshots.keep(snapshot, kept.clone()) {
            // A copy was made for it alone.
            if kept.beside.is_some() {
                self.discard_layers(kept.layers.iter().map(String::as_str));
            }
            return Err(error);
        }
        self.count(&kept.layers);
        Ok(self.shown(&kept))
    }

    fn shown(&self, kept: &KeptSnapshot) -> Snapshot {
        let sizes = self
            .store
            .as_ref()
            .map(|store| kept.layers.iter().map(|layer| counted(&store.layers.layer(layer))).sum::<Option<u64>>());
        Snapshot {
            name: kept.name.clone(),
            image: kept.image.as_ref().map(|base| base.name.clone()),
            created_at: kept.created_at,
            bytes: sizes.flatten(),
            depth: u32::try_from(kept.layers.len()).unwrap_or(u32::MAX),
        }
    }

    pub(super) fn list_snapshots(&self, id: u64) -> Result<(), Error> {
        for kept in self.store()?.snapshots.kept.values() {
            self.answer(id, Ok(Answer::Snapshot(self.shown(kept))))?;
        }
        self.answer(id, Ok(Answer::Done))
    }

    pub(super) fn forget_snapshot(&mut self, snapshot: &str) -> Result<(), Error> {
        check_label(snapshot)?;
        let Some(kept) = self.store_mut()?.snapshots.forget(snapshot)? else {
            return Err(Error::NotKept { kind: Kept::Snapshot, name: snapshot.to_owned() });
        };
        let paths = self.let_go(None, kept.layers.iter().map(String::as_str));
        self.remove_in_background(paths);
        Ok(())
    }

    /// Sealed layers don't change: each is counted once, by a process of its own.
    fn count(&mut self, layers: &[String]) {
        let Some(store) = &self.store else { return };
        let uncounted: Vec<PathBuf> =
            layers.iter().map(|layer| store.layers.layer(layer)).filter(|path| counted(path).is_none()).collect();
        if uncounted.is_empty() {
            return;
        }
        let counter = maps::spawn_within(&store.layers.map, || {
            self.close_copies();
            for path in &uncounted {
                let Ok(found) = measure::trees(std::slice::from_ref(path)) else { continue };
                // Without it the size is unknown, no more.
                let _ = fs::write(path.join("bytes.new"), found.bytes.to_string());
                let _ = fs::rename(path.join("bytes.new"), path.join(COUNTED));
            }
            0
        });
        if let Ok(counter) = counter {
            self.tracked.push(background(Kind::Measurer, NOBODY, counter));
        }
    }

    /// All layers that records, snapshots and images refer to, but for those of one sandbox.
    fn used_layers(&self, but: Option<&str>) -> BTreeSet<String> {
        let records = self.sandboxes.iter().filter(|(name, _)| Some(name.as_str()) != but);
        let mut used: BTreeSet<String> = records
            .filter_map(|(_, sandbox)| sandbox.record.as_ref())
            .flat_map(|record| record.stack.layers().map(str::to_owned))
            .collect();
        if let Some(store) = &self.store {
            for kept in store.snapshots.kept.values() {
                used.extend(kept.layers.iter().cloned());
                used.extend(kept.image.iter().map(|base| base.layer.clone()));
            }
            used.extend(store.images.kept.values().map(|kept| kept.layer.clone()));
        }
        used.extend(self.imports.iter().map(|import| import.layer.clone()));
        used
    }

    /// Takes those of `layers` out of use that nobody needs any more; they are to be removed.
    pub(super) fn let_go<'a>(&self, but: Option<&str>, layers: impl Iterator<Item = &'a str>) -> Vec<PathBuf> {
        if self.is_unsure() {
            return Vec::new();
        }
        let used = self.used_layers(but);
        let Ok(store) = self.store() else { return Vec::new() };
        store.layers.discard(layers.filter(|layer| !used.contains(*layer)))
    }

    /// Something that can't be read may refer to any layer.
    fn is_unsure(&self) -> bool {
        let half_made = self.sandboxes.values().any(|sandbox| sandbox.record.is_none());
        half_made || self.store.as_ref().is_none_or(|store| store.snapshots.unreadable || store.images.unreadable)
    }

    pub(super) fn discard_layers<'a>(&mut self, layers: impl IntoIterator<Item = &'a str>) {
        let paths = self.store().map(|store| store.layers.discard(layers)).unwrap_or_default();
        self.remove_in_background(paths);
    }

    pub(super) fn remove_in_background(&mut self, paths: Vec<PathBuf>) {
        let Some(store) = self.store.as_ref().filter(|_| !paths.is_empty()) else { return };
        // What can't be removed now is swept when the next launcher starts.
        if let Ok(remover) = self.remover(NOBODY, paths, Some(store.layers.map.clone())) {
            self.tracked.push(remover);
        }
    }

    /// Removes what earlier launchers left of layers.
    pub(super) fn sweep_layers(&mut self) {
        if self.is_unsure() {
            return;
        }
        let used = self.used_layers(None);
        let mut paths = self.store().map(|store| store.layers.sweep(&used)).unwrap_or_default();
        paths.extend(self.left_in(&used));
        self.remove_in_background(paths);
    }

    /// A launcher that ended between the record of a new top and the exchange of the files leaves a sandbox that
    /// writes to the layer below. Nobody else refers to that one yet: it is the top again.
    pub(super) fn mend_stacks(&mut self) {
        let mut mended = Vec::new();
        for tracked in self.tracked.iter().filter(|tracked| tracked.kind == Kind::Worker) {
            let Ok((sandbox, record)) = self.sandbox(&tracked.sandbox) else { continue };
            let (Some(before), Some(life)) = (record.stack.unsealed(), sandbox.home.read_life()) else { continue };
            let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", life.process.pid)).unwrap_or_default();
            if join::top_of(&mounts).is_some_and(|top| top == before.top) {
                let mut record = record.clone();
                record.stack = before;
                mended.push((tracked.sandbox.clone(), record));
            }
        }
        for (name, record) in mended {
            // If it can't be written, the next launcher finds it as this one did.
            let _ = self.put_record(&name, &record);
        }
    }

    pub(super) fn store_mut(&mut self) -> Result<&mut super::Store, Error> {
        self.store.as_mut().ok_or_else(|| Error::protocol("the data directory isn't open"))
    }
}

/// A snapshot belongs to the root that it was taken of.
pub(super) fn same_root(image: Option<&Base>, kept: &KeptSnapshot) -> Result<(), Error> {
    if image.is_none() || image == kept.image.as_ref() {
        return Ok(());
    }
    let has = kept.image.as_ref().map_or("what the host shows", |base| base.name.as_str());
    Err(Error::Spec { reason: format!("the snapshot {} has another root: {has}", kept.name) })
}

/// A process that works beside the loop.
pub(super) fn background(kind: Kind, sandbox: &str, process: kernel::Process) -> Tracked {
    Tracked {
        sandbox: sandbox.to_owned(),
        kind,
        hold: process.descriptor,
        child: true,
        starting: None,
        failure: None,
        leaves: Vec::new(),
    }
}
