//! What the fake's agent makes of its lines.

use super::Scene;
use super::recorder::INTERVAL_S;
use atoll_core::message::{Delivery, How};
use atoll_core::provider::{Provider, Transfer};
use atoll_core::sandbox::Activity;
use futures_util::StreamExt;
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn a_prompt_is_one_turn_told_as_events() {
    let scene = Scene::new("say hello\nedit src/a.txt one two\nrun echo ok; exit 3").await;
    scene.until("agent.waiting").await;
    assert_eq!(
        scene.types(),
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
    for (index, event) in scene.link.events(scene.sandbox).iter().enumerate() {
        assert_eq!((event["key"].as_i64(), event["turn"].as_i64()), (Some(index as i64 + 1), Some(1)), "{event}");
    }
    assert_eq!(scene.data("agent.message")[0]["text"], "hello");
    let edit = &scene.data("agent.file_edited")[0];
    assert_eq!((&edit["file_path"], &edit["change_type"]), (&"src/a.txt".into(), &"created".into()));
    assert_eq!((&edit["lines_added"], &edit["lines_removed"]), (&1.into(), &0.into()));
    assert_eq!(edit["full_diff"], "--- /dev/null\n+++ b/src/a.txt\n@@ -0,0 +1,1 @@\n+one two\n");
    let done = scene.data("agent.tool_completed");
    assert_eq!((&done[1]["output"], &done[1]["is_error"]), (&"ok\n".into(), &true.into()));
    assert_eq!(done[1]["exit"], serde_json::json!({"kind": "exited", "code": 3}));
    assert_eq!(scene.data("agent.completed")[0], serde_json::json!({"turn": 1, "stop_reason": "end_turn"}));
    scene.link.with(scene.sandbox, |row| {
        assert_eq!(row.acks.iter().map(|(_, how, turn)| (*how, *turn)).collect::<Vec<_>>(), [(How::NewTurn, Some(1))]);
        assert_eq!(row.heartbeats[0].1, Activity::Starting);
    });
    let mut file = scene.fake.download(&scene.id, &Transfer::file("/workspace/src/a.txt")).await.unwrap().unwrap();
    assert_eq!(file.data.next().await.unwrap().unwrap(), "one two\n");
    scene.link.assert_orderly();
}

#[tokio::test(start_paused = true)]
async fn prose_is_echoed_and_noted() {
    let scene = Scene::new("please fix\nthe parser").await;
    scene.until("agent.waiting").await;
    assert!(scene.data("agent.message")[0]["text"].as_str().unwrap().ends_with("please fix\nthe parser"));
    scene.link.send(scene.sandbox, "and the lexer", Delivery::Steer);
    scene.until_count("agent.waiting", 2).await;
    let edits = scene.data("agent.file_edited");
    assert_eq!((&edits[0]["file_path"], &edits[0]["change_type"]), (&"NOTES.md".into(), &"created".into()));
    assert_eq!((&edits[1]["change_type"], &edits[1]["lines_added"]), (&"modified".into(), &1.into()));
    assert_eq!(edits[1]["turn"], 2);
}

#[tokio::test(start_paused = true)]
async fn a_loop_is_the_same_call_again_and_again() {
    let scene = Scene::new("loop 3").await;
    scene.until("agent.completed").await;
    let calls = scene.data("agent.tool_use");
    assert_eq!(calls.len(), 3);
    assert!(calls.iter().all(|call| call["input"] == calls[0]["input"]));
}

#[tokio::test(start_paused = true)]
async fn a_steering_message_is_obeyed_during_a_wait_which_goes_on_after_it() {
    let began = Instant::now();
    let scene = Scene::new("wait 8\nsay end").await;
    scene.until("agent.started").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    scene.link.send(scene.sandbox, "say one", Delivery::Steer);
    scene.link.send(scene.sandbox, "say two", Delivery::Steer);
    scene.until_count("agent.message", 2).await;
    assert!(began.elapsed() < Duration::from_secs(3));
    scene.until("agent.waiting").await;
    assert!((8.0..9.0).contains(&began.elapsed().as_secs_f64()));
    let said: Vec<_> = scene.data("agent.message").iter().map(|data| data["text"].clone()).collect();
    assert_eq!(said, ["one", "two", "end"]);
    assert_eq!(scene.data("agent.message_injected").len(), 2);
    let hows =
        scene.link.with(scene.sandbox, |row| row.acks.iter().map(|(_, how, turn)| (*how, *turn)).collect::<Vec<_>>());
    assert_eq!(hows, [(How::NewTurn, Some(1)), (How::Injected, Some(1)), (How::Injected, Some(1))]);
    scene.link.assert_orderly();
}

#[tokio::test(start_paused = true)]
async fn a_queued_message_waits_for_the_end_of_the_turn() {
    let scene = Scene::new("wait 50\nsay one").await;
    scene.until("agent.started").await;
    scene.link.send(scene.sandbox, "say two", Delivery::Queue);
    scene.until_count("agent.completed", 2).await;
    let turns: Vec<_> = scene.link.events(scene.sandbox).iter().map(|event| event["turn"].clone()).collect();
    assert_eq!(turns[..6], [1, 1, 1, 2, 2, 2], "{:?}", scene.types());
    scene.link.with(scene.sandbox, |row| assert_eq!((row.acks[1].1, row.acks[1].2), (How::NewTurn, Some(2))));
    // It was leased while the turn ran, and no `waiting` came between the turns.
    assert_eq!(scene.types()[2..4], ["agent.completed", "agent.started"]);
    scene.link.assert_orderly();
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_ends_a_wait_and_a_command_at_once() {
    for prompt in ["wait 500\nsay never", "run sleep 500\nsay never", "ask may I?\nsay never"] {
        let scene = Scene::new(prompt).await;
        scene.until("agent.started").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let asked = Instant::now();
        let id = scene.link.interrupt(scene.sandbox);
        scene.until("agent.waiting").await;
        assert!(asked.elapsed() < Duration::from_secs(1), "{prompt}");
        let types = scene.types();
        assert!(types.ends_with(&["agent.interrupted".into(), "agent.waiting".into()]), "{types:?}");
        assert!(!types.contains(&"agent.completed".into()) && !types.contains(&"agent.message".into()));
        assert_eq!(types.contains(&"approval.resolved".into()), prompt.starts_with("ask"));
        scene.link.with(scene.sandbox, |row| assert_eq!(row.acks[1], (id, How::Injected, Some(1))));
        // The next message is a new turn; an interrupt before it has nothing to end.
        scene.link.interrupt(scene.sandbox);
        scene.link.send(scene.sandbox, "say again", Delivery::Steer);
        scene.until("agent.completed").await;
        assert_eq!(scene.data("agent.completed")[0]["turn"], 2);
        assert_eq!(scene.data("agent.interrupted").len(), 1);
        scene.link.assert_orderly();
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_waits_for_its_answer_and_for_nothing_else() {
    for (answer, decision, reason) in [("approve", "allow", None), ("deny too risky", "deny", Some("too risky"))] {
        let scene = Scene::new("ask may I push?\nsay done").await;
        scene.until("approval.requested").await;
        scene.link.send(scene.sandbox, "say are you there", Delivery::Steer);
        tokio::time::sleep(Duration::from_secs(u64::from(INTERVAL_S) * 3)).await;
        assert_eq!(scene.types().last().unwrap(), "approval.requested", "nothing is done without an answer");
        let activity = scene.link.with(scene.sandbox, |row| row.heartbeats.last().unwrap().1);
        assert_eq!(activity, Activity::WaitingApproval);
        scene.link.send(scene.sandbox, answer, Delivery::Steer);
        scene.until("agent.waiting").await;
        let (asked, answered) = (&scene.data("approval.requested")[0], &scene.data("approval.resolved")[0]);
        assert_eq!(asked["approval_id"], answered["approval_id"]);
        assert_eq!((&answered["decision"], answered["reason"].as_str()), (&decision.into(), reason));
        let said: Vec<_> = scene.data("agent.message").iter().map(|data| data["text"].clone()).collect();
        assert_eq!(said.len(), 2, "{said:?}");
        scene.link.assert_orderly();
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_told_once_is_not_told_again() {
    let scene = Scene::new("say once").await;
    scene.until("agent.waiting").await;
    scene.link.lease_again(scene.sandbox, "say once");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(scene.data("agent.message").len(), 1);
    scene.link.with(scene.sandbox, |row| {
        assert_eq!((row.acks.len(), row.acks[0]), (2, row.acks[1]), "the receipt is given for the new lease");
    });
}

#[tokio::test(start_paused = true)]
async fn without_a_prompt_it_waits_for_its_first_message() {
    let scene = Scene::new("").await;
    scene.until("agent.waiting").await;
    assert_eq!(scene.types(), ["agent.waiting"]);
    scene.link.send(scene.sandbox, "say hi", Delivery::Queue);
    scene.until_count("agent.waiting", 2).await;
    assert_eq!(scene.data("agent.started")[0]["turn"], 1);
}
