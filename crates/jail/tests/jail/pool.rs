//! Sandboxes in a disk pool, where the kernel enforces quotas.

use std::fs;
use std::path::Path;

use atoll_jail::{DiskQuota, Enforcement, Error, Exit, Launcher, ResourceLimits, SandboxInfo, SandboxSpec, Tier};
use atoll_test_wait::{wait_for, wait_until};

use crate::harness::{Harness, exec_shell, spec};

const WORKER: &str = "#!/bin/sh\nexec sleep 1000000\n";
const GIB: u64 = 1 << 30;
const SMALL: u64 = 32 << 20;
/// Fills a file until it fails, and prints its size.
const FILL: &str =
    "error=$(head -c 200M /dev/zero 2>&1 >/workspace/large); stat -c %s /workspace/large; echo \"$error\"";

fn small_spec(name: &str) -> SandboxSpec {
    SandboxSpec { limits: ResourceLimits { disk_bytes: SMALL, ..spec(name).limits }, ..spec(name) }
}

fn pool_harness() -> Option<Harness> {
    Harness::with_pool(WORKER, GIB)
}

/// The loop devices of the pool's file.
fn loop_devices(harness: &Harness) -> Vec<String> {
    let file = harness.options.data_dir.join("pool.btrfs");
    let found = fs::read_dir("/sys/block").unwrap().flatten().filter(|entry| {
        let backing = fs::read_to_string(entry.path().join("loop/backing_file"));
        backing.is_ok_and(|backing| Path::new(backing.trim()) == file)
    });
    found.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn is_mounted(harness: &Harness) -> bool {
    let point = harness.options.data_dir.join("pool").to_string_lossy().into_owned();
    fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&format!(" {point} "))
}

/// Asserts that the sandbox used about its quota and then got an error.
fn assert_full(output: &str) {
    let (size, why) = output.split_once('\n').unwrap_or((output, ""));
    let size: u64 = size.parse().unwrap();
    assert!((SMALL * 3 / 4..=SMALL).contains(&size), "{size} of {SMALL}");
    assert!(why.contains("Disk quota exceeded"), "{why}");
}

/// Destroys everything and checks that nothing remains.
fn destroy_all(harness: Harness) {
    for sandbox in harness.launcher.list_sandboxes().unwrap() {
        harness.launcher.destroy_sandbox(&sandbox.name).unwrap();
    }
    assert_eq!(harness.list_layers(), Vec::<String>::new());
    let Harness { launcher, options, data } = harness;
    drop(launcher);
    let rest = Harness { launcher: Launcher::start(options.clone()).unwrap(), options, data };
    wait_until_unmounted(&rest);
}

fn wait_until_unmounted(harness: &Harness) {
    wait_until("the pool to be unmounted", || !is_mounted(harness) && loop_devices(harness).is_empty());
}

#[test]
fn a_full_sandbox_gets_an_error_and_its_neighbour_does_not() {
    let Some(harness) = pool_harness() else { return };
    let sandbox = harness.launcher.prepare_sandbox(&small_spec("full")).unwrap();
    assert_eq!(sandbox.enforced.disk, Enforcement::Enforced);
    harness.launcher.prepare_sandbox(&small_spec("neighbour")).unwrap();
    assert_full(&harness.shell_output("full", FILL));
    let used = harness.launcher.measure_disk("full").unwrap();
    assert!((SMALL * 3 / 4..=SMALL).contains(&used.bytes), "{used:?}");
    assert!(used.free_pool_bytes.is_some_and(|room| room > GIB / 4));
    assert_eq!(
        harness.shell_output("neighbour", "head -c 16M /dev/zero >/workspace/f; stat -c %s /workspace/f"),
        "16777216"
    );
    // Temporary files and the home count too.
    for path in ["/tmp/more", "$HOME/more"] {
        let ran = harness.run_shell("full", &format!("head -c 8M /dev/zero >{path}"));
        assert_ne!(ran.exit, Exit::Exited(0), "{path}: {ran:?}");
    }
    assert_eq!(
        harness.shell_output("full", "rm /workspace/large /tmp/more ~/more; head -c 8M /dev/zero >x; echo ok"),
        "ok"
    );
    destroy_all(harness);
}

