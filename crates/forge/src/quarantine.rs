//! Inspects a sandbox's result before any of it reaches the user's repository.
//!
//! A temporary bare repository without configuration that borrows the user's objects. Git runs in it as the user; its
//! input is hostile.

use crate::error::Error;
use crate::git_command::{HostGitCommand, Owner, RepositoryDirs};
use crate::plumbing::GitOutput;
use crate::plumbing::bundle::{self, BundleError, BundleHeader, ObjectFormat};
use crate::plumbing::changes::{self, FileChange};
use crate::repository::HostRepository;
use crate::source_bundle::PACK_ARGUMENTS;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, BufReader, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const READ_ACTION: &str = "reading the sandbox's result";
const CREATE_ACTION: &str = "creating a quarantine for the sandbox's result";

/// Larger files count as binary and are never loaded whole.
const BIG_FILE_SETTING: &str = "core.bigFileThreshold=32m";

pub(crate) struct Quarantine<'a> {
    repository: &'a HostRepository,
    dirs: RepositoryDirs,
    alternates: OsString,
    /// Removed on drop.
    _directory: TempDir,
}

/// A bundle with a parsed header; the file is positioned at the pack.
pub(crate) struct IncomingBundle {
    header: BundleHeader,
    file: File,
    bytes: u64,
}

/// A summary of a result before its import.
pub(crate) struct ResultSummary {
    pub commit_count: u64,
    pub object_count: u64,
    pub base_is_ancestor: bool,
    pub files: Vec<FileChange>,
    pub has_line_counts: bool,
}

impl IncomingBundle {
    /// Returns `None` for an empty file.
    pub fn open(path: &Path, bound: u64) -> Result<Option<Self>, Error> {
        let failed = |source| Error::Io { what: READ_ACTION, source };
        let file = File::open(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        if bytes == 0 {
            return Ok(None);
        }
        let mut reader = BufReader::new(file);
        let head = BundleHeader::read(&mut reader).map_err(|malformed| match malformed {
            BundleError::Read(source) => failed(source),
            other => Error::BundleRefused { detail: other.to_string() },
        })?;
        if bytes > bound {
            return Err(Error::ResultTooLarge { what: "bytes", found: bytes.to_string(), bound });
        }
        let pack = reader.stream_position().map_err(failed)?;
        let mut file = reader.into_inner();
        file.seek(SeekFrom::Start(pack)).map_err(failed)?;
        Ok(Some(Self { header: head, file, bytes }))
    }

    /// The single commit that the bundle contains.
    fn result_commit(&self, format: ObjectFormat) -> Result<String, Error> {
        let refused = |detail: &str| Error::BundleRefused { detail: detail.to_owned() };
        if self.header.format != format {
            return Err(refused("its object format differs from the repository's"));
        }
        match self.header.refs.as_slice() {
            [(name, commit)] if name == bundle::RESULT_REF => Ok(commit.clone()),
            [] => Err(refused("it names no result")),
            _ => Err(refused("it names refs other than the result")),
        }
    }
}

impl<'a> Quarantine<'a> {
    pub fn new(repository: &'a HostRepository, scratch: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Io { what: CREATE_ACTION, source };
        let owner = repository.owner;
        // The repository's owner may have no access to the server's directories.
        let open = owner.is_current_user() || is_reachable_by(scratch, owner).unwrap_or(false);
        let parent = if open { scratch.to_owned() } else { std::env::temp_dir() };
        let private = Permissions::from_mode(0o700);
        let directory = tempfile::Builder::new().prefix("atoll-take-").permissions(private).tempdir_in(parent);
        let directory = directory.map_err(failed)?;
        if !owner.is_current_user() {
            lchown(directory.path(), Some(owner.uid), Some(owner.gid)).map_err(failed)?;
        }
        let git_dir = std::path::absolute(directory.path()).map_err(failed)?.join("git");
        let format = format!("--object-format={}", repository.format.name());
        let init = HostGitCommand::new(owner, None, CREATE_ACTION, repository.limits.lookup_timeout)?;
        let init = init.args(["init", "--quiet", "--bare", "--template=", &format, "--"]).args([&git_dir]);
        init.capture_output(repository.limits.listing_bytes)?.require_success()?;
        let alternates = quote_path(repository.common_dir.join("objects").as_os_str());
        Ok(Self { repository, dirs: RepositoryDirs { git_dir, work_tree: None }, alternates, _directory: directory })
    }

