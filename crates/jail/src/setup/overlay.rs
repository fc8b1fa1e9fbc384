//! Stacks layers into what a sandbox shows: one overlay for its files, one for its system if it has an imported root.
//!
//! All layers lie in one directory, the store. It is hung up for a moment so that the kernel finds them by short names,
//! and so is the overlay; what is kept are trees of the overlay that hang nowhere yet.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use super::trees::{hang, tree};
use crate::error::{AtStep, Failure, Step};
use crate::kernel::{NO_DEVICES, NO_SUID};
use crate::layers::{Part, Stack};

/// What of a root is made inside for each sandbox, whatever an image has there.
const OWN: [&str; 8] = ["proc", "dev", "sys", "tmp", "run", "workspace", "home", "lost+found"];

/// Where store and overlay hang for a moment; absolute paths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scratch {
    pub store: &'static str,
    pub merged: &'static str,
}

/// Which overlays are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub files: bool,
    pub system: bool,
}

#[derive(Default)]
pub(crate) struct Stacked {
    /// Workspace and home.
    pub files: Option<[OwnedFd; 2]>,
    pub system: Option<System>,
}

/// An imported root, in pieces that can be exchanged under a process that lives in it.
#[derive(Default)]
pub(crate) struct System {
    pub directories: Vec<(OwnedFd, PathBuf)>,
    pub links: Vec<(PathBuf, PathBuf)>,
}

/// Stacks what is wanted. Leaves nothing hung up, also when it fails.
pub(crate) fn stack(store: &OwnedFd, stack: &Stack, wanted: Wanted, scratch: Scratch) -> Result<Stacked, Failure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let before = rustix::fs::open(".", flags, Mode::empty()).at(Step::Layers)?;
    hang(store, Path::new(scratch.store), Step::Layers)?;
    let outcome = rustix::process::chdir(scratch.store).at(Step::Layers).and_then(|()| {
        let files = if wanted.files { Some(merge(stack, Part::Files, scratch.merged, files)?) } else { None };
        let system = if wanted.system { Some(merge(stack, Part::System, scratch.merged, system)?) } else { None };
        Ok(Stacked { files, system })
    });
    rustix::process::fchdir(&before).at(Step::Layers)?;
    rustix::mount::unmount(scratch.store, UnmountFlags::DETACH).at(Step::Layers)?;
    outcome
}

fn merge<T>(stack: &Stack, part: Part, merged: &str, take: fn(&Path) -> Result<T, Failure>) -> Result<T, Failure> {
    // Of a store that bounds: it holds all by itself.
    if stack.volume.is_some() {
        return take(&Path::new(&stack.top).join(part.directory()));
    }
    reuse(&Path::new(&stack.top).join(part.work())).at_with(Step::Layers, "work directory")?;
    let options = CString::new(options(stack, part)).map_err(io::Error::from).at(Step::Layers)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount(c"overlay", merged, c"overlay", flags, options.as_c_str())
        .at_with(Step::Layers, part.directory())?;
    let taken = take(Path::new(merged));
    rustix::mount::unmount(merged, UnmountFlags::DETACH).at(Step::Layers)?;
    taken
}

/// `volatile`: nothing is flushed to the disk for a sandbox's sake, as without an overlay.
fn options(stack: &Stack, part: Part) -> String {
    let name = part.directory();
    let image = stack.image.as_ref().filter(|_| part == Part::System).map(|base| &base.layer);
    let below: Vec<String> = stack.below.iter().chain(image).map(|layer| format!("{layer}/{name}")).collect();
    let (top, work) = (&stack.top, part.work());
    format!("lowerdir={},upperdir={top}/{name},workdir={top}/{work},userxattr,index=off,volatile", below.join(":"))
}

/// The kernel refuses what was mounted `volatile` before, as it may not have come to the disk whole when the machine
/// went down. That is as safe as all else here, so the mark goes.
fn reuse(work: &Path) -> rustix::io::Result<()> {
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

fn files(merged: &Path) -> Result<[OwnedFd; 2], Failure> {
    let attributes = NO_SUID | NO_DEVICES;
    Ok([tree(&merged.join("workspace"), attributes)?, tree(&merged.join("home"), attributes)?])
}

fn system(merged: &Path) -> Result<System, Failure> {
    let mut system = System::default();
    for entry in fs::read_dir(merged).at_with(Step::Layers, "system")? {
        let entry = entry.at_with(Step::Layers, "system")?;
        let (name, kind) = (entry.file_name(), entry.file_type().at_with(Step::Layers, "system")?);
        if name.to_str().is_none_or(|name| OWN.contains(&name) || name.starts_with('.')) {
            continue;
        }
        if kind.is_dir() {
            system.directories.push((tree(&entry.path(), NO_SUID | NO_DEVICES)?, name.into()));
        } else if kind.is_symlink() {
            let target = fs::read_link(entry.path()).at_with(Step::Layers, "system")?;
            system.links.push((name.into(), target));
        }
    }
    Ok(system)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{Base, MOST};

    #[test]
    fn options_name_the_layers_newest_first_and_fit_into_a_page() {
        let mut stack = Stack {
            top: "t".into(),
            below: vec!["b".into(), "a".into()],
            image: Some(Base { name: "debian".into(), layer: "i".into() }),
            volume: None,
        };
        let text = options(&stack, Part::System);
        assert!(text.starts_with("lowerdir=b/system:a/system:i/system,upperdir=t/system,workdir=t/system-work,"));
        assert!(options(&stack, Part::Files).starts_with("lowerdir=b/files:a/files,upperdir=t/files,"));
        stack.below = vec!["0123456789abc".into(); MOST];
        assert!(options(&stack, Part::System).len() < 4096);
    }
}
