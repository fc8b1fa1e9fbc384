//! Probes whether disk quotas can be enforced here.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{Service, startup};
use crate::btrfs;
use crate::disk_pool::{DiskPool, MIN_POOL_BYTES};
use crate::error::Error;
use crate::host_report::{MissingFeature, Tier};
use crate::layers::LayerStore;

const ROOT_REMEDY: &str =
    "Set local.disk_pool_gb, or put the data directory on btrfs and enable its quotas (btrfs quota enable).";
/// Ordinary users can set no quotas, but they can keep sandboxes away from other files.
const USER_REMEDY: &str = "Put the data directory on a file system of its own, so that sandboxes can fill nothing else: --data-dir on another disk, or in memory below /dev/shm. Or ask the administrator to start the server as root with local.disk_pool_gb and server.user.";

fn quota_remedy() -> &'static str {
    if rustix::process::geteuid().is_root() { ROOT_REMEDY } else { USER_REMEDY }
}

impl Service {
    /// The missing feature if disk quotas cannot be enforced.
    pub(super) fn missing_quota(&self) -> Option<MissingFeature> {
        let missing = |what: String, remedy: &str| {
            let what = format!("a sandbox's disk use is monitored, not limited by a quota: {what}");
            Some(MissingFeature { description: what, remedy: remedy.to_owned(), blocks_tier: Some(Tier::Strong) })
        };
        if let Some(store) = &self.data_dir {
            return match store.layers.quota {
                Some(_) => None,
                None => missing(self.explain_no_quota(&store.layers.directory), quota_remedy()),
            };
        }
        if self.settings.pool_bytes.is_some() || self.settings.probed_dir.join("pool.btrfs").exists() {
            return match self.try_disk_pool() {
                Ok(()) => None,
                Err(Error::Unsupported { reason, remedy }) => {
                    missing(reason, remedy.as_deref().unwrap_or(quota_remedy()))
                }
                Err(error) => {
                    missing(error.to_string(), "Fix that; a pool needs loop devices and btrfs in the kernel.")
                }
            };
        }
        let there = self.settings.probed_dir.ancestors().find(|path| path.exists())?;
        match btrfs::quota_mode(there).filter(|_| rustix::process::geteuid().is_root()) {
            Some(_) => None,
            None => missing(self.explain_no_quota(there), quota_remedy()),
        }
    }

    fn explain_no_quota(&self, path: &Path) -> String {
        match (rustix::process::geteuid().is_root(), btrfs::is_btrfs(path)) {
            (false, _) => "only root can set quotas".to_owned(),
            (true, true) => format!("btrfs quotas are disabled at {}", path.display()),
            (true, false) => format!("the file system of {} has no quotas", path.display()),
        }
    }

    /// Creates a small disk pool in a temporary directory, with one volume in it, and removes it.
    fn try_disk_pool(&self) -> Result<(), Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let base = std::env::temp_dir().join(format!("atoll-pool-{}-{now}", std::process::id()));
        startup::create_private_dir(&base)?;
        let outcome = DiskPool::open(&base, Some(MIN_POOL_BYTES)).and_then(|pool| {
            let Some(pool) = pool else { return Ok(()) };
            let result = LayerStore::open(&pool.directory.join("layers"), &self.id_source)
                .and_then(|layers| layers.create_volume(MIN_POOL_BYTES).map(|_| ()));
            pool.unmount();
            result
        });
        // The unmounted pool is only a file.
        let _ = fs::remove_dir_all(&base);
        outcome
    }

    /// Reports a pool that is larger than configured, as it cannot shrink.
    pub(super) fn oversized_pool(&self) -> Option<MissingFeature> {
        let (pool, configured) = (self.pool.as_ref()?, self.settings.pool_bytes?);
        (pool.bytes > configured).then(|| MissingFeature {
            description: format!("the pool has {} GiB and cannot shrink", pool.bytes >> 30),
            remedy: "Set local.disk_pool_gb to that; or destroy all local sandboxes, delete snapshots and images, stop the server and delete pool.btrfs in the data directory."
                .to_owned(),
            blocks_tier: None,
        })
    }
}
