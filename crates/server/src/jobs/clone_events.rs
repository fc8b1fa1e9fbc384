//! The events that describe the repository of a new sandbox, and what a branch of it cannot hold.

use crate::repositories::PreparedRepository;
use atoll_api::events::{EventData, GitCloned, SandboxNotice};
use atoll_store::sandboxes::SandboxRow;

/// Names in a notice.
const MAX_NAMES: usize = 5;

/// The events that describe the copied repository.
pub(super) fn describe_clone(sandbox: &SandboxRow, prepared: &PreparedRepository) -> Vec<EventData> {
    let PreparedRepository { source, uncommitted, contents, .. } = prepared;
    let (commit, branch) = (Some(source.commit.clone()), Some(source.branch.clone()));
    let repo = sandbox.settings.repo.as_ref().and_then(|repo| repo.location().map(str::to_owned));
    let (submodules, filled_submodules) = (contents.empty_submodules().to_vec(), contents.filled_submodules());
    let mut notices = Vec::new();
    if !submodules.is_empty() {
        notices.push(format!(
            "submodules that stay empty: {}; the run fails if the agent leaves files in them, because no branch can hold \
             those (repo.submodules fills them)",
            join_names(&submodules)
        ));
    }
    if !filled_submodules.is_empty() {
        notices.push(format!(
            "changes in submodules ({}) are not part of the results: the run fails if the agent leaves commits or files in \
             them, and the sandbox's files are kept; another published commit of a submodule is part of the results",
            join_names(&filled_submodules)
        ));
    }
    if !contents.large_files().is_empty() {
        notices.push(format!(
            "new contents of large files (LFS) are not part of the results: the run fails if the agent changes one of the {} \
             large files or adds one, and the sandbox's files are kept",
            contents.large_files().len()
        ));
    }
    if contents.missing_large_files() > 0 {
        notices.push(format!(
            "{} large files (LFS) stay pointers: an earlier sandbox of the session wrote them, and no server has their contents",
            contents.missing_large_files()
        ));
    }
    let cloned = GitCloned { commit, branch, repo, uncommitted: *uncommitted, submodules, filled_submodules };
    let notices = notices.into_iter().map(|text| EventData::SandboxNotice(SandboxNotice { text, routine: false }));
    std::iter::once(EventData::GitCloned(cloned)).chain(notices).collect()
}

fn join_names(names: &[String]) -> String {
    let named: Vec<&str> = names.iter().take(MAX_NAMES).map(String::as_str).collect();
    format!("{}{}", named.join(", "), if names.len() > named.len() { ", …" } else { "" })
}
