//! Whether the kernel bounds what a sandbox takes on disk here; found by trying.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{Service, housekeeping};
use crate::btrfs;
use crate::error::Error;
use crate::layers::Layers;
use crate::pool::{LEAST, Pool};
use crate::report::{Missing, Tier};

const REMEDY: &str =
    "Set local.disk_pool_gb, or put the data directory on btrfs and switch its quotas on (btrfs quota enable).";

impl Service {
    /// Nothing, if it does; else what is missing.
    pub(super) fn lacks_bound(&self) -> Option<Missing> {
        let missing = |what: String, remedy: &str| {
            let what = format!("a sandbox's disk use is watched, not bounded: {what}");
            Some(Missing { what, remedy: remedy.to_owned(), keeps_from: Some(Tier::Strong) })
        };
        if let Some(store) = &self.store {
            return match store.layers.quota {
                Some(_) => None,
                None => missing(self.why_not(&store.layers.directory), REMEDY),
            };
        }
        if self.settings.pool.is_some() || self.settings.disk.join("pool.btrfs").exists() {
            return match self.try_pool() {
                Ok(()) => None,
                Err(Error::Impossible { reason, remedy }) => missing(reason, remedy.as_deref().unwrap_or(REMEDY)),
                Err(error) => {
                    missing(error.to_string(), "Mend that; a pool needs loop devices and btrfs in the kernel.")
                }
            };
        }
        let there = self.settings.disk.ancestors().find(|path| path.exists())?;
        match btrfs::quota(there).filter(|_| rustix::process::geteuid().is_root()) {
            Some(_) => None,
            None => missing(self.why_not(there), REMEDY),
        }
    }

    fn why_not(&self, path: &Path) -> String {
        match (rustix::process::geteuid().is_root(), btrfs::is_here(path)) {
            (false, _) => "only root can bound it".to_owned(),
            (true, true) => format!("the btrfs of {} has no quotas", path.display()),
            (true, false) => format!("the file system of {} can't", path.display()),
        }
    }

    /// Makes a small pool elsewhere, with one bounded volume in it, and removes it.
    fn try_pool(&self) -> Result<(), Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let base = std::env::temp_dir().join(format!("atoll-pool-{}-{now}", std::process::id()));
        housekeeping::private_directory(&base)?;
        let outcome = Pool::open(&base, Some(LEAST)).and_then(|pool| {
            let Some(pool) = pool else { return Ok(()) };
            let tried = Layers::open(&pool.directory.join("layers"), &self.ids)
                .and_then(|layers| layers.make_volume(LEAST).map(|_| ()));
            pool.close();
            tried
        });
        // The file is all that is left of it.
        let _ = fs::remove_dir_all(&base);
        outcome
    }

    /// The pool is larger than it shall be: it can't shrink.
    pub(super) fn pool_too_large(&self) -> Option<Missing> {
        let (pool, wanted) = (self.pool.as_ref()?, self.settings.pool?);
        (pool.bytes > wanted).then(|| Missing {
            what: format!("the pool has {} GiB and can't become smaller", pool.bytes >> 30),
            remedy: "Set local.disk_pool_gb to that; or destroy all local sandboxes, forget snapshots and images, stop the server and delete pool.btrfs in the data directory."
                .to_owned(),
            keeps_from: None,
        })
    }
}
