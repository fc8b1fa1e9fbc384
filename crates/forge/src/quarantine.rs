//! Where what came out of a sandbox is looked at before anything of it reaches the user's repository.
//!
//! A bare repository with no configuration of its own, which borrows the user's objects and is
//! thrown away. Git runs in it as the user: what it reads was packed by whoever was in the sandbox.

use crate::error::Error;
use crate::git::{Owner, Place, Run};
use crate::plumbing::Answer;
use crate::plumbing::bundle::{self, Format, Head, Malformed};
use crate::plumbing::changes::{self, FileChange};
use crate::repository::Repository;
use crate::source::PACK;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, BufReader, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const READING: &str = "reading what came out of the sandbox";
const MAKING: &str = "making a place to look at what came out of the sandbox";

/// A larger file is taken as binary and never held in memory whole.
const LARGE_FILE: &str = "core.bigFileThreshold=32m";

pub(crate) struct Quarantine<'a> {
    repository: &'a Repository,
    place: Place,
    alternates: OsString,
    /// Removed with all that is in it when this goes out of scope.
    _directory: TempDir,
}

/// A bundle whose head is read: the file stands where the pack begins.
pub(crate) struct Incoming {
    head: Head,
    file: File,
    bytes: u64,
}

/// What a result is, before it is taken.
pub(crate) struct Seen {
    pub commits: u64,
    pub objects: u64,
    pub base_is_ancestor: bool,
    pub files: Vec<FileChange>,
    pub lines_counted: bool,
}

impl Incoming {
    /// None when there is nothing in it.
    pub fn open(path: &Path, bound: u64) -> Result<Option<Self>, Error> {
        let failed = |source| Error::Io { what: READING, source };
        let file = File::open(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        if bytes == 0 {
            return Ok(None);
        }
        let mut reader = BufReader::new(file);
        let head = Head::read(&mut reader).map_err(|malformed| match malformed {
            Malformed::Read(source) => failed(source),
            other => Error::BundleRefused { detail: other.to_string() },
        })?;
        if bytes > bound {
            return Err(Error::ResultTooLarge { what: "bytes", found: bytes.to_string(), bound });
        }
        let pack = reader.stream_position().map_err(failed)?;
        let mut file = reader.into_inner();
        file.seek(SeekFrom::Start(pack)).map_err(failed)?;
        Ok(Some(Self { head, file, bytes }))
    }

    /// The one commit that it brings.
    fn result(&self, format: Format) -> Result<String, Error> {
        let refused = |detail: &str| Error::BundleRefused { detail: detail.to_owned() };
        if self.head.format != format {
            return Err(refused("its objects are named by another hash than the repository's"));
        }
        match self.head.refs.as_slice() {
            [(name, commit)] if name == bundle::RESULT => Ok(commit.clone()),
            [] => Err(refused("it names no result")),
            _ => Err(refused("it names other refs than the one result")),
        }
    }
}

impl<'a> Quarantine<'a> {
    pub fn new(repository: &'a Repository, scratch: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Io { what: MAKING, source };
        let owner = repository.owner;
        // The server's own directories may be closed to the repository's owner.
        let open = owner.is_us() || reachable(scratch, owner).unwrap_or(false);
        let parent = if open { scratch.to_owned() } else { std::env::temp_dir() };
        let private = Permissions::from_mode(0o700);
        let directory = tempfile::Builder::new().prefix("atoll-take-").permissions(private).tempdir_in(parent);
        let directory = directory.map_err(failed)?;
        if !owner.is_us() {
            lchown(directory.path(), Some(owner.uid), Some(owner.gid)).map_err(failed)?;
        }
        let git_dir = std::path::absolute(directory.path()).map_err(failed)?.join("git");
        let format = format!("--object-format={}", repository.format.name());
        let init = Run::new(owner, None, MAKING, repository.bounds.quick)?;
        let init = init.args(["init", "--quiet", "--bare", "--template=", &format, "--"]).args([&git_dir]);
        init.capture(repository.bounds.listing_bytes)?.checked()?;
        let alternates = quoted(repository.common.join("objects").as_os_str());
        Ok(Self { repository, place: Place { git_dir, work_tree: None }, alternates, _directory: directory })
    }

