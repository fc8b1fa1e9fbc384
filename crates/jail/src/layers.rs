//! Where sandboxes keep their files: layers, of which one is written to and others, sealed, lie below it.
//!
//! A layer is a directory. Its files are stored under one range of ids, whoever wrote them, and shown to each sandbox
//! under its own: so a layer can lie below several. To seal one is to write down that another is on top now.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, Permissions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::CWD;
use rustix::mount::OpenTreeFlags;
use serde::{Deserialize, Serialize};

use crate::btrfs::{self, Quota};
use crate::error::{AtStep, Errno, Error, Failure, Step};
use crate::ids::{Map, RANGE};
use crate::kernel;
use crate::maps::{self, Source};
use crate::place::{AGENT, Ids, Range};
use crate::volumes::Volume;

/// How many layers may lie below one: what the kernel takes in one page of options, with room to spare.
pub(crate) const MOST: usize = 180;

/// How directories are called that are being removed.
pub(crate) const GONE: &str = ".gone-";

/// What a sandbox's files are made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stack {
    /// The one that is written to.
    pub top: String,
    /// Sealed, the newest first.
    pub below: Vec<String>,
    pub image: Option<Base>,
    /// The top holds all of it, in a store that bounds: nothing lies below it, and an image is only named.
    #[serde(default)]
    pub volume: Option<Volume>,
}

/// The imported root below all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Base {
    pub name: String,
    pub layer: String,
}

impl Stack {
    /// All that must stay as long as this is there.
    pub fn layers(&self) -> impl Iterator<Item = &str> {
        let image = self.image.as_ref().map(|base| base.layer.as_str());
        let spool = self.volume.as_ref().map(|volume| volume.spool.as_str());
        [self.top.as_str()].into_iter().chain(self.below.iter().map(String::as_str)).chain(image).chain(spool)
    }

    /// What was made for this sandbox alone.
    pub fn own(&self) -> impl Iterator<Item = &str> {
        [self.top.as_str()].into_iter().chain(self.volume.as_ref().map(|volume| volume.spool.as_str()))
    }

    /// The same with another on top.
    pub fn sealed(&self, top: String) -> Self {
        let below = [self.top.clone()].into_iter().chain(self.below.iter().cloned()).collect();
        Self { top, below, image: self.image.clone(), volume: None }
    }

    /// What lay below before the top was sealed, if it was sealed last.
    pub fn unsealed(&self) -> Option<Self> {
        let (top, below) = self.below.split_first()?;
        Some(Self { top: top.clone(), below: below.to_vec(), image: self.image.clone(), volume: None })
    }
}

/// The two kinds of files in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The workspace and the agent's home.
    Files,
    /// What was changed in an imported root.
    System,
}

impl Part {
    pub fn directory(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::System => "system",
        }
    }

    /// What the kernel works in while it is on top.
    pub fn work(self) -> &'static str {
        match self {
            Self::Files => "files-work",
            Self::System => "system-work",
        }
    }
}

/// How a new layer begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// With an empty workspace and home.
    Empty,
    /// With what is below it.
    Above,
    /// As an imported root.
    Root,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layers {
    pub directory: PathBuf,
    /// Under which ids files are stored.
    pub map: Map,
    /// How the file system counts what each layer takes, where it does and this user can bound it.
    pub quota: Option<Quota>,
}

