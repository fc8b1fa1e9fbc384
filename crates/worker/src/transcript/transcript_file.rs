//! Reads and writes transcripts in the agent's home. The agent controls these files, so nothing follows links or
//! blocks.

use atoll_core::bounds::MAX_BLOB_BYTES;
use atoll_drivers::transcript::TranscriptFiles;
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;

const MAX_DIR_ENTRIES: usize = 100_000;
const CHUNK_BYTES: usize = 64 * 1024;
/// The needed data is in the first bytes.
const MAX_FIRST_LINE_BYTES: u64 = 1 << 20;

fn too_large_error() -> io::Error {
    io::Error::other(format!("the transcript exceeds {MAX_BLOB_BYTES} bytes"))
}

/// Opens without following links and without blocking.
fn open_nofollow(at: impl AsFd, name: &[u8], directory: bool) -> rustix::io::Result<OwnedFd> {
    let mut how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    if directory {
        how |= OFlags::DIRECTORY;
    }
    openat(at, name, how, Mode::empty())
}

/// Returns the newest transcript of the conversation.
pub(super) fn find_transcript(files: &TranscriptFiles, home: &Path, id: &str) -> io::Result<Option<File>> {
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut directory = openat(CWD, home, how, Mode::empty())?;
    for name in files.directory {
        directory = match open_nofollow(&directory, name.as_bytes(), true) {
            Ok(next) => next,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
    }
    let mut search = TranscriptSearch { suffix: (files.file_suffix)(id), newest: None, entries: 0 };
    search.search_directory(&directory, files.depth)?;
    Ok(search.newest.map(|(_, file)| File::from(file)))
}

struct TranscriptSearch {
    /// End of the file's name.
    suffix: String,
    /// Modification time and file.
    newest: Option<((i64, i64), OwnedFd)>,
    /// Number of visited directory entries.
    entries: usize,
}

impl TranscriptSearch {
    fn search_directory(&mut self, directory: &OwnedFd, depth: usize) -> io::Result<()> {
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            self.entries += 1;
            if self.entries > MAX_DIR_ENTRIES {
                return Err(io::Error::other("the transcript directory has too many entries"));
            }
            if name == b"." || name == b".." {
                continue;
            }
            if depth > 0 {
                if let Ok(below) = open_nofollow(directory, name, true) {
                    self.search_directory(&below, depth - 1)?;
                }
                continue;
            }
            if !name.ends_with(self.suffix.as_bytes()) {
                continue;
            }
            let Ok(file) = open_nofollow(directory, name, false) else { continue };
            let found = fstat(&file)?;
            let modified = (found.st_mtime, i64::try_from(found.st_mtime_nsec).unwrap_or(0));
            let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
            if is_file && self.newest.as_ref().is_none_or(|(than, _)| modified >= *than) {
                self.newest = Some((modified, file));
            }
        }
        Ok(())
    }
}

