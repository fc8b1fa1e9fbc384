//! How well a sandbox is kept apart is demanded, and refused where it can't be had.

use atoll_tests::local::{Ground, directory, has_ended, is_root, skipped};
use atoll_tests::process::{self, program};
use serde_json::{Value, json};
use std::process::{Command, Output, Stdio};

pub(super) fn doctor(mut command: Command, config: &str) -> (Output, Vec<Value>) {
    let dir = directory("atoll-doctor-test-");
    let file = dir.path().join("atoll.yaml");
    std::fs::write(&file, config).unwrap();
    command.args(["doctor", "--json", "--data-dir"]).arg(dir.path().join("data")).arg("--config").arg(&file);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = process::spawn(command).wait_with_output().unwrap();
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let checks = lines.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}")));
    let checks = checks.collect();
    (output, checks)
}

pub(super) fn atoll() -> Command {
    process::command("atoll")
}

/// In a user namespace of its own the number can be lowered, and nobody else notices.
fn atoll_without_user_namespaces() -> Command {
    let mut command = Command::new("unshare");
    let script = "echo 0 >/proc/sys/user/max_user_namespaces || exit 77; exec \"$0\" \"$@\"";
    command.args(["-Ur", "sh", "-c", script]).arg(program("atoll")).stdin(Stdio::null());
    command
}

fn is_strong() -> bool {
    let (_, checks) = doctor(atoll(), "{}");
    checks.iter().any(|check| check["check"] == "sandboxes" && check["detail"].to_string().contains("tier strong"))
}

async fn refused(ground: &Ground, settings: Value) {
    let id = ground.make(settings).await;
    let row = ground.until(&id, has_ended).await;
    assert_eq!(row["reason"]["code"], "provider_refused", "{row}");
    let detail = row["reason"]["detail"].as_str().unwrap();
    assert!(detail.contains("isolation `strong` is demanded") && detail.contains("`standard`"), "{detail}");
    assert!(detail.contains("disk"), "it says what is missing: {detail}");
    assert!(!ground.home_of(&id).exists(), "nothing was made");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demanded_tier_is_given_or_refused() {
    if is_strong() {
        return skipped("a demanded tier", "this machine has the strongest");
    }
    let ground = Ground::start();
    refused(&ground, json!({ "isolation": "strong" })).await;
    let id = ground.kept(json!({ "isolation": "standard" })).await;
    assert_eq!(ground.row(&id).await["settings"]["isolation"], "standard");
    let project = ground.admin.post("/projects", json!({ "name": "careful", "defaults": { "isolation": "strong" } }));
    let project = project.await.expect(201);
    refused(&ground, json!({ "project_id": project["id"] })).await;
    // A request can't lower what its project demands.
    refused(&ground, json!({ "project_id": project["id"], "isolation": "standard" })).await;
    ground.admin.post("/sandboxes", Ground::request(json!({ "isolation": "none" }))).await.refused(422, "invalid");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_machine_can_demand_one() {
    if is_strong() {
        return skipped("a demanded tier", "this machine has the strongest");
    }
    let config = "local: {isolation: strong}\n";
    let ground = Ground::start_with(config);
    refused(&ground, json!({})).await;
    refused(&ground, json!({ "isolation": "standard" })).await;
    let answer =
        ground.admin.post("/sandboxes", json!({ "provider": "fake", "prompt": "say x", "isolation": "standard" }));
    let id = answer.await.expect(201)["id"].as_str().unwrap().to_owned();
    let row = ground.until(&id, has_ended).await;
    assert_eq!(row["reason"]["code"], "provider_unsupported", "one that can't promise it: {row}");
    ground.leave().await;
    let (output, checks) = doctor(atoll(), config);
    assert_eq!(output.status.code(), Some(1));
    let failed: Vec<&Value> = checks.iter().filter(|check| check["status"] == "fail").collect();
    assert!(failed.iter().any(|check| check["detail"].to_string().contains("demands `strong`")), "{failed:?}");
}

#[test]
fn doctor_names_each_ability_and_the_remedy_for_what_is_missing() {
    let (_, checks) = doctor(atoll(), "{}");
    for name in ["sandboxes", "namespaces", "id ranges", "system calls", "landlock", "overlay", "pause", "isolation"] {
        assert!(checks.iter().any(|check| check["check"] == name), "{name}: {checks:#?}");
    }
    for check in checks.iter().filter(|check| check["check"] == "missing") {
        assert!(check["remedy"].as_str().is_some_and(|remedy| remedy.len() > 10), "{check}");
    }
    if !is_root() {
        return skipped("a machine without user namespaces", "only root can imitate one");
    }
    let (output, checks) = doctor(atoll_without_user_namespaces(), "{}");
    if output.status.code() == Some(77) || checks.is_empty() {
        return skipped("a machine without user namespaces", "they can't be switched off in a namespace here");
    }
    assert_eq!(output.status.code(), Some(1));
    let none = checks.iter().find(|check| check["check"] == "sandboxes").unwrap();
    assert!(none["status"] == "fail" && none["detail"].to_string().contains("tier none"), "{none}");
    let remedy = checks.iter().filter(|check| check["check"] == "missing").any(|check| {
        check["remedy"].as_str().is_some_and(|remedy| remedy.contains("sysctl -w user.max_user_namespaces=15000"))
    });
    assert!(remedy, "{checks:#?}");
}
