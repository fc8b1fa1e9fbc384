//! Work that comes from a sandbox: hostile until the quarantine has checked it.

use super::Worktree;
use crate::error::Error;
use crate::quarantine::{IncomingBundle, Quarantine};
use std::path::Path;

/// Keeps the fetched objects.
const FETCHED_REF: &str = "refs/atoll/fetched";

/// The sandbox's files, checked and in the private repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedWork {
    pub commit: String,
}

impl Worktree {
    /// Imports a bundle that builds on `base`; `None` for an empty file.
    pub fn import_work(&self, bundle: &Path, base: &str) -> Result<Option<FetchedWork>, Error> {
        let Some(incoming) = IncomingBundle::open(bundle, self.private.limits.result_bytes)? else { return Ok(None) };
        let quarantine = Quarantine::new(&self.private, &self.dir)?;
        let result = quarantine.index_bundle(incoming)?;
        let summary = quarantine.inspect_result(base, &result)?;
        self.private.store_objects(quarantine.pack_new_objects(base, &result, &self.dir)?, summary.object_count)?;
        // Only the tree counts: an own commit has the parent that the merge needs.
        let commit = self.commit_tree(&self.tree_of(&result)?, Some(base))?;
        if commit != result {
            let detail = "its commit is not the one that a sync makes".to_owned();
            return Err(Error::BundleRefused { detail });
        }
        self.update_private_refs([(FETCHED_REF, commit.as_str())])?;
        Ok(Some(FetchedWork { commit }))
    }
}
