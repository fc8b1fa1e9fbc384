//! Escape attempts fail in a sandbox. The same attempts succeed on the host, so they do not fail for another reason.

use atoll_tests::local::{LocalServer, create_temp_dir, is_root, report_skipped};
use serde_json::json;
use std::collections::BTreeMap;
use std::process::Command;

/// Runs each attempt in its own child and prints `ok` or the error number.
const ATTEMPTS_SCRIPT: &str = r#"
import ctypes, errno, os, socket, sys, tempfile
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def call(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result

def mount(kind=b"tmpfs", source=b"none", target=None, flags=0):
    target = target or tempfile.mkdtemp().encode()
    call(libc.mount(source, target, kind, flags, None))
    return target

def umount():
    target = b"/proc" if sys.argv[1] == "inside" else mount()
    call(libc.umount2(target, 2))

def pivot_root():
    target = tempfile.mkdtemp().encode()
    if sys.argv[1] == "outside":
        mount(target=target)
    os.chdir(target)
    call(libc.syscall(155, b".", b"."))

def remount():
    if sys.argv[1] == "outside":
        target = mount()
        call(libc.mount(None, target, None, 32 | 1, None))
        call(libc.mount(None, target, None, 32, None))
        open(target + b"/x", "w")
    else:
        call(libc.mount(None, b"/usr", None, 32 | 4096, None))

def bind():
    mount(kind=None, source=b"/", flags=4096)

def unshare(flags):
    return lambda: call(libc.unshare(flags))

def clone(flags):
    def attempt():
        pid = call(libc.syscall(56, flags | 17, 0, 0, 0, 0))
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    return attempt

def setns(namespace):
    return lambda: call(libc.setns(os.open(f"/proc/self/ns/{namespace}", os.O_RDONLY), 0))

def chroot():
    os.chroot("/tmp")

def mknod():
    os.mknod(tempfile.mkdtemp() + "/null", 0o020666, os.makedev(1, 3))

def chown():
    name = tempfile.mkstemp()[1]
    os.chown(name, 12345, 12345)

def setuid():
    os.setresuid(0 if os.getuid() else 12345, -1, -1)

def sethostname():
    socket.sethostname(socket.gethostname())

def number(number, *arguments):
    return lambda: call(libc.syscall(number, *arguments))

def perf():
    buffer = ctypes.create_string_buffer(128)
    ctypes.memmove(buffer, (1).to_bytes(4, "little") + (128).to_bytes(4, "little"), 8)
    call(libc.syscall(298, buffer, 0, -1, -1, 0))

def uring():
    call(libc.syscall(425, 4, ctypes.create_string_buffer(120)))

def bpf():
    attributes = (2).to_bytes(4, "little") + (4).to_bytes(4, "little") * 2 + (1).to_bytes(4, "little")
    call(libc.syscall(321, 0, ctypes.create_string_buffer(attributes, 64), 64))

def keyctl():
    call(libc.syscall(248, b"user", b"atoll", b"x", 1, -2))

def open_by_handle():
    handle = ctypes.create_string_buffer(136)
    ctypes.memmove(handle, (128).to_bytes(4, "little"), 4)
    mount_id = ctypes.c_int()
    call(libc.syscall(303, -100, b"/usr", handle, ctypes.byref(mount_id), 0))
    directory = os.open("/usr", os.O_RDONLY)
    call(libc.syscall(304, directory, handle, os.O_RDONLY))

def family(*arguments):
    return lambda: socket.socket(*arguments)

def write(path):
    def attempt():
        with open(path, "r+b") as file:
            old = file.read(4096)
            file.seek(0)
            file.write(old)
    return attempt

def create(directory):
    def attempt():
        name = f"{directory}/atoll-probe-{os.getpid()}"
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o600))
        os.unlink(name)
    return attempt

def device(path):
    return lambda: os.close(os.open(path, os.O_RDONLY))

def read_byte(path):
    def attempt():
        with open(path, "rb", buffering=0) as file:
            # A hidden file can be opened, and is empty.
            if not file.read(1):
                raise OSError(errno.ENODATA, "the file is empty")
    return attempt

def typing():
    import fcntl, pty
    _, slave = pty.openpty()
    os.setsid()
    fcntl.ioctl(slave, 0x540E, 0)
    fcntl.ioctl(slave, 0x5412, b"x")

