//! Unpacks an archive into an image.
//!
//! The archive is untrusted. A separate process reads it, in a user namespace with only the layer store's ids and
//! chrooted to the destination: no name or link in the archive can lead anywhere else.

mod archive;
mod entries;
mod root_setup;

use std::fs::File;
use std::io::Write;
use std::os::fd::BorrowedFd;

use rustix::process::{Resource, Rlimit, Signal};
use serde::{Deserialize, Serialize};

use crate::id_ranges::IdMap;
use crate::setup::privilege;

/// Memory limit of the process. The list of files takes a fraction of it; a single name in a hostile archive can be as
/// long as the archive.
const MAX_MEMORY_BYTES: u64 = 1 << 30;

/// The result of an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UnpackedImage {
    pub bytes: u64,
    pub layers: u32,
    /// Number of device nodes, which sandboxes cannot have.
    pub skipped: u64,
}

/// Body of the importer process: reports its result on `report` and returns the exit code.
pub(crate) fn run_importer(
    archive: BorrowedFd<'_>,
    directory: BorrowedFd<'_>,
    map: &IdMap,
    report: BorrowedFd<'_>,
) -> i32 {
    let outcome = confine_process(directory, map).and_then(|()| {
        let archive = archive.try_clone_to_owned().map_err(|error| error.to_string())?;
        unpack_archive(File::from(archive), map)
    });
    let code = i32::from(outcome.is_err());
    if let (Ok(report), Ok(text)) = (report.try_clone_to_owned(), serde_json::to_vec(&outcome)) {
        // The exit still shows that it ended.
        let _ = File::from(report).write_all(&text);
    }
    code
}

/// Confines the process to its destination and limits its memory.
fn confine_process(directory: BorrowedFd<'_>, map: &IdMap) -> Result<(), String> {
    let bound = |resource, bytes| {
        let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        rustix::process::setrlimit(resource, limit)
            .map_err(|error| format!("failed to set the importer's limits: {error}"))
    };
    // A process over its limit aborts; a core dump has no use.
    bound(Resource::Data, MAX_MEMORY_BYTES).and_then(|()| bound(Resource::Core, 0))?;
    privilege::become_root_inside(map)
        .map_err(|failure| format!("failed to switch the importer's ids: {}", failure.source))?;
    let confined = rustix::process::fchdir(directory)
        .and_then(|()| rustix::process::chroot("."))
        .and_then(|()| rustix::process::chdir("/"))
        .and_then(|()| rustix::process::set_parent_process_death_signal(Some(Signal::KILL)));
    rustix::process::umask(rustix::fs::Mode::empty());
    confined.map_err(|error| format!("failed to enter the image's directory: {error}"))
}

fn unpack_archive(file: File, map: &IdMap) -> Result<UnpackedImage, String> {
    let archive = archive::Archive::open(file)?;
    let mut unpacker = entries::Unpacker::new(map);
    match archive.read_content()? {
        archive::ArchiveContent::Root => unpacker.extract_layer(archive.open_whole()?, false)?,
        archive::ArchiveContent::Layers(layers) => {
            for layer in &layers {
                // Whiteouts hide entries of earlier layers, so apply them first, in any order of the layer.
                unpacker.apply_whiteouts(archive.open_layer(layer)?)?;
                unpacker.extract_layer(archive.open_layer(layer)?, true)?;
            }
            unpacker.layers = u32::try_from(layers.len()).unwrap_or(u32::MAX);
        }
    }
    root_setup::finish_root()?;
    Ok(UnpackedImage { bytes: unpacker.bytes, layers: unpacker.layers, skipped: unpacker.skipped })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_survives_serialization() {
        let report: Result<UnpackedImage, String> = Ok(UnpackedImage { bytes: 1, layers: 2, skipped: 3 });
        let text = serde_json::to_vec(&report).unwrap();
        assert_eq!(serde_json::from_slice::<Result<UnpackedImage, String>>(&text).unwrap(), report);
    }
}
