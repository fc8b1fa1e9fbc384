//! System calls that no sandbox has, privilege that it can't gain, devices.

use super::table::{Proof, Row, row};

const EPERM: &[&str] = &["EPERM"];
/// Not allowed; or there is no such id, where a sandbox has one id only.
const NO_ROOT: &[&str] = &["EPERM", "EINVAL"];
/// What a kernel says that was asked to do something impossible, or is built without it.
const ASKED: Proof = Proof::Asked(&["EINVAL", "EFAULT", "EBADF", "ENOENT", "ENOEXEC", "ENOKEY", "ENOTTY", "ENOSYS"]);

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

pub fn mounts() -> Vec<Row> {
    let fixed = "mount --bind /usr /usr; mount -o remount,bind,ro /usr";
    vec![
        row("mount a tmpfs", "calls mount-memory /tmp", EPERM, Proof::Apart("-m", "")),
        row("bind-mount the root", "calls mount-bind / /tmp", EPERM, Proof::Apart("-m", "")),
        row("mount another /proc", "calls mount-proc /tmp", EPERM, Proof::Apart("-m", "")),
        row("remount /usr writable", "calls remount /usr", EPERM, Proof::Apart("-m", fixed)),
        row("unmount /proc", "calls unmount /proc", EPERM, Proof::Apart("-m", "")),
        row("pivot_root", "calls pivot", EPERM, Proof::Apart("-m", "mkdir r; mount -t tmpfs none r; cd r")),
        row("chroot", "calls change-root", EPERM, Proof::Host),
        row("fsopen", "calls open-system", EPERM, Proof::Apart("-m", "")),
        row("open_tree of the root", "calls clone-tree /", EPERM, Proof::Apart("-m", "")),
        row("mount_setattr", "calls set-attributes /usr", EPERM, Proof::Apart("-m", fixed)),
    ]
}

pub fn namespaces() -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, flag) in NAMESPACES {
        let lacking: &[&str] = &["EINVAL"];
        rows.push(row(format!("unshare: {name}"), format!("calls leave {flag}"), EPERM, Proof::Host).lacking(lacking));
    }
    // Time is not among the flags of clone.
    for (name, flag) in &NAMESPACES[..7] {
        rows.push(row(format!("clone: {name}"), format!("calls clone-into {flag}"), EPERM, Proof::Host));
    }
    let user = NAMESPACES[0].1;
    rows.push(row("clone3: user", format!("calls clone-new {user}"), &["ENOSYS"], Proof::Host));
    rows.push(row("setns: its own network", "calls join /proc/self/ns/net", EPERM, Proof::Host));
    for space in ["mnt", "pid", "user", "net"] {
        let script = format!("calls join /proc/1/ns/{space}");
        let proof = row(format!("setns: {space} of pid 1"), script, &["EACCES", "EPERM"], Proof::Host);
        rows.push(proof.elsewhere("calls join /proc/self/ns/net"));
    }
    rows.push(row("unshare(1)", "try unshare -Ur true", &["Operation not permitted"], Proof::Host));
    rows
}

pub fn processes() -> Vec<Row> {
    vec![
        row("ptrace of a child", "calls trace", EPERM, Proof::Host),
        row("PTRACE_TRACEME", "calls trace-me", EPERM, Proof::Host),
        row("process_vm_readv of a child", "calls vm-read", EPERM, Proof::Host),
        row("process_vm_writev of a child", "calls vm-write", EPERM, Proof::Host),
        row("pidfd_getfd of a child", "calls take-descriptor", EPERM, Proof::Host),
        row("kcmp with a child", "calls compare", EPERM, Proof::Host).lacking(&["ENOSYS"]),
    ]
}

