//! Many creations at once while the server is killed again and again, and many sandboxes that live at once. Each is
//! taken over or cleaned away; at the end the machine is as it was.

use atoll_tests::actor::Actor;
use atoll_tests::local::traces::{self, Process};
use atoll_tests::local::{Ground, assert_whole, has_ended, is_root, said, skipped};
use atoll_tests::scale;
use futures_util::StreamExt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::task::block_in_place;

/// Sandboxes of a whole run.
const COUNT: usize = 300;
/// Requests on their way at the same time.
const AT_ONCE: usize = 24;
const KILLS: usize = 6;
const PATIENCE: Duration = Duration::from_secs(240);

/// Asks until it is answered: the key makes one sandbox of any number of requests.
async fn make(admin: Actor, number: usize) -> String {
    let settings = match number % 3 {
        0 => json!({ "end": "keep" }),
        1 => json!({ "prompt": format!("say {number}"), "end": "keep" }),
        _ => json!({ "prompt": format!("say {number}") }),
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        let request = admin.request(Method::POST, "/sandboxes").header("Idempotency-Key", format!("storm-{number}"));
        if let Ok(response) = request.json(&Ground::request(settings.clone())).send().await {
            let (status, text) = (response.status().as_u16(), response.text().await.unwrap_or_default());
            // A server that was just killed may have cut its answer short.
            if let (201, Ok(made)) = (status, serde_json::from_str::<Value>(&text)) {
                return made["id"].as_str().unwrap().to_owned();
            }
            assert!(status == 201 || status >= 500 || status == 409, "{status}: {text}");
        }
        assert!(Instant::now() < deadline, "it is never made");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Lives and waits, has done what it was made for, or was cut off before it ran.
fn is_settled(number: usize, row: &Value) -> bool {
    let lives = match number % 3 {
        0 => row["state"] == "running",
        1 => row["activity"] == "waiting_message",
        _ => false,
    };
    lives || has_ended(row)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_creations_survives_the_server_s_death() {
    if !is_root() {
        return skipped("a storm of creations", "only root has cgroups to find the processes by");
    }
    // Orphans come to this process, which takes note of their end.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let mut rng = StdRng::seed_from_u64(scale::seed("storm"));
    let mut ground = block_in_place(Ground::start);
    let count = scale::scaled(COUNT);
    let admin = ground.admin.clone();
    let making = tokio::spawn(async move {
        let all = futures_util::stream::iter(0..count).map(|number| make(admin.clone(), number));
        all.buffered(AT_ONCE).collect::<Vec<String>>().await
    });
    let mut launchers: Vec<Process> = Vec::new();
    let mut kills = 0;
    while kills < KILLS {
        let most = if making.is_finished() { 100 } else { 1200 };
        tokio::time::sleep(Duration::from_millis(rng.random_range(20..most))).await;
        launchers.extend(traces::children(ground.server.pid()));
        block_in_place(|| ground.server.kill());
        if rng.random_bool(0.3) {
            let after = Duration::from_millis(rng.random_range(0..300));
            block_in_place(|| ground.server.start_and_kill(after));
        }
        block_in_place(|| ground.server.start_again());
        kills += 1;
    }
    let ids = making.await.unwrap();
    ids.iter().for_each(|id| ground.remember(id));
    let mut distinct = ids.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), count, "each request made one");

    let (mut alive, mut cut_off) = (0, 0);
    let deadline = Instant::now() + PATIENCE;
    for (number, id) in ids.iter().enumerate() {
        let row = loop {
            let row = ground.row(id).await;
            if is_settled(number, &row) {
                break row;
            }
            assert!(Instant::now() < deadline, "it does not settle: {row}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let events = ground.admin.all_events(id).await;
        assert_whole(&events);
        let words = said(&events);
        assert!(words.is_empty() || words == [number.to_string()], "each has its own, once: {words:?}");
        let ran = events.iter().any(|event| event["type"] == "sandbox.running");
        if row["state"] == "failed" {
            assert!(!ran, "what ran is taken over: {row}");
            cut_off += 1;
        } else if !has_ended(&row) {
            assert_eq!(ground.exec(id, json!({ "argv": ["echo", id] })).await.well(), format!("{id}\n"));
            alive += 1;
        } else {
            assert_eq!((row["outcome"].as_str(), words.len()), (Some("succeeded"), 1), "{row}");
        }
    }
    let line = format!("storm: {count} made, {kills} kills, {alive} alive at the end, {cut_off} cut off\n");
    drop(std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes()));
    let place = ground.path().to_owned();
    ground.leave().await;
    for process in &launchers {
        assert!(process.ends_within(Duration::from_secs(10)), "a launcher is left: {process:?}");
        process.reap();
    }
    assert_eq!(traces::living_in(&place), Vec::<String>::new(), "processes that still show the directory");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_live_at_once_and_each_answers() {
    let ground = block_in_place(Ground::start);
    let count = scale::scaled(COUNT);
    let began = Instant::now();
    let made = futures_util::stream::iter(0..count).map(|_| ground.make(json!({ "end": "keep" })));
    let ids: Vec<String> = made.buffered(AT_ONCE).collect().await;
    for id in &ids {
        ground.until(id, |row| row["state"] == "running").await;
    }
    let created = began.elapsed();
    for script in ["echo $ID > mine", "cat mine; test $ID = $(cat mine)"] {
        let answers = futures_util::stream::iter(&ids)
            .map(async |id| ground.exec(id, json!({ "shell": script, "env": { "ID": id } })).await.well());
        assert_eq!(answers.buffered(AT_ONCE).count().await, count, "each has its own files");
    }
    let answered = began.elapsed();
    let place = ground.path().to_owned();
    if is_root() {
        let shown = traces::living_in(&place).len();
        assert!(shown >= count, "each has a worker: {shown}");
    }
    ground.leave().await;
    let line = format!(
        "{count} live at once: made after {created:?}, each answered after {answered:?}, gone after {:?}\n",
        began.elapsed()
    );
    drop(std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes()));
    assert_eq!(traces::living_in(&place), Vec::<String>::new());
}
