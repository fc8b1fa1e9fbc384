//! A repeated create request finds the existing sandbox, even if the first response was lost.

use crate::conformance::IdleLinkHost;
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::provider::{CreateSpec, Error, Identity, Provider, ProviderState};
use atoll_core::sandbox::Settings;
use atoll_jail::{Launcher, LauncherOptions, ResourceLimits, SandboxSpec};
use atoll_providers::Local;
use atoll_tests::local::create_temp_dir;
use atoll_tests::process::find_program;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use tokio::task::{block_in_place, spawn_blocking};

/// Uses a worker that only stays alive.
fn launcher_options(dir: &Path, deployment: &str) -> LauncherOptions {
    let worker = dir.join("worker");
    fs::write(&worker, "#!/bin/sh\nexec sleep 100000\n").unwrap();
    fs::set_permissions(&worker, Permissions::from_mode(0o755)).unwrap();
    LauncherOptions { exe: find_program("atoll"), ..LauncherOptions::new(dir.join("data"), worker, deployment) }
}

async fn start_launcher(options: LauncherOptions) -> Arc<Launcher> {
    Arc::new(spawn_blocking(move || Launcher::start(options)).await.unwrap().unwrap())
}

fn create_spec(settings: Settings) -> CreateSpec {
    let identity = Identity {
        deployment: "made".into(),
        sandbox: SandboxId::new(),
        session: SessionId::new(),
        project: ProjectId::new(),
    };
    CreateSpec { identity, labels: Default::default(), settings, source: None, programs: Vec::new(), cache: None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_launcher_does_not_lose_a_sandbox() {
    let dir = create_temp_dir("atoll-made-");
    let options = launcher_options(dir.path(), "madea");
    let (first, spec) = (start_launcher(options.clone()).await, create_spec(Settings::default()));
    let local = Local::new(Ok(Arc::clone(&first)), Arc::new(IdleLinkHost));
    let created = local.create(&spec, "key").await.unwrap();
    let sandbox = block_in_place(|| first.find_sandbox(&created.id.0)).unwrap().unwrap();
    fs::write(sandbox.workspace.join("work"), "done").unwrap();
    // The second server starts while the first one's launcher still runs, and repeats the request.
    let second = Local::new(Ok(start_launcher(options).await), Arc::new(IdleLinkHost));
    let refused = second.create(&spec, "key").await;
    assert!(refused.as_ref().is_err_and(Error::is_retryable), "{refused:?}");
    drop((local, first));
    let found = second.create(&spec, "key").await.unwrap();
    assert_eq!((found.id, found.state), (created.id.clone(), ProviderState::Running));
    assert_eq!(fs::read_to_string(sandbox.workspace.join("work")).unwrap(), "done");
    second.destroy(&created.id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_whose_first_start_failed_is_started_again() {
    let dir = create_temp_dir("atoll-made-");
    let launcher = start_launcher(launcher_options(dir.path(), "madeb")).await;
    let local = Local::new(Ok(Arc::clone(&launcher)), Arc::new(IdleLinkHost));
    let parent = create_spec(Settings::default());
    let created = local.create(&parent, "key").await.unwrap();
    let child = create_spec(Settings { forked_from: Some(parent.identity.sandbox), ..Settings::default() });
    let spec = SandboxSpec {
        name: child.identity.sandbox.to_string(),
        labels: Default::default(),
        limits: ResourceLimits::default(),
        hostname: "atoll".into(),
        image: None,
        snapshot: None,
        cache: None,
        protected: Vec::new(),
        programs: Vec::new(),
    };
    let forked = block_in_place(|| {
        let sandbox = launcher.find_sandbox(&created.id.0).unwrap().unwrap();
        fs::write(sandbox.workspace.join("work"), "done").unwrap();
        launcher.fork_sandbox(&created.id.0, &spec)
    });
    // The state that a worker leaves if it is killed before its first instruction.
    fs::write(forked.unwrap().dir.join("life.json"), "").unwrap();
    let found = local.create(&child, "key").await.unwrap();
    assert_eq!(found.state, ProviderState::Running);
    for id in [created.id, found.id] {
        local.destroy(&id).await.unwrap();
    }
}
