//! Tests of seeded faults.

use super::recording_server::RecordingServer;
use super::{Scenario, create_spec};
use crate::fake::{Fault, FaultKind, FaultPoint};
use crate::{Fake, FakeOptions};
use atoll_core::message::{Delivery, DeliveryMethod};
use atoll_core::provider::{Error, Provider, SandboxLookup};
use std::time::Duration;

fn fault_always(at: FaultPoint, kind: FaultKind) -> FakeOptions {
    FakeOptions { seed: 1, faults: vec![Fault { at, kind, rate: 1.0 }] }
}

#[tokio::test(start_paused = true)]
async fn faults_neither_lose_nor_reorder_events() {
    for seed in 0..40 {
        let kinds = [FaultKind::Fail, FaultKind::Drop, FaultKind::Duplicate, FaultKind::Delay];
        let places = [FaultPoint::Heartbeat, FaultPoint::Event, FaultPoint::Ack];
        let faults = places.iter().flat_map(|at| kinds.map(|kind| Fault { at: *at, kind, rate: 0.15 })).collect();
        let scenario =
            Scenario::with_options("say 1\nwait 1\nsay 2\nloop 5\nsay 3", FakeOptions { seed, faults }).await;
        scenario.wait_for_event("agent.started").await;
        scenario.link.send_message(scenario.sandbox, "say 4", Delivery::Queue);
        scenario.wait_for_events("agent.completed", 2).await;
        let texts: Vec<_> = scenario.event_data("agent.message").iter().map(|data| data["text"].clone()).collect();
        assert_eq!(texts, ["1", "2", "3", "4"], "seed {seed}");
        assert_eq!(scenario.event_data("agent.tool_completed").len(), 5);
        scenario.wait_for_acks(2).await;
        scenario.link.assert_no_violations();
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_leaves_a_prefix_of_the_events() {
    let whole =
        ["agent.started", "agent.message", "agent.message", "agent.message", "agent.completed", "agent.waiting"];
    let mut lengths = Vec::new();
    for seed in 0..30 {
        let faults = vec![Fault { at: FaultPoint::Event, kind: FaultKind::Crash, rate: 0.3 }];
        let scenario =
            Scenario::with_options("say a\nwait 1\nsay b\nwait 1\nsay c", FakeOptions { seed, faults }).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let types = scenario.event_types();
        assert_eq!(types, whole[..types.len()], "seed {seed}");
        lengths.push(types.len());
        scenario.link.assert_no_violations();
    }
    assert!(lengths.iter().any(|length| *length < whole.len()) && lengths.contains(&whole.len()), "{lengths:?}");
}

#[tokio::test(start_paused = true)]
async fn one_seed_gives_one_event_sequence() {
    let mut stories = Vec::new();
    for _ in 0..2 {
        let faults = vec![Fault { at: FaultPoint::Create, kind: FaultKind::Fail, rate: 0.5 }];
        let fake = Fake::new(FakeOptions { seed: 9, faults }, RecordingServer::new());
        let mut story = Vec::new();
        for n in 0..50 {
            story.push(fake.create(&create_spec(), &n.to_string()).await.is_ok());
        }
        stories.push(story);
    }
    assert_eq!(stories[0], stories[1]);
    assert!(stories[0].contains(&true) && stories[0].contains(&false));
}

#[tokio::test(start_paused = true)]
async fn create_fails_before_or_after_its_effect() {
    let link = RecordingServer::new();
    let fake = Fake::new(fault_always(FaultPoint::Create, FaultKind::Fail), link.clone());
    let one = create_spec();
    let failed = fake.create(&one, "key").await.unwrap_err();
    assert!(matches!(failed, Error::Unreachable { .. }) && failed.is_retryable());
    assert_eq!(fake.find_by_labels(&one.identity.labels()).await.unwrap(), []);

    let fake = Fake::new(fault_always(FaultPoint::Create, FaultKind::Drop), link.clone());
    for _ in 0..3 {
        assert!(matches!(fake.create(&one, "key").await, Err(Error::Unreachable { .. })));
        assert_eq!(fake.find_by_labels(&one.identity.labels()).await.unwrap().len(), 1, "found by its labels");
    }

    let fake = Fake::new(fault_always(FaultPoint::Create, FaultKind::Crash), link.clone());
    let silent = create_spec();
    fake.create(&silent, "key").await.unwrap();
    tokio::time::sleep(Duration::from_secs(100)).await;
    link.with_row(silent.identity.sandbox, |row| assert_eq!(row.heartbeats.len(), 0));
}

#[tokio::test(start_paused = true)]
async fn a_failed_destroy_leaves_the_sandbox_and_can_be_retried() {
    let half = Fault { at: FaultPoint::Destroy, kind: FaultKind::Fail, rate: 0.5 };
    let fake = Fake::new(FakeOptions { seed: 3, faults: vec![half] }, RecordingServer::new());
    let mut failures = 0;
    for n in 0..20 {
        let id = fake.create(&create_spec(), &n.to_string()).await.unwrap().id;
        while let Err(error) = fake.destroy(&id).await {
            assert!(matches!(error, Error::Unreachable { .. }));
            assert!(matches!(fake.get(&id).await, SandboxLookup::Found(_)));
            failures += 1;
        }
        assert_eq!(fake.get(&id).await, SandboxLookup::Gone);
    }
    assert!((5..60).contains(&failures), "{failures}");
}

#[tokio::test(start_paused = true)]
async fn duplicates_reach_the_server_and_change_nothing() {
    let mut options = fault_always(FaultPoint::Event, FaultKind::Duplicate);
    options.faults.push(Fault { at: FaultPoint::Ack, kind: FaultKind::Duplicate, rate: 1.0 });
    let scenario = Scenario::with_options("say once", options).await;
    scenario.wait_for_event("agent.waiting").await;
    scenario.wait_for_acks(1).await;
    scenario.link.with_row(scenario.sandbox, |row| {
        assert_eq!((row.events.len(), row.duplicates), (4, 5));
        assert_eq!(row.acks[0].1, DeliveryMethod::NewTurn);
    });
    scenario.link.assert_no_violations();
}
