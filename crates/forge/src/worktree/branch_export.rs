//! The sandbox's work as a branch of the user's repository, in place of changes in the worktree.

use super::Worktree;
use crate::error::Error;
use crate::plumbing::sync::{is_marker, split_records};
use crate::source_bundle::PACK_ARGUMENTS;
use std::io::Seek;

const EXPORTING: &str = "creating the branch";

impl Worktree {
    /// Creates a branch whose commit has the files of a sync commit and builds on HEAD. Returns its name: `name`, or one
    /// like it if that exists.
    pub fn export_branch(&self, work: &str, name: &str, message: &str) -> Result<String, Error> {
        let head = self.repository.head()?.commit;
        let tree = self.tree_for_users(work, &head)?;
        let author = self.repository.author();
        let mut command = self.private_command(EXPORTING)?;
        for role in ["AUTHOR", "COMMITTER"] {
            command = command.env(format!("GIT_{role}_NAME"), &author.name);
            command = command.env(format!("GIT_{role}_EMAIL"), &author.email);
            command = command.env(format!("GIT_{role}_DATE"), current_git_date());
        }
        let bound = self.private.limits.listing_bytes;
        let command = command.args(["commit-tree", "-F", "-", "-p", &head, &tree]).input_bytes(message.as_bytes())?;
        let commit = command.capture_output(bound)?.require_success()?.text();
        let mut pack = tempfile::tempfile_in(&self.dir).map_err(|source| Error::Io { what: EXPORTING, source })?;
        let packing = self.private_command(EXPORTING)?.args(PACK_ARGUMENTS);
        let packing = packing.env("GIT_SHALLOW_FILE", self.repository.common_dir.join("shallow"));
        let packing = packing.input_bytes(format!("{commit}\n^{head}\n").as_bytes())?;
        packing.write_output(&mut pack, self.private.limits.unpacked_bytes)?.1.require_success()?;
        pack.rewind().map_err(|source| Error::Io { what: EXPORTING, source })?;
        self.repository.store_objects(pack, u64::MAX)?;
        Ok(self.repository.create_branch(name, &commit)?.name)
    }

    /// The tree without markers, and with the versions of HEAD for files that a filter converts.
    fn tree_for_users(&self, work: &str, head: &str) -> Result<String, Error> {
        let index = self.dir.join("branch-index");
        let command = || Ok::<_, Error>(self.private_command(EXPORTING)?.env("GIT_INDEX_FILE", &index));
        let bound = self.private.limits.listing_bytes;
        command()?.args(["read-tree", work]).capture_output(bound)?.require_success()?;
        let listed = command()?.args(["ls-files", "-z"]).capture_output(bound)?.require_success()?;
        let absent = "0".repeat(self.private.format.hex_digits());
        let mut lines = Vec::new();
        for name in split_records(&listed.stdout).filter(|name| is_marker(name)) {
            lines.extend([format!("0 {absent} 0\t").as_bytes(), name, b"\0"].concat());
        }
        for filter in &self.settings.filters {
            let pathspec = format!(":(attr:filter={filter})");
            let listing = self.files_command(EXPORTING)?;
            let filtered = listing.args(["ls-files", "-z", "--", &pathspec]).capture_output(bound)?;
            for name in split_records(&filtered.stdout) {
                let listing = self.private_command(EXPORTING)?.env("GIT_LITERAL_PATHSPECS", "1");
                let listing = listing.args(["ls-tree", "-z", "--full-tree", head, "--"]);
                let found = listing.args([std::os::unix::ffi::OsStrExt::from_bytes(name) as &std::ffi::OsStr]);
                lines.extend(found.capture_output(bound)?.require_success()?.stdout);
            }
        }
        let update = command()?.args(["update-index", "-z", "--index-info"]).input_bytes(&lines)?;
        update.capture_output(bound)?.require_success()?;
        let tree = command()?.args(["write-tree"]).capture_output(bound)?.require_success()?.text();
        drop(std::fs::remove_file(&index));
        Ok(tree)
    }
}

fn current_git_date() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("@{} +0000", now.as_secs())
}
