//! Files of the agent's home: whatever stands there may have been put there to mislead.

use super::place::Search;
use atoll_core::bounds::BLOB_BYTES;
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;

/// How many names are looked at.
const MOST_NAMES: usize = 100_000;
const PIECE: usize = 64 * 1024;
/// A first line that is longer says nothing that is needed.
const FIRST_LINE: u64 = 1 << 20;

fn too_large() -> io::Error {
    io::Error::other(format!("it has more than {BLOB_BYTES} bytes, which is more than is kept"))
}

/// Nothing is followed, and nothing can hold up whoever opens it.
fn open(at: impl AsFd, name: &[u8], directory: bool) -> rustix::io::Result<OwnedFd> {
    let mut how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    if directory {
        how |= OFlags::DIRECTORY;
    }
    openat(at, name, how, Mode::empty())
}

impl Search {
    /// The newest of those that fit.
    pub(super) fn find(&self, home: &Path) -> io::Result<Option<File>> {
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut directory = openat(CWD, home, how, Mode::empty())?;
        for name in self.directory {
            directory = match open(&directory, name.as_bytes(), true) {
                Ok(next) => next,
                Err(Errno::NOENT) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
        }
        let (mut newest, mut names) = (None, 0);
        self.look(&directory, self.depth, &mut newest, &mut names)?;
        Ok(newest.map(|(_, file)| File::from(file)))
    }

    fn look(
        &self,
        directory: &OwnedFd,
        depth: usize,
        newest: &mut Option<((i64, i64), OwnedFd)>,
        names: &mut usize,
    ) -> io::Result<()> {
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            *names += 1;
            if *names > MOST_NAMES {
                return Err(io::Error::other("there are too many files where it should be"));
            }
            if name == b"." || name == b".." {
                continue;
            }
            if depth > 0 {
                if let Ok(below) = open(directory, name, true) {
                    self.look(&below, depth - 1, newest, names)?;
                }
                continue;
            }
            if !name.ends_with(self.ending.as_bytes()) {
                continue;
            }
            let Ok(file) = open(directory, name, false) else { continue };
            let found = fstat(&file)?;
            let modified = (found.st_mtime, i64::try_from(found.st_mtime_nsec).unwrap_or(0));
            let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
            if is_file && newest.as_ref().is_none_or(|(than, _)| modified >= *than) {
                *newest = Some((modified, file));
            }
        }
        Ok(())
    }
}

/// All whole lines: whoever writes it may be in the middle of one, or have died there.
pub(super) fn print_lines(file: &File, to: &mut impl Write) -> io::Result<()> {
    let length = file.metadata()?.len();
    if length > BLOB_BYTES as u64 {
        return Err(too_large());
    }
    let whole = whole_lines(file, length)?;
    let (mut at, mut piece) = (0, vec![0; PIECE]);
    while at < whole {
        let wanted = usize::try_from(whole - at).unwrap_or(PIECE).min(PIECE);
        let count = file.read_at(&mut piece[..wanted], at)?;
        if count == 0 {
            return Err(io::Error::other("it became shorter while it was read"));
        }
        to.write_all(&piece[..count])?;
        at += count as u64;
    }
    to.flush()
}

/// Where the last line that has an end ends.
fn whole_lines(file: &File, length: u64) -> io::Result<u64> {
    let (mut end, mut piece) = (length, vec![0; PIECE]);
    while end > 0 {
        let begin = end.saturating_sub(PIECE as u64);
        let wanted = usize::try_from(end - begin).unwrap_or(PIECE);
        file.read_exact_at(&mut piece[..wanted], begin)?;
        if let Some(at) = piece[..wanted].iter().rposition(|byte| *byte == b'\n') {
            return Ok(begin + at as u64 + 1);
        }
        end = begin;
    }
    Ok(0)
}

