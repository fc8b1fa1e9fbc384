//! What an operator sees: metrics, traces, logs and the conductor's status.

use atoll_test_wait::try_poll_for;
use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{LocalServer, event_data};
use atoll_tests::otlp_receiver::{OtlpReceiver, ReceivedSpan};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Parses metrics with the official parser, and prints them as JSON.
const PARSE_METRICS: &str = "
import json, sys
from prometheus_client.parser import text_string_to_metric_families
families = text_string_to_metric_families(sys.stdin.read())
print(json.dumps([[f.name, f.type, f.documentation, [[s.name, s.labels, s.value] for s in f.samples]] for f in families]))
";

fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn parse_metrics(text: &str) -> Vec<Value> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let python = workspace_root().join(target).join("venv/bin/python");
    let mut command = Command::new(&python);
    let mut child = command
        .args(["-c", PARSE_METRICS])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("run scripts/setup-fuzz first: {}: {error}", python.display()));
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the metrics do not parse: {text}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Name, type and help of every metric in docs/metrics.md.
fn documented_metrics() -> Vec<(String, String, String)> {
    let page = std::fs::read_to_string(workspace_root().join("docs/metrics.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `atoll_"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_end_matches(" |").split(" | ").collect();
        let name = format!("atoll_{}", cells[0].trim_end_matches('`'));
        (name, cells[1].to_owned(), cells.last().unwrap().to_string())
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_documented_metric_appears_after_a_run() {
    let server = LocalServer::start();
    let id = server.create_sandbox(json!({ "prompt": "say hello\nedit a.txt one" })).await;
    server.wait_until_ended(&id).await;
    // The server stores this after the provider's last call.
    let polled = try_poll_for(async || {
        let row = server.get_sandbox(&id).await;
        if row["provider_id"].is_null() { Ok(()) } else { Err(row) }
    });
    polled.await.expect("the provider must remove the sandbox");
    let text = server.admin.request(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
    let families = parse_metrics(&text);

    let documented = documented_metrics();
    assert!(documented.len() > 30, "{documented:?}");
    for (name, kind, help) in &documented {
        // The parser removes the suffix of counters.
        let family = families.iter().find(|family| {
            let found = family[0].as_str().unwrap();
            found == name || (kind == "counter" && format!("{found}_total") == *name)
        });
        let family = family.unwrap_or_else(|| panic!("{name} is missing: {text}"));
        assert_eq!(
            (family[1].as_str().unwrap(), family[2].as_str().unwrap()),
            (kind.as_str(), help.as_str()),
            "{name}"
        );
        assert!(!family[3].as_array().unwrap().is_empty(), "{name}");
    }
    assert_eq!(families.len(), documented.len(), "an undocumented metric: {text}");

    let samples: Vec<&Value> = families.iter().flat_map(|family| family[3].as_array().unwrap()).collect();
    let value = |name: &str, labels: Value| {
        let matching = samples.iter().filter(|sample| {
            let wanted = labels.as_object().unwrap();
            sample[0] == name && wanted.iter().all(|(key, value)| sample[1][key] == *value)
        });
        matching.map(|sample| sample[2].as_f64().unwrap()).sum::<f64>()
    };
    for (name, labels) in [
        ("atoll_events_stored_total", json!({})),
        ("atoll_ingest_seconds_count", json!({})),
        ("atoll_ingest_lag_seconds_count", json!({})),
        ("atoll_spool_backlog_events_count", json!({})),
        ("atoll_messages_queued_total", json!({})),
        ("atoll_messages_acknowledged_total", json!({ "how": "new_turn" })),
        ("atoll_message_seconds_count", json!({ "how": "new_turn" })),
        ("atoll_sandboxes_made_total", json!({ "provider": "local" })),
        ("atoll_sandboxes", json!({ "state": "completed" })),
        ("atoll_creation_seconds_count", json!({ "phase": "prepare" })),
        ("atoll_creation_seconds_count", json!({ "phase": "provider" })),
        ("atoll_creation_seconds_count", json!({ "phase": "worker" })),
        ("atoll_creation_seconds_count", json!({ "phase": "total" })),
        ("atoll_http_requests_total", json!({ "method": "POST", "status": "2xx" })),
        ("atoll_jobs_done_total", json!({ "kind": "create" })),
        ("atoll_job_seconds_count", json!({ "kind": "create" })),
        ("atoll_provider_call_seconds_count", json!({ "provider": "local", "operation": "create" })),
        ("atoll_provider_call_seconds_count", json!({ "provider": "local", "operation": "destroy" })),
        ("atoll_store_commit_seconds_count", json!({ "database": "sqlite" })),
        ("atoll_store_commit_units_count", json!({ "database": "sqlite" })),
    ] {
        assert!(value(name, labels.clone()) >= 1.0, "{name} {labels}: {text}");
    }
    assert_eq!(value("atoll_sandbox_activities", json!({})), 0.0, "no sandbox is live");
    server.stop_and_check().await;
}

/// The only span of this name.
fn only(spans: &[ReceivedSpan], name: &str) -> ReceivedSpan {
    let found: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
    assert_eq!(found.len(), 1, "{name}: {spans:#?}");
    found[0].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_one_trace_that_a_restarted_server_continues() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const CALLER: &str = "00f067aa0ba902b7";
    let receiver = OtlpReceiver::start().await;
    let config = format!("telemetry:\n  otlp:\n    endpoint: {}\n", receiver.url);
    let mut server = LocalServer::start_with_config(&config);
    let body = LocalServer::sandbox_request(json!({ "prompt": "run echo trace=$TRACEPARENT", "end": "keep" }));
    let request = server.admin.request(Method::POST, "/sandboxes").json(&body);
    let created = server.admin.send(request.header("traceparent", format!("00-{TRACE}-{CALLER}-01"))).await;
    let id = created.expect_status(201)["id"].as_str().unwrap().to_owned();
    server.track_sandbox(&id);
    let row = server.wait_until(&id, |row| row["activity"] == "waiting_message").await;
    assert_eq!(row["trace_id"], TRACE);
    receiver.wait_for("agent turn", TRACE, 1).await;

    // A killed server sends nothing more; the next one knows the trace.
    server.process.restart();
    let message = server.send_message(&id, json!({ "content": "say again" })).await;
    server.wait_until_acknowledged(&id, &message).await;
    let turns = receiver.wait_for("agent turn", TRACE, 2).await;

    let spans: Vec<_> = receiver.spans().into_iter().filter(|span| span.trace == TRACE).collect();
    let request = only(&spans, "POST /api/v1/sandboxes");
    let job = only(&spans, "job create");
    let provider = only(&spans, "provider create");
    let worker = only(&spans, "worker start");
    let chain: Vec<&str> = [&request, &job, &provider, &worker].map(|span| span.parent.as_str()).into();
    assert_eq!(chain, [CALLER, request.id.as_str(), job.id.as_str(), provider.id.as_str()], "{spans:#?}");
    assert!(turns.iter().all(|turn| turn.parent == worker.id) && turns[0].id != turns[1].id, "{turns:#?}");
    assert!(spans.iter().all(|span| span.is_ordered && span.service.contains("\"atoll\"")), "{spans:#?}");

    let events = server.admin.all_events(&id).await;
    let outputs: Vec<String> =
        event_data(&events, "agent.tool_completed").iter().map(|data| data["output"].to_string()).collect();
    let variable = format!("trace=00-{TRACE}-{}-01", worker.id);
    assert!(outputs.iter().any(|output| output.contains(&variable)), "{variable}: {outputs:?}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_receiver_disturbs_nothing_and_is_logged_once() {
    // Port 9 of loopback: nothing listens there.
    let config = "telemetry:\n  otlp:\n    endpoint: http://127.0.0.1:9\n";
    let environment = [("ATOLL_LOG", "warn,atoll_server=debug"), ("ATOLL_LOG_FORMAT", "json")];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let server = LocalServer::start_with_env(config, &environment);
    let body = LocalServer::sandbox_request(json!({ "prompt": "say hello", "end": "keep" }));
    let request = server.admin.request(Method::POST, "/sandboxes").json(&body).header("x-request-id", "build-17");
    let response = request.send().await.unwrap();
    assert_eq!((response.status().as_u16(), &response.headers()["x-request-id"]), (201, &"build-17".parse().unwrap()));
    let id = response.json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned();
    server.track_sandbox(&id);
    server.wait_until(&id, |row| row["activity"] == "waiting_message").await;

    let is_failure = |line: &Value| line["message"].as_str().unwrap().starts_with("failed to export traces");
    let log = || -> Vec<Value> {
        let text = server.process.stderr_text();
        let whole = text.lines().filter(|line| line.ends_with('}'));
        whole.map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}"))).collect()
    };
    let polled = try_poll_for(async || if log().iter().any(is_failure) { Ok(()) } else { Err(()) });
    polled.await.expect("the log must report the failure");
    let message = server.send_message(&id, json!({ "content": "say again" })).await;
    server.wait_until_acknowledged(&id, &message).await;

    let lines = log();
    assert_eq!(lines.iter().filter(|line| is_failure(line)).count(), 1);
    for line in &lines {
        for field in ["timestamp", "level", "target", "message"] {
            assert!(line[field].is_string(), "{field}: {line}");
        }
    }
    let trace = server.get_sandbox(&id).await["trace_id"].clone();
    let answered = lines.iter().find(|line| line["request_id"] == "build-17").expect("a line of the request");
    assert_eq!((&answered["trace_id"], &answered["status"]), (&trace, &json!(201)), "{answered}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_conductor_finds_duplicate_work_and_shared_files() {
    let (mut server, repository) = (LocalServer::start(), SampleRepository::create());
    let request = |title: &str, prompt: &str| json!({ "prompt": prompt, "title": title, "end": "keep", "repo": { "path": repository.path_str() } });
    let first = server.create_sandbox(request("Fix the parser", "edit parser.txt one\nedit own.txt x")).await;
    let second = server.create_sandbox(request("fix the parser!", "edit parser.txt two")).await;
    let other = server.create_sandbox(request("Write docs", "edit docs.txt x\nwait 600")).await;
    for id in [&first, &second] {
        server.wait_until(id, |row| row["activity"] == "waiting_message").await;
    }
    server.wait_for_event(&other, |event| event["type"] == "agent.file_edited").await;

    let mut expected = vec![first.clone(), second.clone()];
    expected.sort();
    for is_restarted in [false, true] {
        if is_restarted {
            // The status comes from the event logs.
            server.process.restart();
        }
        let polled = try_poll_for(async || {
            let status = server.admin.get("/sandboxes/monitoring/status").await.expect_status(200);
            let files =
                status["agents"].as_array().unwrap().iter().map(|agent| agent["files"].as_array().unwrap().len());
            if files.sum::<usize>() == 4 { Ok(status) } else { Err(status) }
        });
        let status = polled.await.unwrap_or_else(|status| panic!("{status:#}"));
        let agents: BTreeMap<&str, &Value> = status["agents"]
            .as_array()
            .unwrap()
            .iter()
            .map(|agent| (agent["sandbox_id"].as_str().unwrap(), agent))
            .collect();
        assert_eq!(agents.len(), 3, "{status:#}");
        assert_eq!((&agents[&*first]["phase"], &agents[&*other]["phase"]), (&json!("waiting"), &json!("editing")));
        assert_eq!(agents[&*first]["files"], json!(["own.txt", "parser.txt"]));
        assert_eq!(status["phases"], json!({ "editing": 1, "waiting": 2 }));
        let findings = status["findings"].as_array().unwrap();
        let kinds: Vec<&str> = findings.iter().map(|finding| finding["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["duplicate_work", "shared_files"], "{status:#}");
        for finding in findings {
            let mut ids: Vec<String> = serde_json::from_value(finding["sandbox_ids"].clone()).unwrap();
            ids.sort();
            assert_eq!(ids, expected);
        }
        assert_eq!(findings[1]["files"], json!(["parser.txt"]));
        assert_eq!(status["coherence"], 0.33);
    }

    // A user of another project sees none of it.
    let project = server.admin.post("/projects", json!({ "name": "other" })).await.expect_status(201)["id"].clone();
    let token = json!({ "name": "robot", "kind": "service", "role": "viewer", "project_id": project });
    let token = server.admin.post("/tokens", token).await.expect_status(201);
    let outsider = server.admin.with_token(token["token"].as_str().unwrap());
    let status = outsider.get("/sandboxes/monitoring/status").await.expect_status(200);
    assert_eq!((&status["agents"], &status["findings"]), (&json!([]), &json!([])));
    server.stop_and_check().await;
}
