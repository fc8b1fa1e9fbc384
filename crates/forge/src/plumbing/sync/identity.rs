//! The constant author of sync commits: equal trees and parents give equal commits on both sides.

/// Variables for `git commit-tree`.
pub fn sync_commit_env() -> impl Iterator<Item = (&'static str, &'static str)> {
    [
        ("GIT_AUTHOR_NAME", "atoll"),
        ("GIT_AUTHOR_EMAIL", "atoll@localhost"),
        ("GIT_AUTHOR_DATE", "@0 +0000"),
        ("GIT_COMMITTER_NAME", "atoll"),
        ("GIT_COMMITTER_EMAIL", "atoll@localhost"),
        ("GIT_COMMITTER_DATE", "@0 +0000"),
    ]
    .into_iter()
}
