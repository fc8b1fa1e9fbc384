//! Every outcome has the right reason, and the work so far can be exported.

use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{LocalServer, agent_messages, event_data, host_state, report_skipped};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Runs an agent that works and then ends by `end`. Asserts the reason of the failure, and that the results survive.
async fn assert_fails_with(end: &str, settings: Value, reason: &str) -> (Value, Vec<Value>) {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let mut request = json!({
        "prompt": format!("say before\nedit kept.txt hello\nrun echo more > more.txt\n{end}\nsay after"),
        "repo": { "path": repository.path_str() },
    });
    request.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    let before = repository.checkout_state();
    let id = server.create_sandbox(request).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!((row["state"].as_str(), row["reason"]["code"].as_str()), (Some("failed"), Some(reason)), "{row}");
    assert!(!row["reason"]["detail"].as_str().unwrap().is_empty(), "{row}");
    let events = server.admin.all_events(&id).await;
    assert_eq!(agent_messages(&events), ["before"], "only the messages before the end");
    assert_eq!(event_data(&events, "sandbox.failed").len(), 1);

    let path = format!("/sandboxes/{id}");
    let exported = server.admin.post(&format!("{path}/results"), json!({})).await.expect_status(200);
    let result = &exported["taken"][0];
    assert_eq!(
        (result["kind"].as_str(), result["repo"].as_str()),
        (Some("branch"), Some(repository.path_str())),
        "{exported}"
    );
    let branch = result["branch"].as_str().unwrap();
    assert_eq!(repository.run_git(&["rev-parse", branch]).trim(), result["commit"]);
    assert_eq!(repository.file_at(branch, "kept.txt").as_deref(), Some("hello\n"), "its work must survive");
    assert_eq!(repository.file_at(branch, "more.txt").as_deref(), Some("more\n"), "its work must survive");
    repository.assert_untouched(&before, branch);
    server.admin.delete(&path).await.expect_status(200);
    server.wait_until_removed(&id).await;
    server.stop_and_check().await;
    (row, events)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_is_reported_with_the_stderr_tail() {
    let (_, events) = assert_fails_with("crash", json!({}), "agent_crashed").await;
    let failed = event_data(&events, "agent.failed")[0].clone();
    assert_eq!(failed["reason"], "agent_crashed");
    assert_eq!(failed["exit"]["kind"], "signalled", "{failed}");
    assert!(!failed["stderr_tail"].is_null(), "the tail of stderr is missing: {failed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_gives_up_is_reported_as_agent_failed() {
    let (row, events) = assert_fails_with("fail no luck today", json!({}), "agent_failed").await;
    assert!(row["reason"]["detail"].as_str().unwrap().contains("no luck today"), "{row}");
    assert_eq!(event_data(&events, "agent.failed").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_agent_ends_by_the_timeout() {
    let started = Instant::now();
    assert_fails_with("hang", json!({ "timeout_s": 3 }), "timeout").await;
    assert!(started.elapsed() < Duration::from_secs(50), "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_out_of_memory_is_reported_with_limit_and_peak() {
    if !is_memory_enforced().await {
        return report_skipped("out_of_memory", "nothing here enforces a memory limit");
    }
    let (_, events) = assert_fails_with("oom", json!({ "resources": { "memory_gb": 0.1 } }), "out_of_memory").await;
    let failed = event_data(&events, "agent.failed")[0].clone();
    assert_eq!(failed["reason"], "out_of_memory", "{failed}");
    let (limit, peak) = (failed["memory_limit"].as_u64().unwrap(), failed["memory_peak"].as_u64().unwrap());
    assert!((90_000_000..=110_000_000).contains(&limit), "{failed}");
    assert!(peak > limit / 2 && peak <= limit + (1 << 20), "{failed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_worker_is_detected_at_once() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let settings =
        json!({ "prompt": "say before\nedit kept.txt hello\nwait 600", "repo": { "path": repository.path_str() } });
    let id = server.create_sandbox(settings).await;
    server.wait_for_event(&id, |event| event["type"] == "agent.file_edited").await;
    let Some(worker) = host_state::find_worker_process(&id) else {
        report_skipped("a killed worker", "there are no cgroups to find it by");
        return server.stop_and_check().await;
    };
    let others = host_state::list_leaf_processes(&id, "agent");
    let started = Instant::now();
    assert!(worker.kill());
    let row = server.wait_until_ended(&id).await;
    assert_eq!((row["state"].as_str(), row["reason"]["code"].as_str()), (Some("failed"), Some("worker_died")), "{row}");
    assert!(row["reason"]["detail"].as_str().unwrap().contains("killed by signal 9"), "{row}");
    assert!(started.elapsed() < Duration::from_secs(50), "{:?}", started.elapsed());
    assert!(others.iter().all(|process| process.ends_in_time()), "all processes must end with pid 1: {others:?}");
    let exported = server.admin.post(&format!("/sandboxes/{id}/results"), json!({})).await.expect_status(200);
    let branch = exported["taken"][0]["branch"].as_str().unwrap();
    assert_eq!(repository.file_at(branch, "kept.txt").as_deref(), Some("hello\n"), "its work must survive");
    server.stop_and_check().await;
}

/// Returns true if this host enforces a memory limit for a whole sandbox.
pub async fn is_memory_enforced() -> bool {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let has_limit = host_state::has_memory_limit(&id);
    server.stop_and_check().await;
    has_limit
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_takes_or_discards_the_results() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let settings = json!({ "prompt": "edit kept.txt hello\nwait 600", "repo": { "path": repository.path_str() } });
    for (results, branches) in [("take", 1), ("discard", 0)] {
        let before = repository.checkout_state();
        let id = server.create_sandbox(settings.clone()).await;
        server.wait_for_event(&id, |event| event["type"] == "agent.file_edited").await;
        let stop = json!({ "results": results });
        server.admin.post(&format!("/sandboxes/{id}/stop"), stop).await.expect_status(200);
        let row = server.wait_until_ended(&id).await;
        assert_eq!((row["state"].as_str(), row["outcome"].as_str()), (Some("completed"), Some("cancelled")), "{row}");
        let events = server.admin.all_events(&id).await;
        let created = event_data(&events, "git.branch_created");
        assert_eq!(created.len(), branches, "{results}: {events:#?}");
        match created.first() {
            Some(created) => {
                let branch = created["branch"].as_str().unwrap();
                assert_eq!(repository.file_at(branch, "kept.txt").as_deref(), Some("hello\n"));
                repository.assert_untouched(&before, branch);
            }
            None => assert_eq!(repository.checkout_state(), before),
        }
        server.wait_until_removed(&id).await;
    }
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_with_unexported_results_is_not_deleted_without_force() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let settings = json!({ "prompt": "edit kept.txt hello\ncrash", "repo": { "path": repository.path_str() } });
    let id = server.create_sandbox(settings).await;
    assert_eq!(server.wait_until_ended(&id).await["reason"]["code"], "agent_crashed");
    let refused = server.admin.delete(&format!("/sandboxes/{id}")).await;
    assert_eq!(refused.status.as_u16(), 409, "{}", refused.body);
    assert!(server.sandbox_dir(&id).exists());
    server.admin.delete(&format!("/sandboxes/{id}?force=true")).await.expect_status(200);
    server.wait_until_removed(&id).await;
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_of_command_exit_is_reported() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({ "resources": { "memory_gb": 0.2 } })).await;
    let ran = server.run_exec(&id, json!({ "argv": ["sh", "-c", "echo out; echo err >&2; exit 7"] })).await;
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(ran.exit, json!({ "kind": "exited", "code": 7 }));
    let ran = server.run_shell(&id, "kill -TERM $$").await;
    assert_eq!(ran.exit, json!({ "kind": "signalled", "signal": 15 }));
    let ran = server.run_shell(&id, "kill -KILL $$").await;
    assert_eq!(ran.exit, json!({ "kind": "signalled", "signal": 9 }), "a kill is not out of memory");

    let started = Instant::now();
    let ran = server.run_exec(&id, json!({ "shell": "echo begun; sleep 610 & sleep 620", "timeout_s": 1 })).await;
    assert_eq!((ran.stdout.as_str(), ran.exit["kind"].as_str()), ("begun\n", Some("timed_out")), "{ran:?}");
    assert!(started.elapsed() < Duration::from_secs(50));
    let left = server.run_shell(&id, "grep -l sleep /proc/[0-9]*/comm; true").await.expect_success();
    assert_eq!(left, "", "the whole process group must end");

    let ran = server.run_exec(&id, json!({ "argv": ["no-such-program"] })).await;
    assert_eq!(ran.exit, json!({ "kind": "exited", "code": 127 }), "127 as in a shell: {ran:?}");
    assert!(ran.stderr.contains("no-such-program"), "{ran:?}");
    let ran = server.run_exec(&id, json!({ "argv": ["pwd"], "cwd": "/tmp" })).await;
    assert_eq!(ran.expect_success(), "/tmp\n");
    let ran = server.run_exec(&id, json!({ "argv": ["printenv", "WORD"], "env": { "WORD": "it's $HOME" } })).await;
    assert_eq!(ran.expect_success(), "it's $HOME\n");
    if host_state::has_memory_limit(&id) {
        let ran = server.run_shell(&id, "tail /dev/zero").await;
        assert_eq!(ran.exit["kind"], "out_of_memory", "{ran:?}");
    } else {
        report_skipped("out_of_memory of a command", "nothing here enforces a memory limit");
    }
    assert_eq!(
        server.run_exec(&id, json!({ "argv": ["echo", "well"] })).await.expect_success(),
        "well\n",
        "the sandbox must still run commands"
    );
    server.stop_and_check().await;
}

/// The launcher is stopped while the server creates a sandbox, as on a machine that is too busy to run it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_during_a_creation_leaves_nothing() {
    let server = LocalServer::start();
    let launchers = host_state::list_children(server.process.pid());
    assert!(!launchers.is_empty(), "the server has a launcher");
    assert!(launchers.iter().all(|launcher| launcher.send_signal(Signal::STOP)));
    // Without `approvals`, the server would ask the launcher how strongly it isolates.
    server.create_sandbox(json!({ "agent": null, "approvals": "full" })).await;
    let resumed = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        launchers.iter().all(|launcher| launcher.send_signal(Signal::CONT))
    });
    server.stop_and_check().await;
    assert!(resumed.await.unwrap());
}
