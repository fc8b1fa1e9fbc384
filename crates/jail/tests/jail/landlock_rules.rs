//! Landlock rules, if the kernel has Landlock.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use atoll_jail::{Exit, Support};

use crate::harness::{Harness, skip_test};

/// Reopens its read-only stdin for writing.
const AGAIN: &str = "echo written >/proc/self/fd/0";

#[test]
fn a_read_only_descriptor_cannot_be_reopened_for_writing() {
    let Some(harness) = Harness::new() else { return };
    harness.prepare_sandbox("a");
    if let Support::Unavailable { reason } = harness.launcher.probe_host().unwrap().landlock {
        return skip_test(&reason);
    }
    let path = harness.options.data_dir.join("given");
    fs::write(&path, "given").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    let open = || fs::File::open(&path).unwrap();
    // It works outside: neither mounts nor permissions prevent it.
    let status = std::process::Command::new("sh").args(["-c", AGAIN]).stdin(open()).status().unwrap();
    assert!(status.success());
    assert_eq!(fs::read_to_string(&path).unwrap(), "written\n");
    fs::write(&path, "given").unwrap();
    let null = || fs::OpenOptions::new().write(true).open("/dev/null").unwrap().into();
    let argv = ["/bin/sh", "-c", AGAIN].map(str::to_owned);
    let mut running = harness.launcher.run_program("a", &argv, open().into(), null(), null()).unwrap();
    let exit = running.wait(Duration::from_secs(20)).unwrap();
    assert!(matches!(exit, Exit::Exited(1 | 2)), "{exit:?}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "given");
}

#[test]
fn the_sandboxs_own_directories_are_fully_writable() {
    let Some(harness) = Harness::new() else { return };
    harness.prepare_sandbox("a");
    let output = harness.shell_output(
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
    assert!(output.ends_with("done"), "{output}");
    // Nothing can be moved out of the sandbox's own directories.
    assert_ne!(harness.run_shell("a", "echo x >f; mv f /usr/f").exit, Exit::Exited(0));
}

#[test]
fn a_worker_has_its_spool() {
    let Some(harness) = Harness::with_worker(
        "#!/bin/bash\nset -e\ncd /proc/self/fd/4\nmkdir a b; echo x >a/f; mv a/f b/g; cat b/g >/tmp/seen.new; mv /tmp/seen.new /tmp/seen; exec sleep 10000\n",
    ) else {
        return;
    };
    let sandbox = harness.prepare_sandbox("a");
    harness.launcher.start_worker("a").unwrap();
    assert_eq!(crate::harness::wait_for_file(&sandbox.dir.join("tmp/seen")), "x\n");
    assert!(sandbox.spool.join("b/g").exists() || !rustix::process::geteuid().is_root());
}
