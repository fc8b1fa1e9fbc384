//! Single abilities of the kernel, each found by trying it in a process that ends afterwards.

use std::fs;
use std::path::Path;

use rustix::mount::MountFlags;

use crate::error::{Errno, Failure};
use crate::ids::Map;
use crate::{kernel, maps, setup};

/// Whether a user namespace can be made at all.
pub(super) fn user_namespaces() -> Result<(), Errno> {
    let process = kernel::spawn(kernel::NEW_USER_NAMESPACE, None, || 0).map_err(Errno::from)?;
    outcome(&process)
}

/// Whether directories can be laid over each other by somebody who is root only in a namespace.
pub(super) fn overlay(map: &Map) -> Result<(), Errno> {
    let work = || {
        let tried = setup::become_root_inside(map)
            .map_err(|failure: Failure| failure.source)
            .and_then(|()| kernel::copy_mounts().map_err(Errno::from))
            .and_then(|()| lay_over());
        tried.map_or_else(|errno| errno.0, |()| 0)
    };
    let process = maps::spawn_in_namespace(map, work).map_err(|failure| failure.source)?;
    outcome(&process)
}

/// In memory, and seen by nobody else: it is the kernel that is asked, not a disk.
fn lay_over() -> Result<(), Errno> {
    let hidden = Path::new("/usr");
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount(c"tmpfs", hidden, c"tmpfs", flags, c"mode=755,size=1m")?;
    for name in ["lower", "upper", "work", "both"] {
        fs::create_dir(hidden.join(name))?;
    }
    let options = c"lowerdir=/usr/lower,upperdir=/usr/upper,workdir=/usr/work";
    rustix::mount::mount(c"overlay", hidden.join("both"), c"overlay", flags, options)?;
    fs::write(hidden.join("both/file"), "x")?;
    Ok(())
}

fn outcome(process: &kernel::Process) -> Result<(), Errno> {
    match process.wait()?.and_then(|status| status.exit_status()) {
        Some(0) => Ok(()),
        Some(number) => Err(Errno(number)),
        None => Err(Errno(libc::EIO)),
    }
}
