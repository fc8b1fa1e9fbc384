//! The large files (LFS) of a commit: they are downloaded once, into the storage beside the mirror.

use super::checkout_contents::MissingContents;
use super::git_source::{GitSource, RemoteSource, run_blocking};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_forge::HostRepository;
use atoll_forge::plumbing::large_files::{LargeFile, LargeFileStore};
use atoll_forge::remote::{Protocol, RemoteCredential, request_large_file_access};
use atoll_forges::large_files::{LargeFileServer, MAX_BATCH};
use std::collections::BTreeMap;
use std::io::Write;

/// Size of all large files of a checkout.
const MAX_BYTES: u64 = 32 << 30;

/// The large files of a commit, which a storage has.
pub struct CommitLargeFiles {
    pub store: LargeFileStore,
    pub files: Vec<LargeFile>,
    /// The number of files that it lacks.
    pub missing: usize,
}

/// Makes the large files of a commit available on this machine, as far as the sandbox checks them out.
pub async fn fetch_large_files(
    app: &App,
    origin: &GitSource,
    commit: &str,
    sparse_dirs: &[String],
    missing: MissingContents,
) -> Result<CommitLargeFiles> {
    let (source, commit, dirs) = (origin.clone(), commit.to_owned(), sparse_dirs.to_vec());
    let (files, store) = run_blocking(move || {
        let found = source.open()?;
        let is_wanted = |path: &str| atoll_core::sparse_checkout::is_checked_out(&dirs, path);
        Ok((found.list_large_files(&commit, &is_wanted)?, found.large_files()))
    })
    .await?;
    let total: u64 = files.iter().fold(0, |total, file| total.saturating_add(file.size));
    if total > MAX_BYTES {
        let detail = format!(
            "the large files have {total} bytes, the limit is {MAX_BYTES}; choose directories with repo.sparse"
        );
        return Err(failure("source_too_large", &detail));
    }
    match fetch_missing(app, origin, &store, files.iter().filter(|file| !store.has(file)).cloned().collect()).await {
        Err(problem) if missing == MissingContents::Refuse || problem.is_server_error() => return Err(problem),
        Ok(()) | Err(_) => {}
    }
    let count = files.len();
    let files: Vec<LargeFile> = files.into_iter().filter(|file| store.has(file)).collect();
    Ok(CommitLargeFiles { store, missing: count - files.len(), files })
}

async fn fetch_missing(app: &App, origin: &GitSource, store: &LargeFileStore, missing: Vec<LargeFile>) -> Result<()> {
    match origin {
        _ if missing.is_empty() => Ok(()),
        GitSource::Directory(_) => {
            let detail = format!(
                "the directory lacks {} large files of the commit; run `git lfs fetch` there (Debian's package is git-lfs)",
                missing.len()
            );
            Err(failure("large_file_missing", &detail))
        }
        GitSource::Remote(remote) => download_files(app, remote, store, missing).await,
    }
}

async fn download_files(
    app: &App,
    remote: &RemoteSource,
    store: &LargeFileStore,
    missing: Vec<LargeFile>,
) -> Result<()> {
    let url = remote.mirror.url();
    match url.protocol() {
        Protocol::File => {
            let (directory, store) = (url.directory().unwrap_or_default(), store.clone());
            run_blocking(move || {
                let from = HostRepository::open(&directory)?.large_files();
                let copy = |file: &LargeFile| {
                    let mut new = store.begin()?;
                    from.copy_to(file, &mut new)?;
                    new.finish_as(file)
                };
                let copied = missing.iter().try_for_each(copy);
                Ok(copied.map_err(|source| atoll_forge::Error::Io { what: "copying the large files", source })?)
            })
            .await
        }
        Protocol::Ssh | Protocol::Https | Protocol::Http => {
            let download = download_from_server(remote, store, &missing);
            let limit = app.config.git.clone_timeout;
            let too_slow = || {
                let done: u64 = missing.iter().filter(|file| store.has(file)).map(|file| file.size).sum();
                let detail = format!(
                    "{url}: the large files took longer than {} s ({done} bytes done); they are continued at the next \
                     attempt, or raise git.clone_timeout",
                    limit.as_secs()
                );
                failure("remote_too_slow", &detail)
            };
            tokio::time::timeout(limit, download).await.unwrap_or_else(|_| Err(too_slow()))
        }
    }
}

