//! Runs the provider conformance suite against real sandboxes on this machine.

use atoll_core::BoxFuture;
use atoll_core::id::SandboxId;
use atoll_core::provider::Provider;
use atoll_core::sandbox::Settings;
use atoll_jail::{Launcher, LauncherOptions};
use atoll_providers::{LinkHost, Local, SandboxNotice, conformance};
use atoll_tests::local::{create_temp_dir, host_state, report_skipped};
use atoll_tests::process::{self, find_program};
use atoll_tests::unprivileged_user::{self, SubordinateIds};
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Stdio;
use std::sync::Arc;
use tokio::net::UnixStream;
use tokio::sync::Notify;

/// Accepts the workers' connections and never responds. The suite needs no server.
pub struct IdleLinkHost;

impl LinkHost for IdleLinkHost {
    fn serve_connection(
        &self,
        _sandbox: SandboxId,
        connection: UnixStream,
        _first: Arc<Notify>,
    ) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let _open = connection;
            std::future::pending::<()>().await;
        })
    }

    fn report_worker_death(&self, _sandbox: SandboxId) {}

    fn report_notice(&self, _sandbox: SandboxId, _notice: SandboxNotice) {}
}

pub async fn assert_conformance(provider: &dyn Provider, settings: &Settings) {
    let verdicts = conformance::check_provider(provider, settings).await;
    let failures: Vec<String> = verdicts
        .into_iter()
        .filter_map(|(check, verdict)| verdict.err().map(|error| format!("{check}: {error}")))
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_local_provider_conforms() {
    let dir = tempfile::Builder::new().prefix("atoll-conformance-").tempdir().unwrap();
    let options = LauncherOptions {
        exe: find_program("atoll"),
        ..LauncherOptions::new(dir.path().to_owned(), find_program("atoll-worker"), "conformance")
    };
    let launcher = tokio::task::spawn_blocking(move || Launcher::start(options)).await.unwrap().unwrap();
    let local = Local::new(Ok(Arc::new(launcher)), Arc::new(IdleLinkHost));
    assert_conformance(&local, &Settings::default()).await;
    let left = std::fs::read_dir(dir.path().join("sandboxes")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name != ".lock").collect();
    assert!(left.is_empty(), "{left:?} are left");
}

/// Runs `the_local_provider_conforms` in a child process of an unprivileged user.
fn run_as_unprivileged_user(user: u32, ids: SubordinateIds) {
    if let Some(why) = unprivileged_user::missing_requirement(user, ids) {
        return report_skipped("conformance of the local provider for an unprivileged user", why);
    }
    // Copy the test and the programs that it needs to a directory that the user can read.
    let dir = create_temp_dir("atoll-conformance-");
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    for name in ["deps", "home"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    chown(dir.path().join("home"), Some(user), Some(user)).unwrap();
    let test = dir.path().join("deps/all");
    unprivileged_user::install_program(&std::env::current_exe().unwrap(), &test);
    for name in ["atoll", "atoll-worker"] {
        unprivileged_user::install_program(&find_program(name), &dir.path().join(name));
    }
    let mut command = unprivileged_user::user_command(user, ids, dir.path(), &test);
    command.args(["conformance::the_local_provider_conforms", "--exact", "--nocapture"]);
    command.env("TMPDIR", dir.path().join("home")).current_dir(dir.path().join("home"));
    let child = process::spawn_process({
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    });
    let output = child.wait_with_output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    let left = host_state::list_user_processes(user);
    assert!(left.iter().all(|process| process.ends_in_time()), "{left:?} are left");
    assert_eq!(host_state::list_processes_with_mounts(dir.path()), Vec::<String>::new());
}

#[test]
fn the_local_provider_conforms_for_an_unprivileged_user() {
    run_as_unprivileged_user(61_241, SubordinateIds::Unassigned);
}

#[test]
fn the_local_provider_conforms_for_a_user_with_subordinate_ids() {
    run_as_unprivileged_user(61_242, SubordinateIds::Range);
}
