//! Launchers of an unprivileged user. Needs root, to switch to one.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::Command;

use atoll_jail::{Enforcement, Error, Exit, IdMapKind, LaunchStep, LauncherOptions, Support, Tier};

use crate::harness::{Harness, skip_test, spec};

pub const USER: u32 = 54_321;

pub fn can_switch_user() -> bool {
    let found = rustix::process::geteuid().is_root() && Path::new("/usr/bin/setpriv").exists();
    if !found {
        skip_test("needs root and /usr/bin/setpriv");
    }
    found
}

/// Runs the launcher as another user, after `before` has run as root in a new mount namespace.
pub fn run_as_user(options: &mut LauncherOptions, before: &str) {
    let data = options.data_dir.parent().unwrap().to_path_buf();
    // The user may not be able to reach the test binary. `cp` writes the copy: a child that another test starts meanwhile
    // would inherit our open file, and a program that is open for writing cannot be executed.
    let program = data.join("launcher");
    assert!(Command::new("cp").arg(&options.exe).arg(&program).status().unwrap().success());
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
    if !can_switch_user() {
        return None;
    }
    if !Path::new("/usr/bin/newuidmap").exists() {
        skip_test("newuidmap is not installed");
        return None;
    }
    let files = "
        dir=$PWD; cp /etc/passwd /etc/group $dir; echo 'ordinary:x:54321:54321::/nonexistent:/bin/sh' >>$dir/passwd
        echo 'ordinary:200000:65536' >$dir/subuid; echo 'ordinary:200000:65536' >$dir/subgid
        for f in passwd subuid subgid; do test -e /etc/$f || { echo \"no /etc/$f\" >&2; exit 1; }; mount --bind $dir/$f /etc/$f; done";
    for file in ["/etc/subuid", "/etc/subgid"] {
        if !Path::new(file).exists() {
            skip_test("there is no /etc/subuid to mount over");
            return None;
        }
    }
    Some(Harness::with(worker, |options| run_as_user(options, files)))
}

/// A launcher of a user with a single id.
pub fn with_one_id(worker: &str) -> Option<Harness> {
    can_switch_user().then(|| Harness::with(worker, |options| run_as_user(options, "")))
}

const WORKER: &str = "#!/bin/sh\n{ id -u; grep -E 'Cap(Prm|Eff)' /proc/$$/status; echo x >&4; } >/tmp/seen.new 2>/dev/null\nmv /tmp/seen.new /tmp/seen\nexec sleep 100000\n";

#[test]
fn without_sub_ids_sandboxes_have_a_single_id() {
    let Some(harness) = with_one_id(WORKER) else { return };
    let as_root = Harness::with(WORKER, |_| {}).launcher.probe_host().unwrap();
    let report = harness.launcher.probe_host().unwrap();
    assert_eq!(report.tier, Tier::Standard, "{report:#?}");
    assert!(!report.root && report.missing.iter().any(|missing| missing.description.contains("own id")), "{report:#?}");
    assert_eq!((&report.overlay, &report.landlock), (&Support::Available, &as_root.landlock), "{report:#?}");
    let explanation = report.explain_missing_tier(Tier::Strong).unwrap();
    for remedy in ["Delegate=yes", "usermod --add-subuids", "monitored, not limited"] {
        assert!(explanation.contains(remedy), "{remedy}: {explanation}");
    }
    assert_eq!(report.explain_missing_tier(Tier::Standard), None);
    let sandbox = harness.prepare_sandbox("a");
    assert_eq!((sandbox.enforced.ids, sandbox.id_range), (IdMapKind::SingleId, None));
    assert_eq!(sandbox.enforced.memory, Enforcement::PerProcess, "cgroups here belong to root");
    assert_eq!(harness.shell_output("a", "id -u; touch file; mkdir -p locked/deep; chmod 000 locked"), "1000");
    assert_eq!(fs::metadata(sandbox.workspace.join("file")).unwrap().uid(), USER);
    let status = harness.shell_output("a", "cat /proc/self/status");
    assert!(status.contains("CapBnd:\t0000000000000000") && status.contains("Seccomp:\t2"), "{status}");
    assert_ne!(harness.run_shell("a", "ls /root/.ssh /var/lib").exit, Exit::Exited(0));
    let hog = harness.run_shell("a", "head -c 300m /dev/zero | tail -c 299m >/dev/null; exit $?");
    assert_ne!(hog.exit, Exit::Exited(0), "each process has a memory limit: {hog:?}");

    harness.launcher.start_worker("a").unwrap();
    let seen = crate::harness::wait_for_file(&sandbox.dir.join("tmp/seen"));
    assert!(seen.starts_with("1000") && seen.contains("CapPrm:\t0000000000000000"), "{seen}");
    harness.launcher.destroy_sandbox("a").unwrap();
    assert!(!sandbox.dir.exists());
}

#[test]
fn with_sub_ids_the_agent_has_its_own_id() {
    let Some(harness) = with_sub_ids(WORKER) else { return };
    let report = harness.launcher.probe_host().unwrap();
    assert_eq!(report.tier, Tier::Standard, "{report:#?}");
    let sandbox = harness.prepare_sandbox("a");
    assert_eq!(sandbox.enforced.ids, IdMapKind::SubIds);
    assert_eq!(
        harness.shell_output("a", "id -u; id -G; touch file; mkdir -p locked/deep; chmod 000 locked"),
        "1000\n1000"
    );
    assert_eq!(fs::metadata(sandbox.workspace.join("file")).unwrap().uid(), 200_999);
    assert_eq!(fs::metadata(&sandbox.spool).unwrap().uid(), USER);
    harness.launcher.start_worker("a").unwrap();
    let seen = crate::harness::wait_for_file(&sandbox.dir.join("tmp/seen"));
    assert!(seen.starts_with('0') && seen.contains("CapPrm:\t00000000000000e0"), "{seen}");
    harness.launcher.destroy_sandbox("a").unwrap();
    assert!(!sandbox.dir.exists(), "files of the sub-ids are left");
}

#[test]
fn without_user_namespaces_the_error_names_a_remedy() {
    if !can_switch_user() {
        return;
    }
    // In its own user namespace the sysctl can be lowered without affecting the host.
    let harness = Harness::with(WORKER, |options| {
        let command = format!("{} {}", options.exe.display(), options.args.join(" "));
        options.exe = "/usr/bin/unshare".into();
        let script = format!("echo 0 >/proc/sys/user/max_user_namespaces && exec {command}");
        options.args = ["-Ur", "/bin/sh", "-c", &script].map(str::to_owned).to_vec();
        options.id_base = 0;
    });
    let report = harness.launcher.probe_host().unwrap();
    assert_eq!(report.tier, Tier::None, "{report:#?}");
    assert!(matches!(&report.user_namespaces, Support::Unavailable { .. }), "{report:#?}");
    let explanation = report.explain_missing_tier(Tier::Standard).unwrap();
    assert!(explanation.contains("sysctl -w user.max_user_namespaces=15000"), "{explanation}");
    let error =
        harness.launcher.prepare_sandbox(&spec("a")).and_then(|_| harness.launcher.start_worker("a")).unwrap_err();
    match error {
        Error::StepFailed { step: LaunchStep::Namespaces, remedy: Some(remedy), .. } => {
            assert!(remedy.contains("max_user_namespaces"), "{remedy}");
        }
        // A namespace with a single id has no range to give.
        Error::NoFreeIdRange { .. } => {}
        other => panic!("{other}"),
    }
}
