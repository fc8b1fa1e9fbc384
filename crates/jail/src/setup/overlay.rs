//! Mounts a sandbox's overlays: one for its files, one for its system if it has an image.
//!
//! All layers are in one directory, the store. Store and overlays are attached for a moment, so that overlayfs finds
//! the layers by short names; only detached clones of the overlay remain.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use super::mount_sources::{attach_mount, clone_mount};
use crate::error::{AtStep, LaunchStep, StepFailure};
use crate::kernel::{NO_DEVICES, NO_SUID};
use crate::layers::{LayerPart, LayerStack};
use crate::overlay_xattrs::OverlayXattrs;

/// Root directories that every sandbox gets fresh, instead of the image's.
const GENERATED_DIRS: [&str; 8] = ["proc", "dev", "sys", "tmp", "run", "workspace", "home", "lost+found"];

/// Temporary mount points of store and overlay; absolute paths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MountPoints {
    pub store: &'static str,
    pub merged: &'static str,
}

/// The overlays to mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OverlayRequest {
    pub files: bool,
    pub system: bool,
}

#[derive(Default)]
pub(crate) struct OverlayMounts {
    /// Workspace and home.
    pub files: Option<[OwnedFd; 2]>,
    pub system: Option<SystemTree>,
}

impl OverlayMounts {
    pub fn try_clone(&self) -> io::Result<Self> {
        let files = match &self.files {
            Some([workspace, home]) => Some([workspace.try_clone()?, home.try_clone()?]),
            None => None,
        };
        let system = self.system.as_ref().map(SystemTree::try_clone).transpose()?;
        Ok(Self { files, system })
    }
}

impl SystemTree {
    fn try_clone(&self) -> io::Result<Self> {
        let directories = self.directories.iter().map(|(tree, name)| Ok((tree.try_clone()?, name.clone())));
        Ok(Self { directories: directories.collect::<io::Result<_>>()?, links: self.links.clone() })
    }
}

/// An imported root in parts, which can be remounted under a running process.
#[derive(Default)]
pub(crate) struct SystemTree {
    pub directories: Vec<(OwnedFd, PathBuf)>,
    pub links: Vec<(PathBuf, PathBuf)>,
}

/// Mounts the requested overlays. Leaves nothing attached, even on failure.
pub(crate) fn mount_overlays(
    store: &OwnedFd,
    stack: &LayerStack,
    request: OverlayRequest,
    scratch: MountPoints,
    xattrs: OverlayXattrs,
) -> Result<OverlayMounts, StepFailure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let before = rustix::fs::open(".", flags, Mode::empty()).at(LaunchStep::MountOverlay)?;
    attach_mount(store, Path::new(scratch.store), LaunchStep::MountOverlay)?;
    let outcome = rustix::process::chdir(scratch.store).at(LaunchStep::MountOverlay).and_then(|()| {
        let files = if request.files {
            Some(mount_overlay(stack, LayerPart::Files, xattrs, scratch.merged, clone_files)?)
        } else {
            None
        };
        let system = if request.system {
            Some(mount_overlay(stack, LayerPart::System, xattrs, scratch.merged, clone_system)?)
        } else {
            None
        };
        Ok(OverlayMounts { files, system })
    });
    rustix::process::fchdir(&before).at(LaunchStep::MountOverlay)?;
    rustix::mount::unmount(scratch.store, UnmountFlags::DETACH).at(LaunchStep::MountOverlay)?;
    outcome
}

fn mount_overlay<T>(
    stack: &LayerStack,
    part: LayerPart,
    xattrs: OverlayXattrs,
    merged: &str,
    take: fn(&Path) -> Result<T, StepFailure>,
) -> Result<T, StepFailure> {
    // A subvolume contains everything itself.
    if stack.volume.is_some() {
        return take(&Path::new(&stack.top).join(part.dir_name()));
    }
    clear_volatile_marker(&Path::new(&stack.top).join(part.work_dir_name()))
        .at_with(LaunchStep::MountOverlay, "work directory")?;
    let options = CString::new(overlay_options(stack, part, xattrs)).map_err(io::Error::from);
    let options = options.at(LaunchStep::MountOverlay)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount(c"overlay", merged, c"overlay", flags, options.as_c_str())
        .at_with(LaunchStep::MountOverlay, part.dir_name())?;
    let result = take(Path::new(merged));
    rustix::mount::unmount(merged, UnmountFlags::DETACH).at(LaunchStep::MountOverlay)?;
    result
}

