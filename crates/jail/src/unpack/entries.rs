//! Puts the entries of a tar archive below the root of this process, which is confined to it.

use std::ffi::OsStr;
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use tar::{Entry, EntryType};

use crate::ids::Map;
use crate::remove;

/// What hides, in a layer, something of those below it.
const HIDES: &[u8] = b".wh.";
/// What hides all that those below have in its directory.
const HIDES_ALL: &[u8] = b".wh..wh..opq";
/// What layered file systems wrote for themselves.
const THEIRS: &[u8] = b".wh..wh.";

const LARGEST: u64 = 256 << 30;
/// Who owns what belongs to an id that isn't there.
const NOBODY: u32 = 65_534;

pub(super) struct Unpacker<'a> {
    map: &'a Map,
    pub bytes: u64,
    pub layers: u32,
    pub skipped: u64,
}

type Archive<'a> = tar::Archive<Box<dyn Read + 'a>>;

fn unreadable(error: impl std::fmt::Display) -> String {
    format!("a layer of it can't be read as a tar archive: {error}")
}

impl<'a> Unpacker<'a> {
    pub fn new(map: &'a Map) -> Self {
        Self { map, bytes: 0, layers: 1, skipped: 0 }
    }

    /// Removes what a layer hides of those before it.
    pub fn hide(&mut self, layer: Box<dyn Read + '_>) -> Result<(), String> {
        let mut archive: Archive<'_> = tar::Archive::new(layer);
        for entry in archive.entries().map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let path = path_of(&entry.path_bytes())?;
            if let Some(path) = path {
                hide(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Puts everything in place; of a layer all but what hides.
    pub fn apply(&mut self, layer: Box<dyn Read + '_>, layered: bool) -> Result<(), String> {
        let mut archive: Archive<'_> = tar::Archive::new(layer);
        for entry in archive.entries().map_err(unreadable)? {
            let mut entry = entry.map_err(unreadable)?;
            let Some(path) = path_of(&entry.path_bytes())? else { continue };
            if layered && file_name(&path).starts_with(HIDES) {
                continue;
            }
            self.put(&mut entry, &path).map_err(|error| format!("{}: {error}", path.display()))?;
            if self.bytes > LARGEST {
                return Err("what is in it is larger than 256 GiB".to_owned());
            }
        }
        Ok(())
    }

    fn put<R: Read>(&mut self, entry: &mut Entry<'_, R>, path: &Path) -> io::Result<()> {
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
        let there = existing(path)?;
        // A directory stays what it is when another layer names it again; everything else makes room.
        if !(kind.is_dir() && there.as_ref().is_some_and(Metadata::is_dir)) {
            make_room(path, there.as_ref())?;
        }
        let mode = entry.header().mode()? & 0o7777;
        match kind {
            EntryType::Directory => {
                if !there.is_some_and(|there| there.is_dir()) {
                    fs::create_dir(path)?;
                }
            }
            EntryType::Symlink => symlink(target(entry)?, path)?,
            EntryType::Link => {
                let target = path_of(target(entry)?.as_os_str().as_bytes());
                let target = target.ok().flatten().ok_or(io::ErrorKind::InvalidData)?;
                // It is the file it is a name of: its owner and mode came with that.
                return Ok(rustix::fs::linkat(CWD, &target, CWD, path, AtFlags::empty())?);
            }
            EntryType::Fifo => rustix::fs::mkfifoat(CWD, path, Mode::from_raw_mode(0o600))?,
            _ => {
                let mut file = OpenOptions::new();
                let flags = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
                let mut file = file.write(true).create_new(true).mode(0o600).custom_flags(flags).open(path)?;
                self.bytes += io::copy(&mut entry.take(LARGEST - self.bytes.min(LARGEST) + 1), &mut file)?;
            }
        }
        self.own(entry, path)?;
        if kind != EntryType::Symlink {
            rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(mode), AtFlags::empty())?;
            attributes(entry, path)?;
        }
        let seconds = i64::try_from(entry.header().mtime().unwrap_or(0)).unwrap_or(0);
        let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn own<R: Read>(&self, entry: &Entry<'_, R>, path: &Path) -> io::Result<()> {
        if !self.map.has_root() {
            return Ok(());
        }
        let id = |wanted: io::Result<u64>, known: &dyn Fn(u32) -> bool| {
            let wanted = wanted.ok().and_then(|id| u32::try_from(id).ok()).unwrap_or(NOBODY);
            [wanted, NOBODY].into_iter().find(|id| known(*id)).unwrap_or(0)
        };
        let user = id(entry.header().uid(), &|id| self.map.user(id).is_some());
        let group = id(entry.header().gid(), &|id| self.map.group(id).is_some());
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        Ok(rustix::fs::chownat(CWD, path, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)), flags)?)
    }
}

fn target<R: Read>(entry: &Entry<'_, R>) -> io::Result<PathBuf> {
    let target = entry.link_name_bytes().ok_or(io::ErrorKind::InvalidData)?;
    Ok(PathBuf::from(OsStr::from_bytes(&target)))
}

/// An entry's path below the root; `None` is the root itself. What would go up is refused, though it could not.
fn path_of(bytes: &[u8]) -> Result<Option<PathBuf>, String> {
    let given = Path::new(OsStr::from_bytes(bytes));
    let mut path = PathBuf::from("/");
    for part in given.components() {
        match part {
            Component::Normal(part) => path.push(part),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(format!("it names {}, which leads out of it", given.display()));
            }
        }
    }
    Ok((path != Path::new("/")).then_some(path))
}

