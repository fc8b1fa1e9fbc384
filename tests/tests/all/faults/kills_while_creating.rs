//! Kills of a server while it creates sandboxes: the next server knows the state of each.

use super::{create_temp_dir, start_server};
use atoll_test_wait::{poll_for, poll_until, try_poll_for};
use atoll_tests::actor::{Actor, ExternalSandbox};
use atoll_tests::manual_worker::ManualWorker;
use atoll_tests::process::ServerProcess;
use atoll_tests::scale;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::Method;
use serde_json::{Value, json};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Kills at full scale.
const FULL_SCALE_KILLS: usize = 60;

/// Requests a sandbox until the server responds, however often the server dies meanwhile.
async fn create_until_answered(admin: Actor, key: String, body: Value) -> Value {
    let request = admin.request(Method::POST, "/sandboxes").header("Idempotency-Key", &key).json(&body);
    poll_for("the server to create a sandbox", async || {
        let response = request.try_clone().unwrap().send().await.ok()?;
        let status = response.status().as_u16();
        assert!(status == 201 || status == 503, "{status}");
        response.json().await.ok().filter(|_| status == 201)
    })
    .await
}

async fn get_sandbox(admin: &Actor, id: &str) -> Value {
    admin.get(&format!("/sandboxes/{id}")).await.expect_status(200)
}

/// Waits until a worker acknowledges a new message, or until the sandbox has ended.
async fn wait_until_responsive_or_ended(admin: &Actor, id: &str) -> Value {
    let sent = Cell::new(false);
    let polled = try_poll_for(async || {
        let row = get_sandbox(admin, id).await;
        match row["state"].as_str().unwrap() {
            "running" if !sent.get() => {
                let path = format!("/sandboxes/{id}/messages");
                let answer = admin.post(&path, json!({ "content": "say still here" })).await;
                assert!([201, 409].contains(&answer.status.as_u16()), "{}", answer.body);
                sent.set(answer.status == 201);
            }
            "running" => {
                let path = format!("/sandboxes/{id}/messages?state=acknowledged");
                let acknowledged = admin.get(&path).await.expect_status(200);
                let is_ours = |message: &Value| message["content"] == "say still here";
                if acknowledged["items"].as_array().unwrap().iter().any(is_ours) {
                    return Ok(row);
                }
            }
            "failed" | "completed" => return Ok(row),
            _ => {}
        }
        Err(row)
    });
    polled.await.expect("a worker must acknowledge the message")
}

/// Checks that the state of a fake sandbox is true, and returns it.
async fn check_fake(admin: &Actor, id: &str) -> &'static str {
    let row = wait_until_responsive_or_ended(admin, id).await;
    let log = admin.all_events(id).await;
    let count = |kind: &str| log.iter().filter(|event| event["type"] == kind).count();
    assert!(count("sandbox.running") <= 1 && count("sandbox.creating") <= 1);
    assert!(log.iter().enumerate().all(|(index, event)| event["seq"] == index + 1));
    // A second agent would start the prompt's turn again.
    let first_turns = log.iter().filter(|event| event["type"] == "agent.started" && event["turn"] == 1).count();
    assert!(first_turns <= 1, "the prompt ran twice: {log:?}");
    let prompts = admin.get(&format!("/sandboxes/{id}/messages")).await.expect_status(200);
    let prompt = &prompts["items"][0];
    assert!(["acknowledged", "queued", "undeliverable", "leased"].contains(&prompt["state"].as_str().unwrap()));
    match row["state"].as_str().unwrap() {
        "running" => "running",
        "failed" => {
            // The sandbox died with its server, or every create call lost its response.
            let code = row["reason"]["code"].as_str().unwrap();
            assert!(["sandbox_lost", "provider_unreachable"].contains(&code), "{row}");
            "failed"
        }
        other => panic!("{other}"),
    }
}

fn restart_repeatedly(mut server: ServerProcess, mut rng: StdRng, kills: usize) -> ServerProcess {
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(rng.random_range(0..250)));
        server.restart();
    }
    server
}

