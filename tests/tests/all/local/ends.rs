//! Every end says what it was, and the work until then is kept.

use atoll_tests::local::repository::Repository;
use atoll_tests::local::{Ground, said, skipped, told, traces};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A sandbox whose agent does something and then `end`s: failed for `reason`, and what it did can be taken out.
async fn ends_as(end: &str, settings: Value, reason: &str) -> (Value, Vec<Value>) {
    let (ground, repository) = (Ground::start(), Repository::sample());
    let mut asked = json!({
        "prompt": format!("say before\nedit kept.txt hello\nrun echo more > more.txt\n{end}\nsay after"),
        "repo": { "path": repository.text() },
    });
    asked.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    let before = repository.checkout();
    let id = ground.make(asked).await;
    let row = ground.ended(&id).await;
    assert_eq!((row["state"].as_str(), row["reason"]["code"].as_str()), (Some("failed"), Some(reason)), "{row}");
    assert!(!row["reason"]["detail"].as_str().unwrap().is_empty(), "{row}");
    let events = ground.admin.all_events(&id).await;
    assert_eq!(said(&events), ["before"], "what was said until then, and no more");
    assert_eq!(told(&events, "sandbox.failed").len(), 1);

    let path = format!("/sandboxes/{id}");
    let taken = ground.admin.post(&format!("{path}/results"), json!({})).await.expect(200);
    let result = &taken["taken"][0];
    assert_eq!(
        (result["kind"].as_str(), result["repo"].as_str()),
        (Some("branch"), Some(repository.text())),
        "{taken}"
    );
    let branch = result["branch"].as_str().unwrap();
    assert_eq!(repository.git(&["rev-parse", branch]).trim(), result["commit"]);
    assert_eq!(repository.show(branch, "kept.txt").as_deref(), Some("hello\n"), "its work is kept");
    assert_eq!(repository.show(branch, "more.txt").as_deref(), Some("more\n"), "its work is kept");
    repository.is_untouched(&before, branch);
    ground.admin.delete(&path).await.expect(200);
    ground.gone(&id).await;
    ground.leave().await;
    (row, events)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_is_told_as_a_crash() {
    let (_, events) = ends_as("crash", json!({}), "agent_crashed").await;
    let failed = told(&events, "agent.failed")[0].clone();
    assert_eq!(failed["reason"], "agent_crashed");
    assert_eq!(failed["exit"]["kind"], "signalled", "{failed}");
    assert!(!failed["stderr_tail"].is_null(), "with the last that it said: {failed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn giving_up_is_told_as_the_agent_s_own_failure() {
    let (row, events) = ends_as("fail no luck today", json!({}), "agent_failed").await;
    assert!(row["reason"]["detail"].as_str().unwrap().contains("no luck today"), "{row}");
    assert_eq!(told(&events, "agent.failed").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standing_still_is_ended_by_the_timeout() {
    let began = Instant::now();
    ends_as("hang", json!({ "timeout_s": 3 }), "timeout").await;
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_out_of_memory_is_told_as_that_with_limit_and_peak() {
    if !memory_is_enforced().await {
        return skipped("out_of_memory", "nothing here enforces a memory limit");
    }
    let (_, events) = ends_as("oom", json!({ "resources": { "memory_gb": 0.1 } }), "out_of_memory").await;
    let failed = told(&events, "agent.failed")[0].clone();
    assert_eq!(failed["reason"], "out_of_memory", "{failed}");
    let (limit, peak) = (failed["memory_limit"].as_u64().unwrap(), failed["memory_peak"].as_u64().unwrap());
    assert!((90_000_000..=110_000_000).contains(&limit), "{failed}");
    assert!(peak > limit / 2 && peak <= limit + (1 << 20), "{failed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_killed_is_missed_at_once() {
    let (ground, repository) = (Ground::start(), Repository::sample());
    let settings =
        json!({ "prompt": "say before\nedit kept.txt hello\nwait 60", "repo": { "path": repository.text() } });
    let id = ground.make(settings).await;
    ground.event(&id, |event| event["type"] == "agent.file_edited").await;
    let Some(worker) = traces::worker(&id) else {
        skipped("a killed worker", "there are no cgroups to find it by");
        return ground.leave().await;
    };
    let others = traces::leaf(&id, "agent");
    let began = Instant::now();
    assert!(worker.kill());
    let row = ground.ended(&id).await;
    assert_eq!((row["state"].as_str(), row["reason"]["code"].as_str()), (Some("failed"), Some("worker_died")), "{row}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(others.iter().all(|process| process.ends_within(Duration::from_secs(5))), "all go with pid 1: {others:?}");
    let taken = ground.admin.post(&format!("/sandboxes/{id}/results"), json!({})).await.expect(200);
    let branch = taken["taken"][0]["branch"].as_str().unwrap();
    assert_eq!(repository.show(branch, "kept.txt").as_deref(), Some("hello\n"), "its work is kept");
    ground.leave().await;
}

/// Whether a sandbox on this machine gets a bound on its memory as a whole.
pub async fn memory_is_enforced() -> bool {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let limits = traces::limits_memory(&id);
    ground.leave().await;
    limits
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_takes_the_results_or_discards_them() {
    let (ground, repository) = (Ground::start(), Repository::sample());
    let settings = json!({ "prompt": "edit kept.txt hello\nwait 60", "repo": { "path": repository.text() } });
    for (results, branches) in [("take", 1), ("discard", 0)] {
        let before = repository.checkout();
        let id = ground.make(settings.clone()).await;
        ground.event(&id, |event| event["type"] == "agent.file_edited").await;
        let stop = json!({ "results": results });
        ground.admin.post(&format!("/sandboxes/{id}/stop"), stop).await.expect(200);
        let row = ground.ended(&id).await;
        assert_eq!((row["state"].as_str(), row["outcome"].as_str()), (Some("completed"), Some("cancelled")), "{row}");
        let events = ground.admin.all_events(&id).await;
        let made = told(&events, "git.branch_created");
        assert_eq!(made.len(), branches, "{results}: {events:#?}");
        match made.first() {
            Some(made) => {
                let branch = made["branch"].as_str().unwrap();
                assert_eq!(repository.show(branch, "kept.txt").as_deref(), Some("hello\n"));
                repository.is_untouched(&before, branch);
            }
            None => assert_eq!(repository.checkout(), before),
        }
        ground.gone(&id).await;
    }
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_that_are_not_out_yet_are_not_removed_by_mistake() {
    let (ground, repository) = (Ground::start(), Repository::sample());
    let settings = json!({ "prompt": "edit kept.txt hello\ncrash", "repo": { "path": repository.text() } });
    let id = ground.make(settings).await;
    assert_eq!(ground.ended(&id).await["reason"]["code"], "agent_crashed");
    let refused = ground.admin.delete(&format!("/sandboxes/{id}")).await;
    assert_eq!(refused.status.as_u16(), 409, "{}", refused.body);
    assert!(ground.home_of(&id).exists());
    ground.admin.delete(&format!("/sandboxes/{id}?force=true")).await.expect(200);
    ground.gone(&id).await;
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_end_of_a_command_is_told_apart() {
    let ground = Ground::start();
    let id = ground.kept(json!({ "resources": { "memory_gb": 0.2 } })).await;
    let ran = ground.exec(&id, json!({ "argv": ["sh", "-c", "echo out; echo err >&2; exit 7"] })).await;
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(ran.exit, json!({ "kind": "exited", "code": 7 }));
    let ran = ground.shell(&id, "kill -TERM $$").await;
    assert_eq!(ran.exit, json!({ "kind": "signalled", "signal": 15 }));
    let ran = ground.shell(&id, "kill -KILL $$").await;
    assert_eq!(ran.exit, json!({ "kind": "signalled", "signal": 9 }), "killed, but not for its memory");

    let began = Instant::now();
    let ran = ground.exec(&id, json!({ "shell": "echo begun; sleep 61 & sleep 62", "timeout_s": 1 })).await;
    assert_eq!((ran.stdout.as_str(), ran.exit["kind"].as_str()), ("begun\n", Some("timed_out")), "{ran:?}");
    assert!(began.elapsed() < Duration::from_secs(20));
    let left = ground.shell(&id, "grep -l sleep /proc/[0-9]*/comm; true").await.well();
    assert_eq!(left, "", "the whole group went");

    let ran = ground.exec(&id, json!({ "argv": ["no-such-program"] })).await;
    assert_eq!(ran.exit, json!({ "kind": "exited", "code": 127 }), "as a shell says it: {ran:?}");
    assert!(ran.stderr.contains("no-such-program"), "{ran:?}");
    let ran = ground.exec(&id, json!({ "argv": ["pwd"], "cwd": "/tmp" })).await;
    assert_eq!(ran.well(), "/tmp\n");
    let ran = ground.exec(&id, json!({ "argv": ["printenv", "WORD"], "env": { "WORD": "it's $HOME" } })).await;
    assert_eq!(ran.well(), "it's $HOME\n");
    if traces::limits_memory(&id) {
        let ran = ground.shell(&id, "tail /dev/zero").await;
        assert_eq!(ran.exit["kind"], "out_of_memory", "{ran:?}");
    } else {
        skipped("out_of_memory of a command", "nothing here enforces a memory limit");
    }
    assert_eq!(
        ground.exec(&id, json!({ "argv": ["echo", "well"] })).await.well(),
        "well\n",
        "it goes on after all that"
    );
    ground.leave().await;
}