impl Layers {
    /// Makes the directory, or finds it. Whoever owns it tells the ids under which files are stored in it.
    pub fn open(directory: &Path, source: &Source) -> Result<Self, Error> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|error| Error::file("make the directory", directory, error))?;
        let directory = fs::canonicalize(directory).map_err(|error| Error::file("find", directory, error))?;
        let map = match source {
            Source::Fixed { map, .. } => map.clone(),
            Source::Ranges { .. } => {
                let stored = stored(&directory, source)?;
                let map = Map::own(stored);
                match can_map(&directory, stored, &map) {
                    Ok(()) => map,
                    Err(_) => Map::common(stored),
                }
            }
        };
        let quota = btrfs::quota(&directory).filter(|_| rustix::process::geteuid().is_root());
        let layers = Self { directory, map, quota };
        layers.give(&layers.directory, 0).map_err(|error| Error::file("give away", &layers.directory, error))?;
        Ok(layers)
    }

    /// A map for a new sandbox, given the ranges of those that are there.
    pub fn map_for_another(&self, source: &Source, used: &[Range]) -> Result<Map, Error> {
        match self.map.ids {
            Ids::Own => {
                let taken: Vec<Range> = used.iter().copied().chain(self.map.range()).collect();
                source.map(&taken)
            }
            Ids::Common | Ids::Shared | Ids::Single => Ok(self.map.clone()),
        }
    }

    /// The user namespace by which files show with a sandbox's ids, where they are stored with others.
    pub fn shown(&self, map: &Map) -> Result<Option<OwnedFd>, Failure> {
        match self.map.range().and_then(|stored| map.mapping_of(stored)) {
            Some(mapping) => Ok(Some(maps::namespace(&mapping)?)),
            None => Ok(None),
        }
    }

    pub fn layer(&self, id: &str) -> PathBuf {
        self.directory.join(id)
    }

    pub fn part(&self, id: &str, part: Part) -> PathBuf {
        self.layer(id).join(part.directory())
    }

    pub fn workspace(&self, id: &str) -> PathBuf {
        self.part(id, Part::Files).join("workspace")
    }

    pub fn agent_home(&self, id: &str) -> PathBuf {
        self.part(id, Part::Files).join("home")
    }

    /// Makes a layer that nobody refers to yet.
    pub fn make(&self, beginning: Beginning, system: bool) -> Result<String, Error> {
        let id = self.claim()?;
        match self.fill(&id, beginning, system) {
            Ok(()) => Ok(id),
            Err(error) => {
                // What stays is swept when the next launcher starts.
                let _ = crate::remove::tree(&self.layer(&id));
                Err(error)
            }
        }
    }

    fn claim(&self) -> Result<String, Error> {
        self.claim_with(|path| DirBuilder::new().mode(0o700).create(path))
    }

    pub(crate) fn claim_with(&self, make: impl Fn(&Path) -> std::io::Result<()>) -> Result<String, Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut number = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        loop {
            let id = name(number);
            match make(&self.layer(&id)) {
                Ok(()) => return Ok(id),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number = number.wrapping_add(1),
                Err(error) => return Err(Error::file("make", &self.layer(&id), error)),
            }
        }
    }

    pub(crate) fn fill(&self, id: &str, beginning: Beginning, system: bool) -> Result<(), Error> {
        let mut wanted: Vec<(PathBuf, u32)> = vec![(PathBuf::new(), 0)];
        let mut part = |part: Part, above: bool| {
            wanted.push((part.directory().into(), 0));
            if above {
                wanted.push((part.work().into(), 0));
            }
        };
        match beginning {
            Beginning::Root => part(Part::System, false),
            Beginning::Empty | Beginning::Above => {
                part(Part::Files, beginning == Beginning::Above);
                if system {
                    part(Part::System, true);
                }
            }
        }
        if beginning == Beginning::Empty {
            wanted.extend(["files/workspace", "files/home"].map(|path| (path.into(), AGENT)));
        }
        let layer = self.layer(id);
        for (path, _) in &wanted[1..] {
            let path = layer.join(path);
            let made = fs::create_dir(&path).and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o755)));
            made.map_err(|error| Error::file("make", &path, error))?;
        }
        if self.map.ids == Ids::Shared {
            return self.give_within(&layer, wanted.into_iter().filter(|(_, owner)| *owner != 0).collect());
        }
        for (path, owner) in wanted.iter().rev() {
            let path = layer.join(path);
            self.give(&path, *owner).map_err(|error| Error::file("give away", &path, error))?;
        }
        Ok(())
    }

    /// To whom it shall belong inside, where the launcher can say that by itself.
    fn give(&self, path: &Path, owner: u32) -> std::io::Result<()> {
        match self.map.ids {
            Ids::Own | Ids::Common => chown(path, self.map.user(owner), self.map.group(owner)),
            Ids::Shared | Ids::Single => Ok(()),
        }
    }

    fn give_within(&self, layer: &Path, wanted: Vec<(PathBuf, u32)>) -> Result<(), Error> {
        if wanted.is_empty() {
            return Ok(());
        }
        let process = maps::spawn_within(&self.map, || {
            let given = wanted.iter().try_for_each(|(path, owner)| chown(layer.join(path), Some(*owner), Some(*owner)));
            given.map_or_else(|error| Errno::from(error).0, |()| 0)
        });
        let process = process.map_err(|failure| Error::step("new", failure))?;
        match process.wait().ok().flatten().and_then(|status| status.exit_status()) {
            Some(0) => Ok(()),
            number => Err(Error::file("give away", layer, Errno(number.unwrap_or(libc::EIO)))),
        }
    }

    /// Nothing was changed in it since it was put on top of others.
    pub fn is_untouched(&self, id: &str) -> bool {
        let empty = |part| match fs::read_dir(self.part(id, part)) {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) => part == Part::System && error.kind() == std::io::ErrorKind::NotFound,
        };
        empty(Part::Files) && empty(Part::System)
    }

    /// Takes layers out of use: from here on they are only to be removed.
    pub fn discard<'a>(&self, ids: impl IntoIterator<Item = &'a str>) -> Vec<PathBuf> {
        ids.into_iter()
            .filter(|id| !Self::is_gone(&self.layer(id)))
            .filter_map(|id| {
                let gone = self.directory.join(format!("{GONE}{id}"));
                fs::rename(self.layer(id), &gone).ok().map(|()| gone)
            })
            .collect()
    }

    /// A volume goes in one step; what is none is removed file by file.
    fn is_gone(path: &Path) -> bool {
        btrfs::is_volume(path) && btrfs::remove(path).is_ok()
    }

    /// What is left of layers that were being removed, and those that nobody refers to, now on their way out.
    pub fn sweep(&self, used: &BTreeSet<String>) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        let (gone, there): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| name.starts_with(GONE));
        let mut paths = self.discard(there.iter().map(String::as_str).filter(|name| !used.contains(*name)));
        paths.extend(gone.into_iter().map(|name| self.directory.join(name)).filter(|gone| !Self::is_gone(gone)));
        paths
    }

    /// The whole store, as a mount that hangs nowhere and shows the ids of `namespace`.
    pub fn tree(&self, namespace: &OwnedFd) -> Result<OwnedFd, Failure> {
        mapped(&self.directory, namespace)
    }
}

