//! Layers as btrfs subvolumes: each holds all files of a sandbox, without overlays. A fork is a snapshot of the
//! subvolume, in constant time.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::btrfs::{self, QuotaMode};
use crate::catalog::SIZE_FILE;
use crate::disk_usage;
use crate::error::Error;
use crate::layers::{LayerStack, LayerStore};

/// Quota of a worker's spool.
const SPOOL_QUOTA_BYTES: u64 = 1 << 30;
/// Minimum quota: without it no sandbox starts, even a fork of a full one.
const MIN_QUOTA_BYTES: u64 = 1 << 20;
/// Limits how many temporary files are measured for a copy.
const MAX_COUNTED_TMP_FILES: u64 = 20_000;

/// Name prefix of a copy's old temporary directory, which is being removed.
const OLD_TMP_PREFIX: &str = "left-";

/// The subvolumes of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SandboxVolume {
    /// Bytes to add to the kernel's usage: what the sandbox started with, without a shared image or cache.
    #[serde(rename = "beside")]
    pub usage_offset: i64,
    /// The subvolume of the worker's spool.
    pub spool: String,
}

/// A new subvolume with its usage offset.
#[derive(Debug)]
pub(crate) struct NewVolume {
    pub layer: String,
    pub usage_offset: i64,
}

/// A sandbox's total usage, from the kernel's accounting.
pub(crate) fn total_usage(counted: u64, usage_offset: i64) -> u64 {
    counted.saturating_add_signed(usage_offset)
}

/// The kernel quota for a sandbox's disk limit.
fn kernel_quota(bytes: u64, usage_offset: i64) -> u64 {
    bytes.saturating_add_signed(usage_offset.saturating_neg()).max(MIN_QUOTA_BYTES)
}

