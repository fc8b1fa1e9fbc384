//! Command-line arguments of the worker's git operations.

use atoll_core::provider::{Author, GitOperation, RepositorySource};

fn author_arguments(author: &Author) -> [String; 4] {
    ["--name".into(), author.name.clone(), "--email".into(), author.email.clone()]
}

pub(crate) fn job_arguments(job: &GitOperation) -> Vec<String> {
    let mut arguments = Vec::new();
    match job {
        GitOperation::ExportBundle { base, message, author: by } => {
            arguments.extend(["git-out", "--base", base, "--message", message].map(str::to_owned));
            arguments.extend(author_arguments(by));
        }
        GitOperation::Diff { base, paths, as_patch: patch } => {
            arguments.extend(["git-diff", "--base", base].map(str::to_owned));
            arguments.extend(paths.iter().flat_map(|path| ["--path".to_owned(), path.clone()]));
            arguments.extend(patch.then(|| "--patch".to_owned()));
        }
    }
    arguments
}

/// Arguments for importing a repository; the bundle comes on stdin.
pub(crate) fn import_arguments(source: &RepositorySource) -> Vec<String> {
    let mut arguments: Vec<String> =
        ["git-in", "--branch", &source.branch, "--base", &source.commit].map(str::to_owned).into();
    arguments.extend(author_arguments(&source.author));
    arguments
}
