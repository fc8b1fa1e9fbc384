//! Forbidden system calls, privilege escalation and devices.

use super::attempt_table::{EscapeAttempt, SuccessProof, new_attempt};

const ERRORS_NOT_PERMITTED: &[&str] = &["EPERM"];
/// `EINVAL` where the sandbox maps a single id: uid 0 does not exist there.
const ERRORS_NOT_ROOT: &[&str] = &["EPERM", "EINVAL"];
/// Errors of a kernel that received the call: invalid arguments, or a kernel built without the feature.
const KERNEL_ANSWERS: SuccessProof =
    SuccessProof::KernelAnswers(&["EINVAL", "EFAULT", "EBADF", "ENOENT", "ENOEXEC", "ENOKEY", "ENOTTY", "ENOSYS"]);

const NAMESPACES: [(&str, u32); 8] = [
    ("user", 0x1000_0000),
    ("mount", 0x2_0000),
    ("pid", 0x2000_0000),
    ("network", 0x4000_0000),
    ("ipc", 0x0800_0000),
    ("uts", 0x0400_0000),
    ("cgroup", 0x0200_0000),
    ("time", 0x80),
];

pub fn mount_attempts() -> Vec<EscapeAttempt> {
    let read_only_usr = "mount --bind /usr /usr; mount -o remount,bind,ro /usr";
    vec![
        new_attempt(
            "mount a tmpfs",
            "calls mount-tmpfs /tmp",
            ERRORS_NOT_PERMITTED,
            SuccessProof::InNamespaces("-m", ""),
        ),
        new_attempt(
            "bind-mount the root",
            "calls mount-bind / /tmp",
            ERRORS_NOT_PERMITTED,
            SuccessProof::InNamespaces("-m", ""),
        ),
        new_attempt(
            "mount another /proc",
            "calls mount-proc /tmp",
            ERRORS_NOT_PERMITTED,
            SuccessProof::InNamespaces("-m", ""),
        ),
        new_attempt(
            "remount /usr writable",
            "calls remount /usr",
            ERRORS_NOT_PERMITTED,
            SuccessProof::InNamespaces("-m", read_only_usr),
        ),
        new_attempt("unmount /proc", "calls umount /proc", ERRORS_NOT_PERMITTED, SuccessProof::InNamespaces("-m", "")),
        new_attempt(
            "pivot_root",
            "calls pivot-root",
            ERRORS_NOT_PERMITTED,
            SuccessProof::InNamespaces("-m", "mkdir r; mount -t tmpfs none r; cd r"),
        ),
        new_attempt("chroot", "calls chroot", ERRORS_NOT_PERMITTED, SuccessProof::Host),
        new_attempt("fsopen", "calls fsopen", ERRORS_NOT_PERMITTED, SuccessProof::InNamespaces("-m", "")),
        new_attempt(
            "open_tree of the root",
            "calls open-tree /",
            ERRORS_NOT_PERMITTED,
            SuccessProof::InNamespaces("-m", ""),
        ),
        new_attempt(
            "mount_setattr",
            "calls mount-setattr /usr",
            ERRORS_NOT_PERMITTED,
            SuccessProof::InNamespaces("-m", read_only_usr),
        ),
    ]
}

pub fn namespace_attempts() -> Vec<EscapeAttempt> {
    let mut rows = Vec::new();
    for (name, flag) in NAMESPACES {
        let unsupported: &[&str] = &["EINVAL"];
        rows.push(
            new_attempt(
                format!("unshare: {name}"),
                format!("calls unshare {flag}"),
                ERRORS_NOT_PERMITTED,
                SuccessProof::Host,
            )
            .with_unsupported_errors(unsupported),
        );
    }
    // clone(2) has no flag for the time namespace.
    for (name, flag) in &NAMESPACES[..7] {
        rows.push(new_attempt(
            format!("clone: {name}"),
            format!("calls clone {flag}"),
            ERRORS_NOT_PERMITTED,
            SuccessProof::Host,
        ));
    }
    let user = NAMESPACES[0].1;
    rows.push(new_attempt("clone3: user", format!("calls clone3 {user}"), &["ENOSYS"], SuccessProof::Host));
    rows.push(new_attempt(
        "setns: own network",
        "calls setns /proc/self/ns/net",
        ERRORS_NOT_PERMITTED,
        SuccessProof::Host,
    ));
    for namespace in ["mnt", "pid", "user", "net"] {
        let script = format!("calls setns /proc/1/ns/{namespace}");
        let proof =
            new_attempt(format!("setns: {namespace} of pid 1"), script, &["EACCES", "EPERM"], SuccessProof::Host);
        rows.push(proof.with_proof_script("calls setns /proc/self/ns/net"));
    }
    rows.push(new_attempt("unshare(1)", "try unshare -Ur true", &["Operation not permitted"], SuccessProof::Host));
    rows
}

