//! Repeated kills of server and workers at random moments, while events and messages flow. Afterwards the log
//! contains every confirmed event once and in order, and no message was delivered twice.

mod reader;
mod worker_program;

use atoll_test_wait::{poll_for, try_poll_for};
use atoll_tests::actor::Actor;
use atoll_tests::database::{Database, DatabaseKind};
use atoll_tests::process::ServerProcess;
use atoll_tests::{on_both_databases, scale};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reader::{ReadLogs, event_fingerprint};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use worker_program::{DeliveryReply, HandOver, ProgramRecord, WorkerProgram};

on_both_databases!(kills_lose_and_duplicate_nothing);

/// Kills at full scale, both databases together.
const FULL_SCALE_KILLS: usize = 400;
const SANDBOX_COUNT: usize = 3;

/// No rate limits, and leases that expire while the program holds messages.
const CONFIG: &str = "\
limits: {worker_requests_per_minute: 0, messages_per_minute: 0, writes_per_minute: 0}
messages: {lease: 3s}
";

async fn kills_lose_and_duplicate_nothing(kind: DatabaseKind) {
    let seed = scale::choose_seed(&format!("kill ({kind:?})"));
    let mut rng = StdRng::seed_from_u64(seed);
    let dir = tempfile::Builder::new().prefix("atoll-kill-").tempdir().unwrap();
    let at = dir.path().to_owned();
    let (database, server) = tokio::task::spawn_blocking(move || start_server(kind, &at)).await.unwrap();
    let admin = Actor::new(&server.url, Some(&server.admin_token()));

    let mut programs = Vec::new();
    for number in 0..SANDBOX_COUNT {
        let sandbox = admin.create_external_sandbox(json!({})).await;
        programs.push(WorkerProgram::start(&server.url, sandbox, dir.path().join(number.to_string()), rng.random()));
    }
    let ids: Vec<String> = programs.iter().map(|program| program.sandbox.id.clone()).collect();

    let (by_sse, by_socket) = (ReadLogs::default(), ReadLogs::default());
    let mut readers = Vec::new();
    for id in &ids {
        readers.push(tokio::spawn(reader::follow_sse(admin.clone(), id.clone(), by_sse.clone())));
    }
    readers.push(tokio::spawn(reader::follow_web_socket(admin.clone(), ids.clone(), by_socket.clone())));
    let done = Arc::new(AtomicBool::new(false));
    let posting: Vec<_> = ids
        .iter()
        .map(|id| tokio::spawn(post_messages(admin.clone(), id.clone(), rng.random(), Arc::clone(&done))))
        .collect();

    let killing = tokio::task::spawn_blocking(move || kill_at_random(server, programs, rng));
    let (server, programs, killed) = killing.await.unwrap();
    done.store(true, Ordering::SeqCst);
    let mut posted = Vec::new();
    for messages in posting {
        posted.push(messages.await.unwrap());
    }
    programs.iter().for_each(WorkerProgram::start_settling);
    wait_until_all_delivered(&admin, &programs).await;
    let records: Vec<ProgramRecord> =
        tokio::task::spawn_blocking(|| programs.into_iter().map(WorkerProgram::finish).collect()).await.unwrap();

    let mut counts = KillTestCounts::default();
    for ((id, record), posted) in ids.iter().zip(&records).zip(&posted) {
        let log = admin.all_events(id).await;
        check_events(&log, record, &mut counts);
        let messages = list_messages(&admin, id).await;
        check_messages(&messages, &log, posted, record, &mut counts);
        let prints: Vec<u64> = log.iter().map(event_fingerprint).collect();
        wait_until_read(&by_sse, id, &prints).await;
        wait_until_read(&by_socket, id, &prints).await;
    }
    for reader in readers {
        assert!(!reader.is_finished(), "{:?}", reader.await);
        reader.abort();
    }
    let line = format!("kill ({kind:?}): {killed:?} {counts:?}\n");
    drop(std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes()));
    tokio::task::spawn_blocking(move || drop((server, database))).await.unwrap();
}

#[derive(Debug, Default)]
struct KillTestCounts {
    worker_starts: usize,
    events_written: u64,
    events_confirmed: usize,
    events_stored: usize,
    messages: HashMap<String, usize>,
    messages_handed_again: usize,
}