    /// Indexes the pack, checks every object and returns the result's commit.
    pub fn index_bundle(&self, incoming: IncomingBundle) -> Result<String, Error> {
        let bounds = &self.repository.limits;
        let result = incoming.result_commit(self.repository.format)?;
        for prerequisite in &incoming.header.prerequisites {
            if self.repository.commit_of(prerequisite)?.is_none() {
                let detail = format!("it requires commit {prerequisite}, which the repository does not have");
                return Err(Error::BundleRefused { detail });
            }
        }
        let most = format!("--max-input-size={}", incoming.bytes);
        let indexing =
            self.git_command(bounds.bulk_timeout)?.args(["index-pack", "--stdin", "--strict", "--fix-thin", &most]);
        let answer = indexing
            .input_file(incoming.file)
            .memory_limit(bounds.memory_bytes)
            .capture_output(bounds.listing_bytes)?;
        if !answer.is_success() {
            let detail = answer.failure_detail();
            // A truncated or missing pack says nothing about the work itself.
            let broken = ["early EOF", "pack signature mismatch", "pack is corrupted", "index-pack abnormal exit"];
            return Err(if broken.iter().any(|words| detail.contains(words)) {
                Error::BundleRefused { detail }
            } else {
                Error::ResultRefused { detail }
            });
        }
        let kind = self.run_lookup(["cat-file", "-t", &result])?;
        if kind.text() == "commit" {
            Ok(result)
        } else {
            Err(Error::BundleRefused { detail: "it does not contain its result's commit".to_owned() })
        }
    }

    /// Inspects everything that is new since `base`.
    pub fn inspect_result(&self, base: &str, result: &str) -> Result<ResultSummary, Error> {
        let commits = self.run_lookup(["rev-list", "--count", result, &format!("^{base}"), "--"])?;
        let commits = require_valid_result(commits)?.text().parse().unwrap_or(0);
        let objects = self.count_objects(base, result)?;
        let ancestor = self.run_lookup(["merge-base", "--is-ancestor", base, result])?;
        let base_is_ancestor = match ancestor.exit_code() {
            Some(0) => true,
            Some(1) => false,
            _ => return Err(Error::ResultRefused { detail: ancestor.failure_detail() }),
        };
        self.check_file_count(result)?;
        let plain = self.list_changes(base, result, &["--no-renames"], self.repository.limits.bulk_timeout)?;
        let counted =
            self.list_changes(base, result, &["-M", "-l1000", "--numstat"], self.repository.limits.lookup_timeout);
        let (files, lines_counted) = match counted {
            Ok(files) => (files, true),
            // Comparing two large, entirely different files can take very long.
            Err(Error::TimedOut { .. } | Error::ResultTooLarge { .. }) => (plain, false),
            Err(other) => return Err(other),
        };
        Ok(ResultSummary {
            commit_count: commits,
            object_count: objects,
            base_is_ancestor,
            files,
            has_line_counts: lines_counted,
        })
    }

    /// Counts the new objects. The walk also proves that none is missing.
    fn count_objects(&self, base: &str, result: &str) -> Result<u64, Error> {
        let bounds = &self.repository.limits;
        let walk = self.git_command(bounds.bulk_timeout)?.memory_limit(bounds.memory_bytes);
        let walk = walk.args(["rev-list", "--objects", "--no-object-names", result, &format!("^{base}"), "--"]);
        let names = require_valid_result(map_too_large("objects", walk.capture_output(bounds.listing_bytes))?)?.stdout;
        let sizes = self
            .git_command(bounds.bulk_timeout)?
            .args(["cat-file", "--batch-check=%(objectsize)"])
            .input_bytes(&names)?;
        let sizes = require_valid_result(map_too_large("objects", sizes.capture_output(bounds.listing_bytes))?)?.text();
        let (mut count, mut total) = (0, 0_u64);
        for size in sizes.lines() {
            let size: u64 =
                size.parse().map_err(|_| Error::ResultRefused { detail: format!("an object is {size}") })?;
            count += 1;
            total = total.saturating_add(size);
        }
        if total > bounds.unpacked_bytes {
            let bound = bounds.unpacked_bytes;
            return Err(Error::ResultTooLarge { what: "bytes unpacked", found: total.to_string(), bound });
        }
        Ok(count)
    }

    /// Limits the number of files: a few nested trees can expand to more files than any disk holds, and a diff would
    /// exhaust memory.
    fn check_file_count(&self, result: &str) -> Result<(), Error> {
        let bounds = &self.repository.limits;
        let names =
            self.git_command(bounds.bulk_timeout)?.args(["ls-tree", "-r", "-z", "--name-only", "--full-tree", result]);
        match names.count_names(bounds.max_files) {
            Ok((_, answer)) => require_valid_result(answer).map(drop),
            Err(Error::OutputTooLarge { .. }) => {
                let (found, bound) = ("more".to_owned(), bounds.max_files);
                Err(Error::ResultTooLarge { what: "files", found, bound })
            }
            Err(other) => Err(other),
        }
    }

