//! Seals layers for forks, snapshots and caches.
//!
//! The order of steps keeps files safe: a sandbox's record names the new top layer before anything is written there,
//! and no other record refers to the sealed layer before the sandbox has stopped writing to it. A launcher that ends in
//! between leaves at most an unreferenced layer, or a record one step ahead of the mounts: the next launcher repairs
//! both.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;

use super::Service;
use super::processes::{ProcessKind, TrackedProcess};
use crate::error::{CatalogKind, Error};
use crate::kernel;
use crate::layers::{ImageLayer, LayerContent, LayerStack, MAX_LOWER_LAYERS};
use crate::live_sandbox::{self, LayerSwap};
use crate::overlay_xattrs::OverlayXattrs;
use crate::sandbox::{SandboxInfo, SandboxSpec};
use crate::setup::overlay::OverlayRequest;

/// The name that the layers' remover is tracked under.
pub(super) const LAYERS_OWNER: &str = ".layers";

impl Service {
    /// Creates the layer stack of a new sandbox.
    pub(super) fn create_stack(&mut self, spec: &SandboxSpec) -> Result<LayerStack, Error> {
        if let Some(stack) = self.create_volume_stack(spec)? {
            return Ok(stack);
        }
        if spec.image.is_some() || spec.snapshot.is_some() || spec.cache.is_some() {
            self.require_overlay(&spec.name)?;
        }
        let store = self.data_dir()?;
        let missing = |kind, name: &str| Error::NotFound { kind, name: name.to_owned() };
        let image = match &spec.image {
            None => None,
            Some(name) => {
                let entry = store.images.entries.get(name).ok_or_else(|| missing(CatalogKind::Image, name))?;
                Some(ImageLayer { name: name.clone(), layer: entry.layer.clone() })
            }
        };
        let Some(entry) = self.find_origin(spec, image.as_ref())? else {
            let xattrs = if image.is_some() { self.xattrs_above([]) } else { OverlayXattrs::User };
            let top = store.layers.create_layer(LayerContent::Empty, image.is_some(), xattrs)?;
            return Ok(LayerStack { top, below: Vec::new(), image, volume: None, uncounted: 0 });
        };
        let xattrs = self.xattrs_above(&entry.layers);
        let top = store.layers.create_layer(LayerContent::Overlay, entry.image.is_some(), xattrs)?;
        let uncounted = if spec.cache.is_some() { entry.layers.len() } else { 0 };
        Ok(LayerStack { top, below: entry.layers.clone(), image: entry.image.clone(), volume: None, uncounted })
    }

    pub(super) fn fork_sandbox(&mut self, parent: &str, spec: SandboxSpec) -> Result<SandboxInfo, Error> {
        spec.validate()?;
        if let Some(sandbox) = self.sandboxes.get(&spec.name) {
            return match sandbox.ending {
                Some(_) => Err(Error::Ending { name: spec.name }),
                None => self.sandbox_info(&spec.name),
            };
        }
        if spec.image.is_some() || spec.snapshot.is_some() || spec.cache.is_some() {
            return Err(Error::InvalidSpec {
                reason: "a fork starts from its parent's files: it cannot have an image, a snapshot or a cache".into(),
            });
        }
        if let Some(stack) = self.fork_volume(parent, spec.limits.disk_bytes)? {
            return self.create_sandbox(spec, stack);
        }
        let (below, image) = self.seal_layer(parent)?;
        self.require_overlay(&spec.name)?;
        let xattrs = self.xattrs_above(&below);
        let top = self.data_dir()?.layers.create_layer(LayerContent::Overlay, image.is_some(), xattrs)?;
        let uncounted = self.find_sandbox(parent)?.1.stack.uncounted;
        self.create_sandbox(spec, LayerStack { top, below, image, volume: None, uncounted })
    }

    /// Gives a sandbox a new top layer; returns the layers below it.
    pub(super) fn seal_layer(&mut self, name: &str) -> Result<(Vec<String>, Option<ImageLayer>), Error> {
        self.check_sealable(name)?;
        self.seal_top_layer(name)
    }

    /// Checks that no one-shot run uses the files and that the sandbox is not paused.
    pub(super) fn check_sealable(&self, name: &str) -> Result<(), Error> {
        self.check_startable(name)?;
        self.await_starting(name);
        if self.tracked.iter().any(|tracked| tracked.sandbox == name && matches!(tracked.kind, ProcessKind::Run { .. }))
        {
            return Err(Error::Busy { name: name.to_owned(), reason: "a program is working on its files".to_owned() });
        }
        if self.is_paused(name) {
            return Err(Error::Busy { name: name.to_owned(), reason: "it is paused".to_owned() });
        }
        Ok(())
    }