#[test]
fn many_small_files_count_towards_the_quota() {
    let Some(harness) = pool_harness() else { return };
    let limits = ResourceLimits { disk_bytes: 4 << 20, ..spec("a").limits };
    harness.launcher.prepare_sandbox(&SandboxSpec { limits, ..spec("a") }).unwrap();
    let name = "x".repeat(200);
    let bomb = format!(
        "mkdir d; cd d; i=0; while [ $i -lt 50000 ]; do i=$((i+1)); true >{name}$i || break; done 2>/dev/null; echo $i"
    );
    let count: u64 = harness.shell_output("a", &bomb).parse().unwrap();
    assert!((100..50_000).contains(&count), "{count}");
    assert_eq!(harness.shell_output("a", "cd /workspace; rm -r d; echo ok >f; cat f"), "ok");
    destroy_all(harness);
}

#[test]
fn a_sandbox_cannot_create_subvolumes() {
    let Some(harness) = pool_harness() else { return };
    harness.launcher.prepare_sandbox(&small_spec("a")).unwrap();
    if !Path::new("/usr/bin/python3").exists() {
        return crate::harness::skip_test("there is no python3");
    }
    // BTRFS_IOC_SUBVOL_CREATE, which unprivileged users may call: it works outside.
    let make = "import fcntl,os,sys,struct\nd=os.open(sys.argv[1],os.O_RDONLY)\ntry:\n fcntl.ioctl(d,0x5000940e,bytearray(struct.pack('q4088s',0,b'volume')))\n print('made')\nexcept OSError as e: print(e.errno)\n";
    let outside = std::process::Command::new("python3").args(["-c", make]).arg(harness.layers_dir()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&outside.stdout).trim(), "made");
    fs::remove_dir(harness.layers_dir().join("volume")).unwrap();
    let inside = harness.shell_output("a", &format!("python3 -c \"{make}\" /workspace; ls /workspace"));
    assert_eq!(inside, libc_enotty().to_string());
    destroy_all(harness);
}

fn libc_enotty() -> i32 {
    rustix::io::Errno::NOTTY.raw_os_error()
}

#[test]
fn forks_and_snapshots_are_isolated_and_have_quotas() {
    let Some(harness) = pool_harness() else { return };
    harness.launcher.prepare_sandbox(&small_spec("parent")).unwrap();
    harness.launcher.start_worker("parent").unwrap();
    let inside = |name: &str, script: &str| {
        let ran = exec_shell(&harness.launcher, name, false, script).unwrap();
        assert_eq!(ran.exit, Exit::Exited(0), "{script}: {ran:?}");
        ran.stdout.trim().to_owned()
    };
    inside(
        "parent",
        "head -c 16M /dev/urandom >half; echo one >kept; echo secret >/tmp/own; sleep 1000 >/dev/null 2>&1 &",
    );
    let child = harness.launcher.fork_sandbox("parent", &small_spec("child")).unwrap();
    assert_eq!(child.enforced.disk, Enforcement::Enforced);
    assert_eq!(inside("parent", "echo two >kept; pgrep -x sleep | wc -l"), "2", "the parent was not disturbed");
    harness.launcher.start_worker("child").unwrap();
    assert_eq!(inside("child", "cat kept; ls /tmp; stat -c %U%a kept . ~"), "one\nagent644\nagent755\nagent755");
    // The initial content counts.
    let used = harness.launcher.measure_disk("child").unwrap().bytes;
    assert!((15 << 20..20 << 20).contains(&used), "{used}");
    let output = inside("child", FILL);
    let size: u64 = output.lines().next().unwrap().parse().unwrap();
    assert!((8 << 20..=16 << 20).contains(&size), "{output}");
    assert_eq!(inside("parent", "head -c 8M /dev/zero >more; stat -c %s more"), "8388608");
    let created = harness.launcher.create_snapshot("parent", "base").unwrap();
    assert_eq!(created.depth, 1);
    inside("parent", "rm half more kept");
    harness.launcher.destroy_sandbox("parent").unwrap();
    let of = |name: &str| SandboxSpec { snapshot: Some("base".into()), ..small_spec(name) };
    let size = |name: &str| {
        wait_for("the snapshot's size", || {
            let snapshots = harness.launcher.list_snapshots().unwrap();
            snapshots.iter().find(|snapshot| snapshot.name == name).unwrap().bytes
        })
    };
    let base = size("base");
    assert!(base > 20 << 20, "{base}");
    harness.launcher.prepare_sandbox(&of("less")).unwrap();
    harness.shell_output("less", "rm half");
    harness.launcher.create_snapshot("less", "less").unwrap();
    let less = size("less");
    assert!(less < base - (12 << 20), "each has its own size: {less}, {base}");
    harness.launcher.destroy_sandbox("less").unwrap();
    harness.launcher.forget_snapshot("less").unwrap();
    harness.launcher.prepare_sandbox(&of("again")).unwrap();
    assert_eq!(harness.shell_output("again", "cat kept; ls /tmp; stat -c %s half more"), "two\n16777216\n8388608");
    let ran = harness.run_shell("again", "head -c 16M /dev/zero >over");
    assert!(ran.stderr.contains("Disk quota exceeded"), "{ran:?}");
    assert_eq!(harness.shell_output("again", "rm over; echo x >fine; cat fine"), "x");
    harness.launcher.destroy_sandbox("again").unwrap();
    harness.launcher.destroy_sandbox("child").unwrap();
    assert!(matches!(
        harness.launcher.prepare_sandbox(&SandboxSpec { snapshot: Some("none".into()), ..small_spec("b") }),
        Err(Error::NotFound { .. })
    ));
    harness.launcher.forget_snapshot("base").unwrap();
    destroy_all(harness);
}

