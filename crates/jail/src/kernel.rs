//! System calls without a safe wrapper. Most of the crate's unsafe code is here and in [`crate::init_process`].

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
pub(crate) const NEW_MOUNT_NAMESPACE: u64 = libc::CLONE_NEWNS as u64;

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// The kernel's `struct clone_args`, as of the version with `cgroup`.
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

/// A child process with its pidfd.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    pub pid: i32,
    pub pidfd: OwnedFd,
}

/// Forks a copy of this process that runs `child` and exits with its result.
///
/// The copy has only the calling thread, so a lock that another thread holds would stay locked. The launcher, the only
/// caller, has one thread.
pub(crate) fn spawn(
    flags: u64,
    group: Option<BorrowedFd<'_>>,
    child: impl FnOnce() -> i32,
) -> io::Result<ChildProcess> {
    let mut descriptor: i32 = -1;
    let mut arguments = CloneArguments {
        flags: flags | libc::CLONE_PIDFD as u64,
        pidfd: (&raw mut descriptor).addr() as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArguments::default()
    };
    if let Some(group) = group {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = group.as_raw_fd() as u64;
    }
    // SAFETY: the structure is valid and has the given size. Without CLONE_VM the child has its own memory, and without
    // a given stack it continues on a copy of this one.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<CloneArguments>()) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // A panic must not unwind into the parent's code after this call.
            let code = catch_unwind(AssertUnwindSafe(child)).unwrap_or(70);
            exit_now(code)
        }
        pid => {
            // SAFETY: the kernel created this descriptor, and it has no other owner.
            let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
            Ok(ChildProcess { pid: i32::try_from(pid).unwrap_or(-1), pidfd: descriptor })
        }
    }
}

/// Runs `work` with the given effective uid, as root and with root's access to files.
///
/// The effective uid becomes the owner of user namespaces that `work` creates. The kernel charges what a namespace's
/// processes use (signals, message queues, inotify) to the owner too: with an owner of its own, a sandbox cannot use up what
/// others may have.
pub(crate) fn with_namespace_owner<T>(owner: u32, work: impl FnOnce() -> T) -> io::Result<T> {
    const UNCHANGED: libc::c_long = -1;
    // SAFETY: the call takes plain numbers and changes the ids of this thread only.
    let set = |effective: u32| unsafe { libc::syscall(libc::SYS_setresuid, UNCHANGED, effective, UNCHANGED) };
    if set(owner) != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call takes a plain number; the real uid is 0, so it cannot fail.
    unsafe { libc::syscall(libc::SYS_setfsuid, 0) };
    let result = work();
    if set(0) != 0 {
        // Impossible with a real uid of 0. The launcher must not go on as another user.
        exit_now(70);
    }
    Ok(result)
}

impl ChildProcess {
    /// Kills the process and reaps it.
    pub fn kill_and_reap(self) {
        self.kill();
        let _ = self.reap();
    }

    /// The process may have exited already; it then only needs reaping.
    pub fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, rustix::process::Signal::KILL);
    }

    /// True if the process exits within the time-out.
    pub fn exits_within(&self, patience: Duration) -> bool {
        let timeout = Timespec { tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX), tv_nsec: 0 };
        let mut descriptors = [PollFd::new(&self.pidfd, PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut descriptors, Some(&timeout))).is_ok_and(|ready| ready > 0)
    }

    /// Waits for the exit and reaps the process.
    pub fn reap(&self) -> io::Result<Option<rustix::process::WaitIdStatus>> {
        let id = rustix::process::WaitId::PidFd(self.pidfd.as_fd());
        Ok(rustix::io::retry_on_intr(|| rustix::process::waitid(id.clone(), rustix::process::WaitIdOptions::EXITED))?)
    }
}

/// Switches all threads of this process to another user, without supplementary groups.
pub(crate) fn set_user(user: u32, group: u32) -> io::Result<()> {
    let checked = |failed: i32| if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: the count is 0, so the null pointer is never read.
    checked(unsafe { libc::setgroups(0, std::ptr::null()) })?;
    // SAFETY: the call takes plain numbers.
    checked(unsafe { libc::setresgid(group, group, group) })?;
    // SAFETY: the call takes plain numbers.
    checked(unsafe { libc::setresuid(user, user, user) })
}

