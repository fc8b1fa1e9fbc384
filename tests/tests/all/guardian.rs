//! The guardian: a worker reports what an agent does, and the guardian steers, escalates and records it.

use atoll_config::{Model, Upstream};
use atoll_core::model::{AuthScheme, ModelApi, Price};
use atoll_model_script::{ScriptedModel, Scripts};
use atoll_test_wait::poll_for;
use atoll_tests::actor::{Actor, ExternalSandbox};
use atoll_tests::database::DatabaseKind;
use atoll_tests::local::event_data;
use atoll_tests::manual_worker::{ManualWorker, build_event};
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use serde_json::{Value, json};
use std::time::Duration;

on_both_databases!(
    an_agent_that_loops_is_steered_step_by_step,
    a_project_that_allows_nothing_only_gets_findings,
    bad_responses_of_the_judge_are_dropped_counted_and_paid
);

/// An agent of which the test decides every step.
struct ScriptedAgent {
    admin: Actor,
    worker: ManualWorker,
    sandbox: ExternalSandbox,
}

impl ScriptedAgent {
    async fn start(server: &TestServer, settings: Value) -> Self {
        let admin = server.admin();
        let sandbox = admin.create_external_sandbox(settings).await;
        let worker = ManualWorker::new(&admin, &sandbox);
        let mut agent = Self { admin, worker, sandbox };
        agent.worker.send_heartbeat("starting").await.expect_status(200);
        agent.report(&[("agent.started", json!({ "turn": 1, "cwd": "/workspace" }))]).await;
        agent
    }

    async fn report(&mut self, events: &[(&str, Value)]) {
        let mut batch = Vec::new();
        for (event_type, data) in events {
            batch.push(build_event(self.worker.next_key, event_type, data.clone()));
            self.worker.next_key += 1;
        }
        self.worker.send_batch(batch).await.expect_status(200);
    }

    /// Runs the same command with the same result.
    async fn repeat_call(&mut self, times: usize) {
        for _ in 0..times {
            let id = format!("call_{}", self.worker.next_key);
            let call = json!({ "tool": "Bash", "tool_use_id": id, "input": { "command": "make" } });
            let result = json!({ "tool": "Bash", "tool_use_id": id, "output": "no rule", "is_error": false });
            self.report(&[("agent.tool_use", call), ("agent.tool_completed", result)]).await;
        }
    }

    async fn next_message(&self) -> Value {
        poll_for("a message", async || self.worker.lease_messages(1).await.into_iter().next()).await
    }

    /// The interventions, oldest first, once there are so many.
    async fn interventions(&self, count: usize) -> Vec<Value> {
        let path = format!("/sandboxes/{}/interventions", self.sandbox.id);
        poll_for("the interventions", async || {
            let mut all = self.admin.list_all(&path, 50).await;
            all.reverse();
            (all.len() >= count).then_some(all)
        })
        .await
    }

    async fn events(&self, event_type: &str) -> Vec<Value> {
        let all = self.admin.all_events(&self.sandbox.id).await;
        event_data(&all, event_type).into_iter().cloned().collect()
    }
}

fn words<'a>(rows: &'a [Value], field: &str) -> Vec<Option<&'a str>> {
    rows.iter().map(|row| row[field].as_str()).collect()
}