    /// Takes the pack in, checking every object in it, and returns the commit that it brings.
    pub fn index(&self, incoming: Incoming) -> Result<String, Error> {
        let bounds = &self.repository.bounds;
        let result = incoming.result(self.repository.format)?;
        for prerequisite in &incoming.head.prerequisites {
            if self.repository.commit_of(prerequisite)?.is_none() {
                let detail = format!("it builds on commit {prerequisite}, which the repository does not have");
                return Err(Error::BundleRefused { detail });
            }
        }
        let most = format!("--max-input-size={}", incoming.bytes);
        let indexing = self.run(bounds.slow)?.args(["index-pack", "--stdin", "--strict", "--fix-thin", &most]);
        let answer = indexing.input_file(incoming.file).memory(bounds.memory).capture(bounds.listing_bytes)?;
        if !answer.succeeded() {
            let detail = answer.detail();
            // Cut off on the way, or never a pack: that says nothing about the work itself.
            let broken = ["early EOF", "pack signature mismatch", "pack is corrupted", "index-pack abnormal exit"];
            return Err(if broken.iter().any(|words| detail.contains(words)) {
                Error::BundleRefused { detail }
            } else {
                Error::ResultRefused { detail }
            });
        }
        let kind = self.read(["cat-file", "-t", &result])?;
        if kind.text() == "commit" {
            Ok(result)
        } else {
            Err(Error::BundleRefused { detail: "the commit that it names is not in it".to_owned() })
        }
    }

    /// Looks through all that is new since `base`.
    pub fn look(&self, base: &str, result: &str) -> Result<Seen, Error> {
        let commits = self.read(["rev-list", "--count", result, &format!("^{base}"), "--"])?;
        let commits = refused(commits)?.text().parse().unwrap_or(0);
        let objects = self.objects(base, result)?;
        let ancestor = self.read(["merge-base", "--is-ancestor", base, result])?;
        let base_is_ancestor = match ancestor.code() {
            Some(0) => true,
            Some(1) => false,
            _ => return Err(Error::ResultRefused { detail: ancestor.detail() }),
        };
        self.count_files(result)?;
        let plain = self.listing(base, result, &["--no-renames"], self.repository.bounds.slow)?;
        let counted = self.listing(base, result, &["-M", "-l1000", "--numstat"], self.repository.bounds.quick);
        let (files, lines_counted) = match counted {
            Ok(files) => (files, true),
            // Two large files that differ everywhere can take very long to compare.
            Err(Error::TooSlow { .. } | Error::ResultTooLarge { .. }) => (plain, false),
            Err(other) => return Err(other),
        };
        Ok(Seen { commits, objects, base_is_ancestor, files, lines_counted })
    }

