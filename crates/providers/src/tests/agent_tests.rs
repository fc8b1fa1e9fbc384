//! Tests of the fake agent's instructions.

use super::Scenario;
use super::recording_server::HEARTBEAT_SECONDS;
use atoll_core::message::{Delivery, DeliveryMethod};
use atoll_core::provider::{Provider, ReadScope, Transfer};
use atoll_core::sandbox::Activity;
use futures_util::StreamExt;
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn a_prompt_runs_as_one_turn_of_events() {
    let scenario = Scenario::new("say hello\nedit src/a.txt one two\nrun echo ok; exit 3").await;
    scenario.wait_for_event("agent.waiting").await;
    assert_eq!(
        scenario.event_types(),
        [
            "agent.started",
            "agent.message",
            "agent.tool_use",
            "agent.file_edited",
            "agent.tool_completed",
            "agent.tool_use",
            "agent.tool_completed",
            "agent.completed",
            "agent.waiting",
        ]
    );
    for (index, event) in scenario.link.stored_events(scenario.sandbox).iter().enumerate() {
        assert_eq!((event["key"].as_i64(), event["turn"].as_i64()), (Some(index as i64 + 1), Some(1)), "{event}");
    }
    assert_eq!(scenario.event_data("agent.message")[0]["text"], "hello");
    let edit = &scenario.event_data("agent.file_edited")[0];
    assert_eq!((&edit["file_path"], &edit["change_type"]), (&"src/a.txt".into(), &"created".into()));
    assert_eq!((&edit["lines_added"], &edit["lines_removed"]), (&1.into(), &0.into()));
    assert_eq!(edit["full_diff"], "--- /dev/null\n+++ b/src/a.txt\n@@ -0,0 +1,1 @@\n+one two\n");
    let done = scenario.event_data("agent.tool_completed");
    assert_eq!((&done[1]["output"], &done[1]["is_error"]), (&"ok\n".into(), &true.into()));
    assert_eq!(done[1]["exit"], serde_json::json!({"kind": "exited", "code": 3}));
    assert_eq!(scenario.event_data("agent.completed")[0], serde_json::json!({"turn": 1, "stop_reason": "end_turn"}));
    scenario.wait_for_acks(1).await;
    scenario.link.with_row(scenario.sandbox, |row| {
        assert_eq!(
            row.acks.iter().map(|(_, how, turn)| (*how, *turn)).collect::<Vec<_>>(),
            [(DeliveryMethod::NewTurn, Some(1))]
        );
        assert_eq!(row.heartbeats[0].1, Activity::Starting);
    });
    let mut file = scenario
        .fake
        .download(&scenario.id, &Transfer::file("/workspace/src/a.txt"), ReadScope::WholeSandbox)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(file.data.next().await.unwrap().unwrap(), "one two\n");
    scenario.link.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn prose_is_echoed_and_noted() {
    let scenario = Scenario::new("please fix\nthe parser").await;
    scenario.wait_for_event("agent.waiting").await;
    assert!(scenario.event_data("agent.message")[0]["text"].as_str().unwrap().ends_with("please fix\nthe parser"));
    scenario.link.send_message(scenario.sandbox, "and the lexer", Delivery::Steer);
    scenario.wait_for_events("agent.waiting", 2).await;
    let edits = scenario.event_data("agent.file_edited");
    assert_eq!((&edits[0]["file_path"], &edits[0]["change_type"]), (&"NOTES.md".into(), &"created".into()));
    assert_eq!((&edits[2]["change_type"], &edits[2]["lines_added"]), (&"modified".into(), &1.into()));
    assert_eq!((edits.len(), &edits[1]["turn"], &edits[2]["turn"]), (4, &1.into(), &2.into()));
    let messages = scenario.event_data("agent.message");
    assert_eq!(messages[1]["text"], "I wrote NOTES.md, and ran `ls -l`, which went well.");
}

#[tokio::test(start_paused = true)]
async fn a_loop_repeats_one_tool_call() {
    let scenario = Scenario::new("loop 3").await;
    scenario.wait_for_event("agent.completed").await;
    let calls = scenario.event_data("agent.tool_use");
    assert_eq!(calls.len(), 3);
    assert!(calls.iter().all(|call| call["input"] == calls[0]["input"]));
}

#[tokio::test(start_paused = true)]
async fn a_steering_message_runs_during_a_wait() {
    let began = Instant::now();
    let scenario = Scenario::new("wait 8\nsay end").await;
    scenario.wait_for_event("agent.started").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    scenario.link.send_message(scenario.sandbox, "say one", Delivery::Steer);
    scenario.link.send_message(scenario.sandbox, "say two", Delivery::Steer);
    scenario.wait_for_events("agent.message", 2).await;
    assert!(began.elapsed() < Duration::from_secs(3));
    scenario.wait_for_event("agent.waiting").await;
    assert!((8.0..9.0).contains(&began.elapsed().as_secs_f64()));
    let texts: Vec<_> = scenario.event_data("agent.message").iter().map(|data| data["text"].clone()).collect();
    assert_eq!(texts, ["one", "two", "end"]);
    assert_eq!(scenario.event_data("agent.message_injected").len(), 2);
    let hows = scenario
        .link
        .with_row(scenario.sandbox, |row| row.acks.iter().map(|(_, how, turn)| (*how, *turn)).collect::<Vec<_>>());
    assert_eq!(
        hows,
        [(DeliveryMethod::NewTurn, Some(1)), (DeliveryMethod::Injected, Some(1)), (DeliveryMethod::Injected, Some(1))]
    );
    scenario.link.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn a_queued_message_waits_for_the_end_of_the_turn() {
    let scenario = Scenario::new("wait 50\nsay one").await;
    scenario.wait_for_event("agent.started").await;
    scenario.link.send_message(scenario.sandbox, "say two", Delivery::Queue);
    scenario.wait_for_events("agent.completed", 2).await;
    let turns: Vec<_> =
        scenario.link.stored_events(scenario.sandbox).iter().map(|event| event["turn"].clone()).collect();
    assert_eq!(turns[..6], [1, 1, 1, 2, 2, 2], "{:?}", scenario.event_types());
    scenario.wait_for_acks(2).await;
    scenario.link.with_row(scenario.sandbox, |row| {
        assert_eq!((row.acks[1].1, row.acks[1].2), (DeliveryMethod::NewTurn, Some(2)))
    });
    // The message was leased during the turn, so no `waiting` event comes between the turns.
    assert_eq!(scenario.event_types()[2..4], ["agent.completed", "agent.started"]);
    scenario.link.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_ends_a_wait_or_a_command_at_once() {
    for prompt in ["wait 500\nsay never", "run sleep 500\nsay never", "ask may I?\nsay never"] {
        let scenario = Scenario::new(prompt).await;
        scenario.wait_for_event("agent.started").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let began = Instant::now();
        let id = scenario.link.send_interrupt(scenario.sandbox);
        scenario.wait_for_event("agent.waiting").await;
        assert!(began.elapsed() < Duration::from_secs(1), "{prompt}");
        let types = scenario.event_types();
        assert!(types.ends_with(&["agent.interrupted".into(), "agent.waiting".into()]), "{types:?}");
        assert!(!types.contains(&"agent.completed".into()) && !types.contains(&"agent.message".into()));
        assert_eq!(types.contains(&"approval.resolved".into()), prompt.starts_with("ask"));
        scenario.wait_for_acks(2).await;
        scenario
            .link
            .with_row(scenario.sandbox, |row| assert_eq!(row.acks[1], (id, DeliveryMethod::Injected, Some(1))));
        // The next message starts a turn; an interrupt before it has no effect.
        scenario.link.send_interrupt(scenario.sandbox);
        scenario.link.send_message(scenario.sandbox, "say again", Delivery::Steer);
        scenario.wait_for_event("agent.completed").await;
        assert_eq!(scenario.event_data("agent.completed")[0]["turn"], 2);
        assert_eq!(scenario.event_data("agent.interrupted").len(), 1);
        scenario.link.assert_no_violations();
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_waits_only_for_its_answer() {
    for (answer, decision, reason) in [("approve", "allow", None), ("deny too risky", "deny", Some("too risky"))] {
        let scenario = Scenario::new("ask may I push?\nsay done").await;
        scenario.wait_for_event("approval.requested").await;
        scenario.link.send_message(scenario.sandbox, "say are you there", Delivery::Steer);
        tokio::time::sleep(Duration::from_secs(u64::from(HEARTBEAT_SECONDS) * 3)).await;
        assert_eq!(scenario.event_types().last().unwrap(), "approval.requested", "it does nothing without an answer");
        let activity = scenario.link.with_row(scenario.sandbox, |row| row.heartbeats.last().unwrap().1);
        assert_eq!(activity, Activity::WaitingApproval);
        scenario.link.send_message(scenario.sandbox, answer, Delivery::Steer);
        scenario.wait_for_event("agent.waiting").await;
        let (requested, answered) =
            (&scenario.event_data("approval.requested")[0], &scenario.event_data("approval.resolved")[0]);
        assert_eq!(requested["approval_id"], answered["approval_id"]);
        assert_eq!((&answered["decision"], answered["reason"].as_str()), (&decision.into(), reason));
        let texts: Vec<_> = scenario.event_data("agent.message").iter().map(|data| data["text"].clone()).collect();
        assert_eq!(texts.len(), 2, "{texts:?}");
        scenario.link.assert_no_violations();
    }
}

#[tokio::test(start_paused = true)]
async fn a_delivered_message_is_not_delivered_again() {
    let scenario = Scenario::new("say once").await;
    scenario.wait_for_event("agent.waiting").await;
    scenario.link.lease_again(scenario.sandbox, "say once");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(scenario.event_data("agent.message").len(), 1);
    scenario.link.with_row(scenario.sandbox, |row| {
        assert_eq!((row.acks.len(), row.acks[0]), (2, row.acks[1]), "acknowledges the new lease");
    });
}

#[tokio::test(start_paused = true)]
async fn without_a_prompt_it_waits_for_its_first_message() {
    let scenario = Scenario::new("").await;
    scenario.wait_for_event("agent.waiting").await;
    assert_eq!(scenario.event_types(), ["agent.waiting"]);
    scenario.link.send_message(scenario.sandbox, "say hi", Delivery::Queue);
    scenario.wait_for_events("agent.waiting", 2).await;
    assert_eq!(scenario.event_data("agent.started")[0]["turn"], 1);
}
