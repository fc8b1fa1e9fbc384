//! The demo agent, run by the worker: what it does, what is said to it, and what is told about it.

use super::Sandbox;
use crate::until;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn of_turn(sandbox: &Sandbox, turn: i64) -> Vec<String> {
    let events = sandbox.fake.events();
    events
        .iter()
        .filter(|event| event["turn"] == turn)
        .map(|event| event["type"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_prompt_becomes_a_turn() {
    let mut sandbox = Sandbox::with(|fake| drop(fake.queue("say hello\nedit a.txt one\nrun echo $TASK_DESCRIPTION")));
    sandbox.wait_for("agent.waiting", 1);
    let expected = [
        "agent.started",
        "agent.message",
        "agent.tool_use",
        "agent.file_edited",
        "agent.assistant_message",
        "agent.tool_completed",
        "agent.user_tool_result",
        "agent.tool_use",
        "agent.assistant_message",
        "agent.tool_completed",
        "agent.user_tool_result",
        "agent.completed",
        "agent.waiting",
    ];
    assert_eq!(of_turn(&sandbox, 1), expected, "{:#?}", sandbox.fake.events());
    let acks = sandbox.fake.answers("ack");
    assert_eq!((acks.len(), &acks[0]["how"], &acks[0]["turn"]), (1, &json!("new_turn"), &json!(1)));
    let started = sandbox.data("agent.started");
    assert_eq!((&started["turn"], &started["agent"]), (&json!(1), &json!("demo")));
    let edited = sandbox.data("agent.file_edited");
    assert_eq!((&edited["file_path"], &edited["change_type"]), (&json!("a.txt"), &json!("created")));
    assert_eq!((&edited["turn"], &edited["tool_use_id"]), (&json!(1), &json!("tool_1_1")));
    assert!(edited["full_diff"].as_str().unwrap().contains("+one"));
    assert_eq!(std::fs::read_to_string(sandbox.file("a.txt")).unwrap(), "one\n");
    let ran = sandbox.fake.events().into_iter().rfind(|event| event["type"] == "agent.tool_completed").unwrap();
    assert!(ran["data"]["output"].as_str().unwrap().starts_with("say hello"), "{ran}");
    until("the activity", || sandbox.fake.heartbeats().iter().any(|beat| beat["activity"] == "waiting_message"));
    assert!(sandbox.end().success(), "{}", sandbox.log());
    assert_eq!(sandbox.data("agent.shutdown"), json!({"reason": "sandbox_completing"}));
    assert_eq!(sandbox.fake.with(|state| state.finals), 1);
}

#[test]
fn a_sandbox_without_a_prompt_waits_for_one() {
    let sandbox = Sandbox::start();
    sandbox.wait_for("agent.waiting", 1);
    sandbox.fake.queue("say first");
    sandbox.wait_for("agent.waiting", 2);
    sandbox.fake.queue("say second");
    sandbox.wait_for("agent.waiting", 3);
    assert_eq!(of_turn(&sandbox, 2)[..2], ["agent.started", "agent.message"]);
    assert_eq!(
        of_turn(&sandbox, 1),
        ["agent.started", "agent.message", "agent.assistant_message", "agent.completed", "agent.waiting"]
    );
}

#[test]
fn what_steers_gets_into_the_turn_and_the_rest_begins_the_next() {
    let sandbox = Sandbox::with(|fake| drop(fake.queue("say begun\nwait 30\nsay never")));
    sandbox.wait_for("agent.message", 1);
    let queued = sandbox.fake.queue_as("user_message", "queue", "say later");
    let steered = sandbox.fake.queue("say meanwhile");
    sandbox.wait_for("agent.message", 2);
    sandbox.fake.queue("fail enough");
    sandbox.wait_for("agent.failed", 1);
    let injected = sandbox.data("agent.message_injected");
    assert_eq!(injected["message_id"], steered);
    let ack = |n: usize| sandbox.fake.answers("ack")[n]["how"].clone();
    assert_eq!((ack(0), ack(1)), (json!("new_turn"), json!("injected")));
    let texts: Vec<Value> = sandbox.fake.events().iter().map(|event| event["data"]["text"].clone()).collect();
    assert!(!texts.contains(&json!("later")), "it waits for the turn's end: {queued}");
}

#[test]
fn an_approval_is_waited_for() {
    let sandbox = Sandbox::with(|fake| drop(fake.queue("ask may I?\nsay done")));
    sandbox.wait_for("approval.requested", 1);
    until("the activity", || sandbox.fake.heartbeats().iter().any(|beat| beat["activity"] == "waiting_approval"));
    sandbox.fake.queue("approve");
    sandbox.wait_for("agent.completed", 1);
    assert_eq!(sandbox.data("approval.resolved")["decision"], "allow");
}

#[test]
fn an_interrupt_breaks_off_the_turn() {
    let sandbox = Sandbox::with(|fake| drop(fake.queue("run sleep 100\nsay never")));
    sandbox.wait_for("agent.tool_use", 1);
    let beginning = Instant::now();
    let id = sandbox.fake.queue_as("interrupt", "steer", "enough");
    sandbox.wait_for("agent.interrupted", 1);
    assert!(beginning.elapsed() < Duration::from_secs(2), "{:?}", beginning.elapsed());
    assert_eq!(sandbox.data("agent.interrupted")["message_id"], id);
    sandbox.wait_for("agent.waiting", 1);
    sandbox.fake.queue("say alive");
    sandbox.wait_for("agent.message", 1);
    assert_eq!(of_turn(&sandbox, 2)[..2], ["agent.started", "agent.message"]);
}

#[test]
fn an_agent_that_hears_nothing_is_interrupted_all_the_same() {
    let sandbox = Sandbox::with(|fake| drop(fake.queue("say begun\nhang")));
    sandbox.wait_for("agent.message", 1);
    let id = sandbox.fake.queue_as("interrupt", "steer", "enough");
    sandbox.wait_for("agent.interrupted", 1);
    let data = sandbox.data("agent.interrupted");
    assert_eq!((&data["message_id"], &data["forced"], &data["turn"]), (&id, &json!(true), &json!(1)));
    // Another one is started for the next message, and its turns go on.
    sandbox.fake.queue("say alive");
    sandbox.wait_for("agent.completed", 1);
    assert_eq!(
        of_turn(&sandbox, 2)[..4],
        ["agent.started", "agent.message", "agent.assistant_message", "agent.completed"]
    );
    assert_eq!(sandbox.count("agent.failed"), 0);
}

#[test]
fn prose_becomes_a_small_change() {
    let sandbox = Sandbox::with(|fake| drop(fake.queue("Please make it better")));
    sandbox.wait_for("agent.completed", 1);
    let edits: Vec<Value> =
        sandbox.fake.events().into_iter().filter(|event| event["type"] == "agent.file_edited").collect();
    assert_eq!(edits.len(), 2, "{edits:#?}");
    assert_eq!(
        (&edits[0]["data"]["change_type"], &edits[1]["data"]["change_type"]),
        (&json!("created"), &json!("modified"))
    );
    assert_eq!((&edits[1]["data"]["lines_added"], &edits[1]["data"]["file_path"]), (&json!(1), &json!("NOTES.md")));
}

#[test]
fn every_change_is_seen_whoever_made_it() {
    let sandbox = Sandbox::with(|fake| {
        fake.queue(
            "run printf 'a\\nb\\n' > made.txt\nrun mv made.txt moved.txt; mkdir -p d; echo x > d/e\nrun rm moved.txt",
        );
    });
    sandbox.wait_for("agent.completed", 1);
    let events = sandbox.fake.events();
    let edits: Vec<_> = events.iter().filter(|event| event["type"] == "agent.file_edited").collect();
    let seen: Vec<(&str, &str, &str)> = edits
        .iter()
        .map(|event| &event["data"])
        .map(|data| {
            let word = |key: &str| data[key].as_str().unwrap();
            (word("file_path"), word("change_type"), word("tool_use_id"))
        })
        .collect();
    assert!(seen.contains(&("made.txt", "created", "tool_1_1")), "{seen:?}");
    assert!(seen.contains(&("moved.txt", "renamed", "tool_1_2")), "{seen:?}");
    assert!(seen.contains(&("d/e", "created", "tool_1_2")), "{seen:?}");
    assert!(seen.contains(&("moved.txt", "deleted", "tool_1_3")), "{seen:?}");
    // Each stands before the end of the tool that made it.
    for edit in edits {
        let completed = events.iter().position(|event| {
            event["type"] == "agent.tool_completed" && event["data"]["tool_use_id"] == edit["data"]["tool_use_id"]
        });
        assert!(edit["key"].as_i64().unwrap() < events[completed.unwrap()]["key"].as_i64().unwrap());
    }
}

#[test]
fn a_server_that_restarts_misses_nothing() {
    let sandbox = Sandbox::with(|fake| drop(fake.queue("say 1\nwait 0.3\nsay 2\nwait 0.3\nsay 3\nwait 0.3\nsay 4")));
    sandbox.wait_for("agent.message", 1);
    sandbox.fake.restart();
    sandbox.fake.queue("say meanwhile");
    sandbox.wait_for("agent.message", 3);
    sandbox.fake.restart();
    sandbox.wait_for("agent.completed", 1);
    let keys: Vec<_> = sandbox.fake.events().iter().map(|event| event["key"].as_i64().unwrap()).collect();
    assert_eq!(keys, (1..=i64::try_from(keys.len()).unwrap()).collect::<Vec<_>>());
    assert_eq!(sandbox.count("agent.message"), 5);
    assert_eq!(sandbox.ask("echo reached"), "reached\n");
}
