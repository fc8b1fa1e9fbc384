//! Checks that the worker binary is static, so that it runs in any image.

use atoll_core::provider::Error;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// The program header type that names a dynamic loader.
const PT_INTERP: u32 = 3;
/// ELF magic with the 64-bit class.
const ELF64_MAGIC: &[u8] = b"\x7fELF\x02";
const ELF_LITTLE_ENDIAN: u8 = 1;
const ELF_HEADER_BYTES: usize = 64;

/// Refuses a binary that cannot run in containers, with a remedy.
pub(super) fn check_static_binary(path: &Path) -> Result<(), Error> {
    let refuse = |why: String| {
        let what = "the worker binary for containers";
        Err(Error::Refused { detail: format!("{what}, {}, {why}", path.display()) })
    };
    match File::open(path).and_then(needs_loader) {
        Ok(Some(false)) => Ok(()),
        Ok(Some(true)) => {
            refuse("is dynamically linked; build a static one with `make worker` and set docker.worker".into())
        }
        Ok(None) => refuse("is not a 64-bit Linux binary".into()),
        Err(error) => refuse(format!("cannot be read: {error}")),
    }
}

/// Returns `None` if the file is not a 64-bit ELF binary.
fn needs_loader(mut file: impl Read + Seek) -> io::Result<Option<bool>> {
    let mut header = [0; ELF_HEADER_BYTES];
    if let Err(error) = file.read_exact(&mut header) {
        return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(None) } else { Err(error) };
    }
    if !header.starts_with(ELF64_MAGIC) || header[5] != ELF_LITTLE_ENDIAN {
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
        if entry.starts_with(&PT_INTERP.to_le_bytes()) {
            return Ok(Some(true));
        }
    }
    Ok(Some(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn elf_with_headers(kinds: &[u32]) -> Cursor<Vec<u8>> {
        let mut bytes = vec![0; ELF_HEADER_BYTES];
        bytes[..5].copy_from_slice(ELF64_MAGIC);
        bytes[5] = ELF_LITTLE_ENDIAN;
        bytes[32] = ELF_HEADER_BYTES as u8;
        (bytes[54], bytes[56]) = (56, kinds.len() as u8);
        for kind in kinds {
            bytes.extend_from_slice(&kind.to_le_bytes());
            bytes.extend_from_slice(&[0; 52]);
        }
        Cursor::new(bytes)
    }

    #[test]
    fn distinguishes_dynamic_and_static_binaries() {
        assert_eq!(needs_loader(elf_with_headers(&[1, 1, 6])).unwrap(), Some(false));
        assert_eq!(needs_loader(elf_with_headers(&[6, 3, 1])).unwrap(), Some(true));
        assert_eq!(needs_loader(Cursor::new(b"#!/bin/sh\n".repeat(10))).unwrap(), None);
        assert_eq!(needs_loader(Cursor::new(b"short".to_vec())).unwrap(), None);
        let mut cut = elf_with_headers(&[1, 1]).into_inner();
        cut.truncate(ELF_HEADER_BYTES + 10);
        assert_eq!(needs_loader(Cursor::new(cut)).unwrap(), None);
    }

    #[test]
    fn a_dynamic_binary_is_refused_with_a_remedy() {
        let this = std::env::current_exe().unwrap();
        if File::open(&this).map(needs_loader).unwrap().unwrap() == Some(true) {
            assert!(check_static_binary(&this).unwrap_err().to_string().contains("make worker"));
        }
        assert!(check_static_binary(Path::new("/nowhere")).unwrap_err().to_string().contains("cannot be read"));
    }
}
