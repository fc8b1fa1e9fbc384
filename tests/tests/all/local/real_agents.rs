//! The real agent programs, each in a real sandbox whose network lets nothing out but to the models, which play a
//! script. What the model was asked is the proof: a message that is said to have reached the agent is in there.

mod logins;
mod sessions;
mod settings;
mod stage;

use atoll_tests::local::{assert_belongs_together, said, skipped, told, traces};
use serde_json::{Value, json};
use stage::{KEY, Stage};
use std::time::Duration;

const SCRIPTS: &str = r#"
scripts:
  - name: work
    steps:
      - say: I make a file.
      - write: {file: notes.txt, content: "hello\nworld\n"}
      - edit: {file: notes.txt, old: hello, new: goodbye}
      - usage: {input: 1200, output: 50, cache_read: 700}
      - run: cat notes.txt && echo ran > ran.txt
      - expect: {text: goodbye, new: true}
      - say: All is done.
  - name: steer
    steps:
      - run: sleep 3; echo slept
      - expect: {text: MIND-THE-GAP, new: true}
      - run: echo after > after.txt
      - say: I minded it.
  - name: interrupt
    steps:
      - run: tail -f /dev/null
      - say: This is never said.
  - name: again
    steps:
      - say: I went on.
  - name: ask
    steps:
      - run: echo allowed > allowed.txt
      - run: echo denied > denied.txt
      - say: I asked.
  - name: rules
    steps:
      - write: {file: Cargo.lock, content: "mine\n"}
      - expect: {text: "`Cargo.lock` is protected", new: true}
      - run: git push origin main
      - expect: {text: pushing is not yours to do, new: true}
      - run: echo fine > fine.txt
      - say: I kept to the rules.
  - name: loop
    steps:
      - run: echo same
      - run: echo same
      - run: echo same
      - run: sleep 3; echo slept
      - expect: {text: "Atoll's guardian: you have called"}
      - say: I do something else.
  - name: slow
    steps:
      - run: echo before > before.txt
      - run: tail -f /dev/null
  - name: eat
    steps:
      - run: echo before > before.txt
      # Of all that could be killed for it, the agent's own program is made the first.
      - write:
          file: eat.sh
          content: |
            for d in /proc/[0-9]*; do case $(readlink $d/exe) in */agents/*) echo 1000 > $d/oom_score_adj;; esac; done
            for i in 1 2 3 4 5 6; do tail /dev/zero & done
            wait
            tail -f /dev/null
      - run: sh eat.sh
      - say: This is never said.
"#;

/// Each of these with each of the agents.
macro_rules! with_each {
    ($($agent:ident),+) => {
        $(mod $agent {
            const AGENT: &str = stringify!($agent);

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn writes_edits_runs_and_finishes() {
                super::works(AGENT).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn hears_what_is_said_while_a_tool_runs() {
                super::is_steered(AGENT).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn is_interrupted_and_goes_on_with_the_next_message() {
                super::is_interrupted(AGENT).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn waits_for_a_person_s_word() {
                super::asks(AGENT).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn follows_its_settings() {
                super::settings::are_followed(AGENT).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn has_the_listed_tools() {
                super::settings::have_the_listed_tools(AGENT).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn its_death_is_told_and_its_work_stays() {
                super::dies(AGENT).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn its_death_by_memory_is_told_as_that_and_its_work_stays() {
                super::starves(AGENT).await;
            }
        })+
    };
}

with_each!(claude, codex, opencode, gemini);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn codex_reads_a_login_that_it_can_t_renew() {
    logins::are_read("codex").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opencode_reads_a_login_that_it_can_t_renew() {
    logins::are_read("opencode").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_with_a_login_of_its_own_is_not_sent_to_the_gateway() {
    logins::go_before_the_gateway().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claude_works_until_the_check_passes() {
    settings::are_checked("claude").await;
}

async fn works(agent: &str) {
    let Some(stage) = Stage::set(agent, "an agent's whole work", SCRIPTS).await else { return };
    let id = stage.make("do it #script:work", json!({ "approvals": "full", "end": "keep" })).await;
    let row = stage.rests(&id).await;
    assert_eq!(row["state"], "running", "{row}");
    let files = stage.ground.shell(&id, "cat notes.txt ran.txt").await.well();
    assert_eq!(files, "goodbye\nworld\nran\n");
    let events = stage.ground.admin.all_events(&id).await;
    for kind in ["agent.started", "agent.tool_use", "agent.tool_completed", "agent.usage", "agent.completed"] {
        assert!(!told(&events, kind).is_empty(), "{agent} tells no {kind}: {events:#?}");
    }
    assert_belongs_together(&events);
    assert!(said(&events).iter().any(|text| text.contains("All is done")), "{:?}", said(&events));
    let edited: Vec<&Value> = told(&events, "agent.file_edited");
    let of = |file: &str| edited.iter().filter(|data| data["file_path"] == file).count();
    assert!(of("notes.txt") >= 1 && of("ran.txt") == 1, "{edited:#?}");
    for event in events.iter().filter(|event| event["source"] == "agent" && event["type"] != "agent.waiting") {
        assert_eq!(event["turn"], 1, "{event}");
    }
    assert!(told(&events, "agent.unparsed").is_empty(), "{:#?}", told(&events, "agent.unparsed"));
    stage.key_is_outside(&id).await;
    stage.key_is_not_kept(&id, "goodbye\nworld\n").await;
    stage.leave().await;
}

async fn is_steered(agent: &str) {
    let Some(stage) = Stage::set(agent, "steering", SCRIPTS).await else { return };
    let id = stage.make("go #script:steer", json!({ "approvals": "full", "end": "keep" })).await;
    stage.ground.event(&id, |event| event["type"] == "agent.tool_use").await;
    let message = stage.ground.send(&id, json!({ "content": "MIND-THE-GAP please" })).await;
    let row = stage.rests(&id).await;
    assert_eq!(row["state"], "running", "{row}");
    let delivered = stage.ground.delivered(&id, &message).await;
    assert_eq!(delivered["state"], "acknowledged", "{delivered}");
    let requests = stage.model.requests();
    let problems: Vec<_> = requests.iter().filter_map(|request| request.problem.clone()).collect();
    let has_it = |request: &&std::sync::Arc<atoll_model_script::Request>| request.mentions("MIND-THE-GAP");
    let first = requests.iter().find(has_it).unwrap_or_else(|| panic!("{agent} was not told: {delivered}"));
    if stage.steers_in_the_turn() {
        assert_eq!((&delivered["how"], &delivered["turn"]), (&json!("injected"), &json!(1)), "{delivered}");
        assert!(problems.is_empty(), "{problems:?}");
        assert!(first.mentions("slept"), "it came with the result of the tool that ran");
        assert_eq!(stage.ground.shell(&id, "cat after.txt").await.well(), "after\n");
    }
    let twice = |request: &std::sync::Arc<atoll_model_script::Request>| {
        request.body.to_string().matches("MIND-THE-GAP").count() > 1
    };
    assert!(!requests.iter().any(twice), "it was told twice");
    stage.leave().await;
}

async fn is_interrupted(agent: &str) {
    let Some(stage) = Stage::set(agent, "an interrupt", SCRIPTS).await else { return };
    let id = stage.make("go #script:interrupt", json!({ "approvals": "full", "end": "keep" })).await;
    stage.ground.event(&id, |event| event["type"] == "agent.tool_use").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let stop = stage.ground.send(&id, json!({ "content": "stop", "type": "interrupt" })).await;
    stage.ground.event(&id, |event| event["type"] == "agent.interrupted").await;
    if agent != "gemini" {
        stage.ground.event(&id, |event| event["type"] == "agent.transcript").await;
    }
    let delivered = stage.ground.delivered(&id, &stop).await;
    assert_eq!(delivered["state"], "acknowledged", "{delivered}");
    // Codex lets its commands go on, so that it can look at them in its next turn.
    let gone = "for i in $(seq 100); do grep -qx tail /proc/[0-9]*/comm 2>/dev/null || exit 0; sleep 0.1; done; exit 1";
    if agent != "codex" {
        assert_eq!(stage.ground.shell(&id, gone).await.code(), Some(0), "the command goes with the turn");
    }
    let next = stage.ground.send(&id, json!({ "content": "go on #script:again" })).await;
    let delivered = stage.ground.delivered(&id, &next).await;
    assert_eq!((&delivered["state"], &delivered["turn"]), (&json!("acknowledged"), &json!(2)), "{delivered}");
    stage.ground.event(&id, |event| event["type"] == "agent.completed" && event["turn"] == 2).await;
    let events = stage.ground.admin.all_events(&id).await;
    assert!(said(&events).iter().any(|text| text.contains("I went on")), "{:?}", said(&events));
    stage.leave().await;
}