attempts = {
    "mount": mount, "umount": umount, "remount": remount, "bind": bind, "pivot_root": pivot_root, "chroot": chroot,
    "fsopen": number(430, b"tmpfs", 0), "open_tree": number(428, -100, b"/", 1),
    "unshare mnt": unshare(0x20000), "unshare user": unshare(0x10000000), "unshare net": unshare(0x40000000),
    "unshare pid": unshare(0x20000000), "unshare ipc": unshare(0x8000000), "unshare uts": unshare(0x4000000),
    "unshare cgroup": unshare(0x2000000),
    "clone user": clone(0x10000000), "clone net": clone(0x40000000), "clone mnt": clone(0x20000),
    "setns uts": setns("uts"), "setns mnt": setns("mnt"), "setns net": setns("net"),
    "mknod": mknod, "chown": chown, "setuid": setuid, "sethostname": sethostname,
    "perf_event_open": perf, "io_uring_setup": uring, "bpf": bpf, "add_key": keyctl, "userfaultfd": number(323, 1),
    "open_by_handle_at": open_by_handle, "syslog": number(103, 10, 0, 0), "TIOCSTI": typing,
    "AF_PACKET": family(socket.AF_PACKET, socket.SOCK_RAW), "AF_VSOCK": family(40, socket.SOCK_STREAM),
    "raw socket": family(socket.AF_INET, socket.SOCK_RAW, 1), "AF_ALG": family(38, socket.SOCK_SEQPACKET),
    "write /proc/sys": write("/proc/sys/kernel/hostname"), "write /proc/sys/vm": write("/proc/sys/vm/swappiness"),
    "write sysrq": device("/proc/sysrq-trigger"), "read kcore": read_byte("/proc/kcore"),
    "read timers": read_byte("/proc/timer_list"), "read kmsg": device("/dev/kmsg"),
    "read disk": device(next((f"/dev/{name}" for name in ["vda", "sda", "nvme0n1"] if os.path.exists(f"/dev/{name}")), "/dev/mem")),
    "create in /": create("/"), "create in /usr": create("/usr"), "create in /usr/lib": create("/usr/lib"),
    "create in /etc": create("/etc"), "create in /dev": create("/dev"), "create in /opt": create("/opt"),
    "create in /proc/sys": create("/proc/sys"),
}

for name, attempt in attempts.items():
    read, put = os.pipe()
    if os.fork() == 0:
        try:
            if sys.argv[1] == "outside":
                # Each attempt has its own mount namespace.
                call(libc.unshare(0x20000))
            attempt()
            outcome = "ok"
        except OSError as error:
            outcome = str(error.errno)
        except BaseException as error:
            outcome = type(error).__name__
        os.write(put, outcome.encode())
        os._exit(0)
    os.close(put)
    _, status = os.wait()
    outcome = os.read(read, 100).decode() or f"signal {os.WTERMSIG(status)}"
    os.close(read)
    print(name, outcome, sep="\t", flush=True)
"#;

/// Attempts that fail on every system, so the host cannot prove them.
const ALWAYS_REFUSED: &[&str] = &["create in /proc/sys"];

fn parse_outcomes(text: &str) -> BTreeMap<String, String> {
    let pair = |line: &str| line.split_once('\t').map(|(name, outcome)| (name.to_owned(), outcome.to_owned()));
    text.lines().filter_map(pair).collect()
}

