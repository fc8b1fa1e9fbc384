//! Privileges and visibility of processes in a sandbox.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use atoll_jail::Exit;

use crate::harness::{Harness, require_root, run_program, skip_test, wait_for_file};

#[test]
fn a_one_shot_run_has_no_privileges_and_only_its_descriptors() {
    let Some(harness) = Harness::new() else { return };
    harness.prepare_sandbox("a");
    assert_eq!(
        harness.shell_output("a", "id -u; id -g; id -G; umask; pwd; hostname"),
        "1000\n1000\n1000\n0022\n/workspace\nsandbox"
    );
    let status = harness.shell_output("a", "cat /proc/self/status");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000")), "{status}");
    }
    assert!(status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2"), "{status}");
    for set in ["SigBlk", "SigIgn"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000")), "{status}");
    }
    // The fourth descriptor belongs to `ls` itself.
    assert_eq!(harness.shell_output("a", "exec ls /proc/self/fd"), "0\n1\n2\n3");
    let environment =
        harness.shell_output("a", "env -u PWD -u _ -u OLDPWD -u SHLVL | cut -d= -f1 | sort | tr '\\n' ' '");
    assert_eq!(environment, "ATOLL_SANDBOX HOME IS_SANDBOX LANG LOGNAME PATH USER");
    assert_eq!(
        harness.shell_output("a", "echo $$; cat /proc/self/cgroup | cut -d: -f3 | sort -u; ulimit -c"),
        "1\n/\n0"
    );
    assert!(
        !harness.shell_output("a", "cat /proc/net/unix").contains('@'),
        "an abstract socket of the host is visible"
    );
}

#[test]
fn the_worker_has_three_capabilities_and_its_descriptors() {
    if !require_root() {
        return;
    }
    let Some(harness) = Harness::with_worker(
        "#!/bin/sh\n{ cat /proc/$$/status; env; ls -l /proc/$$/fd; echo init=$1; } >/tmp/seen.new\nmv /tmp/seen.new /tmp/seen\nexec sleep 100000\n",
    ) else {
        return;
    };
    let sandbox = harness.prepare_sandbox("a");
    let sandbox = harness.launcher.start_worker("a").map(|started| (started, sandbox)).unwrap().0;
    assert!(sandbox.is_alive);
    let seen = wait_for_file(&sandbox.dir.join("tmp/seen"));
    // CAP_KILL, CAP_SETGID, CAP_SETUID.
    for set in ["CapPrm", "CapEff"] {
        assert!(seen.contains(&format!("{set}:\t00000000000000e0")), "{seen}");
    }
    assert!(seen.contains("CapBnd:\t0000000000000000") && seen.contains("CapAmb:\t0000000000000000"), "{seen}");
    assert!(seen.contains("Uid:\t0\t0\t0\t0") && seen.contains("NSpid:\t1"), "{seen}");
    assert!(seen.contains("NoNewPrivs:\t1") && seen.contains("Seccomp:\t2") && seen.contains("init=init"), "{seen}");
    for variable in ["ATOLL_SANDBOX=a", "ATOLL_AGENT_UID=1000", "LANG=C.UTF-8"] {
        assert!(seen.contains(variable), "{seen}");
    }
    let descriptor =
        |number: usize| seen.lines().find_map(|line| line.split_once(&format!(" {number} -> "))).map(|(_, to)| to);
    assert!(descriptor(3).is_some_and(|to| to.starts_with("socket:")), "{seen}");
    assert_eq!(descriptor(4), Some("/"), "the spool is mounted in the sandbox: {seen}");
    let variable =
        |name: &str| seen.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')?.parse::<usize>().ok());
    let groups = variable("ATOLL_CGROUP_FDS").unwrap();
    for number in 5..5 + groups {
        assert!(descriptor(number).is_some_and(|to| to.ends_with("/cgroup.procs")), "{seen}");
    }
    if let Some(oom) = variable("ATOLL_OOM_FD") {
        assert!(descriptor(oom).is_some_and(|to| to.contains("memory.")), "{seen}");
        assert_eq!(variable("ATOLL_MEMORY_LIMIT"), Some(256 << 20));
    }
    harness.launcher.destroy_sandbox("a").unwrap();
}

#[test]
fn each_sandbox_has_its_own_id_range() {
    if !require_root() {
        return;
    }
    let Some(harness) = Harness::new() else { return };
    let [one, other] = ["a", "b"].map(|name| harness.prepare_sandbox(name));
    let [one_range, other_range] = [&one, &other].map(|sandbox| sandbox.id_range.unwrap());
    assert_ne!(one_range.first, other_range.first);
    assert!(one_range.first >= harness.options.id_base && one_range.count == 65_536);
    harness.shell_output("a", "touch /workspace/f /home/agent/f /tmp/f /dev/shm/f");
    let owner = |path: &Path| fs::metadata(path).map(|found| (found.uid(), found.gid())).unwrap();
    assert_eq!(owner(&one.dir.join("tmp/f")), (one_range.first + 1000, one_range.first + 1000));
    // Layers are stored with ids that no process has.
    let stored = owner(&harness.options.data_dir.join("layers")).0;
    assert!(stored >= harness.options.id_base && stored != one_range.first && stored != other_range.first);
    for path in [one.workspace.join("f"), one.workspace.with_file_name("home").join("f")] {
        assert_eq!(owner(&path), (stored + 1000, stored + 1000), "{}", path.display());
    }
    assert_eq!(
        harness.shell_output("a", "stat -c %U /workspace /home/agent /tmp /usr /etc | tr '\\n' ' '"),
        "agent agent root nobody nobody"
    );
    // The host's root is unmapped inside, so set-uid programs have no effect.
    assert_eq!(harness.shell_output("a", "cut -d' ' -f1 /proc/self/uid_map >/dev/null; id -u"), "1000");
}

