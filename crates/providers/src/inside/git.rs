//! What the worker's program is told to do with git over a workspace.

use atoll_core::provider::{Author, GitJob, Source};

fn author(author: &Author) -> [String; 4] {
    ["--name".into(), author.name.clone(), "--email".into(), author.email.clone()]
}

pub(crate) fn arguments(job: &GitJob) -> Vec<String> {
    let mut arguments = Vec::new();
    match job {
        GitJob::Out { base, message, author: by } => {
            arguments.extend(["git-out", "--base", base, "--message", message].map(str::to_owned));
            arguments.extend(author(by));
        }
        GitJob::Diff { base, paths, patch } => {
            arguments.extend(["git-diff", "--base", base].map(str::to_owned));
            arguments.extend(paths.iter().flat_map(|path| ["--path".to_owned(), path.clone()]));
            arguments.extend(patch.then(|| "--patch".to_owned()));
        }
    }
    arguments
}

/// For putting a repository into a fresh workspace; its bundle comes by standard input.
pub(crate) fn arguments_in(source: &Source) -> Vec<String> {
    let mut arguments: Vec<String> =
        ["git-in", "--branch", &source.branch, "--base", &source.commit].map(str::to_owned).into();
    arguments.extend(author(&source.author));
    arguments
}