fn file_name(path: &Path) -> &[u8] {
    path.file_name().map(OsStrExt::as_bytes).unwrap_or_default()
}

fn existing(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn make_room(path: &Path, there: Option<&Metadata>) -> io::Result<()> {
    match there {
        None => Ok(()),
        Some(metadata) if metadata.is_dir() => Ok(remove::tree(path)?),
        Some(_) => fs::remove_file(path),
    }
}

fn hide(path: &Path) -> io::Result<()> {
    let (name, Some(above)) = (file_name(path), path.parent()) else { return Ok(()) };
    if name == HIDES_ALL {
        let entries = match fs::read_dir(above) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(());
            }
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            make_room(&path, existing(&path)?.as_ref())?;
        }
        return Ok(());
    }
    match name.strip_prefix(HIDES) {
        Some(b"" | b"." | b"..") => Err(io::Error::new(io::ErrorKind::InvalidData, "it hides what can't be hidden")),
        Some(_) if name.starts_with(THEIRS) => Ok(()),
        Some(hidden) => {
            let path = above.join(OsStr::from_bytes(hidden));
            let there = existing(&path).or_else(|error| match error.kind() {
                io::ErrorKind::NotADirectory => Ok(None),
                _ => Err(error),
            })?;
            make_room(&path, there.as_ref())
        }
        None => Ok(()),
    }
}

/// Users' own attributes. Privileges of programs and marks of layered file systems would mean something else here.
fn attributes<R: Read>(entry: &mut Entry<'_, R>, path: &Path) -> io::Result<()> {
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
    fn paths_are_below_the_root() {
        assert_eq!(path_of(b"./usr//bin/"), Ok(Some("/usr/bin".into())));
        assert_eq!(path_of(b"/etc/passwd"), Ok(Some("/etc/passwd".into())));
        assert_eq!(path_of(b"./"), Ok(None));
        for bad in [&b"../x"[..], b"a/../../x", b"/.."] {
            assert!(path_of(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_layer_hides_what_it_names_and_nothing_else() {
        let base = tempfile::tempdir().unwrap();
        let path = |name: &str| base.path().join(name);
        fs::create_dir_all(path("kept/deep")).unwrap();
        fs::create_dir_all(path("all/deep")).unwrap();
        fs::write(path("gone"), "x").unwrap();
        symlink("kept", path("link")).unwrap();
        for name in [".wh.gone", ".wh.link", "all/.wh..wh..opq", ".wh..wh.plnk", "none/.wh.x", "kept/x"] {
            hide(&path(name)).unwrap();
        }
        assert!(!path("gone").exists() && path("link").symlink_metadata().is_err());
        assert!(path("kept/deep").exists() && path("all").exists() && !path("all/deep").exists());
        for name in [".wh.", ".wh..", "kept/.wh..."] {
            assert!(hide(&path(name)).is_err(), "{name}");
        }
        assert!(path("kept").exists());
    }
}
