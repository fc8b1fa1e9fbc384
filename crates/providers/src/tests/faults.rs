//! Seeded faults: what they do, and what must hold in spite of them.

use super::recorder::Recorder;
use super::{Scene, spec};
use crate::fake::{Fault, FaultAt, FaultKind};
use crate::{Fake, FakeOptions};
use atoll_core::message::{Delivery, How};
use atoll_core::provider::{Error, Lookup, Provider};
use std::time::Duration;

fn always(at: FaultAt, kind: FaultKind) -> FakeOptions {
    FakeOptions { seed: 1, faults: vec![Fault { at, kind, rate: 1.0 }] }
}

#[tokio::test(start_paused = true)]
async fn in_spite_of_faults_everything_is_told_once_and_in_order() {
    for seed in 0..40 {
        let kinds = [FaultKind::Fail, FaultKind::Drop, FaultKind::Duplicate, FaultKind::Delay];
        let places = [FaultAt::Heartbeat, FaultAt::Event, FaultAt::Ack];
        let faults = places.iter().flat_map(|at| kinds.map(|kind| Fault { at: *at, kind, rate: 0.15 })).collect();
        let scene = Scene::with("say 1\nwait 1\nsay 2\nloop 5\nsay 3", FakeOptions { seed, faults }).await;
        scene.until("agent.started").await;
        scene.link.send(scene.sandbox, "say 4", Delivery::Queue);
        scene.until_count("agent.completed", 2).await;
        let said: Vec<_> = scene.data("agent.message").iter().map(|data| data["text"].clone()).collect();
        assert_eq!(said, ["1", "2", "3", "4"], "seed {seed}");
        assert_eq!(scene.data("agent.tool_completed").len(), 5);
        scene.link.with(scene.sandbox, |row| assert_eq!(row.acks.len(), 2, "seed {seed}"));
        scene.link.assert_orderly();
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_leaves_a_prefix_of_the_story() {
    let whole =
        ["agent.started", "agent.message", "agent.message", "agent.message", "agent.completed", "agent.waiting"];
    let mut lengths = Vec::new();
    for seed in 0..30 {
        let faults = vec![Fault { at: FaultAt::Event, kind: FaultKind::Crash, rate: 0.3 }];
        let scene = Scene::with("say a\nwait 1\nsay b\nwait 1\nsay c", FakeOptions { seed, faults }).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let types = scene.types();
        assert_eq!(types, whole[..types.len()], "seed {seed}");
        lengths.push(types.len());
        scene.link.assert_orderly();
    }
    assert!(lengths.iter().any(|length| *length < whole.len()) && lengths.contains(&whole.len()), "{lengths:?}");
}

#[tokio::test(start_paused = true)]
async fn one_seed_gives_one_story() {
    let mut stories = Vec::new();
    for _ in 0..2 {
        let faults = vec![Fault { at: FaultAt::Create, kind: FaultKind::Fail, rate: 0.5 }];
        let fake = Fake::new(FakeOptions { seed: 9, faults }, Recorder::new());
        let mut story = Vec::new();
        for n in 0..50 {
            story.push(fake.create(&spec(), &n.to_string()).await.is_ok());
        }
        stories.push(story);
    }
    assert_eq!(stories[0], stories[1]);
    assert!(stories[0].contains(&true) && stories[0].contains(&false));
}

#[tokio::test(start_paused = true)]
async fn a_creation_fails_before_or_after_it_was_made() {
    let link = Recorder::new();
    let fake = Fake::new(always(FaultAt::Create, FaultKind::Fail), link.clone());
    let one = spec();
    let failed = fake.create(&one, "key").await.unwrap_err();
    assert!(matches!(failed, Error::Unreachable { .. }) && failed.is_worth_a_retry());
    assert_eq!(fake.find(&one.identity.labels()).await.unwrap(), []);

    let fake = Fake::new(always(FaultAt::Create, FaultKind::Drop), link.clone());
    for _ in 0..3 {
        assert!(matches!(fake.create(&one, "key").await, Err(Error::Unreachable { .. })));
        assert_eq!(fake.find(&one.identity.labels()).await.unwrap().len(), 1, "found by its labels");
    }

    let fake = Fake::new(always(FaultAt::Create, FaultKind::Crash), link.clone());
    let silent = spec();
    fake.create(&silent, "key").await.unwrap();
    tokio::time::sleep(Duration::from_secs(100)).await;
    link.with(silent.identity.sandbox, |row| assert_eq!(row.heartbeats.len(), 0));
}

#[tokio::test(start_paused = true)]
async fn a_destroy_that_fails_leaves_the_sandbox_and_succeeds_by_chance() {
    let half = Fault { at: FaultAt::Destroy, kind: FaultKind::Fail, rate: 0.5 };
    let fake = Fake::new(FakeOptions { seed: 3, faults: vec![half] }, Recorder::new());
    let mut failures = 0;
    for n in 0..20 {
        let id = fake.create(&spec(), &n.to_string()).await.unwrap().id;
        while let Err(error) = fake.destroy(&id).await {
            assert!(matches!(error, Error::Unreachable { .. }));
            assert!(matches!(fake.get(&id).await, Lookup::Found(_)));
            failures += 1;
        }
        assert_eq!(fake.get(&id).await, Lookup::Gone);
    }
    assert!((5..60).contains(&failures), "{failures}");
}

#[tokio::test(start_paused = true)]
async fn duplicates_reach_the_server_and_change_nothing() {
    let mut options = always(FaultAt::Event, FaultKind::Duplicate);
    options.faults.push(Fault { at: FaultAt::Ack, kind: FaultKind::Duplicate, rate: 1.0 });
    let scene = Scene::with("say once", options).await;
    scene.until("agent.waiting").await;
    scene.link.with(scene.sandbox, |row| {
        assert_eq!((row.events.len(), row.duplicates), (4, 5));
        assert_eq!(row.acks[0].1, How::NewTurn);
    });
    scene.link.assert_orderly();
}
