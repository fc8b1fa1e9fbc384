//! Tests of how fake sandboxes and workers end and pause.

use super::recording_server::{HEARTBEAT_SECONDS, RecordingServer};
use super::{Scenario, create_spec};
use crate::{Fake, FakeOptions};
use atoll_core::message::Delivery;
use atoll_core::provider::{Error, ExecCommand, ExecSpec, Provider};
use atoll_core::sandbox::{Activity, SandboxState};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const MANY_HEARTBEATS: Duration = Duration::from_secs(HEARTBEAT_SECONDS as u64 * 10);

fn heartbeat_count(scenario: &Scenario) -> usize {
    scenario.link.with_row(scenario.sandbox, |row| row.heartbeats.len())
}

#[tokio::test(start_paused = true)]
async fn a_worker_flushes_and_exits_when_work_is_done() {
    let scenario = Scenario::new("").await;
    scenario.link.with_row(scenario.sandbox, |row| row.when_done = true);
    scenario.link.send_message(scenario.sandbox, "say bye", Delivery::Steer);
    scenario.wait_for_event("agent.completed").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(scenario.event_types().last().unwrap(), "agent.shutdown", "does not wait for the next heartbeat");
    assert!(scenario.link.with_row(scenario.sandbox, |row| row.is_final));
    let beats = heartbeat_count(&scenario);
    tokio::time::sleep(MANY_HEARTBEATS).await;
    assert_eq!(heartbeat_count(&scenario), beats);
    assert_eq!(Arc::strong_count(&scenario.link), 2, "its task has ended");
    scenario.link.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn a_stop_returns_undelivered_messages() {
    for state in [SandboxState::Completing, SandboxState::Completed, SandboxState::Failed] {
        let scenario = Scenario::new("wait 5000").await;
        scenario.wait_for_event("agent.started").await;
        let id = scenario.link.send_message(scenario.sandbox, "say later", Delivery::Queue);
        tokio::time::sleep(Duration::from_secs(1)).await;
        scenario.link.set_state(scenario.sandbox, state);
        scenario.wait_for_event("agent.shutdown").await;
        scenario.link.with_row(scenario.sandbox, |row| {
            assert!(row.is_final);
            let (given_back, nack) = &row.nacks[0];
            assert_eq!((*given_back, nack.handed, nack.retry), (id, false, true));
        });
        scenario.link.assert_no_violations();
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_agent_gets_no_messages_and_its_worker_stays() {
    for (line, reason) in [("fail no key", "agent_failed"), ("oom", "out_of_memory")] {
        let scenario = Scenario::new(&format!("say before\n{line}\nsay after")).await;
        scenario.wait_for_event("agent.failed").await;
        let beats = heartbeat_count(&scenario);
        tokio::time::sleep(MANY_HEARTBEATS).await;
        assert!(heartbeat_count(&scenario) > beats + 5);
        assert_eq!(scenario.event_types(), ["agent.started", "agent.message", "agent.failed"]);
        assert_eq!(scenario.event_data("agent.failed")[0]["reason"], reason);
        scenario.link.send_message(scenario.sandbox, "say again", Delivery::Steer);
        tokio::time::sleep(MANY_HEARTBEATS).await;
        scenario.link.set_state(scenario.sandbox, SandboxState::Failed);
        scenario.wait_for_event("agent.shutdown").await;
        assert_eq!(scenario.event_types().len(), 4);
        scenario.link.assert_no_violations();
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_sends_no_event() {
    let scenario = Scenario::new("say before\ncrash\nsay after").await;
    tokio::time::sleep(MANY_HEARTBEATS).await;
    assert_eq!(scenario.event_types(), ["agent.started", "agent.message"]);
    let beats = heartbeat_count(&scenario);
    tokio::time::sleep(MANY_HEARTBEATS).await;
    assert_eq!(heartbeat_count(&scenario), beats);
    assert_eq!(Arc::strong_count(&scenario.link), 2, "its task has ended");
    assert!(!scenario.link.with_row(scenario.sandbox, |row| row.is_final));
}

#[tokio::test(start_paused = true)]
async fn a_hanging_agent_still_sends_heartbeats() {
    let scenario = Scenario::new("hang\nsay never").await;
    scenario.wait_for_event("agent.started").await;
    scenario.link.send_interrupt(scenario.sandbox);
    let beats = heartbeat_count(&scenario);
    tokio::time::sleep(MANY_HEARTBEATS).await;
    assert!(heartbeat_count(&scenario) > beats + 5);
    assert_eq!(scenario.event_types(), ["agent.started"]);
    assert_eq!(scenario.link.with_row(scenario.sandbox, |row| row.heartbeats.last().unwrap().1), Activity::Working);
    scenario.link.set_state(scenario.sandbox, SandboxState::Completing);
    scenario.wait_for_event("agent.shutdown").await;
}

#[tokio::test(start_paused = true)]
async fn heartbeats_keep_their_interval_during_work() {
    let scenario = Scenario::new("wait 300").await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    scenario.wait_for_event("agent.completed").await;
    let times =
        scenario.link.with_row(scenario.sandbox, |row| row.heartbeats.iter().map(|(at, _)| *at).collect::<Vec<_>>());
    assert!(times.len() >= 10);
    let interval = Duration::from_secs(HEARTBEAT_SECONDS.into());
    assert!(times.windows(2).take(9).all(|pair| (pair[1] - pair[0]).abs_diff(interval) < Duration::from_secs(1)));
}

#[tokio::test(start_paused = true)]
async fn work_continues_while_the_server_is_down() {
    let scenario = Scenario::new("wait 10\nsay one\nwait 40\nsay two").await;
    scenario.wait_for_event("agent.started").await;
    scenario.link.set_down(true);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(scenario.event_types(), ["agent.started"]);
    scenario.link.set_down(false);
    scenario.wait_for_event("agent.waiting").await;
    let types = ["agent.started", "agent.message", "agent.message", "agent.completed", "agent.waiting"];
    assert_eq!(scenario.event_types(), types);
    scenario.link.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn nothing_happens_in_a_paused_sandbox() {
    let scenario = Scenario::new("wait 5\nsay hi").await;
    scenario.wait_for_event("agent.started").await;
    scenario.fake.pause(&scenario.id).await.unwrap();
    let beats = heartbeat_count(&scenario);
    tokio::time::sleep(MANY_HEARTBEATS).await;
    assert_eq!((heartbeat_count(&scenario), scenario.event_types().len()), (beats, 1));
    scenario.fake.resume(&scenario.id).await.unwrap();
    scenario.wait_for_event("agent.waiting").await;
    assert!(heartbeat_count(&scenario) > beats);
    scenario.link.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn every_task_ends_on_destroy_and_with_the_provider() {
    let link = RecordingServer::new();
    let fake = Fake::new(FakeOptions::default(), link.clone());
    let mut ids = Vec::new();
    for n in 0..10 {
        let spec = create_spec();
        link.set_prompt(spec.identity.sandbox, "run sleep 1000");
        ids.push(fake.create(&spec, &n.to_string()).await.unwrap().id);
    }
    let sleep = ExecSpec {
        command: ExecCommand::Shell("sleep 1000".into()),
        cwd: None,
        env: BTreeMap::new(),
        has_stdin: false,
        as_root: false,
        terminal: None,
        timeout: None,
    };
    let exec = fake.exec(&ids[0], &sleep).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(fake.resources(&ids[0]).await.unwrap().pids, 3);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    // A worker has one task for the dispatcher and four for its links; a command has one.
    assert_eq!((Arc::strong_count(&link), tasks()), (62, 61));
    for id in &ids[..5] {
        fake.destroy(id).await.unwrap();
    }
    assert_eq!(fake.signal(&exec, 9).await, Err(Error::Gone));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((Arc::strong_count(&link), tasks()), (32, 30));
    drop(fake);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((Arc::strong_count(&link), tasks()), (1, 0));
}
