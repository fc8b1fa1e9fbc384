//! A container's directory on the host: the worker's socket, its spool and the creation record.

use super::engine_info::RootMapping;
use atoll_core::id::SandboxId;
use atoll_core::provider::{Error, ProviderId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};

/// The parameters of a container, written before the engine creates anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ContainerRecord {
    pub labels: BTreeMap<String, String>,
    pub image: String,
    pub memory_bytes: u64,
}

/// One sandbox's directory. It exists as long as any part of the sandbox does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContainerDir {
    pub sandbox: SandboxId,
    directory: PathBuf,
}

fn file_error(what: &str, error: &io::Error) -> Error {
    Error::Unreachable { detail: format!("{what}: {error}") }
}

impl ContainerDir {
    /// Accepts only sandbox ids, so no other name reaches the file system or the engine.
    pub(super) fn for_id(containers_dir: &Path, id: &ProviderId) -> Result<Self, Error> {
        let sandbox: SandboxId = id.0.parse().map_err(|_| Error::Gone)?;
        Ok(Self { sandbox, directory: containers_dir.join(sandbox.to_string()) })
    }

    /// Lists the directories in `home`, unordered.
    pub(super) fn list_all(containers_dir: &Path) -> Result<Vec<Self>, Error> {
        let entries = match std::fs::read_dir(containers_dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(file_error("cannot read the directory of containers", &error)),
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter_map(|name| Self::for_id(containers_dir, &ProviderId(name)).ok()).collect())
    }

    pub(super) fn provider_id(&self) -> ProviderId {
        ProviderId(self.sandbox.to_string())
    }

    /// The name of the container and of the volume.
    pub(super) fn container_name(&self) -> String {
        format!("atoll-{}", self.sandbox)
    }

    pub(super) fn link_dir(&self) -> PathBuf {
        self.directory.join("link")
    }

    pub(super) fn socket_path(&self) -> PathBuf {
        self.link_dir().join("sock")
    }

    pub(super) fn spool_dir(&self) -> PathBuf {
        self.directory.join("spool")
    }

    pub(super) fn exists(&self) -> bool {
        self.directory.exists()
    }

    /// True if a worker has written to the spool. A worker that was killed during its start has not.
    pub(super) fn has_spooled(&self) -> bool {
        std::fs::read_dir(self.spool_dir()).is_ok_and(|mut entries| entries.next().is_some())
    }

    pub(super) fn create_dir(&self, record: &ContainerRecord, root: RootMapping) -> Result<(), Error> {
        let make = || -> io::Result<()> {
            let mut builder = DirBuilder::new();
            builder.mode(0o700);
            if let Some(containers_dir) = self.directory.parent() {
                builder.recursive(true).create(containers_dir)?;
            }
            builder.recursive(false).create(&self.directory)?;
            let mut options = File::options();
            let mut file = options.write(true).create_new(true).mode(0o600).open(self.directory.join("record"))?;
            file.write_all(&serde_json::to_vec(record)?)?;
            for directory in [self.link_dir(), self.spool_dir()] {
                builder.create(&directory)?;
                // Only the container's root may enter from inside.
                if let RootMapping::Mapped { user, group } = root {
                    chown(&directory, Some(user), Some(group))?;
                }
            }
            Ok(())
        };
        make().map_err(|error| file_error("cannot create the directory of a container", &error))
    }

    /// Returns `None` if creation stopped before the record was written.
    pub(super) fn read_record(&self) -> Option<ContainerRecord> {
        serde_json::from_slice(&std::fs::read(self.directory.join("record")).ok()?).ok()
    }

    pub(super) fn remove_dir(&self) -> Result<(), Error> {
        match std::fs::remove_dir_all(&self.directory) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(file_error("cannot remove the directory of a container", &error)),
        }
    }
}
