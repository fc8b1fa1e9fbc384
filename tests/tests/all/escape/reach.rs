//! Files, sockets and addresses that are not the sandbox's own.

use super::table::{Proof, Row, row};

const HIDDEN: &[&str] = &["ENOENT"];
const FIXED: &[&str] = &["EROFS", "EACCES"];
const RUNNING: &[&str] = &["EROFS", "EACCES", "ETXTBSY"];
const UNREACHABLE: &[&str] = &["ENETUNREACH"];

/// `canary` is a file of the host that everybody may read, `shared` one in its shared memory.
pub fn files(canary: &str, shared: &str) -> Vec<Row> {
    let read = |what: &str, path: String, refused| row(what, format!("calls read-byte {path}"), refused, Proof::Host);
    let write = |path: &str, refused| {
        row(format!("open {path} for writing"), format!("calls open-write {path}"), refused, Proof::Host)
            .lacking(&["ENOENT"])
    };
    let new = format!("/usr/local/share/atoll-test-{}", uuid::Uuid::new_v4().simple());
    vec![
        read("a file of the host, by its path", canary.into(), HIDDEN),
        read("the same by ..", format!("../../../../../../../../../..{canary}"), HIDDEN),
        row("the same through a link", format!("ln -sf {canary} link; calls read-byte link"), HIDDEN, Proof::Host),
        read("the same through /proc/self/root", format!("/proc/self/root{canary}"), HIDDEN),
        // Not through pid 1 of the host, which may be closed to root as well.
        read("the same through /proc/1/root", format!("/proc/1/root{canary}"), &["EACCES", "EPERM"])
            .elsewhere(format!("calls read-byte /proc/$$/root{canary}")),
        read("the same through /proc/1/cwd", format!("/proc/1/cwd/../../../../..{canary}"), &["EACCES", "EPERM"])
            .elsewhere(format!("calls read-byte /proc/$$/cwd/../../../../..{canary}")),
        read("shared memory of the host", shared.into(), HIDDEN),
        write("/etc/passwd", FIXED),
        write("/usr/bin/env", FIXED),
        // Whose file it is, and that it is being run, the kernel looks at before it looks at the mount.
        row("overwrite the worker's program", "calls open-write /opt/atoll/worker", RUNNING, Proof::Host)
            .elsewhere("cp /bin/true mine; calls open-write mine"),
        row("make a file in /usr", format!("calls create {new}"), FIXED, Proof::Host),
        row("make a file in /", format!("calls create /{}", &new[17..]), FIXED, Proof::Host),
    ]
}

pub fn proc() -> Vec<Row> {
    let write = |path: &str| {
        row(format!("write {path}"), format!("calls open-write {path}"), &["EROFS", "EACCES", "ENOENT"], Proof::Host)
            .lacking(&["ENOENT"])
    };
    let read = |path: &str| {
        let refused: &[&str] = &["EACCES", "EPERM", "ENODATA", "ENOENT"];
        row(format!("read {path}"), format!("calls read-byte {path}"), refused, Proof::Host)
            .lacking(&["ENOENT", "ENODATA", "EPERM"])
    };
    let list = |path: &str| {
        row(format!("list {path}"), format!("try ls {path}"), &["No such file"], Proof::Host).lacking(&["No such file"])
    };
    vec![
        write("/proc/sys/kernel/core_pattern"),
        write("/proc/sys/vm/drop_caches"),
        write("/proc/sysrq-trigger"),
        write("/proc/irq/default_smp_affinity"),
        read("/proc/kcore"),
        row("open /proc/kmsg", "calls open-read /proc/kmsg", &["EACCES", "EPERM"], Proof::Host).lacking(&["ENOENT"]),
        row("open /dev/kmsg", "calls open-read /dev/kmsg", HIDDEN, Proof::Host).lacking(&["ENOENT"]),
        row("open /dev/mem", "calls open-read /dev/mem", HIDDEN, Proof::Host).lacking(&["ENOENT"]),
        read("/proc/keys"),
        read("/proc/timer_list"),
        read("/proc/slabinfo"),
        list("/sys/kernel"),
        list("/sys/fs/cgroup"),
    ]
}

