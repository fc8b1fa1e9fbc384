//! System calls without a safe wrapper elsewhere. All that is unsafe in this crate is here and in [`crate::inside`].

#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

pub(crate) const NEW_NAMESPACES: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS) as u64;
pub(crate) const NEW_USER_NAMESPACE: u64 = libc::CLONE_NEWUSER as u64;

const INTO_GROUP: u64 = 0x2_0000_0000;

/// The kernel's `struct clone_args`, as of the version that knows cgroups.
#[repr(C, align(8))]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// A process that this one started.
#[derive(Debug)]
pub(crate) struct Process {
    pub pid: i32,
    pub descriptor: OwnedFd,
}

/// Starts a copy of this process that runs `child` and exits with its value.
///
/// The copy has only the calling thread, so a lock that another one holds stays locked in it for ever: the launcher,
/// which is the one that calls this, has no other thread.
pub(crate) fn spawn(flags: u64, group: Option<BorrowedFd<'_>>, child: impl FnOnce() -> i32) -> io::Result<Process> {
    let mut descriptor: i32 = -1;
    let mut arguments = CloneArguments {
        flags: flags | libc::CLONE_PIDFD as u64,
        pidfd: (&raw mut descriptor).addr() as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArguments::default()
    };
    if let Some(group) = group {
        arguments.flags |= INTO_GROUP;
        arguments.cgroup = group.as_raw_fd() as u64;
    }
    // SAFETY: the structure is valid and of the given size; without CLONE_VM the child has memory of its own, and
    // without a stack given it goes on upon a copy of this one.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<CloneArguments>()) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // A panic must not unwind into what the parent does after this call.
            let code = catch_unwind(AssertUnwindSafe(child)).unwrap_or(70);
            exit(code)
        }
        pid => {
            // SAFETY: the kernel made this descriptor for us.
            let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
            Ok(Process { pid: i32::try_from(pid).unwrap_or(-1), descriptor })
        }
    }
}

impl Process {
    /// Ends the process and waits until it is gone.
    pub fn discard(self) {
        self.kill();
        let _ = self.wait();
    }

    /// It may be gone already, and then only has to be waited for.
    pub fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.descriptor, rustix::process::Signal::KILL);
    }

    /// Whether it has ended, or does so in time.
    pub fn ends_within(&self, patience: Duration) -> bool {
        let timeout = Timespec { tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX), tv_nsec: 0 };
        let mut descriptors = [PollFd::new(&self.descriptor, PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut descriptors, Some(&timeout))).is_ok_and(|ready| ready > 0)
    }

    /// Waits for its end and takes its exit status.
    pub fn wait(&self) -> io::Result<Option<rustix::process::WaitIdStatus>> {
        let id = rustix::process::WaitId::PidFd(self.descriptor.as_fd());
        Ok(rustix::io::retry_on_intr(|| rustix::process::waitid(id.clone(), rustix::process::WaitIdOptions::EXITED))?)
    }
}

/// Makes all threads of this process another user's, without further groups.
pub(crate) fn become_user(user: u32, group: u32) -> io::Result<()> {
    let checked = |failed: i32| if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: no group is read, as there are none; the others take plain numbers.
    checked(unsafe { libc::setgroups(0, std::ptr::null()) })?;
    // SAFETY: it takes plain numbers.
    checked(unsafe { libc::setresgid(group, group, group) })?;
    // SAFETY: it takes plain numbers.
    checked(unsafe { libc::setresuid(user, user, user) })
}

/// Closes what a process made by [`spawn`] has of its parent: the end of a pipe that only the parent shall hold.
pub(crate) fn close_copy(descriptor: BorrowedFd<'_>) {
    // SAFETY: its owner is a variable of the parent's code, which never runs in this copy: `spawn` ends it.
    unsafe { libc::close(descriptor.as_raw_fd()) };
}

/// Ends the process at once, without what the parent registered for its own end.
fn exit(code: i32) -> ! {
    // SAFETY: it does not return and touches no memory.
    unsafe { libc::_exit(code) }
}

#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