#[test]
fn the_next_launcher_finds_the_pool_of_a_killed_one() {
    let Some(harness) = pool_harness() else { return };
    harness.launcher.prepare_sandbox(&small_spec("a")).unwrap();
    harness.launcher.start_worker("a").unwrap();
    harness.shell_output("a", "echo kept >/workspace/f");
    let before = loop_devices(&harness);
    assert!(before.len() == 1 && is_mounted(&harness));
    let harness = harness.restart_after_kill();
    let SandboxInfo { is_alive: alive, .. } = harness.launcher.find_sandbox("a").unwrap().unwrap();
    assert!(alive);
    assert_eq!(loop_devices(&harness), before, "no second device for the same file");
    assert_eq!(harness.shell_output("a", "cat /workspace/f"), "kept");
    // A launcher that ends normally unmounts the pool under a running sandbox; the next one finds the same files.
    let Harness { launcher, options, data } = harness;
    drop(launcher);
    let harness = Harness { launcher: Launcher::start(options.clone()).unwrap(), options, data };
    assert!(!is_mounted(&harness) && loop_devices(&harness) == before);
    assert_full(&harness.shell_output("a", FILL));
    assert_eq!(loop_devices(&harness), before);
    destroy_all(harness);
}

#[test]
fn a_pool_grows_never_shrinks_and_gives_the_strong_tier() {
    let Some(mut harness) = pool_harness() else { return };
    harness.prepare_sandbox("a");
    harness.shell_output("a", "echo kept >/workspace/f");
    let before = harness.launcher.measure_disk("a").unwrap().free_pool_bytes.unwrap();
    let again = |mut harness: Harness, bytes: Option<u64>| {
        drop(harness.launcher);
        harness.options.disk_pool_bytes = bytes;
        Harness {
            launcher: Launcher::start(harness.options.clone()).unwrap(),
            options: harness.options,
            data: harness.data,
        }
    };
    harness = again(harness, Some(2 * GIB));
    assert_eq!(harness.shell_output("a", "cat /workspace/f"), "kept");
    let room = harness.launcher.measure_disk("a").unwrap().free_pool_bytes.unwrap();
    assert!(room > before + GIB / 2, "{before} {room}");
    harness = again(harness, Some(GIB));
    assert_eq!(harness.shell_output("a", "cat /workspace/f"), "kept");
    let report = harness.launcher.probe_host().unwrap();
    assert!(report.missing.iter().any(|missing| missing.description.contains("cannot shrink")), "{:?}", report.missing);
    assert_eq!(report.disk, DiskQuota::Enforced);
    let blockers: Vec<_> = report.missing.iter().filter(|missing| missing.blocks_tier.is_some()).collect();
    assert_eq!(report.tier == Tier::Strong, blockers.is_empty(), "{blockers:?}");
    // Without the setting, an existing pool is still mounted.
    harness = again(harness, None);
    assert_eq!(harness.shell_output("a", "cat /workspace/f"), "kept");
    harness.options.disk_pool_bytes = Some(GIB);
    destroy_all(harness);
}

#[test]
fn a_full_pool_causes_errors_and_loses_nothing() {
    let Some(harness) = Harness::with_pool(WORKER, 256 << 20) else { return };
    harness.prepare_sandbox("a");
    harness.shell_output("a", "echo kept >/workspace/f");
    let ran = harness.run_shell("a", "head -c 400M /dev/zero >/workspace/large");
    assert!(ran.stderr.contains("No space left on device"), "{ran:?}");
    assert!(harness.launcher.measure_disk("a").unwrap().free_pool_bytes.unwrap() < 32 << 20);
    assert_eq!(harness.shell_output("a", "rm /workspace/large; sync /workspace; cat /workspace/f"), "kept");
    destroy_all(harness);
}
