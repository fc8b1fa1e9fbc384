//! The repositories of a commit's submodules: mirrors for a URL, and the repositories in the git directory for a directory.
//!
//! Paths, names and URLs are from the commit, so they are untrusted.

use super::checkout_contents::MissingContents;
use super::git_credentials::CredentialScope;
use super::git_source::{GitSource, run_blocking};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::sandbox::Repo;
use atoll_core::sparse_checkout::is_checked_out;
use atoll_forge::plumbing::checkout_parts::SubmodulePart;
use atoll_forge::remote::{Protocol, RemoteUrl};
use atoll_forge::{Submodule, SubmoduleSource};

/// Number of submodules, including those in submodules.
const MAX_SUBMODULES: usize = 64;
/// Depth of submodules in submodules.
const MAX_NESTING: usize = 4;

/// A submodule whose commit is on this machine.
pub struct ReadySubmodule {
    pub part: SubmodulePart,
    pub source: GitSource,
}

/// The submodules of a commit.
#[derive(Default)]
pub struct CommitSubmodules {
    pub ready: Vec<ReadySubmodule>,
    /// Paths of submodules that stay empty.
    pub empty: Vec<String>,
}

/// A repository in which to look for submodules.
struct PendingRepository {
    source: GitSource,
    commit: String,
    /// Relative to the workspace; empty for its own repository.
    worktree: String,
    git_dir: String,
    depth: usize,
}

/// Fetches the submodules of a commit, as far as the sandbox checks them out.
pub async fn fetch_submodules(
    app: &App,
    scope: CredentialScope,
    origin: &GitSource,
    repo: &Repo,
    (commit, missing): (&str, MissingContents),
) -> Result<CommitSubmodules> {
    let mut found = CommitSubmodules::default();
    let worktree = String::new();
    let (source, commit, git_dir) = (origin.clone(), commit.to_owned(), ".git".to_owned());
    let mut pending = vec![PendingRepository { source, commit, worktree, git_dir, depth: 0 }];
    while let Some(parent) = pending.pop() {
        let (source, commit) = (parent.source.clone(), parent.commit.clone());
        let listed = run_blocking(move || Ok(source.open()?.list_submodules(&commit)?)).await?;
        for submodule in listed {
            let path = match parent.worktree.as_str() {
                "" => submodule.path.clone(),
                worktree => format!("{worktree}/{}", submodule.path),
            };
            // A file in the directory of the submodule must be part of the checkout.
            let is_wanted = repo.submodules && is_checked_out(&repo.sparse, &format!("{path}/file"));
            let Some(source) = submodule.source.as_ref().filter(|_| is_wanted) else {
                found.empty.push(path);
                continue;
            };
            if found.ready.len() >= MAX_SUBMODULES || parent.depth >= MAX_NESTING {
                return Err(Problem::new(
                    Code::CloneFailed,
                    format!(
                        "submodule {path}: the repository has more than {MAX_SUBMODULES} submodules, or they are nested \
                         deeper than {MAX_NESTING}; create the sandbox without `repo.submodules`"
                    ),
                )
                .with("cause", "submodules_too_many"));
            }
            let ready = fetch_submodule(app, scope, &parent, &submodule, source);
            let ready = match ready.await {
                Ok(ready) => ready,
                Err(problem) if missing == MissingContents::Skip && !problem.is_server_error() => {
                    found.empty.push(path);
                    continue;
                }
                Err(problem) => return Err(describe_failure(&path, problem)),
            };
            let git_dir = format!("{}/modules/{}", parent.git_dir, source.name);
            pending.push(PendingRepository {
                source: ready.clone(),
                commit: submodule.commit.clone(),
                worktree: path.clone(),
                git_dir: git_dir.clone(),
                depth: parent.depth + 1,
            });
            let (name, url) = (source.name.clone(), shown_url(&ready, &source.url));
            let part =
                SubmodulePart { path, git_dir, parent: parent.worktree.clone(), name, url, commit: submodule.commit };
            found.ready.push(ReadySubmodule { part, source: ready });
        }
    }
    Ok(found)
}