pub(crate) const READ_ONLY: u64 = libc::MOUNT_ATTR_RDONLY;
pub(crate) const NO_SUID: u64 = libc::MOUNT_ATTR_NOSUID;
pub(crate) const NO_DEVICES: u64 = libc::MOUNT_ATTR_NODEV;
pub(crate) const NO_EXECUTION: u64 = libc::MOUNT_ATTR_NOEXEC;

impl MountAttributes {
    fn set(set: u64) -> Self {
        Self { set, clear: 0, propagation: libc::MS_PRIVATE, user_namespace: 0 }
    }
}

/// Sets attributes on a mount and all below it, and cuts it off from mounts made elsewhere.
pub(crate) fn set_mount_attributes(mount: BorrowedFd<'_>, set: u64) -> io::Result<()> {
    mount_setattr(mount, &MountAttributes::set(set), libc::AT_RECURSIVE)
}

/// The same for one mount alone.
pub(crate) fn set_attributes_of_one(mount: BorrowedFd<'_>, set: u64) -> io::Result<()> {
    mount_setattr(mount, &MountAttributes::set(set), 0)
}

/// Takes attributes from one mount alone.
pub(crate) fn clear_attributes_of_one(mount: BorrowedFd<'_>, clear: u64) -> io::Result<()> {
    mount_setattr(mount, &MountAttributes { clear, ..MountAttributes::set(0) }, 0)
}

/// Lets a mount that hangs nowhere yet show its files with the ids that `namespace` maps theirs to.
pub(crate) fn map_ids(mount: BorrowedFd<'_>, namespace: BorrowedFd<'_>, set: u64) -> io::Result<()> {
    let user_namespace = u64::try_from(namespace.as_raw_fd()).unwrap_or(u64::MAX);
    let attributes = MountAttributes { user_namespace, ..MountAttributes::set(set | libc::MOUNT_ATTR_IDMAP) };
    mount_setattr(mount, &attributes, 0)
}

