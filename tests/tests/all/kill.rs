//! Server and worker killed at any moment, over and over, while events and messages flow. Afterwards
//! the log holds every event that was promised, once and in order, and no message came twice.

mod agent;
mod reader;

use agent::{Handed, Notes, Program, Verdict};
use atoll_tests::actor::Actor;
use atoll_tests::database::{Database, Kind};
use atoll_tests::process::ServerProcess;
use atoll_tests::{on_both_databases, scale};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reader::{Read, print_of};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

on_both_databases!(nothing_is_lost_or_doubled_by_kills);

/// Kills of a whole run, both databases together.
const KILLS: usize = 400;
const SANDBOXES: usize = 3;
/// For the next thing to come, however slow the machine is.
const PATIENCE: Duration = Duration::from_secs(120);

/// No limits, and leases that run out while messages are held.
const CONFIG: &str = "\
limits: {worker_requests_per_minute: 0, messages_per_minute: 0, writes_per_minute: 0}
messages: {lease: 3s}
";

async fn nothing_is_lost_or_doubled_by_kills(kind: Kind) {
    let seed = scale::seed(&format!("kill ({kind:?})"));
    let mut rng = StdRng::seed_from_u64(seed);
    let dir = tempfile::Builder::new().prefix("atoll-kill-").tempdir().unwrap();
    let at = dir.path().to_owned();
    let (database, server) = tokio::task::spawn_blocking(move || start(kind, &at)).await.unwrap();
    let admin = Actor::new(&server.url, Some(&server.token()));

    let mut programs = Vec::new();
    for number in 0..SANDBOXES {
        let sandbox = admin.external(json!({})).await;
        programs.push(Program::start(&server.url, sandbox, dir.path().join(number.to_string()), rng.random()));
    }
    let ids: Vec<String> = programs.iter().map(|program| program.sandbox.id.clone()).collect();

    let (by_sse, by_socket) = (Read::default(), Read::default());
    let mut readers = Vec::new();
    for id in &ids {
        readers.push(tokio::spawn(reader::server_sent_events(admin.clone(), id.clone(), by_sse.clone())));
    }
    readers.push(tokio::spawn(reader::web_socket(admin.clone(), ids.clone(), by_socket.clone())));
    let enough = Arc::new(AtomicBool::new(false));
    let posting: Vec<_> = ids
        .iter()
        .map(|id| tokio::spawn(post_messages(admin.clone(), id.clone(), rng.random(), Arc::clone(&enough))))
        .collect();

    let killing = tokio::task::spawn_blocking(move || kill_at_random(server, programs, rng));
    let (server, programs, killed) = killing.await.unwrap();
    enough.store(true, Ordering::SeqCst);
    let mut posted = Vec::new();
    for messages in posting {
        posted.push(messages.await.unwrap());
    }
    programs.iter().for_each(Program::settle);
    everything_is_handed_over(&admin, &programs).await;
    let notes: Vec<Notes> =
        tokio::task::spawn_blocking(|| programs.into_iter().map(Program::finish).collect()).await.unwrap();

    let mut figures = Figures::default();
    for ((id, notes), posted) in ids.iter().zip(&notes).zip(&posted) {
        let log = admin.all_events(id).await;
        check_events(&log, notes, &mut figures);
        let messages = all_messages(&admin, id).await;
        check_messages(&messages, &log, posted, notes, &mut figures);
        let prints: Vec<u64> = log.iter().map(print_of).collect();
        has_read(&by_sse, id, &prints).await;
        has_read(&by_socket, id, &prints).await;
    }
    for reader in readers {
        assert!(!reader.is_finished(), "{:?}", reader.await);
        reader.abort();
    }
    let figures = format!("kill ({kind:?}): {killed:?} {figures:?}\n");
    drop(std::io::Write::write_all(&mut std::io::stderr().lock(), figures.as_bytes()));
    tokio::task::spawn_blocking(move || drop((server, database))).await.unwrap();
}

#[derive(Debug, Default)]
struct Figures {
    worker_starts: usize,
    events_written: u64,
    events_confirmed: usize,
    events_stored: usize,
    messages: HashMap<String, usize>,
    messages_handed_again: usize,
}