/// In a child of [`spawn`], closes a descriptor that only the parent may hold.
pub(crate) fn close_inherited(descriptor: BorrowedFd<'_>) {
    // SAFETY: the owner is a variable of the parent's code, which never runs in this child: `spawn` exits first.
    unsafe { libc::close(descriptor.as_raw_fd()) };
}

/// Exits at once, without the parent's exit handlers.
fn exit_now(code: i32) -> ! {
    // SAFETY: the call does not return and touches no memory.
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

/// Sets attributes on a mount and all mounts below it, and makes their propagation private.
pub(crate) fn set_mount_attributes(mount: BorrowedFd<'_>, set: u64) -> io::Result<()> {
    mount_setattr(mount, &MountAttributes::set(set), libc::AT_RECURSIVE)
}

/// Sets attributes on one mount.
pub(crate) fn set_one_mount_attributes(mount: BorrowedFd<'_>, set: u64) -> io::Result<()> {
    mount_setattr(mount, &MountAttributes::set(set), 0)
}

/// Clears attributes of one mount.
pub(crate) fn clear_one_mount_attributes(mount: BorrowedFd<'_>, clear: u64) -> io::Result<()> {
    mount_setattr(mount, &MountAttributes { clear, ..MountAttributes::set(0) }, 0)
}

/// Makes a detached mount idmapped with the map of a user namespace.
pub(crate) fn set_idmap(mount: BorrowedFd<'_>, namespace: BorrowedFd<'_>, set: u64) -> io::Result<()> {
    let user_namespace = u64::try_from(namespace.as_raw_fd()).unwrap_or(u64::MAX);
    let attributes = MountAttributes { user_namespace, ..MountAttributes::set(set | libc::MOUNT_ATTR_IDMAP) };
    mount_setattr(mount, &attributes, 0)
}

fn mount_setattr(mount: BorrowedFd<'_>, attributes: &MountAttributes, flags: i32) -> io::Result<()> {
    let flags = flags | libc::AT_EMPTY_PATH;
    // SAFETY: the path is a C string; the structure is valid and has the given size.
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

/// Moves `descriptors` to 0, 1, 2 …, kept over `exec`; all others get `CLOEXEC`.
///
/// Overwrites what had these numbers, so the caller goes on to [`exec`] or exits. Returns a copy of `keep` with a high
/// number.
pub(crate) fn install_descriptors(descriptors: &[BorrowedFd<'_>], keep: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let first_free = i32::try_from(descriptors.len()).unwrap_or(i32::MAX).max(64);
    let keep = rustix::io::fcntl_dupfd_cloexec(keep, first_free)?;
    let copies = descriptors
        .iter()
        .map(|descriptor| rustix::io::fcntl_dupfd_cloexec(descriptor, first_free))
        .collect::<Result<Vec<_>, _>>()?;
    for (number, copy) in (0..).zip(&copies) {
        // SAFETY: the previous owner of the number is never used again: this process executes another program or exits.
        if unsafe { libc::dup2(copy.as_raw_fd(), number) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: the call only sets a flag on descriptors.
    let failed = unsafe {
        libc::syscall(libc::SYS_close_range, descriptors.len(), libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    if failed == 0 { Ok(keep) } else { Err(io::Error::last_os_error()) }
}

/// Closes all descriptors from `first` on. Only for the start of a process, before it owns any.
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: no code in this process owns a descriptor from there on yet.
    let failed = unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The array of pointers that exec takes.
fn to_pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Replaces this process by the program that a descriptor is open on. Returns only on failure.
pub(crate) fn exec_descriptor(program: BorrowedFd<'_>, arguments: &[CString], environment: &[CString]) -> io::Error {
    let (arguments, environment) = (to_pointers(arguments), to_pointers(environment));
    // SAFETY: both arrays end with a null pointer and point to C strings that live through the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

/// Replaces this process by a program. Returns only on failure.
pub(crate) fn exec(program: &CStr, arguments: &[CString], environment: &[CString]) -> io::Error {
    let (arguments, environment) = (to_pointers(arguments), to_pointers(environment));
    // SAFETY: both arrays end with a null pointer and point to C strings that live through the call.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// Landlock's ABI version in this kernel; 0 without Landlock.
pub(crate) fn landlock_version() -> i32 {
    const VERSION: libc::c_ulong = 1;
    // SAFETY: with this flag the kernel only returns a number and reads no structure.
    let found =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0_usize, VERSION) };
    i32::try_from(found.max(0)).unwrap_or(0)
}

/// Creates a cgroup namespace, with this process's cgroups as its root.
pub(crate) fn unshare_cgroups() -> io::Result<()> {
    // SAFETY: a new cgroup namespace changes nothing of this process's memory or descriptors.
    let failed = unsafe { libc::unshare(libc::CLONE_NEWCGROUP) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Creates a copy of the current mount namespace.
pub(crate) fn unshare_mounts() -> io::Result<()> {
    // SAFETY: a copy of the mount namespace changes nothing of this process's memory or descriptors.
    let failed = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Namespaces for [`join_namespaces`].
pub(crate) const USER_NAMESPACE: i32 = libc::CLONE_NEWUSER;
pub(crate) const MOUNT_NAMESPACE: i32 = libc::CLONE_NEWNS;
pub(crate) const PID_NAMESPACE: i32 = libc::CLONE_NEWPID;
pub(crate) const ALL_NAMESPACES: i32 = USER_NAMESPACE
    | MOUNT_NAMESPACE
    | PID_NAMESPACE
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Joins namespaces of a process. A pid namespace applies only to future children.
pub(crate) fn join_namespaces(process: BorrowedFd<'_>, namespaces: i32) -> io::Result<()> {
    // SAFETY: namespaces change nothing of this process's memory or descriptors.
    let failed = unsafe { libc::setns(process.as_raw_fd(), namespaces) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Kills all processes that this one can see and may signal, except init and itself.
pub(crate) fn kill_all_visible() {
    // SAFETY: the call only sends signals; finding no process is no error.
    unsafe { libc::kill(-1, libc::SIGKILL) };
}

/// Ends this process with a signal, as the process that it waited for ended.
pub(crate) fn raise_fatal(signal: i32) -> i32 {
    set_disposition(signal, libc::SIG_DFL);
    // SAFETY: the call only sends a signal.
    unsafe { libc::raise(signal) };
    128 + signal
}

/// Returns the pid of an exited child without reaping it.
pub(crate) fn peek_exited_child() -> Option<i32> {
    let mut information = MaybeUninit::<libc::siginfo_t>::zeroed();
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the pointer is valid for writing; the structure may be all zeroes.
    let failed = unsafe { libc::waitid(libc::P_ALL, 0, information.as_mut_ptr(), flags) };
    // SAFETY: all zeroes is a valid value, and the call only fills it.
    let information = unsafe { information.assume_init() };
    // SAFETY: the process id is readable, whether waitid filled the structure or it is zeroed.
    let pid = unsafe { information.si_pid() };
    (failed == 0 && pid > 0).then_some(pid)
}

/// Signals from a terminal, and from a closed pipe.
const IGNORED_SIGNALS: [i32; 4] = [libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE];

/// Ignores exactly these signals, independent of inherited ones; [`reset_signals`] relies on it.
pub(crate) fn ignore_terminal_signals() {
    for signal in 1..=64 {
        set_disposition(signal, if IGNORED_SIGNALS.contains(&signal) { libc::SIG_IGN } else { libc::SIG_DFL });
    }
}

/// Resets inherited ignored signals, except SIGPIPE: Rust's runtime ignores it and resets it in children.
pub(crate) fn restore_default_signals() {
    for signal in (1..=64).filter(|signal| *signal != libc::SIGPIPE) {
        set_disposition(signal, libc::SIG_DFL);
    }
}

/// Sets a signal's disposition by system call: the C library refuses to touch two signals that it reserves, even if
/// they are inherited as ignored.
fn set_disposition(signal: i32, disposition: libc::sighandler_t) {
    // The kernel's `struct sigaction`: handler, flags, restorer, mask.
    let action = [disposition as u64, 0, 0, 0];
    // SAFETY: the array has the size of the kernel's structure, installs no handler and skips the old action; invalid
    // signal numbers only fail.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), std::ptr::null_mut::<u64>(), size_of::<u64>())
    };
}

/// Resets every signal for a new program: neither ignored nor blocked.
pub(crate) fn reset_signals() -> io::Result<()> {
    for signal in IGNORED_SIGNALS {
        set_disposition(signal, libc::SIG_DFL);
    }
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the pointer is valid for writing, and the call fills the set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: the set is initialised; the null pointer skips the old mask.
    let failed = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut()) };
    if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
}

/// Brings up the loopback of this process's network namespace.
pub(crate) fn bring_up_loopback() -> io::Result<()> {
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
    // SAFETY: the request names the interface and its flags, and lives through the call.
    let failed = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as libc::Ioctl, &raw const request) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
