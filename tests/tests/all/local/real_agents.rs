//! The real agent programs, each in a sandbox without network access except for scripted models. The requests to the
//! model prove what reached the agent.

mod agent_fixture;
mod agent_logins;
mod agent_sessions;
mod agent_settings;
mod branch_workflow;
mod delegated_worktrees;
mod model_keys;
mod on_a_terminal;
mod projects;

pub use agent_fixture::AgentFixture;
use agent_fixture::REAL_API_KEY;
use atoll_core::model::ModelApi;
use atoll_test_wait::poll_until;
use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{agent_messages, assert_tool_calls_are_paired, event_data, host_state, report_skipped};
use serde_json::{Value, json};

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
      - run: echo same
      - run: echo same
      - run: echo same
      - run: sleep 1; echo slept again
      - say: I do something else.
  - name: refused
    steps:
      - fail: {status: 401, message: invalid x-api-key, times: 1000}
  - name: slow
    steps:
      - run: echo before > before.txt
      - run: tail -f /dev/null
  - name: eat
    steps:
      - run: echo before > before.txt
      # Makes the agent's own program the first choice of the OOM killer.
      - write:
          file: eat.sh
          content: |
            for d in /proc/[0-9]*; do case $(readlink $d/exe) in */agents/*) echo 1000 > $d/oom_score_adj;; esac; done
            for i in 1 2 3 4 5 6; do tail /dev/zero & done
            wait
            tail -f /dev/null
      - run: sh eat.sh
      - say: This is never said.
  - name: delegate
    steps:
      # Claude Code runs subagents in the background and continues by itself when they have ended.
      - use: {tool: Task, input: {description: count files, prompt: "go #script:helper", subagent_type: general-purpose}}
      - say: I wait for the helper.
      - end
      - expect: {text: HELPER-REPORT, new: true}
      - use: {tool: Skill, input: {skill: greeting}}
      - expect: {text: SKILL-TEXT, new: true}
      - say: Both helped.
  - name: helper
    steps:
      - run: sleep 1; echo helped > helped.txt
      - say: "HELPER-REPORT: one file."
"#;

/// Defines these tests for each agent; the variations with an attribute that can leave them out.
macro_rules! test_each_agent {
    (#[$variation:meta] $($agent:ident),+) => {
        $(mod $agent {
            const AGENT: &str = stringify!($agent);

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn completes_a_task_with_write_edit_and_run() {
                super::completes_work(AGENT).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn receives_a_message_while_a_tool_runs() {
                super::is_steered(AGENT).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[$variation]
            async fn stops_at_an_interrupt_and_handles_the_next_message() {
                super::is_interrupted(AGENT).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[$variation]
            async fn waits_for_a_decision_on_an_approval() {
                super::waits_for_approval(AGENT).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[$variation]
            async fn applies_its_settings() {
                super::agent_settings::follows_settings(AGENT).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[$variation]
            async fn offers_only_the_listed_tools() {
                super::agent_settings::offers_listed_tools(AGENT).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[$variation]
            async fn ends_its_turn_when_its_key_is_refused() {
                super::model_keys::ends_with_a_refused_key(AGENT).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[$variation]
            async fn its_crash_is_reported_and_its_files_stay() {
                super::reports_death(AGENT).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[$variation]
            async fn its_out_of_memory_kill_is_reported_and_its_files_stay() {
                super::reports_out_of_memory(AGENT).await;
            }
        })+
    };
}

test_each_agent!(
    #[cfg(all())]
    claude,
    codex
);
// These agents take many seconds of CPU time to start.
test_each_agent!(
    #[cfg_attr(not(feature = "soak"), ignore = "`make soak` runs it")]
    opencode,
    gemini
);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn codex_reads_a_login_that_it_cannot_renew() {
    agent_logins::reads_login("codex").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(not(feature = "soak"), ignore = "`make soak` runs it")]
async fn opencode_reads_a_login_that_it_cannot_renew() {
    agent_logins::reads_login("opencode").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_with_its_own_login_does_not_use_the_gateway() {
    agent_logins::prefers_login_to_gateway().await;
}

const SKILL: &str = "---\nname: greeting\ndescription: How to greet people in this repository\n---\n\
                     SKILL-TEXT: greet people by their first name.\n";

/// The turn, and with it the sandbox, lasts until the subagent and the work after it have ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claude_uses_a_subagent_and_a_skill() {
    let Some(fixture) = AgentFixture::start("claude", "a subagent and a skill", SCRIPTS).await else { return };
    let repository = SampleRepository::create();
    std::fs::create_dir_all(repository.path().join(".claude/skills/greeting")).unwrap();
    repository.write(".claude/skills/greeting/SKILL.md", SKILL);
    repository.run_git(&["add", "--all"]);
    repository.run_git(&["commit", "--quiet", "--message", "Add a skill"]);
    let settings = json!({ "approvals": "full", "repo": { "path": repository.path_str() } });
    let id = fixture.create_sandbox("go #script:delegate", settings).await;
    let row = fixture.server.wait_until_ended(&id).await;
    assert_eq!(row["state"], "completed", "{row}");
    let problems: Vec<_> = fixture.model.requests().iter().filter_map(|request| request.problem.clone()).collect();
    assert!(problems.is_empty(), "{problems:?}");
    let events = fixture.server.admin.all_events(&id).await;
    assert_tool_calls_are_paired(&events);
    let messages = agent_messages(&events);
    assert_eq!(messages.last().map(String::as_str), Some("Both helped."), "{messages:?}");
    let [invoked] = event_data(&events, "agent.subagent_invoked")[..] else { panic!("{events:#?}") };
    let task = &invoked["tool_use_id"];
    assert_eq!(invoked["description"], "count files");
    let [completed] = event_data(&events, "agent.subagent_completed")[..] else { panic!("{events:#?}") };
    assert_eq!((&completed["tool_use_id"], &completed["is_error"]), (task, &json!(false)));
    assert!(completed["output"].as_str().unwrap().contains("HELPER-REPORT"), "{completed}");
    let of_helper = |data: &&&Value| data["parent_tool_use_id"] == *task;
    assert_eq!(event_data(&events, "agent.tool_use").iter().filter(of_helper).count(), 1);
    assert_eq!(event_data(&events, "agent.message").iter().filter(of_helper).count(), 1);
    assert_eq!(event_data(&events, "agent.skill_invoked")[0]["skill"], "greeting");
    assert_eq!(event_data(&events, "agent.skill_completed").len(), 1);
    assert_eq!(event_data(&events, "agent.completed").len(), 1, "it is one turn: {events:#?}");
    assert!(event_data(&events, "agent.unparsed").is_empty());
    let branch = event_data(&events, "git.branch_created")[0]["branch"].as_str().unwrap();
    assert_eq!(
        repository.file_at(branch, "helped.txt").as_deref(),
        Some("helped\n"),
        "the subagent's work is exported"
    );
    fixture.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opencode_uses_the_gemini_key_that_is_present() {
    model_keys::uses_the_only_key(ModelApi::Gemini, ":streamGenerateContent").await;
}

// OpenCode's other tests use this key beside others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(not(feature = "soak"), ignore = "`make soak` runs it")]
async fn opencode_uses_the_anthropic_key_that_is_present() {
    model_keys::uses_the_only_key(ModelApi::Anthropic, "/v1/messages").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(not(feature = "soak"), ignore = "`make soak` runs it")]
async fn opencode_uses_the_openai_key_that_is_present() {
    model_keys::uses_the_only_key(ModelApi::OpenAi, "/v1/responses").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claude_works_until_the_checks_pass() {
    agent_settings::works_until_checks_pass("claude").await;
}

async fn completes_work(agent: &str) {
    let Some(fixture) = AgentFixture::start(agent, "an agent's whole work", SCRIPTS).await else { return };
    let id = fixture.create_sandbox("do it #script:work", json!({ "approvals": "full", "end": "keep" })).await;
    let row = fixture.wait_until_idle(&id).await;
    assert_eq!(row["state"], "running", "{row}");
    let files = fixture.server.run_shell(&id, "cat notes.txt ran.txt").await.expect_success();
    assert_eq!(files, "goodbye\nworld\nran\n");
    let events = fixture.server.admin.all_events(&id).await;
    for kind in ["agent.started", "agent.tool_use", "agent.tool_completed", "agent.usage", "agent.completed"] {
        assert!(!event_data(&events, kind).is_empty(), "{agent} sends no {kind}: {events:#?}");
    }
    assert_tool_calls_are_paired(&events);
    assert!(agent_messages(&events).iter().any(|text| text.contains("All is done")), "{:?}", agent_messages(&events));
    let edited: Vec<&Value> = event_data(&events, "agent.file_edited");
    // The watcher may report a file before its writer is done, and then once more.
    let count_created =
        |file| edited.iter().filter(|it| it["file_path"] == file && it["change_type"] == "created").count();
    assert_eq!((count_created("notes.txt"), count_created("ran.txt")), (1, 1), "{edited:#?}");
    for event in events.iter().filter(|event| event["source"] == "agent" && event["type"] != "agent.waiting") {
        assert_eq!(event["turn"], 1, "{event}");
    }
    assert!(event_data(&events, "agent.unparsed").is_empty(), "{:#?}", event_data(&events, "agent.unparsed"));
    model_keys::assert_cost_is_known(&fixture, &id).await;
    fixture.assert_key_stays_outside(&id).await;
    fixture.assert_key_is_not_stored(&id, "goodbye\nworld\n").await;
    fixture.stop_and_check().await;
}

async fn is_steered(agent: &str) {
    let Some(fixture) = AgentFixture::start(agent, "steering", SCRIPTS).await else { return };
    let id = fixture.create_sandbox("go #script:steer", json!({ "approvals": "full", "end": "keep" })).await;
    fixture.server.wait_for_event(&id, |event| event["type"] == "agent.tool_use").await;
    let message = fixture.server.send_message(&id, json!({ "content": "MIND-THE-GAP please" })).await;
    let row = fixture.wait_until_idle(&id).await;
    assert_eq!(row["state"], "running", "{row}");
    let delivered = fixture.server.wait_until_acknowledged(&id, &message).await;
    assert_eq!(delivered["state"], "acknowledged", "{delivered}");
    let requests = fixture.model.requests();
    let problems: Vec<_> = requests.iter().filter_map(|request| request.problem.clone()).collect();
    let has_message =
        |request: &&std::sync::Arc<atoll_model_script::RecordedRequest>| request.body_contains("MIND-THE-GAP");
    let first = requests.iter().find(has_message).unwrap_or_else(|| panic!("{agent} did not receive it: {delivered}"));
    if fixture.can_steer_in_turn() {
        assert_eq!((&delivered["how"], &delivered["turn"]), (&json!("injected"), &json!(1)), "{delivered}");
        assert!(problems.is_empty(), "{problems:?}");
        assert!(first.body_contains("slept"), "the message must come with the result of the running tool");
        assert_eq!(fixture.server.run_shell(&id, "cat after.txt").await.expect_success(), "after\n");
    }
    let has_it_twice = |request: &std::sync::Arc<atoll_model_script::RecordedRequest>| {
        request.body.to_string().matches("MIND-THE-GAP").count() > 1
    };
    assert!(!requests.iter().any(has_it_twice), "the agent received it twice");
    fixture.stop_and_check().await;
}

async fn is_interrupted(agent: &str) {
    let Some(fixture) = AgentFixture::start(agent, "an interrupt", SCRIPTS).await else { return };
    let id = fixture.create_sandbox("go #script:interrupt", json!({ "approvals": "full", "end": "keep" })).await;
    fixture.server.wait_for_event(&id, |event| event["type"] == "agent.tool_use").await;
    let is_running = async || {
        let command = fixture.server.run_shell(&id, "grep -qx tail /proc/[0-9]*/comm 2>/dev/null").await;
        command.exit_code() == Some(0)
    };
    poll_until("the agent's command", is_running).await;
    let stop = fixture.server.send_message(&id, json!({ "content": "stop", "type": "interrupt" })).await;
    fixture.server.wait_for_event(&id, |event| event["type"] == "agent.interrupted").await;
    if agent != "gemini" {
        fixture.server.wait_for_event(&id, |event| event["type"] == "agent.transcript").await;
    }
    let delivered = fixture.server.wait_until_acknowledged(&id, &stop).await;
    assert_eq!(delivered["state"], "acknowledged", "{delivered}");
    // Codex leaves its commands running, so that it can inspect them in its next turn.
    let wait_for_exit =
        "for i in $(seq 100); do grep -qx tail /proc/[0-9]*/comm 2>/dev/null || exit 0; sleep 0.1; done; exit 1";
    if agent != "codex" {
        assert_eq!(
            fixture.server.run_shell(&id, wait_for_exit).await.exit_code(),
            Some(0),
            "the command must end with the turn"
        );
    }
    let next = fixture.server.send_message(&id, json!({ "content": "go on #script:again" })).await;
    let delivered = fixture.server.wait_until_acknowledged(&id, &next).await;
    assert_eq!((&delivered["state"], &delivered["turn"]), (&json!("acknowledged"), &json!(2)), "{delivered}");
    fixture.server.wait_for_event(&id, |event| event["type"] == "agent.completed" && event["turn"] == 2).await;
    let events = fixture.server.admin.all_events(&id).await;
    assert!(agent_messages(&events).iter().any(|text| text.contains("I went on")), "{:?}", agent_messages(&events));
    fixture.stop_and_check().await;
}