async fn asks(agent: &str) {
    let Some(stage) = Stage::set(agent, "approvals", SCRIPTS).await else { return };
    let id = stage.make("go #script:ask", json!({ "approvals": "ask", "end": "keep" })).await;
    for (decision, file) in [("allow", "allowed.txt"), ("deny", "denied.txt")] {
        let approval = stage.asked(&id).await;
        assert!(approval["request"].to_string().contains(file), "{approval}");
        assert_eq!(stage.ground.row(&id).await["activity"], "waiting_approval");
        let path = format!("/sandboxes/{id}/approvals/{}", approval["approval_id"].as_str().unwrap());
        let word = json!({ "decision": decision, "reason": "because I say so" });
        stage.ground.admin.post(&path, word).await.expect(200);
        let resolved = stage.ground.event(&id, |event| {
            event["type"] == "approval.resolved" && event["data"]["approval_id"] == approval["approval_id"]
        });
        assert_eq!(resolved.await["data"]["decision"], decision);
    }
    stage.rests(&id).await;
    let files = stage.ground.shell(&id, "ls *.txt").await.well();
    assert_eq!(files, "allowed.txt\n");
    stage.leave().await;
}

async fn dies(agent: &str) {
    let Some(stage) = Stage::set(agent, "an agent's death", SCRIPTS).await else { return };
    let id = stage.make("go #script:slow", json!({ "approvals": "full", "end": "keep" })).await;
    let sleeps = |event: &Value| event["type"] == "agent.tool_use" && event["data"].to_string().contains("tail -f");
    stage.ground.event(&id, sleeps).await;
    stage.kill_agent(&id).await;
    let row = stage.ground.ended(&id).await;
    assert_eq!((&row["state"], &row["outcome"]), (&json!("failed"), &json!("failed")), "{row}");
    let events = stage.ground.admin.all_events(&id).await;
    let failed = told(&events, "agent.failed");
    assert_eq!(failed.len(), 1, "{events:#?}");
    assert!(failed[0].to_string().contains("signal"), "{failed:?}");
    let workspace = stage.ground.workspace_of(&id);
    assert_eq!(std::fs::read_to_string(workspace.join("before.txt")).unwrap(), "before\n");
    assert!(stage.model.requests().iter().all(|request| !request.body.to_string().contains(KEY)));
    stage.leave().await;
}

