//! Storage of sandboxes' files in layers: one writable top layer over sealed, read-only ones.
//!
//! A layer is a directory. Its files are stored in one id range and appear in each sandbox's own range through an
//! idmapped mount, so several sandboxes can share a sealed layer. Sealing a layer means recording another one as the
//! top.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, Permissions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::CWD;
use rustix::mount::OpenTreeFlags;
use serde::{Deserialize, Serialize};

use crate::btrfs::{self, QuotaMode};
use crate::error::{AtStep, Errno, Error, LaunchStep, StepFailure};
use crate::id_maps::{self, IdSource};
use crate::id_ranges::{IdMap, RANGE_SIZE};
use crate::kernel;
use crate::overlay_xattrs::OverlayXattrs;
use crate::sandbox::{AGENT_UID, IdMapKind, IdRange};
use crate::volumes::SandboxVolume;

/// Maximum number of lower layers: overlayfs options must fit into one page.
pub(crate) const MAX_LOWER_LAYERS: usize = 180;

/// Name prefix of directories that are being removed.
pub(crate) const REMOVING_PREFIX: &str = ".gone-";

/// The layers of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerStack {
    /// The writable layer.
    pub top: String,
    /// Sealed layers, newest first.
    pub below: Vec<String>,
    pub image: Option<ImageLayer>,
    /// Set if the top is a btrfs subvolume with everything in it: there are no lower layers, and the image is only
    /// named.
    #[serde(default)]
    pub volume: Option<SandboxVolume>,
    /// Number of the oldest lower layers that do not count towards the disk usage: those of the cache that the sandbox
    /// started from.
    #[serde(default)]
    pub uncounted: usize,
}

/// The image below all other layers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageLayer {
    pub name: String,
    pub layer: String,
}

impl LayerStack {
    /// All layers that this stack refers to.
    pub fn all_layers(&self) -> impl Iterator<Item = &str> {
        let image = self.image.as_ref().map(|base| base.layer.as_str());
        let spool = self.volume.as_ref().map(|volume| volume.spool.as_str());
        [self.top.as_str()].into_iter().chain(self.below.iter().map(String::as_str)).chain(image).chain(spool)
    }

    /// The layers that only this sandbox uses.
    pub fn exclusive_layers(&self) -> impl Iterator<Item = &str> {
        [self.top.as_str()].into_iter().chain(self.volume.as_ref().map(|volume| volume.spool.as_str()))
    }

    /// Seals the top and puts a new one above it.
    pub fn with_new_top(&self, top: String) -> Self {
        let below = [self.top.clone()].into_iter().chain(self.below.iter().cloned()).collect();
        Self { top, below, image: self.image.clone(), volume: None, uncounted: self.uncounted }
    }

    /// Undoes [`LayerStack::with_new_top`]; `None` without lower layers.
    pub fn without_top(&self) -> Option<Self> {
        let (top, below) = self.below.split_first()?;
        let (image, uncounted) = (self.image.clone(), self.uncounted);
        Some(Self { top: top.clone(), below: below.to_vec(), image, volume: None, uncounted })
    }

    /// The layers whose files count towards the sandbox's disk usage.
    pub fn counted_layers(&self) -> impl Iterator<Item = &str> {
        let counted = self.below.len().saturating_sub(self.uncounted);
        [self.top.as_str()].into_iter().chain(self.below.iter().take(counted).map(String::as_str))
    }
}

/// The two kinds of files in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerPart {
    /// Workspace and home directory.
    Files,
    /// Changes to an imported root.
    System,
}

impl LayerPart {
    pub fn dir_name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::System => "system",
        }
    }

    /// The overlay's work directory.
    pub fn work_dir_name(self) -> &'static str {
        match self {
            Self::Files => "files-work",
            Self::System => "system-work",
        }
    }
}

/// Initial content of a new layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerContent {
    /// An empty workspace and home.
    Empty,
    /// Nothing: an upper layer over others.
    Overlay,
    /// An imported root.
    Image,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LayerStore {
    pub directory: PathBuf,
    /// The ids that files are stored under.
    pub map: IdMap,
    /// The file system's quota mode, if this user can set quotas.
    pub quota: Option<QuotaMode>,
}