/// Prints all complete lines: the agent may be writing the last one, or died while writing it.
pub(super) fn print_lines(file: &File, to: &mut impl Write) -> io::Result<()> {
    let length = file.metadata()?.len();
    if length > MAX_BLOB_BYTES as u64 {
        return Err(too_large_error());
    }
    let whole = complete_lines_length(file, length)?;
    let (mut at, mut piece) = (0, vec![0; CHUNK_BYTES]);
    while at < whole {
        let size = usize::try_from(whole - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        let count = file.read_at(&mut piece[..size], at)?;
        if count == 0 {
            return Err(io::Error::other("the transcript shrank while it was read"));
        }
        to.write_all(&piece[..count])?;
        at += count as u64;
    }
    to.flush()
}

/// Returns the length of the file up to its last line break.
fn complete_lines_length(file: &File, length: u64) -> io::Result<u64> {
    let (mut end, mut piece) = (length, vec![0; CHUNK_BYTES]);
    while end > 0 {
        let begin = end.saturating_sub(CHUNK_BYTES as u64);
        let size = usize::try_from(end - begin).unwrap_or(CHUNK_BYTES);
        file.read_exact_at(&mut piece[..size], begin)?;
        if let Some(at) = piece[..size].iter().rposition(|byte| *byte == b'\n') {
            return Ok(begin + at as u64 + 1);
        }
        end = begin;
    }
    Ok(0)
}

/// Writes a new file, replacing any existing file or link.
pub(super) fn receive_file(from: &mut impl Read, path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    let copied = io::copy(&mut from.take(MAX_BLOB_BYTES as u64 + 1), &mut file)
        .and_then(|bytes| if bytes > MAX_BLOB_BYTES as u64 { Err(too_large_error()) } else { Ok(()) });
    if copied.is_err() {
        drop(fs::remove_file(path));
    }
    copied
}

pub(super) fn read_first_line(path: &Path) -> io::Result<String> {
    let mut line = Vec::new();
    BufReader::new(File::open(path)?.take(MAX_FIRST_LINE_BYTES)).read_until(b'\n', &mut line)?;
    Ok(String::from_utf8_lossy(&line).into_owned())
}

pub(super) fn move_into_place(from: &Path, to: &Path) -> io::Result<()> {
    if let Some(directory) = to.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    fs::rename(from, to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_drivers::create_driver;
    use atoll_drivers::transcript::TranscriptStorage;
    use std::os::unix::fs::symlink;

    fn find(home: &Path, agent: &str) -> io::Result<Option<File>> {
        match create_driver(agent).unwrap().transcript_support().unwrap().storage {
            TranscriptStorage::Files(files) => find_transcript(&files, home, "id"),
            TranscriptStorage::OpenCode | TranscriptStorage::Directory(_) => panic!("no files"),
        }
    }

    fn printed_lines(home: &Path, agent: &str) -> Option<String> {
        let file = find(home, agent).unwrap()?;
        let mut text = Vec::new();
        print_lines(&file, &mut text).unwrap();
        Some(String::from_utf8(text).unwrap())
    }

    #[test]
    fn prints_complete_lines_of_the_newest_file() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(printed_lines(home.path(), "claude"), None);
        let write = |place: &str, text: &str| {
            let path = home.path().join(place);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(".claude/projects/-workspace/other.jsonl", "no\n");
        write(".claude/projects/-workspace/id.jsonl", "one\ntwo\n{\"half");
        assert_eq!(printed_lines(home.path(), "claude").as_deref(), Some("one\ntwo\n"));
        write(".codex/sessions/2026/11/15/rollout-2026-id.jsonl", "half");
        assert_eq!(printed_lines(home.path(), "codex").as_deref(), Some(""));
        let long = format!("{}\n", "x".repeat(3 * CHUNK_BYTES));
        write(".codex/sessions/2026/11/15/rollout-2026-id.jsonl", &format!("{long}{}", "y".repeat(2 * CHUNK_BYTES)));
        assert_eq!(printed_lines(home.path(), "codex"), Some(long));
    }

    #[test]
    fn ignores_links_and_pipes() {
        let home = tempfile::tempdir().unwrap();
        let (projects, secret) = (home.path().join(".claude/projects"), home.path().join("secret"));
        fs::write(&secret, "secret\n").unwrap();
        fs::create_dir_all(projects.join("a")).unwrap();
        symlink(&secret, projects.join("a/id.jsonl")).unwrap();
        fs::create_dir_all(home.path().join("elsewhere")).unwrap();
        fs::write(home.path().join("elsewhere/id.jsonl"), "secret\n").unwrap();
        symlink(home.path().join("elsewhere"), projects.join("b")).unwrap();
        fs::create_dir(projects.join("c")).unwrap();
        rustix::fs::mknodat(CWD, projects.join("c/id.jsonl"), FileType::Fifo, Mode::from(0o600), 0).unwrap();
        assert_eq!(printed_lines(home.path(), "claude"), None);
        fs::create_dir(home.path().join(".codex")).unwrap();
        symlink(home.path().join("elsewhere"), home.path().join(".codex/sessions")).unwrap();
        assert!(find(home.path(), "codex").is_err());
    }

    #[test]
    fn rejects_large_transcripts() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join(".claude/projects/a");
        fs::create_dir_all(&directory).unwrap();
        File::create(directory.join("id.jsonl")).unwrap().set_len(MAX_BLOB_BYTES as u64 + 1).unwrap();
        let file = find(home.path(), "claude").unwrap().unwrap();
        assert!(print_lines(&file, &mut io::sink()).unwrap_err().to_string().contains("exceeds"));
        let path = home.path().join("taken");
        assert!(receive_file(&mut io::repeat(1), &path).is_err() && !path.exists());
    }

    #[test]
    fn a_received_file_replaces_a_link() {
        let home = tempfile::tempdir().unwrap();
        let (file, other) = (home.path().join("new"), home.path().join("other"));
        fs::write(&other, "untouched").unwrap();
        symlink(&other, &file).unwrap();
        receive_file(&mut &b"first\nsecond\n"[..], &file).unwrap();
        assert_eq!(
            (read_first_line(&file).unwrap().as_str(), fs::read_to_string(&other).unwrap().as_str()),
            ("first\n", "untouched")
        );
        let place = home.path().join("a/b/c.jsonl");
        move_into_place(&file, &place).unwrap();
        assert_eq!(fs::read_to_string(place).unwrap(), "first\nsecond\n");
    }
}