async fn waits_for_approval(agent: &str) {
    let Some(fixture) = AgentFixture::start(agent, "approvals", SCRIPTS).await else { return };
    let id = fixture.create_sandbox("go #script:ask", json!({ "approvals": "ask", "end": "keep" })).await;
    for (decision, file) in [("allow", "allowed.txt"), ("deny", "denied.txt")] {
        let approval = fixture.wait_for_approval(&id).await;
        assert!(approval["request"].to_string().contains(file), "{approval}");
        assert_eq!(fixture.server.get_sandbox(&id).await["activity"], "waiting_approval");
        let path = format!("/sandboxes/{id}/approvals/{}", approval["approval_id"].as_str().unwrap());
        let hash = &approval["request"]["sha256"];
        let decided = json!({ "decision": decision, "reason": "because I say so", "sha256": hash });
        fixture.server.admin.post(&path, decided).await.expect_status(200);
        let resolved = fixture.server.wait_for_event(&id, |event| {
            event["type"] == "approval.resolved" && event["data"]["approval_id"] == approval["approval_id"]
        });
        assert_eq!(resolved.await["data"]["decision"], decision);
    }
    fixture.wait_until_idle(&id).await;
    let files = fixture.server.run_shell(&id, "ls *.txt").await.expect_success();
    assert_eq!(files, "allowed.txt\n");
    fixture.stop_and_check().await;
}

