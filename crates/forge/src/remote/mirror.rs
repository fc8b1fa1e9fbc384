//! The server's bare copy of a remote repository.
//!
//! The remote's branches are `refs/remotes/origin/*` and its tags `refs/tags/*`; a fetch replaces and prunes only these. Results
//! of sandboxes are `refs/heads/*`, so that a session's next sandbox finds its branch. `refs/atoll/keep/*` pins the
//! commits that live sandboxes started from. Git never collects objects of a mirror (`preciousObjects`).

use super::connection::{Connection, RemoteCommand};
use super::credential::RemoteCredential;
use super::error::{RemoteError, RemoteFailure};
use super::url::RemoteUrl;
use crate::branch::is_valid_ref_name;
use crate::error::Error;
use crate::git_command::{HostGitCommand, Owner, RepositoryDirs};
use crate::plumbing::bundle::ObjectFormat;
use crate::repository::{GitLimits, HostRepository};
use rustix::fs::FlockOperation;
use sha2::{Digest, Sha256};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const ACTION: &str = "keeping a mirror of the repository";

/// The remote's default branch, as a symbolic ref.
const DEFAULT_REF: &str = "refs/atoll/default";
const KEEP_PREFIX: &str = "refs/atoll/keep/";
pub(crate) const REMOTE_PREFIX: &str = "refs/remotes/origin/";

const REFSPECS: [&str; 2] = ["+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"];

/// The directory of the records of successful fetches, by credential.
const FETCH_RECORDS: &str = "atoll-fetched";

const SETTINGS: [(&str, &str); 5] = [
    ("core.repositoryFormatVersion", "1"),
    ("extensions.preciousObjects", "true"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("transfer.hideRefs", "refs/atoll"),
];

/// Shorter texts are no abbreviated commit.
const MIN_COMMIT_DIGITS: usize = 7;

#[derive(Debug, Clone)]
pub struct MirrorOptions {
    /// The number of commits of each branch; all of them without a depth.
    pub depth: Option<u32>,
    /// Time limit of one attempt to fetch.
    pub timeout: Duration,
    /// Size of a fetched pack.
    pub max_bytes: u64,
}

impl Default for MirrorOptions {
    fn default() -> Self {
        Self { depth: None, timeout: Duration::from_secs(30 * 60), max_bytes: GitLimits::default().source_bytes }
    }
}

/// The outcome of a request for a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MirrorFetch {
    Fetched,
    /// The last fetch with the same credential is recent enough.
    Fresh,
}

#[derive(Debug, Clone)]
pub struct Mirror {
    directory: PathBuf,
    url: RemoteUrl,
    options: MirrorOptions,
}

/// The answer of the remote about its HEAD.
struct RemoteHead {
    branch: Option<String>,
    format: ObjectFormat,
}

impl Mirror {
    /// The mirror of a URL below `root`. Its directory exists after the first successful fetch.
    ///
    /// A repository with a depth has its own mirror.
    pub fn open(root: &Path, url: &RemoteUrl, options: MirrorOptions) -> Self {
        let digest = Sha256::digest(url.identity_key());
        let mut name: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        if let Some(depth) = options.depth {
            name.push_str(&format!("-depth-{depth}"));
        }
        Self { directory: root.join(name), url: url.clone(), options }
    }

    pub const fn url(&self) -> &RemoteUrl {
        &self.url
    }

    /// The mirror as a repository, to bundle commits and to import results.
    pub fn repository(&self) -> Result<HostRepository, Error> {
        HostRepository::open_mirror(&self.directory, GitLimits::default())
    }

    /// Fetches branches and tags, unless a fetch with this credential began less than `max_age` ago.
    ///
    /// Waits for a running fetch of the same repository. After a failure the mirror is as it was.
    pub fn fetch(&self, credential: &RemoteCredential, max_age: Duration) -> Result<MirrorFetch, RemoteError> {
        if self.is_fresh(credential, max_age) {
            return Ok(MirrorFetch::Fresh);
        }
        let _lock = self.lock().map_err(io_error)?;
        // Another caller may have fetched meanwhile.
        if self.is_fresh(credential, max_age) {
            return Ok(MirrorFetch::Fresh);
        }
        let began = unix_micros();
        let connection = self.connection(credential);
        let head = query_head(&connection)?;
        if self.directory.join("HEAD").exists() {
            self.fetch_refs(&connection, &self.directory, &head)?;
        } else {
            let new = self.directory.with_extension("new");
            // Left over by a killed server.
            drop(fs::remove_dir_all(&new));
            let created = self
                .create(&new, head.format)
                .map_err(RemoteError::from)
                .and_then(|()| self.fetch_refs(&connection, &new, &head))
                .and_then(|()| fs::rename(&new, &self.directory).map_err(io_error));
            if created.is_err() {
                drop(fs::remove_dir_all(&new));
            }
            created?;
        }
        self.record_fetch(credential, began).map_err(io_error)?;
        Ok(MirrorFetch::Fetched)
    }