async fn fetch_submodule(
    app: &App,
    scope: CredentialScope,
    parent: &PendingRepository,
    submodule: &Submodule,
    source: &SubmoduleSource,
) -> Result<GitSource> {
    let resolved = match &parent.source {
        GitSource::Directory(path) => {
            let (path, name) = (path.clone(), source.name.clone());
            let directory = run_blocking(move || {
                Ok(atoll_forge::HostRepository::open(&path)?.git_dir().join("modules").join(name))
            });
            let directory = directory.await?;
            if !directory.is_dir() {
                return Err(missing_here());
            }
            GitSource::Directory(directory)
        }
        GitSource::Remote(remote) => {
            let url = submodule_url(remote.mirror.url(), &source.url)?;
            let repo = Repo { url: Some(url.as_str().to_owned()), ..Repo::default() };
            GitSource::connect(app, scope, &repo).await?
        }
    };
    let (checked, commit) = (resolved.clone(), submodule.commit.clone());
    run_blocking(move || checked.resolve_base(Some(&commit))).await.map_err(|problem| match &resolved {
        GitSource::Directory(_) => missing_here(),
        GitSource::Remote(_) => problem,
    })?;
    Ok(resolved)
}

/// Resolves and checks the URL of a submodule. It follows the rules of every repository's URL, and it reaches this machine
/// only on the server that the parent is on: the commit's author must not choose what the sandbox gets from this machine.
fn submodule_url(parent: &RemoteUrl, text: &str) -> Result<RemoteUrl> {
    let refused = |reason: String| Problem::new(Code::CloneFailed, reason).with("cause", "submodule_url_refused");
    let url = parent.resolve_submodule(text).map_err(|error| refused(error.to_string()))?;
    let is_on_same_server = url.protocol() != Protocol::File
        && url.protocol() == parent.protocol()
        && url.host_and_port() == parent.host_and_port();
    if url.is_local() && !is_on_same_server {
        return Err(refused(format!(
            "its URL {url} names a repository of the server's machine, which a submodule cannot; use a URL of a git server"
        )));
    }
    Ok(url)
}

fn missing_here() -> Problem {
    let detail =
        "the repository's directory does not have its commit; run `git submodule update --init --recursive` there";
    Problem::new(Code::NotARepository, detail).with("cause", "submodule_missing")
}

fn describe_failure(path: &str, mut problem: Problem) -> Problem {
    let shown: String = path.chars().filter(|letter| !letter.is_control()).take(200).collect();
    problem.detail = format!("submodule {shown}: {}", problem.detail);
    problem
}

/// The URL without credentials, for the configuration of the workspace.
fn shown_url(source: &GitSource, text: &str) -> String {
    match source {
        GitSource::Remote(remote) => remote.mirror.url().to_string(),
        GitSource::Directory(_) => RemoteUrl::parse(text).map_or_else(|_| String::new(), |url| url.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submodule_reaches_only_git_servers() {
        let resolve = |parent: &str, text: &str| {
            let parent = RemoteUrl::parse(parent).unwrap();
            submodule_url(&parent, text).map(|url| url.to_string()).map_err(|problem| problem.detail)
        };
        let public = "https://git.example.org/team/app.git";
        assert_eq!(resolve(public, "../lib.git").unwrap(), "https://git.example.org/team/lib.git");
        assert_eq!(resolve(public, "https://other.example/lib").unwrap(), "https://other.example/lib");
        assert_eq!(resolve(public, "git@other.example:lib").unwrap(), "git@other.example:lib");
        let local = "http://127.0.0.1:8080/app.git";
        assert_eq!(resolve(local, "../lib.git").unwrap(), "http://127.0.0.1:8080/lib.git");
        for (parent, text) in [
            (public, "file:///etc"),
            (public, "/etc"),
            (public, "../../../../etc/x y"),
            (public, "ext::sh -c 'touch /tmp/canary'"),
            (public, "ext::sh"),
            (public, "--upload-pack=touch"),
            (public, "-u./x"),
            (public, "fd::7"),
            (public, "git://git.example.org/x"),
            (public, "http://git.example.org/x"),
            (public, "https://user:pass@git.example.org/x"),
            (public, "http://127.0.0.1:8080/x"),
            (public, "https://localhost/x"),
            (public, "ssh://git@127.0.0.1/x"),
            (public, "ssh://-oProxyCommand=touch/x"),
            (public, "git@-oProxyCommand=touch:x"),
            (local, "http://127.0.0.1:8081/x"),
            (local, "https://127.0.0.1:8080/x"),
            (local, "file:///etc"),
            ("file:///srv/app.git", "../private.git"),
            ("file:///srv/app.git", "file:///srv/private.git"),
        ] {
            let refused = resolve(parent, text).expect_err(text);
            assert!(!refused.contains("pass@"), "{refused}");
        }
    }
}