/// Options of the overlay.
///
/// `redirect_dir` makes renames of directories work that are in a lower layer; the kernel refuses it with `userxattr`.
/// `volatile`: a sandbox's `fsync` does not wait for the disk.
fn overlay_options(stack: &LayerStack, part: LayerPart, xattrs: OverlayXattrs) -> String {
    let name = part.dir_name();
    let image = stack.image.as_ref().filter(|_| part == LayerPart::System).map(|base| &base.layer);
    let below: Vec<String> = stack.below.iter().chain(image).map(|layer| format!("{layer}/{name}")).collect();
    let (top, work) = (&stack.top, part.work_dir_name());
    let kind = match xattrs {
        OverlayXattrs::User => "userxattr",
        OverlayXattrs::Trusted => "redirect_dir=on,metacopy=off",
    };
    format!("lowerdir={},upperdir={top}/{name},workdir={top}/{work},{kind},index=off,volatile", below.join(":"))
}

/// Removes overlayfs's marker of an earlier `volatile` mount, which would refuse the mount because data may be lost
/// after a crash. That risk is accepted for all files here.
fn clear_volatile_marker(work: &Path) -> rustix::io::Result<()> {
    let incompatible = work.join("work/incompat");
    let mark = incompatible.join("volatile");
    for (path, flags) in
        [(mark.join("dirty"), AtFlags::empty()), (mark, AtFlags::REMOVEDIR), (incompatible, AtFlags::REMOVEDIR)]
    {
        match rustix::fs::unlinkat(CWD, path, flags) {
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::ISDIR) => {}
            outcome => outcome?,
        }
    }
    Ok(())
}

fn clone_files(merged: &Path) -> Result<[OwnedFd; 2], StepFailure> {
    let attributes = NO_SUID | NO_DEVICES;
    Ok([clone_mount(&merged.join("workspace"), attributes)?, clone_mount(&merged.join("home"), attributes)?])
}

fn clone_system(merged: &Path) -> Result<SystemTree, StepFailure> {
    let mut system = SystemTree::default();
    for entry in fs::read_dir(merged).at_with(LaunchStep::MountOverlay, "system")? {
        let entry = entry.at_with(LaunchStep::MountOverlay, "system")?;
        let (name, kind) = (entry.file_name(), entry.file_type().at_with(LaunchStep::MountOverlay, "system")?);
        if name.to_str().is_none_or(|name| GENERATED_DIRS.contains(&name) || name.starts_with('.')) {
            continue;
        }
        if kind.is_dir() {
            system.directories.push((clone_mount(&entry.path(), NO_SUID | NO_DEVICES)?, name.into()));
        } else if kind.is_symlink() {
            let target = fs::read_link(entry.path()).at_with(LaunchStep::MountOverlay, "system")?;
            system.links.push((name.into(), target));
        }
    }
    Ok(system)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{ImageLayer, MAX_LOWER_LAYERS};

    #[test]
    fn options_list_layers_newest_first_and_fit_into_a_page() {
        let mut stack = LayerStack {
            top: "t".into(),
            below: vec!["b".into(), "a".into()],
            image: Some(ImageLayer { name: "debian".into(), layer: "i".into() }),
            volume: None,
            uncounted: 0,
        };
        let options = |stack: &LayerStack, part| overlay_options(stack, part, OverlayXattrs::Trusted);
        let text = options(&stack, LayerPart::System);
        assert!(text.starts_with("lowerdir=b/system:a/system:i/system,upperdir=t/system,workdir=t/system-work,"));
        assert!(options(&stack, LayerPart::Files).starts_with("lowerdir=b/files:a/files,upperdir=t/files,"));
        stack.below = vec!["0123456789abc".into(); MAX_LOWER_LAYERS];
        assert!(options(&stack, LayerPart::System).len() < 4096);
    }
}