    fn list_changes(&self, base: &str, result: &str, how: &[&str], time: Duration) -> Result<Vec<FileChange>, Error> {
        let bounds = &self.repository.limits;
        let run = self.git_command(time)?.memory_limit(bounds.memory_bytes).args([
            "diff-tree",
            "-r",
            "-z",
            "--raw",
            "--no-ext-diff",
            "--no-textconv",
        ]);
        let answer = run.args(how).args(["--end-of-options", base, result, "--"]).capture_output(bounds.listing_bytes);
        let listing = require_valid_result(map_too_large("list of changed files", answer)?)?;
        let unread = || Error::ResultRefused { detail: "cannot parse git's list of changed files".to_owned() };
        changes::parse(&listing.stdout).ok_or_else(unread)
    }

    /// Packs only the new objects for the user's repository.
    pub fn pack_new_objects(&self, base: &str, result: &str, scratch: &Path) -> Result<File, Error> {
        let bounds = &self.repository.limits;
        let failed = |source| Error::Io { what: "packing the result", source };
        let mut file = tempfile::tempfile_in(scratch).map_err(failed)?;
        let packing = self
            .git_command(bounds.bulk_timeout)?
            .args(PACK_ARGUMENTS)
            .input_bytes(format!("{result}\n^{base}\n").as_bytes())?;
        let (_, answer) = packing.write_output(&mut file, bounds.unpacked_bytes)?;
        answer.require_success()?;
        file.rewind().map_err(failed)?;
        Ok(file)
    }

    fn git_command(&self, time: Duration) -> Result<HostGitCommand, Error> {
        let run = HostGitCommand::new(self.repository.owner, Some(&self.dirs), READ_ACTION, time)?;
        let run = run.args(["-c", BIG_FILE_SETTING]).env("GIT_ALTERNATE_OBJECT_DIRECTORIES", &self.alternates);
        Ok(run.env("GIT_SHALLOW_FILE", self.repository.common_dir.join("shallow")))
    }

    fn run_lookup<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<GitOutput, Error> {
        self.git_command(self.repository.limits.bulk_timeout)?
            .args(arguments)
            .capture_output(self.repository.limits.listing_bytes)
    }
}

/// Any failure here is a fault of the result.
fn require_valid_result(answer: GitOutput) -> Result<GitOutput, Error> {
    if answer.is_success() { Ok(answer) } else { Err(Error::ResultRefused { detail: answer.failure_detail() }) }
}

fn map_too_large<T>(what: &'static str, result: Result<T, Error>) -> Result<T, Error> {
    result.map_err(|error| match error {
        Error::OutputTooLarge { bound, .. } => Error::ResultTooLarge { what, found: "more".to_owned(), bound },
        other => other,
    })
}

/// True if the mode bits let this user traverse the path and write to its last directory.
fn is_reachable_by(path: &Path, owner: Owner) -> io::Result<bool> {
    let path: PathBuf = path.canonicalize()?;
    for directory in path.ancestors() {
        let entry = directory.metadata()?;
        let shift = if entry.uid() == owner.uid {
            6
        } else if entry.gid() == owner.gid {
            3
        } else {
            0
        };
        if (entry.mode() >> shift) & 1 == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A path as git wants it in a list: in quotes, so that a colon or a line's end in it is no separator.
pub(crate) fn quote_path(path: &OsStr) -> OsString {
    let mut quoted = vec![b'"'];
    for byte in path.as_bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend([b'\\', *byte]),
            byte if byte.is_ascii_control() => quoted.extend(format!("\\{byte:03o}").bytes()),
            byte => quoted.push(*byte),
        }
    }
    quoted.push(b'"');
    OsString::from_vec(quoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_lists_are_quoted() {
        assert_eq!(quote_path(OsStr::new("/a b:c")), "\"/a b:c\"");
        assert_eq!(quote_path(OsStr::new("/a\"\\\n")), "\"/a\\\"\\\\\\012\"");
    }

    #[test]
    fn private_directories_are_not_reachable_by_others() {
        let closed = tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir().unwrap();
        let other = Owner { uid: 54_321, gid: 54_321 };
        assert!(!is_reachable_by(closed.path(), other).unwrap());
        assert!(is_reachable_by(Path::new("/"), other).unwrap());
        assert!(is_reachable_by(&closed.path().join("missing"), other).is_err());
    }
}
