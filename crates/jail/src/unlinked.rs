//! Files of a sandbox that have no name any more and take disk as long as somebody has them open.
//!
//! What is only on its way between two processes, in a socket, is not found.

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::census;
use crate::measure::{BLOCK, LEAST};
use crate::place::DiskUse;
use crate::record::Life;
use crate::writers::{self, inhabitants, mount_of, writable_mounts};

/// Counts them, each once. Processes that go meanwhile, or can't be looked at, are left out.
pub(crate) fn count(life: &Life) -> DiskUse {
    let list = fs::read_to_string(format!("/proc/{}/mountinfo", life.process.pid)).unwrap_or_default();
    let mut count = Count { mounts: writable_mounts(&list), seen: HashSet::new(), found: DiskUse::default() };
    for process in inhabitants(life) {
        count.process(Path::new(&format!("/proc/{}", process.pid)));
    }
    count.found
}

struct Count {
    /// Those where writing takes disk.
    mounts: HashSet<u64>,
    seen: HashSet<(u64, u64)>,
    found: DiskUse,
}

impl Count {
    /// Its threads one by one: each may have open files of its own.
    fn process(&mut self, process: &Path) {
        for thread in census::threads(process) {
            for entry in fs::read_dir(thread.join("fd")).into_iter().flatten().flatten() {
                let Some(file) = fs::metadata(entry.path()).ok().filter(is_unlinked) else { continue };
                let information = fs::read_to_string(thread.join("fdinfo").join(entry.file_name()));
                if information.is_ok_and(|text| mount_of(&text).is_some_and(|mount| self.mounts.contains(&mount))) {
                    self.add(&file);
                }
            }
        }
        // Only root may look there.
        let mappings = fs::read_to_string(process.join("maps")).unwrap_or_default();
        for range in mappings.lines().filter_map(shared_without_a_name) {
            if let Some(file) = fs::metadata(process.join("map_files").join(range)).ok().filter(is_unlinked) {
                self.add(&file);
            }
        }
    }

    fn add(&mut self, file: &Metadata) {
        if self.seen.insert((file.dev(), file.ino())) {
            self.found.files += 1;
            self.found.bytes += (file.blocks() * BLOCK).max(LEAST);
        }
    }
}

fn is_unlinked(file: &Metadata) -> bool {
    file.is_file() && file.nlink() == 0
}

/// The range of a mapping that is written to through memory and whose file is gone, as it is named among the mapped files.
fn shared_without_a_name(line: &str) -> Option<String> {
    let range = writers::shared_file(line).filter(|_| line.ends_with(" (deleted)"))?;
    let (from, to) = range.split_once('-')?;
    let short = |address: &str| u64::from_str_radix(address, 16).ok();
    Some(format!("{:x}-{:x}", short(from)?, short(to)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_named_as_the_kernel_names_it() {
        let line = |rights: &str, path: &str| format!("00400000-7f01aa000000 {rights} 00000000 fe:00 1234    {path}");
        let found = |rights: &str, path: &str| shared_without_a_name(&line(rights, path));
        assert_eq!(found("rw-s", "/tmp/a (deleted)").as_deref(), Some("400000-7f01aa000000"));
        assert_eq!(found("rw-s", "/tmp/a"), None);
        assert_eq!(found("rw-p", "/tmp/a (deleted)"), None);
        assert_eq!(found("rw-s", "/memfd:x (deleted)"), None);
    }

    #[test]
    fn a_file_without_a_name_is_counted_once() {
        use std::io::Write;
        let list = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mut count = Count { mounts: writable_mounts(&list), seen: HashSet::new(), found: DiskUse::default() };
        let mut file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.write_all(&vec![1; 3 << 20]).unwrap();
        file.sync_all().unwrap();
        let _again = file.try_clone().unwrap();
        let own = file.metadata().unwrap();
        count.process(Path::new("/proc/self"));
        assert!(count.seen.contains(&(own.dev(), own.ino())));
        assert!(count.found.bytes >= 3 << 20);
        let before = count.found;
        count.process(Path::new("/proc/self"));
        let again = count.found.files - before.files;
        assert!(again == 0 || count.found.bytes - before.bytes < 3 << 20, "{again}");
    }
}