pub fn process_attempts() -> Vec<EscapeAttempt> {
    vec![
        new_attempt("ptrace of a child", "calls ptrace", ERRORS_NOT_PERMITTED, SuccessProof::Host),
        new_attempt("PTRACE_TRACEME", "calls ptrace-me", ERRORS_NOT_PERMITTED, SuccessProof::Host),
        new_attempt("process_vm_readv of a child", "calls vm-read", ERRORS_NOT_PERMITTED, SuccessProof::Host),
        new_attempt("process_vm_writev of a child", "calls vm-write", ERRORS_NOT_PERMITTED, SuccessProof::Host),
        new_attempt("pidfd_getfd of a child", "calls pidfd-getfd", ERRORS_NOT_PERMITTED, SuccessProof::Host),
        new_attempt("kcmp with a child", "calls kcmp", ERRORS_NOT_PERMITTED, SuccessProof::Host)
            .with_unsupported_errors(&["ENOSYS"]),
    ]
}

pub fn kernel_attempts() -> Vec<EscapeAttempt> {
    let mut rows = vec![
        new_attempt("io_uring", "calls io-uring", ERRORS_NOT_PERMITTED, SuccessProof::Host)
            .with_unsupported_errors(&["ENOSYS", "EPERM"]),
        new_attempt("bpf", "calls bpf", ERRORS_NOT_PERMITTED, SuccessProof::Host).with_unsupported_errors(&["ENOSYS"]),
        new_attempt("perf_event_open", "calls perf-event", ERRORS_NOT_PERMITTED, SuccessProof::Host)
            .with_unsupported_errors(&["ENOSYS", "EACCES"]),
        new_attempt("userfaultfd", "calls userfaultfd", ERRORS_NOT_PERMITTED, SuccessProof::Host)
            .with_unsupported_errors(&["ENOSYS"]),
        new_attempt("keyctl", "calls keyctl", ERRORS_NOT_PERMITTED, SuccessProof::Host)
            .with_unsupported_errors(&["ENOSYS"]),
        new_attempt("add_key", "calls add-key", ERRORS_NOT_PERMITTED, SuccessProof::Host)
            .with_unsupported_errors(&["ENOSYS", "EDQUOT"]),
        new_attempt("request_key", "calls request-key", ERRORS_NOT_PERMITTED, KERNEL_ANSWERS),
        new_attempt("kexec_load", "calls kexec", ERRORS_NOT_PERMITTED, KERNEL_ANSWERS),
        new_attempt("init_module", "calls init-module", ERRORS_NOT_PERMITTED, KERNEL_ANSWERS),
        new_attempt("finit_module", "calls finit-module", ERRORS_NOT_PERMITTED, KERNEL_ANSWERS),
        new_attempt("delete_module", "calls delete-module", ERRORS_NOT_PERMITTED, KERNEL_ANSWERS),
        new_attempt("reboot", "calls reboot", ERRORS_NOT_PERMITTED, KERNEL_ANSWERS),
        new_attempt("swapon", "calls swapon", ERRORS_NOT_PERMITTED, KERNEL_ANSWERS),
        new_attempt("settimeofday", "calls settimeofday", ERRORS_NOT_PERMITTED, KERNEL_ANSWERS),
        new_attempt("acct", "calls acct", ERRORS_NOT_PERMITTED, KERNEL_ANSWERS),
        new_attempt("quotactl", "calls quotactl", ERRORS_NOT_PERMITTED, KERNEL_ANSWERS),
        new_attempt("syslog", "calls syslog", ERRORS_NOT_PERMITTED, SuccessProof::Host)
            .with_unsupported_errors(&["ENOSYS"]),
        new_attempt("fanotify_init", "calls fanotify", ERRORS_NOT_PERMITTED, SuccessProof::Host)
            .with_unsupported_errors(&["ENOSYS"]),
        new_attempt("sethostname", "calls sethostname", ERRORS_NOT_PERMITTED, SuccessProof::InNamespaces("-u", "")),
        new_attempt(
            "personality: no address randomization",
            "calls personality",
            ERRORS_NOT_PERMITTED,
            SuccessProof::Host,
        ),
        new_attempt("open_by_handle_at", "calls open-by-handle /", ERRORS_NOT_PERMITTED, SuccessProof::Host)
            .with_unsupported_errors(&["EOPNOTSUPP"]),
    ];
    if cfg!(target_arch = "x86_64") {
        rows.push(new_attempt("iopl", "calls iopl", ERRORS_NOT_PERMITTED, KERNEL_ANSWERS));
        rows.push(
            new_attempt("a 32-bit (i386) system call", "calls i386-call", &["SIGSYS"], SuccessProof::Host)
                .with_unsupported_errors(&["SIGSEGV"]),
        );
        rows.push(
            new_attempt("an x32 system call", "calls x32-call", &["ENOSYS"], SuccessProof::Host)
                .with_unsupported_errors(&["ENOSYS"]),
        );
    }
    rows
}

