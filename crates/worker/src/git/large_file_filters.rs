//! Git's filters for large-file storage (LFS): a commit gets the pointer of a file, and the workspace its content.
//!
//! The contents are in `lfs/objects` of the repository, as with git-lfs, which sandboxes need not have.

use super::command::Git;
use super::error::Error;
use atoll_forge::plumbing::large_files::{LargeFile, LargeFileStore, POINTER_BYTES, copy_and_hash};
use clap::Args;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, Cursor, Read, Write};
use std::path::{Path, PathBuf};

const WHAT: &str = "filtering a large file";

/// What `git-lfs-clean` does with a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PointerUse {
    /// It only computes the pointer, so that git can compare it.
    Compare,
    /// It also stores the content.
    Store,
}

#[derive(Debug, Args)]
pub(super) struct CleanRequest {
    /// Store nothing.
    #[arg(long)]
    compare: bool,
}

/// The command of `filter.lfs.clean`. Git passes it to a shell.
pub(super) fn clean_command(program: &Path, pointers: PointerUse) -> String {
    let more = match pointers {
        PointerUse::Compare => " --compare",
        PointerUse::Store => "",
    };
    format!("'{}' git-lfs-clean{more}", program.display())
}

/// Configures the filters in the workspace's repository.
pub(super) fn configure(git: &Git) -> Result<(), Error> {
    let program = &git.workspace.program;
    let smudge = format!("'{}' git-lfs-smudge", program.display());
    let settings = [
        ("filter.lfs.clean", clean_command(program, PointerUse::Store)),
        ("filter.lfs.smudge", smudge),
        ("filter.lfs.required", "true".to_owned()),
    ];
    for (key, value) in settings {
        git.command(WHAT).args(["config", "--", key, &value]).run_quick()?.require_success()?;
    }
    Ok(())
}

/// Writes the pointer of a content, which is at most a pointer already.
pub(super) fn clean_file(request: &CleanRequest, input: File, output: File) -> Result<Value, Error> {
    let store = LargeFileStore::of_git_dir(&repository_dir());
    write_pointer(request, &store, input, output).map_err(|source| Error::Io { what: WHAT, source })?;
    Ok(Value::Null)
}

fn write_pointer(request: &CleanRequest, store: &LargeFileStore, mut input: File, mut output: File) -> io::Result<()> {
    let start = read_start(&mut input)?;
    if start.is_empty() || LargeFile::parse(&start).is_some() {
        return output.write_all(&start);
    }
    let mut content = Cursor::new(start).chain(input);
    let file = if request.compare { copy_and_hash(&mut content, &mut io::sink())? } else { store.add(&mut content)? };
    output.write_all(file.pointer().as_bytes())
}

/// Writes the content of a pointer, or the pointer if its content is not here.
pub(super) fn smudge_file(input: File, output: File) -> Result<Value, Error> {
    let store = LargeFileStore::of_git_dir(&repository_dir());
    write_content(&store, input, output).map_err(|source| Error::Io { what: WHAT, source })?;
    Ok(Value::Null)
}

fn write_content(store: &LargeFileStore, mut input: File, mut output: File) -> io::Result<()> {
    let start = read_start(&mut input)?;
    match LargeFile::parse(&start).filter(|file| store.has(file)) {
        Some(file) => store.copy_to(&file, &mut output),
        None => io::copy(&mut Cursor::new(start).chain(input), &mut output).map(drop),
    }
}

/// Reads as much as a pointer can have, and one byte more.
fn read_start(input: &mut File) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    input.take(POINTER_BYTES.end() + 1).read_to_end(&mut start)?;
    Ok(start)
}

/// Git runs a filter in the root of the working tree.
fn repository_dir() -> PathBuf {
    let directory = std::env::var_os("GIT_DIR").map_or_else(|| PathBuf::from(".git"), PathBuf::from);
    // A submodule's `.git` is a file with the path.
    let linked = fs::read_to_string(&directory).ok();
    let linked = linked.as_deref().and_then(|text| text.trim_end().strip_prefix("gitdir: "));
    match linked {
        Some(path) => directory.parent().unwrap_or(Path::new("")).join(path),
        None => directory,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Seek;

    fn file_with(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file.rewind().unwrap();
        file
    }

    fn content_of(mut file: File) -> Vec<u8> {
        let mut content = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut content).unwrap();
        content
    }

    #[test]
    fn a_cleaned_file_can_be_smudged() {
        let directory = tempfile::tempdir().unwrap();
        let store = LargeFileStore::of_git_dir(directory.path());
        let clean = |content: &[u8], compare| {
            let output = tempfile::tempfile().unwrap();
            let request = CleanRequest { compare };
            write_pointer(&request, &store, file_with(content), output.try_clone().unwrap()).unwrap();
            content_of(output)
        };
        let smudge = |content: &[u8]| {
            let output = tempfile::tempfile().unwrap();
            write_content(&store, file_with(content), output.try_clone().unwrap()).unwrap();
            content_of(output)
        };
        for content in [b"x".as_slice(), &vec![7; 500_000]] {
            let pointer = clean(content, true);
            assert_eq!(smudge(&pointer), pointer, "the content is not stored yet");
            assert_eq!(clean(content, false), pointer);
            assert_eq!(smudge(&pointer), content);
            assert_eq!(clean(&pointer, false), pointer, "a pointer stays one");
        }
        assert_eq!(clean(b"", false), b"");
        for other in [b"".as_slice(), b"text", &vec![b'v'; 5000]] {
            assert_eq!(smudge(other), other);
        }
    }
}
