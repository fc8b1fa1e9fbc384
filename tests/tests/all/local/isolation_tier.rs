//! Required isolation tiers: the provider meets them or refuses to create the sandbox.

use atoll_tests::local::{LocalServer, create_temp_dir, has_ended, is_root, report_skipped};
use atoll_tests::process::{self, find_program};
use serde_json::{Value, json};
use std::process::{Command, Output, Stdio};

pub(super) fn run_doctor(mut command: Command, config: &str) -> (Output, Vec<Value>) {
    let dir = create_temp_dir("atoll-doctor-test-");
    let file = dir.path().join("atoll.yaml");
    std::fs::write(&file, config).unwrap();
    command.args(["doctor", "--json", "--data-dir"]).arg(dir.path().join("data")).arg("--config").arg(&file);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = process::spawn_process(command).wait_with_output().unwrap();
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let checks = lines.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}")));
    let checks = checks.collect();
    (output, checks)
}

pub(super) fn atoll_command() -> Command {
    process::program_command("atoll")
}

/// Disables user namespaces for one command, inside a user namespace of its own.
fn atoll_command_without_user_namespaces() -> Command {
    let mut command = Command::new("unshare");
    let script = "echo 0 >/proc/sys/user/max_user_namespaces || exit 77; exec \"$0\" \"$@\"";
    command.args(["-Ur", "sh", "-c", script]).arg(find_program("atoll")).stdin(Stdio::null());
    command
}

fn is_strong_tier_available() -> bool {
    let (_, checks) = run_doctor(atoll_command(), "{}");
    checks.iter().any(|check| check["check"] == "sandboxes" && check["detail"].to_string().contains("tier strong"))
}

async fn assert_strong_tier_refused(server: &LocalServer, settings: Value) {
    let id = server.create_sandbox(settings).await;
    let row = server.wait_until(&id, has_ended).await;
    assert_eq!(row["reason"]["code"], "provider_refused", "{row}");
    let detail = row["reason"]["detail"].as_str().unwrap();
    assert!(detail.contains("isolation `strong` is required") && detail.contains("`standard`"), "{detail}");
    assert!(detail.contains("disk"), "it must name the missing ability: {detail}");
    assert!(!server.sandbox_dir(&id).exists(), "the provider must create nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_required_isolation_tier_is_met_or_refused() {
    if is_strong_tier_available() {
        return report_skipped("a demanded tier", "this machine has the strongest");
    }
    let server = LocalServer::start();
    assert_strong_tier_refused(&server, json!({ "isolation": "strong" })).await;
    let id = server.create_idle_sandbox(json!({ "isolation": "standard" })).await;
    let settings = &server.get_sandbox(&id).await["settings"];
    assert_eq!(settings["isolation"], "standard");
    // Root gives each sandbox its own ids; the missing disk quota does not lower the default.
    assert!(!is_root() || settings["approvals"] == "full", "{settings}");
    let project = server.admin.post("/projects", json!({ "name": "careful", "defaults": { "isolation": "strong" } }));
    let project = project.await.expect_status(201);
    assert_strong_tier_refused(&server, json!({ "project_id": project["id"] })).await;
    // A request cannot lower the tier that its project requires.
    assert_strong_tier_refused(&server, json!({ "project_id": project["id"], "isolation": "standard" })).await;
    server
        .admin
        .post("/sandboxes", LocalServer::sandbox_request(json!({ "isolation": "none" })))
        .await
        .expect_problem(422, "invalid");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_configuration_can_require_a_tier() {
    if is_strong_tier_available() {
        return report_skipped("a demanded tier", "this machine has the strongest");
    }
    let config = "local: {isolation: strong}\n";
    let server = LocalServer::start_with_config(config);
    assert_strong_tier_refused(&server, json!({})).await;
    assert_strong_tier_refused(&server, json!({ "isolation": "standard" })).await;
    let created =
        server.admin.post("/sandboxes", json!({ "provider": "fake", "prompt": "say x", "isolation": "standard" }));
    let id = created.await.expect_status(201)["id"].as_str().unwrap().to_owned();
    let row = server.wait_until(&id, has_ended).await;
    assert_eq!(row["reason"]["code"], "provider_unsupported", "the provider has no tiers: {row}");
    server.stop_and_check().await;
    let (output, checks) = run_doctor(atoll_command(), config);
    assert_eq!(output.status.code(), Some(1));
    let failed: Vec<&Value> = checks.iter().filter(|check| check["status"] == "fail").collect();
    assert!(failed.iter().any(|check| check["detail"].to_string().contains("demands `strong`")), "{failed:?}");
}

#[test]
fn doctor_names_each_ability_and_a_remedy_for_each_missing_one() {
    let (_, checks) = run_doctor(atoll_command(), "{}");
    for name in ["sandboxes", "namespaces", "id ranges", "system calls", "landlock", "overlay", "pause", "isolation"] {
        assert!(checks.iter().any(|check| check["check"] == name), "{name}: {checks:#?}");
    }
    for check in checks.iter().filter(|check| check["check"] == "missing") {
        assert!(check["remedy"].as_str().is_some_and(|remedy| remedy.len() > 10), "{check}");
    }
    if !is_root() {
        return report_skipped("a machine without user namespaces", "only root can imitate one");
    }
    let (output, checks) = run_doctor(atoll_command_without_user_namespaces(), "{}");
    if output.status.code() == Some(77) || checks.is_empty() {
        return report_skipped("a machine without user namespaces", "they cannot be switched off in a namespace here");
    }
    assert_eq!(output.status.code(), Some(1));
    let sandboxes = checks.iter().find(|check| check["check"] == "sandboxes").unwrap();
    assert!(sandboxes["status"] == "fail" && sandboxes["detail"].to_string().contains("tier none"), "{sandboxes}");
    let has_remedy = checks.iter().filter(|check| check["check"] == "missing").any(|check| {
        check["remedy"]
            .as_str()
            .is_some_and(|has_remedy| has_remedy.contains("sysctl -w user.max_user_namespaces=15000"))
    });
    assert!(has_remedy, "{checks:#?}");
}
