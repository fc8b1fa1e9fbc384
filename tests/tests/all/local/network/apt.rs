//! apt in an imported root, with the package registry that this machine itself uses.

use super::network_tools::{is_reachable, start_server_for};
use atoll_tests::debian_root::{AptSource, build_debian_root};
use atoll_tests::local::{create_temp_dir, is_root, report_skipped};
use serde_json::json;
use tokio::task::block_in_place;

const WHAT: &str = "apt in an imported root";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn apt_installs_a_package_in_an_imported_root() {
    if !is_root() {
        return report_skipped(WHAT, "root in a sandbox needs id ranges");
    }
    let Some(source) = AptSource::find() else { return report_skipped(WHAT, "apt has no sources here") };
    if !is_reachable(&source.url) {
        return report_skipped(WHAT, &format!("{} cannot be reached from this machine", source.url));
    }
    let dir = create_temp_dir("atoll-apt-");
    let archive = match block_in_place(|| build_debian_root(dir.path(), &source)) {
        Ok(archive) => std::fs::read(archive).unwrap(),
        Err(why) => return report_skipped(WHAT, &why),
    };
    let server = start_server_for(&[source.host()]);
    let import = server.admin.request(reqwest::Method::POST, "/images?name=debian").body(archive);
    server.admin.send(import).await.expect_status(201);
    let network = json!({ "policy": "allow", "allow": [source.host()] });
    let id = server.create_idle_sandbox(json!({ "image": "debian", "network": network })).await;
    let as_root = |script: &str| server.run_exec(&id, json!({ "shell": script, "root": true, "timeout_s": 300 }));
    // The whole way: apt drops its privileges to download, checks the signatures, and dpkg unpacks and configures.
    as_root("apt-get update 2>&1").await.expect_success();
    let installed = as_root("apt-get install -y hello 2>&1").await.expect_success();
    assert!(installed.contains("Setting up hello"), "{installed}");
    assert_eq!(
        server.run_shell(&id, "hello; dpkg -s hello | grep ^Status").await.expect_success(),
        "Hello, world!\nStatus: install ok installed\n"
    );
    // A fork has the package; purging it there changes only the fork.
    let fork = server.admin.post(&format!("/sandboxes/{id}/fork"), json!({})).await.expect_status(201);
    let fork = fork["id"].as_str().unwrap().to_owned();
    server.track_sandbox(&fork);
    server.wait_until(&fork, |row| row["state"] == "running" && row["activity"] != "starting").await;
    let purge = json!({ "shell": "apt-get purge -y hello 2>&1; ! command -v hello", "root": true, "timeout_s": 300 });
    server.run_exec(&fork, purge).await.expect_success();
    assert_eq!(server.run_shell(&id, "hello").await.expect_success(), "Hello, world!\n");
    // The policy holds for root's programs too.
    server.admin.put(&format!("/sandboxes/{id}/network"), json!({ "policy": "none" })).await.expect_status(200);
    let refused = as_root("apt-get update 2>&1").await;
    assert!(refused.stdout.contains("403"), "{refused:?}");
    for sandbox in [&id, &fork] {
        server.admin.post(&format!("/sandboxes/{sandbox}/stop"), json!({})).await.expect_status(200);
        server.wait_until_ended(sandbox).await;
    }
    server.stop_and_check().await;
}
