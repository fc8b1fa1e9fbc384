//! Schemathesis reads the OpenAPI document and asks for everything in it, rightly and wrongly.
//!
//! `scripts/setup-fuzz` installs it; `make test` runs that first.

use atoll_tests::actor::Actor;
use atoll_tests::database::Kind;
use atoll_tests::scale;
use atoll_tests::server::TestServer;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// What holds for every answer. (That whatever fits the document is accepted does not: bounds,
/// state and used-up keys refuse, too.)
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance,unsupported_method,\
                      allow_header_conformance,missing_required_header,ignored_auth";
/// And for clients: what doesn't fit the document is refused. The worker protocol is lenient.
const STRICT: &str = ",negative_data_rejection";
/// Requests for each operation, at full scale.
const EXAMPLES: usize = 100;
/// These answer for as long as one listens; other tests look after them.
const ENDLESS: &str = "/api/v1/sandboxes/{id}/events/stream";

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn schemathesis() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let program = workspace().join(target).join("venv/bin/schemathesis");
    assert!(program.exists(), "{} is not there: run make test (it calls scripts/setup-fuzz)", program.display());
    program
}

/// Runs it with this actor's token; `settings` is its configuration file. Gives its report.
async fn run(server: &TestServer, actor: &Actor, strict: &str, settings: &str) -> Value {
    let program = schemathesis();
    let seed = scale::seed("fuzz") % u64::from(u32::MAX);
    let dir = tempfile::Builder::new().prefix("atoll-fuzz-").tempdir().unwrap();
    let report = dir.path().join("report.json");
    std::fs::write(dir.path().join("schemathesis.toml"), settings).unwrap();
    let mut command = tokio::process::Command::new(program);
    command.current_dir(dir.path()).kill_on_drop(true).stdin(Stdio::null());
    command.args(["run", &format!("{}/api/v1/openapi.json", server.url), "--checks", &format!("{CHECKS}{strict}")]);
    command.args(["--seed", &seed.to_string(), "--max-examples", &scale::scaled(EXAMPLES).to_string()]);
    // One thread: Python 3.11's parser breaks in several at once, and the two tests run beside each other.
    command.args(["--workers", "1", "--phases", "examples,coverage,fuzzing", "--generation-database", "none"]);
    command.args(["--request-timeout", "30", "--continue-on-failure", "--warnings", "off", "--exclude-path", ENDLESS]);
    command.args(["--header", &format!("Authorization: Bearer {}", actor.token.as_ref().unwrap())]);
    command.arg("--report-json-path").arg(&report);
    command.env("SCHEMATHESIS_HOOKS", workspace().join("tests/fuzz_hooks.py"));
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("NO_COLOR", "1").env("NO_PROXY", "127.0.0.1");
    let output = command.output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ATOLL_TEST_SEED={seed}\n{said}\n{complained}");
    let text = std::fs::read_to_string(&report).unwrap_or_else(|error| panic!("no report: {error}\n{said}"));
    serde_json::from_str(&text).unwrap()
}

/// It went through everything, and this many operations were done at least once.
#[track_caller]
fn really_ran(report: &Value, done_at_least: usize) {
    assert_eq!((&report["complete"], &report["errors"]), (&json!(true), &json!([])), "{report}");
    let count = |value: &Value| value.as_u64().unwrap();
    let operations = &report["operations"];
    assert_eq!((count(&operations["tested"]), count(&operations["errored"])), (count(&operations["selected"]), 0));
    assert_eq!(count(&operations["selected"]), count(&operations["total"]) - 1, "all but the endless one");
    assert!(count(&report["test_cases"]["generated"]) > 1000, "{report}");
    let rates = report["valid_rates"].as_object().unwrap();
    let done = rates.values().filter(|phases| {
        phases.as_object().unwrap().values().any(|rate| rate["accepted"].as_u64().is_some_and(|accepted| accepted > 0))
    });
    let done = done.count();
    assert!(done >= done_at_least, "only {done} operations were ever done: {rates:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_an_admin_asks_for_is_answered_as_documented() {
    let server = TestServer::start(Kind::Sqlite).await;
    let report = run(&server, &server.admin(), STRICT, "").await;
    really_ran(&report, 25);
    server.anon().get("/readyz").await.expect(200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_worker_asks_for_is_answered_as_documented() {
    let server = TestServer::start(Kind::Sqlite).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({ "prompt": "go" })).await;
    let messages = admin.get(&format!("/sandboxes/{}/messages", sandbox.id)).await.expect(200);
    let message = messages["items"][0]["id"].as_str().unwrap();
    // A worker can make nothing to ask for, so it is told what there is.
    let settings = format!("[parameters]\n\"path.id\" = \"{}\"\n\"path.mid\" = \"{message}\"\n", sandbox.id);
    let report = run(&server, &admin.with_token(&sandbox.token), "", &settings).await;
    really_ran(&report, 5);
    server.anon().get("/readyz").await.expect(200);
    server.stop().await;
}
