//! Files, sockets and addresses outside the sandbox.

use super::attempt_table::{EscapeAttempt, SuccessProof, new_attempt};

const ERRORS_HIDDEN: &[&str] = &["ENOENT"];
const ERRORS_READ_ONLY: &[&str] = &["EROFS", "EACCES"];
const ERRORS_RUNNING_PROGRAM: &[&str] = &["EROFS", "EACCES", "ETXTBSY"];
const ERRORS_UNREACHABLE: &[&str] = &["ENETUNREACH"];

/// `canary` is a world-readable file of the host, `shared` one in its shared memory.
pub fn file_attempts(canary: &str, shared: &str) -> Vec<EscapeAttempt> {
    let read = |what: &str, path: String, refused| {
        new_attempt(what, format!("calls read-byte {path}"), refused, SuccessProof::Host)
    };
    let write = |path: &str, refused| {
        new_attempt(format!("open {path} for writing"), format!("calls open-write {path}"), refused, SuccessProof::Host)
            .with_unsupported_errors(&["ENOENT"])
    };
    let new = format!("/usr/local/share/atoll-test-{}", uuid::Uuid::new_v4().simple());
    vec![
        read("read a file of the host by its path", canary.into(), ERRORS_HIDDEN),
        read("the same with ..", format!("../../../../../../../../../..{canary}"), ERRORS_HIDDEN),
        new_attempt(
            "the same through a symlink",
            format!("ln -sf {canary} link; calls read-byte link"),
            ERRORS_HIDDEN,
            SuccessProof::Host,
        ),
        read("the same through /proc/self/root", format!("/proc/self/root{canary}"), ERRORS_HIDDEN),
        // The proof uses the shell's own pid: pid 1 of the host may be closed even to root.
        read("the same through /proc/1/root", format!("/proc/1/root{canary}"), &["EACCES", "EPERM"])
            .with_proof_script(format!("calls read-byte /proc/$$/root{canary}")),
        read("the same through /proc/1/cwd", format!("/proc/1/cwd/../../../../..{canary}"), &["EACCES", "EPERM"])
            .with_proof_script(format!("calls read-byte /proc/$$/cwd/../../../../..{canary}")),
        read("read shared memory of the host", shared.into(), ERRORS_HIDDEN),
        write("/etc/passwd", ERRORS_READ_ONLY),
        write("/usr/bin/env", ERRORS_READ_ONLY),
        // The kernel checks the file's owner and whether it is running before it checks the mount.
        new_attempt(
            "overwrite the worker's program",
            "calls open-write /opt/atoll/worker",
            ERRORS_RUNNING_PROGRAM,
            SuccessProof::Host,
        )
        .with_proof_script("cp /bin/true mine; calls open-write mine"),
        new_attempt("create a file in /usr", format!("calls create {new}"), ERRORS_READ_ONLY, SuccessProof::Host),
        new_attempt(
            "create a file in /",
            format!("calls create /{}", &new[17..]),
            ERRORS_READ_ONLY,
            SuccessProof::Host,
        ),
    ]
}

pub fn proc_attempts() -> Vec<EscapeAttempt> {
    let write = |path: &str| {
        new_attempt(
            format!("write {path}"),
            format!("calls open-write {path}"),
            &["EROFS", "EACCES", "ENOENT"],
            SuccessProof::Host,
        )
        .with_unsupported_errors(&["ENOENT"])
    };
    let read = |path: &str| {
        let refused: &[&str] = &["EACCES", "EPERM", "ENODATA", "ENOENT"];
        new_attempt(format!("read {path}"), format!("calls read-byte {path}"), refused, SuccessProof::Host)
            .with_unsupported_errors(&["ENOENT", "ENODATA", "EPERM"])
    };
    let list = |path: &str| {
        new_attempt(format!("list {path}"), format!("try ls {path}"), &["No such file"], SuccessProof::Host)
            .with_unsupported_errors(&["No such file"])
    };
    vec![
        write("/proc/sys/kernel/core_pattern"),
        write("/proc/sys/vm/drop_caches"),
        write("/proc/sysrq-trigger"),
        write("/proc/irq/default_smp_affinity"),
        read("/proc/kcore"),
        new_attempt("open /proc/kmsg", "calls open-read /proc/kmsg", &["EACCES", "EPERM"], SuccessProof::Host)
            .with_unsupported_errors(&["ENOENT"]),
        new_attempt("open /dev/kmsg", "calls open-read /dev/kmsg", ERRORS_HIDDEN, SuccessProof::Host)
            .with_unsupported_errors(&["ENOENT"]),
        new_attempt("open /dev/mem", "calls open-read /dev/mem", ERRORS_HIDDEN, SuccessProof::Host)
            .with_unsupported_errors(&["ENOENT"]),
        read("/proc/keys"),
        read("/proc/timer_list"),
        read("/proc/slabinfo"),
        list("/sys/kernel"),
        list("/sys/fs/cgroup"),
    ]
}

