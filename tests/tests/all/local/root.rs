//! Commands as a sandbox's own root, by the provider's interface.

use crate::conformance::Nobody;
use atoll_core::id::SandboxId;
use atoll_core::provider::{Command, Error, ExecEvent, ExecSpec, Exit, OutputStream, Provider, ProviderId};
use atoll_jail::{Launcher, LauncherOptions, Limits, Spec};
use atoll_providers::Local;
use atoll_tests::process::program;
use futures_util::StreamExt;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A root of one static program, as an archive.
fn root(dir: &Path) -> Option<File> {
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

fn shell(text: &str) -> ExecSpec {
    ExecSpec {
        command: Command::Shell(text.into()),
        cwd: None,
        env: Default::default(),
        stdin: false,
        as_root: true,
        terminal: None,
        timeout: None,
    }
}

async fn run(local: &Local, id: &ProviderId, spec: &ExecSpec, input: Option<&str>) -> (Exit, String, String) {
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
    panic!("it has no end")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn root_of_an_imported_root_runs_commands() {
    let dir = tempfile::Builder::new().prefix("atoll-root-").tempdir_in("/var/tmp").unwrap();
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: needs root");
    }
    let Some(archive) = root(dir.path()) else { return println!("skipped: needs busybox and tar") };
    // Nothing of a worker is needed but that it lives.
    let worker = dir.path().join("worker");
    fs::write(&worker, "#!/bin/sh\nexec sleep 100000\n").unwrap();
    fs::set_permissions(&worker, Permissions::from_mode(0o755)).unwrap();
    let options =
        LauncherOptions { exe: program("atoll"), ..LauncherOptions::new(dir.path().join("data"), worker, "rooted") };
    let launcher = tokio::task::spawn_blocking(move || Launcher::start(options)).await.unwrap().unwrap();
    let launcher = Arc::new(launcher);
    let local = Local::new(Ok(Arc::clone(&launcher)), Arc::new(Nobody));
    let [with, without] = [Some("tiny"), None].map(|image| {
        let name = SandboxId::new().to_string();
        (name.clone(), image.map(str::to_owned))
    });
    launcher.import_image("tiny", archive.into()).unwrap();
    for (name, image) in [&with, &without] {
        let spec = Spec {
            name: name.clone(),
            labels: Default::default(),
            limits: Limits::default(),
            hostname: "atoll".into(),
            image: image.clone(),
            snapshot: None,
            protected: Vec::new(),
            programs: Vec::new(),
        };
        launcher.prepare(&spec).unwrap();
        launcher.start_worker(name).unwrap();
    }
    let id = ProviderId(with.0.clone());
    let script = "id -u; pwd; echo $MINE; cat; echo oops >&2; echo installed >/etc/package; exit 3";
    let spec = ExecSpec {
        cwd: Some("/etc".into()),
        env: [("MINE".to_owned(), "yes".to_owned())].into(),
        stdin: true,
        ..shell(script)
    };
    let (exit, output, errors) = run(&local, &id, &spec, Some("given\n")).await;
    assert_eq!((output.as_str(), errors.as_str()), ("0\n/etc\nyes\ngiven\n", "oops\n"));
    assert_eq!(exit, Exit::Exited { code: 3 });
    assert_eq!(run(&local, &id, &shell("cat /etc/package"), None).await.1, "installed\n");
    let spec = ExecSpec { timeout: Some(Duration::from_millis(300)), ..shell("echo begun; sleep 60") };
    let (exit, output, _) = run(&local, &id, &spec, None).await;
    assert_eq!((exit, output.as_str()), (Exit::TimedOut, "begun\n"));
    let exec = local.exec(&id, &shell("sleep 60")).await.unwrap();
    local.signal(&exec, 15).await.unwrap();
    let mut events = local.attach(&exec, 0).await.unwrap();
    assert!(matches!(events.next().await, Some(Ok(ExecEvent::Ended(Exit::Signalled { signal: 9 })))));
    let spec = ExecSpec { command: Command::Argv(vec!["/no/such/program".into()]), ..shell("") };
    let (exit, _, errors) = run(&local, &id, &spec, None).await;
    assert_eq!(exit, Exit::Exited { code: 127 });
    assert!(errors.contains("can't be run"), "{errors}");
    let refused = local.exec(&ProviderId(without.0.clone()), &shell("id")).await;
    assert!(matches!(&refused, Err(Error::Refused { detail }) if detail.contains("imported root")), "{refused:?}");
    for (name, _) in [with, without] {
        launcher.destroy(&name).unwrap();
    }
}

#[test]
fn commands_that_run_long_take_no_thread_from_anybody() {
    let dir = tempfile::Builder::new().prefix("atoll-root-").tempdir_in("/var/tmp").unwrap();
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: needs root");
    }
    let Some(archive) = root(dir.path()) else { return println!("skipped: needs busybox and tar") };
    let worker = dir.path().join("worker");
    fs::write(&worker, "#!/bin/sh\nexec sleep 100000\n").unwrap();
    fs::set_permissions(&worker, Permissions::from_mode(0o755)).unwrap();
    let options =
        LauncherOptions { exe: program("atoll"), ..LauncherOptions::new(dir.path().join("data"), worker, "rootlong") };
    let launcher = Arc::new(Launcher::start(options).unwrap());
    launcher.import_image("tiny", archive.into()).unwrap();
    let name = SandboxId::new().to_string();
    let spec = Spec {
        name: name.clone(),
        labels: Default::default(),
        limits: Limits::default(),
        hostname: "atoll".into(),
        image: Some("tiny".into()),
        snapshot: None,
        protected: Vec::new(),
        programs: Vec::new(),
    };
    launcher.prepare(&spec).unwrap();
    launcher.start_worker(&name).unwrap();
    // Fewer threads than commands.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).max_blocking_threads(3).enable_all().build().unwrap();
    let id = ProviderId(name.clone());
    runtime.block_on(async {
        let local = Local::new(Ok(Arc::clone(&launcher)), Arc::new(Nobody));
        let all = async {
            for _ in 0..8 {
                let exec = local.exec(&id, &shell("echo begun; sleep 100000")).await.unwrap();
                let mut events = local.attach(&exec, 0).await.unwrap();
                assert!(matches!(events.next().await, Some(Ok(ExecEvent::Output { .. }))));
            }
            assert_eq!(run(&local, &id, &shell("echo well"), None).await.1, "well\n");
        };
        tokio::time::timeout(Duration::from_secs(60), all).await.expect("everybody waits for the long ones");
    });
    launcher.destroy(&name).unwrap();
    runtime.shutdown_background();
}
