//! `atoll image import` from an OCI layout and from a Docker engine, and a project with its own image.

use super::exposed_secrets::run_atoll;
use atoll_tests::docker_engine::{DockerEngine, TEST_IMAGE, build_busybox_root};
use atoll_tests::local::{LocalServer, create_temp_dir, report_skipped};
use atoll_tests::process;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tokio::task::block_in_place;

/// Runs a tool of this machine and returns its output.
fn run_tool(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Stores a file as a blob of the layout and returns its descriptor.
fn store_blob(layout: &Path, file: &Path, media_type: &str) -> Value {
    let digest = run_tool(Command::new("sha256sum").arg(file)).split_whitespace().next().unwrap().to_owned();
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let size = fs::copy(file, blobs.join(&digest)).unwrap();
    json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": size })
}

/// Writes the directory of an OCI layout with one image of two layers.
fn write_layout(dir: &Path) -> std::path::PathBuf {
    let (root, layout) = (dir.join("root"), dir.join("layout"));
    build_busybox_root(&root, &process::find_program("atoll-worker"));
    fs::write(root.join("etc/hidden"), "below\n").unwrap();
    let upper = dir.join("upper");
    fs::create_dir_all(upper.join("etc")).unwrap();
    fs::write(upper.join("etc/marker"), "from the layout\n").unwrap();
    fs::write(upper.join("etc/.wh.hidden"), "").unwrap();
    let mut layers = Vec::new();
    for (name, flag) in [("root", "-cf"), ("upper", "-czf")] {
        let archive = dir.join(format!("{name}.tar"));
        run_tool(Command::new("tar").arg(flag).arg(&archive).arg("-C").arg(dir.join(name)).arg("."));
        layers.push(store_blob(&layout, &archive, "application/vnd.oci.image.layer.v1.tar"));
    }
    let file = dir.join("file.json");
    let store_json = |value: Value, media_type: &str| {
        fs::write(&file, value.to_string()).unwrap();
        store_blob(&layout, &file, media_type)
    };
    let config = store_json(json!({ "os": "linux" }), "application/vnd.oci.image.config.v1+json");
    let manifest = json!({ "schemaVersion": 2, "config": config, "layers": layers });
    let manifest = store_json(manifest, "application/vnd.oci.image.manifest.v1+json");
    fs::write(layout.join("index.json"), json!({ "schemaVersion": 2, "manifests": [manifest] }).to_string()).unwrap();
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#).unwrap();
    layout
}

fn import(server: &LocalServer, name: &str, source: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(process::find_program("atoll"));
    command.args(["image", "import", name, source, "--data-dir"]).arg(server.data_dir());
    command.envs(environment.iter().copied()).stdin(Stdio::null());
    command.output().unwrap()
}

fn error_of(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_project_uses_an_image_from_an_oci_layout() {
    let (server, dir) = (LocalServer::start(), create_temp_dir("atoll-layout-"));
    let layout = block_in_place(|| write_layout(dir.path()));
    for (name, source) in [("plain", layout.display().to_string()), ("named", format!("oci:{}", layout.display()))] {
        let imported = block_in_place(|| import(&server, name, &source, &[]));
        assert!(imported.status.success(), "{imported:?}");
    }
    let images = server.admin.get("/images").await.expect_status(200);
    let layers: Vec<&Value> = images["items"].as_array().unwrap().iter().map(|image| &image["layers"]).collect();
    assert_eq!(layers, [2, 2], "{images}");

    let project = server.admin.post("/projects", json!({ "name": "with an image" })).await.expect_status(201);
    let project = project["id"].as_str().unwrap();
    let (is_set, output) = block_in_place(|| run_atoll(&server, &["project", "set", project, "--image", "plain"], ""));
    assert!(is_set, "{output}");
    let id = server.create_idle_sandbox(json!({ "project_id": project })).await;
    let inside = server.run_shell(&id, "cat /etc/marker; test -e /etc/hidden || echo hidden; which busybox").await;
    assert_eq!(inside.expect_success(), "from the layout\nhidden\n/bin/busybox\n");

    let root = dir.path().join("root");
    let refused = block_in_place(|| import(&server, "root", root.to_str().unwrap(), &[]));
    assert!(error_of(&refused).contains("not an OCI layout") && error_of(&refused).contains("tar -C "), "{refused:?}");
    fs::remove_dir_all(layout.join("blobs")).unwrap();
    let broken = block_in_place(|| import(&server, "broken", layout.to_str().unwrap(), &[]));
    assert!(error_of(&broken).contains("manifest"), "{broken:?}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_engine_is_one_sentence_with_the_remedy() {
    let server = LocalServer::start();
    let missing = block_in_place(|| import(&server, "x", "podman://tools:1", &[("PATH", "/nonexistent")]));
    let error = error_of(&missing);
    assert!(error.contains("there is no podman on this machine"), "{error}");
    assert!(error.contains("podman save tools:1 -o FILE"), "{error}");
    let invalid = block_in_place(|| import(&server, "x", "docker://--help", &[]));
    assert!(error_of(&invalid).contains("docker://debian:stable"), "{invalid:?}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_comes_from_a_docker_engine_by_its_name() {
    let engine = match block_in_place(DockerEngine::get_or_start) {
        Ok(engine) => engine,
        Err(why) => return report_skipped("import from a Docker engine", &why),
    };
    let server = LocalServer::start();
    let socket = engine.socket_url();
    let environment = [("DOCKER_HOST", socket.as_str()), ("DOCKER_CONTEXT", "")];
    let imported = block_in_place(|| import(&server, "saved", &format!("docker://{TEST_IMAGE}"), &environment));
    assert!(imported.status.success(), "{imported:?}");
    let images = server.admin.get("/images").await.expect_status(200);
    assert_eq!(images["items"][0]["name"], "saved", "{images}");
    let unknown = block_in_place(|| import(&server, "other", "docker://no-such-image:1", &environment));
    let error = error_of(&unknown);
    assert!(error.contains("`docker save no-such-image:1` failed") && error.contains("docker pull"), "{error}");
    let images = server.admin.get("/images").await.expect_status(200);
    assert_eq!(images["items"].as_array().unwrap().len(), 1, "nothing of a failed import stays: {images}");
    block_in_place(|| drop(engine));
    server.stop_and_check().await;
}