fn mount_setattr(mount: BorrowedFd<'_>, attributes: &MountAttributes, flags: i32) -> io::Result<()> {
    let flags = flags | libc::AT_EMPTY_PATH;
    // SAFETY: the path is a C string, the structure valid and of the given size.
    let failed = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<MountAttributes>(),
        )
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Puts `descriptors` at 0, 1, 2 and so on, open over `exec`; everything else closes on `exec`.
///
/// Whatever had these numbers is gone afterwards, so the caller goes on to [`execute`] or ends. Returns `keep` under a
/// number that is out of the way.
pub(crate) fn arrange(descriptors: &[BorrowedFd<'_>], keep: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let aside = i32::try_from(descriptors.len()).unwrap_or(i32::MAX).max(64);
    let keep = rustix::io::fcntl_dupfd_cloexec(keep, aside)?;
    let copies = descriptors
        .iter()
        .map(|descriptor| rustix::io::fcntl_dupfd_cloexec(descriptor, aside))
        .collect::<Result<Vec<_>, _>>()?;
    for (number, copy) in (0..).zip(&copies) {
        // SAFETY: whoever owned the number is never used again: this process executes another program or ends.
        if unsafe { libc::dup2(copy.as_raw_fd(), number) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: it only sets a flag on descriptors.
    let failed = unsafe {
        libc::syscall(libc::SYS_close_range, descriptors.len(), libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    if failed == 0 { Ok(keep) } else { Err(io::Error::last_os_error()) }
}

/// Closes everything from `first` on. Only for the very start of a process, before it owns descriptors.
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: nothing in this process owns a descriptor from there on yet.
    let failed = unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Replaces this process by a program. Returns only when that failed.
pub(crate) fn execute(program: &CStr, arguments: &[CString], environment: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: both arrays end with a null pointer and point to C strings that live through the call.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// The version of Landlock that this kernel has switched on; 0 is none.
pub(crate) fn landlock_version() -> i32 {
    const VERSION: libc::c_ulong = 1;
    // SAFETY: with this flag the kernel only answers; there is no structure to read.
    let found =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0_usize, VERSION) };
    i32::try_from(found.max(0)).unwrap_or(0)
}

/// Makes this process's cgroups the root of what it sees of them.
pub(crate) fn hide_groups_above() -> io::Result<()> {
    // SAFETY: a new cgroup namespace changes nothing of this process's memory or descriptors.
    let failed = unsafe { libc::unshare(libc::CLONE_NEWCGROUP) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A mount namespace of its own, as it is now.
pub(crate) fn copy_mounts() -> io::Result<()> {
    // SAFETY: a copy of the mount namespace changes nothing of this process's memory or descriptors.
    let failed = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Namespaces of another process that can be joined.
pub(crate) const USER: i32 = libc::CLONE_NEWUSER;
pub(crate) const MOUNTS: i32 = libc::CLONE_NEWNS;
pub(crate) const PROCESSES: i32 = libc::CLONE_NEWPID;
pub(crate) const ALL: i32 =
    USER | MOUNTS | PROCESSES | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWCGROUP;

/// Joins namespaces of a process; its pid namespace is that of this process's children only.
pub(crate) fn join(process: BorrowedFd<'_>, namespaces: i32) -> io::Result<()> {
    // SAFETY: namespaces change nothing of this process's memory or descriptors.
    let failed = unsafe { libc::setns(process.as_raw_fd(), namespaces) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Ends all processes that this one can see and may end, but the first and itself.
pub(crate) fn kill_all() {
    // SAFETY: it only sends signals; that there is nobody left is no failure.
    unsafe { libc::kill(-1, libc::SIGKILL) };
}

/// Ends this process by a signal, as one that it waited for has ended.
pub(crate) fn end_by(signal: i32) -> i32 {
    dispose(signal, libc::SIG_DFL);
    // SAFETY: it only sends a signal.
    unsafe { libc::raise(signal) };
    128 + signal
}

/// A child that has ended and that nobody has waited for; it stays so.
pub(crate) fn ended_child() -> Option<i32> {
    let mut information = MaybeUninit::<libc::siginfo_t>::zeroed();
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the pointer is valid for writing; the structure may be all zeroes.
    let failed = unsafe { libc::waitid(libc::P_ALL, 0, information.as_mut_ptr(), flags) };
    // SAFETY: zeroed is a valid value of it, and the call only fills it.
    let information = unsafe { information.assume_init() };
    // SAFETY: of a structure that waitid filled, or of zeroes, the process id can be read.
    let pid = unsafe { information.si_pid() };
    (failed == 0 && pid > 0).then_some(pid)
}

/// What a terminal sends to everybody in front of it, and what a closed pipe does.
const IGNORED: [i32; 4] = [libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE];

/// Ignores these and nothing else, whatever was inherited: [`reset_signals`] counts on it.
pub(crate) fn ignore_terminal_signals() {
    for signal in 1..=64 {
        dispose(signal, if IGNORED.contains(&signal) { libc::SIG_IGN } else { libc::SIG_DFL });
    }
}

/// Ignores nothing that was ignored where this process was started, but what the language's runtime ignores and gives
/// back to what it starts.
pub(crate) fn heed_signals() {
    for signal in (1..=64).filter(|signal| *signal != libc::SIGPIPE) {
        dispose(signal, libc::SIG_DFL);
    }
}

/// Ignores a signal, or not. The C library keeps two signals for itself and refuses to touch them, also when they are
/// ignored by inheritance: so the kernel is asked.
fn dispose(signal: i32, disposition: libc::sighandler_t) {
    // The kernel's own structure: what to do, flags, where to return to, mask; all but the first are zero.
    let action = [disposition as u64, 0, 0, 0];
    // SAFETY: the structure is as long as the kernel's, no handler is installed, the old action isn't asked for;
    // numbers that can't be set only fail.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), std::ptr::null_mut::<u64>(), size_of::<u64>())
    };
}

/// Every signal as it is for a fresh program: not ignored, not blocked.
pub(crate) fn reset_signals() -> io::Result<()> {
    for signal in IGNORED {
        dispose(signal, libc::SIG_DFL);
    }
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the pointer is valid for writing, and the call fills the set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: the set was just filled; the old mask isn't asked for.
    let failed = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut()) };
    if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
}

/// Brings up the loopback of this process's network namespace.
pub(crate) fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut request = unsafe { MaybeUninit::<libc::ifreq>::zeroed().assume_init() };
    for (to, from) in request.ifr_name.iter_mut().zip(*b"lo") {
        *to = from.cast_signed() as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request names the interface and the flags to set, and lives through the call.
    let failed = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as libc::Ioctl, &raw const request) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