#[test]
fn only_allow_listed_host_files_are_visible() {
    if !require_root() {
        return;
    }
    let Some(harness) = Harness::new() else { return };
    harness.prepare_sandbox("a");
    let name = format!("atoll-canary-{}", std::process::id());
    let mut planted = Canaries(Vec::new());
    for dir in [
        "/etc", "/home", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/var/lib", "/var/tmp", "/boot", "/media",
        "/dev/shm",
    ] {
        let path = Path::new(dir).join(&name);
        if fs::write(&path, "canary").is_ok() {
            planted.0.push(path);
        }
    }
    assert!(planted.0.len() > 6, "{:?}", planted.0);
    let outside = Path::new("/usr/local/share").join(&name);
    fs::write(&outside, "canary").unwrap();
    planted.0.push(outside);
    let found = harness.shell_output("a", &format!("find / -name '{name}' 2>/dev/null; true"));
    // The file below /usr proves that the search works.
    assert_eq!(found, format!("/usr/local/share/{name}"));
    for path in &planted.0[..planted.0.len() - 1] {
        assert_eq!(fs::read_to_string(path).unwrap(), "canary");
        let output = harness.run_shell("a", &format!("cat {}", path.display()));
        assert_eq!(output.exit, Exit::Exited(1), "{output:?}");
    }
    let root =
        harness.shell_output("a", "ls -A /root /var /opt /home /run /sys 2>&1; ls /root/.ssh /root/.config 2>&1; true");
    for hidden in [".config", ".bash_history", ".npmrc", "lib"] {
        assert!(!root.lines().any(|line| line == hidden), "{root}");
    }
}

struct Canaries(Vec<PathBuf>);