fn start(kind: Kind, dir: &std::path::Path) -> (Database, ServerProcess) {
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
struct Killed {
    server: usize,
    server_while_starting: usize,
    worker: usize,
}

fn kill_at_random(
    mut server: ServerProcess,
    programs: Vec<Program>,
    mut rng: StdRng,
) -> (ServerProcess, Vec<Program>, Killed) {
    let mut killed = Killed::default();
    for _ in 0..scale::scaled(KILLS / 2) {
        std::thread::sleep(Duration::from_millis(rng.random_range(5..300)));
        let what = rng.random_range(0..10);
        if what >= 5 {
            server.kill();
            killed.server += 1;
        }
        if what < 7 {
            let victim = &programs[rng.random_range(0..programs.len())];
            killed.worker += usize::from(victim.kill());
        }
        if what >= 5 {
            std::thread::sleep(Duration::from_millis(rng.random_range(0..200)));
            if rng.random_bool(0.3) {
                server.start_and_kill(Duration::from_millis(rng.random_range(0..150)));
                killed.server_while_starting += 1;
            }
            server.start_again();
        }
        assert!(programs.iter().all(Program::is_well), "a worker ended by itself");
    }
    (server, programs, killed)
}

/// Sends messages through every outage, each under a key of its own; gives what was taken: ids and words.
async fn post_messages(admin: Actor, sandbox: String, seed: u64, enough: Arc<AtomicBool>) -> HashMap<String, String> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut posted = HashMap::new();
    while !enough.load(Ordering::SeqCst) {
        let number = posted.len();
        let content = format!("message {number} {}", "y".repeat(rng.random_range(0..2000)));
        let kind = if rng.random_bool(0.1) { "interrupt" } else { "user_message" };
        let body = json!({ "content": content, "type": kind });
        let made = until_taken(&admin, &format!("/sandboxes/{sandbox}/messages"), &body, number).await;
        assert_eq!(made["content"], content);
        assert!(posted.insert(made["id"].as_str().unwrap().to_owned(), content).is_none(), "one id twice");
        tokio::time::sleep(Duration::from_millis(rng.random_range(5..40))).await;
    }
    posted
}