/// A directory with its ids mapped, as a mount that hangs nowhere.
pub(crate) fn mapped(path: &Path, namespace: &OwnedFd) -> Result<OwnedFd, Failure> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(CWD, path, flags).at_with(Step::Trees, path.display())?;
    let attributes = kernel::NO_SUID | kernel::NO_DEVICES;
    kernel::map_ids(tree.as_fd(), namespace.as_fd(), attributes).at_with(Step::Trees, path.display())?;
    Ok(tree)
}

/// The range of whoever owns the directory; else a new one.
fn stored(directory: &Path, source: &Source) -> Result<Range, Error> {
    let owner = fs::metadata(directory).map_err(|error| Error::file("read", directory, error))?.uid();
    if owner >= RANGE {
        return Ok(Range { first: owner, count: RANGE });
    }
    source.stored()?.ok_or_else(|| Error::protocol("no range to store files under"))
}

/// Whether this kernel and this file system can show files under other ids than they are stored.
pub(crate) fn can_map(directory: &Path, stored: Range, map: &Map) -> Result<(), Failure> {
    let mapping = map.mapping_of(stored).ok_or(Errno(libc::EINVAL)).at(Step::Maps)?;
    mapped(directory, &maps::namespace(&mapping)?).map(drop)
}

/// A short name: many of them must fit into what the kernel takes.
fn name(mut number: u64) -> String {
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

    fn stack(top: &str, below: &[&str]) -> Stack {
        Stack { top: top.into(), below: below.iter().map(|id| (*id).to_owned()).collect(), image: None, volume: None }
    }

    #[test]
    fn sealing_puts_the_top_below_and_can_be_taken_back() {
        let before = stack("c", &["b", "a"]);
        let after = before.sealed("d".into());
        assert_eq!(after, stack("d", &["c", "b", "a"]));
        assert_eq!(after.unsealed(), Some(before));
        assert_eq!(stack("a", &[]).unsealed(), None);
        let on_image = Stack { image: Some(Base { name: "debian".into(), layer: "i".into() }), ..after };
        assert_eq!(on_image.layers().collect::<Vec<_>>(), ["d", "c", "b", "a", "i"]);
    }

    #[test]
    fn names_are_short_and_do_not_collide() {
        assert_eq!([name(0), name(35), name(36), name(36 * 36)], ["0", "z", "10", "100"]);
        assert!(name(u64::MAX).len() <= 13);
        let options = format!("{}/system-work", name(u64::MAX)).len() * 2 + (name(u64::MAX).len() + 8) * MOST;
        assert!(options < 4000, "{options} bytes of options");
    }
}
