//! `git-exclude`: keeps what set-up left out of the result.
//!
//! A virtual environment or a store of packages without a line in `.gitignore` would otherwise be part of every result.

use super::command::{Git, GitWorkspace};
use super::error::Error;
use super::index::split_records;
use super::large_file_filters::PointerUse;
use super::repository::{Repository, read_regular_file};
use serde_json::{Value, json};
use std::fs;
use std::io::{self, Write};
use std::path::Path;

const WHAT: &str = "excluding what set-up left";
/// More patterns make each `git status` slow.
const MAX_PATTERNS: usize = 5000;
const MAX_EXCLUDE_BYTES: u64 = 4 << 20;

/// Excludes everything in the workspace that is neither tracked nor ignored.
pub(super) fn exclude_untracked(workspace: &GitWorkspace) -> Result<Value, Error> {
    let repository = Repository::open(workspace, PointerUse::Compare)?;
    let (excluded, left) = add_patterns(&repository.git, &repository.git_dir)?;
    Ok(json!({ "excluded": excluded, "left": left }))
}

/// Returns how many paths were excluded, and how many were too many.
pub(super) fn add_patterns(git: &Git, git_dir: &Path) -> Result<(usize, usize), Error> {
    let listing = ["ls-files", "--others", "--exclude-standard", "--directory", "--no-empty-directory", "-z"];
    let listed = git.command(WHAT).args(listing).run_slow()?.require_success()?;
    let (mut patterns, mut count) = (Vec::new(), 0);
    for name in split_records(&listed.stdout) {
        count += 1;
        if count <= MAX_PATTERNS {
            write_pattern(&mut patterns, name);
        }
    }
    if count > 0 {
        append_patterns(&git_dir.join("info"), &patterns).map_err(|source| Error::Io { what: WHAT, source })?;
    }
    Ok((count.min(MAX_PATTERNS), count.saturating_sub(MAX_PATTERNS)))
}

/// Writes a pattern that matches exactly this path.
fn write_pattern(patterns: &mut Vec<u8>, name: &[u8]) {
    patterns.push(b'/');
    for byte in name {
        match byte {
            // A pattern cannot contain the end of a line.
            b'\n' | b'\r' => patterns.push(b'?'),
            b'\\' | b'*' | b'?' | b'[' | b' ' => patterns.extend([b'\\', *byte]),
            byte => patterns.push(*byte),
        }
    }
    patterns.push(b'\n');
}

/// Replaces the file of patterns in one step; set-up may have replaced it with something else.
fn append_patterns(directory: &Path, patterns: &[u8]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let path = directory.join("exclude");
    let before = match fs::symlink_metadata(&path) {
        Ok(found) if found.is_file() => read_regular_file(&path, MAX_EXCLUDE_BYTES)?.0,
        Ok(_) | Err(_) => Vec::new(),
    };
    let mut draft = tempfile::NamedTempFile::new_in(directory)?;
    draft.write_all(&before)?;
    if before.last().is_some_and(|last| *last != b'\n') {
        draft.write_all(b"\n")?;
    }
    draft.write_all(patterns)?;
    draft.persist(path)?;
    Ok(())
}