impl LayerStore {
    /// Opens the layer store and creates it if needed. Its owner tells the ids that files are stored under.
    pub fn open(directory: &Path, source: &IdSource) -> Result<Self, Error> {
        let result = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        result.map_err(|error| Error::file("create the directory", directory, error))?;
        let directory = fs::canonicalize(directory).map_err(|error| Error::file("resolve", directory, error))?;
        let map = match source {
            IdSource::Fixed { map, .. } => map.clone(),
            IdSource::Ranges { .. } => {
                let stored = storage_range(&directory, source)?;
                let map = IdMap::own_range(stored);
                match check_idmapped_mounts(&directory, stored, &map) {
                    Ok(()) => map,
                    Err(_) => IdMap::common_range(stored),
                }
            }
        };
        let quota = btrfs::quota_mode(&directory).filter(|_| rustix::process::geteuid().is_root());
        let layers = Self { directory, map, quota };
        layers
            .set_owner(&layers.directory, 0)
            .map_err(|error| Error::file("change the owner of", &layers.directory, error))?;
        Ok(layers)
    }

    /// Allocates an id map for a new sandbox, given the ranges in use.
    pub fn allocate_map(&self, source: &IdSource, used: &[IdRange]) -> Result<IdMap, Error> {
        match self.map.ids {
            IdMapKind::OwnRange => {
                let used_ranges: Vec<IdRange> = used.iter().copied().chain(self.map.exclusive_range()).collect();
                source.allocate_map(&used_ranges)
            }
            IdMapKind::CommonRange | IdMapKind::SubIds | IdMapKind::SingleId => Ok(self.map.clone()),
        }
    }

    /// Creates the user namespace that maps stored ids to a sandbox's ids, if they differ.
    pub fn mapping_namespace(&self, map: &IdMap) -> Result<Option<OwnedFd>, StepFailure> {
        match self.map.exclusive_range().and_then(|stored| map.mount_mapping(stored)) {
            Some(mapping) => Ok(Some(id_maps::create_user_namespace(&mapping)?)),
            None => Ok(None),
        }
    }

    pub fn layer_dir(&self, id: &str) -> PathBuf {
        self.directory.join(id)
    }

    pub fn part_dir(&self, id: &str, part: LayerPart) -> PathBuf {
        self.layer_dir(id).join(part.dir_name())
    }

    pub fn workspace_dir(&self, id: &str) -> PathBuf {
        self.part_dir(id, LayerPart::Files).join("workspace")
    }

    pub fn home_dir(&self, id: &str) -> PathBuf {
        self.part_dir(id, LayerPart::Files).join("home")
    }

    /// Creates a layer that no record refers to yet.
    pub fn create_layer(&self, beginning: LayerContent, system: bool, xattrs: OverlayXattrs) -> Result<String, Error> {
        let id = self.claim_id()?;
        match self.create_dirs(&id, beginning, system).and_then(|()| self.mark_xattrs(&id, xattrs)) {
            Ok(()) => Ok(id),
            Err(error) => {
                // The next launcher removes the rest.
                let _ = crate::tree_removal::remove_tree(&self.layer_dir(&id));
                Err(error)
            }
        }
    }

    fn claim_id(&self) -> Result<String, Error> {
        self.claim_id_with(|path| DirBuilder::new().mode(0o700).create(path))
    }

