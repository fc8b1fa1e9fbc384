//! Set-up layers over the API: listed, removed, pruned, and evicted when they exceed their bound.

use atoll_core::id::ProjectId;
use atoll_core::provider::provider_cache_name;
use atoll_jail::{CacheStart, Launcher, LauncherOptions, ResourceLimits, SandboxSpec};
use atoll_test_wait::wait_until;
use atoll_tests::local::LocalServer;
use atoll_tests::process::find_program;
use serde_json::{Value, json};
use std::path::Path;
use tokio::task::block_in_place;

/// Bytes of each layer; two fit into `max_cache_gb`, three do not.
const LAYER_BYTES: u64 = 9_000_000;
const CONFIG: &str = "setup:\n  max_cache_gb: 0.02\n";

fn spec(name: &str, cache: Option<&str>) -> SandboxSpec {
    SandboxSpec {
        name: name.to_owned(),
        labels: Default::default(),
        limits: ResourceLimits::default(),
        hostname: "atoll".into(),
        image: None,
        snapshot: None,
        cache: cache.map(|name| CacheStart { name: name.to_owned(), downloads_only: false }),
        protected: Vec::new(),
        programs: Vec::new(),
    }
}

/// Seals a layer per name, and uses the first one again, so that it is the most recently used one.
fn seal_layers(data_dir: &Path, names: &[String]) {
    let options = LauncherOptions {
        exe: find_program("atoll"),
        ..LauncherOptions::new(data_dir.to_owned(), find_program("atoll-worker"), "seed")
    };
    let launcher = Launcher::start(options).unwrap();
    for (number, name) in names.iter().enumerate() {
        let sandbox = format!("seed{number}");
        let info = launcher.prepare_sandbox(&spec(&sandbox, None)).unwrap();
        std::fs::write(info.workspace.join("file"), vec![7; usize::try_from(LAYER_BYTES).unwrap()]).unwrap();
        launcher.seal_cache(&sandbox, name).unwrap();
        launcher.destroy_sandbox(&sandbox).unwrap();
    }
    launcher.prepare_sandbox(&spec("user", Some(&names[0]))).unwrap();
    launcher.destroy_sandbox("user").unwrap();
    wait_until("the layers' sizes", || launcher.list_caches().unwrap().iter().all(|cache| cache.bytes.is_some()));
}

async fn list_names(server: &LocalServer) -> Vec<Value> {
    let listed = server.admin.get("/caches").await.expect_status(200);
    listed["items"].as_array().unwrap().iter().map(|cache| cache["name"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layers_are_listed_evicted_removed_and_pruned() {
    let mut server = LocalServer::start_with_config(CONFIG);
    let projects = server.admin.get("/projects").await.expect_status(200);
    let project: ProjectId = projects["items"][0]["id"].as_str().unwrap().parse().unwrap();
    let of_deleted = provider_cache_name(ProjectId::new(), "k0");
    let mut names: Vec<String> = ["k1", "k2", "k3"].map(|key| provider_cache_name(project, key)).into();
    names.push(of_deleted);
    block_in_place(|| {
        server.process.kill();
        seal_layers(&server.data_dir(), &names);
        server.process.restart();
    });
    let listed = server.admin.get("/caches").await.expect_status(200);
    let first = &listed["items"][0];
    assert_eq!((&first["name"], &first["project_id"]), (&json!("k1"), &json!(project)), "{listed}");
    assert!(first["bytes"].as_u64().is_some_and(|bytes| bytes >= LAYER_BYTES), "{listed}");
    assert!(first["used_at"].as_str() >= first["created_at"].as_str(), "{listed}");
    assert_eq!(list_names(&server).await.len(), 4);

    // The layer of a deleted project goes, and the least recently used one of the rest.
    let report = server.admin.post("/gc", json!({ "dry_run": true })).await.expect_status(200);
    assert_eq!((&report["caches"], list_names(&server).await.len()), (&json!(1), 4), "{report}");
    let report = server.admin.post("/gc", json!({})).await.expect_status(200);
    assert_eq!(report["caches"], 2, "{report}");
    assert_eq!(list_names(&server).await, ["k1", "k3"]);

    server.admin.delete("/caches/k3").await.expect_status(200);
    server.admin.delete("/caches/k3").await.expect_status(404);
    let pruned = server.admin.post("/caches/prune", json!({})).await.expect_status(200);
    assert_eq!(pruned["items"], json!([]), "a layer in use is no older than 30 days");
    let pruned = server.admin.post("/caches/prune", json!({ "all": true, "dry_run": true })).await.expect_status(200);
    assert_eq!((&pruned["items"][0]["name"], list_names(&server).await.len()), (&json!("k1"), 1), "{pruned}");
    let pruned = server.admin.post("/caches/prune", json!({ "unused_days": 0 })).await.expect_status(200);
    assert_eq!(pruned["items"][0]["name"], "k1");
    assert_eq!(list_names(&server).await, Vec::<Value>::new());
    wait_until("the layers to be removed", || {
        std::fs::read_dir(server.data_dir().join("layers")).unwrap().next().is_none()
    });
    server.stop_and_check().await;
}