    fn seal_top_layer(&mut self, name: &str) -> Result<(Vec<String>, Option<ImageLayer>), Error> {
        let (_, record) = self.find_sandbox(name)?;
        let (old, layers) = (record.clone(), &self.data_dir()?.layers);
        if !old.stack.below.is_empty() && layers.is_unchanged(&old.stack.top) {
            return Ok((old.stack.below, old.stack.image));
        }
        if old.stack.below.len() >= MAX_LOWER_LAYERS {
            return Err(Error::TooManyLayers { name: name.to_owned(), layers: old.stack.below.len() });
        }
        self.require_overlay(name)?;
        let xattrs = self.xattrs_above(old.stack.below.iter().chain([&old.stack.top]));
        let layers = &self.data_dir()?.layers;
        let fresh = layers.create_layer(LayerContent::Overlay, old.stack.image.is_some(), xattrs)?;
        let mut record = old.clone();
        record.stack = old.stack.with_new_top(fresh.clone());
        if let Err(error) = self.write_record(name, &record) {
            self.discard_layers([fresh.as_str()]);
            return Err(error);
        }
        if let Err(error) = self.swap_files(name) {
            // The sandbox writes to the new layer already: keep it. The old layers are below it.
            if self.may_use_layer(name, &fresh) {
                return Err(error);
            }
            // The sandbox keeps its old layers. If writing the record fails, the next launcher repairs it from the
            // mounts.
            if let Some(sandbox) = self.sandboxes.get_mut(name) {
                sandbox.record = Some(old.clone());
            }
            self.write_record(name, &old)?;
            self.discard_layers([fresh.as_str()]);
            return Err(error);
        }
        Ok((record.stack.below, record.stack.image))
    }

    /// True if a sandbox writes to a layer, or may have done so.
    fn may_use_layer(&self, name: &str, layer: &str) -> bool {
        let worker_record = self.find_sandbox(name).ok().and_then(|(sandbox, _)| sandbox.dir.read_worker_record());
        let mounts = worker_record.and_then(|worker_record| {
            fs::read_to_string(format!("/proc/{}/mountinfo", worker_record.process.pid)).ok()
        });
        mounts.is_none_or(|mounts| live_sandbox::is_upper_layer(&mounts, layer))
    }

    fn write_record(&mut self, name: &str, record: &crate::record::SandboxRecord) -> Result<(), Error> {
        let Some(sandbox) = self.sandboxes.get_mut(name) else {
            return Err(Error::UnknownSandbox { name: name.to_owned() });
        };
        let dir = &sandbox.dir;
        dir.replace_record(record).map_err(|error| Error::file("write the record in", &dir.directory, error))?;
        sandbox.record = Some(record.clone());
        Ok(())
    }

    /// Remounts a running sandbox's files as its record says.
    fn swap_files(&mut self, name: &str) -> Result<(), Error> {
        let (_, record) = self.find_sandbox(name)?;
        let (map, stack, protected) = (record.map.clone(), record.stack.clone(), record.spec.protected.clone());
        let failed = |failure| Error::step(name, failure);
        let is_worker = |tracked: &&TrackedProcess| tracked.sandbox == name && tracked.kind == ProcessKind::Worker;
        if !self.tracked.iter().any(|tracked| is_worker(&tracked)) {
            return Ok(());
        }
        let namespace = self.mapping_namespace(&map).map_err(failed)?;
        let overlays = OverlayRequest { files: true, system: stack.image.is_some() };
        let mounter = self.mounter(&map, &stack, overlays).map_err(failed)?;
        let Some(worker) = self.tracked.iter().find(is_worker) else { return Ok(()) };
        let layers = &self.data_dir()?.layers;
        let store = match namespace {
            Some(namespace) => Some(layers.clone_mount(&namespace).map_err(failed)?),
            None => None,
        };
        let (process, mounter_ref) = (worker.pidfd.as_fd(), mounter.as_ref());
        let swap =
            LayerSwap { process, map: &map, layers, stack: &stack, protected: &protected, store, mounter: mounter_ref };
        // The helper keeps the lock: if this launcher ends now, the next one waits for the helper.
        let swapped = live_sandbox::swap_layers(&swap, || kernel::close_inherited(self.socket.as_fd()));
        if let Some(mounter) = mounter {
            mounter.finish();
        }
        swapped.map_err(failed)
    }