async fn reports_death(agent: &str) {
    let Some(fixture) = AgentFixture::start(agent, "an agent's death", SCRIPTS).await else { return };
    let id = fixture.create_sandbox("go #script:slow", json!({ "approvals": "full", "end": "keep" })).await;
    let is_long_command =
        |event: &Value| event["type"] == "agent.tool_use" && event["data"].to_string().contains("tail -f");
    fixture.server.wait_for_event(&id, is_long_command).await;
    fixture.kill_agent(&id).await;
    let row = fixture.server.wait_until_ended(&id).await;
    assert_eq!((&row["state"], &row["outcome"]), (&json!("failed"), &json!("failed")), "{row}");
    let events = fixture.server.admin.all_events(&id).await;
    let failed = event_data(&events, "agent.failed");
    assert_eq!(failed.len(), 1, "{events:#?}");
    assert!(failed[0].to_string().contains("signal"), "{failed:?}");
    let workspace = fixture.server.workspace_dir(&id);
    assert_eq!(std::fs::read_to_string(workspace.join("before.txt")).unwrap(), "before\n");
    assert!(fixture.model.requests().iter().all(|request| !request.body.to_string().contains(REAL_API_KEY)));
    fixture.stop_and_check().await;
}

/// The model receives the rule's reason, and the denied call does not run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claude_receives_the_reason_of_a_denied_tool_call() {
    let Some(fixture) = AgentFixture::start("claude", "rules before a tool", SCRIPTS).await else { return };
    let settings = json!({
        "approvals": "full", "end": "keep", "protected": ["Cargo.lock"],
        "policy": { "rules": [{ "commands": ["git push"], "then": "deny", "reason": "pushing is not yours to do" }] },
    });
    let id = fixture.create_sandbox("go #script:rules", settings).await;
    let row = fixture.wait_until_idle(&id).await;
    assert_eq!(row["state"], "running", "{row}");
    let requests = fixture.model.requests();
    let problems: Vec<_> = requests.iter().filter_map(|request| request.problem.clone()).collect();
    assert!(problems.is_empty(), "{problems:?}");
    assert!(requests.iter().any(|request| request.body_contains("pushing is not yours to do")));
    let events = fixture.server.admin.all_events(&id).await;
    let denied = event_data(&events, "guardian.denied");
    let rules: Vec<&Value> = denied.iter().map(|data| &data["rule"]).collect();
    assert_eq!(rules, ["protected", "rules[0]"], "{denied:#?}");
    assert_eq!(event_data(&events, "guardian.detected")[0]["detector"], "protected_path");
    assert_eq!(
        fixture.server.run_shell(&id, "cat fine.txt; test -s Cargo.lock || echo none").await.expect_success(),
        "fine\nnone\n"
    );
    fixture.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claude_receives_a_nudge_when_it_repeats_a_call() {
    let Some(fixture) = AgentFixture::start("claude", "the guardian's word", SCRIPTS).await else { return };
    let settings = json!({ "approvals": "full", "end": "keep", "guardian": { "act": "nudge", "repeats": 3 } });
    let id = fixture.create_sandbox("go #script:loop", settings).await;
    let row = fixture.wait_until_idle(&id).await;
    assert_eq!(row["state"], "running", "{row}");
    let requests = fixture.model.requests();
    let problems: Vec<_> = requests.iter().filter_map(|request| request.problem.clone()).collect();
    assert!(problems.is_empty(), "{problems:?}");
    let events = fixture.server.admin.all_events(&id).await;
    let detected = event_data(&events, "guardian.detected");
    let found: Vec<_> = detected.iter().map(|data| (&data["detector"], &data["times"], &data["action"])).collect();
    // The agent continues after the nudge, so the guardian does not repeat it but asks for a person.
    let call = json!("repeated_call");
    assert_eq!(found, [(&call, &json!(3), &json!("nudge")), (&call, &json!(6), &json!("escalate"))]);
    let queued = event_data(&events, "message.queued");
    assert_eq!(queued.iter().filter(|data| data["type"] == "guardian_nudge").count(), 1, "{queued:#?}");
    assert!(
        agent_messages(&events).iter().any(|text| text.contains("I do something else")),
        "{:?}",
        agent_messages(&events)
    );
    fixture.stop_and_check().await;
}

