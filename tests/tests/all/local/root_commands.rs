//! Commands as a sandbox's own root user, at the provider's interface.

use crate::conformance::IdleLinkHost;
use atoll_core::id::SandboxId;
use atoll_core::provider::{CommandExit, Error, ExecCommand, ExecEvent, ExecSpec, OutputStream, Provider, ProviderId};
use atoll_jail::{Launcher, LauncherOptions, ResourceLimits, SandboxSpec};
use atoll_providers::Local;
use atoll_tests::process::find_program;
use futures_util::StreamExt;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Packs a root file system with one static program.
fn build_root_archive(dir: &Path) -> Option<File> {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists())?;
    let root = dir.join("root");
    for path in ["bin", "etc", "root", "usr", "var"] {
        fs::create_dir_all(root.join(path)).unwrap();
    }
    fs::copy(busybox, root.join("bin/busybox")).unwrap();
    for name in ["sh", "cat", "id", "sleep", "pwd", "env"] {
        symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    let archive = dir.join("root.tar");
    let packed = std::process::Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&root).arg(".").status();
    packed.is_ok_and(|status| status.success()).then(|| File::open(archive).unwrap())
}

fn shell_spec(text: &str) -> ExecSpec {
    ExecSpec {
        command: ExecCommand::Shell(text.into()),
        cwd: None,
        env: Default::default(),
        has_stdin: false,
        as_root: true,
        terminal: None,
        timeout: None,
    }
}

async fn run_exec(
    local: &Local,
    id: &ProviderId,
    spec: &ExecSpec,
    input: Option<&str>,
) -> (CommandExit, String, String) {
    let exec = local.exec(id, spec).await.unwrap();
    if let Some(input) = input {
        local.write(&exec, input.to_owned().into()).await.unwrap();
        local.close_stdin(&exec).await.unwrap();
    }
    let mut events = local.attach(&exec, 0).await.unwrap();
    let (mut output, mut errors) = (String::new(), String::new());
    while let Some(event) = events.next().await {
        match event.unwrap() {
            ExecEvent::Output { stream: OutputStream::Stderr, data, .. } => errors += &String::from_utf8_lossy(&data),
            ExecEvent::Output { data, .. } => output += &String::from_utf8_lossy(&data),
            ExecEvent::Gap { .. } => panic!("output is missing"),
            ExecEvent::Ended(exit) => return (exit, output, errors),
        }
    }
    panic!("the command did not end")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn root_of_an_imported_image_runs_commands() {
    let dir = tempfile::Builder::new().prefix("atoll-root-").tempdir_in("/var/tmp").unwrap();
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: needs root");
    }
    let Some(archive) = build_root_archive(dir.path()) else { return println!("skipped: needs busybox and tar") };
    // A worker that only stays alive.
    let worker = dir.path().join("worker");
    fs::write(&worker, "#!/bin/sh\nexec sleep 100000\n").unwrap();
    fs::set_permissions(&worker, Permissions::from_mode(0o755)).unwrap();
    let options = LauncherOptions {
        exe: find_program("atoll"),
        ..LauncherOptions::new(dir.path().join("data"), worker, "rooted")
    };
    let launcher = tokio::task::spawn_blocking(move || Launcher::start(options)).await.unwrap().unwrap();
    let launcher = Arc::new(launcher);
    let local = Local::new(Ok(Arc::clone(&launcher)), Arc::new(IdleLinkHost));
    let [with, without] = [Some("tiny"), None].map(|image| {
        let name = SandboxId::new().to_string();
        (name.clone(), image.map(str::to_owned))
    });
    launcher.import_image("tiny", archive.into()).unwrap();
    for (name, image) in [&with, &without] {
        let spec = SandboxSpec {
            name: name.clone(),
            labels: Default::default(),
            limits: ResourceLimits::default(),
            hostname: "atoll".into(),
            image: image.clone(),
            snapshot: None,
            cache: None,
            protected: Vec::new(),
            programs: Vec::new(),
        };
        launcher.prepare_sandbox(&spec).unwrap();
        launcher.start_worker(name).unwrap();
    }
    let id = ProviderId(with.0.clone());
    let script = "id -u; pwd; echo $MINE; cat; echo oops >&2; echo installed >/etc/package; exit 3";
    let spec = ExecSpec {
        cwd: Some("/etc".into()),
        env: [("MINE".to_owned(), "yes".to_owned())].into(),
        has_stdin: true,
        ..shell_spec(script)
    };
    let (exit, output, errors) = run_exec(&local, &id, &spec, Some("given\n")).await;
    assert_eq!((output.as_str(), errors.as_str()), ("0\n/etc\nyes\ngiven\n", "oops\n"));
    assert_eq!(exit, CommandExit::Exited { code: 3 });
    assert_eq!(run_exec(&local, &id, &shell_spec("cat /etc/package"), None).await.1, "installed\n");
    let spec = ExecSpec { timeout: Some(Duration::from_millis(300)), ..shell_spec("echo begun; sleep 60") };
    let (exit, output, _) = run_exec(&local, &id, &spec, None).await;
    assert_eq!((exit, output.as_str()), (CommandExit::TimedOut, "begun\n"));
    let exec = local.exec(&id, &shell_spec("sleep 60")).await.unwrap();
    local.signal(&exec, 15).await.unwrap();
    let mut events = local.attach(&exec, 0).await.unwrap();
    assert!(matches!(events.next().await, Some(Ok(ExecEvent::Ended(CommandExit::Signalled { signal: 9 })))));
    let spec = ExecSpec { command: ExecCommand::Argv(vec!["/no/such/program".into()]), ..shell_spec("") };
    let (exit, _, errors) = run_exec(&local, &id, &spec, None).await;
    assert_eq!(exit, CommandExit::Exited { code: 127 });
    assert!(errors.contains("cannot run"), "{errors}");
    let refused = local.exec(&ProviderId(without.0.clone()), &shell_spec("id")).await;
    assert!(matches!(&refused, Err(Error::Refused { detail }) if detail.contains("with an image")), "{refused:?}");
    for (name, _) in [with, without] {
        launcher.destroy_sandbox(&name).unwrap();
    }
}

