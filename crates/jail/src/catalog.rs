//! The catalogs of snapshots and images: a small JSON file for each, beside the layers it refers to.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::error::{CatalogKind, Error};
use crate::layers::ImageLayer;

/// The kinds of named copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CopyKind {
    /// Made and deleted by users.
    Snapshot,
    /// The files that a project's set-up left.
    Cache,
}

impl From<CopyKind> for CatalogKind {
    fn from(kind: CopyKind) -> Self {
        match kind {
            CopyKind::Snapshot => Self::Snapshot,
            CopyKind::Cache => Self::Cache,
        }
    }
}

/// A named copy of a sandbox's files: a snapshot or a cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    pub name: String,
    /// The image that the sandbox was created from.
    pub image: Option<String>,
    /// Milliseconds since 1970.
    pub created_at: u64,
    /// When a sandbox last started from it; only of caches.
    pub used_at: Option<u64>,
    /// Bytes on disk, once measured. A layer that several snapshots share counts in each; one that several caches share
    /// counts in the oldest.
    pub bytes: Option<u64>,
    /// Number of layers.
    pub depth: u32,
}

/// An imported root file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    pub name: String,
    pub bytes: u64,
    /// Number of layers in the archive.
    pub layers: u32,
    /// Milliseconds since 1970.
    pub created_at: u64,
    /// Number of device nodes in the archive; the import skips them.
    pub skipped: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotRecord {
    pub name: String,
    pub created_at: u64,
    /// Newest first.
    pub layers: Vec<String>,
    pub image: Option<ImageLayer>,
    /// Only with quotas: bytes to add to the kernel's usage of a sandbox that starts from this snapshot.
    #[serde(default, rename = "beside")]
    pub usage_offset: Option<i64>,
    /// Only of caches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_at: Option<u64>,
    /// Only of caches: the boot of the machine in which it was sealed. Its files may not be on disk before a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
}

/// Treatment of an entry that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnreadableEntry {
    Keep,
    /// For entries that can be made again.
    Remove,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageRecord {
    pub layer: String,
    pub image: Image,
}

/// All entries of one kind, one JSON file each, in one directory.
#[derive(Debug)]
pub(crate) struct Catalog<T> {
    directory: PathBuf,
    pub entries: BTreeMap<String, T>,
    /// An entry is unreadable, so the layers that it refers to are unknown: do not delete any layer.
    pub has_unreadable: bool,
}

impl<T: Serialize + DeserializeOwned> Catalog<T> {
    pub fn open(directory: PathBuf, unreadable: UnreadableEntry) -> Result<Self, Error> {
        super::service::create_private_dir(&directory)?;
        let mut catalog = Self { directory, entries: BTreeMap::new(), has_unreadable: false };
        let entries =
            fs::read_dir(&catalog.directory).map_err(|error| Error::file("read", &catalog.directory, error))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            match name.strip_suffix(".json") {
                // An earlier launcher ended while it wrote this draft.
                None => drop(fs::remove_file(&path)),
                Some(name) => match fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok()) {
                    Some(value) => drop(catalog.entries.insert(name.to_owned(), value)),
                    None if unreadable == UnreadableEntry::Remove => drop(fs::remove_file(&path)),
                    None => catalog.has_unreadable = true,
                },
            }
        }
        Ok(catalog)
    }

    /// Writes an entry atomically.
    pub fn insert_entry(&mut self, name: &str, value: T) -> Result<(), Error> {
        let path = self.entry_path(name);
        let draft = self.directory.join(format!("{name}.new"));
        let written = serde_json::to_vec(&value)
            .map_err(io::Error::from)
            .and_then(|text| fs::write(&draft, text))
            .and_then(|()| fs::rename(&draft, &path));
        written.map_err(|error| Error::file("write", &path, error))?;
        self.entries.insert(name.to_owned(), value);
        Ok(())
    }

    pub fn remove_entry(&mut self, name: &str) -> Result<Option<T>, Error> {
        let path = self.entry_path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file("remove", &path, error)),
            Ok(()) | Err(_) => Ok(self.entries.remove(name)),
        }
    }

    fn entry_path(&self, name: &str) -> PathBuf {
        // `with_extension` would cut a name that contains dots.
        self.directory.join(format!("{name}.json"))
    }
}

/// File in a sealed layer's directory that stores the layer's size.
pub(crate) const SIZE_FILE: &str = "bytes";

/// Reads the stored size of a sealed layer, if it was measured.
pub(crate) fn read_layer_size(layer: &Path) -> Option<u64> {
    fs::read_to_string(layer.join(SIZE_FILE)).ok()?.trim().parse().ok()
}

pub(crate) fn unix_millis() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_entries_back_and_notices_unreadable_ones() {
        let base = tempfile::tempdir().unwrap();
        let open_with =
            |unreadable| Catalog::<SnapshotRecord>::open(base.path().join("snapshots"), unreadable).unwrap();
        let open = || open_with(UnreadableEntry::Keep);
        let value = SnapshotRecord {
            name: "v1.2".into(),
            created_at: 1,
            layers: vec!["a".into()],
            image: None,
            usage_offset: None,
            used_at: None,
            boot: None,
        };
        open().insert_entry("v1.2", value.clone()).unwrap();
        fs::write(base.path().join("snapshots/half.new"), "{").unwrap();
        let mut catalog = open();
        assert_eq!(catalog.entries.get("v1.2"), Some(&value));
        assert!(!catalog.has_unreadable && !base.path().join("snapshots/half.new").exists());
        assert_eq!(catalog.remove_entry("v1.2").unwrap(), Some(value));
        assert_eq!(catalog.remove_entry("v1.2").unwrap(), None);
        fs::write(base.path().join("snapshots/broken.json"), "{").unwrap();
        assert!(open().has_unreadable);
        assert!(!open_with(UnreadableEntry::Remove).has_unreadable && !open().has_unreadable);
    }
}
