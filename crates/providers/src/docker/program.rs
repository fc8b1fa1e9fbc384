//! Whether the worker's program runs in any image: it must bring everything along.

use atoll_core::provider::Error;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// The kind of program header that names a dynamic loader.
const INTERPRETER: u32 = 3;
/// What a program of 64 bits begins with.
const MAGIC: &[u8] = b"\x7fELF\x02";
const LITTLE: u8 = 1;
const HEADER: usize = 64;

/// Refused with what to do about it, unless it can be used.
pub(super) fn check(path: &Path) -> Result<(), Error> {
    let refuse = |why: String| {
        let what = "the worker's program for containers";
        Err(Error::Refused { detail: format!("{what}, {}, {why}", path.display()) })
    };
    match File::open(path).and_then(needs_loader) {
        Ok(Some(false)) => Ok(()),
        Ok(Some(true)) => refuse(
            "is linked dynamically, so it runs only where its libraries are; build a static one with `make worker` and name it with docker.worker"
                .into(),
        ),
        Ok(None) => refuse("is no program for Linux of 64 bits".into()),
        Err(error) => refuse(format!("can't be read: {error}")),
    }
}

/// `None` when it is no such program.
fn needs_loader(mut file: impl Read + Seek) -> io::Result<Option<bool>> {
    let mut header = [0; HEADER];
    if let Err(error) = file.read_exact(&mut header) {
        return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(None) } else { Err(error) };
    }
    if !header.starts_with(MAGIC) || header[5] != LITTLE {
        return Ok(None);
    }
    let short = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let (size, count) = (short(54), short(56));
    let mut offset = [0; 8];
    offset.copy_from_slice(&header[32..40]);
    file.seek(SeekFrom::Start(u64::from_le_bytes(offset)))?;
    for _ in 0..count {
        let mut entry = vec![0; usize::from(size.max(4))];
        if file.read_exact(&mut entry).is_err() {
            return Ok(None);
        }
        if entry.starts_with(&INTERPRETER.to_le_bytes()) {
            return Ok(Some(true));
        }
    }
    Ok(Some(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn program(kinds: &[u32]) -> Cursor<Vec<u8>> {
        let mut bytes = vec![0; HEADER];
        bytes[..5].copy_from_slice(MAGIC);
        bytes[5] = LITTLE;
        bytes[32] = HEADER as u8;
        (bytes[54], bytes[56]) = (56, kinds.len() as u8);
        for kind in kinds {
            bytes.extend_from_slice(&kind.to_le_bytes());
            bytes.extend_from_slice(&[0; 52]);
        }
        Cursor::new(bytes)
    }

    #[test]
    fn a_program_that_names_a_loader_is_told_from_one_that_brings_all_along() {
        assert_eq!(needs_loader(program(&[1, 1, 6])).unwrap(), Some(false));
        assert_eq!(needs_loader(program(&[6, 3, 1])).unwrap(), Some(true));
        assert_eq!(needs_loader(Cursor::new(b"#!/bin/sh\n".repeat(10))).unwrap(), None);
        assert_eq!(needs_loader(Cursor::new(b"short".to_vec())).unwrap(), None);
        let mut cut = program(&[1, 1]).into_inner();
        cut.truncate(HEADER + 10);
        assert_eq!(needs_loader(Cursor::new(cut)).unwrap(), None);
    }

    #[test]
    fn the_test_itself_needs_a_loader_and_the_refusal_says_what_to_do() {
        let this = std::env::current_exe().unwrap();
        if File::open(&this).map(needs_loader).unwrap().unwrap() == Some(true) {
            assert!(check(&this).unwrap_err().to_string().contains("make worker"));
        }
        assert!(check(Path::new("/nowhere")).unwrap_err().to_string().contains("can't be read"));
    }
}