pub fn sockets(path: &str, abstract_name: &str) -> Vec<Row> {
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
        row(name, format!("calls socket {numbers}"), refused, Proof::Host).lacking(&["EAFNOSUPPORT", "EPROTONOSUPPORT"])
    };
    let mut rows: Vec<Row> = families.into_iter().map(family).collect();
    rows.extend([
        row("a raw IPv4 socket", "calls socket 2 3 1", &["EPERM"], Proof::Host),
        row("a raw IPv6 socket", "calls socket 10 3 58", &["EPERM"], Proof::Host).lacking(&["EAFNOSUPPORT"]),
        row("a socket of the host, where Docker's is", format!("calls connect-path {path}"), HIDDEN, Proof::Host),
        row("Docker's own", "calls connect-path /run/docker.sock", HIDDEN, Proof::Host).lacking(&["ENOENT"]),
        row(
            "an abstract socket of the host",
            format!("calls connect-abstract {abstract_name}"),
            &["ECONNREFUSED"],
            Proof::Host,
        ),
    ]);
    rows
}

/// Who listens on the host, for these attempts.
pub struct Listening {
    pub loopback: u16,
    pub loopback_six: Option<u16>,
    /// The host's own address in its network, where it has one.
    pub address: Option<(String, u16, u16)>,
    pub server: u16,
    /// Answers datagrams on loopback.
    pub datagrams: u16,
}

pub fn network(listening: &Listening) -> Vec<Row> {
    let refused: &[&str] = &["ECONNREFUSED"];
    let silent: &[&str] = &["ECONNREFUSED", "EAGAIN"];
    let connect = |what: &str, host: &str, port: u16, refused| {
        row(what, format!("calls connect {host} {port}"), refused, Proof::Host)
    };
    let mut rows = vec![
        connect("a port of the host's loopback", "127.0.0.1", listening.loopback, refused),
        connect("the server's port", "127.0.0.1", listening.server, refused),
        row("datagrams to the host", format!("calls datagram 127.0.0.1 {}", listening.datagrams), silent, Proof::Host),
    ];
    if let Some(port) = listening.loopback_six {
        rows.push(connect("a port of the host's IPv6 loopback", "::1", port, refused));
    }
    if let Some((host, stream, datagram)) = &listening.address {
        rows.push(connect("the host's own address", host, *stream, UNREACHABLE));
        let script = format!("calls datagram {host} {datagram}");
        rows.push(row("datagrams to the host's own address", script, UNREACHABLE, Proof::Host));
    }
    let unset = "env -u http_proxy -u https_proxy -u HTTP_PROXY -u HTTPS_PROXY -u ALL_PROXY -u all_proxy -u no_proxy \
                 \"$CALLS\" connect 198.51.100.7 443";
    let served = |what: &str, how: &str, host: &'static str, port: u16| {
        row(what, format!("calls {how} {host} {port}"), UNREACHABLE, Proof::Served(host, port))
    };
    rows.extend([
        served("an address of the world", "connect", "198.51.100.7", 443),
        row("the same with the proxy's variables unset", unset, UNREACHABLE, Proof::Served("198.51.100.7", 443)),
        served("an IPv6 address", "connect", "2001:db8::7", 443),
        served("an address of a company's network", "connect", "10.11.12.13", 80),
        served("the metadata address", "connect", "169.254.169.254", 80),
        served("the metadata address of IPv6", "connect", "fd00:ec2::254", 80),
        served("DNS by datagram", "datagram", "198.51.100.53", 53),
        served("DNS by TCP", "connect", "198.51.100.53", 53),
        served("DNS by IPv6", "datagram", "2001:db8::53", 53),
    ]);
    rows
}