pub fn kernel() -> Vec<Row> {
    let mut rows = vec![
        row("io_uring", "calls ring", EPERM, Proof::Host).lacking(&["ENOSYS", "EPERM"]),
        row("bpf", "calls bpf", EPERM, Proof::Host).lacking(&["ENOSYS"]),
        row("perf_event_open", "calls perf", EPERM, Proof::Host).lacking(&["ENOSYS", "EACCES"]),
        row("userfaultfd", "calls fault", EPERM, Proof::Host).lacking(&["ENOSYS"]),
        row("keyctl", "calls key-ring", EPERM, Proof::Host).lacking(&["ENOSYS"]),
        row("add_key", "calls key-add", EPERM, Proof::Host).lacking(&["ENOSYS", "EDQUOT"]),
        row("request_key", "calls key-ask", EPERM, ASKED),
        row("kexec_load", "calls kexec", EPERM, ASKED),
        row("init_module", "calls module-load", EPERM, ASKED),
        row("finit_module", "calls module-file", EPERM, ASKED),
        row("delete_module", "calls module-remove", EPERM, ASKED),
        row("reboot", "calls restart", EPERM, ASKED),
        row("swapon", "calls swap", EPERM, ASKED),
        row("settimeofday", "calls set-clock", EPERM, ASKED),
        row("acct", "calls account", EPERM, ASKED),
        row("quotactl", "calls quota", EPERM, ASKED),
        row("syslog", "calls kernel-log", EPERM, Proof::Host).lacking(&["ENOSYS"]),
        row("fanotify_init", "calls watch-all", EPERM, Proof::Host).lacking(&["ENOSYS"]),
        row("sethostname", "calls host-name", EPERM, Proof::Apart("-u", "")),
        row("personality without random addresses", "calls persona", EPERM, Proof::Host),
        row("open_by_handle_at", "calls by-handle /", EPERM, Proof::Host).lacking(&["EOPNOTSUPP"]),
    ];
    if cfg!(target_arch = "x86_64") {
        rows.push(row("iopl", "calls ports", EPERM, ASKED));
        rows.push(row("calls of i386", "calls old-calls", &["SIGSYS"], Proof::Host).lacking(&["SIGSEGV"]));
        rows.push(row("calls of x32", "calls other-calls", &["ENOSYS"], Proof::Host).lacking(&["ENOSYS"]));
    }
    rows
}

/// Terminals, devices and privilege. What is planted stands in the sandbox's `/tmp`, and below `outside` on the host.
pub fn privilege(outside: &str) -> Vec<Row> {
    let fields = [("CapEff", "0000000000000000"), ("CapPrm", "0000000000000000"), ("CapBnd", "0000000000000000")];
    let mut rows = vec![
        row("TIOCSTI", "calls type-into", EPERM, Proof::Host).lacking(&["EIO"]),
        row("TIOCLINUX", "calls paste-into", EPERM, ASKED),
        row("make a character device", "calls make-char", EPERM, Proof::Host),
        row("make a block device", "calls make-block", EPERM, Proof::Host),
        row("see a disk", "try sh -c 'find /dev -type b | grep .'", &["REFUSED"], Proof::Host).lacking(&["REFUSED"]),
        row("open a device node that lies about", "calls read-byte /tmp/planted-zero", &["EACCES"], Proof::Host)
            .elsewhere(format!("calls read-byte {outside}/planted-zero")),
        row("set-uid gain", "/tmp/planted-calls effective-root", EPERM, Proof::Ordinary)
            .elsewhere(format!("{outside}/planted-calls effective-root")),
        row("setresuid 0", "calls become-root", NO_ROOT, Proof::Host),
        row("setgroups", "calls join-groups", EPERM, Proof::Host),
        row("chown to root", "calls give-away", NO_ROOT, Proof::Host),
        row("capset", "calls raise-capability", EPERM, Proof::Host),
        row("real-time priority", "calls real-time", EPERM, Proof::Host),
        row("a higher priority", "calls hurry", &["EACCES", "EPERM"], Proof::Host),
    ];
    for (field, none) in fields {
        let script = format!("grep -q '{field}:.*{none}' /proc/self/status && echo REFUSED none || echo DONE");
        rows.push(row(format!("{field} seen from inside"), script, &["none"], Proof::Host));
    }
    for (field, set) in [("NoNewPrivs", 1), ("Seccomp", 2)] {
        let script = format!("grep -q '^{field}:.{set}$' /proc/self/status && echo REFUSED set || echo DONE");
        rows.push(row(format!("{field} seen from inside"), script, &["set"], Proof::Host));
    }
    rows
}