    /// All layers that records, snapshots, caches and images refer to, except those of one sandbox.
    fn used_layers(&self, but: Option<&str>) -> BTreeSet<String> {
        let records = self.sandboxes.iter().filter(|(name, _)| Some(name.as_str()) != but);
        let mut used: BTreeSet<String> = records
            .filter_map(|(_, sandbox)| sandbox.record.as_ref())
            .flat_map(|record| record.stack.all_layers().map(str::to_owned))
            .collect();
        if let Some(store) = &self.data_dir {
            for entry in store.snapshots.entries.values().chain(store.caches.entries.values()) {
                used.extend(entry.layers.iter().cloned());
                used.extend(entry.image.iter().map(|base| base.layer.clone()));
            }
            used.extend(store.images.entries.values().map(|entry| entry.layer.clone()));
        }
        used.extend(self.imports.iter().map(|import| import.layer.clone()));
        used
    }

    /// Marks the unreferenced ones of `layers` for removal.
    pub(super) fn release_layers<'a>(&self, but: Option<&str>, layers: impl Iterator<Item = &'a str>) -> Vec<PathBuf> {
        if self.has_unreadable_records() {
            return Vec::new();
        }
        let used = self.used_layers(but);
        let Ok(store) = self.data_dir() else { return Vec::new() };
        store.layers.mark_for_removal(layers.filter(|layer| !used.contains(*layer)))
    }

    /// True if an unreadable record or catalog entry may refer to any layer.
    fn has_unreadable_records(&self) -> bool {
        let half_made = self.sandboxes.values().any(|sandbox| sandbox.record.is_none());
        half_made
            || self.data_dir.as_ref().is_none_or(|store| store.snapshots.has_unreadable || store.images.has_unreadable)
    }

    pub(super) fn discard_layers<'a>(&mut self, layers: impl IntoIterator<Item = &'a str>) {
        let paths = self.data_dir().map(|store| store.layers.mark_for_removal(layers)).unwrap_or_default();
        self.remove_in_background(paths);
    }

    pub(super) fn remove_in_background(&mut self, paths: Vec<PathBuf>) {
        let Some(store) = self.data_dir.as_ref().filter(|_| !paths.is_empty()) else { return };
        // The next launcher removes what cannot be removed now.
        if let Ok(remover) = self.spawn_remover(LAYERS_OWNER, paths, Some(store.layers.map.clone())) {
            self.tracked.push(remover);
        }
    }

    /// Removes unreferenced layers of earlier launchers.
    pub(super) fn collect_unused_layers(&mut self) {
        if self.has_unreadable_records() {
            return;
        }
        let used = self.used_layers(None);
        let mut paths = self.data_dir().map(|store| store.layers.collect_garbage(&used)).unwrap_or_default();
        paths.extend(self.collect_old_tmp(&used));
        self.remove_in_background(paths);
    }

    /// Repairs the stack of sandboxes whose launcher ended after it recorded a new top layer and before it remounted
    /// the files.
    ///
    /// Such a sandbox still writes to the layer below, to which no other record refers yet: that one becomes the top
    /// again.
    pub(super) fn repair_stacks(&mut self) {
        let mut mended = Vec::new();
        for tracked in self.tracked.iter().filter(|tracked| tracked.kind == ProcessKind::Worker) {
            let Ok((sandbox, record)) = self.find_sandbox(&tracked.sandbox) else { continue };
            let (Some(before), Some(worker_record)) = (record.stack.without_top(), sandbox.dir.read_worker_record())
            else {
                continue;
            };
            let mounts =
                fs::read_to_string(format!("/proc/{}/mountinfo", worker_record.process.pid)).unwrap_or_default();
            if live_sandbox::top_layer(&mounts).is_some_and(|top| top == before.top) {
                let mut record = record.clone();
                record.stack = before;
                mended.push((tracked.sandbox.clone(), record));
            }
        }
        for (name, record) in mended {
            // On failure the next launcher finds the same state.
            let _ = self.write_record(&name, &record);
        }
    }

    pub(super) fn data_dir_mut(&mut self) -> Result<&mut super::DataDir, Error> {
        self.data_dir.as_mut().ok_or_else(|| Error::protocol("the data directory isn't open"))
    }
}

/// A child process that runs in the background.
pub(super) fn background_process(kind: ProcessKind, sandbox: &str, process: kernel::ChildProcess) -> TrackedProcess {
    TrackedProcess {
        sandbox: sandbox.to_owned(),
        kind,
        pidfd: process.pidfd,
        is_child: true,
        starting: None,
        failure: None,
        cgroups: Vec::new(),
    }
}
