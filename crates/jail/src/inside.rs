//! What the first process of a sandbox needs from the kernel and can't have without `unsafe`.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::FdFlags;

use crate::setup::{Landlock, Reach};

/// Where programs are looked for inside, before the tool directories that the launcher adds.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// Takes over a descriptor that this process inherited, so that what it starts doesn't inherit it again.
///
/// A descriptor without `CLOEXEC` came over `exec`: everything that Rust opens has the flag. So one that has it is
/// refused: it belongs to somebody else in this process, or was taken already.
pub fn take(descriptor: i32) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the number isn't -1, and F_GETFD on a closed number only fails.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let flags = rustix::io::fcntl_getfd(borrowed)?;
    if flags.contains(FdFlags::CLOEXEC) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("descriptor {descriptor} was not inherited, or is taken already"),
        ));
    }
    rustix::io::fcntl_setfd(borrowed, flags | FdFlags::CLOEXEC)?;
    // SAFETY: it is open and, as it had no CLOEXEC until now, nobody in this process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// What was ignored where this process was started, as a shell does for what it puts into the background, is not ignored
/// by what it starts: a key pressed in a terminal would do nothing there. Call it before any handler is installed.
pub fn heed_signals() {
    crate::kernel::heed_signals();
}

/// Makes this process unreadable to others of its uid and lets nothing it executes gain capabilities.
pub fn prepare_init() -> io::Result<()> {
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    let mut sets = rustix::thread::capabilities(None)?;
    sets.inheritable = rustix::thread::CapabilitySet::empty();
    rustix::thread::set_capabilities(None, sets)?;
    Ok(())
}

/// Lets this process, and all it will start, write only to what is the sandbox's own: a second lock beside the mounts,
/// where the kernel has it. Where the system can be written to, as in an imported root, all of it is the sandbox's own.
/// Call it before any thread starts.
pub fn lock_files() -> io::Result<()> {
    let system = rustix::fs::statvfs("/usr")?;
    if !system.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        return Ok(());
    }
    Landlock::find().close(Reach::All).map_err(|failure| io::Error::from_raw_os_error(failure.source.0))
}

/// SIGTERM, SIGINT and SIGCHLD as a descriptor that can be polled.
#[derive(Debug)]
pub struct Signals {
    descriptor: OwnedFd,
}

/// One signal that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    pub signal: i32,
    /// The sender's process id; 0 is somebody outside of this process's pid namespace.
    pub sender: u32,
}

impl Signals {
    /// Blocks the three signals in the calling thread, and so in those that it starts: call it before any other starts.
    /// What this process starts inherits the block, so give each command to [`child`].
    pub fn new() -> io::Result<Self> {
        let mut set = empty_set();
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGCHLD] {
            // SAFETY: the set is initialised and lives through the call.
            unsafe { libc::sigaddset(&raw mut set, signal) };
        }
        // SAFETY: the set is initialised; the old mask isn't asked for.
        let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        // SAFETY: the set is initialised; -1 asks for a new descriptor.
        let descriptor = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just made this descriptor for us.
        Ok(Self { descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) } })
    }

    /// The next signal, or `None` when there is none now. Several SIGCHLD may come as one.
    pub fn read(&self) -> io::Result<Option<Received>> {
        let mut information = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        loop {
            // SAFETY: the buffer is writable and of the given size.
            let read = unsafe { libc::read(self.descriptor.as_raw_fd(), information.as_mut_ptr().cast(), size) };
            if read == size.cast_signed() {
                break;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN) => return Ok(None),
                _ => return Err(error),
            }
        }
        // SAFETY: the kernel filled the whole structure.
        let information = unsafe { information.assume_init() };
        Ok(Some(Received { signal: information.ssi_signo.cast_signed(), sender: information.ssi_pid }))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Which session a started command belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Session {
    /// The starter's.
    Inherited,
    /// One of its own, without a terminal; its process group then has its process id.
    Own,
    /// One of its own, with its standard input as the controlling terminal.
    Terminal,
}

/// Lets a command start with all signals unblocked, which it would otherwise inherit from a process that uses
/// [`Signals`], and in the session wanted.
pub fn child(command: &mut Command, session: Session) -> &mut Command {
    let start = move || {
        let set = empty_set();
        // SAFETY: the set is initialised; the old mask isn't asked for.
        let failed = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        match session {
            Session::Inherited => {}
            Session::Own => {
                rustix::process::setsid()?;
            }
            Session::Terminal => {
                rustix::process::setsid()?;
                // SAFETY: standard input is in place before this closure runs and open until exec.
                let terminal = unsafe { BorrowedFd::borrow_raw(0) };
                rustix::process::ioctl_tiocsctty(terminal)?;
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec it makes system calls only; it neither allocates nor locks.
    unsafe { command.pre_exec(start) }
}

fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the pointer is valid for writing, and the call fills the set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: sigemptyset initialised it; it can't fail with a valid pointer.
    unsafe { set.assume_init() }
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;

    #[test]
    fn takes_an_inherited_descriptor_once() {
        let (read, _write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        assert!(take(read.as_raw_fd()).is_err());
        // SAFETY: the number is at once given to `take`, which owns it from then on.
        let inherited = unsafe { libc::fcntl(read.into_raw_fd(), libc::F_DUPFD, 3) };
        let taken = take(inherited).unwrap();
        assert_eq!(taken.as_raw_fd(), inherited);
        assert!(take(inherited).is_err());
        assert!(take(-1).is_err());
        assert!(take(1_000_000).is_err());
    }

    #[test]
    fn reads_signals_with_their_sender_and_starts_children_unblocked() {
        std::thread::spawn(|| {
            let signals = Signals::new().unwrap();
            assert_eq!(signals.read().unwrap(), None);
            // SAFETY: it only returns a handle.
            let this = unsafe { libc::pthread_self() };
            // SAFETY: the thread lives, and SIGTERM is blocked in it.
            unsafe { libc::pthread_kill(this, libc::SIGTERM) };
            let received = signals.read().unwrap().unwrap();
            assert_eq!(received, Received { signal: libc::SIGTERM, sender: std::process::id() });
            assert_eq!(signals.read().unwrap(), None);

            let mut command = Command::new("/bin/sh");
            command.args(["-c", "grep SigBlk /proc/self/status"]);
            let output = child(&mut command, Session::Own).output().unwrap();
            assert!(String::from_utf8_lossy(&output.stdout).contains("SigBlk:\t0000000000000000"));
        })
        .join()
        .unwrap();
    }
}
