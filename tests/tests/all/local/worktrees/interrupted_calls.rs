//! Calls that are interrupted or killed, and servers and sandboxes that end during a call.

use super::code_call::{ask_demo, find_worktree_sandbox, finish, run_code, spawn_code, stop_all, worktree_files};
use atoll_test_wait::poll_until;
use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{LocalServer, host_state, report_skipped};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;
use tokio::task::block_in_place;

/// Runs a call until it prints a phase, sends it a signal, and waits for its end.
fn interrupt_call(server: &LocalServer, root: &Path, prompt: &str, phase: &str, signal: Signal) -> Option<i32> {
    let mut child = spawn_code(server, root, &ask_demo(prompt));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let wanted = format!("\"phase\":\"{phase}\"");
    let reached = lines.by_ref().any(|line| line.unwrap().contains(&wanted));
    assert!(reached, "the call must reach {phase}");
    kill_process(Pid::from_child(&child), signal).unwrap();
    lines.for_each(drop);
    child.wait().unwrap().code()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_ends_in_any_phase_leaves_all_or_nothing() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let root = repository.path();
    let contents = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
    let mut number = 0;
    for signal in [Signal::INT, Signal::KILL] {
        for phase in ["sync_in", "agent", "sync_out"] {
            number += 1;
            // The same line changes each time: a lost confirmation must not look like a conflict.
            repository.write("mine.txt", &format!("{number}\n"));
            let prompt = format!("edit one.txt {number}\nedit two.txt {number}");
            let exit = block_in_place(|| interrupt_call(&server, root, &prompt, phase, signal));
            assert!(matches!(exit, Some(0 | 130) | None), "{phase}: {exit:?}");
            assert_eq!(contents("one.txt"), contents("two.txt"), "{signal:?} in {phase}");
            assert_eq!(contents("mine.txt"), format!("{number}\n"), "{signal:?} in {phase}");
        }
    }
    repository.write("mine.txt", "last\n");
    let call = run_code(&server, root, &ask_demo("run cat mine.txt > seen.txt\nedit one.txt done\nedit two.txt done"));
    assert_eq!(call.exit, Some(0), "{:#?}", call.lines);
    assert_eq!([contents("one.txt"), contents("two.txt"), contents("seen.txt")], ["done\n", "done\n", "last\n"]);
    stop_all(server, &[&call.sandbox()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_request_does_not_leave_the_sandbox_paused() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let call = run_code(&server, repository.path(), &ask_demo("edit a.txt x"));
    let events = server.admin.all_events(&call.sandbox()).await;
    let base = events.iter().find(|event| event["type"] == "worktree.synced_in").unwrap()["data"]["commit"].clone();
    let path = format!("/sandboxes/{}/worktree/out?base={}", call.sandbox(), base.as_str().unwrap());
    for milliseconds in [2, 4, 8, 12, 16, 24, 32, 48] {
        let request = server.admin.post(&path, serde_json::json!({}));
        drop(tokio::time::timeout(Duration::from_millis(milliseconds), request).await);
        // The server completes the request without its client. Commands are refused until then.
        let command = serde_json::json!({ "argv": ["true"] });
        let exec = format!("/sandboxes/{}/exec", call.sandbox());
        poll_until("the sandbox to run", async || server.admin.post(&exec, command.clone()).await.status == 200).await;
    }
    stop_all(server, &[&call.sandbox()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_survives_a_restart_of_the_server() {
    let (mut server, repository) = (LocalServer::start(), SampleRepository::create());
    let root = repository.path();
    let prompt = "edit one.txt 1\nrun until test -e /tmp/go; do sleep 0.05; done\nedit two.txt 2";
    let child = spawn_code(&server, root, &ask_demo(prompt));
    let sandbox = find_worktree_sandbox(&server).await;
    server.wait_for_event(&sandbox, |event| event["type"] == "agent.file_edited").await;
    block_in_place(|| server.process.restart());
    server.run_shell(&sandbox, "touch /tmp/go").await.expect_success();
    let call = block_in_place(|| finish(child));
    assert_eq!(call.exit, Some(0), "{:#?}", call.lines);
    assert!(root.join("one.txt").exists() && root.join("two.txt").exists());
    let edits = call.of_type("agent.file_edited");
    assert_eq!(edits.len(), 2, "each event once: {edits:#?}");
    stop_all(server, &[&sandbox]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_work_of_a_killed_sandbox_can_be_pulled() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let root = repository.path();
    let before = worktree_files(root);
    let child = spawn_code(&server, root, &ask_demo("edit one.txt 1\nwait 600"));
    let sandbox = find_worktree_sandbox(&server).await;
    server.wait_for_event(&sandbox, |event| event["type"] == "agent.file_edited").await;
    let Some(worker) = host_state::find_worker_process(&sandbox) else {
        report_skipped("a sandbox that dies during a call", "there are no cgroups to find it by");
        block_in_place(|| kill_process(Pid::from_child(&child), Signal::KILL).unwrap());
        block_in_place(|| finish(child));
        return stop_all(server, &[&sandbox]).await;
    };
    worker.kill();
    let call = block_in_place(|| finish(child));
    assert_eq!(
        (call.exit, call.of_type("error")[0]["kind"].as_str()),
        (Some(2), Some("provider")),
        "{:#?}",
        call.lines
    );
    assert_eq!(worktree_files(root), before);
    let pulled = run_code(&server, root, &["--pull"]);
    assert_eq!(pulled.exit, Some(0), "{:#?}", pulled.lines);
    assert_eq!(fs::read_to_string(root.join("one.txt")).unwrap(), "1\n");
    let next = run_code(&server, root, &ask_demo("run test -f one.txt\nedit two.txt 2"));
    assert_eq!(next.exit, Some(0), "{:#?}", next.lines);
    assert_ne!(next.sandbox(), sandbox);
    server.admin.delete(&format!("/sandboxes/{sandbox}?force=true")).await.expect_status(200);
    server.wait_until_removed(&sandbox).await;
    stop_all(server, &[&next.sandbox()]).await;
}
