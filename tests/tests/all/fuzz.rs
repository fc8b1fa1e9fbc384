//! Schemathesis reads the OpenAPI document and sends valid and invalid requests for every operation.
//!
//! `scripts/setup-fuzz` installs it; `make test` runs that first.

use atoll_tests::actor::Actor;
use atoll_tests::database::DatabaseKind;
use atoll_tests::scale;
use atoll_tests::server::TestServer;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Checks for every response. Valid requests may still fail because of limits, states or used idempotency keys.
const SCHEMATHESIS_CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance,unsupported_method,\
                      allow_header_conformance,missing_required_header,ignored_auth";
/// An additional check for clients: the server refuses invalid requests. The worker protocol is lenient.
const STRICT_CHECKS: &str = ",negative_data_rejection";
/// Requests per operation at full scale.
const FULL_SCALE_EXAMPLES: usize = 100;
/// The routes of workers. Another test covers that the other routes refuse them.
const WORKER_ROUTES: &str = r"^/api/v1/sandboxes/\{id\}/(blobs|events|heartbeat|messages)(/|$)";
const ALL_ROUTES: &str = "^/";
/// A response that never ends. Other tests cover it.
const ENDLESS_ROUTE: &str = "/api/v1/sandboxes/{id}/events/stream";

fn workspace_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn find_schemathesis() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let program = workspace_root().join(target).join("venv/bin/schemathesis");
    assert!(program.exists(), "{} is missing: run `make test` (it calls scripts/setup-fuzz)", program.display());
    program
}

/// Runs Schemathesis on the matching routes, with this actor's token and this configuration file. Returns its report.
async fn run_schemathesis(server: &TestServer, actor: &Actor, routes: &str, strict: &str, settings: &str) -> Value {
    let program = find_schemathesis();
    let seed = scale::choose_seed("fuzz") % u64::from(u32::MAX);
    let dir = tempfile::Builder::new().prefix("atoll-fuzz-").tempdir().unwrap();
    let report = dir.path().join("report.json");
    std::fs::write(dir.path().join("schemathesis.toml"), settings).unwrap();
    let mut command = tokio::process::Command::new(program);
    command.current_dir(dir.path()).kill_on_drop(true).stdin(Stdio::null());
    command.args([
        "run",
        &format!("{}/api/v1/openapi.json", server.url),
        "--checks",
        &format!("{SCHEMATHESIS_CHECKS}{strict}"),
    ]);
    command.args(["--seed", &seed.to_string(), "--max-examples", &scale::scale_count(FULL_SCALE_EXAMPLES).to_string()]);
    // Use one thread: the parser of Python 3.11 is not thread-safe, and two of these tests run at the same time.
    command.args(["--workers", "1", "--phases", "examples,coverage,fuzzing", "--generation-database", "none"]);
    command.args([
        "--request-timeout",
        "30",
        "--continue-on-failure",
        "--warnings",
        "off",
        "--include-path-regex",
        routes,
        "--exclude-path",
        ENDLESS_ROUTE,
    ]);
    command.args(["--header", &format!("Authorization: Bearer {}", actor.token.as_ref().unwrap())]);
    command.arg("--report-json-path").arg(&report);
    command.env("SCHEMATHESIS_HOOKS", workspace_root().join("tests/fuzz_hooks.py"));
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("NO_COLOR", "1").env("NO_PROXY", "127.0.0.1");
    let output = command.output().await.unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ATOLL_TEST_SEED={seed}\n{stdout}\n{stderr}");
    let text = std::fs::read_to_string(&report).unwrap_or_else(|error| panic!("no report: {error}\n{stdout}"));
    serde_json::from_str(&text).unwrap()
}

/// Checks that the run covered every selected operation, and that at least this many operations succeeded once.
#[track_caller]
fn assert_complete_run(report: &Value, min_succeeded: usize, min_cases: u64) {
    assert_eq!((&report["complete"], &report["errors"]), (&json!(true), &json!([])), "{report}");
    let count = |value: &Value| value.as_u64().unwrap();
    let operations = &report["operations"];
    assert_eq!((count(&operations["tested"]), count(&operations["errored"])), (count(&operations["selected"]), 0));
    assert!(count(&report["test_cases"]["generated"]) > min_cases, "{report}");
    let rates = report["valid_rates"].as_object().unwrap();
    let succeeded = rates.values().filter(|phases| {
        phases.as_object().unwrap().values().any(|rate| rate["accepted"].as_u64().is_some_and(|accepted| accepted > 0))
    });
    let succeeded = succeeded.count();
    assert!(succeeded >= min_succeeded, "only {succeeded} operations ever succeeded: {rates:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_to_an_admin_match_the_openapi_document() {
    let server = TestServer::start(DatabaseKind::Sqlite).await;
    let report = run_schemathesis(&server, &server.admin(), ALL_ROUTES, STRICT_CHECKS, "").await;
    let operations = &report["operations"];
    let [selected, total] = ["selected", "total"].map(|count| operations[count].as_u64().unwrap());
    assert_eq!(selected, total - 1, "expected all operations but the endless one");
    assert_complete_run(&report, 25, 1000);
    server.anon().get("/readyz").await.expect_status(200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_to_a_worker_match_the_openapi_document() {
    let server = TestServer::start(DatabaseKind::Sqlite).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({ "prompt": "go" })).await;
    let messages = admin.get(&format!("/sandboxes/{}/messages", sandbox.id)).await.expect_status(200);
    let message = messages["items"][0]["id"].as_str().unwrap();
    // A worker cannot create sandboxes or messages, so the configuration names existing ones.
    let settings = format!("[parameters]\n\"path.id\" = \"{}\"\n\"path.mid\" = \"{message}\"\n", sandbox.id);
    let worker = admin.with_token(&sandbox.token);
    let report = run_schemathesis(&server, &worker, WORKER_ROUTES, "", &settings).await;
    // Messages, heartbeats and leases. The others succeed only by chance, for example if the message is leased just then.
    assert_complete_run(&report, 3, 100);
    server.anon().get("/readyz").await.expect_status(200);
    server.stop().await;
}
