//! Installs a package into the data directory, atomically and verified.
//!
//! The archive goes to a staging directory. After its checksum matches, it is unpacked there; if it contains the program,
//! the directory gets its final name. No package script runs.

use crate::find::{AgentLocations, is_version};
use crate::known_agents::{Agent, Package};
use crate::{AGENTS_DIR, version};
use atoll_trees::SymlinkPolicy;
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

/// Far above the size of any agent.
const MAX_ARCHIVE_BYTES: u64 = 2 << 30;
const MAX_UNPACKED_BYTES: u64 = 8 << 30;
/// A staging directory this old belongs to a process that died.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);
/// Name prefix of staging directories. No version starts with it.
const STAGING_PREFIX: &str = ".new-";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("`{0}` is not a supported checksum: expected sha512-… in base64")]
    Checksum(String),
    #[error("checksum mismatch: expected {expected}, found {found}; nothing was installed")]
    Mismatch { expected: String, found: String },
    #[error("the package is larger than {0} bytes; nothing was installed")]
    TooLarge(u64),
    #[error("the package cannot be unpacked: {0}; nothing was installed")]
    Unpack(String),
    #[error("the package has no {0}; nothing was installed")]
    NoProgram(&'static str),
    #[error("`{0}` is not a version")]
    Version(String),
    #[error("{agent} {version} is not installed")]
    NotInstalled { agent: Agent, version: String },
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
    move |source| Error::File { path: path.to_path_buf(), source }
}

/// The checksum of an archive in npm's format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Integrity(String);

impl Integrity {
    pub fn parse_integrity(text: &str) -> Result<Self, Error> {
        // npm may list several algorithms; SHA-512 is the strongest.
        let found = text.split_whitespace().find(|one| {
            one.strip_prefix("sha512-").is_some_and(|hash| STANDARD.decode(hash).is_ok_and(|hash| hash.len() == 64))
        });
        found.map(|found| Self(found.to_owned())).ok_or_else(|| Error::Checksum(text.chars().take(100).collect()))
    }
}

/// An installed version of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstalledVersion {
    pub version: String,
    pub directory: PathBuf,
    pub bytes: u64,
}

/// An installation in progress. Dropping it removes the staging directory.
#[derive(Debug)]
pub struct PackageInstall {
    stage: TempDir,
    archive: File,
    hash: Sha512,
    bytes: u64,
    target: PathBuf,
    version: String,
    package: Package,
}

impl AgentLocations {
    /// The directory of a version, whether or not it exists.
    pub fn version_dir(&self, agent: Agent, version: &str) -> Result<PathBuf, Error> {
        if !is_version(version) {
            return Err(Error::Version(version.chars().take(64).collect()));
        }
        Ok(self.install_dir(agent).join(version))
    }

    /// Lists the installed versions, newest first.
    pub fn list_versions(&self, agent: Agent) -> Vec<String> {
        let entries = fs::read_dir(self.install_dir(agent)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| is_version(name)).collect();
        names.sort_by(|one, other| version::compare_versions(other, one));
        names
    }

    /// Returns a version if it is installed.
    pub fn find_version(&self, agent: Agent, version: &str) -> Option<InstalledVersion> {
        let directory = self.version_dir(agent, version).ok().filter(|directory| directory.is_dir())?;
        Some(InstalledVersion { version: version.to_owned(), bytes: measure_tree(&directory), directory })
    }

    /// Creates the staging directory for a version.
    pub fn begin_install(&self, agent: Agent, package: Package, version: &str) -> Result<PackageInstall, Error> {
        let target = self.version_dir(agent, version)?;
        let agents = self.data_dir.join(AGENTS_DIR);
        let make =
            |path: &Path, mode| DirBuilder::new().recursive(true).mode(mode).create(path).map_err(file_error(path));
        make(&self.data_dir, 0o700)?;
        make(&self.install_dir(agent), 0o755)?;
        remove_abandoned(&agents);
        let stage = tempfile::Builder::new().prefix(STAGING_PREFIX).tempdir_in(&agents).map_err(file_error(&agents))?;
        let path = stage.path().join("archive");
        let archive = File::options().read(true).write(true).create_new(true).open(&path).map_err(file_error(&path))?;
        let version = version.to_owned();
        Ok(PackageInstall { stage, archive, hash: Sha512::new(), bytes: 0, target, version, package })
    }

