//! Sandboxes whose disk use the kernel bounds: their files lie in a pool.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use atoll_jail::{Bound, DiskBound, Error, Exit, Launcher, Limits, Place, Spec, Tier};

use crate::harness::{Harness, enter, spec};

const WORKER: &str = "#!/bin/sh\nexec sleep 1000000\n";
const GIB: u64 = 1 << 30;
const SMALL: u64 = 32 << 20;
/// Fills a file until that fails, and says how far it came.
const FILL: &str = "said=$(head -c 200M /dev/zero 2>&1 >/workspace/large); stat -c %s /workspace/large; echo \"$said\"";

fn small(name: &str) -> Spec {
    Spec { limits: Limits { disk_bytes: SMALL, ..spec(name).limits }, ..spec(name) }
}

fn pooled() -> Option<Harness> {
    Harness::with_pool(WORKER, GIB)
}

/// What devices stand for the pool's file.
fn devices(harness: &Harness) -> Vec<String> {
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

/// The sandbox took about as much as it may, and was told that there is no more.
fn is_full(said: &str) {
    let (size, why) = said.split_once('\n').unwrap_or((said, ""));
    let size: u64 = size.parse().unwrap();
    assert!((SMALL * 3 / 4..=SMALL).contains(&size), "{size} of {SMALL}");
    assert!(why.contains("Disk quota exceeded"), "{why}");
}

/// Ends all of it and sees that nothing is left.
fn leave(harness: Harness) {
    for place in harness.launcher.list().unwrap() {
        harness.launcher.destroy(&place.name).unwrap();
    }
    assert_eq!(harness.layers(), Vec::<String>::new());
    let Harness { launcher, options, data } = harness;
    drop(launcher);
    let rest = Harness { launcher: Launcher::start(options.clone()).unwrap(), options, data };
    gone(&rest);
}

fn gone(harness: &Harness) {
    let start = Instant::now();
    while is_mounted(harness) || !devices(harness).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", devices(harness));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn who_fills_its_disk_is_refused_and_nobody_else() {
    let Some(harness) = pooled() else { return };
    let place = harness.launcher.prepare(&small("full")).unwrap();
    assert_eq!(place.enforced.disk, Bound::Enforced);
    harness.launcher.prepare(&small("neighbour")).unwrap();
    is_full(&harness.said("full", FILL));
    let used = harness.launcher.disk("full").unwrap();
    assert!((SMALL * 3 / 4..=SMALL).contains(&used.bytes), "{used:?}");
    assert!(used.room.is_some_and(|room| room > GIB / 4));
    assert_eq!(harness.said("neighbour", "head -c 16M /dev/zero >/workspace/f; stat -c %s /workspace/f"), "16777216");
    // Temporary files and those of the home count too.
    for place in ["/tmp/more", "$HOME/more"] {
        let ran = harness.shell("full", &format!("head -c 8M /dev/zero >{place}"));
        assert_ne!(ran.exit, Exit::Exited(0), "{place}: {ran:?}");
    }
    assert_eq!(harness.said("full", "rm /workspace/large /tmp/more ~/more; head -c 8M /dev/zero >x; echo ok"), "ok");
    leave(harness);
}

#[test]
fn many_small_files_are_bounded_too() {
    let Some(harness) = pooled() else { return };
    let limits = Limits { disk_bytes: 4 << 20, ..spec("a").limits };
    harness.launcher.prepare(&Spec { limits, ..spec("a") }).unwrap();
    let name = "x".repeat(200);
    let bomb = format!(
        "mkdir d; cd d; i=0; while [ $i -lt 50000 ]; do i=$((i+1)); true >{name}$i || break; done 2>/dev/null; echo $i"
    );
    let count: u64 = harness.said("a", &bomb).parse().unwrap();
    assert!((100..50_000).contains(&count), "{count}");
    assert_eq!(harness.said("a", "cd /workspace; rm -r d; echo ok >f; cat f"), "ok");
    leave(harness);
}

#[test]
fn nobody_inside_can_make_a_volume_of_their_own() {
    let Some(harness) = pooled() else { return };
    harness.launcher.prepare(&small("a")).unwrap();
    if !Path::new("/usr/bin/python3").exists() {
        return crate::harness::skip("there is no python3");
    }
    // BTRFS_IOC_SUBVOL_CREATE, which an ordinary user may call: outside it works.
    let make = "import fcntl,os,sys,struct\nd=os.open(sys.argv[1],os.O_RDONLY)\ntry:\n fcntl.ioctl(d,0x5000940e,bytearray(struct.pack('q4088s',0,b'volume')))\n print('made')\nexcept OSError as e: print(e.errno)\n";
    let outside = std::process::Command::new("python3").args(["-c", make]).arg(harness.store()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&outside.stdout).trim(), "made");
    fs::remove_dir(harness.store().join("volume")).unwrap();
    let inside = harness.said("a", &format!("python3 -c \"{make}\" /workspace; ls /workspace"));
    assert_eq!(inside, libc_enotty().to_string());
    leave(harness);
}