/// The storage of a repository's large files. An ssh server names its address and the access to it.
async fn connect_storage(remote: &RemoteSource) -> Result<atoll_forges::Result<LargeFileServer>> {
    let (url, credential) = (remote.mirror.url().clone(), remote.credential.clone());
    match credential {
        RemoteCredential::Token { username, token } => Ok(LargeFileServer::new(url.as_str(), Some((username, token)))),
        _ if url.protocol() == Protocol::Ssh => {
            let access = run_blocking(move || request_large_file_access(&url, &credential)).await?;
            Ok(LargeFileServer::with_headers(&access.url, &access.headers))
        }
        RemoteCredential::None | RemoteCredential::SshKey { .. } => Ok(LargeFileServer::new(url.as_str(), None)),
    }
}

async fn download_from_server(remote: &RemoteSource, store: &LargeFileStore, missing: &[LargeFile]) -> Result<()> {
    let url = remote.mirror.url();
    let has_login = !matches!(remote.credential, RemoteCredential::None);
    let failed = |error: atoll_forges::Error| server_failure(&url.to_string(), &error, has_login);
    let server = connect_storage(remote).await?.map_err(failed)?;
    for batch in missing.chunks(MAX_BATCH) {
        let sizes: BTreeMap<String, u64> = batch.iter().map(|file| (file.oid.clone(), file.size)).collect();
        for download in server.find_downloads(&sizes).await.map_err(failed)? {
            let file = LargeFile { size: sizes.get(&download.oid).copied().unwrap_or(0), oid: download.oid.clone() };
            let mut stream = server.open(&download).await.map_err(failed)?;
            let mut new = store.begin().map_err(|error| write_failure(&error))?;
            while let Some(chunk) = stream.next_chunk().await.map_err(failed)? {
                if new.size() + chunk.as_ref().len() as u64 > file.size {
                    break;
                }
                new.write_all(chunk.as_ref()).map_err(|error| write_failure(&error))?;
            }
            new.finish_as(&file).map_err(|error| write_failure(&error))?;
        }
    }
    Ok(())
}

fn write_failure(error: &std::io::Error) -> Problem {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => failure(
            "server_disk_full",
            "the disk of Atoll's server is full; free space in its data directory, then try again",
        ),
        _ => failure("large_file_damaged", &format!("a large file cannot be stored ({error}); try again")),
    }
}

fn server_failure(url: &str, error: &atoll_forges::Error, has_login: bool) -> Problem {
    use atoll_forges::Error;
    let (cause, remedy) = match error {
        Error::Unauthorized { .. } if has_login => ("remote_auth", "check the token in git.credentials"),
        Error::Unauthorized { .. } => ("remote_auth", "configure a token for its host in git.credentials"),
        Error::Forbidden { .. } => ("remote_forbidden", "give the token the right to read the repository"),
        Error::NotFound { .. } => ("large_file_missing", "push the large files with `git lfs push --all`"),
        Error::Refused { .. } => ("large_file_missing", "push the large files with `git lfs push --all`"),
        Error::RateLimited { .. } => ("remote_rate_limited", "wait some minutes"),
        Error::Unavailable { .. } => ("remote_network", "check the server's network, then try again"),
        Error::UnexpectedResponse { .. } | Error::Configuration { .. } => {
            ("remote_server_error", "check that the server has large-file storage for this repository")
        }
    };
    failure(cause, &format!("{url}: large files (LFS): {error}; {remedy}"))
}

fn failure(cause: &'static str, detail: &str) -> Problem {
    Problem::new(Code::CloneFailed, detail).with("cause", cause)
}
