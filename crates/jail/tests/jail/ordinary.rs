//! The same for an ordinary user. Needs root, to become one.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use atoll_jail::{Ability, Bound, Error, Exit, Ids, LauncherOptions, Step, Tier};

use crate::harness::{Harness, skip, spec};

const USER: u32 = 54_321;

pub fn possible() -> bool {
    let found = rustix::process::geteuid().is_root() && Path::new("/usr/bin/setpriv").exists();
    if !found {
        skip("needs root and /usr/bin/setpriv");
    }
    found
}

/// Lets the launcher run as a user that is nobody else, after `before` has run as root in a mount namespace of its own.
pub fn as_user(options: &mut LauncherOptions, before: &str) {
    let data = options.data_dir.parent().unwrap().to_path_buf();
    // The test's own program may lie where the user can't go.
    let program = data.join("launcher");
    fs::copy(&options.exe, &program).unwrap();
    chown(&data, Some(USER), Some(USER)).unwrap();
    let script = format!(
        "set -e; cd {}; {before}\nexec setpriv --reuid {USER} --regid {USER} --clear-groups -- {} {}",
        data.display(),
        program.display(),
        options.args.join(" ")
    );
    options.exe = "/usr/bin/unshare".into();
    options.args = ["-m", "/bin/sh", "-c", &script].map(str::to_owned).to_vec();
    options.home = None;
}

/// A launcher of a user with sub-ids.
pub fn with_sub_ids(worker: &str) -> Option<Harness> {
    if !possible() {
        return None;
    }
    if !Path::new("/usr/bin/newuidmap").exists() {
        skip("newuidmap is not installed");
        return None;
    }
    let files = "
        dir=$PWD; cp /etc/passwd /etc/group $dir; echo 'ordinary:x:54321:54321::/nonexistent:/bin/sh' >>$dir/passwd
        echo 'ordinary:200000:65536' >$dir/subuid; echo 'ordinary:200000:65536' >$dir/subgid
        for f in passwd subuid subgid; do test -e /etc/$f || { echo \"no /etc/$f\" >&2; exit 1; }; mount --bind $dir/$f /etc/$f; done";
    for file in ["/etc/subuid", "/etc/subgid"] {
        if !Path::new(file).exists() {
            skip("there is no /etc/subuid to hang another over");
            return None;
        }
    }
    Some(Harness::with(worker, |options| as_user(options, files)))
}

/// A launcher of a user with one id and no more.
pub fn with_one_id(worker: &str) -> Option<Harness> {
    possible().then(|| Harness::with(worker, |options| as_user(options, "")))
}

const WORKER: &str = "#!/bin/sh\n{ id -u; grep -E 'Cap(Prm|Eff)' /proc/$$/status; echo x >&4; } >/tmp/seen.new 2>/dev/null\nmv /tmp/seen.new /tmp/seen\nexec sleep 100000\n";

#[test]
fn without_sub_ids_everything_is_one_id() {
    let Some(harness) = with_one_id(WORKER) else { return };
    let as_root = Harness::with(WORKER, |_| {}).launcher.probe().unwrap();
    let report = harness.launcher.probe().unwrap();
    assert_eq!(report.tier, Tier::Standard, "{report:#?}");
    assert!(!report.root && report.missing.iter().any(|missing| missing.what.contains("own id")), "{report:#?}");
    assert_eq!((&report.overlay, &report.landlock), (&Ability::Yes, &as_root.landlock), "{report:#?}");
    let lacks = report.lacks(Tier::Strong).unwrap();
    for remedy in ["Delegate=yes", "usermod --add-subuids", "watched, not bounded"] {
        assert!(lacks.contains(remedy), "{remedy}: {lacks}");
    }
    assert_eq!(report.lacks(Tier::Standard), None);
    let place = harness.prepared("a");
    assert_eq!((place.enforced.ids, place.range), (Ids::Single, None));
    assert_eq!(place.enforced.memory, Bound::PerProcess, "cgroups here are root's");
    assert_eq!(harness.said("a", "id -u; touch file; mkdir -p locked/deep; chmod 000 locked"), "1000");
    assert_eq!(fs::metadata(place.workspace.join("file")).unwrap().uid(), USER);
    let status = harness.said("a", "cat /proc/self/status");
    assert!(status.contains("CapBnd:\t0000000000000000") && status.contains("Seccomp:\t2"), "{status}");
    assert_ne!(harness.shell("a", "ls /root/.ssh /var/lib").exit, Exit::Exited(0));
    let hog = harness.shell("a", "head -c 300m /dev/zero | tail -c 299m >/dev/null; exit $?");
    assert_ne!(hog.exit, Exit::Exited(0), "each process is bounded: {hog:?}");

    harness.launcher.start_worker("a").unwrap();
    let seen = crate::isolation::wait_for(&place.dir.join("tmp/seen"));
    assert!(seen.starts_with("1000") && seen.contains("CapPrm:\t0000000000000000"), "{seen}");
    harness.launcher.destroy("a").unwrap();
    assert!(!place.dir.exists());
}

#[test]
fn with_sub_ids_the_agent_is_another() {
    let Some(harness) = with_sub_ids(WORKER) else { return };
    let report = harness.launcher.probe().unwrap();
    assert_eq!(report.tier, Tier::Standard, "{report:#?}");
    let place = harness.prepared("a");
    assert_eq!(place.enforced.ids, Ids::Shared);
    assert_eq!(harness.said("a", "id -u; id -G; touch file; mkdir -p locked/deep; chmod 000 locked"), "1000\n1000");
    assert_eq!(fs::metadata(place.workspace.join("file")).unwrap().uid(), 200_999);
    assert_eq!(fs::metadata(&place.spool).unwrap().uid(), USER);
    harness.launcher.start_worker("a").unwrap();
    let seen = crate::isolation::wait_for(&place.dir.join("tmp/seen"));
    assert!(seen.starts_with('0') && seen.contains("CapPrm:\t00000000000000e0"), "{seen}");
    harness.launcher.destroy("a").unwrap();
    assert!(!place.dir.exists(), "also what belongs to the sub-ids");
}

#[test]
fn without_user_namespaces_it_is_refused_with_the_remedy() {
    if !possible() {
        return;
    }
    // In a user namespace of its own the number can be lowered without anybody noticing.
    let harness = Harness::with(WORKER, |options| {
        let command = format!("{} {}", options.exe.display(), options.args.join(" "));
        options.exe = "/usr/bin/unshare".into();
        let script = format!("echo 0 >/proc/sys/user/max_user_namespaces && exec {command}");
        options.args = ["-Ur", "/bin/sh", "-c", &script].map(str::to_owned).to_vec();
        options.id_base = 0;
    });
    let report = harness.launcher.probe().unwrap();
    assert_eq!(report.tier, Tier::None, "{report:#?}");
    assert!(matches!(&report.user_namespaces, Ability::No { .. }), "{report:#?}");
    let lacks = report.lacks(Tier::Standard).unwrap();
    assert!(lacks.contains("sysctl -w user.max_user_namespaces=15000"), "{lacks}");
    let error = harness.launcher.prepare(&spec("a")).and_then(|_| harness.launcher.start_worker("a")).unwrap_err();
    match error {
        Error::Step { step: Step::Clone, remedy: Some(remedy), .. } => {
            assert!(remedy.contains("max_user_namespaces"), "{remedy}");
        }
        // A namespace with one id only has no range to give.
        Error::NoRange { .. } => {}
        other => panic!("{other}"),
    }
}