    /// True if a fetch with this credential began less than `max_age` ago. Another credential may see less.
    pub fn is_fresh(&self, credential: &RemoteCredential, max_age: Duration) -> bool {
        let record = fs::read_to_string(self.record_path(credential)).ok();
        let began: Option<u64> = record.and_then(|text| text.trim().parse().ok());
        let age = began.and_then(|began| unix_micros().checked_sub(began));
        age.is_some_and(|age| u128::from(age) < max_age.as_micros())
    }

    /// Resolves a branch, a tag or a commit of the remote; without a name, the remote's default branch.
    pub fn resolve(&self, base: Option<&str>) -> Result<String, RemoteError> {
        let repository = self.repository()?;
        let named = base.filter(|base| *base != "HEAD");
        let missing = || RemoteError::BranchMissing {
            url: self.url.to_string(),
            base: base.unwrap_or("HEAD").chars().take(100).collect(),
        };
        let Some(base) = named else { return repository.commit_of(DEFAULT_REF)?.ok_or_else(missing) };
        if !is_valid_ref_name(base) {
            return Err(Error::BaseRefused { base: base.chars().take(100).collect() }.into());
        }
        for prefix in [REMOTE_PREFIX, "refs/tags/"] {
            if let Some(commit) = repository.commit_of(&format!("{prefix}{base}"))? {
                return Ok(commit);
            }
        }
        let is_id = base.len() >= MIN_COMMIT_DIGITS && base.bytes().all(|byte| byte.is_ascii_hexdigit());
        let commit = if is_id { repository.commit_of(base)? } else { None };
        let commit = commit.ok_or_else(missing)?;
        // A mirror also has commits that only sandboxes of other projects know.
        if self.is_published(&repository, &commit)? { Ok(commit) } else { Err(missing()) }
    }

    /// The name of the remote's default branch.
    pub fn default_branch(&self) -> Result<Option<String>, Error> {
        let answer = self.repository()?.run_lookup(["symbolic-ref", "--quiet", DEFAULT_REF])?;
        Ok(answer.text().strip_prefix(REMOTE_PREFIX).map(str::to_owned).filter(|_| answer.is_success()))
    }

    /// True if the remote has the name as a branch.
    pub fn has_branch(&self, name: &str) -> Result<bool, Error> {
        Ok(self.remote_branch(name)?.is_some())
    }

    /// The commit of the remote's branch at the last fetch.
    pub fn remote_branch(&self, name: &str) -> Result<Option<String>, Error> {
        if !is_valid_ref_name(name) {
            return Ok(None);
        }
        self.repository()?.commit_of(&format!("{REMOTE_PREFIX}{name}"))
    }

    fn is_published(&self, repository: &HostRepository, commit: &str) -> Result<bool, Error> {
        let refs =
            ["for-each-ref", "--count=1", "--format=%(refname)", "--contains", commit, REMOTE_PREFIX, "refs/tags/"];
        Ok(!repository.run_lookup(refs)?.require_success()?.stdout.is_empty())
    }

    /// Keeps a commit for a sandbox, however the remote's branches change.
    pub fn pin(&self, sandbox: &str, commit: &str) -> Result<(), Error> {
        let name = pin_name(sandbox)?;
        self.repository()?.run_lookup(["update-ref", "--", &name, commit])?.require_success()?;
        Ok(())
    }

    pub fn unpin(&self, sandbox: &str) -> Result<(), Error> {
        let name = pin_name(sandbox)?;
        self.repository()?.run_lookup(["update-ref", "-d", "--", &name])?.require_success()?;
        Ok(())
    }

