//! Extracts tar entries below this process's root directory, to which it is confined.

use std::ffi::OsStr;
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use tar::{Entry, EntryType};

use crate::id_ranges::IdMap;
use crate::tree_removal;

/// Prefix of a whiteout: hides an entry of lower layers.
const WHITEOUT_PREFIX: &[u8] = b".wh.";
/// Opaque marker: hides all entries of lower layers in its directory.
const OPAQUE_MARKER: &[u8] = b".wh..wh..opq";
/// Names that AUFS reserved for itself.
const RESERVED_PREFIX: &[u8] = b".wh..wh.";

const MAX_CONTENT_BYTES: u64 = 256 << 30;
/// Owner for ids that are not mapped.
const NOBODY_ID: u32 = 65_534;

pub(super) struct Unpacker<'a> {
    map: &'a IdMap,
    pub bytes: u64,
    pub layers: u32,
    pub skipped: u64,
}

type Archive<'a> = tar::Archive<Box<dyn Read + 'a>>;

fn layer_error(error: impl std::fmt::Display) -> String {
    format!("one of its layers is not a readable tar archive: {error}")
}

impl<'a> Unpacker<'a> {
    pub fn new(map: &'a IdMap) -> Self {
        Self { map, bytes: 0, layers: 1, skipped: 0 }
    }

    /// Removes what a layer's whiteouts hide of the layers before it.
    pub fn apply_whiteouts(&mut self, layer: Box<dyn Read + '_>) -> Result<(), String> {
        let mut archive: Archive<'_> = tar::Archive::new(layer);
        for entry in archive.entries().map_err(layer_error)? {
            let entry = entry.map_err(layer_error)?;
            let path = entry_path(&entry.path_bytes())?;
            if let Some(path) = path {
                apply_whiteout(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Extracts all entries, without the whiteouts of a layer.
    pub fn extract_layer(&mut self, layer: Box<dyn Read + '_>, layered: bool) -> Result<(), String> {
        let mut archive: Archive<'_> = tar::Archive::new(layer);
        for entry in archive.entries().map_err(layer_error)? {
            let mut entry = entry.map_err(layer_error)?;
            let Some(path) = entry_path(&entry.path_bytes())? else { continue };
            if layered && file_name(&path).starts_with(WHITEOUT_PREFIX) {
                continue;
            }
            self.extract_entry(&mut entry, &path).map_err(|error| format!("{}: {error}", path.display()))?;
            if self.bytes > MAX_CONTENT_BYTES {
                return Err("its content is larger than 256 GiB".to_owned());
            }
        }
        Ok(())
    }

    fn extract_entry<R: Read>(&mut self, entry: &mut Entry<'_, R>, path: &Path) -> io::Result<()> {
        let kind = entry.header().entry_type();
        match kind {
            EntryType::XGlobalHeader => return Ok(()),
            EntryType::Block | EntryType::Char => {
                self.skipped += 1;
                return Ok(());
            }
            _ => {}
        }
        if let Some(above) = path.parent() {
            fs::create_dir_all(above)?;
        }
        let existing = metadata_if_exists(path)?;
        // An existing directory stays; anything else is replaced.
        if !(kind.is_dir() && existing.as_ref().is_some_and(Metadata::is_dir)) {
            remove_existing(path, existing.as_ref())?;
        }
        let mode = entry.header().mode()? & 0o7777;
        match kind {
            EntryType::Directory => {
                if !existing.is_some_and(|existing| existing.is_dir()) {
                    fs::create_dir(path)?;
                }
            }
            EntryType::Symlink => symlink(link_target(entry)?, path)?,
            EntryType::Link => {
                let target = entry_path(link_target(entry)?.as_os_str().as_bytes());
                let target = target.ok().flatten().ok_or(io::ErrorKind::InvalidData)?;
                // A hard link shares owner and mode with its target.
                return Ok(rustix::fs::linkat(CWD, &target, CWD, path, AtFlags::empty())?);
            }
            EntryType::Fifo => rustix::fs::mkfifoat(CWD, path, Mode::from_raw_mode(0o600))?,
            _ => {
                let mut file = OpenOptions::new();
                let flags = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
                let mut file = file.write(true).create_new(true).mode(0o600).custom_flags(flags).open(path)?;
                self.bytes +=
                    io::copy(&mut entry.take(MAX_CONTENT_BYTES - self.bytes.min(MAX_CONTENT_BYTES) + 1), &mut file)?;
            }
        }
        self.set_owner(entry, path)?;
        if kind != EntryType::Symlink {
            rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(mode), AtFlags::empty())?;
            set_user_xattrs(entry, path)?;
        }
        let seconds = i64::try_from(entry.header().mtime().unwrap_or(0)).unwrap_or(0);
        let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn set_owner<R: Read>(&self, entry: &Entry<'_, R>, path: &Path) -> io::Result<()> {
        if !self.map.has_root() {
            return Ok(());
        }
        let id = |archived: io::Result<u64>, known: &dyn Fn(u32) -> bool| {
            let archived = archived.ok().and_then(|id| u32::try_from(id).ok()).unwrap_or(NOBODY_ID);
            [archived, NOBODY_ID].into_iter().find(|id| known(*id)).unwrap_or(0)
        };
        let user = id(entry.header().uid(), &|id| self.map.host_uid(id).is_some());
        let group = id(entry.header().gid(), &|id| self.map.host_gid(id).is_some());
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        Ok(rustix::fs::chownat(CWD, path, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)), flags)?)
    }
}

fn link_target<R: Read>(entry: &Entry<'_, R>) -> io::Result<PathBuf> {
    let target = entry.link_name_bytes().ok_or(io::ErrorKind::InvalidData)?;
    Ok(PathBuf::from(OsStr::from_bytes(&target)))
}

/// An entry's path below the root; `None` for the root itself. Rejects `..`, although it could not lead out.
fn entry_path(bytes: &[u8]) -> Result<Option<PathBuf>, String> {
    let entry = Path::new(OsStr::from_bytes(bytes));
    let mut path = PathBuf::from("/");
    for part in entry.components() {
        match part {
            Component::Normal(part) => path.push(part),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(format!("its entry {} leads out of it", entry.display()));
            }
        }
    }
    Ok((path != Path::new("/")).then_some(path))
}

fn file_name(path: &Path) -> &[u8] {
    path.file_name().map(OsStrExt::as_bytes).unwrap_or_default()
}

fn metadata_if_exists(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn remove_existing(path: &Path, existing: Option<&Metadata>) -> io::Result<()> {
    match existing {
        None => Ok(()),
        Some(metadata) if metadata.is_dir() => Ok(tree_removal::remove_tree(path)?),
        Some(_) => fs::remove_file(path),
    }
}

fn apply_whiteout(path: &Path) -> io::Result<()> {
    let (name, Some(above)) = (file_name(path), path.parent()) else { return Ok(()) };
    if name == OPAQUE_MARKER {
        let entries = match fs::read_dir(above) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(());
            }
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            remove_existing(&path, metadata_if_exists(&path)?.as_ref())?;
        }
        return Ok(());
    }
    match name.strip_prefix(WHITEOUT_PREFIX) {
        Some(b"" | b"." | b"..") => Err(io::Error::new(io::ErrorKind::InvalidData, "invalid whiteout")),
        Some(_) if name.starts_with(RESERVED_PREFIX) => Ok(()),
        Some(hidden) => {
            let path = above.join(OsStr::from_bytes(hidden));
            let existing = metadata_if_exists(&path).or_else(|error| match error.kind() {
                io::ErrorKind::NotADirectory => Ok(None),
                _ => Err(error),
            })?;
            remove_existing(&path, existing.as_ref())
        }
        None => Ok(()),
    }
}