async fn until_taken(admin: &Actor, path: &str, body: &Value, number: usize) -> Value {
    loop {
        let request = admin.request(Method::POST, path).header("Idempotency-Key", format!("key-{number}")).json(body);
        if let Ok(response) = request.send().await {
            let status = response.status().as_u16();
            // The answer may break off as well.
            if let (201, Ok(made)) = (status, response.json().await) {
                return made;
            }
            assert!(status == 201 || status == 503, "{status}");
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

async fn all_messages(admin: &Actor, sandbox: &str) -> Vec<Value> {
    admin.everything(&format!("/sandboxes/{sandbox}/messages"), 200).await
}

/// With everything up again, no message stays behind: each has come to an end, or the program has it.
async fn everything_is_handed_over(admin: &Actor, programs: &[Program]) {
    for program in programs {
        let waits = |message: &Value| match message["state"].as_str().unwrap() {
            "queued" => true,
            "leased" => !program.holds(message["id"].as_str().unwrap()),
            _ => false,
        };
        let (mut least, mut deadline) = (usize::MAX, Instant::now() + PATIENCE);
        loop {
            let mut behind = all_messages(admin, &program.sandbox.id).await;
            behind.retain(waits);
            if behind.is_empty() {
                break;
            }
            // There may be many, and the machine may be slow; but they become fewer.
            if behind.len() < least {
                (least, deadline) = (behind.len(), Instant::now() + PATIENCE);
            }
            assert!(Instant::now() < deadline, "{least} messages stay behind: {:?}", behind.first());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

fn check_events(log: &[Value], notes: &Notes, figures: &mut Figures) {
    for (index, event) in log.iter().enumerate() {
        assert_eq!(event["seq"], index + 1, "seq has no gap");
    }
    let unwanted = ["worker.lost", "worker.rejected", "agent.unparsed"];
    assert!(log.iter().all(|event| !unwanted.contains(&event["type"].as_str().unwrap())));
    let stored: Vec<u64> = log.iter().filter_map(|event| event["data"]["number"].as_u64()).collect();
    assert!(stored.windows(2).all(|pair| pair[0] < pair[1]), "events are stored once, in the order they were written");
    let there: HashSet<u64> = stored.iter().copied().collect();
    let confirmed = notes.confirmed();
    let lost: Vec<&u64> = confirmed.iter().filter(|number| !there.contains(number)).collect();
    assert!(lost.is_empty(), "{} of {} confirmed events are lost: {lost:?}", lost.len(), confirmed.len());
    assert!(stored.iter().all(|number| *number < notes.written()));
    figures.worker_starts += notes.starts();
    figures.events_written += notes.written();
    figures.events_confirmed += confirmed.len();
    figures.events_stored += stored.len();
}

fn check_messages(
    messages: &[Value],
    log: &[Value],
    posted: &HashMap<String, String>,
    notes: &Notes,
    figures: &mut Figures,
) {
    let listed: HashMap<String, String> = messages
        .iter()
        .map(|message| (message["id"].as_str().unwrap().to_owned(), message["content"].as_str().unwrap().to_owned()))
        .collect();
    assert_eq!(messages.len(), listed.len());
    assert_eq!(&listed, posted, "every message that was taken is there once, and no other");
    let said = |kind: &str, id: &str| {
        log.iter().filter(|event| event["type"] == kind && event["data"]["message_id"] == id).count()
    };
    for message in messages {
        let (id, state) = (message["id"].as_str().unwrap(), message["state"].as_str().unwrap());
        *figures.messages.entry(state.to_owned()).or_default() += 1;
        assert_eq!(said("message.queued", id), 1);
        for end in ["acknowledged", "undeliverable", "delivered_unconfirmed"] {
            let times = usize::from(state == end);
            assert_eq!(said(&format!("message.{end}"), id), times, "{id} is {state}");
        }
        let handed = notes.handed.get(id).map_or(&[][..], Vec::as_slice);
        assert!(handed.iter().all(|time| time.content == message["content"]));
        figures.messages_handed_again += handed.len().saturating_sub(1);
        check_delivery(message, state, handed);
    }
    assert!(notes.handed.keys().all(|id| posted.contains_key(id)), "nothing was handed over that nobody sent");
}

/// The state says what happened, as far as anybody can know.
fn check_delivery(message: &Value, state: &str, handed: &[Handed]) {
    let Some((last, earlier)) = handed.split_last() else {
        // Written down as handed over and then killed before it was.
        assert!(["queued", "leased", "delivered_unconfirmed"].contains(&state), "never handed over, yet {message}");
        return;
    };
    for time in earlier {
        let given_back = time.answer.as_ref().is_some_and(|answer| answer.verdict == Verdict::GiveBack);
        assert!(given_back, "handed over twice without being given back: {message}");
    }
    let Some(answer) = &last.answer else {
        return assert_eq!(state, "delivered_unconfirmed", "nobody answered: {message}");
    };
    let (honoured, lost) = match answer.verdict {
        Verdict::Ack => (&["acknowledged"][..], "delivered_unconfirmed"),
        // Given back at the very end, or taken again by a worker that was killed before it handed it over.
        Verdict::GiveBack => (&["queued", "leased", "delivered_unconfirmed"][..], "delivered_unconfirmed"),
        Verdict::Refuse => (&["undeliverable"][..], "delivered_unconfirmed"),
        Verdict::Unsure => (&["delivered_unconfirmed"][..], "delivered_unconfirmed"),
    };
    let told = honoured.contains(&state) || (state == lost && !answer.is_surely_kept());
    assert!(told, "the answer was {answer:?}, and yet {message}");
    if state == "acknowledged" {
        assert_eq!(message["turn"], answer.turn, "the acknowledgement is the one that was given");
    }
}

/// A reader that was there all the time ends up with the log itself.
async fn has_read(read: &Read, sandbox: &str, log: &[u64]) {
    let deadline = Instant::now() + PATIENCE;
    while read.log(sandbox).len() < log.len() {
        assert!(Instant::now() < deadline, "a reader has {} of {} events", read.log(sandbox).len(), log.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(read.log(sandbox), log);
}
