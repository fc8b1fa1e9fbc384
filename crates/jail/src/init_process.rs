//! System calls for a sandbox's init process that need `unsafe`.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::FdFlags;

use crate::setup::{Landlock, SignalScope};

/// `PATH` inside a sandbox, before the tool directories that the launcher adds.
pub const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// Takes ownership of an inherited descriptor and sets `CLOEXEC`, so that children do not inherit it.
///
/// Everything that Rust opens has `CLOEXEC`, so a descriptor without it was inherited. One that has the flag is
/// refused: another owner in this process has it.
pub fn take_inherited_fd(descriptor: i32) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the number is not -1, and F_GETFD on a closed number only fails.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let flags = rustix::io::fcntl_getfd(borrowed)?;
    if flags.contains(FdFlags::CLOEXEC) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("descriptor {descriptor} was not inherited, or has an owner already"),
        ));
    }
    rustix::io::fcntl_setfd(borrowed, flags | FdFlags::CLOEXEC)?;
    // SAFETY: the descriptor is open, and as it had no CLOEXEC until now, it has no other owner in this process.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Resets signals that were ignored when this process started, as a shell does for background jobs.
///
/// Otherwise its children would ignore Ctrl-C in a terminal. Call it before installing any handler.
pub fn stop_ignoring_signals() {
    crate::kernel::restore_default_signals();
}

/// Makes this process undumpable, so that others of its uid cannot read it, and clears the inheritable capabilities.
pub fn harden_process() -> io::Result<()> {
    // Before Linux 6.4, rustix reads `/proc/self/auxv`, and panics if it cannot. An undumpable process without
    // capabilities cannot, so it reads the values now and keeps them.
    let _page_size = rustix::param::page_size();
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    let mut sets = rustix::thread::capabilities(None)?;
    sets.inheritable = rustix::thread::CapabilitySet::empty();
    rustix::thread::set_capabilities(None, sets)?;
    Ok(())
}

/// Restricts writes of this process and its children to the sandbox's own directories with Landlock, in addition to the
/// mounts.
///
/// Does nothing in an imported root, which belongs to the sandbox as a whole. Call it before any thread starts.
pub fn restrict_writes() -> io::Result<()> {
    let system = rustix::fs::statvfs("/usr")?;
    if !system.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        return Ok(());
    }
    Landlock::detect().restrict_self(SignalScope::All).map_err(|failure| io::Error::from_raw_os_error(failure.source.0))
}

/// A signalfd for SIGTERM, SIGINT and SIGCHLD.
#[derive(Debug)]
pub struct SignalFd {
    descriptor: OwnedFd,
}

/// One received signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedSignal {
    pub signal: i32,
    /// The sender's pid; 0 for a sender outside of this pid namespace.
    pub sender: u32,
}

impl SignalFd {
    /// Blocks the three signals in the calling thread and the threads it starts; call it before any other starts.
    ///
    /// Children inherit the block, so pass each command to [`prepare_child`].
    pub fn new() -> io::Result<Self> {
        let mut set = empty_signal_set();
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGCHLD] {
            // SAFETY: the set is initialised and lives through the call.
            unsafe { libc::sigaddset(&raw mut set, signal) };
        }
        // SAFETY: the set is initialised; the null pointer skips the old mask.
        let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        // SAFETY: the set is initialised; -1 requests a new descriptor.
        let descriptor = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just created this descriptor, and it has no other owner.
        Ok(Self { descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) } })
    }

    /// Reads the next signal, or `None` without a pending one. Several SIGCHLD may arrive as one.
    pub fn read(&self) -> io::Result<Option<ReceivedSignal>> {
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
        Ok(Some(ReceivedSignal { signal: information.ssi_signo.cast_signed(), sender: information.ssi_pid }))
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The session of a started command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandSession {
    /// The parent's session.
    Inherit,
    /// A new session without a terminal; the process group id is the pid.
    Own,
    /// A new session with stdin as the controlling terminal.
    Terminal,
}

/// Makes a command start with all signals unblocked, which a user of [`SignalFd`] blocks, and in the given session.
pub fn prepare_child(command: &mut Command, session: CommandSession) -> &mut Command {
    let start = move || {
        let set = empty_signal_set();
        // SAFETY: the set is initialised; the null pointer skips the old mask.
        let failed = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        match session {
            CommandSession::Inherit => {}
            CommandSession::Own => {
                rustix::process::setsid()?;
            }
            CommandSession::Terminal => {
                rustix::process::setsid()?;
                // SAFETY: standard input is in place before this closure runs and open until exec.
                let terminal = unsafe { BorrowedFd::borrow_raw(0) };
                rustix::process::ioctl_tiocsctty(terminal)?;
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure only makes system calls; it neither allocates nor locks.
    unsafe { command.pre_exec(start) }
}

fn empty_signal_set() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the pointer is valid for writing, and the call fills the set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: sigemptyset initialised it; it cannot fail with a valid pointer.
    unsafe { set.assume_init() }
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;

    #[test]
    fn takes_an_inherited_descriptor_once() {
        let (read, _write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        assert!(take_inherited_fd(read.as_raw_fd()).is_err());
        // SAFETY: the number goes straight to `take_inherited_fd`, which owns it from then on.
        let inherited = unsafe { libc::fcntl(read.into_raw_fd(), libc::F_DUPFD, 3) };
        let descriptor = take_inherited_fd(inherited).unwrap();
        assert_eq!(descriptor.as_raw_fd(), inherited);
        assert!(take_inherited_fd(inherited).is_err());
        assert!(take_inherited_fd(-1).is_err());
        assert!(take_inherited_fd(1_000_000).is_err());
    }

    #[test]
    fn reads_signals_with_their_sender_and_starts_children_unblocked() {
        std::thread::spawn(|| {
            let signals = SignalFd::new().unwrap();
            assert_eq!(signals.read().unwrap(), None);
            // SAFETY: the call only returns a handle.
            let this = unsafe { libc::pthread_self() };
            // SAFETY: the thread lives, and SIGTERM is blocked in it.
            unsafe { libc::pthread_kill(this, libc::SIGTERM) };
            let received = signals.read().unwrap().unwrap();
            assert_eq!(received, ReceivedSignal { signal: libc::SIGTERM, sender: std::process::id() });
            assert_eq!(signals.read().unwrap(), None);

            let mut command = Command::new("/bin/sh");
            command.args(["-c", "grep SigBlk /proc/self/status"]);
            let output = prepare_child(&mut command, CommandSession::Own).output().unwrap();
            assert!(String::from_utf8_lossy(&output.stdout).contains("SigBlk:\t0000000000000000"));
        })
        .join()
        .unwrap();
    }
}
