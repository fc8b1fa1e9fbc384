//! The promises of the provider contract, against real sandboxes on this machine.

use atoll_core::BoxFuture;
use atoll_core::id::SandboxId;
use atoll_core::provider::Provider;
use atoll_core::sandbox::Settings;
use atoll_jail::{Launcher, LauncherOptions};
use atoll_providers::{LinkHost, Local, Notice, conformance};
use atoll_tests::local::{directory, skipped, traces};
use atoll_tests::ordinary::{self, Ids};
use atoll_tests::process::{self, program};
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::Notify;

/// Holds the workers' connections and answers nothing: the contract needs no server.
pub struct Nobody;

impl LinkHost for Nobody {
    fn serve(&self, _sandbox: SandboxId, connection: UnixStream, _first: Arc<Notify>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let _held = connection;
            std::future::pending::<()>().await;
        })
    }

    fn worker_gone(&self, _sandbox: SandboxId) {}

    fn notice(&self, _sandbox: SandboxId, _notice: Notice) {}
}

pub async fn keeps_every_promise(provider: &dyn Provider, settings: &Settings) {
    let verdicts = conformance::check(provider, settings).await;
    let broken: Vec<String> = verdicts
        .into_iter()
        .filter_map(|(promise, verdict)| verdict.err().map(|seen| format!("{promise}: {seen}")))
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_local_provider_keeps_every_promise() {
    let dir = tempfile::Builder::new().prefix("atoll-conformance-").tempdir().unwrap();
    let options = LauncherOptions {
        exe: program("atoll"),
        ..LauncherOptions::new(dir.path().to_owned(), program("atoll-worker"), "conformance")
    };
    let launcher = tokio::task::spawn_blocking(move || Launcher::start(options)).await.unwrap().unwrap();
    let local = Local::new(Ok(Arc::new(launcher)), Arc::new(Nobody));
    keeps_every_promise(&local, &Settings::default()).await;
    let left = std::fs::read_dir(dir.path().join("sandboxes")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name != ".lock").collect();
    assert!(left.is_empty(), "{left:?} are left");
}

/// The test above again, as a process of somebody without privilege.
fn the_same_as_a_user(user: u32, ids: Ids) {
    if let Some(why) = ordinary::missing(user, ids) {
        return skipped("the promises of the local provider for an ordinary user", why);
    }
    // The test and the programs that it looks for, where the user can come to them.
    let dir = directory("atoll-conformance-");
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    for name in ["deps", "home"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    chown(dir.path().join("home"), Some(user), Some(user)).unwrap();
    let test = dir.path().join("deps/all");
    ordinary::install(&std::env::current_exe().unwrap(), &test);
    for name in ["atoll", "atoll-worker"] {
        ordinary::install(&program(name), &dir.path().join(name));
    }
    let mut command = ordinary::command(user, ids, dir.path(), &test);
    command.args(["conformance::the_local_provider_keeps_every_promise", "--exact", "--nocapture"]);
    command.env("TMPDIR", dir.path().join("home")).current_dir(dir.path().join("home"));
    let output = process::spawn({
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    });
    let output = output.wait_with_output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    let left = traces::of_user(user);
    assert!(left.iter().all(|process| process.ends_within(Duration::from_secs(10))), "{left:?} are left");
    assert_eq!(traces::living_in(dir.path()), Vec::<String>::new());
}

#[test]
fn the_local_provider_keeps_every_promise_for_an_ordinary_user() {
    the_same_as_a_user(61_241, Ids::Own);
}

#[test]
fn the_local_provider_keeps_every_promise_for_a_user_with_a_range_of_ids() {
    the_same_as_a_user(61_242, Ids::Range);
}
