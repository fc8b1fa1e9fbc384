//! Unpacks an archive into an imported root.
//!
//! The archive is a stranger's. Whoever reads it is a process of its own, in a user namespace where only the layers' ids
//! exist, with the destination as its whole file system: no name or link in the archive can lead anywhere else.

mod archive;
mod entries;
mod finish;

use std::fs::File;
use std::io::Write;
use std::os::fd::BorrowedFd;

use rustix::process::{Resource, Rlimit, Signal};
use serde::{Deserialize, Serialize};

use crate::ids::Map;
use crate::setup::privilege;

/// What the process may take of memory. The list of all files in an archive is a fraction of it; one name in a hostile archive
/// can be as long as the archive.
const MEMORY: u64 = 1 << 30;

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unpacked {
    pub bytes: u64,
    pub layers: u32,
    /// Device nodes, which a sandbox can't have.
    pub skipped: u64,
}

/// What the process does that is made for it: says on `said` how it went, and ends.
pub(crate) fn run(archive: BorrowedFd<'_>, directory: BorrowedFd<'_>, map: &Map, said: BorrowedFd<'_>) -> i32 {
    let outcome = confine(directory, map).and_then(|()| {
        let archive = archive.try_clone_to_owned().map_err(|error| error.to_string())?;
        unpack(File::from(archive), map)
    });
    let code = i32::from(outcome.is_err());
    if let (Ok(said), Ok(text)) = (said.try_clone_to_owned(), serde_json::to_vec(&outcome)) {
        // Who waits sees at least that it has ended.
        let _ = File::from(said).write_all(&text);
    }
    code
}

/// From here on the destination is all that there is, and memory is bounded.
fn confine(directory: BorrowedFd<'_>, map: &Map) -> Result<(), String> {
    let bound = |resource, bytes| {
        let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        rustix::process::setrlimit(resource, limit).map_err(|error| format!("its limits can't be set: {error}"))
    };
    // Who wants more is aborted; nobody wants to look at what is left of it.
    bound(Resource::Data, MEMORY).and_then(|()| bound(Resource::Core, 0))?;
    privilege::become_root_inside(map).map_err(|failure| format!("its ids can't be had: {}", failure.source))?;
    let confined = rustix::process::fchdir(directory)
        .and_then(|()| rustix::process::chroot("."))
        .and_then(|()| rustix::process::chdir("/"))
        .and_then(|()| rustix::process::set_parent_process_death_signal(Some(Signal::KILL)));
    rustix::process::umask(rustix::fs::Mode::empty());
    confined.map_err(|error| format!("its directory can't be entered: {error}"))
}

fn unpack(file: File, map: &Map) -> Result<Unpacked, String> {
    let archive = archive::Archive::open(file)?;
    let mut unpacker = entries::Unpacker::new(map);
    match archive.layers()? {
        archive::Content::Root => unpacker.apply(archive.reader()?, false)?,
        archive::Content::Layers(layers) => {
            for layer in &layers {
                // What a layer hides is of those before it: so that comes first, whatever their order in the archive.
                unpacker.hide(archive.layer(layer)?)?;
                unpacker.apply(archive.layer(layer)?, true)?;
            }
            unpacker.layers = u32::try_from(layers.len()).unwrap_or(u32::MAX);
        }
    }
    finish::finish()?;
    Ok(Unpacked { bytes: unpacker.bytes, layers: unpacker.layers, skipped: unpacker.skipped })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_says_can_be_read_again() {
        let said: Result<Unpacked, String> = Ok(Unpacked { bytes: 1, layers: 2, skipped: 3 });
        let text = serde_json::to_vec(&said).unwrap();
        assert_eq!(serde_json::from_slice::<Result<Unpacked, String>>(&text).unwrap(), said);
    }
}
