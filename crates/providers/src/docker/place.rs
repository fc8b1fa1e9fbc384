//! What the server has of a container on its own disk: where its worker listens, what it spooled, what it was made of.

use super::facts::Root;
use atoll_core::id::SandboxId;
use atoll_core::provider::{Error, ProviderId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};

/// Written before anything is asked of the engine: what is made there is known here first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub labels: BTreeMap<String, String>,
    pub image: String,
    pub memory_bytes: u64,
}

/// One sandbox's directory. It is there as long as anything of the sandbox is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub sandbox: SandboxId,
    directory: PathBuf,
}

fn broken(what: &str, error: &io::Error) -> Error {
    Error::Unreachable { detail: format!("{what}: {error}") }
}

impl Place {
    /// Only names of our own form reach the file system and the engine.
    pub(super) fn of(home: &Path, id: &ProviderId) -> Result<Self, Error> {
        let sandbox: SandboxId = id.0.parse().map_err(|_| Error::Gone)?;
        Ok(Self { sandbox, directory: home.join(sandbox.to_string()) })
    }

    /// Every one in `home`, in no order.
    pub(super) fn all(home: &Path) -> Result<Vec<Self>, Error> {
        let entries = match std::fs::read_dir(home) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(broken("the directory of containers can't be read", &error)),
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter_map(|name| Self::of(home, &ProviderId(name)).ok()).collect())
    }

    pub(super) fn id(&self) -> ProviderId {
        ProviderId(self.sandbox.to_string())
    }

    /// What its container and its volume are called.
    pub(super) fn name(&self) -> String {
        format!("atoll-{}", self.sandbox)
    }

    pub(super) fn link(&self) -> PathBuf {
        self.directory.join("link")
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.link().join("sock")
    }

    pub(super) fn spool(&self) -> PathBuf {
        self.directory.join("spool")
    }

    pub(super) fn exists(&self) -> bool {
        self.directory.exists()
    }

    /// Whether a worker ever said anything in it. One that was killed on its way in has not.
    pub(super) fn has_spooled(&self) -> bool {
        std::fs::read_dir(self.spool()).is_ok_and(|mut entries| entries.next().is_some())
    }

    pub(super) fn make(&self, record: &Record, root: Root) -> Result<(), Error> {
        let make = || -> io::Result<()> {
            let mut builder = DirBuilder::new();
            builder.mode(0o700);
            if let Some(home) = self.directory.parent() {
                builder.recursive(true).create(home)?;
            }
            builder.recursive(false).create(&self.directory)?;
            let mut options = File::options();
            let mut file = options.write(true).create_new(true).mode(0o600).open(self.directory.join("record"))?;
            file.write_all(&serde_json::to_vec(record)?)?;
            for directory in [self.link(), self.spool()] {
                builder.create(&directory)?;
                // Nobody but the container's root gets in from inside, and that one must.
                if let Root::Mapped { user, group } = root {
                    chown(&directory, Some(user), Some(group))?;
                }
            }
            Ok(())
        };
        make().map_err(|error| broken("the directory of a container can't be made", &error))
    }

    /// `None` when it was cut off before it was written.
    pub(super) fn record(&self) -> Option<Record> {
        serde_json::from_slice(&std::fs::read(self.directory.join("record")).ok()?).ok()
    }

    pub(super) fn remove(&self) -> Result<(), Error> {
        match std::fs::remove_dir_all(&self.directory) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(broken("the directory of a container can't be removed", &error)),
        }
    }
}