/// Terminals, devices and privilege. The planted files are in the sandbox's `/tmp` and in `outside` on the host.
pub fn privilege_attempts(outside: &str) -> Vec<EscapeAttempt> {
    let fields = [("CapEff", "0000000000000000"), ("CapPrm", "0000000000000000"), ("CapBnd", "0000000000000000")];
    let mut rows = vec![
        new_attempt("TIOCSTI", "calls tiocsti", ERRORS_NOT_PERMITTED, SuccessProof::Host)
            .with_unsupported_errors(&["EIO"]),
        new_attempt("TIOCLINUX", "calls tioclinux", ERRORS_NOT_PERMITTED, KERNEL_ANSWERS),
        new_attempt("create a character device", "calls make-char", ERRORS_NOT_PERMITTED, SuccessProof::Host),
        new_attempt("create a block device", "calls make-block", ERRORS_NOT_PERMITTED, SuccessProof::Host),
        new_attempt("list block devices", "try sh -c 'find /dev -type b | grep .'", &["REFUSED"], SuccessProof::Host)
            .with_unsupported_errors(&["REFUSED"]),
        new_attempt("open a planted device node", "calls read-byte /tmp/planted-zero", &["EACCES"], SuccessProof::Host)
            .with_proof_script(format!("calls read-byte {outside}/planted-zero")),
        new_attempt(
            "gain root through a set-uid program",
            "/tmp/planted-calls effective-root",
            ERRORS_NOT_PERMITTED,
            SuccessProof::AsUnprivilegedUser,
        )
        .with_proof_script(format!("{outside}/planted-calls effective-root")),
        new_attempt("setresuid 0", "calls setresuid", ERRORS_NOT_ROOT, SuccessProof::Host),
        new_attempt("setgroups", "calls setgroups", ERRORS_NOT_PERMITTED, SuccessProof::Host),
        new_attempt("chown to root", "calls chown-root", ERRORS_NOT_ROOT, SuccessProof::Host),
        new_attempt("capset", "calls capset", ERRORS_NOT_PERMITTED, SuccessProof::Host),
        new_attempt("real-time priority", "calls real-time", ERRORS_NOT_PERMITTED, SuccessProof::Host),
        new_attempt("a higher priority", "calls raise-priority", &["EACCES", "EPERM"], SuccessProof::Host),
    ];
    for (field, none) in fields {
        let script = format!("grep -q '{field}:.*{none}' /proc/self/status && echo REFUSED none || echo DONE");
        rows.push(new_attempt(format!("{field} in /proc/self/status"), script, &["none"], SuccessProof::Host));
    }
    for (field, set) in [("NoNewPrivs", 1), ("Seccomp", 2)] {
        let script = format!("grep -q '^{field}:.{set}$' /proc/self/status && echo REFUSED set || echo DONE");
        rows.push(new_attempt(format!("{field} in /proc/self/status"), script, &["set"], SuccessProof::Host));
    }
    rows
}