impl Drop for Canaries {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

#[test]
fn visible_host_files_are_read_only() {
    let Some(harness) = Harness::new() else { return };
    harness.prepare_sandbox("a");
    for path in
        ["/x", "/usr/x", "/etc/x", "/opt/x", "/opt/atoll/x", "/home/x", "/var/x", "/dev/x", "/proc/x", "/root/x"]
    {
        let output = harness.run_shell("a", &format!("touch {path}"));
        assert_eq!(output.exit, Exit::Exited(1), "{path}");
    }
    for path in [
        "/opt/atoll/worker",
        "/etc/passwd",
        "/usr/bin/env",
        "/proc/sys/kernel/hostname",
        "/proc/sysrq-trigger",
        "/proc/irq/default_smp_affinity",
    ] {
        let output = harness.run_shell("a", &format!("echo x >>{path}"));
        assert_ne!(output.exit, Exit::Exited(0), "{path}: {output:?}");
    }
    for (source, options) in [("tmpfs /mnt", "-t tmpfs"), ("/ /tmp", "--bind"), ("/usr /usr", "-o remount,rw")] {
        let output = harness.run_shell("a", &format!("mount {options} {source}"));
        assert_ne!(output.exit, Exit::Exited(0), "{output:?}");
    }
    harness.shell_output("a", "for d in /workspace /home/agent /tmp /dev/shm; do echo x >$d/x && cat $d/x; done");
    harness.shell_output("a", "cp /bin/true /tmp/t && /tmp/t && cp /bin/true /workspace/t && /workspace/t");
}

#[test]
fn proc_reveals_neither_the_host_nor_other_processes() {
    let Some(harness) = Harness::new() else { return };
    harness.prepare_sandbox("a");
    harness.launcher.start_worker("a").unwrap();
    assert_eq!(
        harness
            .shell_output("a", "cat /proc/keys /proc/timer_list /proc/key-users /proc/sched_debug 2>/dev/null | wc -c"),
        "0"
    );
    // Hidden files are the empty device, also where the agent could not read the original.
    let hidden = "for name in kcore keys key-users latency_stats sched_debug timer_list timer_stats; do \
                  test ! -e /proc/$name || stat -c '%t:%T' /proc/$name; done | sort -u";
    assert_eq!(harness.shell_output("a", hidden), "1:3");
    let processes: usize = harness.shell_output("a", "ls -d /proc/[0-9]* | wc -l").parse().unwrap();
    assert!(processes <= 4, "{processes} processes are visible");
    for path in ["/proc/1/root/etc/shadow", "/proc/kcore", "/proc/1/mem", "/proc/kmsg", "/proc/slabinfo"] {
        let output = harness.run_shell("a", &format!("test -s {path} && head -c 1 {path} | grep -q ."));
        assert_ne!(output.exit, Exit::Exited(0), "{path}: {output:?}");
    }
    assert_eq!(harness.shell_output("a", "ls /proc/acpi /proc/scsi 2>/dev/null | grep -v : | wc -w"), "0");
    harness.launcher.destroy_sandbox("a").unwrap();
}

#[test]
fn dangerous_system_calls_are_refused_and_unknown_ones_missing() {
    let Some(harness) = Harness::new() else { return };
    harness.prepare_sandbox("a");
    for command in ["unshare -Ur true", "unshare -m true", "unshare -n true", "nsenter -t 1 -m true", "chroot / true"] {
        let output = harness.run_shell("a", command);
        assert_ne!(output.exit, Exit::Exited(0), "{command}: {output:?}");
    }
    if !Path::new("/usr/bin/python3").exists() || !cfg!(target_arch = "x86_64") {
        return skip_test("needs /usr/bin/python3 on x86_64");
    }
    let script = r#"
import ctypes, errno, socket, fcntl, os
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    libc.syscall(number, *arguments)
    return errno.errorcode.get(ctypes.get_errno(), 'OK')
names = dict(ptrace=101, mount=165, umount2=166, pivot_root=155, unshare=272, setns=308, keyctl=250, add_key=248,
    request_key=249, bpf=321, perf_event_open=298, userfaultfd=323, io_uring_setup=425, kexec_load=246, init_module=175,
    finit_module=313, process_vm_readv=310, process_vm_writev=311, open_tree=428, move_mount=429, fsopen=430, reboot=169,
    swapon=167, open_by_handle_at=304, pidfd_getfd=438, mount_setattr=442, iopl=172)
for name, number in names.items():
    print(name, call(number, 0, 0, 0, 0, 0))
print('clone3', call(435, 0, 0))
print('unknown', call(9999))
print('x32', call(0x40000000 | 39))
for family in (socket.AF_NETLINK, socket.AF_PACKET, socket.AF_VSOCK, 38):
    try:
        socket.socket(family, socket.SOCK_RAW); print('socket', 'OK')
    except OSError as error: print('socket', errno.errorcode[error.errno])
leader, follower = os.openpty()
try:
    fcntl.ioctl(follower, 0x5412, b'x'); print('tiocsti OK')
except OSError as error: print('tiocsti', errno.errorcode[error.errno])
"#;
    let output = run_program(&harness.launcher, "a", &["/usr/bin/python3", "-c", script]);
    assert_eq!(output.exit, Exit::Exited(0), "{output:?}");
    let output = output.stdout;
    for line in output.lines() {
        let (name, verdict) = line.split_once(' ').unwrap();
        let expected = match name {
            "clone3" | "unknown" | "x32" => "ENOSYS",
            "socket" => "EAFNOSUPPORT",
            _ => "EPERM",
        };
        assert_eq!(verdict, expected, "{name}\n{output}");
    }
    assert_eq!(output.lines().count(), 27 + 3 + 4 + 1, "{output}");
}

#[test]
fn the_loopback_is_the_only_network() {
    let Some(harness) = Harness::new() else { return };
    harness.prepare_sandbox("a");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    assert_eq!(
        harness.shell_output(
            "a",
            "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; tail -n +2 /proc/net/route | wc -l"
        ),
        "lo\n0"
    );
    let connect = |host: &str, port: u16| {
        harness.run_shell("a", &format!("exec 2>/dev/null; timeout 5 bash -c '</dev/tcp/{host}/{port}'"))
    };
    assert_ne!(connect("127.0.0.1", port).exit, Exit::Exited(0), "the host's loopback is reachable");
    assert_ne!(connect("169.254.169.254", 80).exit, Exit::Exited(0));
    if Path::new("/usr/bin/python3").exists() {
        let inside = "import socket; s=socket.create_server(('127.0.0.1',0)); socket.create_connection(s.getsockname()); s=socket.create_server(('::1',0),family=socket.AF_INET6); socket.create_connection(s.getsockname()[:2]); print('ok')";
        assert_eq!(harness.shell_output("a", &format!("/usr/bin/python3 -c \"{inside}\"")), "ok");
    }
}

#[test]
fn sandboxes_cannot_reach_each_other() {
    let Some(harness) = Harness::new() else { return };
    harness.prepare_sandbox("a");
    harness.prepare_sandbox("b");
    harness.shell_output("a", "echo secret >/workspace/mine; echo secret >/tmp/mine; chmod 644 /workspace/mine");
    assert_eq!(harness.shell_output("b", "find / -name mine 2>/dev/null; true"), "");
    // Links resolve inside the sandbox, never outside.
    let other = harness.launcher.find_sandbox("a").unwrap().unwrap().workspace;
    harness
        .shell_output("b", &format!("ln -s {} /workspace/link; ln -s /etc/shadow /workspace/shadow", other.display()));
    assert_ne!(harness.run_shell("b", "cat /workspace/link/mine || cat /workspace/shadow").exit, Exit::Exited(0));
    assert_ne!(harness.run_shell("b", "cat /workspace/../../workspace/mine").exit, Exit::Exited(0));
}