fn start_server(kind: DatabaseKind, dir: &std::path::Path) -> (Database, ServerProcess) {
    let data = dir.join("data");
    std::fs::create_dir(&data).unwrap();
    let config = dir.join("atoll.yaml");
    std::fs::write(&config, CONFIG).unwrap();
    let database = Database::new(kind, &data);
    let mut arguments = vec!["--config".to_owned(), config.to_str().unwrap().to_owned()];
    arguments.extend(database.url().map(|url| format!("--database-url={url}")));
    (database, ServerProcess::start(&data, &arguments))
}

#[derive(Debug, Default)]
struct KillCounts {
    server: usize,
    server_while_starting: usize,
    worker: usize,
}

fn kill_at_random(
    mut server: ServerProcess,
    programs: Vec<WorkerProgram>,
    mut rng: StdRng,
) -> (ServerProcess, Vec<WorkerProgram>, KillCounts) {
    let mut killed = KillCounts::default();
    for _ in 0..scale::scale_count(FULL_SCALE_KILLS / 2) {
        std::thread::sleep(Duration::from_millis(rng.random_range(5..300)));
        let choice = rng.random_range(0..10);
        if choice >= 5 {
            server.kill();
            killed.server += 1;
        }
        if choice < 7 {
            let victim = &programs[rng.random_range(0..programs.len())];
            killed.worker += usize::from(victim.kill_worker());
        }
        if choice >= 5 {
            std::thread::sleep(Duration::from_millis(rng.random_range(0..200)));
            if rng.random_bool(0.3) {
                server.start_and_kill(Duration::from_millis(rng.random_range(0..150)));
                killed.server_while_starting += 1;
            }
            server.restart();
        }
        assert!(programs.iter().all(WorkerProgram::is_running), "a worker exited without a kill");
    }
    (server, programs, killed)
}

/// Sends messages during every outage, each with its own idempotency key, and returns their ids and contents.
async fn post_messages(admin: Actor, sandbox: String, seed: u64, done: Arc<AtomicBool>) -> HashMap<String, String> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut posted = HashMap::new();
    while !done.load(Ordering::SeqCst) {
        let number = posted.len();
        let content = format!("message {number} {}", "y".repeat(rng.random_range(0..2000)));
        let kind = if rng.random_bool(0.1) { "interrupt" } else { "user_message" };
        let body = json!({ "content": content, "type": kind });
        let created = post_until_accepted(&admin, &format!("/sandboxes/{sandbox}/messages"), &body, number).await;
        assert_eq!(created["content"], content);
        assert!(
            posted.insert(created["id"].as_str().unwrap().to_owned(), content).is_none(),
            "two messages have the same id"
        );
        tokio::time::sleep(Duration::from_millis(rng.random_range(5..40))).await;
    }
    posted
}

async fn post_until_accepted(admin: &Actor, path: &str, body: &Value, number: usize) -> Value {
    let request = admin.request(Method::POST, path).header("Idempotency-Key", format!("key-{number}")).json(body);
    poll_for("the server to accept a message", async || {
        let response = request.try_clone().unwrap().send().await.ok()?;
        let status = response.status().as_u16();
        assert!(status == 201 || status == 503, "{status}");
        // The connection may break in the middle of the response.
        response.json().await.ok().filter(|_| status == 201)
    })
    .await
}

async fn list_messages(admin: &Actor, sandbox: &str) -> Vec<Value> {
    admin.list_all(&format!("/sandboxes/{sandbox}/messages"), 200).await
}

/// Waits, with everything running again, until the program has each message or the message is settled.
async fn wait_until_all_delivered(admin: &Actor, programs: &[WorkerProgram]) {
    for program in programs {
        let is_pending = |message: &Value| match message["state"].as_str().unwrap() {
            "queued" => true,
            "leased" => !program.has_unanswered(message["id"].as_str().unwrap()),
            _ => false,
        };
        let mut fewest = usize::MAX;
        while fewest > 0 {
            // A slow machine may need long for many messages, but their number must shrink.
            let fewer = try_poll_for(async || {
                let mut pending = list_messages(admin, &program.sandbox.id).await;
                pending.retain(is_pending);
                if pending.len() < fewest { Ok(pending.len()) } else { Err(pending) }
            });
            fewest = fewer.await.unwrap_or_else(|pending| {
                panic!("the pending messages must become fewer: {pending:?}\nworker: {}", program.worker_log())
            });
        }
    }
}