    /// How many objects are new. Walking them also proves that none is missing.
    fn objects(&self, base: &str, result: &str) -> Result<u64, Error> {
        let bounds = &self.repository.bounds;
        let walk = self.run(bounds.slow)?.memory(bounds.memory);
        let walk = walk.args(["rev-list", "--objects", "--no-object-names", result, &format!("^{base}"), "--"]);
        let names = refused(too_large("objects", walk.capture(bounds.listing_bytes))?)?.stdout;
        let sizes = self.run(bounds.slow)?.args(["cat-file", "--batch-check=%(objectsize)"]).input(&names)?;
        let sizes = refused(too_large("objects", sizes.capture(bounds.listing_bytes))?)?.text();
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

    /// A few small trees that contain each other can unfold to more files than any disk holds, and comparing
    /// them would fill the memory first.
    fn count_files(&self, result: &str) -> Result<(), Error> {
        let bounds = &self.repository.bounds;
        let names = self.run(bounds.slow)?.args(["ls-tree", "-r", "-z", "--name-only", "--full-tree", result]);
        match names.count(bounds.files) {
            Ok((_, answer)) => refused(answer).map(drop),
            Err(Error::TooMuchSaid { .. }) => {
                let (found, bound) = ("more".to_owned(), bounds.files);
                Err(Error::ResultTooLarge { what: "files", found, bound })
            }
            Err(other) => Err(other),
        }
    }

    fn listing(&self, base: &str, result: &str, how: &[&str], time: Duration) -> Result<Vec<FileChange>, Error> {
        let bounds = &self.repository.bounds;
        let run = self.run(time)?.memory(bounds.memory).args([
            "diff-tree",
            "-r",
            "-z",
            "--raw",
            "--no-ext-diff",
            "--no-textconv",
        ]);
        let answer = run.args(how).args(["--end-of-options", base, result, "--"]).capture(bounds.listing_bytes);
        let listing = refused(too_large("list of changed files", answer)?)?;
        let unread = || Error::ResultRefused { detail: "git's list of changed files cannot be read".to_owned() };
        changes::parse(&listing.stdout).ok_or_else(unread)
    }

    /// Packs what is new, and only that, for the user's repository.
    pub fn pack(&self, base: &str, result: &str, scratch: &Path) -> Result<File, Error> {
        let bounds = &self.repository.bounds;
        let failed = |source| Error::Io { what: "packing the result", source };
        let mut file = tempfile::tempfile_in(scratch).map_err(failed)?;
        let packing = self.run(bounds.slow)?.args(PACK).input(format!("{result}\n^{base}\n").as_bytes())?;
        let (_, answer) = packing.write(&mut file, bounds.unpacked_bytes)?;
        answer.checked()?;
        file.rewind().map_err(failed)?;
        Ok(file)
    }

    fn run(&self, time: Duration) -> Result<Run, Error> {
        let run = Run::new(self.repository.owner, Some(&self.place), READING, time)?;
        let run = run.args(["-c", LARGE_FILE]).env("GIT_ALTERNATE_OBJECT_DIRECTORIES", &self.alternates);
        Ok(run.env("GIT_SHALLOW_FILE", self.repository.common.join("shallow")))
    }

    fn read<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<Answer, Error> {
        self.run(self.repository.bounds.slow)?.args(arguments).capture(self.repository.bounds.listing_bytes)
    }
}

/// Git's refusal here is about the result, whatever the command was.
fn refused(answer: Answer) -> Result<Answer, Error> {
    if answer.succeeded() { Ok(answer) } else { Err(Error::ResultRefused { detail: answer.detail() }) }
}

fn too_large<T>(what: &'static str, result: Result<T, Error>) -> Result<T, Error> {
    result.map_err(|error| match error {
        Error::TooMuchSaid { bound, .. } => Error::ResultTooLarge { what, found: "more".to_owned(), bound },
        other => other,
    })
}

/// Whether the mode bits let this user go through every directory on the way, and write into the last.
fn reachable(path: &Path, owner: Owner) -> io::Result<bool> {
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
fn quoted(path: &OsStr) -> OsString {
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
        assert_eq!(quoted(OsStr::new("/a b:c")), "\"/a b:c\"");
        assert_eq!(quoted(OsStr::new("/a\"\\\n")), "\"/a\\\"\\\\\\012\"");
    }

    #[test]
    fn closed_directories_are_not_reachable_by_others() {
        let closed = tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir().unwrap();
        let other = Owner { uid: 54_321, gid: 54_321 };
        assert!(!reachable(closed.path(), other).unwrap());
        assert!(reachable(Path::new("/"), other).unwrap());
        assert!(reachable(&closed.path().join("missing"), other).is_err());
    }
}
