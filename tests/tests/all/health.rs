//! Health of sandboxes, sessions and providers: silent and idle agents, restarts, failing providers, orphans.

use atoll_core::time::{Clock, SystemClock, Timestamp};
use atoll_providers::fake::{FakeOptions, Fault, FaultKind, FaultPoint};
use atoll_test_wait::try_poll_for;
use atoll_tests::actor::{Actor, ExternalSandbox};
use atoll_tests::database::DatabaseKind;
use atoll_tests::manual_worker::{ManualWorker, build_event};
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

on_both_databases!(
    a_silent_worker_is_unreachable_until_its_next_heartbeat,
    an_agent_without_work_events_is_stalled_and_then_interrupted,
    an_idle_sandbox_is_paused_and_a_message_wakes_it,
    a_sandbox_in_use_is_not_idle,
    an_idle_sandbox_ends_if_its_policy_says_so,
    a_failed_session_restarts_three_times_and_then_needs_a_person,
    a_failure_on_its_merits_is_never_repeated,
    a_failing_provider_gets_no_sandbox_and_the_fallback_takes_over,
    an_orphan_is_removed_after_its_grace_period,
    a_removal_is_repeated_until_the_provider_succeeds,
);

/// The system's clock, whose steady time a test moves ahead.
struct SteppingClock {
    system: SystemClock,
    ahead_seconds: AtomicI64,
}