    /// The git directory of the mirror.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn dirs(&self) -> RepositoryDirs {
        RepositoryDirs { git_dir: self.directory.clone(), work_tree: None }
    }

    pub(super) fn connection<'a>(&'a self, credential: &'a RemoteCredential) -> Connection<'a> {
        let MirrorOptions { timeout, max_bytes, .. } = self.options;
        Connection { url: &self.url, credential, timeout, max_bytes: Some(max_bytes) }
    }

    fn create(&self, directory: &Path, format: ObjectFormat) -> Result<(), Error> {
        let time = GitLimits::default().lookup_timeout;
        let run = |dirs: Option<&RepositoryDirs>, arguments: &[&str], path: Option<&Path>| -> Result<(), Error> {
            let command = HostGitCommand::new(Owner::current(), dirs, ACTION, time)?.args(arguments).args(path);
            command.capture_output(4096)?.require_success()?;
            Ok(())
        };
        let format = format!("--object-format={}", format.name());
        run(None, &["init", "--quiet", "--bare", "--template=", &format, "--"], Some(directory))?;
        let dirs = RepositoryDirs { git_dir: directory.to_owned(), work_tree: None };
        for (key, value) in SETTINGS {
            run(Some(&dirs), &["config", "--", key, value], None)?;
        }
        // For the administrator: the directory's name does not show it.
        let described = fs::write(directory.join("description"), format!("{}\n", self.url));
        described.map_err(|source| Error::Io { what: ACTION, source })
    }

    fn fetch_refs(&self, connection: &Connection<'_>, directory: &Path, head: &RemoteHead) -> Result<(), RemoteError> {
        let packs = directory.join("objects/pack");
        remove_partial_packs(&packs);
        let dirs = RepositoryDirs { git_dir: directory.to_owned(), work_tree: None };
        let mut arguments: Vec<String> = FETCH_ARGUMENTS.map(str::to_owned).to_vec();
        arguments.extend(self.options.depth.map(|depth| format!("--depth={depth}")));
        arguments.extend(["--".to_owned(), self.url.as_str().to_owned()]);
        arguments.extend(REFSPECS.map(str::to_owned));
        let command = RemoteCommand { dirs: Some(&dirs), settings: &[], arguments: &arguments, answers: &[] };
        let fetched = connection.run(command, &|| measure_partial_packs(&packs));
        remove_partial_packs(&packs);
        fetched?;
        let lookup = |arguments: &[&str]| -> Result<bool, Error> {
            let time = GitLimits::default().lookup_timeout;
            let command = HostGitCommand::new(Owner::current(), Some(&dirs), ACTION, time)?.args(arguments);
            let answer = command.capture_output(GitLimits::default().listing_bytes)?;
            Ok(answer.is_success() && (arguments[0] == "symbolic-ref" || !answer.stdout.is_empty()))
        };
        if !lookup(&["for-each-ref", "--count=1", "--format=%(refname)", REMOTE_PREFIX])? {
            return Err(connection.failure(RemoteFailure::Empty));
        }
        if let Some(branch) = &head.branch {
            lookup(&["symbolic-ref", DEFAULT_REF, &format!("{REMOTE_PREFIX}{branch}")])?;
        }
        Ok(())
    }

    fn record_path(&self, credential: &RemoteCredential) -> PathBuf {
        self.directory.join(FETCH_RECORDS).join(credential.fingerprint())
    }

    fn record_fetch(&self, credential: &RemoteCredential, began: u64) -> io::Result<()> {
        let path = self.record_path(credential);
        fs::create_dir_all(self.directory.join(FETCH_RECORDS))?;
        let new = path.with_extension("new");
        fs::write(&new, began.to_string())?;
        fs::rename(&new, &path)
    }

    /// Waits for the lock of the mirror, which ends with the file.
    fn lock(&self) -> io::Result<File> {
        if let Some(root) = self.directory.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(root)?;
        }
        let path = self.directory.with_extension("lock");
        let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(path)?;
        rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive))?;
        Ok(file)
    }
}

const FETCH_ARGUMENTS: [&str; 10] = [
    "fetch",
    "--quiet",
    "--force",
    "--prune",
    "--no-tags",
    "--no-write-fetch-head",
    "--no-auto-maintenance",
    "--no-recurse-submodules",
    "--no-show-forced-updates",
    "--update-shallow",
];

/// Asks the remote for its default branch and the format of its ids, before anything is transferred.
fn query_head(connection: &Connection<'_>) -> Result<RemoteHead, RemoteError> {
    let arguments = ["ls-remote", "--symref", "--", connection.url.as_str(), "HEAD"].map(str::to_owned);
    let command = RemoteCommand { dirs: None, settings: &[], arguments: &arguments, answers: &[] };
    let answer = connection.run(command, &|| 0)?.text();
    Ok(parse_head(&answer))
}