    /// Removes one version, or all. Running sandboxes keep theirs.
    pub fn remove_versions(&self, agent: Agent, version: Option<&str>) -> Result<Vec<String>, Error> {
        let versions = match version {
            Some(version) if self.find_version(agent, version).is_none() => {
                return Err(Error::NotInstalled { agent, version: version.to_owned() });
            }
            Some(version) => vec![version.to_owned()],
            None => self.list_versions(agent),
        };
        let agents = self.data_dir.join(AGENTS_DIR);
        for version in &versions {
            let directory = self.version_dir(agent, version)?;
            let stage =
                tempfile::Builder::new().prefix(STAGING_PREFIX).tempdir_in(&agents).map_err(file_error(&agents))?;
            // Rename first, so that no other process finds a partially deleted directory.
            fs::rename(&directory, stage.path().join("old")).map_err(file_error(&directory))?;
            stage.close().map_err(file_error(&agents))?;
        }
        Ok(versions)
    }
}

impl PackageInstall {
    /// Appends the next chunk of the archive.
    pub fn write_chunk(&mut self, piece: &[u8]) -> Result<(), Error> {
        self.bytes += piece.len() as u64;
        if self.bytes > MAX_ARCHIVE_BYTES {
            return Err(Error::TooLarge(MAX_ARCHIVE_BYTES));
        }
        self.hash.update(piece);
        self.archive.write_all(piece).map_err(file_error(self.stage.path()))
    }

    /// Verifies the checksum, unpacks the archive and renames the directory to its final name.
    pub fn verify_and_install(self, expected: &Integrity) -> Result<InstalledVersion, Error> {
        let Self { stage, mut archive, hash, target, version, package, .. } = self;
        let found = format!("sha512-{}", STANDARD.encode(hash.finalize()));
        if found != expected.0 {
            return Err(Error::Mismatch { expected: expected.0.clone(), found });
        }
        let tree = stage.path().join("tree");
        fs::create_dir(&tree).map_err(file_error(&tree))?;
        archive.rewind().map_err(file_error(stage.path()))?;
        unpack_archive(archive, &tree)?;
        let program = tree.join("package").join(package.program);
        let is_file = fs::symlink_metadata(&program).is_ok_and(|found| found.is_file());
        if !is_file {
            return Err(Error::NoProgram(package.program));
        }
        make_readable(&tree)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).map_err(file_error(&program))?;
        let bytes = measure_tree(&tree);
        // Sync before the rename, so that a named directory is always complete.
        let directory = File::open(&tree).map_err(file_error(&tree))?;
        rustix::fs::syncfs(&directory).map_err(|error| file_error(&tree)(error.into()))?;
        match fs::rename(&tree, &target) {
            Ok(()) => {}
            // Another process installed the same version first.
            Err(_) if target.is_dir() => {}
            Err(error) => return Err(file_error(&target)(error)),
        }
        Ok(InstalledVersion { version, directory: target, bytes })
    }
}

fn unpack_archive(archive: File, tree: &Path) -> Result<(), Error> {
    let root = File::open(tree).map_err(file_error(tree))?;
    let bounded = MultiGzDecoder::new(BufReader::new(archive)).take(MAX_UNPACKED_BYTES);
    let tally = atoll_trees::unpack_tree(BufReader::new(bounded), root.into(), SymlinkPolicy::Inside, |_| {})
        .map_err(|error| Error::Unpack(error.to_string()))?;
    match tally.named.first() {
        None => Ok(()),
        Some(skipped) => Err(Error::Unpack(format!("{}: {}", skipped.path, skipped.reason))),
    }
}

/// Lets all users read files and enter directories; only the owner may write.
fn make_readable(directory: &Path) -> Result<(), Error> {
    let mode =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(file_error(path));
    mode(directory, 0o755)?;
    for entry in fs::read_dir(directory).map_err(file_error(directory))? {
        let path = entry.map_err(file_error(directory))?.path();
        let found = fs::symlink_metadata(&path).map_err(file_error(&path))?;
        if found.is_dir() {
            make_readable(&path)?;
        } else if found.is_file() {
            mode(&path, if found.permissions().mode() & 0o100 == 0 { 0o644 } else { 0o755 })?;
        }
    }
    Ok(())
}

/// Sums up the sizes of all files in a directory tree.
fn measure_tree(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => measure_tree(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    };
    entries.map(of).sum()
}

/// Removes staging directories of processes that died.
fn remove_abandoned(agents: &Path) {
    for entry in fs::read_dir(agents).into_iter().flatten().flatten() {
        let unfinished = entry.file_name().to_str().is_some_and(|name| name.starts_with(STAGING_PREFIX));
        let age = entry.metadata().and_then(|found| found.modified()).ok().and_then(|at| at.elapsed().ok());
        if unfinished && age.is_some_and(|age| age > ABANDONED_AFTER) {
            // The next installation retries a failed removal.
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}

#[cfg(test)]
#[path = "install_tests.rs"]
mod tests;
