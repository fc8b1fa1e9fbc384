//! Puts a package into the data directory: whole and checked, or not at all.
//!
//! What is fetched is written beside its place and looked at there; only when its checksum is the expected one is it
//! unpacked, and only when the program is in it does it get its name. No script of a package is run.

use crate::find::{Places, is_version};
use crate::known::{Agent, Package};
use crate::{DIRECTORY, version};
use atoll_trees::Links;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::read::MultiGzDecoder;
use sha2::{Digest, Sha512};
use std::fs::{self, DirBuilder, File};
use std::io::{self, BufReader, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// No agent comes near these, packed or unpacked.
const LARGEST_ARCHIVE: u64 = 2 << 30;
const LARGEST_TREE: u64 = 8 << 30;
/// After this long nobody is at work any more on what was begun.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);
/// What is not finished is called like this; no version is.
const UNFINISHED: &str = ".new-";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("`{0}` is not a checksum that can be checked: it must be sha512-… in base64")]
    Checksum(String),
    #[error(
        "what was fetched is not what was expected: its checksum is {found}, and {expected} was wanted; nothing was installed"
    )]
    Mismatch { expected: String, found: String },
    #[error("it is larger than {0} bytes, which no agent is; nothing was installed")]
    TooLarge(u64),
    #[error("the package can't be unpacked: {0}; nothing was installed")]
    Unpack(String),
    #[error("there is no {0} in the package; nothing was installed")]
    NoProgram(&'static str),
    #[error("`{0}` is not a version")]
    Version(String),
    #[error("{agent} {version} is not installed here")]
    NotInstalled { agent: Agent, version: String },
}

fn file(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
    move |source| Error::File { path: path.to_path_buf(), source }
}

/// The checksum of an archive, as npm writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Integrity(String);

impl Integrity {
    pub fn read(text: &str) -> Result<Self, Error> {
        // Several may stand side by side; this is the strongest that npm has.
        let found = text.split_whitespace().find(|one| {
            one.strip_prefix("sha512-").is_some_and(|hash| STANDARD.decode(hash).is_ok_and(|hash| hash.len() == 64))
        });
        found.map(|found| Self(found.to_owned())).ok_or_else(|| Error::Checksum(text.chars().take(100).collect()))
    }
}

/// A version that is installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    pub version: String,
    pub directory: PathBuf,
    pub bytes: u64,
}

/// An archive on its way in; dropped, it leaves nothing.
#[derive(Debug)]
pub struct Fetching {
    stage: TempDir,
    archive: File,
    hash: Sha512,
    bytes: u64,
    target: PathBuf,
    version: String,
    package: Package,
}

impl Places {
    /// Where a version is or would be.
    pub fn directory(&self, agent: Agent, version: &str) -> Result<PathBuf, Error> {
        if !is_version(version) {
            return Err(Error::Version(version.chars().take(64).collect()));
        }
        Ok(self.installed(agent).join(version))
    }

    /// The versions that are installed, newest first.
    pub fn versions(&self, agent: Agent) -> Vec<String> {
        let entries = fs::read_dir(self.installed(agent)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| is_version(name)).collect();
        names.sort_by(|one, other| version::in_order(other, one));
        names
    }

    /// What is installed of a version.
    pub fn is_there(&self, agent: Agent, version: &str) -> Option<Installed> {
        let directory = self.directory(agent, version).ok().filter(|directory| directory.is_dir())?;
        Some(Installed { version: version.to_owned(), bytes: size(&directory), directory })
    }

    /// Begins to install a version.
    pub fn fetch(&self, agent: Agent, package: Package, version: &str) -> Result<Fetching, Error> {
        let target = self.directory(agent, version)?;
        let agents = self.data_dir.join(DIRECTORY);
        let make = |path: &Path, mode| DirBuilder::new().recursive(true).mode(mode).create(path).map_err(file(path));
        make(&self.data_dir, 0o700)?;
        make(&self.installed(agent), 0o755)?;
        forget_abandoned(&agents);
        let stage = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(&agents).map_err(file(&agents))?;
        let path = stage.path().join("archive");
        let archive = File::options().read(true).write(true).create_new(true).open(&path).map_err(file(&path))?;
        let version = version.to_owned();
        Ok(Fetching { stage, archive, hash: Sha512::new(), bytes: 0, target, version, package })
    }

