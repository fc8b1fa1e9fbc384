//! What is kept by name: snapshots and imported roots, each a small file beside the layers that it stands for.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::error::Error;
use crate::layers::Base;

/// Files that were kept by a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    pub name: String,
    /// The imported root that belongs to it.
    pub image: Option<String>,
    /// In milliseconds since 1970.
    pub created_at: u64,
    /// On disk, once that is counted; layers that it shares with others are counted in each.
    pub bytes: Option<u64>,
    /// Of how many layers it consists.
    pub depth: u32,
}

/// A root that was imported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    pub name: String,
    pub bytes: u64,
    /// Of how many layers its archive consisted.
    pub layers: u32,
    /// In milliseconds since 1970.
    pub created_at: u64,
    /// Device nodes in the archive, which are left out.
    pub skipped: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptSnapshot {
    pub name: String,
    pub created_at: u64,
    /// The newest first.
    pub layers: Vec<String>,
    pub image: Option<Base>,
    /// Of a store that bounds: what a sandbox that begins with it takes besides what the kernel counts.
    #[serde(default)]
    pub beside: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptImage {
    pub layer: String,
    pub image: Image,
}

/// All of one kind, in a directory of its own.
#[derive(Debug)]
pub(crate) struct Shelf<T> {
    directory: PathBuf,
    pub kept: BTreeMap<String, T>,
    /// Something here can't be read: what it refers to isn't known, so nothing may be swept.
    pub unreadable: bool,
}

impl<T: Serialize + DeserializeOwned> Shelf<T> {
    pub fn open(directory: PathBuf) -> Result<Self, Error> {
        super::service::private_directory(&directory)?;
        let mut shelf = Self { directory, kept: BTreeMap::new(), unreadable: false };
        let entries = fs::read_dir(&shelf.directory).map_err(|error| Error::file("read", &shelf.directory, error))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            match name.strip_suffix(".json") {
                // Half written by a launcher that is gone.
                None => drop(fs::remove_file(&path)),
                Some(name) => match fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok()) {
                    Some(value) => drop(shelf.kept.insert(name.to_owned(), value)),
                    None => shelf.unreadable = true,
                },
            }
        }
        Ok(shelf)
    }

    /// Writes it down, whole or not at all.
    pub fn keep(&mut self, name: &str, value: T) -> Result<(), Error> {
        let path = self.path(name);
        let draft = self.directory.join(format!("{name}.new"));
        let written = serde_json::to_vec(&value)
            .map_err(io::Error::from)
            .and_then(|text| fs::write(&draft, text))
            .and_then(|()| fs::rename(&draft, &path));
        written.map_err(|error| Error::file("write", &path, error))?;
        self.kept.insert(name.to_owned(), value);
        Ok(())
    }

    pub fn forget(&mut self, name: &str) -> Result<Option<T>, Error> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file("remove", &path, error)),
            Ok(()) | Err(_) => Ok(self.kept.remove(name)),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        // Not `with_extension`: a name may hold dots.
        self.directory.join(format!("{name}.json"))
    }
}

/// The file of a layer's directory that says how large it is.
pub(crate) const COUNTED: &str = "bytes";

/// How large a sealed layer is, where that was counted.
pub(crate) fn counted(layer: &Path) -> Option<u64> {
    fs::read_to_string(layer.join(COUNTED)).ok()?.trim().parse().ok()
}

pub(crate) fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_found_again_and_what_is_broken_is_noticed() {
        let base = tempfile::tempdir().unwrap();
        let open = || Shelf::<KeptSnapshot>::open(base.path().join("snapshots")).unwrap();
        let value =
            KeptSnapshot { name: "v1.2".into(), created_at: 1, layers: vec!["a".into()], image: None, beside: None };
        open().keep("v1.2", value.clone()).unwrap();
        fs::write(base.path().join("snapshots/half.new"), "{").unwrap();
        let mut shelf = open();
        assert_eq!(shelf.kept.get("v1.2"), Some(&value));
        assert!(!shelf.unreadable && !base.path().join("snapshots/half.new").exists());
        assert_eq!(shelf.forget("v1.2").unwrap(), Some(value));
        assert_eq!(shelf.forget("v1.2").unwrap(), None);
        fs::write(base.path().join("snapshots/broken.json"), "{").unwrap();
        assert!(open().unreadable);
    }
}
