//! A sandbox that is asked for again: what is there is kept, whatever kept the first answer from coming.

use crate::conformance::Nobody;
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::provider::{CreateSpec, Error, Identity, Provider, ProviderState};
use atoll_core::sandbox::Settings;
use atoll_jail::{Launcher, LauncherOptions, Limits, Spec};
use atoll_providers::Local;
use atoll_tests::local::directory;
use atoll_tests::process::program;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use tokio::task::{block_in_place, spawn_blocking};

/// A worker of which nothing is needed but that it lives.
fn options(dir: &Path, deployment: &str) -> LauncherOptions {
    let worker = dir.join("worker");
    fs::write(&worker, "#!/bin/sh\nexec sleep 100000\n").unwrap();
    fs::set_permissions(&worker, Permissions::from_mode(0o755)).unwrap();
    LauncherOptions { exe: program("atoll"), ..LauncherOptions::new(dir.join("data"), worker, deployment) }
}

async fn start(options: LauncherOptions) -> Arc<Launcher> {
    Arc::new(spawn_blocking(move || Launcher::start(options)).await.unwrap().unwrap())
}

fn wanted(settings: Settings) -> CreateSpec {
    let identity = Identity {
        deployment: "made".into(),
        sandbox: SandboxId::new(),
        session: SessionId::new(),
        project: ProjectId::new(),
    };
    CreateSpec { identity, labels: Default::default(), settings, source: None, programs: Vec::new() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_launcher_that_cannot_be_asked_costs_nobody_a_sandbox() {
    let dir = directory("atoll-made-");
    let options = options(dir.path(), "madea");
    let (first, spec) = (start(options.clone()).await, wanted(Settings::default()));
    let local = Local::new(Ok(Arc::clone(&first)), Arc::new(Nobody));
    let made = local.create(&spec, "key").await.unwrap();
    let place = block_in_place(|| first.find(&made.id.0)).unwrap().unwrap();
    fs::write(place.workspace.join("work"), "done").unwrap();
    // Another server comes while the first one's launcher is not gone yet, and has lost the answer.
    let second = Local::new(Ok(start(options).await), Arc::new(Nobody));
    let refused = second.create(&spec, "key").await;
    assert!(refused.as_ref().is_err_and(Error::is_worth_a_retry), "{refused:?}");
    drop((local, first));
    let found = second.create(&spec, "key").await.unwrap();
    assert_eq!((found.id, found.state), (made.id.clone(), ProviderState::Running));
    assert_eq!(fs::read_to_string(place.workspace.join("work")).unwrap(), "done");
    second.destroy(&made.id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_whose_first_start_failed_is_started() {
    let dir = directory("atoll-made-");
    let launcher = start(options(dir.path(), "madeb")).await;
    let local = Local::new(Ok(Arc::clone(&launcher)), Arc::new(Nobody));
    let parent = wanted(Settings::default());
    let made = local.create(&parent, "key").await.unwrap();
    let child = wanted(Settings { forked_from: Some(parent.identity.sandbox), ..Settings::default() });
    let spec = Spec {
        name: child.identity.sandbox.to_string(),
        labels: Default::default(),
        limits: Limits::default(),
        hostname: "atoll".into(),
        image: None,
        snapshot: None,
        protected: Vec::new(),
        programs: Vec::new(),
    };
    let forked = block_in_place(|| {
        let place = launcher.find(&made.id.0).unwrap().unwrap();
        fs::write(place.workspace.join("work"), "done").unwrap();
        launcher.fork(&made.id.0, &spec)
    });
    // As a worker leaves it that was killed before its first instruction.
    fs::write(forked.unwrap().dir.join("life.json"), "").unwrap();
    let found = local.create(&child, "key").await.unwrap();
    assert_eq!(found.state, ProviderState::Running);
    for id in [made.id, found.id] {
        local.destroy(&id).await.unwrap();
    }
}
