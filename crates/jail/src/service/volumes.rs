//! Sandboxes whose files are volumes of their own, which the kernel bounds and copies in one step.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use super::Service;
use super::layering::same_root;
use crate::error::{Error, Kept};
use crate::kernel::{NO_DEVICES, NO_EXECUTION, NO_SUID};
use crate::layers::{Base, Stack};
use crate::place::{DiskUse, Spec};
use crate::record::Record;
use crate::setup::trees;
use crate::volumes::{Made, Volume, used};

impl Service {
    /// What a new sandbox begins with, if that can be a volume: not where it shall begin with layers that were made
    /// before the store could bound.
    pub(super) fn volume_for(&mut self, spec: &Spec) -> Result<Option<Stack>, Error> {
        let (store, bytes) = (self.store()?, spec.limits.disk_bytes);
        if store.layers.quota.is_none() {
            return Ok(None);
        }
        let missing = |kind, name: &str| Error::NotKept { kind, name: name.to_owned() };
        let image = match &spec.image {
            None => None,
            Some(name) => {
                let kept = store.images.kept.get(name).ok_or_else(|| missing(Kept::Image, name))?;
                Some(Base { name: name.clone(), layer: kept.layer.clone() })
            }
        };
        let (made, image) = match (&spec.snapshot, image) {
            (None, None) => (store.layers.make_volume(bytes)?, None),
            (None, Some(base)) if store.layers.is_volume(&base.layer) => {
                (store.layers.volume_of_root(&base.layer, bytes)?, Some(base))
            }
            (None, Some(_)) => return Ok(None),
            (Some(name), image) => {
                let kept = store.snapshots.kept.get(name).ok_or_else(|| missing(Kept::Snapshot, name))?;
                same_root(image.as_ref(), kept)?;
                let (Some(beside), [layer]) = (kept.beside, kept.layers.as_slice()) else { return Ok(None) };
                (store.layers.copy_volume(layer, beside, Some(bytes))?, kept.image.clone())
            }
        };
        self.stack_of(made, image).map(Some)
    }

    /// The stack of a fork, if the parent's files are a volume: the parent is not disturbed.
    pub(super) fn fork_volume(&mut self, parent: &str, bytes: u64) -> Result<Option<Stack>, Error> {
        let Some((made, image)) = self.copy_of(parent, Some(bytes))? else { return Ok(None) };
        self.stack_of(made, image).map(Some)
    }

    /// A copy of a sandbox's files that nobody writes to, if they are a volume.
    pub(super) fn copy_for_keeping(&mut self, name: &str) -> Result<Option<(String, Option<Base>, i64)>, Error> {
        let Some((Made { layer, beside }, image)) = self.copy_of(name, None)? else { return Ok(None) };
        self.remove_left(&layer);
        Ok(Some((layer, image, beside)))
    }

    fn copy_of(&self, name: &str, bytes: Option<u64>) -> Result<Option<(Made, Option<Base>)>, Error> {
        let (_, record) = self.sandbox(name)?;
        let Some(volume) = &record.stack.volume else { return Ok(None) };
        self.may_seal(name)?;
        let made = self.store()?.layers.copy_volume(&record.stack.top, volume.beside, bytes)?;
        Ok(Some((made, record.stack.image.clone())))
    }

    fn stack_of(&mut self, Made { layer: top, beside }: Made, image: Option<Base>) -> Result<Stack, Error> {
        let spool = match self.store()?.layers.make_spool() {
            Ok(spool) => spool,
            Err(error) => {
                self.discard_layers([top.as_str()]);
                return Err(error);
            }
        };
        self.remove_left(&top);
        Ok(Stack { top, below: Vec::new(), image, volume: Some(Volume { beside, spool }) })
    }

    /// Temporary files of the original are no part of a copy. Nobody sees them there; removing them may take a while.
    fn remove_left(&mut self, layer: &str) {
        let left = self.store().map(|store| store.layers.left(layer)).unwrap_or_default();
        self.remove_in_background(left);
    }

    /// What earlier launchers left of that.
    pub(super) fn left_in(&self, layers: &BTreeSet<String>) -> Vec<PathBuf> {
        let Some(store) = self.store.as_ref().filter(|store| store.layers.quota.is_some()) else { return Vec::new() };
        // Without it the kernel keeps a few numbers more.
        let _ = crate::btrfs::forget_gone(&store.layers.directory);
        layers.iter().flat_map(|layer| store.layers.left(layer)).collect()
    }

    /// Temporary files and spool of a sandbox whose files are a volume: only the launcher may go there.
    pub(super) fn scratch(&self, stack: &Stack, name: &str) -> Result<Option<[OwnedFd; 2]>, Error> {
        let Some(volume) = &stack.volume else { return Ok(None) };
        let layers = &self.store()?.layers;
        let take =
            |path: PathBuf, attributes| trees::tree(&path, attributes).map_err(|failure| Error::step(name, failure));
        let own = NO_SUID | NO_DEVICES;
        let spool = layers.layer(&volume.spool).join("spool");
        Ok(Some([take(layers.temporary(&stack.top), own)?, take(spool, own | NO_EXECUTION)?]))
    }

    /// What a sandbox takes, where the kernel counts it.
    pub(super) fn counted_by_kernel(&self, record: &Record) -> Result<Option<DiskUse>, Error> {
        let layers = &self.store()?.layers;
        let Some(volume) = record.stack.volume.as_ref().filter(|_| layers.quota.is_some()) else { return Ok(None) };
        let bytes = used(layers.taken(&record.stack.top)?, volume.beside);
        Ok(Some(DiskUse { bytes, files: 0, room: layers.room() }))
    }
}