#[test]
fn long_commands_occupy_no_thread() {
    let dir = tempfile::Builder::new().prefix("atoll-root-").tempdir_in("/var/tmp").unwrap();
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: needs root");
    }
    let Some(archive) = build_root_archive(dir.path()) else { return println!("skipped: needs busybox and tar") };
    let worker = dir.path().join("worker");
    fs::write(&worker, "#!/bin/sh\nexec sleep 100000\n").unwrap();
    fs::set_permissions(&worker, Permissions::from_mode(0o755)).unwrap();
    let options = LauncherOptions {
        exe: find_program("atoll"),
        ..LauncherOptions::new(dir.path().join("data"), worker, "rootlong")
    };
    let launcher = Arc::new(Launcher::start(options).unwrap());
    launcher.import_image("tiny", archive.into()).unwrap();
    let name = SandboxId::new().to_string();
    let spec = SandboxSpec {
        name: name.clone(),
        labels: Default::default(),
        limits: ResourceLimits::default(),
        hostname: "atoll".into(),
        image: Some("tiny".into()),
        snapshot: None,
        cache: None,
        protected: Vec::new(),
        programs: Vec::new(),
    };
    launcher.prepare_sandbox(&spec).unwrap();
    launcher.start_worker(&name).unwrap();
    // Fewer threads than commands.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).max_blocking_threads(3).enable_all().build().unwrap();
    let id = ProviderId(name.clone());
    runtime.block_on(async {
        let local = Local::new(Ok(Arc::clone(&launcher)), Arc::new(IdleLinkHost));
        let all = async {
            for _ in 0..8 {
                let exec = local.exec(&id, &shell_spec("echo begun; sleep 100000")).await.unwrap();
                let mut events = local.attach(&exec, 0).await.unwrap();
                assert!(matches!(events.next().await, Some(Ok(ExecEvent::Output { .. }))));
            }
            assert_eq!(run_exec(&local, &id, &shell_spec("echo well"), None).await.1, "well\n");
        };
        tokio::time::timeout(Duration::from_secs(60), all).await.expect("other commands wait for the long ones");
    });
    launcher.destroy_sandbox(&name).unwrap();
    runtime.shutdown_background();
}