/// Runs the attempts in their own mount, UTS and IPC namespaces, so that they leave nothing behind.
fn run_attempts_on_host() -> BTreeMap<String, String> {
    let dir = create_temp_dir("atoll-attempts-");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--uts", "--ipc", "/usr/bin/python3", "-c", ATTEMPTS_SCRIPT, "outside"]);
    command.env("TMPDIR", dir.path());
    parse_outcomes(&String::from_utf8(command.output().unwrap().stdout).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn escape_attempts_fail_in_a_sandbox() {
    if !std::path::Path::new("/usr/bin/python3").exists() {
        return report_skipped("attempts to get out", "there is no /usr/bin/python3");
    }
    let outside = if is_root() { run_attempts_on_host() } else { BTreeMap::new() };
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let ran = server.run_exec(&id, json!({ "argv": ["/usr/bin/python3", "-c", ATTEMPTS_SCRIPT, "inside"] })).await;
    let inside = parse_outcomes(&ran.clone().expect_success());
    assert!(inside.len() > 40, "every attempt must run: {ran:?}");
    let succeeded: Vec<&String> = inside.iter().filter(|(_, outcome)| *outcome == "ok").map(|(name, _)| name).collect();
    assert!(succeeded.is_empty(), "these succeeded inside: {succeeded:?}");
    let mut proven = 0;
    for (name, outcome) in &inside {
        match outside.get(name).map(String::as_str) {
            Some("ok") => proven += 1,
            _ if ALWAYS_REFUSED.contains(&name.as_str()) => {}
            Some(error) => {
                report_skipped(&format!("{name} ({outcome} inside)"), &format!("outside it fails as well: {error}"))
            }
            None => report_skipped(name, "only root can show that it works outside"),
        }
    }
    assert!(!is_root() || proven > 30, "most attempts must succeed on the host: {outside:?}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_has_only_the_loopback_device() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let connects = |address: &str, port: u16| format!("timeout 3 bash -c 'exec 3<>/dev/tcp/{address}/{port}'");
    let port = server.process.address.port();
    let outside = Command::new("sh").args(["-c", &connects("127.0.0.1", port)]).status().unwrap();
    assert!(outside.success(), "the host must reach the server");
    for address in ["127.0.0.1", "::1", "localhost"] {
        let ran = server.run_shell(&id, &connects(address, port)).await;
        assert_ne!(ran.exit_code(), Some(0), "{address}: {ran:?}");
    }
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let host_port = listener.local_addr().unwrap().port();
    for address in ["127.0.0.1", "0.0.0.0", "169.254.169.254", "192.0.2.1", "1.1.1.1"] {
        let ran = server.run_shell(&id, &connects(address, host_port)).await;
        assert_ne!(ran.exit_code(), Some(0), "{address}: {ran:?}");
    }
    let devices = server.run_shell(&id, "tail -n +3 /proc/net/dev | cut -d: -f1").await.expect_success();
    assert_eq!(devices.split_whitespace().collect::<Vec<_>>(), ["lo"]);
    let routes = server.run_shell(&id, "tail -n +2 /proc/net/route").await.expect_success();
    assert_eq!(routes, "");
    // Loopback itself is up for the agent's own servers.
    let own = "python3 -c 'import socket; s = socket.create_server((\"127.0.0.1\", 8123)); \
               c = socket.create_connection((\"127.0.0.1\", 8123)); print(\"connected\")'";
    if std::path::Path::new("/usr/bin/python3").exists() {
        assert_eq!(server.run_shell(&id, &format!("PATH=/usr/bin:/bin {own}")).await.expect_success(), "connected\n");
    }
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_root_directory_holds_only_allowed_entries() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let root = server.run_exec(&id, json!({ "argv": ["ls", "-A", "/"] })).await.expect_success();
    let allowed = [
        "bin",
        "dev",
        "etc",
        "home",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "opt",
        "proc",
        "root",
        "sbin",
        "tmp",
        "usr",
        "var",
        "workspace",
        "run",
    ];
    for name in root.lines() {
        assert!(allowed.contains(&name), "/{name} is not an allowed entry");
    }
    // A home shows only its tool directories.
    let tools = [".cargo", ".rustup", ".nvm", ".pyenv", ".local", "go"];
    let home = server.run_shell(&id, "ls -A /root 2>/dev/null; true").await.expect_success();
    assert!(home.lines().all(|name| tools.contains(&name)), "{home}");
    let around = server
        .run_shell(&id, "ls -A /root/.cargo /root/.local /root/go 2>/dev/null | grep -v : ; true")
        .await
        .expect_success();
    assert!(around.split_whitespace().all(|name| name == "bin"), "{around}");
    for empty in ["/var/lib", "/run", "/home/root"] {
        let listed = server.run_shell(&id, &format!("ls -A {empty} 2>/dev/null; true")).await.expect_success();
        assert_eq!(listed, "", "{empty}");
    }
    assert_eq!(server.run_exec(&id, json!({ "argv": ["ls", "/home"] })).await.expect_success(), "agent\n");
    assert_eq!(server.run_exec(&id, json!({ "argv": ["ls", "/opt"] })).await.expect_success(), "atoll\n");
    let passwd = server.run_exec(&id, json!({ "argv": ["cat", "/etc/passwd"] })).await.expect_success();
    assert!(passwd.contains("agent:") && passwd.lines().count() < 6, "{passwd}");
    let shadow =
        server.run_shell(&id, "cat /etc/shadow /etc/gshadow /etc/ssh/* 2>/dev/null; true").await.expect_success();
    assert_eq!(shadow, "");
    let devices = server
        .run_shell(&id, "find /dev -type b; ls /dev | grep -E '^(mem|kmem|kmsg|vd|sd|nvme|kvm|fuse|net|tun)'; true");
    assert_eq!(devices.await.expect_success(), "");
    // Links to the host's files resolve inside the sandbox.
    let escapes = "ln -s /../../../../etc/hostname a; ln -s /proc/1/root/etc/shadow b; cat a b /proc/1/root/etc/passwd 2>/dev/null; true";
    let hostname = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    let output = server.run_shell(&id, escapes).await.expect_success();
    assert!(hostname.trim().is_empty() || !output.contains(hostname.trim()), "{output}");
    server.stop_and_check().await;
}
