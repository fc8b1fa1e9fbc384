//! Command-line arguments of the worker's git operations.

use atoll_core::provider::{Author, Error, GitOperation, RepositorySource};
use std::fs::File;

fn author_arguments(author: &Author) -> [String; 4] {
    ["--name".into(), author.name.clone(), "--email".into(), author.email.clone()]
}

pub(crate) fn operation_arguments(job: &GitOperation) -> Vec<String> {
    let mut arguments = Vec::new();
    match job {
        GitOperation::ExportBundle { base, message, author: by } => {
            arguments.extend(["git-out", "--base", base, "--message", message].map(str::to_owned));
            arguments.extend(author_arguments(by));
        }
        GitOperation::RestoreRepository(source) => {
            arguments = import_arguments(source);
            arguments.push("--restore".to_owned());
        }
        GitOperation::Diff { base, paths, as_patch: patch } => {
            arguments.extend(["git-diff", "--base", base].map(str::to_owned));
            arguments.extend(paths.iter().flat_map(|path| ["--path".to_owned(), path.clone()]));
            arguments.extend(patch.then(|| "--patch".to_owned()));
        }
        GitOperation::ReceiveWorktree { .. } => arguments.push("git-sync-in".to_owned()),
        GitOperation::SendWorktree { base } => arguments.extend(["git-sync-out", "--base", base].map(str::to_owned)),
        GitOperation::ExcludeUntracked => arguments.push("git-exclude".to_owned()),
    }
    arguments
}

/// Opens the input of an operation, if it has one.
pub(crate) fn open_job_input(job: &GitOperation) -> Result<Option<File>, Error> {
    match job {
        GitOperation::ExportBundle { .. }
        | GitOperation::Diff { .. }
        | GitOperation::SendWorktree { .. }
        | GitOperation::ExcludeUntracked => Ok(None),
        GitOperation::ReceiveWorktree { stream } => File::open(stream)
            .map(Some)
            .map_err(|error| Error::Unreachable { detail: format!("cannot read the worktree's stream: {error}") }),
        GitOperation::RestoreRepository(source) => open_bundle(source).map(Some),
    }
}

pub(crate) fn open_bundle(source: &RepositorySource) -> Result<File, Error> {
    let failed = |error| Error::Unreachable { detail: format!("cannot read the repository's bundle: {error}") };
    File::open(&source.bundle).map_err(failed)
}

/// Arguments for importing a repository; the bundle comes on stdin.
pub(crate) fn import_arguments(source: &RepositorySource) -> Vec<String> {
    let mut arguments: Vec<String> =
        ["git-in", "--branch", &source.branch, "--base", &source.commit].map(str::to_owned).into();
    arguments.extend(author_arguments(&source.author));
    arguments.extend(source.sparse_dirs.iter().flat_map(|dir| ["--sparse".to_owned(), dir.clone()]));
    arguments.extend(source.uses_lfs.then(|| "--lfs".to_owned()));
    arguments
}

/// The worker command that adds submodules and large files, which come on stdin, to a checkout.
pub(crate) const ADD_PARTS_COMMAND: &str = "git-parts";

/// Opens the file with the submodules and large files, if there is one.
pub(crate) fn open_parts(source: &RepositorySource) -> Result<Option<File>, Error> {
    let failed = |error| Error::Unreachable { detail: format!("cannot read the repository's submodules: {error}") };
    source.parts.as_ref().map(File::open).transpose().map_err(failed)
}
