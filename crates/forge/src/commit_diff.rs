//! Compares two commits of a repository.

use crate::error::Error;
use crate::git_command::HostGitCommand;
use crate::plumbing::changes::{self, FileChange};
use crate::repository::HostRepository;
use std::fs::File;

const ACTION: &str = "comparing two commits";

/// The commits to compare, and the files and directories to which the comparison is limited; all if there are none.
#[derive(Debug, Clone)]
pub struct CommitRange {
    pub base: String,
    pub commit: String,
    pub paths: Vec<String>,
}

impl HostRepository {
    pub fn list_changes(&self, range: &CommitRange) -> Result<Vec<FileChange>, Error> {
        let listed = self.compare(range, &["-z", "--raw", "--numstat"])?;
        let listed = listed.capture_output(self.limits.listing_bytes)?.require_success()?;
        let unread = || Error::Git { what: ACTION, detail: "its list cannot be read".to_owned() };
        changes::parse(&listed.stdout).ok_or_else(unread)
    }

    /// Writes the patch to a file, at most `bound` bytes.
    pub fn write_patch(&self, range: &CommitRange, file: &mut File, bound: u64) -> Result<(), Error> {
        let form = ["--patch", "--submodule=short", "--src-prefix=a/", "--dst-prefix=b/"];
        self.compare(range, &form)?.write_output(file, bound)?.1.require_success()?;
        Ok(())
    }

    fn compare(&self, range: &CommitRange, form: &[&str]) -> Result<HostGitCommand, Error> {
        let [base, commit] = [self.resolve_base(&range.base)?, self.resolve_base(&range.commit)?];
        let command = self.git_command(ACTION, self.limits.bulk_timeout)?.env("GIT_LITERAL_PATHSPECS", "1");
        let options = ["diff-tree", "-r", "-M", "-l1000", "--no-ext-diff", "--no-textconv", "--no-color"];
        Ok(command.args(options).args(form).args(["--end-of-options", &base, &commit, "--"]).args(&range.paths))
    }
}