/// Sets user extended attributes. Others, as file capabilities and overlayfs marks, would have another meaning here.
fn set_user_xattrs<R: Read>(entry: &mut Entry<'_, R>, path: &Path) -> io::Result<()> {
    let Some(extensions) = entry.pax_extensions()? else { return Ok(()) };
    for extension in extensions {
        let extension = extension?;
        let Some(name) = extension.key_bytes().strip_prefix(b"SCHILY.xattr.") else { continue };
        if name.starts_with(b"user.") && !name.starts_with(b"user.overlay.") {
            rustix::fs::lsetxattr(path, name, extension.value_bytes(), XattrFlags::empty())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_paths_are_below_the_root() {
        assert_eq!(entry_path(b"./usr//bin/"), Ok(Some("/usr/bin".into())));
        assert_eq!(entry_path(b"/etc/passwd"), Ok(Some("/etc/passwd".into())));
        assert_eq!(entry_path(b"./"), Ok(None));
        for bad in [&b"../x"[..], b"a/../../x", b"/.."] {
            assert!(entry_path(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn whiteouts_hide_only_what_they_name() {
        let base = tempfile::tempdir().unwrap();
        let path = |name: &str| base.path().join(name);
        fs::create_dir_all(path("kept/deep")).unwrap();
        fs::create_dir_all(path("all/deep")).unwrap();
        fs::write(path("gone"), "x").unwrap();
        symlink("kept", path("link")).unwrap();
        for name in [".wh.gone", ".wh.link", "all/.wh..wh..opq", ".wh..wh.plnk", "none/.wh.x", "kept/x"] {
            apply_whiteout(&path(name)).unwrap();
        }
        assert!(!path("gone").exists() && path("link").symlink_metadata().is_err());
        assert!(path("kept/deep").exists() && path("all").exists() && !path("all/deep").exists());
        for name in [".wh.", ".wh..", "kept/.wh..."] {
            assert!(apply_whiteout(&path(name)).is_err(), "{name}");
        }
        assert!(path("kept").exists());
    }
}
