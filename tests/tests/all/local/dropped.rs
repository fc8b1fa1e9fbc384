//! A server that root starts and that becomes somebody else; what makes sandboxes stays root.

use atoll_tests::local::repository::Repository;
use atoll_tests::local::{Ground, directory, is_root, skipped, told, traces};
use atoll_tests::ordinary::own;
use atoll_tests::process;
use serde_json::json;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};
use tokio::task::block_in_place;
use traces::Process;

/// Nobody has it, and no other test uses it.
const USER: u32 = 61_240;

fn server(ground: &Ground) -> Process {
    Process::open(ground.server.pid(), || true).unwrap()
}

/// The process that starts launchers, and the launcher.
fn of_root(ground: &Ground) -> (Process, Process) {
    let mut keepers = traces::children(ground.server.pid());
    assert_eq!(keepers.len(), 1, "{keepers:?}");
    let keeper = keepers.remove(0);
    assert!(keeper.file("cmdline").contains("launcher-keeper"), "{keeper:?}");
    let launcher = traces::children(keeper.pid).into_iter().find(Process::is_alive).unwrap();
    (keeper, launcher)
}

fn is_the_users(process: &Process) {
    let ids = format!("{USER}\t{USER}\t{USER}\t{USER}");
    assert_eq!(process.status("Uid").as_deref(), Some(&*ids));
    assert_eq!(process.status("Gid").as_deref(), Some(&*ids));
    assert_eq!(process.status("Groups").as_deref(), Some(""));
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(process.status(set).as_deref(), Some("0000000000000000"), "{set}");
    }
    assert_eq!(process.status("NoNewPrivs").as_deref(), Some("1"));
    // Every thread: each has ids of its own.
    for thread in std::fs::read_dir(process.path("task")).unwrap().flatten() {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let uid = traces::field_of(&status, "Uid");
        assert!(uid.is_none_or(|uid| uid == ids), "{status}");
    }
}