pub fn socket_attempts(path: &str, abstract_name: &str) -> Vec<EscapeAttempt> {
    let families = [
        ("AF_NETLINK", "16 3 0"),
        ("AF_PACKET", "17 3 0"),
        ("AF_VSOCK", "40 1 0"),
        ("AF_ALG", "38 5 0"),
        ("AF_XDP", "44 3 0"),
        ("AF_BLUETOOTH", "31 3 0"),
        ("AF_CAN", "29 3 1"),
        ("AF_TIPC", "30 1 0"),
        ("AF_KEY", "15 3 2"),
    ];
    let family = |(name, numbers): (&str, &str)| {
        let refused: &[&str] = &["EAFNOSUPPORT"];
        new_attempt(name, format!("calls socket {numbers}"), refused, SuccessProof::Host)
            .with_unsupported_errors(&["EAFNOSUPPORT", "EPROTONOSUPPORT"])
    };
    let mut rows: Vec<EscapeAttempt> = families.into_iter().map(family).collect();
    rows.extend([
        new_attempt("a raw IPv4 socket", "calls socket 2 3 1", &["EPERM"], SuccessProof::Host),
        new_attempt("a raw IPv6 socket", "calls socket 10 3 58", &["EPERM"], SuccessProof::Host)
            .with_unsupported_errors(&["EAFNOSUPPORT"]),
        new_attempt(
            "a host socket at Docker's usual path",
            format!("calls connect-path {path}"),
            ERRORS_HIDDEN,
            SuccessProof::Host,
        ),
        new_attempt("Docker's own socket", "calls connect-path /run/docker.sock", ERRORS_HIDDEN, SuccessProof::Host)
            .with_unsupported_errors(&["ENOENT"]),
        new_attempt(
            "an abstract socket of the host",
            format!("calls connect-abstract {abstract_name}"),
            &["ECONNREFUSED"],
            SuccessProof::Host,
        ),
    ]);
    rows
}

/// Ports of the host that the test listens on.
pub struct HostListeners {
    pub loopback: u16,
    pub loopback_six: Option<u16>,
    /// The host's own address in its network, where it has one.
    pub address: Option<(String, u16, u16)>,
    pub server: u16,
    /// A UDP echo on loopback.
    pub datagrams: u16,
}

pub fn network_attempts(listeners: &HostListeners) -> Vec<EscapeAttempt> {
    let refused: &[&str] = &["ECONNREFUSED"];
    let refused_or_timed_out: &[&str] = &["ECONNREFUSED", "EAGAIN"];
    let connect = |what: &str, host: &str, port: u16, refused| {
        new_attempt(what, format!("calls connect {host} {port}"), refused, SuccessProof::Host)
    };
    let mut rows = vec![
        connect("a port on the host's loopback", "127.0.0.1", listeners.loopback, refused),
        connect("the server's port", "127.0.0.1", listeners.server, refused),
        new_attempt(
            "datagrams to the host's loopback",
            format!("calls datagram 127.0.0.1 {}", listeners.datagrams),
            refused_or_timed_out,
            SuccessProof::Host,
        ),
    ];
    if let Some(port) = listeners.loopback_six {
        rows.push(connect("a port on the host's IPv6 loopback", "::1", port, refused));
    }
    if let Some((host, stream, datagram)) = &listeners.address {
        rows.push(connect("the host's own address", host, *stream, ERRORS_UNREACHABLE));
        let script = format!("calls datagram {host} {datagram}");
        rows.push(new_attempt("datagrams to the host's own address", script, ERRORS_UNREACHABLE, SuccessProof::Host));
    }
    let without_proxy = "env -u http_proxy -u https_proxy -u HTTP_PROXY -u HTTPS_PROXY -u ALL_PROXY -u all_proxy -u no_proxy \
                 \"$CALLS\" connect 198.51.100.7 443";
    let served = |what: &str, how: &str, host: &'static str, port: u16| {
        new_attempt(what, format!("calls {how} {host} {port}"), ERRORS_UNREACHABLE, SuccessProof::InNetwork(host, port))
    };
    rows.extend([
        served("a public address", "connect", "198.51.100.7", 443),
        new_attempt(
            "the same with the proxy variables unset",
            without_proxy,
            ERRORS_UNREACHABLE,
            SuccessProof::InNetwork("198.51.100.7", 443),
        ),
        served("an IPv6 address", "connect", "2001:db8::7", 443),
        served("a private network address", "connect", "10.11.12.13", 80),
        served("the metadata address", "connect", "169.254.169.254", 80),
        served("the IPv6 metadata address", "connect", "fd00:ec2::254", 80),
        served("DNS over UDP", "datagram", "198.51.100.53", 53),
        served("DNS over TCP", "connect", "198.51.100.53", 53),
        served("DNS over IPv6", "datagram", "2001:db8::53", 53),
    ]);
    rows
}
