//! Probes individual kernel features in child processes.

use std::ffi::{CStr, CString};
use std::fs;
use std::path::Path;

use rustix::mount::MountFlags;

use crate::error::{Errno, StepFailure};
use crate::id_ranges::IdMap;
use crate::{id_maps, kernel, overlay_mounter, setup};

/// Tries to create a user namespace.
pub(super) fn try_user_namespace() -> Result<(), Errno> {
    let process = kernel::spawn(kernel::NEW_USER_NAMESPACE, None, || 0).map_err(Errno::from)?;
    wait_for_exit_errno(&process)
}

/// Tries to mount an overlay as root of a user namespace.
pub(super) fn try_overlay(map: &IdMap) -> Result<(), Errno> {
    let work = || {
        let result = setup::become_root_inside(map)
            .map_err(|failure: StepFailure| failure.source)
            .and_then(|()| kernel::unshare_mounts().map_err(Errno::from))
            .and_then(|()| mount_test_overlay(c""));
        result.map_or_else(|errno| errno.0, |()| 0)
    };
    let process = id_maps::spawn_in_namespace(map, work).map_err(|failure| failure.source)?;
    wait_for_exit_errno(&process)
}

/// Tries to rename a directory of a lower layer, in an overlay that is mounted outside of user namespaces.
pub(super) fn try_directory_rename() -> Result<(), Errno> {
    let work = || {
        let result = overlay_mounter::unshare_private_mounts()
            .map_err(|failure| failure.source)
            .and_then(|()| mount_test_overlay(c",redirect_dir=on"))
            .and_then(|()| Ok(fs::rename("/usr/both/dir", "/usr/both/renamed")?));
        result.map_or_else(|errno| errno.0, |()| 0)
    };
    let process = kernel::spawn(0, None, work).map_err(Errno::from)?;
    wait_for_exit_errno(&process)
}

/// Mounts an overlay on a tmpfs in its own mount namespace, so that it tests the kernel and not a disk.
fn mount_test_overlay(more: &CStr) -> Result<(), Errno> {
    let mount_point = Path::new("/usr");
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount(c"tmpfs", mount_point, c"tmpfs", flags, c"mode=755,size=1m")?;
    for name in ["lower", "lower/dir", "upper", "work", "both"] {
        fs::create_dir(mount_point.join(name))?;
    }
    let options = [c"lowerdir=/usr/lower,upperdir=/usr/upper,workdir=/usr/work", more].map(CStr::to_bytes).concat();
    let options = CString::new(options).map_err(std::io::Error::from)?;
    let options = options.as_c_str();
    rustix::mount::mount(c"overlay", mount_point.join("both"), c"overlay", flags, options)?;
    fs::write(mount_point.join("both/file"), "x")?;
    Ok(())
}

fn wait_for_exit_errno(process: &kernel::ChildProcess) -> Result<(), Errno> {
    match process.reap()?.and_then(|status| status.exit_status()) {
        Some(0) => Ok(()),
        Some(number) => Err(Errno(number)),
        None => Err(Errno(libc::EIO)),
    }
}