fn repository() -> Repository {
    let repository = Repository::sample();
    own(repository.path(), USER);
    repository
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_gives_up_root_and_its_sandboxes_work_as_before() {
    if !is_root() {
        return skipped("a server that gives up root", "this is not root");
    }
    let (mut ground, repository) = (Ground::start_with(&format!("server: {{user: {USER}}}\n")), repository());
    is_the_users(&server(&ground));
    let (keeper, launcher) = of_root(&ground);
    for process in [&keeper, &launcher] {
        assert_eq!(process.status("Uid").as_deref(), Some("0\t0\t0\t0"), "{process:?}");
    }
    let owner = |name: &str| std::fs::symlink_metadata(ground.data().join(name)).unwrap().uid();
    assert_eq!([owner("admin-token"), owner("sandboxes"), owner("images"), owner("")], [USER, 0, 0, 0]);
    assert_ne!(owner("layers"), USER);
    assert_eq!(std::fs::metadata(ground.data()).unwrap().mode() & 0o7777, 0o1770);

    // One task from start to end.
    let id = ground.make(json!({ "prompt": "edit new.txt x\nrun cat new.txt", "repo": { "path": repository.text() } }));
    let id = id.await;
    let row = ground.ended(&id).await;
    assert_eq!((row["state"].as_str(), row["outcome"].as_str()), (Some("completed"), Some("succeeded")), "{row}");
    let events = ground.admin.all_events(&id).await;
    let branch = told(&events, "git.branch_created")[0]["branch"].as_str().unwrap().to_owned();
    assert_eq!(repository.git(&["show", &format!("{branch}:new.txt")]), "x\n");

    // Commands, files, a fork, a pause.
    let id = ground.kept(json!({ "repo": { "path": repository.text() }, "protected": ["README.md"] })).await;
    assert_eq!(ground.shell(&id, "id -un; echo kept > kept.txt").await.well(), "agent\n");
    assert_ne!(ground.shell(&id, "echo x >> README.md").await.code(), Some(0));
    let made = ground.admin.post(&format!("/sandboxes/{id}/fork"), json!({})).await.expect(201);
    let fork = made["id"].as_str().unwrap().to_owned();
    ground.remember(&fork);
    ground.until(&fork, |row| row["state"] == "running" && row["activity"] != "starting").await;
    assert_eq!(ground.shell(&fork, "cat kept.txt").await.well(), "kept\n");
    let resources = ground.admin.get(&format!("/sandboxes/{id}/resources")).await.expect(200);
    assert!(resources["now"]["disk_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{resources}");

    // Another server finds them.
    block_in_place(|| ground.server.start_again());
    is_the_users(&server(&ground));
    assert_eq!(ground.shell(&id, "cat kept.txt").await.well(), "kept\n");

    // A launcher that dies is replaced, by the one who still may.
    let (_, launcher) = of_root(&ground);
    assert!(launcher.kill() && launcher.ends_within(Duration::from_secs(10)));
    let deadline = Instant::now() + Duration::from_secs(30);
    while !ground.admin.get(&format!("/sandboxes/{id}/resources")).await.status.is_success() {
        assert!(Instant::now() < deadline, "no other launcher came");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (_, launcher) = of_root(&ground);
    assert_eq!(launcher.status("Uid").as_deref(), Some("0\t0\t0\t0"));
    assert_eq!(ground.shell(&fork, "cat kept.txt").await.well(), "kept\n");
    ground.leave().await;
}

/// What a dead worker had not told is in a directory of its own, which the server gets then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_worker_left_is_taken_in_without_root() {
    if !is_root() {
        return skipped("a server that gives up root", "this is not root");
    }
    let mut ground = Ground::start_with(&format!("server: {{user: {USER}}}\n"));
    let id = ground.make(json!({ "prompt": "say one\nwait 2\nsay two\nwait 60" })).await;
    ground.event(&id, |event| event["data"]["text"] == "one").await;
    let Some(worker) = traces::worker(&id) else {
        skipped("a worker that dies alone", "there are no cgroups to find it by");
        return ground.leave().await;
    };
    block_in_place(|| {
        ground.server.kill();
        // Longer than the agent waits: what it says then is in the spool alone.
        std::thread::sleep(Duration::from_secs(4));
        assert!(worker.kill() && worker.ends_within(Duration::from_secs(10)));
        ground.server.start_again();
    });
    let row = ground.until(&id, |row| row["state"] == "failed").await;
    assert_eq!(row["reason"]["code"], "worker_died", "{row}");
    let events = ground.admin.all_events(&id).await;
    assert_eq!(atoll_tests::local::said(&events), ["one", "two"], "{events:#?}");
    ground.leave().await;
}

/// The pool is root's: the launcher makes it, the next server finds it, and no advice says to give it away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_is_found_again_without_root() {
    if !is_root() {
        return skipped("a server that gives up root", "this is not root");
    }
    if block_in_place(super::pool::pools).is_none() {
        return;
    }
    let mut ground = Ground::start_with(&format!("server: {{user: {USER}}}\nlocal: {{disk_pool_gb: 1}}\n"));
    let id = ground.kept(json!({})).await;
    ground.shell(&id, "echo kept > kept.txt").await.well();
    for name in ["pool", "pool.btrfs"] {
        assert_eq!(std::fs::symlink_metadata(ground.data().join(name)).unwrap().uid(), 0, "{name}");
    }
    block_in_place(|| ground.server.start_again());
    is_the_users(&server(&ground));
    assert_eq!(ground.shell(&id, "cat kept.txt").await.well(), "kept\n");
    super::pool::leave(ground).await;
}

fn serve(dir: &Path, config: &str, listen: &str) -> Output {
    let file = dir.join("atoll.yaml");
    std::fs::write(&file, config).unwrap();
    let mut command = process::command("atoll");
    command.args(["serve", "--listen", listen, "--data-dir"]).arg(dir.join("data")).arg("--config").arg(&file);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    process::spawn(command).wait_with_output().unwrap()
}

#[test]
fn what_keeps_it_from_becoming_somebody_else_is_said() {
    if !is_root() {
        return skipped("a server that gives up root", "this is not root");
    }
    let dir = directory("atoll-dropped-");
    let refused = |config: &str, listen: &str, wanted: &str| {
        let output = serve(dir.path(), config, listen);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(wanted), "{wanted}: {said}");
    };
    let (config, free) = (format!("server: {{user: {USER}}}\n"), "127.0.0.1:0");
    refused("server: {user: no-such-user}\n", free, "there is no user `no-such-user`");
    refused("server: {user: root}\n", free, "is root");
    refused(&config, "127.0.0.1:1", "port 1 is root's");
    assert!(!dir.path().join("data").exists(), "nothing was made");

    // A directory that a server of root's has used.
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("atoll.db"), "").unwrap();
    refused(&config, free, "chmod 1770");
    std::os::unix::fs::chown(&data, Some(0), Some(USER)).unwrap();
    std::fs::set_permissions(&data, PermissionsExt::from_mode(0o1770)).unwrap();
    refused(&config, free, &format!("chown -R {USER}:{USER} {}", data.join("atoll.db").display()));
    // One in which somebody else has put what the launcher trusts.
    std::fs::remove_dir(data.join("layers")).unwrap();
    std::os::unix::fs::symlink("/etc", data.join("layers")).unwrap();
    refused(&config, free, "must be a directory of the launcher's");
    std::fs::remove_file(data.join("layers")).unwrap();
    std::fs::remove_file(data.join("atoll.db")).unwrap();
    std::fs::write(data.join("pool.btrfs"), "").unwrap();
    std::os::unix::fs::chown(data.join("pool.btrfs"), Some(USER), Some(USER)).unwrap();
    refused(&config, free, "must be a file of the launcher's");
    std::fs::remove_dir_all(&data).unwrap();
    // And one that the user does not get to.
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
    refused(&config, free, "can't reach the data directory");
}
