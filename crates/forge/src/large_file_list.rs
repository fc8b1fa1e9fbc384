//! The large files of a commit.

use crate::error::Error;
use crate::plumbing::large_files::{self, LargeFile, LargeFileStore};
use crate::repository::HostRepository;
use std::collections::BTreeSet;

const ACTION: &str = "looking for large files";

impl HostRepository {
    /// The large files whose pointers a commit has, in the files for which `is_wanted` is true.
    pub fn list_large_files(
        &self,
        commit: &str,
        is_wanted: &dyn Fn(&str) -> bool,
    ) -> Result<BTreeSet<LargeFile>, Error> {
        let mut candidates = String::new();
        let listing = self.git_command(ACTION, self.limits.bulk_timeout)?;
        let listing = listing.args(["ls-tree", "-r", "-z", "-l", "--full-tree", commit]);
        let listed = listing.read_records(self.limits.listing_bytes, &mut |record| {
            let wanted = large_files::find_candidate(record);
            if let Some((id, _)) = wanted.filter(|(_, path)| is_wanted(&String::from_utf8_lossy(path))) {
                candidates.extend([id, "\n"]);
            }
        });
        listed?.require_success()?;
        if candidates.is_empty() {
            return Ok(BTreeSet::new());
        }
        let reading = self.git_command(ACTION, self.limits.bulk_timeout)?.args(["cat-file", "--batch"]);
        let read = reading.input_bytes(candidates.as_bytes())?.capture_output(self.limits.listing_bytes)?;
        Ok(large_files::parse_batch(&read.require_success()?.stdout))
    }

    /// The large files that the repository has itself.
    pub fn large_files(&self) -> LargeFileStore {
        LargeFileStore::of_git_dir(&self.common_dir)
    }
}
