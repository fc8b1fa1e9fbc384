//! Attacks on the launcher's own program file by the root user of an image, as in an unprivileged user's sandbox.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

use atoll_jail::SandboxSpec;

use crate::harness::{Harness, exec_program, skip_test, spec, wait_for_file};
use crate::images::{archive_fd, busybox_root};
use crate::unprivileged;

/// The image's loader. It runs in the place of the launcher's loader once the kernel executes the launcher's file, keeps
/// that file open as descriptor 9 and continues as a shell.
const LOADER: &str = r#"
__asm__(".globl _start\n_start: mov %rsp, %rdi\n and $-16, %rsp\n call attack\n");
static long call(long n, long a, long b, long c) {
    long r;
    __asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return r;
}
void attack(void) {
    char *arguments[] = {"sh", "/usr/overwrite", 0}, *environment[] = {"PATH=/usr/bin", 0};
    long file = call(2, (long)"/proc/self/exe", 0, 0);
    call(33, file, 9, 0);
    call(59, (long)"/usr/bin/sh", (long)arguments, (long)environment);
    call(60, 1, 0, 0);
}
"#;

/// Leaves a process that writes as soon as no process executes the file any more, and that reports the outcome.
const OVERWRITE: &str = "\
overwrite() {
    while :; do
        error=$( { printf overwritten >/proc/self/fd/9; } 2>&1 ) && error=overwritten
        case $error in *busy*) sleep 0.05 ;; *) break ;; esac
    done
    echo \"$error\" >/workspace/outcome.new; mv /workspace/outcome.new /workspace/outcome
}
(exec >/dev/null 2>&1; overwrite) &
echo running
";

/// Compiles the loader as a static program without a C library.
fn compile_loader(dir: &Path) -> Option<Vec<u8>> {
    let (source, program) = (dir.join("loader.c"), dir.join("loader"));
    fs::write(&source, LOADER).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-static-pie", "-fPIE", "-nostdlib", "-fno-stack-protector", "-o"]);
    let compiled = compiler.arg(&program).arg(&source).status();
    compiled.is_ok_and(|status| status.success()).then(|| fs::read(&program).unwrap())
}

#[test]
fn root_of_an_image_cannot_overwrite_the_launcher() {
    if !cfg!(target_arch = "x86_64") {
        return skip_test("the attack is written for x86-64");
    }
    let Some(root) = busybox_root() else { return };
    let Some(harness) = unprivileged::with_sub_ids("#!/bin/sh\nexec sleep 1000000\n") else { return };
    let dir = harness.options.data_dir.parent().unwrap();
    let Some(loader) = compile_loader(dir) else { return skip_test("needs a C compiler") };
    // The file belongs to the launcher's user, as in a home directory.
    let program = dir.join("launcher");
    chown(&program, Some(unprivileged::USER), Some(unprivileged::USER)).unwrap();
    let before = fs::read(&program).unwrap();
    let image = root
        .clone()
        .directory("lib64/")
        .executable("lib64/ld-linux-x86-64.so.2", loader)
        .executable("usr/attack", "#!/proc/self/exe\n")
        .file("usr/overwrite", OVERWRITE);
    harness.launcher.import_image("hostile", archive_fd(&image.bytes())).unwrap();
    harness.launcher.prepare_sandbox(&SandboxSpec { image: Some("hostile".to_owned()), ..spec("a") }).unwrap();
    let sandbox = harness.launcher.start_worker("a").unwrap();
    let output = exec_program(&harness.launcher, "a", true, &["/usr/attack"]).unwrap();
    assert_eq!(output.stdout, "running\n", "the image's loader must run: {output:?}");
    // The kernel refuses writes while the launcher runs, but the sandbox outlives it.
    let Harness { launcher, data, .. } = harness;
    drop(launcher);
    let outcome = wait_for_file(&sandbox.workspace.join("outcome"));
    assert!(outcome.contains("Read-only file system"), "{outcome}");
    assert!(fs::read(&program).unwrap() == before, "the launcher's program was overwritten");
    drop(data);
}
