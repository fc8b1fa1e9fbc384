//! A server that starts as root and drops its privileges. The launcher spawner and the launcher stay root.

use atoll_test_wait::{poll_until, wait_until};
use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::spool::spooled_messages;
use atoll_tests::local::{LocalServer, create_temp_dir, event_data, host_state, is_root, report_skipped};
use atoll_tests::process;
use atoll_tests::unprivileged_user::chown_tree;
use host_state::HostProcess;
use serde_json::json;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Output, Stdio};
use tokio::task::block_in_place;

/// Belongs to no user of the host, and no other test uses it.
const SERVER_UID: u32 = 61_240;

fn server_process(server: &LocalServer) -> HostProcess {
    HostProcess::open(server.process.pid(), || true).unwrap()
}

/// Returns the launcher spawner and the launcher.
fn root_processes(server: &LocalServer) -> (HostProcess, HostProcess) {
    let mut spawners = host_state::list_children(server.process.pid());
    assert_eq!(spawners.len(), 1, "{spawners:?}");
    let spawner = spawners.remove(0);
    assert!(spawner.read_proc_file("cmdline").contains("launcher-spawner"), "{spawner:?}");
    let launcher = host_state::list_children(spawner.pid).into_iter().find(HostProcess::is_alive).unwrap();
    (spawner, launcher)
}

fn assert_unprivileged(process: &HostProcess) {
    let ids = format!("{SERVER_UID}\t{SERVER_UID}\t{SERVER_UID}\t{SERVER_UID}");
    assert_eq!(process.status_field("Uid").as_deref(), Some(&*ids));
    assert_eq!(process.status_field("Gid").as_deref(), Some(&*ids));
    assert_eq!(process.status_field("Groups").as_deref(), Some(""));
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(process.status_field(set).as_deref(), Some("0000000000000000"), "{set}");
    }
    assert_eq!(process.status_field("NoNewPrivs").as_deref(), Some("1"));
    // Each thread has its own ids: check all of them.
    for thread in std::fs::read_dir(process.proc_path("task")).unwrap().flatten() {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let uid = host_state::parse_status_field(&status, "Uid");
        assert!(uid.is_none_or(|uid| uid == ids), "{status}");
    }
}

fn create_repository() -> SampleRepository {
    let repository = SampleRepository::create();
    chown_tree(repository.path(), SERVER_UID);
    repository
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_drops_root_and_its_sandboxes_work_as_before() {
    if !is_root() {
        return report_skipped("a server that gives up root", "this is not root");
    }
    let (mut server, repository) =
        (LocalServer::start_with_config(&format!("server: {{user: {SERVER_UID}}}\n")), create_repository());
    assert_unprivileged(&server_process(&server));
    let (spawner, launcher) = root_processes(&server);
    for process in [&spawner, &launcher] {
        assert_eq!(process.status_field("Uid").as_deref(), Some("0\t0\t0\t0"), "{process:?}");
    }
    let owner = |name: &str| std::fs::symlink_metadata(server.data_dir().join(name)).unwrap().uid();
    assert_eq!([owner("admin-token"), owner("sandboxes"), owner("images"), owner("")], [SERVER_UID, 0, 0, 0]);
    assert_ne!(owner("layers"), SERVER_UID);
    assert_eq!(std::fs::metadata(server.data_dir()).unwrap().mode() & 0o7777, 0o1770);

    let id = server.create_sandbox(
        json!({ "prompt": "edit new.txt x\nrun cat new.txt", "repo": { "path": repository.path_str() } }),
    );
    let id = id.await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!((row["state"].as_str(), row["outcome"].as_str()), (Some("completed"), Some("succeeded")), "{row}");
    let events = server.admin.all_events(&id).await;
    let branch = event_data(&events, "git.branch_created")[0]["branch"].as_str().unwrap().to_owned();
    assert_eq!(repository.run_git(&["show", &format!("{branch}:new.txt")]), "x\n");

    // Commands, files, a fork, a pause.
    let id = server
        .create_idle_sandbox(json!({ "repo": { "path": repository.path_str() }, "protected": ["README.md"] }))
        .await;
    assert_eq!(server.run_shell(&id, "id -un; echo kept > kept.txt").await.expect_success(), "agent\n");
    assert_ne!(server.run_shell(&id, "echo x >> README.md").await.exit_code(), Some(0));
    let forked = server.admin.post(&format!("/sandboxes/{id}/fork"), json!({})).await.expect_status(201);
    let fork = forked["id"].as_str().unwrap().to_owned();
    server.track_sandbox(&fork);
    server.wait_until(&fork, |row| row["state"] == "running" && row["activity"] != "starting").await;
    assert_eq!(server.run_shell(&fork, "cat kept.txt").await.expect_success(), "kept\n");
    let resources = server.admin.get(&format!("/sandboxes/{id}/resources")).await.expect_status(200);
    assert!(resources["now"]["disk_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{resources}");

    // The sandboxes survive a restart of the server.
    block_in_place(|| server.process.restart());
    assert_unprivileged(&server_process(&server));
    assert_eq!(server.run_shell(&id, "cat kept.txt").await.expect_success(), "kept\n");

    // The launcher spawner replaces a launcher that dies.
    let (_, launcher) = root_processes(&server);
    assert!(launcher.kill() && launcher.ends_in_time());
    poll_until("a new launcher", async || {
        server.admin.get(&format!("/sandboxes/{id}/resources")).await.status.is_success()
    })
    .await;
    let (_, launcher) = root_processes(&server);
    assert_eq!(launcher.status_field("Uid").as_deref(), Some("0\t0\t0\t0"));
    assert_eq!(server.run_shell(&fork, "cat kept.txt").await.expect_success(), "kept\n");
    server.stop_and_check().await;
}

/// The launcher gives a dead worker's spool directory to the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unprivileged_server_ingests_the_spool_of_a_dead_worker() {
    if !is_root() {
        return report_skipped("a server that gives up root", "this is not root");
    }
    let mut server = LocalServer::start_with_config(&format!("server: {{user: {SERVER_UID}}}\n"));
    let prompt = "edit hold x\nsay one\nrun while test -e hold; do sleep 0.1; done\nsay two\nwait 60";
    let id = server.create_sandbox(json!({ "prompt": prompt })).await;
    server.wait_for_event(&id, |event| event["data"]["text"] == "one").await;
    let Some(worker) = host_state::find_worker_process(&id) else {
        report_skipped("a worker that dies alone", "there are no cgroups to find it by");
        return server.stop_and_check().await;
    };
    block_in_place(|| {
        server.process.kill();
        std::fs::remove_file(worker.proc_path("root/workspace/hold")).unwrap();
        let spool = server.sandbox_dir(&id).join("spool");
        wait_until("a spooled message", || spooled_messages(&spool).iter().any(|text| text == "two"));
        assert!(worker.kill() && worker.ends_in_time());
        server.process.restart();
    });
    let row = server.wait_until(&id, |row| row["state"] == "failed").await;
    assert_eq!(row["reason"]["code"], "worker_died", "{row}");
    let events = server.admin.all_events(&id).await;
    assert_eq!(atoll_tests::local::agent_messages(&events), ["one", "two"], "{events:#?}");
    server.stop_and_check().await;
}

/// The pool belongs to root: the launcher creates it and the next server finds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unprivileged_server_finds_its_disk_pool_again() {
    if !is_root() {
        return report_skipped("a server that gives up root", "this is not root");
    }
    if block_in_place(super::disk_pool::detect_pool_support).is_none() {
        return;
    }
    let mut server =
        LocalServer::start_with_config(&format!("server: {{user: {SERVER_UID}}}\nlocal: {{disk_pool_gb: 1}}\n"));
    let id = server.create_idle_sandbox(json!({})).await;
    server.run_shell(&id, "echo kept > kept.txt").await.expect_success();
    for name in ["pool", "pool.btrfs"] {
        assert_eq!(std::fs::symlink_metadata(server.data_dir().join(name)).unwrap().uid(), 0, "{name}");
    }
    block_in_place(|| server.process.restart());
    assert_unprivileged(&server_process(&server));
    assert_eq!(server.run_shell(&id, "cat kept.txt").await.expect_success(), "kept\n");
    super::disk_pool::stop_and_check(server).await;
}