    pub(crate) fn claim_id_with(&self, make: impl Fn(&Path) -> std::io::Result<()>) -> Result<String, Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut number = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        loop {
            let id = encode_layer_id(number);
            match make(&self.layer_dir(&id)) {
                Ok(()) => return Ok(id),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number = number.wrapping_add(1),
                Err(error) => return Err(Error::file("create", &self.layer_dir(&id), error)),
            }
        }
    }

    pub(crate) fn create_dirs(&self, id: &str, beginning: LayerContent, system: bool) -> Result<(), Error> {
        let mut dirs: Vec<(PathBuf, u32)> = vec![(PathBuf::new(), 0)];
        let mut part = |part: LayerPart, above: bool| {
            dirs.push((part.dir_name().into(), 0));
            if above {
                dirs.push((part.work_dir_name().into(), 0));
            }
        };
        match beginning {
            LayerContent::Image => part(LayerPart::System, false),
            LayerContent::Empty | LayerContent::Overlay => {
                part(LayerPart::Files, beginning == LayerContent::Overlay);
                if system {
                    part(LayerPart::System, true);
                }
            }
        }
        if beginning == LayerContent::Empty {
            dirs.extend(["files/workspace", "files/home"].map(|path| (path.into(), AGENT_UID)));
        }
        let layer = self.layer_dir(id);
        for (path, _) in &dirs[1..] {
            let path = layer.join(path);
            let result = fs::create_dir(&path).and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o755)));
            result.map_err(|error| Error::file("create", &path, error))?;
        }
        if self.map.ids == IdMapKind::SubIds {
            return self.set_owners_in_namespace(&layer, dirs.into_iter().filter(|(_, owner)| *owner != 0).collect());
        }
        for (path, owner) in dirs.iter().rev() {
            let path = layer.join(path);
            self.set_owner(&path, *owner).map_err(|error| Error::file("change the owner of", &path, error))?;
        }
        Ok(())
    }

    /// Sets a path's owner inside the sandbox, where the launcher can do so itself.
    pub fn set_owner(&self, path: &Path, owner: u32) -> std::io::Result<()> {
        match self.map.ids {
            IdMapKind::OwnRange | IdMapKind::CommonRange => {
                chown(path, self.map.host_uid(owner), self.map.host_gid(owner))
            }
            IdMapKind::SubIds | IdMapKind::SingleId => Ok(()),
        }
    }

    fn set_owners_in_namespace(&self, layer: &Path, dirs: Vec<(PathBuf, u32)>) -> Result<(), Error> {
        if dirs.is_empty() {
            return Ok(());
        }
        let process = id_maps::spawn_as_mapped_root(&self.map, || {
            let result = dirs.iter().try_for_each(|(path, owner)| chown(layer.join(path), Some(*owner), Some(*owner)));
            result.map_or_else(|error| Errno::from(error).0, |()| 0)
        });
        let process = process.map_err(|failure| Error::step("new", failure))?;
        match process.reap().ok().flatten().and_then(|status| status.exit_status()) {
            Some(0) => Ok(()),
            number => Err(Error::file("change the owner of", layer, Errno(number.unwrap_or(libc::EIO)))),
        }
    }

    /// True if an upper layer has no changes.
    pub fn is_unchanged(&self, id: &str) -> bool {
        let empty = |part| match fs::read_dir(self.part_dir(id, part)) {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) => part == LayerPart::System && error.kind() == std::io::ErrorKind::NotFound,
        };
        empty(LayerPart::Files) && empty(LayerPart::System)
    }

    /// Renames layers so that they are only left to remove; returns their new paths.
    pub fn mark_for_removal<'a>(&self, ids: impl IntoIterator<Item = &'a str>) -> Vec<PathBuf> {
        ids.into_iter()
            .filter(|id| !Self::delete_if_volume(&self.layer_dir(id)))
            .filter_map(|id| {
                let renamed = self.directory.join(format!("{REMOVING_PREFIX}{id}"));
                fs::rename(self.layer_dir(id), &renamed).ok().map(|()| renamed)
            })
            .collect()
    }

    /// Deletes a subvolume in one step; other layers are removed file by file.
    fn delete_if_volume(path: &Path) -> bool {
        btrfs::is_subvolume(path) && btrfs::delete_subvolume(path).is_ok()
    }

    /// Marks unreferenced layers for removal; returns them and those that an earlier launcher left.
    pub fn collect_garbage(&self, used: &BTreeSet<String>) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        let (renamed, present): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| name.starts_with(REMOVING_PREFIX));
        let mut paths = self.mark_for_removal(present.iter().map(String::as_str).filter(|name| !used.contains(*name)));
        paths.extend(
            renamed
                .into_iter()
                .map(|name| self.directory.join(name))
                .filter(|renamed| !Self::delete_if_volume(renamed)),
        );
        paths
    }

    /// Clones the mount of the whole store, idmapped by `namespace` and detached.
    pub fn clone_mount(&self, namespace: &OwnedFd) -> Result<OwnedFd, StepFailure> {
        clone_idmapped_mount(&self.directory, namespace)
    }
}