/// A rule's word is what the model hears next, and what it is about has not happened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claude_is_told_what_the_rules_deny() {
    let Some(stage) = Stage::set("claude", "rules before a tool", SCRIPTS).await else { return };
    let settings = json!({
        "approvals": "full", "end": "keep", "protected": ["Cargo.lock"],
        "policy": { "rules": [{ "commands": ["git push"], "then": "deny", "reason": "pushing is not yours to do" }] },
    });
    let id = stage.make("go #script:rules", settings).await;
    let row = stage.rests(&id).await;
    assert_eq!(row["state"], "running", "{row}");
    let requests = stage.model.requests();
    let problems: Vec<_> = requests.iter().filter_map(|request| request.problem.clone()).collect();
    assert!(problems.is_empty(), "{problems:?}");
    assert!(requests.iter().any(|request| request.mentions("pushing is not yours to do")));
    let events = stage.ground.admin.all_events(&id).await;
    let denied = told(&events, "guardian.denied");
    let rules: Vec<&Value> = denied.iter().map(|data| &data["rule"]).collect();
    assert_eq!(rules, ["protected", "rules[0]"], "{denied:#?}");
    assert_eq!(told(&events, "guardian.detected")[0]["detector"], "protected_path");
    assert_eq!(stage.ground.shell(&id, "cat fine.txt; test -s Cargo.lock || echo none").await.well(), "fine\nnone\n");
    stage.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claude_is_told_that_it_goes_in_circles() {
    let Some(stage) = Stage::set("claude", "the guardian's word", SCRIPTS).await else { return };
    let settings = json!({ "approvals": "full", "end": "keep", "guardian": { "act": "nudge", "repeats": 3 } });
    let id = stage.make("go #script:loop", settings).await;
    let row = stage.rests(&id).await;
    assert_eq!(row["state"], "running", "{row}");
    let requests = stage.model.requests();
    let problems: Vec<_> = requests.iter().filter_map(|request| request.problem.clone()).collect();
    assert!(problems.is_empty(), "{problems:?}");
    let events = stage.ground.admin.all_events(&id).await;
    let found = told(&events, "guardian.detected");
    assert_eq!((found.len(), &found[0]["detector"], &found[0]["times"]), (1, &json!("repeated_call"), &json!(3)));
    let queued = told(&events, "message.queued");
    assert_eq!(queued.iter().filter(|data| data["type"] == "guardian_nudge").count(), 1, "{queued:#?}");
    assert!(said(&events).iter().any(|text| text.contains("I do something else")), "{:?}", said(&events));
    stage.leave().await;
}

/// A tool eats all memory of the sandbox, and the kernel kills the agent itself for it.
async fn starves(agent: &str) {
    let Some(stage) = Stage::set(agent, "an agent's death by memory", SCRIPTS).await else { return };
    let settings = json!({ "approvals": "full", "end": "keep", "resources": { "memory_gb": 1 } });
    let id = stage.make("go #script:eat", settings).await;
    stage.ground.event(&id, |event| event["type"] == "agent.tool_use").await;
    if !traces::limits_memory(&id) {
        skipped(&format!("{agent}'s death by memory"), "nothing here enforces a memory limit");
        return stage.leave().await;
    }
    let row = stage.ground.ended(&id).await;
    assert_eq!((&row["state"], &row["reason"]["code"]), (&json!("failed"), &json!("out_of_memory")), "{row}");
    let events = stage.ground.admin.all_events(&id).await;
    let failed = told(&events, "agent.failed");
    assert_eq!(failed.len(), 1, "{events:#?}");
    assert_eq!(failed[0]["exit"], json!({ "kind": "out_of_memory" }), "{failed:?}");
    let (limit, peak) = (failed[0]["memory_limit"].as_u64().unwrap(), failed[0]["memory_peak"].as_u64().unwrap());
    assert!(limit.abs_diff(1 << 30) < 1 << 24 && peak > limit / 2, "{failed:?}");
    let workspace = stage.ground.workspace_of(&id);
    assert_eq!(std::fs::read_to_string(workspace.join("before.txt")).unwrap(), "before\n");
    stage.leave().await;
}
