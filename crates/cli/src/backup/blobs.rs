//! Copies blobs and verifies each against its hash.

use super::copy_failure;
use crate::failure::{Failure, Result};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

/// Copies all blobs; returns their number and their bytes.
pub fn copy_blobs(from: &Path, to: &Path) -> Result<(u64, u64)> {
    let (mut count, mut bytes) = (0, 0);
    std::fs::create_dir(to).map_err(|error| copy_failure(to, &error))?;
    for group in list_names(from)? {
        // Blob directories have two hex digits; uploads in progress are elsewhere.
        if group.len() != 2 {
            continue;
        }
        std::fs::create_dir(to.join(&group)).map_err(|error| copy_failure(to, &error))?;
        for name in list_names(&from.join(&group))? {
            let (source, target) = (from.join(&group).join(&name), to.join(&group).join(&name));
            if let Some(size) = copy_blob(&source, &target, &name)? {
                count += 1;
                bytes += size;
            }
        }
    }
    Ok((count, bytes))
}

/// Lists a directory, sorted; a missing directory is empty.
fn list_names(dir: &Path) -> Result<Vec<String>> {
    let unreadable = |error: std::io::Error| {
        Failure::work("backup_failed", format!("cannot read {}: {error}", dir.display()))
            .with_hint("Run the command as the server's user.")
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

/// Copies one blob; returns `None` if retention removed it during the backup.
fn copy_blob(source: &Path, target: &Path, name: &str) -> Result<Option<u64>> {
    let mut input = match File::open(source) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|error| copy_failure(source, &error))?,
    };
    let mut output = File::create_new(target).map_err(|error| copy_failure(target, &error))?;
    let (mut hash, mut size, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        let read = input.read(&mut buffer).map_err(|error| copy_failure(source, &error))?;
        if read == 0 {
            break;
        }
        hash.update(&buffer[..read]);
        size += read as u64;
        output.write_all(&buffer[..read]).map_err(|error| copy_failure(target, &error))?;
    }
    output.sync_all().map_err(|error| copy_failure(target, &error))?;
    let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if found != name {
        return Err(Failure::work("blob_damaged", format!("the blob {} does not match its hash", source.display()))
            .with_hint("The file is damaged. Move it away to back up without it."));
    }
    Ok(Some(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_blobs_and_detects_damage() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("blobs");
        let name: String = Sha256::digest(b"hello").iter().map(|byte| format!("{byte:02x}")).collect();
        std::fs::create_dir_all(from.join(&name[..2])).unwrap();
        std::fs::create_dir_all(from.join("incoming")).unwrap();
        std::fs::write(from.join("incoming/half"), b"he").unwrap();
        std::fs::write(from.join(&name[..2]).join(&name), b"hello").unwrap();
        assert_eq!(copy_blobs(&from, &dir.path().join("one")).unwrap(), (1, 5));
        assert!(!dir.path().join("one/incoming").exists());
        assert_eq!(copy_blobs(&dir.path().join("absent"), &dir.path().join("two")).unwrap(), (0, 0));
        std::fs::write(from.join(&name[..2]).join(&name), b"jello").unwrap();
        let refused = copy_blobs(&from, &dir.path().join("three")).unwrap_err();
        assert!(refused.to_text(false).unwrap().contains("blob_damaged"));
    }
}
