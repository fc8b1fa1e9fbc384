//! How fake sandboxes and their workers end, and what stands still in between.

use super::recorder::{INTERVAL_S, Recorder};
use super::{Scene, spec};
use crate::{Fake, FakeOptions};
use atoll_core::message::Delivery;
use atoll_core::provider::{Command, Error, ExecSpec, Provider};
use atoll_core::sandbox::{Activity, SandboxState};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(INTERVAL_S as u64 * 10);

fn heartbeats(scene: &Scene) -> usize {
    scene.link.with(scene.sandbox, |row| row.heartbeats.len())
}

#[tokio::test(start_paused = true)]
async fn when_the_work_is_done_the_worker_flushes_and_goes() {
    let scene = Scene::new("").await;
    scene.link.with(scene.sandbox, |row| row.when_done = true);
    scene.link.send(scene.sandbox, "say bye", Delivery::Steer);
    scene.until("agent.completed").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(scene.types().last().unwrap(), "agent.shutdown", "it doesn't wait for the next heartbeat");
    assert!(scene.link.with(scene.sandbox, |row| row.is_final));
    let beats = heartbeats(&scene);
    tokio::time::sleep(LONG).await;
    assert_eq!(heartbeats(&scene), beats);
    assert_eq!(Arc::strong_count(&scene.link), 2, "its task has ended");
    scene.link.assert_orderly();
}

#[tokio::test(start_paused = true)]
async fn a_stop_gives_back_what_the_agent_was_never_told() {
    for state in [SandboxState::Completing, SandboxState::Completed, SandboxState::Failed] {
        let scene = Scene::new("wait 5000").await;
        scene.until("agent.started").await;
        let id = scene.link.send(scene.sandbox, "say later", Delivery::Queue);
        tokio::time::sleep(Duration::from_secs(1)).await;
        scene.link.set_state(scene.sandbox, state);
        scene.until("agent.shutdown").await;
        scene.link.with(scene.sandbox, |row| {
            assert!(row.is_final);
            let (given_back, nack) = &row.nacks[0];
            assert_eq!((*given_back, nack.handed, nack.retry), (id, false, true));
        });
        scene.link.assert_orderly();
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_agent_is_told_nothing_more_and_its_worker_stays_until_it_may_go() {
    for (line, reason) in [("fail no key", "agent_failed"), ("oom", "out_of_memory")] {
        let scene = Scene::new(&format!("say before\n{line}\nsay after")).await;
        scene.until("agent.failed").await;
        let beats = heartbeats(&scene);
        tokio::time::sleep(LONG).await;
        assert!(heartbeats(&scene) > beats + 5);
        assert_eq!(scene.types(), ["agent.started", "agent.message", "agent.failed"]);
        assert_eq!(scene.data("agent.failed")[0]["reason"], reason);
        scene.link.send(scene.sandbox, "say again", Delivery::Steer);
        tokio::time::sleep(LONG).await;
        scene.link.set_state(scene.sandbox, SandboxState::Failed);
        scene.until("agent.shutdown").await;
        assert_eq!(scene.types().len(), 4);
        scene.link.assert_orderly();
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_comes_without_a_word() {
    let scene = Scene::new("say before\ncrash\nsay after").await;
    tokio::time::sleep(LONG).await;
    assert_eq!(scene.types(), ["agent.started", "agent.message"]);
    let beats = heartbeats(&scene);
    tokio::time::sleep(LONG).await;
    assert_eq!(heartbeats(&scene), beats);
    assert_eq!(Arc::strong_count(&scene.link), 2, "its task has ended");
    assert!(!scene.link.with(scene.sandbox, |row| row.is_final));
}

#[tokio::test(start_paused = true)]
async fn a_hanging_agent_has_a_living_worker() {
    let scene = Scene::new("hang\nsay never").await;
    scene.until("agent.started").await;
    scene.link.interrupt(scene.sandbox);
    let beats = heartbeats(&scene);
    tokio::time::sleep(LONG).await;
    assert!(heartbeats(&scene) > beats + 5);
    assert_eq!(scene.types(), ["agent.started"]);
    assert_eq!(scene.link.with(scene.sandbox, |row| row.heartbeats.last().unwrap().1), Activity::Working);
    scene.link.set_state(scene.sandbox, SandboxState::Completing);
    scene.until("agent.shutdown").await;
}

#[tokio::test(start_paused = true)]
async fn heartbeats_keep_their_interval_also_in_the_middle_of_work() {
    let scene = Scene::new("wait 300").await;
    scene.until("agent.completed").await;
    let times = scene.link.with(scene.sandbox, |row| row.heartbeats.iter().map(|(at, _)| *at).collect::<Vec<_>>());
    assert!(times.len() >= 10);
    let interval = Duration::from_secs(INTERVAL_S.into());
    assert!(times.windows(2).take(9).all(|pair| (pair[1] - pair[0]).abs_diff(interval) < Duration::from_secs(1)));
}

#[tokio::test(start_paused = true)]
async fn while_the_server_is_away_the_work_goes_on_and_is_told_later() {
    let scene = Scene::new("wait 10\nsay one\nwait 40\nsay two").await;
    scene.until("agent.started").await;
    scene.link.set_down(true);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(scene.types(), ["agent.started"]);
    scene.link.set_down(false);
    scene.until("agent.waiting").await;
    let types = ["agent.started", "agent.message", "agent.message", "agent.completed", "agent.waiting"];
    assert_eq!(scene.types(), types);
    scene.link.assert_orderly();
}

#[tokio::test(start_paused = true)]
async fn nothing_happens_in_a_paused_sandbox() {
    let scene = Scene::new("wait 5\nsay hi").await;
    scene.until("agent.started").await;
    scene.fake.pause(&scene.id).await.unwrap();
    let beats = heartbeats(&scene);
    tokio::time::sleep(LONG).await;
    assert_eq!((heartbeats(&scene), scene.types().len()), (beats, 1));
    scene.fake.resume(&scene.id).await.unwrap();
    scene.until("agent.waiting").await;
    assert!(heartbeats(&scene) > beats);
    scene.link.assert_orderly();
}

#[tokio::test(start_paused = true)]
async fn every_task_ends_on_destroy_and_with_the_provider() {
    let link = Recorder::new();
    let fake = Fake::new(FakeOptions::default(), link.clone());
    let mut ids = Vec::new();
    for n in 0..10 {
        let spec = spec();
        link.prompt(spec.identity.sandbox, "run sleep 1000");
        ids.push(fake.create(&spec, &n.to_string()).await.unwrap().id);
    }
    let sleep = ExecSpec {
        command: Command::Shell("sleep 1000".into()),
        cwd: None,
        env: BTreeMap::new(),
        stdin: false,
        as_root: false,
        terminal: None,
        timeout: None,
    };
    let exec = fake.exec(&ids[0], &sleep).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(fake.resources(&ids[0]).await.unwrap().pids, 3);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!((Arc::strong_count(&link), tasks()), (12, 21));
    for id in &ids[..5] {
        fake.destroy(id).await.unwrap();
    }
    assert_eq!(fake.signal(&exec, 9).await, Err(Error::Gone));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((Arc::strong_count(&link), tasks()), (7, 10));
    drop(fake);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((Arc::strong_count(&link), tasks()), (1, 0));
}