fn run_server(dir: &Path, config: &str, listen: &str) -> Output {
    let file = dir.join("atoll.yaml");
    std::fs::write(&file, config).unwrap();
    let mut command = process::program_command("atoll");
    command.args(["serve", "--listen", listen, "--data-dir"]).arg(dir.join("data")).arg("--config").arg(&file);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    process::spawn_process(command).wait_with_output().unwrap()
}

#[test]
fn a_server_that_cannot_drop_root_says_why() {
    if !is_root() {
        return report_skipped("a server that gives up root", "this is not root");
    }
    let dir = create_temp_dir("atoll-dropped-");
    let assert_refused = |config: &str, listen: &str, expected: &str| {
        let output = run_server(dir.path(), config, listen);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && stderr.contains(expected), "{expected}: {stderr}");
    };
    let (config, free) = (format!("server: {{user: {SERVER_UID}}}\n"), "127.0.0.1:0");
    assert_refused("server: {user: no-such-user}\n", free, "there is no user `no-such-user`");
    assert_refused("server: {user: root}\n", free, "is root");
    assert_refused(&config, "127.0.0.1:1", "port 1 is privileged");
    assert!(!dir.path().join("data").exists(), "the server must create nothing");

    // A directory that a server running as root has used.
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("atoll.db"), "").unwrap();
    assert_refused(&config, free, "chmod 1770");
    std::os::unix::fs::chown(&data, Some(0), Some(SERVER_UID)).unwrap();
    std::fs::set_permissions(&data, PermissionsExt::from_mode(0o1770)).unwrap();
    assert_refused(&config, free, &format!("chown -R {SERVER_UID}:{SERVER_UID} {}", data.join("atoll.db").display()));
    // A directory in which another user replaced a path that the launcher trusts.
    std::fs::remove_dir(data.join("layers")).unwrap();
    std::os::unix::fs::symlink("/etc", data.join("layers")).unwrap();
    assert_refused(&config, free, "must be a directory of the launcher");
    std::fs::remove_file(data.join("layers")).unwrap();
    std::fs::remove_file(data.join("atoll.db")).unwrap();
    std::fs::write(data.join("pool.btrfs"), "").unwrap();
    std::os::unix::fs::chown(data.join("pool.btrfs"), Some(SERVER_UID), Some(SERVER_UID)).unwrap();
    assert_refused(&config, free, "must be a file of the launcher");
    std::fs::remove_dir_all(&data).unwrap();
    // A directory that the user cannot enter.
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
    assert_refused(&config, free, "cannot open the data directory");
}
