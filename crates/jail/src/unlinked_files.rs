//! Disk usage of a sandbox's unlinked files, which take space while they are open.
//!
//! A file that is only in transit in a socket is not found.

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::disk_usage::{MIN_FILE_BYTES, STAT_BLOCK_BYTES};
use crate::file_writers::{self, parse_mount_id, sandbox_processes, writable_mounts};
use crate::process_scan;
use crate::record::WorkerRecord;
use crate::sandbox::DiskUsage;

/// Measures unlinked open files, each once. Skips processes that exit meanwhile or cannot be inspected.
pub(crate) fn measure_unlinked(worker_record: &WorkerRecord) -> DiskUsage {
    let list = fs::read_to_string(format!("/proc/{}/mountinfo", worker_record.process.pid)).unwrap_or_default();
    let mut count =
        UnlinkedCounter { mounts: writable_mounts(&list), seen_inodes: HashSet::new(), usage: DiskUsage::default() };
    for process in sandbox_processes(worker_record) {
        count.count_process(Path::new(&format!("/proc/{}", process.pid)));
    }
    count.usage
}

struct UnlinkedCounter {
    /// Mounts where writing takes disk space.
    mounts: HashSet<u64>,
    seen_inodes: HashSet<(u64, u64)>,
    usage: DiskUsage,
}

impl UnlinkedCounter {
    /// Each thread may have its own descriptor table.
    fn count_process(&mut self, process: &Path) {
        for thread in process_scan::thread_dirs(process) {
            for entry in fs::read_dir(thread.join("fd")).into_iter().flatten().flatten() {
                let Some(file) = fs::metadata(entry.path()).ok().filter(is_unlinked) else { continue };
                let information = fs::read_to_string(thread.join("fdinfo").join(entry.file_name()));
                if information.is_ok_and(|text| parse_mount_id(&text).is_some_and(|mount| self.mounts.contains(&mount)))
                {
                    self.add_file(&file);
                }
            }
        }
        // Only root can read `map_files`.
        let mappings = fs::read_to_string(process.join("maps")).unwrap_or_default();
        for range in mappings.lines().filter_map(deleted_mapping_range) {
            if let Some(file) = fs::metadata(process.join("map_files").join(range)).ok().filter(is_unlinked) {
                self.add_file(&file);
            }
        }
    }

    fn add_file(&mut self, file: &Metadata) {
        if self.seen_inodes.insert((file.dev(), file.ino())) {
            self.usage.files += 1;
            self.usage.bytes += (file.blocks() * STAT_BLOCK_BYTES).max(MIN_FILE_BYTES);
        }
    }
}

fn is_unlinked(file: &Metadata) -> bool {
    file.is_file() && file.nlink() == 0
}

/// The address range of a shared writable mapping of a deleted file, as named in `map_files`.
fn deleted_mapping_range(line: &str) -> Option<String> {
    let range = file_writers::shared_mapping_range(line).filter(|_| line.ends_with(" (deleted)"))?;
    let (from, to) = range.split_once('-')?;
    let short = |address: &str| u64::from_str_radix(address, 16).ok();
    Some(format!("{:x}-{:x}", short(from)?, short(to)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_mapping_ranges_as_the_kernel_does() {
        let line = |rights: &str, path: &str| format!("00400000-7f01aa000000 {rights} 00000000 fe:00 1234    {path}");
        let found = |rights: &str, path: &str| deleted_mapping_range(&line(rights, path));
        assert_eq!(found("rw-s", "/tmp/a (deleted)").as_deref(), Some("400000-7f01aa000000"));
        assert_eq!(found("rw-s", "/tmp/a"), None);
        assert_eq!(found("rw-p", "/tmp/a (deleted)"), None);
        assert_eq!(found("rw-s", "/memfd:x (deleted)"), None);
    }

    #[test]
    fn counts_an_unlinked_file_once() {
        use std::io::Write;
        let list = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mut count = UnlinkedCounter {
            mounts: writable_mounts(&list),
            seen_inodes: HashSet::new(),
            usage: DiskUsage::default(),
        };
        let mut file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.write_all(&vec![1; 3 << 20]).unwrap();
        file.sync_all().unwrap();
        let _again = file.try_clone().unwrap();
        let own = file.metadata().unwrap();
        count.count_process(Path::new("/proc/self"));
        assert!(count.seen_inodes.contains(&(own.dev(), own.ino())));
        assert!(count.usage.bytes >= 3 << 20);
        let before = count.usage;
        count.count_process(Path::new("/proc/self"));
        let again = count.usage.files - before.files;
        assert!(again == 0 || count.usage.bytes - before.bytes < 3 << 20, "{again}");
    }
}
