//! The server goes and comes back while sandboxes work, and while they are made.

use atoll_tests::local::{Ground, assert_whole, has_ended, said, told, traces};
use atoll_tests::scale;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::task::block_in_place;

fn numbers(count: usize) -> (String, Vec<String>) {
    let prompt = (0..count).map(|number| format!("say {number}\nwait 0.1\n")).collect();
    (prompt, (0..count).map(|number| number.to_string()).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_works_on_while_the_server_is_away() {
    let mut ground = Ground::start();
    let (prompt, wanted) = numbers(30);
    let id = ground.make(json!({ "prompt": format!("{prompt}edit last.txt done\nrun cat last.txt") })).await;
    ground.event(&id, |event| event["data"]["text"] == "3").await;
    let before = traces::processes(&id);
    block_in_place(|| {
        ground.server.kill();
        std::thread::sleep(Duration::from_secs(1));
        assert!(before.iter().all(traces::Process::is_alive), "nothing of a sandbox goes with the server: {before:?}");
        ground.server.start_again();
    });
    let began = Instant::now();
    let row = ground.ended(&id).await;
    assert_eq!((row["state"].as_str(), row["outcome"].as_str()), (Some("completed"), Some("succeeded")), "{row}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let events = ground.admin.all_events(&id).await;
    assert_whole(&events);
    assert_eq!(said(&events), wanted, "once each, in order");
    assert_eq!(told(&events, "agent.started").len(), 1, "it did not begin again");
    assert_eq!(told(&events, "agent.tool_completed").last().unwrap()["output"], "done\n");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_and_commands_reach_a_sandbox_after_a_restart() {
    let mut ground = Ground::start();
    let id = ground.kept(json!({})).await;
    block_in_place(|| ground.server.start_again());
    let message = ground.send(&id, json!({ "content": "say again" })).await;
    assert_eq!(ground.delivered(&id, &message).await["turn"], 2);
    ground.event(&id, |event| event["data"]["text"] == "again").await;
    assert_eq!(ground.exec(&id, json!({ "argv": ["echo", "here"] })).await.well(), "here\n");
    ground.admin.post(&format!("/sandboxes/{id}/stop"), json!({})).await.expect(200);
    assert_eq!(ground.ended(&id).await["state"], "completed");
    ground.leave().await;
}

/// What ended while nobody was there to see it: the truth is found at the next start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_died_while_the_server_was_away_is_told_at_its_next_start() {
    let mut ground = Ground::start();
    let id = ground.make(json!({ "prompt": "say one\nedit kept.txt hello\nwait 60" })).await;
    ground.event(&id, |event| event["type"] == "agent.file_edited").await;
    let Some(worker) = traces::worker(&id) else {
        atoll_tests::local::skipped("a worker that dies alone", "there are no cgroups to find it by");
        return ground.leave().await;
    };
    block_in_place(|| {
        ground.server.kill();
        assert!(worker.kill() && worker.ends_within(Duration::from_secs(10)));
        ground.server.start_again();
    });
    let began = Instant::now();
    let row = ground.ended(&id).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!((row["state"].as_str(), row["reason"]["code"].as_str()), (Some("failed"), Some("worker_died")), "{row}");
    ground.leave().await;
}

/// Who starts sandboxes is a process of its own, which can die alone: agents work on, what can't be done
/// without it is refused with the reason, and the next start of the server brings it back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_launcher_that_is_killed_takes_no_sandbox_along() {
    let mut ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let mut launchers = traces::children(ground.server.pid());
    launchers.retain(|process| process.file("cmdline").contains("launcher"));
    assert_eq!(launchers.len(), 1, "{launchers:?}");
    assert!(launchers[0].kill() && launchers[0].ends_within(Duration::from_secs(10)));
    let message = ground.send(&id, json!({ "content": "say still here" })).await;
    ground.delivered(&id, &message).await;
    // Another one takes its place.
    assert_eq!(ground.exec(&id, json!({ "argv": ["echo", "there"] })).await.well(), "there\n");
    block_in_place(|| ground.server.start_again());
    assert_eq!(ground.exec(&id, json!({ "argv": ["echo", "here"] })).await.well(), "here\n");
    let next = ground.make(json!({ "prompt": "say next" })).await;
    let row = ground.ended(&next).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    ground.leave().await;
}

async fn ask(ground: &Ground, key: &str, body: &Value) -> Option<Value> {
    let request = ground.admin.request(Method::POST, "/sandboxes").header("Idempotency-Key", key).json(body);
    let response = request.send().await.ok()?;
    assert_eq!(response.status().as_u16(), 201);
    response.json().await.ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_creation_that_is_cut_off_makes_one_sandbox_or_fails_cleanly() {
    let mut rng = StdRng::seed_from_u64(scale::seed("local creation"));
    let mut ground = block_in_place(Ground::start);
    let mut clean_failures = 0;
    let body = Ground::request(json!({ "prompt": "run echo x >> count.txt\nsay once", "end": "keep" }));
    for round in 0..scale::scaled(80) {
        let key = format!("creation-{round}");
        let after = Duration::from_millis(rng.random_range(0..120));
        let (first, ()) = tokio::join!(ask(&ground, &key, &body), async {
            tokio::time::sleep(after).await;
        });
        if let Some(made) = &first {
            ground.remember(made["id"].as_str().unwrap());
        }
        block_in_place(|| ground.server.kill());
        block_in_place(|| ground.server.start_again());
        let again = ask(&ground, &key, &body).await.expect("the server is there");
        let id = again["id"].as_str().unwrap().to_owned();
        assert!(first.is_none_or(|first| first["id"] == id), "one creation, one sandbox");
        ground.remember(&id);
        let settled = |row: &Value| has_ended(row) || row["activity"] == "waiting_message";
        let began = Instant::now();
        let row = ground.until(&id, settled).await;
        if row["state"] != "failed" {
            // What the agent is about now is known before all that it did until then has arrived.
            ground.event(&id, |event| event["type"] == "agent.completed").await;
        }
        let events = ground.admin.all_events(&id).await;
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "cut off after {after:?}: {:?} {events:#?}",
            began.elapsed()
        );
        if row["state"] == "failed" {
            assert!(!events.iter().any(|event| event["type"] == "agent.started"), "{row}");
            clean_failures += 1;
            ground.admin.delete(&format!("/sandboxes/{id}?force=true")).await.expect(200);
        } else {
            assert_eq!(said(&events), ["once"], "{row} {events:#?}");
            let counted = ground.exec(&id, json!({ "argv": ["cat", "count.txt"] })).await.well();
            assert_eq!(counted, "x\n", "the prompt was worked off once");
            ground.admin.post(&format!("/sandboxes/{id}/stop"), json!({ "results": "discard" })).await.expect(200);
        }
        ground.gone(&id).await;
        let sandboxes = ground.admin.everything("/sandboxes", 200).await;
        assert_eq!(sandboxes.len(), round + 1, "one a round");
    }
    let line = format!("local creation: {clean_failures} clean failures\n");
    drop(std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes()));
    ground.leave().await;
}