async fn an_agent_that_loops_is_steered_step_by_step(kind: DatabaseKind) {
    let mut server = TestServer::start_with(kind, |options| {
        options.config.guardian.nudge_cool_down = Duration::ZERO;
        options.config.guardian.action_cool_down = Duration::ZERO;
    })
    .await;
    let settings = json!({ "agent": "demo", "guardian": { "act": "interrupt", "repeats": 3 } });
    let mut agent = ScriptedAgent::start(&server, settings).await;
    agent.repeat_call(3).await;
    let nudge = agent.next_message().await;
    assert_eq!((&nudge["type"], &nudge["sender"]), (&json!("guardian_nudge"), &json!("atoll:guardian")), "{nudge}");
    assert!(
        nudge["content"].as_str().unwrap().starts_with("Atoll's guardian: you have called Bash 3 times"),
        "{nudge}"
    );

    // The next server continues where this one was: no second nudge.
    server.restart().await;
    agent.admin = server.admin();
    agent.worker.actor = agent.admin.with_token(&agent.sandbox.token);
    agent.repeat_call(3).await;
    agent.interventions(2).await;
    agent.repeat_call(3).await;
    let interrupt = agent.next_message().await;
    assert_eq!(interrupt["type"], "interrupt", "{interrupt}");
    let queued = agent.events("message.queued").await;
    assert_eq!(
        words(&queued, "type"),
        ["guardian_nudge", "interrupt", "system"].map(Some),
        "the next turn has a reason"
    );
    agent.repeat_call(3).await;
    let rows = agent.interventions(4).await;
    assert_eq!(words(&rows, "action"), ["nudge", "deny", "interrupt", "escalate"].map(Some), "{rows:#?}");
    assert_eq!(words(&rows, "outcome"), [Some("continued"), Some("continued"), Some("continued"), None], "{rows:#?}");
    assert!(
        rows.iter().all(|row| row["detector"] == "repeated_call" && !row["evidence"].as_array().unwrap().is_empty())
    );
    assert_eq!(rows[0]["message_id"], nudge["id"], "{}", rows[0]);

    agent.report(&[("agent.completed", json!({ "turn": 1 }))]).await;
    let ended = poll_for("the outcome", async || {
        agent.interventions(4).await.pop().filter(|row| row["outcome"] == "turn_ended")
    });
    let last = Box::pin(ended).await;
    let detected = agent.events("guardian.detected").await;
    assert_eq!(words(&detected, "action"), ["nudge", "deny", "interrupt", "escalate"].map(Some));
    assert_eq!(agent.events("guardian.escalated").await[0]["intervention_id"], last["id"]);
    assert_eq!(words(&agent.events("guardian.intervened").await, "action"), ["deny", "interrupt"].map(Some));
    assert_eq!(agent.events("guardian.followed_up").await.len(), 4);

    // Lists, one intervention, the counts, and what other settings would have done.
    let listed = agent.admin.get("/interventions?action=escalate").await.expect_status(200);
    assert_eq!(words(listed["items"].as_array().unwrap(), "id"), [last["id"].as_str()]);
    let path = format!("/interventions/{}", last["id"].as_str().unwrap());
    assert_eq!(agent.admin.get(&path).await.expect_status(200), last);
    let status = agent.admin.get(&format!("/sandboxes/{}/guardian", agent.sandbox.id)).await.expect_status(200);
    let repeated =
        status["detectors"].as_array().unwrap().iter().find(|one| one["detector"] == "repeated_call").unwrap();
    assert_eq!((&repeated["count"], &repeated["at"]), (&json!(12), &json!(3)), "{status}");
    let replay = format!("/sandboxes/{}/guardian/replay", agent.sandbox.id);
    let tried = json!({ "guardian": { "act": "nudge", "repeats": 6 } });
    let replayed = agent.admin.post(&replay, tried).await.expect_status(200);
    let steps = replayed["steps"].as_array().unwrap();
    assert_eq!(words(steps, "action"), ["nudge", "escalate"].map(Some), "{replayed}");
    assert_eq!(words(steps, "outcome"), ["continued", "turn_ended"].map(Some), "{replayed}");
    agent.admin.post(&replay, json!({ "guardian": { "repeats": 1 } })).await.expect_problem(422, "invalid");
    assert_eq!(agent.interventions(0).await.len(), 4, "a replay stores nothing");
    server.stop().await;
}

async fn a_project_that_allows_nothing_only_gets_findings(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let mut agent = ScriptedAgent::start(&server, json!({ "agent": "demo" })).await;
    for number in 0..40 {
        agent.report(&[("agent.message", json!({ "text": format!("Next I will do step {number}.") }))]).await;
    }
    let rows = agent.interventions(1).await;
    assert_eq!(words(&rows, "held_back"), [Some("steering_off")], "{rows:#?}");
    assert_eq!(words(&rows, "action"), [Some("observe")], "{rows:#?}");
    assert_eq!(agent.worker.lease_messages(1).await, [Value::Null; 0]);
    assert_eq!(words(&agent.events("guardian.detected").await, "detector"), [Some("talking")]);
    server.stop().await;
}

async fn bad_responses_of_the_judge_are_dropped_counted_and_paid(kind: DatabaseKind) {
    // The scripted model answers `ok` to a request without tools.
    let model = ScriptedModel::start(Scripts::parse("- say: hello").unwrap()).await.unwrap();
    let url = model.base_url();
    let server = TestServer::start_with(kind, |options| {
        let config = &mut options.config;
        config.guardian.judge_model = Some("judge".to_owned());
        config.guardian.judge_interval = Duration::from_millis(1);
        config.model_upstreams.push(Upstream {
            name: "scripted".to_owned(),
            api: ModelApi::Anthropic,
            url,
            key: None,
            secret: None,
            auth: AuthScheme::ApiKey,
            needs_key: false,
            login: None,
        });
        config.models.push(Model {
            name: "judge".to_owned(),
            upstream: "scripted".to_owned(),
            model: Some("claude-haiku-5-5".to_owned()),
            context: None,
            price: Some(Price { input: 1.0, output: 5.0, cache_read: None, cache_write: None, long_prompt: None }),
        });
    })
    .await;
    let settings =
        json!({ "agent": "demo", "prompt": "fix the parser", "guardian": { "act": "nudge", "judge": true } });
    let mut agent = ScriptedAgent::start(&server, settings).await;
    agent.report(&[("agent.message", json!({ "text": "I read about the weather." }))]).await;
    let path = format!("/sandboxes/{}/guardian", agent.sandbox.id);
    let judged = poll_for("a judgement", async || {
        let status = agent.admin.get(&path).await.expect_status(200);
        (status["judge"]["requests"].as_u64() > Some(0)).then(|| status["judge"].clone())
    })
    .await;
    assert_eq!((&judged["bad_responses"], &judged["report"]), (&judged["requests"], &Value::Null), "{judged}");
    assert!(judged["cost_usd"].as_f64() > Some(0.0), "{judged}");
    assert_eq!(agent.interventions(0).await, [Value::Null; 0], "a bad response changes nothing");
    // The judge's cost is not the sandbox's.
    let row = agent.admin.get(&format!("/sandboxes/{}", agent.sandbox.id)).await.expect_status(200);
    assert_ne!(row["cost"]["model"].as_f64(), judged["cost_usd"].as_f64(), "{row}");
    assert!(model.requests()[0].body_contains("fix the parser"));
    server.stop().await;
}
