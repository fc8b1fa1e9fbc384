//! The second lock on the files, where this kernel has it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use atoll_jail::{Ability, Exit};

use crate::harness::{Harness, skip};

/// Opens again for writing what it was given for reading.
const AGAIN: &str = "echo written >/proc/self/fd/0";

#[test]
fn what_was_given_for_reading_can_not_be_opened_again_for_writing() {
    let Some(harness) = Harness::new() else { return };
    harness.prepared("a");
    if let Ability::No { reason } = harness.launcher.probe().unwrap().landlock {
        return skip(&reason);
    }
    let path = harness.options.data_dir.join("given");
    fs::write(&path, "given").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    let open = || fs::File::open(&path).unwrap();
    // Outside it works: no mount and no permission is in the way.
    let status = std::process::Command::new("sh").args(["-c", AGAIN]).stdin(open()).status().unwrap();
    assert!(status.success());
    assert_eq!(fs::read_to_string(&path).unwrap(), "written\n");
    fs::write(&path, "given").unwrap();
    let null = || fs::OpenOptions::new().write(true).open("/dev/null").unwrap().into();
    let argv = ["/bin/sh", "-c", AGAIN].map(str::to_owned);
    let mut running = harness.launcher.run("a", &argv, open().into(), null(), null()).unwrap();
    let exit = running.wait(Duration::from_secs(20)).unwrap();
    assert!(matches!(exit, Exit::Exited(1 | 2)), "{exit:?}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "given");
}

#[test]
fn what_is_its_own_can_be_written_moved_and_removed() {
    let Some(harness) = Harness::new() else { return };
    harness.prepared("a");
    let said = harness.said(
        "a",
        "set -e
for d in /workspace /home/agent /tmp /dev/shm; do
  cd $d; mkdir one two; echo a >one/f; mv one/f two/g; ln two/g one/h; ln -s g two/s; mkfifo two/p
  : >two/g; mv two one/two; rm -r one; echo $d
done
echo 500 >/proc/self/oom_score_adj
echo x >/dev/null
sleep 5 & kill $!
echo done",
    );
    assert!(said.ends_with("done"), "{said}");
    // Beyond the boundary of a directory of its own nothing is moved.
    assert_ne!(harness.shell("a", "echo x >f; mv f /usr/f").exit, Exit::Exited(0));
}

#[test]
fn a_worker_has_its_spool() {
    let Some(harness) = Harness::with_worker(
        "#!/bin/bash\nset -e\ncd /proc/self/fd/4\nmkdir a b; echo x >a/f; mv a/f b/g; cat b/g >/tmp/seen.new; mv /tmp/seen.new /tmp/seen; exec sleep 10000\n",
    ) else {
        return;
    };
    let place = harness.prepared("a");
    harness.launcher.start_worker("a").unwrap();
    assert_eq!(crate::isolation::wait_for(&place.dir.join("tmp/seen")), "x\n");
    assert!(place.spool.join("b/g").exists() || !rustix::process::geteuid().is_root());
}
