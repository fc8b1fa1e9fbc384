//! A server that is killed while it makes sandboxes: the next one knows what became of each.

use super::{PATIENCE, serve, temporary};
use atoll_tests::actor::{Actor, External};
use atoll_tests::process::ServerProcess;
use atoll_tests::scale;
use atoll_tests::worker::HandWorker;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Kills of a whole run.
const KILLS: usize = 60;

/// Asks for a sandbox until there is an answer, however often the server dies over it.
async fn ask(admin: Actor, key: String, body: Value) -> Value {
    loop {
        let request = admin.request(Method::POST, "/sandboxes").header("Idempotency-Key", &key).json(&body);
        if let Ok(response) = request.send().await {
            let status = response.status().as_u16();
            if let (201, Ok(made)) = (status, response.json().await) {
                return made;
            }
            assert!(status == 201 || status == 503, "{status}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn get(admin: &Actor, id: &str) -> Value {
    admin.get(&format!("/sandboxes/{id}")).await.expect(200)
}

/// Waits until a message that a live worker gets is acknowledged, or the sandbox says that it has ended.
async fn answers_or_has_ended(admin: &Actor, id: &str) -> Value {
    let deadline = Instant::now() + PATIENCE;
    let mut sent = false;
    loop {
        let row = get(admin, id).await;
        match row["state"].as_str().unwrap() {
            "running" if !sent => {
                let path = format!("/sandboxes/{id}/messages");
                let answer = admin.post(&path, json!({ "content": "say still here" })).await;
                assert!([201, 409].contains(&answer.status.as_u16()), "{}", answer.body);
                sent = answer.status == 201;
            }
            "running" => {
                let path = format!("/sandboxes/{id}/messages?state=acknowledged");
                let acknowledged = admin.get(&path).await.expect(200);
                let words = |message: &Value| message["content"] == "say still here";
                if acknowledged["items"].as_array().unwrap().iter().any(words) {
                    return row;
                }
            }
            "failed" | "completed" => return row,
            _ => {}
        }
        assert!(Instant::now() < deadline, "it says {row}, and nobody is there");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What the state says is so.
async fn check_fake(admin: &Actor, id: &str) -> &'static str {
    let row = answers_or_has_ended(admin, id).await;
    let log = admin.all_events(id).await;
    let count = |kind: &str| log.iter().filter(|event| event["type"] == kind).count();
    assert!(count("sandbox.running") <= 1 && count("sandbox.creating") <= 1);
    assert!(log.iter().enumerate().all(|(index, event)| event["seq"] == index + 1));
    // The first turn is the prompt's: a second agent would begin it again.
    let first_turns = log.iter().filter(|event| event["type"] == "agent.started" && event["turn"] == 1).count();
    assert!(first_turns <= 1, "the prompt was obeyed twice: {log:?}");
    let prompts = admin.get(&format!("/sandboxes/{id}/messages")).await.expect(200);
    let prompt = &prompts["items"][0];
    assert!(["acknowledged", "queued", "undeliverable", "leased"].contains(&prompt["state"].as_str().unwrap()));
    match row["state"].as_str().unwrap() {
        "running" => "running",
        "failed" => {
            // Gone with its server, or made twice over without an answer.
            let why = row["reason"]["code"].as_str().unwrap();
            assert!(["sandbox_lost", "provider_unreachable"].contains(&why), "{row}");
            "failed"
        }
        other => panic!("{other}"),
    }
}

fn kill_and_start(mut server: ServerProcess, mut rng: StdRng, kills: usize) -> ServerProcess {
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(rng.random_range(0..250)));
        server.start_again();
    }
    server
}

async fn killed_while_creating(what: &str, faults: &str) {
    let mut rng = StdRng::seed_from_u64(scale::seed(what));
    let dir = temporary();
    let server = serve(
        dir.path(),
        &format!("providers: {{fake: {{seed: {}, faults: [{faults}]}}}}\n", rng.random::<u32>()),
        &[],
    );
    let admin = Actor::new(&server.url, Some(&server.token()));
    let kills = scale::scaled(KILLS / 2);
    let count = 6 * kills;
    let killing = {
        let rng = StdRng::seed_from_u64(rng.random());
        tokio::task::spawn_blocking(move || kill_and_start(server, rng, kills))
    };
    let (mut fakes, mut externals) = (Vec::new(), Vec::new());
    for number in 0..count {
        let fake = json!({ "provider": "fake", "prompt": "say the very first", "end": "keep" });
        fakes.push(tokio::spawn(ask(admin.clone(), format!("fake-{number}"), fake)));
        let external = json!({ "provider": "external" });
        externals.push(tokio::spawn(ask(admin.clone(), format!("external-{number}"), external)));
        tokio::time::sleep(Duration::from_millis(rng.random_range(10..120))).await;
    }
    let server = killing.await.unwrap();
    let since = Instant::now();

    let (mut running, mut failed) = (0, 0);
    for fake in fakes {
        let made = fake.await.unwrap();
        match check_fake(&admin, made["id"].as_str().unwrap()).await {
            "running" => running += 1,
            _ => failed += 1,
        }
    }
    let known_after = since.elapsed();
    for external in externals {
        let made = external.await.unwrap();
        let id = made["id"].as_str().unwrap();
        assert_eq!(get(&admin, id).await["state"], "creating", "it waits for its worker");
        // An answer that was lost takes the token with it; a new one ends the old.
        let token = match made["worker"]["token"].as_str() {
            Some(token) => token.to_owned(),
            None => {
                let new = admin.post(&format!("/sandboxes/{id}/worker-token"), json!({})).await.expect(201);
                new["token"].as_str().unwrap().to_owned()
            }
        };
        let session = made["session_id"].as_str().unwrap().to_owned();
        let worker = HandWorker::new(&admin, &External { id: id.to_owned(), session, token });
        assert_eq!(worker.heartbeat("starting").await.expect(200)["state"], "running");
    }
    assert_eq!(admin.everything("/sandboxes", 200).await.len(), 2 * count, "one sandbox for each that was asked for");
    let line = format!("{what}: {kills} kills, {running} fakes run, {failed} are lost, known after {known_after:?}\n");
    drop(std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes()));
    tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_while_the_provider_takes_its_time() {
    killed_while_creating("killed while creating (slow)", "{at: create, kind: delay, rate: 0.8}").await;
}

/// The provider makes it and the answer gets lost: its worker may speak before anybody knows its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_while_the_providers_answers_get_lost() {
    killed_while_creating("killed while creating (lost answers)", "{at: create, kind: drop, rate: 0.7}").await;
}

/// The same, without luck: its worker has spoken, its name is not known, and then it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_without_a_name_is_lost_and_says_so() {
    let dir = temporary();
    let mut server =
        serve(dir.path(), "providers: {fake: {seed: 1, faults: [{at: create, kind: drop, rate: 1}]}}\n", &[]);
    let admin = Actor::new(&server.url, Some(&server.token()));
    let body = json!({ "provider": "fake", "prompt": "say the very first", "end": "keep" });
    let made = ask(admin.clone(), "one".into(), body).await;
    let id = made["id"].as_str().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while get(&admin, id).await["state"] != "running" {
        assert!(Instant::now() < deadline, "it does not run");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(get(&admin, id).await["provider_id"], Value::Null);
    server.start_again();
    assert_eq!(check_fake(&admin, id).await, "failed");
    assert_eq!(get(&admin, id).await["reason"]["code"], "sandbox_lost");
}