fn check_events(log: &[Value], record: &ProgramRecord, counts: &mut KillTestCounts) {
    for (index, event) in log.iter().enumerate() {
        assert_eq!(event["seq"], index + 1, "seq must have no gap");
    }
    let unwanted = ["worker.lost", "worker.rejected", "agent.unparsed"];
    assert!(log.iter().all(|event| !unwanted.contains(&event["type"].as_str().unwrap())));
    let stored: Vec<u64> = log.iter().filter_map(|event| event["data"]["number"].as_u64()).collect();
    assert!(stored.windows(2).all(|pair| pair[0] < pair[1]), "events must be stored once, in the order of writing");
    let stored_set: HashSet<u64> = stored.iter().copied().collect();
    let confirmed = record.confirmed_numbers();
    let lost: Vec<&u64> = confirmed.iter().filter(|number| !stored_set.contains(number)).collect();
    assert!(lost.is_empty(), "{} of {} confirmed events are lost: {lost:?}", lost.len(), confirmed.len());
    assert!(stored.iter().all(|number| *number < record.written_count()));
    counts.worker_starts += record.start_count();
    counts.events_written += record.written_count();
    counts.events_confirmed += confirmed.len();
    counts.events_stored += stored.len();
}

fn check_messages(
    messages: &[Value],
    log: &[Value],
    posted: &HashMap<String, String>,
    record: &ProgramRecord,
    counts: &mut KillTestCounts,
) {
    let listed: HashMap<String, String> = messages
        .iter()
        .map(|message| (message["id"].as_str().unwrap().to_owned(), message["content"].as_str().unwrap().to_owned()))
        .collect();
    assert_eq!(messages.len(), listed.len());
    assert_eq!(&listed, posted, "the server must list exactly the accepted messages");
    let count_events = |kind: &str, id: &str| {
        log.iter().filter(|event| event["type"] == kind && event["data"]["message_id"] == id).count()
    };
    for message in messages {
        let (id, state) = (message["id"].as_str().unwrap(), message["state"].as_str().unwrap());
        *counts.messages.entry(state.to_owned()).or_default() += 1;
        assert_eq!(count_events("message.queued", id), 1);
        for end in ["acknowledged", "undeliverable", "delivered_unconfirmed"] {
            let times = usize::from(state == end);
            assert_eq!(count_events(&format!("message.{end}"), id), times, "{id} is {state}");
        }
        let handed = record.hand_overs.get(id).map_or(&[][..], Vec::as_slice);
        assert!(handed.iter().all(|time| time.content == message["content"]));
        counts.messages_handed_again += handed.len().saturating_sub(1);
        check_delivery(message, state, handed);
    }
    assert!(record.hand_overs.keys().all(|id| posted.contains_key(id)), "the worker handed over an unknown message");
}

/// Checks that a message's state matches the hand-overs and replies that the program recorded.
fn check_delivery(message: &Value, state: &str, handed: &[HandOver]) {
    let Some((last, earlier)) = handed.split_last() else {
        // A kill may come after the worker recorded the hand-over and before it happened.
        assert!(["queued", "leased", "delivered_unconfirmed"].contains(&state), "never handed over, yet {message}");
        return;
    };
    for time in earlier {
        let was_returned = time.reply.as_ref().is_some_and(|answer| answer.kind == DeliveryReply::Return);
        assert!(was_returned, "handed over twice without a return: {message}");
    }
    let Some(answer) = &last.reply else {
        return assert_eq!(state, "delivered_unconfirmed", "the program did not reply: {message}");
    };
    let (honoured, lost) = match answer.kind {
        DeliveryReply::Ack => (&["acknowledged"][..], "delivered_unconfirmed"),
        // Returned at the very end, or leased again by a worker that was killed before the hand-over.
        DeliveryReply::Return => (&["queued", "leased", "delivered_unconfirmed"][..], "delivered_unconfirmed"),
        DeliveryReply::Refuse => (&["undeliverable"][..], "delivered_unconfirmed"),
        DeliveryReply::MaybeSeen => (&["delivered_unconfirmed"][..], "delivered_unconfirmed"),
    };
    let is_expected = honoured.contains(&state) || (state == lost && !answer.is_durable());
    assert!(is_expected, "the reply {answer:?} does not fit {message}");
    if state == "acknowledged" {
        assert_eq!(message["turn"], answer.turn, "the acknowledgement must be the program's");
    }
}

/// Waits until a reader has the whole log, and compares the two.
async fn wait_until_read(read: &ReadLogs, sandbox: &str, log: &[u64]) {
    let read = try_poll_for(async || {
        let read = read.fingerprints(sandbox);
        if read.len() < log.len() { Err(read.len()) } else { Ok(read) }
    });
    assert_eq!(read.await.unwrap_or_else(|count| panic!("a reader has {count} of {} events", log.len())), log);
}
