//! Mounts overlays outside of a sandbox's user namespace, with credentials of the host.
//!
//! Overlayfs records the rename of a directory from a lower layer in a `trusted` extended attribute, which only a
//! process with `CAP_SYS_ADMIN` on the host can write. In an overlay that is mounted inside the sandbox's user
//! namespace such a rename fails with `EXDEV`. So a child of root's launcher mounts the overlay. Overlayfs works on the
//! layers with the credentials of this child: the id of the sandbox's root user, and the capabilities that overlayfs
//! needs. It has no others, so that a sandbox cannot use the disk space that is reserved for root.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use rustix::mount::MountPropagationFlags;
use rustix::thread::{CapabilitySet, CapabilitySets};
use serde::{Deserialize, Serialize};

use crate::error::{AtStep, Errno, LaunchStep, StepFailure};
use crate::id_ranges::IdMap;
use crate::kernel::{self, ChildProcess};
use crate::layers::LayerStack;
use crate::overlay_xattrs::OverlayXattrs;
use crate::setup::overlay::{OverlayMounts, OverlayRequest, SystemTree};
use crate::setup::{self, privilege};
use crate::wire;

/// Time-out for the mounter to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(20);

/// The capabilities of overlayfs on the layers.
const OVERLAY_CAPABILITIES: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SETFCAP);

/// A child process that mounts overlays when it is requested to.
pub(crate) struct OverlayMounter {
    process: ChildProcess,
    socket: OwnedFd,
    request: OverlayRequest,
}

/// Requests the mounts.
#[derive(Debug, Serialize, Deserialize)]
struct MountNow {}

/// One part of the answer; most have a descriptor.
#[derive(Debug, Serialize, Deserialize)]
enum MountedPart {
    Workspace,
    Home,
    SystemDirectory { name: PathBuf },
    SystemLink { name: PathBuf, target: Vec<u8> },
    Complete,
    Failed(StepFailure),
}

impl OverlayMounter {
    /// Starts the process. `store` is the layer store with the sandbox's ids; `drop` closes what only the launcher may
    /// hold.
    pub fn spawn(
        store: &OwnedFd,
        stack: &LayerStack,
        request: OverlayRequest,
        map: &IdMap,
        drop: impl FnOnce(),
    ) -> Result<Self, StepFailure> {
        let (socket, child_socket) =
            wire::socket_pair().map_err(|_| Errno(libc::EMFILE)).at(LaunchStep::Descriptors)?;
        let process = kernel::spawn(0, None, || {
            drop();
            kernel::close_inherited(socket.as_fd());
            // The requester may not need the mounts any more.
            let Ok(Some((MountNow {}, _))) = wire::receive_packet(child_socket.as_fd(), &mut [0; 64]) else { return 0 };
            let outcome = enter_own_mounts(map)
                .and_then(|()| setup::root::mount_overlays_in_namespace(store, stack, request, OverlayXattrs::Trusted))
                .and_then(|mounts| send_mounts(child_socket.as_fd(), mounts));
            match outcome {
                Ok(()) => 0,
                Err(failure) => {
                    let failed = MountedPart::Failed(failure);
                    i32::from(wire::send_packet(child_socket.as_fd(), &failed, &[]).is_err())
                }
            }
        })
        .at(LaunchStep::Namespaces)?;
        Ok(Self { process, socket, request })
    }

    /// Mounts the overlays; returns them detached.
    pub fn mount(&self) -> Result<OverlayMounts, StepFailure> {
        let lost = |_| StepFailure {
            step: LaunchStep::MountOverlay,
            detail: "the helper process was killed".to_owned(),
            source: Errno(libc::EIO),
        };
        wire::send_packet(self.socket.as_fd(), &MountNow {}, &[]).map_err(lost)?;
        let mut buffer = vec![0; wire::MAX_PACKET];
        let (mut files, mut system) = (Vec::new(), SystemTree::default());
        loop {
            let received = wire::receive_packet::<MountedPart>(self.socket.as_fd(), &mut buffer).map_err(lost)?;
            let (part, descriptors) = received.ok_or(Errno(libc::EIO)).at(LaunchStep::MountOverlay)?;
            match (part, descriptors.into_iter().next()) {
                (MountedPart::Workspace | MountedPart::Home, Some(mount)) => files.push(mount),
                (MountedPart::SystemDirectory { name }, Some(mount)) => system.directories.push((mount, name)),
                (MountedPart::SystemLink { name, target }, _) => {
                    system.links.push((name, OsString::from_vec(target).into()));
                }
                (MountedPart::Failed(failure), _) => return Err(failure),
                (MountedPart::Complete, _) => break,
                (_, None) => return Err(Errno(libc::EIO)).at(LaunchStep::MountOverlay),
            }
        }
        Ok(OverlayMounts { files: <[OwnedFd; 2]>::try_from(files).ok(), system: self.request.system.then_some(system) })
    }

    /// Mounts the overlays and ends the process.
    pub fn mount_and_finish(self) -> Result<OverlayMounts, StepFailure> {
        let mounts = self.mount();
        self.finish();
        mounts
    }

    /// Ends the process, whether or not it was used.
    pub fn finish(self) {
        drop(self.socket);
        if !self.process.exits_within(EXIT_TIMEOUT) {
            self.process.kill();
        }
        // A process that cannot be reaped now is reaped with the launcher's orphans.
        let _ = self.process.reap();
    }
}

/// Gives this process its own copy of the host's mounts. The host sees none of its changes.
pub(crate) fn unshare_private_mounts() -> Result<(), StepFailure> {
    kernel::unshare_mounts().at(LaunchStep::MountOverlay)?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).at(LaunchStep::MountOverlay)
}

/// Gives this process private mounts, and the credentials for the overlays.
fn enter_own_mounts(map: &IdMap) -> Result<(), StepFailure> {
    unshare_private_mounts()?;
    let (Some(user), Some(group)) = (map.host_uid(0), map.host_gid(0)) else {
        return Err(Errno(libc::EINVAL)).at(LaunchStep::SwitchIds);
    };
    rustix::thread::set_keep_capabilities(true).at(LaunchStep::SwitchIds)?;
    rustix::thread::set_thread_groups(&[]).at_with(LaunchStep::SwitchIds, "groups")?;
    privilege::switch_ids_to(user, group).at(LaunchStep::SwitchIds)?;
    let sets = CapabilitySets {
        effective: OVERLAY_CAPABILITIES,
        permitted: OVERLAY_CAPABILITIES,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, sets).at(LaunchStep::Capabilities)
}

fn send_mounts(socket: BorrowedFd<'_>, mounts: OverlayMounts) -> Result<(), StepFailure> {
    let send = |part: MountedPart, mount: Option<&OwnedFd>| {
        let descriptors: Vec<BorrowedFd<'_>> = mount.into_iter().map(AsFd::as_fd).collect();
        wire::send_packet(socket, &part, &descriptors).map_err(|_| Errno(libc::EPIPE)).at(LaunchStep::MountOverlay)
    };
    if let Some([workspace, home]) = &mounts.files {
        send(MountedPart::Workspace, Some(workspace))?;
        send(MountedPart::Home, Some(home))?;
    }
    let system = mounts.system.unwrap_or_default();
    for (mount, name) in &system.directories {
        send(MountedPart::SystemDirectory { name: name.clone() }, Some(mount))?;
    }
    for (name, target) in &system.links {
        let target = target.as_os_str().as_bytes().to_vec();
        send(MountedPart::SystemLink { name: name.clone(), target }, None)?;
    }
    send(MountedPart::Complete, None)
}