impl SteppingClock {
    fn advance(&self, seconds: i64) {
        self.ahead_seconds.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Clock for SteppingClock {
    fn now(&self) -> Timestamp {
        self.system.now()
    }

    fn steady_now(&self) -> Timestamp {
        let ahead = self.ahead_seconds.load(Ordering::SeqCst) * 1_000_000;
        Timestamp::from_micros(self.system.steady_now().as_micros() + ahead)
    }
}

async fn start_server(
    kind: DatabaseKind,
    change: impl FnOnce(&mut atoll_server::Options),
) -> (TestServer, Arc<SteppingClock>) {
    let clock = Arc::new(SteppingClock { system: SystemClock::start(), ahead_seconds: AtomicI64::new(0) });
    let change = |options: &mut atoll_server::Options| {
        // The sweep runs three times per interval.
        options.config.heartbeat.interval = Duration::from_secs(1);
        change(options);
    };
    (TestServer::start_with_clock(kind, change, Some(Arc::clone(&clock) as _)).await, clock)
}

async fn wait_until(admin: &Actor, path: &str, is_match: impl Fn(&Value) -> bool) -> Value {
    let polled = try_poll_for(async || {
        let row = admin.get(path).await.expect_status(200);
        if is_match(&row) { Ok(row) } else { Err(row) }
    });
    polled.await.expect("the row must reach the expected state")
}

async fn wait_for_activity(admin: &Actor, id: &str, activity: &str) -> Value {
    wait_until(admin, &format!("/sandboxes/{id}"), |row| row["activity"] == activity).await
}

async fn events_of_type(admin: &Actor, id: &str, event_type: &str) -> Vec<Value> {
    let events = admin.all_events(id).await;
    events.into_iter().filter(|event| event["type"] == event_type).map(|mut event| event["data"].take()).collect()
}

/// Creates a sandbox of the `fake` provider whose agent has finished its first turn and waits.
async fn create_waiting_sandbox(admin: &Actor, settings: Value) -> String {
    let mut body = json!({ "provider": "fake", "agent": "demo", "prompt": "say hello", "end": "keep" });
    body.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    let id = admin.post("/sandboxes", body).await.expect_status(201)["id"].as_str().unwrap().to_owned();
    wait_for_activity(admin, &id, "waiting_message").await;
    id
}

async fn a_silent_worker_is_unreachable_until_its_next_heartbeat(kind: DatabaseKind) {
    let (server, _) = start_server(kind, |_| {}).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let worker = ManualWorker::new(&admin, &sandbox);
    worker.send_heartbeat("waiting_message").await.expect_status(200);
    wait_for_activity(&admin, &sandbox.id, "unreachable").await;
    let silences = events_of_type(&admin, &sandbox.id, "worker.unreachable").await;
    assert_eq!(silences.len(), 1);
    worker.send_heartbeat("waiting_message").await.expect_status(200);
    let row = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect_status(200);
    assert_eq!((row["state"].as_str(), row["activity"].as_str()), (Some("running"), Some("waiting_message")));
    assert_eq!(events_of_type(&admin, &sandbox.id, "worker.reachable").await.len(), 1);
    server.stop().await;
}

async fn an_agent_without_work_events_is_stalled_and_then_interrupted(kind: DatabaseKind) {
    let (server, clock) =
        start_server(kind, |options| options.config.heartbeat.interval = Duration::from_secs(5)).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let mut worker = ManualWorker::new(&admin, &sandbox);
    worker.send_heartbeat("working").await.expect_status(200);
    worker.send_events(&["agent.started", "agent.tool_use"]).await;
    clock.advance(15 * 60 - 30);
    // An event that is no work, and a heartbeat, change nothing.
    worker.send_events(&["agent.spinning", "agent.usage"]).await;
    clock.advance(30);
    worker.send_heartbeat("working").await.expect_status(200);
    wait_for_activity(&admin, &sandbox.id, "stalled").await;
    worker.send_heartbeat("working").await.expect_status(200);
    let row = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect_status(200);
    assert_eq!(row["activity"], "stalled", "a heartbeat is no work");
    let stalled = events_of_type(&admin, &sandbox.id, "sandbox.stalled").await;
    assert_eq!(stalled.len(), 1);
    assert!(stalled[0]["without_work_s"].as_i64().unwrap() >= 15 * 60);
    worker.send_events(&["agent.tool_completed"]).await;
    let row = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect_status(200);
    assert_eq!(row["activity"], "working");
    worker.send_heartbeat("working").await.expect_status(200);
    clock.advance(31 * 60);
    let path = format!("/sandboxes/{}/messages", sandbox.id);
    let page = wait_until(&admin, &path, |page| page["items"][0]["type"] == "interrupt").await;
    assert_eq!(page["items"][0]["sender"], "atoll:health");
    assert_eq!(page["items"].as_array().unwrap().len(), 1);
    server.stop().await;
}

async fn an_idle_sandbox_is_paused_and_a_message_wakes_it(kind: DatabaseKind) {
    let (server, clock) = start_server(kind, |_| {}).await;
    let admin = server.admin();
    let id = create_waiting_sandbox(&admin, json!({})).await;
    clock.advance(10 * 60);
    wait_for_activity(&admin, &id, "paused").await;
    let idle = events_of_type(&admin, &id, "sandbox.idle").await;
    assert_eq!((idle.len(), idle[0]["action"].as_str()), (1, Some("pause")), "{idle:?}");
    assert!(idle[0]["idle_s"].as_i64().unwrap() >= 10 * 60);
    let message = json!({ "content": "say again" });
    admin.post(&format!("/sandboxes/{id}/messages"), message).await.expect_status(201);
    let turns = try_poll_for(async || match events_of_type(&admin, &id, "agent.completed").await.len() {
        2 => Ok(()),
        other => Err(other),
    });
    turns.await.expect("the second turn must end");
    // A command wakes it, too.
    clock.advance(10 * 60);
    wait_for_activity(&admin, &id, "paused").await;
    admin.post(&format!("/sandboxes/{id}/exec"), json!({ "argv": ["true"] })).await.expect_status(200);
    wait_for_activity(&admin, &id, "waiting_message").await;
    // A person's own pause holds.
    admin.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect_status(200);
    admin
        .post(&format!("/sandboxes/{id}/exec"), json!({ "argv": ["true"] }))
        .await
        .expect_problem(409, "sandbox_paused");
    server.stop().await;
}

async fn a_sandbox_in_use_is_not_idle(kind: DatabaseKind) {
    let (server, clock) = start_server(kind, |_| {}).await;
    let admin = server.admin();
    let used = create_waiting_sandbox(&admin, json!({})).await;
    let unused = create_waiting_sandbox(&admin, json!({})).await;
    clock.advance(9 * 60);
    admin.post(&format!("/sandboxes/{used}/exec"), json!({ "argv": ["true"] })).await.expect_status(200);
    clock.advance(9 * 60);
    wait_for_activity(&admin, &unused, "paused").await;
    let row = admin.get(&format!("/sandboxes/{used}")).await.expect_status(200);
    assert_eq!(row["activity"], "waiting_message", "it was used nine minutes ago");
    assert!(events_of_type(&admin, &used, "sandbox.idle").await.is_empty());
    clock.advance(10 * 60);
    wait_for_activity(&admin, &used, "paused").await;
    server.stop().await;
}

async fn an_idle_sandbox_ends_if_its_policy_says_so(kind: DatabaseKind) {
    let (server, clock) = start_server(kind, |_| {}).await;
    let admin = server.admin();
    let health = json!({ "health": { "idle_after_s": 3600, "idle_action": "end" } });
    let id = create_waiting_sandbox(&admin, health).await;
    let kept = create_waiting_sandbox(&admin, json!({ "health": { "idle_action": "keep" } })).await;
    clock.advance(3600);
    let row = wait_until(&admin, &format!("/sandboxes/{id}"), |row| row["state"] == "completed").await;
    assert_eq!(row["reason"]["code"], "idle", "{row}");
    let idle = events_of_type(&admin, &id, "sandbox.idle").await;
    assert_eq!(idle[0]["action"], "end");
    let row = admin.get(&format!("/sandboxes/{kept}")).await.expect_status(200);
    assert_eq!(row["activity"], "waiting_message");
    server.stop().await;
}

async fn fail_agent(admin: &Actor, sandbox: &ExternalSandbox, reason: &str) {
    let worker = ManualWorker::new(admin, sandbox);
    worker.send_heartbeat("working").await.expect_status(200);
    let data = json!({ "reason": reason, "error": "the agent ended with signal 11" });
    worker.send_batch(vec![build_event(1, "agent.failed", data)]).await.expect_status(200);
}

/// The worker token of a session's sandbox that Atoll created.
async fn take_over(admin: &Actor, id: &str) -> ExternalSandbox {
    let issued = admin.post(&format!("/sandboxes/{id}/worker-token"), json!({})).await.expect_status(201);
    let token = issued["token"].as_str().unwrap().to_owned();
    ExternalSandbox { id: id.to_owned(), session: String::new(), token }
}

async fn a_failed_session_restarts_three_times_and_then_needs_a_person(kind: DatabaseKind) {
    let (server, clock) = start_server(kind, |_| {}).await;
    let admin = server.admin();
    let settings = json!({ "prompt": "work", "agent": "demo", "health": { "restart": "on_failure" } });
    let mut sandbox = admin.create_external_sandbox(settings).await;
    let session = format!("/sessions/{}", sandbox.session);
    for round in 0..3 {
        fail_agent(&admin, &sandbox, "agent_crashed").await;
        let planned = events_of_type(&admin, &sandbox.id, "session.restart_planned").await;
        assert_eq!((planned[0]["class"].as_str(), planned[0]["earlier"].as_i64()), (Some("agent_crash"), Some(round)));
        let failed = sandbox.id.clone();
        clock.advance(60);
        let row = wait_until(&admin, &session, |row| row["sandbox_id"] != json!(null)).await;
        let next = row["sandbox_id"].as_str().unwrap();
        assert_ne!(next, failed);
        let page = admin.get(&format!("/sandboxes/{next}/messages")).await.expect_status(200);
        let told =
            page["items"].as_array().unwrap().iter().find(|message| message["sender"] == "atoll:health").unwrap();
        assert!(told["content"].as_str().unwrap().contains("signal 11"), "{told}");
        sandbox = take_over(&admin, next).await;
    }
    fail_agent(&admin, &sandbox, "agent_crashed").await;
    let escalated = events_of_type(&admin, &sandbox.id, "session.escalated").await;
    assert_eq!((escalated.len(), escalated[0]["restarts"].as_i64()), (1, Some(3)), "{escalated:?}");
    let row = admin.get(&session).await.expect_status(200);
    assert_eq!((row["attention"]["code"].as_str(), &row["sandbox_id"]), (Some("agent_crashed"), &json!(null)));
    // A person's resume clears it.
    admin.post(&format!("{session}/resume"), json!({})).await.expect_status(201);
    assert!(admin.get(&session).await.expect_status(200).get("attention").is_none());
    server.stop().await;
}

async fn a_failure_on_its_merits_is_never_repeated(kind: DatabaseKind) {
    let (server, _) = start_server(kind, |_| {}).await;
    let admin = server.admin();
    let settings = json!({ "prompt": "work", "agent": "demo", "health": { "restart": "on_failure" } });
    let sandbox = admin.create_external_sandbox(settings).await;
    fail_agent(&admin, &sandbox, "I give up").await;
    assert!(events_of_type(&admin, &sandbox.id, "session.restart_planned").await.is_empty());
    let escalated = events_of_type(&admin, &sandbox.id, "session.escalated").await;
    assert_eq!((escalated[0]["class"].as_str(), escalated[0]["restarts"].as_i64()), (Some("task"), Some(0)));
    // Without the policy, a failure is only a failure.
    let plain = admin.create_external_sandbox(json!({ "prompt": "work", "agent": "demo" })).await;
    fail_agent(&admin, &plain, "agent_crashed").await;
    let events = admin.all_events(&plain.id).await;
    assert_eq!(events.last().unwrap()["type"], "sandbox.failed");
    server.stop().await;
}

async fn a_failing_provider_gets_no_sandbox_and_the_fallback_takes_over(kind: DatabaseKind) {
    let fault = Fault { at: FaultPoint::Create, kind: FaultKind::Fail, rate: 1.0 };
    let (server, clock) = start_server(kind, |options| {
        options.config.providers.fake = FakeOptions { seed: 1, faults: vec![fault] };
        options.config.health.provider_failures = 2;
    })
    .await;
    let admin = server.admin();
    let body = json!({ "provider": "fake", "agent": "demo", "prompt": "say hello" });
    // The one retry is the second failure.
    let created = admin.post("/sandboxes", body.clone()).await.expect_status(201);
    let id = created["id"].as_str().unwrap();
    let row = wait_until(&admin, &format!("/sandboxes/{id}"), |row| row["state"] == "failed").await;
    assert_eq!(row["reason"]["code"], "provider_unreachable", "{row}");
    let opened = events_of_type(&admin, id, "provider.circuit_opened").await;
    assert_eq!((opened[0]["provider"].as_str(), opened[0]["failures"].as_i64()), (Some("fake"), Some(2)));
    let refused = admin.post("/sandboxes", body.clone()).await.expect_problem(503, "provider_failing");
    assert_eq!(refused["provider"], "fake");
    let listed = admin.get("/providers").await.expect_status(200);
    let fake = listed["items"].as_array().unwrap().iter().find(|one| one["name"] == "fake").unwrap();
    assert_eq!((fake["circuit"]["state"].as_str(), fake["circuit"]["failures"].as_i64()), (Some("open"), Some(2)));
    // The fallback takes over, and the sandbox says so.
    let mut named = body.clone();
    named["fallback_provider"] = json!("external");
    let created = admin.post("/sandboxes", named).await.expect_status(201);
    assert_eq!(created["provider"], "external");
    let replaced = events_of_type(&admin, created["id"].as_str().unwrap(), "sandbox.provider_replaced").await;
    assert_eq!(replaced, [json!({ "requested": "fake", "provider": "external" })]);
    // Later, one creation tries the provider again.
    clock.advance(60);
    admin.post("/sandboxes", body).await.expect_status(201);
    server.stop().await;
}

async fn collect_garbage(admin: &Actor, dry_run: bool) -> (i64, i64) {
    let report = admin.post("/gc", json!({ "dry_run": dry_run })).await.expect_status(200);
    (report["orphans"].as_i64().unwrap(), report["waiting_orphans"].as_i64().unwrap())
}

async fn an_orphan_is_removed_after_its_grace_period(kind: DatabaseKind) {
    // The provider creates the sandbox, but its responses and the worker's reports are lost: no row names it.
    let lost = |at| Fault { at, kind: FaultKind::Drop, rate: 1.0 };
    let faults = vec![lost(FaultPoint::Create), lost(FaultPoint::Heartbeat)];
    let change = |options: &mut atoll_server::Options| options.config.providers.fake = FakeOptions { seed: 1, faults };
    let (server, clock) = start_server(kind, change).await;
    let admin = server.admin();
    let body = json!({ "provider": "fake", "agent": "demo", "prompt": "say hello" });
    let created = admin.post("/sandboxes", body).await.expect_status(201);
    let path = format!("/sandboxes/{}", created["id"].as_str().unwrap());
    wait_until(&admin, &path, |row| row["state"] == "failed").await;
    assert_eq!(collect_garbage(&admin, true).await, (0, 1), "it waits for its grace period");
    assert_eq!(collect_garbage(&admin, false).await, (0, 1));
    clock.advance(10 * 60);
    assert_eq!(collect_garbage(&admin, true).await, (1, 0), "a dry run only counts");
    assert_eq!(collect_garbage(&admin, true).await, (1, 0));
    assert_eq!(collect_garbage(&admin, false).await, (1, 0));
    assert_eq!(collect_garbage(&admin, false).await, (0, 0), "it is gone");
    server.stop().await;
}

async fn a_removal_is_repeated_until_the_provider_succeeds(kind: DatabaseKind) {
    let fault = Fault { at: FaultPoint::Destroy, kind: FaultKind::Fail, rate: 0.7 };
    let (server, clock) = start_server(kind, |options| {
        options.config.providers.fake = FakeOptions { seed: 7, faults: vec![fault] };
    })
    .await;
    let admin = server.admin();
    for _ in 0..2 {
        let body = json!({ "provider": "fake", "agent": "demo", "prompt": "say hello" });
        let created = admin.post("/sandboxes", body).await.expect_status(201);
        let path = format!("/sandboxes/{}", created["id"].as_str().unwrap());
        wait_until(&admin, &path, |row| row["state"] == "completed").await;
        // Each look is later than the longest back-off.
        wait_until(&admin, &path, |row| {
            clock.advance(300);
            row["provider_id"].is_null()
        })
        .await;
    }
    server.stop().await;
}
