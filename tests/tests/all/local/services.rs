//! Services in real sandboxes: PostgreSQL beside the agent, restarts, forks and failures.

use super::exposed_secrets::run_atoll;
use atoll_tests::local::{LocalServer, event_data};
use serde_json::{Value, json};
use std::path::PathBuf;
use tokio::task::block_in_place;

/// PostgreSQL's programs on this machine, which sandboxes see at the same path.
fn postgres_dir() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").unwrap();
    let dirs = versions.map(|entry| entry.unwrap().path().join("bin"));
    dirs.filter(|dir| dir.join("initdb").exists()).max().unwrap()
}

/// A cluster that is created at the first start.
fn postgres_service() -> Value {
    let bin = postgres_dir();
    let bin = bin.display();
    let command = format!(
        "set -e; test -e ~/db || {bin}/initdb -D ~/db -U postgres -A trust --no-sync > ~/initdb.log
         exec {bin}/postgres -D ~/db -k /tmp -h 127.0.0.1 -c fsync=off"
    );
    json!({ "name": "db", "command": command, "ready": { "port": 5432 } })
}

fn query(sql: &str) -> String {
    format!("{}/psql -h 127.0.0.1 -U postgres -tAc \"{sql}\"", postgres_dir().display())
}

/// The name, state and number of restarts of each service.
fn service_states(row: &Value) -> Value {
    let services = row["services"].as_array().unwrap();
    services.iter().map(|it| json!([it["name"], it["state"], it["restarts"]])).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_and_its_checks_use_postgres() {
    let server = LocalServer::start();
    let id = server
        .create_sandbox(json!({
            "prompt": format!("run {}", query("create table t (n int); insert into t values (7)")),
            "services": [postgres_service()],
            "continuous": { "checks": [format!("test \"$({})\" = 7", query("select n from t"))] },
        }))
        .await;
    let row = server.wait_until_ended(&id).await;
    let events = server.admin.all_events(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}\n{events:#?}");
    assert_eq!(row["services"], json!([{ "name": "db", "state": "stopped", "port": 5432, "restarts": 0 }]));
    assert_eq!(event_data(&events, "service.started").len(), 1);
    assert_eq!(event_data(&events, "service.ready").len(), 1);
    let position = |kind: &str| events.iter().position(|event| event["type"] == kind).unwrap();
    assert!(position("service.ready") < position("agent.started"));
    assert_eq!(event_data(&events, "agent.tool_completed")[0]["is_error"], false, "{events:#?}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_postgres_comes_back_and_a_fork_has_its_own() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({ "services": [postgres_service()] })).await;
    assert_eq!(service_states(&server.get_sandbox(&id).await), json!([["db", "ready", 0]]));
    server.run_shell(&id, &query("create table t (n int); insert into t values (1)")).await.expect_success();
    server.run_shell(&id, "kill -9 $(head -1 ~/db/postmaster.pid)").await.expect_success();
    server.wait_until(&id, |row| service_states(row) == json!([["db", "ready", 1]])).await;
    let (_, shown) = block_in_place(|| run_atoll(&server, &["sandbox", "show", &id], ""));
    assert!(shown.contains("service") && shown.contains("db: ready, port 5432, 1 restart\n"), "{shown}");
    let rows = server.run_shell(&id, &query("select n from t")).await.expect_success();
    assert_eq!(rows, "1\n");
    let events = server.admin.all_events(&id).await;
    let exited = event_data(&events, "service.exited");
    assert_eq!(exited[0]["exit"], json!({ "kind": "signalled", "signal": 9 }), "{exited:#?}");
    assert!(exited[0]["tail"].as_str().unwrap().contains("ready to accept connections"), "{exited:#?}");

    let created = server.admin.post(&format!("/sandboxes/{id}/fork"), json!({})).await.expect_status(201);
    let fork = created["id"].as_str().unwrap().to_owned();
    server.track_sandbox(&fork);
    server.wait_for_event(&id, |event| event["type"] == "service.stopped").await;
    for (sandbox, number) in [(&id, 2), (&fork, 3)] {
        server.wait_until(sandbox, |row| row["services"][0]["state"] == "ready").await;
        server.run_shell(sandbox, &query(&format!("insert into t values ({number})"))).await.expect_success();
        let rows = server.run_shell(sandbox, &query("select sum(n) from t")).await.expect_success();
        assert_eq!(rows, format!("{}\n", 1 + number), "each sandbox has its own copy");
    }
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_never_becomes_ready_fails_the_run_with_its_output() {
    let server = LocalServer::start();
    let id = server
        .create_sandbox(json!({
            "prompt": "say never",
            "services": [{ "name": "db", "command": "echo the data directory is missing >&2; sleep 1000",
                           "ready": { "port": 5432 }, "ready_timeout_s": 1 }],
            "continuous": { "checks": ["true"] },
        }))
        .await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!((&row["outcome"], &row["reason"]["code"]), (&json!("failed"), &json!("service_failed")), "{row}");
    let detail = row["reason"]["detail"].as_str().unwrap();
    for part in ["service db: ", "port 5432 within 1 s", "ends with: the data directory is missing", "run again"] {
        assert!(detail.contains(part), "{part}: {detail}");
    }
    assert_eq!(service_states(&row), json!([["db", "failed", 0]]));
    let events = server.admin.all_events(&id).await;
    assert_eq!(event_data(&events, "service.failed")[0]["tail"], "the data directory is missing");
    assert_eq!(event_data(&events, "agent.started").len(), 0);
    let (_, log) = block_in_place(|| run_atoll(&server, &["logs", &id], ""));
    assert!(log.contains("service db failed: accepted no connection on port 5432 within 1 s"), "{log}");
    assert!(log.contains("the data directory is missing"), "{log}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn projects_have_services_and_providers_without_a_worker_refuse_them() {
    let server = LocalServer::start();
    let services = json!([{ "name": "one", "command": ["sleep", "1000"], "env": { "PASSWORD": "hunter2" } }]);
    let new = json!({ "name": "with services", "defaults": { "services": services } });
    let project = server.admin.post("/projects", new).await.expect_status(201);
    assert_eq!(project["defaults"]["services"][0]["env"]["PASSWORD"], "***", "{project}");
    let change = json!({ "defaults": project["defaults"] });
    let path = format!("/projects/{}", project["id"].as_str().unwrap());
    server.admin.patch(&path, change).await.expect_status(200);
    let id = server.create_idle_sandbox(json!({ "project_id": project["id"] })).await;
    let row = server.get_sandbox(&id).await;
    assert_eq!(service_states(&row), json!([["one", "ready", 0]]));
    assert_eq!(row["settings"]["services"][0]["env"]["PASSWORD"], "***", "{row}");
    let environment = server.run_shell(&id, "cat /proc/$(pgrep -x sleep)/environ | tr '\\0' '\\n'").await;
    assert!(environment.expect_success().contains("PASSWORD=hunter2\n"));
    let without = server.create_idle_sandbox(json!({ "project_id": project["id"], "services": [] })).await;
    assert!(server.get_sandbox(&without).await.get("services").is_none());

    for provider in ["fake", "external"] {
        let request = json!({ "provider": provider, "services": services });
        let refused = server.admin.post("/sandboxes", request).await.expect_problem(409, "provider_unsupported");
        assert!(refused["detail"].as_str().unwrap().contains("runs no services"), "{refused}");
    }
    let twice = json!({ "provider": "local", "services": [services[0], services[0]] });
    server.admin.post("/sandboxes", twice).await.expect_problem(422, "invalid");
    server.stop_and_check().await;
}
