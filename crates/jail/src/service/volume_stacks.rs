//! Sandboxes whose files are btrfs subvolumes, with quotas and constant-time copies.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use super::Service;
use crate::error::{CatalogKind, Error};
use crate::kernel::{NO_DEVICES, NO_EXECUTION, NO_SUID};
use crate::layers::{ImageLayer, LayerStack};
use crate::record::SandboxRecord;
use crate::sandbox::{DiskUsage, SandboxSpec};
use crate::setup::mount_sources;
use crate::volumes::{NewVolume, SandboxVolume, total_usage};

impl Service {
    /// Creates the stack of a new sandbox as a subvolume; `None` if it must start from older overlay layers.
    pub(super) fn create_volume_stack(&mut self, spec: &SandboxSpec) -> Result<Option<LayerStack>, Error> {
        let (store, bytes) = (self.data_dir()?, spec.limits.disk_bytes);
        if store.layers.quota.is_none() {
            return Ok(None);
        }
        let missing = |kind, name: &str| Error::NotFound { kind, name: name.to_owned() };
        let image = match &spec.image {
            None => None,
            Some(name) => {
                let entry = store.images.entries.get(name).ok_or_else(|| missing(CatalogKind::Image, name))?;
                Some(ImageLayer { name: name.clone(), layer: entry.layer.clone() })
            }
        };
        let (volume, image) = match (self.find_origin(spec, image.as_ref())?, image) {
            (None, None) => (store.layers.create_volume(bytes)?, None),
            (None, Some(base)) if store.layers.is_volume(&base.layer) => {
                (store.layers.volume_from_image(&base.layer, bytes)?, Some(base))
            }
            (None, Some(_)) => return Ok(None),
            (Some(entry), _) => {
                let (Some(usage_offset), [layer]) = (entry.usage_offset, entry.layers.as_slice()) else {
                    return Ok(None);
                };
                let volume = match spec.cache {
                    Some(_) => store.layers.volume_from_cache(layer, bytes)?,
                    None => store.layers.copy_volume(layer, usage_offset, Some(bytes))?,
                };
                (volume, entry.image.clone())
            }
        };
        self.finish_volume_stack(volume, image).map(Some)
    }

    /// Creates the stack of a fork, if the parent's files are a subvolume. The parent's mounts do not
    /// change; the caller has already stopped the agent's processes.
    pub(super) fn fork_volume(&mut self, parent: &str, bytes: u64) -> Result<Option<LayerStack>, Error> {
        let Some((volume, image)) = self.copy_sandbox_volume(parent, Some(bytes))? else { return Ok(None) };
        self.finish_volume_stack(volume, image).map(Some)
    }

    /// Copies a sandbox's files for a snapshot, if they are a subvolume.
    pub(super) fn copy_volume_for_snapshot(
        &mut self,
        name: &str,
    ) -> Result<Option<(String, Option<ImageLayer>, i64)>, Error> {
        let Some((NewVolume { layer, usage_offset }, image)) = self.copy_sandbox_volume(name, None)? else {
            return Ok(None);
        };
        self.remove_old_tmp(&layer);
        Ok(Some((layer, image, usage_offset)))
    }

    fn copy_sandbox_volume(
        &self,
        name: &str,
        bytes: Option<u64>,
    ) -> Result<Option<(NewVolume, Option<ImageLayer>)>, Error> {
        let (_, record) = self.find_sandbox(name)?;
        let Some(volume) = &record.stack.volume else { return Ok(None) };
        self.check_sealable(name)?;
        let copy = self.data_dir()?.layers.copy_volume(&record.stack.top, volume.usage_offset, bytes)?;
        Ok(Some((copy, record.stack.image.clone())))
    }

    fn finish_volume_stack(
        &mut self,
        NewVolume { layer: top, usage_offset }: NewVolume,
        image: Option<ImageLayer>,
    ) -> Result<LayerStack, Error> {
        let spool = match self.data_dir()?.layers.create_spool_volume() {
            Ok(spool) => spool,
            Err(error) => {
                self.discard_layers([top.as_str()]);
                return Err(error);
            }
        };
        self.remove_old_tmp(&top);
        Ok(LayerStack {
            top,
            below: Vec::new(),
            image,
            volume: Some(SandboxVolume { usage_offset, spool }),
            uncounted: 0,
        })
    }

    /// Removes the original's temporary files from a copy in the background; they are invisible there.
    fn remove_old_tmp(&mut self, layer: &str) {
        let left = self.data_dir().map(|store| store.layers.old_tmp_dirs(layer)).unwrap_or_default();
        self.remove_in_background(left);
    }

    /// Temporary files that earlier launchers left to remove.
    pub(super) fn collect_old_tmp(&self, layers: &BTreeSet<String>) -> Vec<PathBuf> {
        let Some(store) = self.data_dir.as_ref().filter(|store| store.layers.quota.is_some()) else {
            return Vec::new();
        };
        // On failure the kernel only keeps some stale quota groups.
        let _ = crate::btrfs::delete_stale_quota_groups(&store.layers.directory);
        layers.iter().flat_map(|layer| store.layers.old_tmp_dirs(layer)).collect()
    }

    /// Clones the mounts of temporary files and spool of a subvolume: only the launcher can reach them.
    pub(super) fn clone_scratch_mounts(&self, stack: &LayerStack, name: &str) -> Result<Option<[OwnedFd; 2]>, Error> {
        let Some(volume) = &stack.volume else { return Ok(None) };
        let layers = &self.data_dir()?.layers;
        let take = |path: PathBuf, attributes| {
            mount_sources::clone_mount(&path, attributes).map_err(|failure| Error::step(name, failure))
        };
        let own = NO_SUID | NO_DEVICES;
        let spool = layers.layer_dir(&volume.spool).join("spool");
        Ok(Some([take(layers.tmp_dir(&stack.top), own)?, take(spool, own | NO_EXECUTION)?]))
    }

    /// A sandbox's disk usage by quota accounting.
    pub(super) fn kernel_disk_usage(&self, record: &SandboxRecord) -> Result<Option<DiskUsage>, Error> {
        let layers = &self.data_dir()?.layers;
        let Some(volume) = record.stack.volume.as_ref().filter(|_| layers.quota.is_some()) else { return Ok(None) };
        let bytes = total_usage(layers.volume_usage(&record.stack.top)?, volume.usage_offset);
        Ok(Some(DiskUsage { bytes, files: 0, free_pool_bytes: layers.free_bytes() }))
    }
}