fn to_signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl LayerStore {
    /// Creates an empty subvolume with a quota.
    pub fn create_volume(&self, bytes: u64) -> Result<NewVolume, Error> {
        let id = self.claim_id_with(btrfs::create_subvolume)?;
        self.finish_volume(id, true, Some(bytes), 0)
    }

    /// Creates a subvolume for an image, which is never written again.
    pub fn create_image_volume(&self) -> Result<String, Error> {
        let id = self.claim_id_with(btrfs::create_subvolume)?;
        self.or_delete(&id, || self.create_dirs(&id, crate::layers::LayerContent::Image, true)).map(|()| id.clone())
    }

    /// Creates a sandbox's subvolume from an image, which does not count towards its usage.
    pub fn volume_from_image(&self, image: &str, bytes: u64) -> Result<NewVolume, Error> {
        let usage_offset = self.uncounted_usage(image)?;
        let id = self.claim_id_with(|path| btrfs::snapshot_subvolume(&self.layer_dir(image), path))?;
        self.finish_volume(id, true, Some(bytes), usage_offset)
    }

    /// Creates a sandbox's subvolume from a cache, which does not count towards its usage.
    pub fn volume_from_cache(&self, cache: &str, bytes: u64) -> Result<NewVolume, Error> {
        let usage_offset = self.uncounted_usage(cache)?;
        let id = self.claim_id_with(|path| btrfs::snapshot_subvolume(&self.layer_dir(cache), path))?;
        self.finish_volume(id, false, Some(bytes), usage_offset)
    }

    /// The usage offset of a copy whose initial files do not count.
    fn uncounted_usage(&self, original: &str) -> Result<i64, Error> {
        Ok(match self.quota {
            Some(QuotaMode::Full) => to_signed(self.volume_usage(original)?).saturating_neg(),
            Some(QuotaMode::Simple) | None => 0,
        })
    }

    /// Copies a subvolume without its temporary files; with a quota if a sandbox will write to it.
    pub fn copy_volume(&self, original: &str, usage_offset: i64, bytes: Option<u64>) -> Result<NewVolume, Error> {
        let id = self.claim_id_with(|path| btrfs::snapshot_subvolume(&self.layer_dir(original), path))?;
        let usage_offset = match self.quota {
            // Simple quotas charge the original for the initial content, including temporary files.
            Some(QuotaMode::Simple) => {
                let temporary = disk_usage::measure_up_to(&self.tmp_dir(&id), MAX_COUNTED_TMP_FILES)
                    .map(|found| found.bytes)
                    .unwrap_or(0);
                let initial = self.volume_usage(original)?.saturating_sub(temporary);
                usage_offset.saturating_add(to_signed(initial))
            }
            Some(QuotaMode::Full) | None => usage_offset,
        };
        self.finish_volume(id, false, bytes, usage_offset)
    }

    /// Creates the subvolume of a worker's spool.
    pub fn create_spool_volume(&self) -> Result<String, Error> {
        let id = self.claim_id_with(btrfs::create_subvolume)?;
        self.or_delete(&id, || self.set_quota(&id, SPOOL_QUOTA_BYTES, 0)).map(|()| id.clone())
    }

    fn finish_volume(
        &self,
        id: String,
        empty: bool,
        bytes: Option<u64>,
        usage_offset: i64,
    ) -> Result<NewVolume, Error> {
        self.or_delete(&id, || {
            if empty {
                self.create_dirs(&id, crate::layers::LayerContent::Empty, false)?;
            }
            match fs::rename(self.tmp_dir(&id), self.layer_dir(&id).join(format!("{OLD_TMP_PREFIX}{id}"))) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::file("clear", &self.tmp_dir(&id), error));
                }
                Ok(()) | Err(_) => {}
            }
            // The stored size is that of the original.
            match fs::remove_file(self.layer_dir(&id).join(SIZE_FILE)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::file("clear", &self.layer_dir(&id), error));
                }
                Ok(()) | Err(_) => {}
            }
            bytes.map_or(Ok(()), |bytes| self.set_quota(&id, bytes, usage_offset))
        })?;
        Ok(NewVolume { layer: id, usage_offset })
    }

    fn or_delete(&self, id: &str, work: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let layer = self.layer_dir(id);
        let closed = fs::set_permissions(&layer, Permissions::from_mode(0o700));
        let outcome = closed.map_err(|error| Error::file("create", &layer, error)).and_then(|()| work());
        if outcome.is_err() {
            // The next launcher removes the rest.
            let _ = btrfs::delete_subvolume(&layer);
        }
        outcome
    }

    fn set_quota(&self, id: &str, bytes: u64, usage_offset: i64) -> Result<(), Error> {
        let layer = self.layer_dir(id);
        btrfs::set_quota(&layer, kernel_quota(bytes, usage_offset))
            .map_err(|error| Error::file("set the quota of", &layer, error))
    }

    /// Reads the kernel's usage of a subvolume.
    pub fn volume_usage(&self, id: &str) -> Result<u64, Error> {
        let layer = self.layer_dir(id);
        btrfs::used_bytes(&layer).map_err(|error| Error::file("read the usage of", &layer, error))
    }

    /// The temporary files of a sandbox whose files are a subvolume.
    pub fn tmp_dir(&self, id: &str) -> PathBuf {
        self.layer_dir(id).join("tmp")
    }

    /// Temporary directories of the originals, left to remove.
    pub fn old_tmp_dirs(&self, id: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.layer_dir(id)).into_iter().flatten().flatten();
        let left = entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(OLD_TMP_PREFIX.as_bytes()));
        left.map(|entry| entry.path()).collect()
    }

    /// True if a layer is a subvolume with quotas.
    pub fn is_volume(&self, id: &str) -> bool {
        self.quota.is_some() && btrfs::is_subvolume(&self.layer_dir(id))
    }

    /// True if the kernel enforces a quota on this stack.
    pub fn enforces_quota(&self, stack: &LayerStack) -> bool {
        self.quota.is_some() && stack.volume.is_some()
    }

    /// Free bytes of the file system.
    pub fn free_bytes(&self) -> Option<u64> {
        let found = rustix::fs::statvfs(&self.directory).ok()?;
        Some(found.f_bavail.saturating_mul(found.f_frsize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initial_files_count_and_shared_images_do_not() {
        assert_eq!((total_usage(10, 0), kernel_quota(100 << 20, 0)), (10, 100 << 20));
        // A fork, whose initial files are charged to its parent.
        assert_eq!((total_usage(10, 40), kernel_quota(100 << 20, 40 << 20)), (50, 60 << 20));
        // An image that the kernel charges to the sandbox.
        assert_eq!((total_usage(50, -40), kernel_quota(100 << 20, -(40 << 20))), (10, 140 << 20));
        assert_eq!(total_usage(10, -40), 0);
        assert_eq!(kernel_quota(10 << 20, 40 << 20), MIN_QUOTA_BYTES);
    }
}
