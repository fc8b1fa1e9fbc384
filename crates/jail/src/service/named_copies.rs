//! Snapshots and caches: named copies of a sandbox's files, from which other sandboxes start.
//!
//! A cache holds the files that a project's set-up left. It differs from a snapshot in three ways: creating it again
//! keeps the first one, it records its last use, and losing one costs only time.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::Service;
use super::processes::ProcessKind;
use super::sealing::{LAYERS_OWNER, background_process};
use crate::catalog::{Catalog, CopyKind, SIZE_FILE, Snapshot, SnapshotRecord, read_layer_size, unix_millis};
use crate::error::{CatalogKind, Error};
use crate::layers::ImageLayer;
use crate::sandbox::{SandboxSpec, validate_label};
use crate::wire::Answer;
use crate::{disk_usage, id_maps};

impl Service {
    fn copies(&self, kind: CopyKind) -> Result<&Catalog<SnapshotRecord>, Error> {
        let store = self.data_dir()?;
        Ok(match kind {
            CopyKind::Snapshot => &store.snapshots,
            CopyKind::Cache => &store.caches,
        })
    }

    fn copies_mut(&mut self, kind: CopyKind) -> Result<&mut Catalog<SnapshotRecord>, Error> {
        let store = self.data_dir_mut()?;
        Ok(match kind {
            CopyKind::Snapshot => &mut store.snapshots,
            CopyKind::Cache => &mut store.caches,
        })
    }

    /// The snapshot or cache that a sandbox starts from.
    pub(super) fn find_origin(
        &self,
        spec: &SandboxSpec,
        image: Option<&ImageLayer>,
    ) -> Result<Option<&SnapshotRecord>, Error> {
        let missing = |kind, name: &str| Error::NotFound { kind, name: name.to_owned() };
        if let Some(cache) = &spec.cache {
            // A cache belongs to exactly one root.
            let entry = self.copies(CopyKind::Cache)?.entries.get(&cache.name);
            let entry = entry.filter(|entry| entry.image.as_ref() == image);
            return entry.map(Some).ok_or_else(|| missing(CatalogKind::Cache, &cache.name));
        }
        let Some(name) = &spec.snapshot else { return Ok(None) };
        let entry = self.copies(CopyKind::Snapshot)?.entries.get(name);
        let entry = entry.ok_or_else(|| missing(CatalogKind::Snapshot, name))?;
        check_same_image(image, entry)?;
        Ok(Some(entry))
    }

    /// Records that a sandbox starts from a cache now.
    pub(super) fn record_cache_use(&mut self, name: &str) {
        let Ok(caches) = self.copies_mut(CopyKind::Cache) else { return };
        let Some(entry) = caches.entries.get(name) else { return };
        let entry = SnapshotRecord { used_at: Some(unix_millis()), ..entry.clone() };
        // On failure, the cache is evicted too early.
        let _ = caches.insert_entry(name, entry);
    }

    pub(super) fn create_copy(&mut self, kind: CopyKind, name: &str, label: &str) -> Result<Snapshot, Error> {
        validate_label(label)?;
        if let Some(entry) = self.copies(kind)?.entries.get(label) {
            return match kind {
                CopyKind::Snapshot => Err(Error::AlreadyExists { kind: CatalogKind::Snapshot, name: label.to_owned() }),
                CopyKind::Cache => Ok(self.describe_copy(kind, entry)),
            };
        }
        let (layers, image, usage_offset) = match self.copy_volume_for_snapshot(name)? {
            Some((layer, image, usage_offset)) => (vec![layer], image, Some(usage_offset)),
            None => {
                let (layers, image) = self.seal_layer(name)?;
                (layers, image, None)
            }
        };
        let boot = (kind == CopyKind::Cache).then(read_boot_id).flatten();
        let (name, created_at) = (label.to_owned(), unix_millis());
        let entry = SnapshotRecord { name, created_at, layers, image, usage_offset, used_at: None, boot };
        if let Err(error) = self.copies_mut(kind)?.insert_entry(label, entry.clone()) {
            // The copy was made for this entry alone.
            if entry.usage_offset.is_some() {
                self.discard_layers(entry.layers.iter().map(String::as_str));
            }
            return Err(error);
        }
        self.count_layer_sizes(&entry.layers);
        Ok(self.describe_copy(kind, &entry))
    }

