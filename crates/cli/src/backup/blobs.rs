//! Copying blobs, each checked against its name.

use super::cant_copy;
use crate::failure::{Failure, Result};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

/// How many there were, and how many bytes.
pub fn copy(from: &Path, to: &Path) -> Result<(u64, u64)> {
    let (mut count, mut bytes) = (0, 0);
    std::fs::create_dir(to).map_err(|error| cant_copy(to, &error))?;
    for group in names(from)? {
        // Two digits; what is still coming in has another name.
        if group.len() != 2 {
            continue;
        }
        std::fs::create_dir(to.join(&group)).map_err(|error| cant_copy(to, &error))?;
        for name in names(&from.join(&group))? {
            let (source, target) = (from.join(&group).join(&name), to.join(&group).join(&name));
            if let Some(size) = copy_one(&source, &target, &name)? {
                count += 1;
                bytes += size;
            }
        }
    }
    Ok((count, bytes))
}

/// Nothing where the directory does not exist.
fn names(dir: &Path) -> Result<Vec<String>> {
    let unreadable = |error: std::io::Error| {
        Failure::work("backup_failed", format!("can't read {}: {error}", dir.display()))
            .next("Run it as the user that the server runs as.")
    };
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(unreadable)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(unreadable)?.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

/// `None` where it was removed meanwhile: then nothing in the copied database needs it any more, or
/// retention took it from there too.
fn copy_one(source: &Path, target: &Path, name: &str) -> Result<Option<u64>> {
    let mut input = match File::open(source) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|error| cant_copy(source, &error))?,
    };
    let mut output = File::create_new(target).map_err(|error| cant_copy(target, &error))?;
    let (mut hash, mut size, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        let read = input.read(&mut buffer).map_err(|error| cant_copy(source, &error))?;
        if read == 0 {
            break;
        }
        hash.update(&buffer[..read]);
        size += read as u64;
        output.write_all(&buffer[..read]).map_err(|error| cant_copy(target, &error))?;
    }
    output.sync_all().map_err(|error| cant_copy(target, &error))?;
    let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if found != name {
        return Err(Failure::work("blob_damaged", format!("the blob {} is not what its name says", source.display()))
            .next("The disk or somebody has changed it. Move it away to go on without it."));
    }
    Ok(Some(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_are_copied_and_damage_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("blobs");
        let name: String = Sha256::digest(b"hello").iter().map(|byte| format!("{byte:02x}")).collect();
        std::fs::create_dir_all(from.join(&name[..2])).unwrap();
        std::fs::create_dir_all(from.join("incoming")).unwrap();
        std::fs::write(from.join("incoming/half"), b"he").unwrap();
        std::fs::write(from.join(&name[..2]).join(&name), b"hello").unwrap();
        assert_eq!(copy(&from, &dir.path().join("one")).unwrap(), (1, 5));
        assert!(!dir.path().join("one/incoming").exists());
        assert_eq!(copy(&dir.path().join("absent"), &dir.path().join("two")).unwrap(), (0, 0));
        std::fs::write(from.join(&name[..2]).join(&name), b"jello").unwrap();
        let refused = copy(&from, &dir.path().join("three")).unwrap_err();
        assert!(refused.shown(false).unwrap().contains("blob_damaged"));
    }
}
