//! Large-file storage (LFS): a commit has a small pointer in place of each large file, and the files are outside of git.

use rustix::fs::{Mode, OFlags};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

const VERSION_LINE: &str = "version https://git-lfs.github.com/spec/v1";

/// A blob of another size is no pointer.
pub const POINTER_BYTES: std::ops::RangeInclusive<u64> = 120..=200;

const COPY_BYTES: usize = 128 << 10;

/// A large file, by the hash of its content.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LargeFile {
    /// SHA-256 in lower-case hexadecimal digits.
    pub oid: String,
    pub size: u64,
}

impl LargeFile {
    /// Parses a pointer; `None` for any other content.
    pub fn parse(pointer: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(pointer).ok()?;
        let rest = text.strip_prefix(VERSION_LINE)?.strip_prefix("\noid sha256:")?;
        let (oid, size) = rest.split_once("\nsize ")?;
        let file = Self { oid: oid.to_owned(), size: size.strip_suffix('\n')?.parse().ok()? };
        (is_oid(&file.oid) && file.pointer() == text).then_some(file)
    }

    pub fn pointer(&self) -> String {
        format!("{VERSION_LINE}\noid sha256:{}\nsize {}\n", self.oid, self.size)
    }
}

fn is_oid(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The id and the path of a blob that can be a pointer by its size, in a record of `git ls-tree -l`.
pub fn find_candidate(record: &[u8]) -> Option<(&str, &[u8])> {
    let tab = record.iter().position(|byte| *byte == b'\t')?;
    let mut columns = std::str::from_utf8(&record[..tab]).ok()?.split_ascii_whitespace();
    let (mode, _, id, size) = (columns.next()?, columns.next()?, columns.next()?, columns.next()?);
    let is_small = size.parse().is_ok_and(|size: u64| POINTER_BYTES.contains(&size));
    (mode.starts_with("100") && is_small).then_some((id, &record[tab + 1..]))
}

/// The pointers in the output of `git cat-file --batch`.
pub fn parse_batch(mut output: &[u8]) -> BTreeSet<LargeFile> {
    let mut files = BTreeSet::new();
    while let Some(end) = output.iter().position(|byte| *byte == b'\n') {
        let size = String::from_utf8_lossy(&output[..end]).rsplit(' ').next().and_then(|size| size.parse().ok());
        let Some(content) = size.and_then(|size: usize| output.get(end + 1..end + 1 + size)) else { break };
        files.extend(LargeFile::parse(content));
        output = output.get(end + 2 + content.len()..).unwrap_or_default();
    }
    files
}

/// The files of a repository's large-file storage, in the layout of git-lfs.
#[derive(Debug, Clone)]
pub struct LargeFileStore {
    directory: PathBuf,
}

impl LargeFileStore {
    pub fn of_git_dir(git_dir: &Path) -> Self {
        Self { directory: git_dir.join("lfs/objects") }
    }

    /// The path of a file's content.
    pub fn path(&self, file: &LargeFile) -> PathBuf {
        self.directory.join(&file.oid[..2]).join(&file.oid[2..4]).join(&file.oid)
    }

    pub fn has(&self, file: &LargeFile) -> bool {
        fs::symlink_metadata(self.path(file)).is_ok_and(|found| found.is_file() && found.len() == file.size)
    }

    /// Copies a file's content, and fails if its hash differs.
    pub fn copy_to(&self, file: &LargeFile, to: &mut impl Write) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let from = File::from(rustix::fs::open(self.path(file), flags, Mode::empty())?);
        if !from.metadata()?.is_file() {
            return Err(mismatch(file));
        }
        let copied = copy_and_hash(&mut from.take(file.size + 1), to)?;
        if copied == *file { Ok(()) } else { Err(mismatch(file)) }
    }

    /// A new file in the storage, whose content is written to it.
    pub fn begin(&self) -> io::Result<NewLargeFile> {
        fs::create_dir_all(&self.directory)?;
        Ok(NewLargeFile {
            store: self.clone(),
            file: NamedTempFile::new_in(&self.directory)?,
            digest: Sha256::new(),
            size: 0,
        })
    }

    /// Stores the content of a stream.
    pub fn add(&self, from: &mut impl Read) -> io::Result<LargeFile> {
        let mut new = self.begin()?;
        copy_and_hash(from, &mut new)?;
        new.finish()
    }
}

/// A file that becomes part of a storage when it is finished.
#[derive(Debug)]
pub struct NewLargeFile {
    store: LargeFileStore,
    file: NamedTempFile,
    digest: Sha256,
    size: u64,
}

impl Write for NewLargeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.digest.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl NewLargeFile {
    /// The number of bytes so far.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Stores the file under its hash.
    pub fn finish(self) -> io::Result<LargeFile> {
        let file = LargeFile { oid: hex(&self.digest.finalize()), size: self.size };
        let path = self.store.path(&file);
        fs::create_dir_all(path.parent().unwrap_or(&self.store.directory))?;
        self.file.persist(path)?;
        Ok(file)
    }

    /// Stores the file if it is the expected one.
    pub fn finish_as(self, expected: &LargeFile) -> io::Result<()> {
        let oid = hex(&self.digest.clone().finalize());
        if self.size == expected.size && oid == expected.oid {
            self.finish().map(drop)
        } else {
            Err(mismatch(expected))
        }
    }
}

/// Copies a stream and returns the description of its content.
pub fn copy_and_hash(from: &mut impl Read, to: &mut impl Write) -> io::Result<LargeFile> {
    let (mut digest, mut size) = (Sha256::new(), 0);
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        let count = match from.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if count == 0 {
            return Ok(LargeFile { oid: hex(&digest.finalize()), size });
        }
        digest.update(&buffer[..count]);
        to.write_all(&buffer[..count])?;
        size += count as u64;
    }
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn mismatch(file: &LargeFile) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the content of the large file {} is another one", file.oid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_pointers_are_pointers() {
        let file = copy_and_hash(&mut &b"large"[..], &mut io::sink()).unwrap();
        assert_eq!(LargeFile::parse(file.pointer().as_bytes()), Some(file.clone()));
        assert!(POINTER_BYTES.contains(&(file.pointer().len() as u64)));
        let text = file.pointer();
        for other in [
            String::new(),
            text.replace("v1", "v2"),
            text.replace("sha256", "sha1"),
            text.replace("size 5", "size 05"),
            text.replace("size 5", "size -5"),
            text.replace("oid", "ext-0-x sha256:0\noid"),
            text.to_uppercase(),
            format!("{text}more\n"),
            text.replace(&file.oid[..10], "../../../x"),
        ] {
            assert_eq!(LargeFile::parse(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_storage_has_only_files_with_their_hash() {
        let directory = tempfile::tempdir().unwrap();
        let store = LargeFileStore::of_git_dir(directory.path());
        let file = store.add(&mut &b"large"[..]).unwrap();
        let mut copy = Vec::new();
        store.copy_to(&file, &mut copy).unwrap();
        assert!(store.has(&file) && copy == b"large");
        let mut wrong = store.begin().unwrap();
        wrong.write_all(b"other").unwrap();
        wrong.finish_as(&file).unwrap_err();
        // The owner of a directory can replace its files.
        fs::write(store.path(&file), "other").unwrap();
        store.copy_to(&file, &mut io::sink()).unwrap_err();
        fs::remove_file(store.path(&file)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", store.path(&file)).unwrap();
        store.copy_to(&file, &mut io::sink()).unwrap_err();
        assert!(!store.has(&file));
    }
}