/// Into a new file; what stands in its place, be it a link, goes.
pub(super) fn take(from: &mut impl Read, path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    let taken = io::copy(&mut from.take(BLOB_BYTES as u64 + 1), &mut file)
        .and_then(|bytes| if bytes > BLOB_BYTES as u64 { Err(too_large()) } else { Ok(()) });
    if taken.is_err() {
        drop(fs::remove_file(path));
    }
    taken
}

pub(super) fn first_line(path: &Path) -> io::Result<String> {
    let mut line = Vec::new();
    BufReader::new(File::open(path)?.take(FIRST_LINE)).read_until(b'\n', &mut line)?;
    Ok(String::from_utf8_lossy(&line).into_owned())
}

pub(super) fn move_to(from: &Path, to: &Path) -> io::Result<()> {
    if let Some(directory) = to.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    fs::rename(from, to)
}

#[cfg(test)]
mod tests {
    use super::super::{Agent, place};
    use super::*;
    use std::os::unix::fs::symlink;

    fn printed(home: &Path, agent: Agent) -> Option<String> {
        let file = place::search(agent, "id").find(home).unwrap()?;
        let mut text = Vec::new();
        print_lines(&file, &mut text).unwrap();
        Some(String::from_utf8(text).unwrap())
    }

    #[test]
    fn whole_lines_of_the_newest_file_are_printed() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(printed(home.path(), Agent::Claude), None);
        let write = |place: &str, text: &str| {
            let path = home.path().join(place);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(".claude/projects/-workspace/other.jsonl", "no\n");
        write(".claude/projects/-workspace/id.jsonl", "one\ntwo\n{\"half");
        assert_eq!(printed(home.path(), Agent::Claude).as_deref(), Some("one\ntwo\n"));
        write(".codex/sessions/2026/11/15/rollout-2026-id.jsonl", "half");
        assert_eq!(printed(home.path(), Agent::Codex).as_deref(), Some(""));
        let long = format!("{}\n", "x".repeat(3 * PIECE));
        write(".codex/sessions/2026/11/15/rollout-2026-id.jsonl", &format!("{long}{}", "y".repeat(2 * PIECE)));
        assert_eq!(printed(home.path(), Agent::Codex), Some(long));
    }

    #[test]
    fn links_and_pipes_are_not_followed() {
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
        assert_eq!(printed(home.path(), Agent::Claude), None);
        fs::create_dir(home.path().join(".codex")).unwrap();
        symlink(home.path().join("elsewhere"), home.path().join(".codex/sessions")).unwrap();
        assert!(place::search(Agent::Codex, "id").find(home.path()).is_err());
    }

    #[test]
    fn what_is_too_large_is_not_kept() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join(".claude/projects/a");
        fs::create_dir_all(&directory).unwrap();
        File::create(directory.join("id.jsonl")).unwrap().set_len(BLOB_BYTES as u64 + 1).unwrap();
        let file = place::search(Agent::Claude, "id").find(home.path()).unwrap().unwrap();
        assert!(print_lines(&file, &mut io::sink()).unwrap_err().to_string().contains("more than"));
        let path = home.path().join("taken");
        assert!(take(&mut io::repeat(1), &path).is_err() && !path.exists());
    }

    #[test]
    fn what_is_put_into_its_place_replaces_a_link() {
        let home = tempfile::tempdir().unwrap();
        let (file, other) = (home.path().join("new"), home.path().join("other"));
        fs::write(&other, "untouched").unwrap();
        symlink(&other, &file).unwrap();
        take(&mut &b"first\nsecond\n"[..], &file).unwrap();
        assert_eq!(
            (first_line(&file).unwrap().as_str(), fs::read_to_string(&other).unwrap().as_str()),
            ("first\n", "untouched")
        );
        let place = home.path().join("a/b/c.jsonl");
        move_to(&file, &place).unwrap();
        assert_eq!(fs::read_to_string(place).unwrap(), "first\nsecond\n");
    }
}
