//! Layers of a store that bounds: each is a volume of its own and holds everything, so nothing is stacked. To fork is to
//! copy the volume, which takes the same time however large it is.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::btrfs::{self, Quota};
use crate::catalog::COUNTED;
use crate::error::Error;
use crate::layers::{Layers, Stack};
use crate::measure;

/// What a sandbox's worker may leave on disk of what it has not told yet.
const SPOOL: u64 = 1 << 30;
/// However much it began with, a sandbox may write so much: without it nothing starts.
const LEAST: u64 = 1 << 20;
/// So many temporary files are looked at to know what a copy doesn't have.
const TEMPORARY: u64 = 20_000;

/// How temporary files are called that are on their way out of a copy.
const LEFT: &str = "left-";

/// What a sandbox in such a store has besides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Volume {
    /// What its files take besides what the kernel counts: what it began with, less what is everybody's.
    pub beside: i64,
    /// The volume for what its worker has not told yet.
    pub spool: String,
}

/// A volume that was made, and what whoever has it takes besides what the kernel counts.
#[derive(Debug)]
pub(crate) struct Made {
    pub layer: String,
    pub beside: i64,
}

/// What a sandbox takes, by what the kernel counts.
pub(crate) fn used(counted: u64, beside: i64) -> u64 {
    counted.saturating_add_signed(beside)
}

/// What the kernel shall allow, for a sandbox that may take so much in all.
fn allowed(bytes: u64, beside: i64) -> u64 {
    bytes.saturating_add_signed(beside.saturating_neg()).max(LEAST)
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Layers {
    /// An empty one for a sandbox that may take so much.
    pub fn make_volume(&self, bytes: u64) -> Result<Made, Error> {
        let id = self.claim_with(btrfs::create)?;
        self.finish_volume(id, true, Some(bytes), 0)
    }

    /// One for a root that is being imported: nobody writes to it later.
    pub fn make_root_volume(&self) -> Result<String, Error> {
        let id = self.claim_with(btrfs::create)?;
        self.or_discarded(&id, || self.fill(&id, crate::layers::Beginning::Root, true)).map(|()| id.clone())
    }

    /// One for a sandbox that begins with an imported root, which counts for nobody.
    pub fn volume_of_root(&self, image: &str, bytes: u64) -> Result<Made, Error> {
        let beside = match self.quota {
            Some(Quota::Full) => signed(self.taken(image)?).saturating_neg(),
            Some(Quota::Simple) | None => 0,
        };
        let id = self.claim_with(|path| btrfs::copy(&self.layer(image), path))?;
        self.finish_volume(id, true, Some(bytes), beside)
    }

    /// A copy of another, without its temporary files; with a bound if a sandbox is to write to it.
    pub fn copy_volume(&self, original: &str, beside: i64, bytes: Option<u64>) -> Result<Made, Error> {
        let id = self.claim_with(|path| btrfs::copy(&self.layer(original), path))?;
        let beside = match self.quota {
            // What it begins with stays its original's, and so did the temporary files.
            Some(Quota::Simple) => {
                let temporary = measure::some(&self.temporary(&id), TEMPORARY).map(|found| found.bytes).unwrap_or(0);
                let began = self.taken(original)?.saturating_sub(temporary);
                beside.saturating_add(signed(began))
            }
            Some(Quota::Full) | None => beside,
        };
        self.finish_volume(id, false, bytes, beside)
    }

    /// One for what a worker has not told yet.
    pub fn make_spool(&self) -> Result<String, Error> {
        let id = self.claim_with(btrfs::create)?;
        self.or_discarded(&id, || self.bound(&id, SPOOL, 0)).map(|()| id.clone())
    }

    fn finish_volume(&self, id: String, empty: bool, bytes: Option<u64>, beside: i64) -> Result<Made, Error> {
        self.or_discarded(&id, || {
            if empty {
                self.fill(&id, crate::layers::Beginning::Empty, false)?;
            }
            match fs::rename(self.temporary(&id), self.layer(&id).join(format!("{LEFT}{id}"))) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::file("clear", &self.temporary(&id), error));
                }
                Ok(()) | Err(_) => {}
            }
            // What was counted was the original.
            match fs::remove_file(self.layer(&id).join(COUNTED)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::file("clear", &self.layer(&id), error));
                }
                Ok(()) | Err(_) => {}
            }
            bytes.map_or(Ok(()), |bytes| self.bound(&id, bytes, beside))
        })?;
        Ok(Made { layer: id, beside })
    }

    fn or_discarded(&self, id: &str, work: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let layer = self.layer(id);
        let closed = fs::set_permissions(&layer, Permissions::from_mode(0o700));
        let outcome = closed.map_err(|error| Error::file("make", &layer, error)).and_then(|()| work());
        if outcome.is_err() {
            // What stays is swept when the next launcher starts.
            let _ = btrfs::remove(&layer);
        }
        outcome
    }

    fn bound(&self, id: &str, bytes: u64, beside: i64) -> Result<(), Error> {
        let layer = self.layer(id);
        btrfs::bound(&layer, allowed(bytes, beside)).map_err(|error| Error::file("bound", &layer, error))
    }

    /// What the kernel counts for one.
    pub fn taken(&self, id: &str) -> Result<u64, Error> {
        let layer = self.layer(id);
        btrfs::taken(&layer).map_err(|error| Error::file("count", &layer, error))
    }

    /// A sandbox's temporary files, where they lie with its others.
    pub fn temporary(&self, id: &str) -> PathBuf {
        self.layer(id).join("tmp")
    }

    /// Temporary files of its originals, to be removed.
    pub fn left(&self, id: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.layer(id)).into_iter().flatten().flatten();
        let left = entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(LEFT.as_bytes()));
        left.map(|entry| entry.path()).collect()
    }

    /// Whether a layer is a volume that can be copied and bounded.
    pub fn is_volume(&self, id: &str) -> bool {
        self.quota.is_some() && btrfs::is_volume(&self.layer(id))
    }

    /// Whether the kernel bounds what is written to this stack.
    pub fn bounds(&self, stack: &Stack) -> bool {
        self.quota.is_some() && stack.volume.is_some()
    }

    /// What is left for all together.
    pub fn room(&self) -> Option<u64> {
        let found = rustix::fs::statvfs(&self.directory).ok()?;
        Some(found.f_bavail.saturating_mul(found.f_frsize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_began_with_counts_and_what_is_everybodys_does_not() {
        assert_eq!((used(10, 0), allowed(100 << 20, 0)), (10, 100 << 20));
        // A fork whose files are its parent's for the kernel.
        assert_eq!((used(10, 40), allowed(100 << 20, 40 << 20)), (50, 60 << 20));
        // A root that the kernel counts with the rest.
        assert_eq!((used(50, -40), allowed(100 << 20, -(40 << 20))), (10, 140 << 20));
        assert_eq!(used(10, -40), 0);
        assert_eq!(allowed(10 << 20, 40 << 20), LEAST);
    }
}