/// A tool uses all memory of the sandbox, and the kernel kills the agent.
async fn reports_out_of_memory(agent: &str) {
    let Some(fixture) = AgentFixture::start(agent, "an agent's death by memory", SCRIPTS).await else {
        return;
    };
    let settings = json!({ "approvals": "full", "end": "keep", "resources": { "memory_gb": 1 } });
    let id = fixture.create_sandbox("go #script:eat", settings).await;
    fixture.server.wait_for_event(&id, |event| event["type"] == "agent.tool_use").await;
    if !host_state::has_memory_limit(&id) {
        report_skipped(&format!("{agent}'s death by memory"), "nothing here enforces a memory limit");
        return fixture.stop_and_check().await;
    }
    let row = fixture.server.wait_until_ended(&id).await;
    assert_eq!((&row["state"], &row["reason"]["code"]), (&json!("failed"), &json!("out_of_memory")), "{row}");
    let events = fixture.server.admin.all_events(&id).await;
    let failed = event_data(&events, "agent.failed");
    assert_eq!(failed.len(), 1, "{events:#?}");
    assert_eq!(failed[0]["exit"], json!({ "kind": "out_of_memory" }), "{failed:?}");
    let (limit, peak) = (failed[0]["memory_limit"].as_u64().unwrap(), failed[0]["memory_peak"].as_u64().unwrap());
    assert!(limit.abs_diff(1 << 30) < 1 << 24 && peak > limit / 2, "{failed:?}");
    let workspace = fixture.server.workspace_dir(&id);
    assert_eq!(std::fs::read_to_string(workspace.join("before.txt")).unwrap(), "before\n");
    fixture.stop_and_check().await;
}
