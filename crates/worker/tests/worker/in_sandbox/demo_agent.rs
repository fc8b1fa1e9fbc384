//! The demo agent, run by the worker: its turns, messages and events.

use super::WorkerSandbox;
use atoll_test_wait::wait_until;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn event_types_of_turn(sandbox: &WorkerSandbox, turn: i64) -> Vec<String> {
    let events = sandbox.server.events();
    events
        .iter()
        .filter(|event| event["turn"] == turn)
        .map(|event| event["type"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_prompt_becomes_a_turn() {
    let mut sandbox = WorkerSandbox::start_with(|fake| {
        drop(fake.queue_message("say hello\nedit a.txt one\nrun echo $TASK_DESCRIPTION"))
    });
    sandbox.wait_for_events("agent.waiting", 1);
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
    assert_eq!(event_types_of_turn(&sandbox, 1), expected, "{:#?}", sandbox.server.events());
    let acks = sandbox.server.message_answers("ack");
    assert_eq!((acks.len(), &acks[0]["how"], &acks[0]["turn"]), (1, &json!("new_turn"), &json!(1)));
    let started = sandbox.first_event_data("agent.started");
    assert_eq!((&started["turn"], &started["agent"]), (&json!(1), &json!("demo")));
    let edited = sandbox.first_event_data("agent.file_edited");
    assert_eq!((&edited["file_path"], &edited["change_type"]), (&json!("a.txt"), &json!("created")));
    assert_eq!((&edited["turn"], &edited["tool_use_id"]), (&json!(1), &json!("tool_1_1")));
    assert!(edited["full_diff"].as_str().unwrap().contains("+one"));
    assert_eq!(std::fs::read_to_string(sandbox.workspace_path("a.txt")).unwrap(), "one\n");
    let completed = sandbox.server.events().into_iter().rfind(|event| event["type"] == "agent.tool_completed").unwrap();
    assert!(completed["data"]["output"].as_str().unwrap().starts_with("say hello"), "{completed}");
    wait_until("the activity", || sandbox.server.heartbeats().iter().any(|beat| beat["activity"] == "waiting_message"));
    assert!(sandbox.complete_and_wait().success(), "{}", sandbox.worker_log());
    assert_eq!(sandbox.first_event_data("agent.shutdown"), json!({"reason": "sandbox_completing"}));
    assert_eq!(sandbox.server.with_state(|state| state.final_batches), 1);
}

#[test]
fn files_of_the_start_instructions_exist_before_the_agent() {
    let sandbox = WorkerSandbox::start_with(|fake| {
        let files = json!([{"path": ".tool/config", "text": "mirror"}, {"path": "../outside", "text": "x"}]);
        fake.with_state(|state| drop(state.start_fields.insert("files".to_owned(), files)));
        fake.queue_message("run cat ~/.tool/config");
    });
    sandbox.wait_for_events("agent.completed", 1);
    assert_eq!(sandbox.first_event_data("agent.tool_completed")["output"], "mirror");
    assert!(!sandbox.path("outside").exists(), "only files of the home are written");
}

#[test]
fn a_sandbox_without_a_prompt_waits_for_one() {
    let sandbox = WorkerSandbox::start();
    sandbox.wait_for_events("agent.waiting", 1);
    sandbox.server.queue_message("say first");
    sandbox.wait_for_events("agent.waiting", 2);
    sandbox.server.queue_message("say second");
    sandbox.wait_for_events("agent.waiting", 3);
    assert_eq!(event_types_of_turn(&sandbox, 2)[..2], ["agent.started", "agent.message"]);
    assert_eq!(
        event_types_of_turn(&sandbox, 1),
        ["agent.started", "agent.message", "agent.assistant_message", "agent.completed", "agent.waiting"]
    );
}

#[test]
fn steering_messages_join_the_turn_and_the_rest_begin_the_next() {
    let sandbox = WorkerSandbox::start_with(|fake| drop(fake.queue_message("say begun\nwait 30\nsay never")));
    sandbox.wait_for_events("agent.message", 1);
    let queued = sandbox.server.queue_message_as("user_message", "queue", "say later");
    let steered = sandbox.server.queue_message("say meanwhile");
    sandbox.wait_for_events("agent.message", 2);
    sandbox.server.queue_message("fail enough");
    sandbox.wait_for_events("agent.failed", 1);
    let injected = sandbox.first_event_data("agent.message_injected");
    assert_eq!(injected["message_id"], steered);
    let ack = |n: usize| sandbox.server.message_answers("ack")[n]["how"].clone();
    assert_eq!((ack(0), ack(1)), (json!("new_turn"), json!("injected")));
    let texts: Vec<Value> = sandbox.server.events().iter().map(|event| event["data"]["text"].clone()).collect();
    assert!(!texts.contains(&json!("later")), "the message {queued} did not wait for the end of the turn");
}

#[test]
fn waits_for_an_approval() {
    let sandbox = WorkerSandbox::start_with(|fake| drop(fake.queue_message("ask may I?\nsay done")));
    sandbox.wait_for_events("approval.requested", 1);
    wait_until("the activity", || {
        sandbox.server.heartbeats().iter().any(|beat| beat["activity"] == "waiting_approval")
    });
    sandbox.server.queue_message("approve");
    sandbox.wait_for_events("agent.completed", 1);
    assert_eq!(sandbox.first_event_data("approval.resolved")["decision"], "allow");
}

#[test]
fn an_interrupt_ends_the_turn() {
    let sandbox = WorkerSandbox::start_with(|fake| drop(fake.queue_message("run sleep 100\nsay never")));
    sandbox.wait_for_events("agent.tool_use", 1);
    let began = Instant::now();
    let id = sandbox.server.queue_message_as("interrupt", "steer", "enough");
    sandbox.wait_for_events("agent.interrupted", 1);
    assert!(began.elapsed() < Duration::from_secs(50), "{:?}", began.elapsed());
    assert_eq!(sandbox.first_event_data("agent.interrupted")["message_id"], id);
    sandbox.wait_for_events("agent.waiting", 1);
    sandbox.server.queue_message("say alive");
    sandbox.wait_for_events("agent.message", 1);
    assert_eq!(event_types_of_turn(&sandbox, 2)[..2], ["agent.started", "agent.message"]);
}

#[test]
fn interrupts_an_agent_that_does_not_respond() {
    let sandbox = WorkerSandbox::start_with(|fake| drop(fake.queue_message("say begun\nhang")));
    sandbox.wait_for_events("agent.message", 1);
    let id = sandbox.server.queue_message_as("interrupt", "steer", "enough");
    sandbox.wait_for_events("agent.interrupted", 1);
    let data = sandbox.first_event_data("agent.interrupted");
    assert_eq!((&data["message_id"], &data["forced"], &data["turn"]), (&id, &json!(true), &json!(1)));
    // The next message starts a new agent process, and the turn numbers continue.
    sandbox.server.queue_message("say alive");
    sandbox.wait_for_events("agent.completed", 1);
    assert_eq!(
        event_types_of_turn(&sandbox, 2)[..4],
        ["agent.started", "agent.message", "agent.assistant_message", "agent.completed"]
    );
    assert_eq!(sandbox.count_events("agent.failed"), 0);
}

#[test]
fn a_prompt_without_instructions_makes_a_small_change() {
    let sandbox = WorkerSandbox::start_with(|fake| drop(fake.queue_message("Please make it better")));
    sandbox.wait_for_events("agent.completed", 1);
    let edits: Vec<Value> =
        sandbox.server.events().into_iter().filter(|event| event["type"] == "agent.file_edited").collect();
    assert_eq!(edits.len(), 2, "{edits:#?}");
    assert_eq!(
        (&edits[0]["data"]["change_type"], &edits[1]["data"]["change_type"]),
        (&json!("created"), &json!("modified"))
    );
    assert_eq!((&edits[1]["data"]["lines_added"], &edits[1]["data"]["file_path"]), (&json!(1), &json!("NOTES.md")));
}

#[test]
fn reports_every_file_change() {
    let sandbox = WorkerSandbox::start_with(|fake| {
        fake.queue_message(
            "run printf 'a\\nb\\n' > made.txt\nrun mv made.txt moved.txt; mkdir -p d; echo x > d/e\nrun rm moved.txt",
        );
    });
    sandbox.wait_for_events("agent.completed", 1);
    let events = sandbox.server.events();
    let edits: Vec<_> = events.iter().filter(|event| event["type"] == "agent.file_edited").collect();
    let changes: Vec<(&str, &str, &str)> = edits
        .iter()
        .map(|event| &event["data"])
        .map(|data| {
            let word = |key: &str| data[key].as_str().unwrap();
            (word("file_path"), word("change_type"), word("tool_use_id"))
        })
        .collect();
    assert!(changes.contains(&("made.txt", "created", "tool_1_1")), "{changes:?}");
    assert!(changes.contains(&("moved.txt", "renamed", "tool_1_2")), "{changes:?}");
    assert!(changes.contains(&("d/e", "created", "tool_1_2")), "{changes:?}");
    assert!(changes.contains(&("moved.txt", "deleted", "tool_1_3")), "{changes:?}");
    // Each edit precedes the completion of its tool call.
    for edit in edits {
        let completed = events.iter().position(|event| {
            event["type"] == "agent.tool_completed" && event["data"]["tool_use_id"] == edit["data"]["tool_use_id"]
        });
        assert!(edit["key"].as_i64().unwrap() < events[completed.unwrap()]["key"].as_i64().unwrap());
    }
}

#[test]
fn a_restarted_server_gets_every_event() {
    let sandbox = WorkerSandbox::start_with(|fake| {
        drop(fake.queue_message("say 1\nwait 0.3\nsay 2\nwait 0.3\nsay 3\nwait 0.3\nsay 4"))
    });
    sandbox.wait_for_events("agent.message", 1);
    sandbox.server.restart();
    sandbox.server.queue_message("say meanwhile");
    sandbox.wait_for_events("agent.message", 3);
    sandbox.server.restart();
    sandbox.wait_for_events("agent.completed", 1);
    let keys: Vec<_> = sandbox.server.events().iter().map(|event| event["key"].as_i64().unwrap()).collect();
    assert_eq!(keys, (1..=i64::try_from(keys.len()).unwrap()).collect::<Vec<_>>());
    assert_eq!(sandbox.count_events("agent.message"), 5);
    assert_eq!(sandbox.run_shell("echo reached"), "reached\n");
}