fn libc_enotty() -> i32 {
    rustix::io::Errno::NOTTY.raw_os_error()
}

#[test]
fn forks_and_snapshots_are_isolated_and_bounded() {
    let Some(harness) = pooled() else { return };
    harness.launcher.prepare(&small("parent")).unwrap();
    harness.launcher.start_worker("parent").unwrap();
    let inside = |name: &str, script: &str| {
        let ran = enter(&harness.launcher, name, false, script).unwrap();
        assert_eq!(ran.exit, Exit::Exited(0), "{script}: {ran:?}");
        ran.stdout.trim().to_owned()
    };
    inside(
        "parent",
        "head -c 16M /dev/urandom >half; echo one >kept; echo secret >/tmp/own; sleep 1000 >/dev/null 2>&1 &",
    );
    let child = harness.launcher.fork("parent", &small("child")).unwrap();
    assert_eq!(child.enforced.disk, Bound::Enforced);
    assert_eq!(inside("parent", "echo two >kept; pgrep -x sleep | wc -l"), "2", "the parent was not disturbed");
    harness.launcher.start_worker("child").unwrap();
    assert_eq!(inside("child", "cat kept; ls /tmp; stat -c %U%a kept . ~"), "one\nagent644\nagent755\nagent755");
    // What it began with counts.
    let used = harness.launcher.disk("child").unwrap().bytes;
    assert!((15 << 20..20 << 20).contains(&used), "{used}");
    let said = inside("child", FILL);
    let size: u64 = said.lines().next().unwrap().parse().unwrap();
    assert!((8 << 20..=16 << 20).contains(&size), "{said}");
    assert_eq!(inside("parent", "head -c 8M /dev/zero >more; stat -c %s more"), "8388608");
    let kept = harness.launcher.snapshot("parent", "base").unwrap();
    assert_eq!(kept.depth, 1);
    inside("parent", "rm half more kept");
    harness.launcher.destroy("parent").unwrap();
    let of = |name: &str| Spec { snapshot: Some("base".into()), ..small(name) };
    let size = |name: &str| {
        let start = Instant::now();
        loop {
            let kept = harness.launcher.snapshots().unwrap();
            if let Some(bytes) = kept.iter().find(|kept| kept.name == name).unwrap().bytes {
                return bytes;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{kept:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let base = size("base");
    assert!(base > 20 << 20, "{base}");
    harness.launcher.prepare(&of("less")).unwrap();
    harness.said("less", "rm half");
    harness.launcher.snapshot("less", "less").unwrap();
    let less = size("less");
    assert!(less < base - (12 << 20), "each has its own size: {less}, {base}");
    harness.launcher.destroy("less").unwrap();
    harness.launcher.forget_snapshot("less").unwrap();
    harness.launcher.prepare(&of("again")).unwrap();
    assert_eq!(harness.said("again", "cat kept; ls /tmp; stat -c %s half more"), "two\n16777216\n8388608");
    let ran = harness.shell("again", "head -c 16M /dev/zero >over");
    assert!(ran.stderr.contains("Disk quota exceeded"), "{ran:?}");
    assert_eq!(harness.said("again", "rm over; echo x >fine; cat fine"), "x");
    harness.launcher.destroy("again").unwrap();
    harness.launcher.destroy("child").unwrap();
    assert!(matches!(
        harness.launcher.prepare(&Spec { snapshot: Some("none".into()), ..small("b") }),
        Err(Error::NotKept { .. })
    ));
    harness.launcher.forget_snapshot("base").unwrap();
    leave(harness);
}

#[test]
fn a_killed_launcher_leaves_a_pool_that_the_next_one_finds() {
    let Some(harness) = pooled() else { return };
    harness.launcher.prepare(&small("a")).unwrap();
    harness.launcher.start_worker("a").unwrap();
    harness.said("a", "echo kept >/workspace/f");
    let before = devices(&harness);
    assert!(before.len() == 1 && is_mounted(&harness));
    let harness = harness.killed();
    let Place { alive, .. } = harness.launcher.find("a").unwrap().unwrap();
    assert!(alive);
    assert_eq!(devices(&harness), before, "no second device for the same file");
    assert_eq!(harness.said("a", "cat /workspace/f"), "kept");
    // One that ends as it should, with a sandbox alive, takes its own mount along; the next has the same files.
    let Harness { launcher, options, data } = harness;
    drop(launcher);
    let harness = Harness { launcher: Launcher::start(options.clone()).unwrap(), options, data };
    assert!(!is_mounted(&harness) && devices(&harness) == before);
    is_full(&harness.said("a", FILL));
    assert_eq!(devices(&harness), before);
    leave(harness);
}

#[test]
fn a_pool_grows_and_does_not_shrink_and_is_strong() {
    let Some(mut harness) = pooled() else { return };
    harness.prepared("a");
    harness.said("a", "echo kept >/workspace/f");
    let before = harness.launcher.disk("a").unwrap().room.unwrap();
    let again = |mut harness: Harness, bytes: Option<u64>| {
        drop(harness.launcher);
        harness.options.disk_pool = bytes;
        Harness {
            launcher: Launcher::start(harness.options.clone()).unwrap(),
            options: harness.options,
            data: harness.data,
        }
    };
    harness = again(harness, Some(2 * GIB));
    assert_eq!(harness.said("a", "cat /workspace/f"), "kept");
    let room = harness.launcher.disk("a").unwrap().room.unwrap();
    assert!(room > before + GIB / 2, "{before} {room}");
    harness = again(harness, Some(GIB));
    assert_eq!(harness.said("a", "cat /workspace/f"), "kept");
    let report = harness.launcher.probe().unwrap();
    assert!(report.missing.iter().any(|missing| missing.what.contains("can't become smaller")), "{:?}", report.missing);
    assert_eq!(report.disk, DiskBound::Enforced);
    let lacks: Vec<_> = report.missing.iter().filter(|missing| missing.keeps_from.is_some()).collect();
    assert_eq!(report.tier == Tier::Strong, lacks.is_empty(), "{lacks:?}");
    // Without the line in the configuration what is there is not lost.
    harness = again(harness, None);
    assert_eq!(harness.said("a", "cat /workspace/f"), "kept");
    harness.options.disk_pool = Some(GIB);
    leave(harness);
}

#[test]
fn a_full_pool_is_felt_and_nothing_is_lost() {
    let Some(harness) = Harness::with_pool(WORKER, 256 << 20) else { return };
    harness.prepared("a");
    harness.said("a", "echo kept >/workspace/f");
    let ran = harness.shell("a", "head -c 400M /dev/zero >/workspace/large");
    assert!(ran.stderr.contains("No space left on device"), "{ran:?}");
    assert!(harness.launcher.disk("a").unwrap().room.unwrap() < 32 << 20);
    assert_eq!(harness.said("a", "rm /workspace/large; sync /workspace; cat /workspace/f"), "kept");
    leave(harness);
}