async fn check_kills_while_creating(title: &str, faults: &str) {
    let mut rng = StdRng::seed_from_u64(scale::choose_seed(title));
    let dir = create_temp_dir();
    let server = start_server(
        dir.path(),
        &format!("providers: {{fake: {{seed: {}, faults: [{faults}]}}}}\n", rng.random::<u32>()),
        &[],
    );
    let admin = Actor::new(&server.url, Some(&server.admin_token()));
    let kills = scale::scale_count(FULL_SCALE_KILLS / 2);
    let count = 6 * kills;
    let killing = {
        let rng = StdRng::seed_from_u64(rng.random());
        tokio::task::spawn_blocking(move || restart_repeatedly(server, rng, kills))
    };
    let (mut fakes, mut externals) = (Vec::new(), Vec::new());
    for number in 0..count {
        let fake = json!({ "provider": "fake", "prompt": "say the very first", "end": "keep" });
        fakes.push(tokio::spawn(create_until_answered(admin.clone(), format!("fake-{number}"), fake)));
        let external = json!({ "provider": "external" });
        externals.push(tokio::spawn(create_until_answered(admin.clone(), format!("external-{number}"), external)));
        tokio::time::sleep(Duration::from_millis(rng.random_range(10..120))).await;
    }
    let server = killing.await.unwrap();
    let since = Instant::now();

    let (mut running, mut failed) = (0, 0);
    for fake in fakes {
        let created = fake.await.unwrap();
        match check_fake(&admin, created["id"].as_str().unwrap()).await {
            "running" => running += 1,
            _ => failed += 1,
        }
    }
    let settled_after = since.elapsed();
    for external in externals {
        let created = external.await.unwrap();
        let id = created["id"].as_str().unwrap();
        assert_eq!(get_sandbox(&admin, id).await["state"], "creating");
        // A replayed response has no token, so request a new one.
        let token = match created["worker"]["token"].as_str() {
            Some(token) => token.to_owned(),
            None => {
                let new = admin.post(&format!("/sandboxes/{id}/worker-token"), json!({})).await.expect_status(201);
                new["token"].as_str().unwrap().to_owned()
            }
        };
        let session = created["session_id"].as_str().unwrap().to_owned();
        let worker = ManualWorker::new(&admin, &ExternalSandbox { id: id.to_owned(), session, token });
        assert_eq!(worker.send_heartbeat("starting").await.expect_status(200)["state"], "running");
    }
    assert_eq!(admin.list_all("/sandboxes", 200).await.len(), 2 * count, "each request must create one sandbox");
    let line = format!("{title}: {kills} kills, {running} running, {failed} failed, settled after {settled_after:?}\n");
    drop(std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes()));
    tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_during_slow_creates_leave_every_sandbox_in_a_true_state() {
    check_kills_while_creating("killed while creating (slow)", "{at: create, kind: delay, rate: 0.8}").await;
}

/// The provider creates the sandbox and its response is lost: the worker may connect before the server has its id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_with_lost_create_responses_leave_every_sandbox_in_a_true_state() {
    check_kills_while_creating("killed while creating (lost answers)", "{at: create, kind: drop, rate: 0.7}").await;
}

/// The worker connects, the server never gets the provider's id, and the sandbox dies with the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_sandbox_without_a_provider_id_fails_as_lost_after_a_restart() {
    let dir = create_temp_dir();
    let mut server =
        start_server(dir.path(), "providers: {fake: {seed: 1, faults: [{at: create, kind: drop, rate: 1}]}}\n", &[]);
    let admin = Actor::new(&server.url, Some(&server.admin_token()));
    let body = json!({ "provider": "fake", "prompt": "say the very first", "end": "keep" });
    let created = create_until_answered(admin.clone(), "one".into(), body).await;
    let id = created["id"].as_str().unwrap();
    poll_until("the sandbox to start", async || get_sandbox(&admin, id).await["state"] == "running").await;
    assert_eq!(get_sandbox(&admin, id).await["provider_id"], Value::Null);
    server.restart();
    assert_eq!(check_fake(&admin, id).await, "failed");
    assert_eq!(get_sandbox(&admin, id).await["reason"]["code"], "sandbox_lost");
}