/// Clones the mount of a directory, idmapped and detached.
pub(crate) fn clone_idmapped_mount(path: &Path, namespace: &OwnedFd) -> Result<OwnedFd, StepFailure> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(CWD, path, flags).at_with(LaunchStep::CloneMounts, path.display())?;
    let attributes = kernel::NO_SUID | kernel::NO_DEVICES;
    kernel::set_idmap(tree.as_fd(), namespace.as_fd(), attributes).at_with(LaunchStep::CloneMounts, path.display())?;
    Ok(tree)
}

/// The id range of the directory's owner, else a new one.
fn storage_range(directory: &Path, source: &IdSource) -> Result<IdRange, Error> {
    let owner = fs::metadata(directory).map_err(|error| Error::file("read", directory, error))?.uid();
    if owner >= RANGE_SIZE {
        return Ok(IdRange { first: owner, count: RANGE_SIZE });
    }
    source.storage_range()?.ok_or_else(|| Error::protocol("no id range to store files under"))
}

/// Checks whether kernel and file system support idmapped mounts.
pub(crate) fn check_idmapped_mounts(directory: &Path, stored: IdRange, map: &IdMap) -> Result<(), StepFailure> {
    let mapping = map.mount_mapping(stored).ok_or(Errno(libc::EINVAL)).at(LaunchStep::IdMaps)?;
    clone_idmapped_mount(directory, &id_maps::create_user_namespace(&mapping)?).map(drop)
}

/// Encodes a short layer id: many of them must fit into overlayfs options.
fn encode_layer_id(mut number: u64) -> String {
    const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut letters = Vec::new();
    while number > 0 || letters.is_empty() {
        let digit = usize::try_from(number % 36).unwrap_or(0);
        letters.push(char::from(LETTERS[digit]));
        number /= 36;
    }
    letters.into_iter().rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(top: &str, below: &[&str]) -> LayerStack {
        LayerStack {
            top: top.into(),
            below: below.iter().map(|id| (*id).to_owned()).collect(),
            image: None,
            volume: None,
            uncounted: 0,
        }
    }

    #[test]
    fn sealing_moves_the_top_below_and_is_reversible() {
        let before = stack("c", &["b", "a"]);
        let after = before.with_new_top("d".into());
        assert_eq!(after, stack("d", &["c", "b", "a"]));
        assert_eq!(after.without_top(), Some(before));
        assert_eq!(stack("a", &[]).without_top(), None);
        let from_cache = LayerStack { uncounted: 1, ..after.clone() };
        assert_eq!(from_cache.counted_layers().collect::<Vec<_>>(), ["d", "c", "b"]);
        assert_eq!(from_cache.with_new_top("e".into()).counted_layers().collect::<Vec<_>>(), ["e", "d", "c", "b"]);
        let on_image = LayerStack { image: Some(ImageLayer { name: "debian".into(), layer: "i".into() }), ..after };
        assert_eq!(on_image.all_layers().collect::<Vec<_>>(), ["d", "c", "b", "a", "i"]);
    }

    #[test]
    fn layer_ids_are_short_and_unique() {
        assert_eq!(
            [encode_layer_id(0), encode_layer_id(35), encode_layer_id(36), encode_layer_id(36 * 36)],
            ["0", "z", "10", "100"]
        );
        assert!(encode_layer_id(u64::MAX).len() <= 13);
        let options = format!("{}/system-work", encode_layer_id(u64::MAX)).len() * 2
            + (encode_layer_id(u64::MAX).len() + 8) * MAX_LOWER_LAYERS;
        assert!(options < 4000, "{options} bytes of options");
    }
}