/// Parses `ref: refs/heads/main<tab>HEAD` and `<id><tab>HEAD`.
fn parse_head(answer: &str) -> RemoteHead {
    let mut head = RemoteHead { branch: None, format: ObjectFormat::Sha1 };
    for (value, name) in answer.lines().filter_map(|line| line.split_once('\t')) {
        if name != "HEAD" {
            continue;
        }
        match value.strip_prefix("ref: refs/heads/") {
            Some(branch) if is_valid_ref_name(branch) => head.branch = Some(branch.to_owned()),
            Some(_) => {}
            None if ObjectFormat::Sha256.is_object_id(value) => head.format = ObjectFormat::Sha256,
            None => {}
        }
    }
    head
}

/// A ref that keeps a commit of a mirror for a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    mirror: PathBuf,
    sandbox: String,
}

impl Pin {
    /// Lists the pins of all mirrors below `root`.
    pub fn list_all(root: &Path) -> Vec<Self> {
        let mirrors = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
        mirrors.filter(|mirror| mirror.join("HEAD").exists()).flat_map(|mirror| Self::list(&mirror)).collect()
    }

    fn list(mirror: &Path) -> Vec<Self> {
        let listed = HostRepository::open_mirror(mirror, GitLimits::default()).and_then(|repository| {
            Ok(repository.run_lookup(["for-each-ref", "--format=%(refname)", KEEP_PREFIX])?.require_success()?)
        });
        let Ok(output) = listed else { return Vec::new() };
        let names = String::from_utf8_lossy(&output.stdout).into_owned();
        let sandboxes = names.lines().filter_map(|name| name.strip_prefix(KEEP_PREFIX));
        sandboxes.map(|sandbox| Self { mirror: mirror.to_owned(), sandbox: sandbox.to_owned() }).collect()
    }

    pub fn sandbox(&self) -> &str {
        &self.sandbox
    }

    pub fn remove(&self) -> Result<(), Error> {
        let name = pin_name(&self.sandbox)?;
        let repository = HostRepository::open_mirror(&self.mirror, GitLimits::default())?;
        repository.run_lookup(["update-ref", "-d", "--", &name])?.require_success()?;
        Ok(())
    }
}

fn pin_name(sandbox: &str) -> Result<String, Error> {
    let is_plain = sandbox.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    if !is_plain || sandbox.is_empty() {
        return Err(Error::BranchRefused { branch: sandbox.chars().take(100).collect() });
    }
    Ok(format!("{KEEP_PREFIX}{sandbox}"))
}

/// The files of a pack that is being received.
fn partial_packs(packs: &Path) -> impl Iterator<Item = fs::DirEntry> {
    let entries = fs::read_dir(packs).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"tmp_"))
}

fn measure_partial_packs(packs: &Path) -> u64 {
    partial_packs(packs).filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum()
}

/// A killed git does not remove them.
fn remove_partial_packs(packs: &Path) {
    partial_packs(packs).for_each(|entry| drop(fs::remove_file(entry.path())));
}

fn io_error(source: io::Error) -> RemoteError {
    Error::Io { what: ACTION, source }.into()
}

fn unix_micros() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_remotes_head() {
        let id = "a".repeat(64);
        let head = parse_head(&format!("ref: refs/heads/main\tHEAD\n{id}\tHEAD\n{id}\trefs/remotes/origin/HEAD\n"));
        assert_eq!((head.branch.as_deref(), head.format), (Some("main"), ObjectFormat::Sha256));
        let head = parse_head("ref: refs/heads/-x\tHEAD\n");
        assert_eq!((head.branch, head.format), (None, ObjectFormat::Sha1));
    }

    #[test]
    fn depths_have_their_own_mirrors() {
        let url = RemoteUrl::parse("https://example.org/a.git").unwrap();
        let other = RemoteUrl::parse("https://EXAMPLE.org/a").unwrap();
        let open = |url, depth| Mirror::open(Path::new("/m"), url, MirrorOptions { depth, ..MirrorOptions::default() });
        assert_eq!(open(&url, None).directory(), open(&other, None).directory());
        assert_ne!(open(&url, None).directory(), open(&url, Some(1)).directory());
        assert!(pin_name("a/b").is_err() && pin_name("").is_err() && pin_name("sbx_1-a").is_ok());
    }
}