    /// Removes a version, or all. Sandboxes that run it keep what they have.
    pub fn remove(&self, agent: Agent, version: Option<&str>) -> Result<Vec<String>, Error> {
        let versions = match version {
            Some(version) if self.is_there(agent, version).is_none() => {
                return Err(Error::NotInstalled { agent, version: version.to_owned() });
            }
            Some(version) => vec![version.to_owned()],
            None => self.versions(agent),
        };
        let agents = self.data_dir.join(DIRECTORY);
        for version in &versions {
            let directory = self.directory(agent, version)?;
            let stage = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(&agents).map_err(file(&agents))?;
            // Out of the way at once: nobody finds half of it.
            fs::rename(&directory, stage.path().join("old")).map_err(file(&directory))?;
            stage.close().map_err(file(&agents))?;
        }
        Ok(versions)
    }
}

impl Fetching {
    /// The next piece of the archive.
    pub fn write(&mut self, piece: &[u8]) -> Result<(), Error> {
        self.bytes += piece.len() as u64;
        if self.bytes > LARGEST_ARCHIVE {
            return Err(Error::TooLarge(LARGEST_ARCHIVE));
        }
        self.hash.update(piece);
        self.archive.write_all(piece).map_err(file(self.stage.path()))
    }

    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// All of it is here: checks, unpacks, and gives it its name.
    pub fn finish(self, expected: &Integrity) -> Result<Installed, Error> {
        let Self { stage, mut archive, hash, target, version, package, .. } = self;
        let found = format!("sha512-{}", STANDARD.encode(hash.finalize()));
        if found != expected.0 {
            return Err(Error::Mismatch { expected: expected.0.clone(), found });
        }
        let tree = stage.path().join("tree");
        fs::create_dir(&tree).map_err(file(&tree))?;
        archive.rewind().map_err(file(stage.path()))?;
        unpack(archive, &tree)?;
        let program = tree.join("package").join(package.program);
        let is_file = fs::symlink_metadata(&program).is_ok_and(|found| found.is_file());
        if !is_file {
            return Err(Error::NoProgram(package.program));
        }
        open_to_all(&tree)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).map_err(file(&program))?;
        let bytes = size(&tree);
        // On disk before it has its name: what has one is whole.
        let directory = File::open(&tree).map_err(file(&tree))?;
        rustix::fs::syncfs(&directory).map_err(|error| file(&tree)(error.into()))?;
        match fs::rename(&tree, &target) {
            Ok(()) => {}
            // Somebody else was faster with the same.
            Err(_) if target.is_dir() => {}
            Err(error) => return Err(file(&target)(error)),
        }
        Ok(Installed { version, directory: target, bytes })
    }
}

fn unpack(archive: File, tree: &Path) -> Result<(), Error> {
    let root = File::open(tree).map_err(file(tree))?;
    let bounded = MultiGzDecoder::new(BufReader::new(archive)).take(LARGEST_TREE);
    let tally = atoll_trees::unpack(BufReader::new(bounded), root.into(), Links::Inside, |_| {})
        .map_err(|error| Error::Unpack(error.to_string()))?;
    match tally.named.first() {
        None => Ok(()),
        Some(skipped) => Err(Error::Unpack(format!("{}: {}", skipped.path, skipped.why))),
    }
}

/// Whoever runs it is a stranger to it: all may read, and go into directories; nobody else may write.
fn open_to_all(directory: &Path) -> Result<(), Error> {
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(file(path));
    mode(directory, 0o755)?;
    for entry in fs::read_dir(directory).map_err(file(directory))? {
        let path = entry.map_err(file(directory))?.path();
        let found = fs::symlink_metadata(&path).map_err(file(&path))?;
        if found.is_dir() {
            open_to_all(&path)?;
        } else if found.is_file() {
            mode(&path, if found.permissions().mode() & 0o100 == 0 { 0o644 } else { 0o755 })?;
        }
    }
    Ok(())
}

/// What all files of a tree hold.
fn size(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => size(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    };
    entries.map(of).sum()
}

/// Somebody was killed in the middle, long ago.
fn forget_abandoned(agents: &Path) {
    for entry in fs::read_dir(agents).into_iter().flatten().flatten() {
        let unfinished = entry.file_name().to_str().is_some_and(|name| name.starts_with(UNFINISHED));
        let age = entry.metadata().and_then(|found| found.modified()).ok().and_then(|at| at.elapsed().ok());
        if unfinished && age.is_some_and(|age| age > ABANDONED) {
            // What can't be removed now is tried again the next time.
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}

#[cfg(test)]
#[path = "install_tests.rs"]
mod tests;