    fn describe_copy(&self, kind: CopyKind, entry: &SnapshotRecord) -> Snapshot {
        let counted_elsewhere = match kind {
            CopyKind::Snapshot => BTreeSet::new(),
            CopyKind::Cache => self.layers_of_older_caches(entry),
        };
        let sizes = self.data_dir.as_ref().map(|store| {
            let layers = entry.layers.iter().filter(|layer| !counted_elsewhere.contains(layer.as_str()));
            layers.map(|layer| read_layer_size(&store.layers.layer_dir(layer))).sum::<Option<u64>>()
        });
        Snapshot {
            name: entry.name.clone(),
            image: entry.image.as_ref().map(|base| base.name.clone()),
            created_at: entry.created_at,
            used_at: entry.used_at,
            bytes: sizes.flatten(),
            depth: u32::try_from(entry.layers.len()).unwrap_or(u32::MAX),
        }
    }

    /// The layers that count for an older cache, so that the sizes of all caches add up to their disk use.
    fn layers_of_older_caches(&self, entry: &SnapshotRecord) -> BTreeSet<&str> {
        let caches = self.data_dir.iter().flat_map(|store| store.caches.entries.values());
        let older = caches.filter(|other| (other.created_at, &other.name) < (entry.created_at, &entry.name));
        older.flat_map(|other| other.layers.iter().map(String::as_str)).collect()
    }

    pub(super) fn list_copies(&self, id: u64, kind: CopyKind) -> Result<(), Error> {
        for entry in self.copies(kind)?.entries.values() {
            self.send_answer(id, Ok(Answer::Snapshot(self.describe_copy(kind, entry))))?;
        }
        self.send_answer(id, Ok(Answer::Done))
    }

    /// Deletes a snapshot or cache. Layers that sandboxes use stay until the last of them is destroyed.
    pub(super) fn forget_copy(&mut self, kind: CopyKind, label: &str) -> Result<(), Error> {
        validate_label(label)?;
        let Some(entry) = self.copies_mut(kind)?.remove_entry(label)? else {
            return Err(Error::NotFound { kind: kind.into(), name: label.to_owned() });
        };
        let paths = self.release_layers(None, entry.layers.iter().map(String::as_str));
        self.remove_in_background(paths);
        Ok(())
    }

    /// Removes caches whose files a crash of the machine may have damaged, and measures those that an earlier launcher
    /// did not.
    pub(super) fn check_caches(&mut self) {
        let Some(store) = &self.data_dir else { return };
        let boot = read_boot_id();
        // A layer is on disk once it is measured.
        let is_unsynced = |entry: &SnapshotRecord| {
            entry.layers.iter().any(|layer| read_layer_size(&store.layers.layer_dir(layer)).is_none())
        };
        let (stale, unmeasured): (Vec<_>, Vec<_>) =
            store.caches.entries.values().filter(|entry| is_unsynced(entry)).partition(|entry| entry.boot != boot);
        let stale: Vec<String> = stale.into_iter().map(|entry| entry.name.clone()).collect();
        let layers: Vec<String> = unmeasured.into_iter().flat_map(|entry| entry.layers.clone()).collect();
        for name in stale {
            if let Ok(caches) = self.copies_mut(CopyKind::Cache) {
                // On failure the next launcher tries again.
                let _ = caches.remove_entry(&name);
            }
        }
        self.count_layer_sizes(&layers);
    }

    /// Writes sealed layers to disk and measures them in a child process, each once: they never change.
    fn count_layer_sizes(&mut self, layers: &[String]) {
        let Some(store) = &self.data_dir else { return };
        let uncounted: BTreeSet<PathBuf> = layers
            .iter()
            .map(|layer| store.layers.layer_dir(layer))
            .filter(|path| read_layer_size(path).is_none())
            .collect();
        if uncounted.is_empty() {
            return;
        }
        let counter = id_maps::spawn_as_mapped_root(&store.layers.map, || {
            self.close_launcher_fds();
            for path in &uncounted {
                let Ok(found) = disk_usage::measure_trees(std::slice::from_ref(path)) else { continue };
                if sync_file_system(path).is_err() {
                    continue;
                }
                // On failure the size stays unknown.
                let _ = fs::write(path.join("bytes.new"), found.bytes.to_string());
                let _ = fs::rename(path.join("bytes.new"), path.join(SIZE_FILE));
            }
            0
        });
        if let Ok(counter) = counter {
            self.tracked.push(background_process(ProcessKind::LayerCounter, LAYERS_OWNER, counter));
        }
    }
}

fn sync_file_system(path: &Path) -> rustix::io::Result<()> {
    let directory = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::fs::syncfs(directory)
}

/// The id of the machine's current boot.
fn read_boot_id() -> Option<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|id| id.trim().to_owned())
}

/// Checks that a snapshot has the same image.
fn check_same_image(image: Option<&ImageLayer>, entry: &SnapshotRecord) -> Result<(), Error> {
    if image.is_none() || image == entry.image.as_ref() {
        return Ok(());
    }
    let has = entry.image.as_ref().map_or("the host's directories", |base| base.name.as_str());
    Err(Error::InvalidSpec { reason: format!("the snapshot {} has another root: {has}", entry.name) })
}
