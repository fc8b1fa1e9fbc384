//! `atoll run` without a terminal.

use crate::program::{Running, atoll, objects, serve, text, with_input};
use rustix::process::Signal;
use serde_json::json;
use std::path::Path;
use std::process::Output;

fn run(data_dir: &Path, prompt: &str, flags: &[&str]) -> Output {
    atoll(data_dir).args(["run", "--provider", "fake", prompt]).args(flags).output().unwrap()
}

/// Replaces ids, times and directories.
fn redacted(stdout: &str, data_dir: &Path) -> String {
    let stdout = stdout.replace(&data_dir.display().to_string(), "DIR");
    let words = stdout.split_inclusive([' ', '\n', ',']).map(|word| {
        let is_id = word.starts_with("sbx_");
        let is_time = word.len() > 2
            && word.as_bytes()[0].is_ascii_digit()
            && word.trim_end_matches([',', '\n', ' ']).ends_with('s');
        let end = &word[word.trim_end_matches([',', '\n', ' ']).len()..];
        match (is_id, is_time) {
            (true, _) => format!("sbx_…{end}"),
            (_, true) => format!("TIME{end}"),
            _ => word.to_owned(),
        }
    });
    words.collect()
}

/// The end of the id in the first line, which later commands use.
fn short_id(done: &Output) -> String {
    let stdout = text(&done.stdout);
    let id = stdout.split_whitespace().find(|word| word.starts_with("sbx_")).unwrap();
    id[id.len() - 6..].to_owned()
}

#[test]
fn prints_a_run_as_plain_lines() {
    let dir = tempfile::tempdir().unwrap();
    let done =
        run(dir.path(), "say I \x1b[31mlook\nrun echo hi\nrun false\nedit a.txt one\nedit a.txt two\nfix it", &[]);
    assert_eq!(text(&done.stderr), "");
    assert_eq!(done.status.code(), Some(0));
    insta::assert_snapshot!("plain", redacted(&text(&done.stdout).replace(&short_id(&done), "SHORT"), dir.path()));
}

#[test]
fn prints_a_run_as_json() {
    let dir = tempfile::tempdir().unwrap();
    let done = run(dir.path(), "say hello\nfail no key", &["--json"]);
    assert_eq!(done.status.code(), Some(1), "the work failed");
    let lines = objects(&done);
    let (first, last) = (lines.first().unwrap(), lines.last().unwrap());
    assert_eq!(first["type"], "started");
    assert!(first["sandbox"].as_str().unwrap().starts_with("sbx_"));
    assert!(first["session"].as_str().unwrap().starts_with("ses_"));
    assert_eq!(
        (last["type"].as_str(), last["state"].as_str(), last["outcome"].as_str()),
        (Some("done"), Some("failed"), Some("failed"))
    );
    assert_eq!((last["reason"]["code"].as_str(), last["exit"].as_i64()), (Some("agent_failed"), Some(1)));
    let seqs: Vec<_> = lines[1..lines.len() - 1].iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
}

#[test]
fn reads_the_prompt_from_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    for dash in [&["run", "--provider", "fake"][..], &["run", "--provider", "fake", "-"]] {
        let mut command = atoll(dir.path());
        command.args(dash);
        let done = with_input(command, "say hello\n");
        assert!(text(&done.stdout).contains("• hello"), "{}", text(&done.stderr));
    }
}

#[test]
fn set_up_failures_have_a_reason_and_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    for (arguments, message) in [
        (&["run"][..], "the prompt is empty"),
        (&["run", "  "], "the prompt is empty"),
        (&["run", "x", "--repo", "https://127.0.0.1:9/x.git"], "https://127.0.0.1:9/x.git: no connection"),
        (&["run", "x", "--repo", "nowhere"], "nowhere"),
        (&["run", "x", "--provider", "external"], "starts no agent"),
        (&["run", "x", "--provider", "fake", "--keep"], "atoll serve"),
        (&["run", "x", "--server", "http://127.0.0.1:9"], "no server answers"),
        (&["run", "x", "--timeout", "0"], "--timeout"),
    ] {
        let done = atoll(dir.path()).args(arguments).env("ATOLL_TOKEN", "none").output().unwrap();
        let stderr = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(message) && stderr.lines().count() > 1, "{arguments:?}: {stderr}");
    }
}

#[test]
fn uses_a_running_server_and_leaves_it_running() {
    let dir = tempfile::tempdir().unwrap();
    let (server, url) = serve(dir.path(), "127.0.0.1:0");
    let done = run(dir.path(), "say hello", &[]);
    let stdout = text(&done.stdout);
    assert!(stdout.contains(&format!("on {url}")) && stdout.contains("✓ done"), "{stdout}");
    let listed = atoll(dir.path()).args(["sandbox", "ls", "--json"]).output().unwrap();
    let sandbox = objects(&listed).remove(0);
    assert_eq!(sandbox["outcome"], "succeeded");
    let replayed =
        atoll(dir.path()).args(["replay", sandbox["id"].as_str().unwrap(), "--speed", "1000"]).output().unwrap();
    let replayed = text(&replayed.stdout);
    assert!(replayed.contains("› say hello") && replayed.contains("• hello"), "{replayed}");
    let providers = objects(&atoll(dir.path()).args(["providers", "--json"]).output().unwrap());
    let fake = providers.iter().find(|provider| provider["name"] == "fake").unwrap();
    assert_eq!((&fake["available"], &fake["capabilities"]["isolation"]), (&json!(true), &json!("simulated")), "{fake}");
    assert!(fake["create_timeout_s"].as_u64().is_some_and(|seconds| seconds > 0), "{fake}");
    server.signal(Signal::TERM);
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn a_second_run_uses_the_embedded_server_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = atoll(dir.path());
    first.args(["run", "--provider", "fake", "say one\nwait 1"]);
    let mut first = Running::start(first);
    first.until("• one");
    let second = run(dir.path(), "say two\nwait 2", &[]);
    let stdout = text(&second.stdout);
    assert_eq!(second.status.code(), Some(0), "{stdout}{}", text(&second.stderr));
    assert!(stdout.contains("on http://127.0.0.1:"), "{stdout}");
    let (exit, _, stderr) = first.end();
    assert_eq!(exit, Some(0));
    assert!(stderr.contains("1 other run uses"), "{stderr}");
}

#[test]
fn a_signal_interrupts_the_agent_and_a_second_one_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for signal in [Signal::INT, Signal::TERM] {
        let mut command = atoll(dir.path());
        command.args(["run", "--provider", "fake", "say begun\nwait 600"]);
        let mut running = Running::start(command);
        running.until("• begun");
        running.signal(signal);
        running.until("› interrupt");
        // `timeout` signals its child and then the process group of its child.
        running.signal(signal);
        let (exit, stdout, _) = running.end();
        assert_eq!(exit, Some(130), "{stdout}");
        assert!(stdout.contains("the agent was interrupted") && stdout.contains("stopped after"), "{stdout}");
    }
}

#[test]
fn a_closed_pipe_stops_the_sandbox() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = atoll(dir.path());
    command.args(["run", "--provider", "fake", "say begun\nwait 600"]);
    let mut running = Running::start(command);
    running.until("• begun");
    running.stop_reading();
    // The run writes to the closed pipe only after this message.
    let listed = atoll(dir.path()).args(["sandbox", "ls", "--json"]).output().unwrap();
    let id = objects(&listed)[0]["id"].as_str().unwrap().to_owned();
    atoll(dir.path()).args(["send", &id, "say more"]).output().unwrap();
    assert_eq!(running.code(), Some(0), "a closed pipe is not a failure");
    let (_server, _) = serve(dir.path(), "127.0.0.1:0");
    let row = atoll(dir.path()).args(["sandbox", "show", &id, "--json"]).output().unwrap();
    assert_eq!(objects(&row)[0]["outcome"], "cancelled");
}

#[test]
fn detaching_from_a_running_server_prints_how_to_return() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, _) = serve(dir.path(), "127.0.0.1:0");
    let mut command = atoll(dir.path());
    command.args(["run", "--provider", "fake", "say begun\nwait 600"]);
    let mut running = Running::start(command);
    running.until("• begun");
    running.signal(Signal::HUP);
    let (exit, stdout, _) = running.end();
    assert_eq!(exit, Some(130));
    assert!(stdout.contains("keeps running on its server") && stdout.contains("atoll attach "), "{stdout}");
    let listed = atoll(dir.path()).args(["sandbox", "ls", "--json"]).output().unwrap();
    assert_eq!(objects(&listed)[0]["state"], "running");
}

#[test]
fn keep_leaves_the_sandbox_on_its_server() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, _) = serve(dir.path(), "127.0.0.1:0");
    let done = run(dir.path(), "say hello", &["--keep", "--json"]);
    assert_eq!(done.status.code(), Some(0));
    let lines = objects(&done);
    assert_eq!(lines.last().unwrap()["state"], "running");
    let sandbox = lines[0]["sandbox"].as_str().unwrap();
    let row = atoll(dir.path()).args(["sandbox", "show", sandbox, "--json"]).output().unwrap();
    assert_eq!(objects(&row)[0]["activity"], "waiting_message");
}

#[test]
fn reconnects_after_a_server_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (server, url) = serve(dir.path(), "127.0.0.1:0");
    let mut command = atoll(dir.path());
    command.args(["run", "--provider", "fake", "say begun\nwait 600"]);
    let mut running = Running::start(command);
    running.until("• begun");
    server.kill();
    let (_server, _) = serve(dir.path(), url.trim_start_matches("http://"));
    // A fake sandbox is lost with its server; the restarted server reports it.
    let (exit, stdout, stderr) = running.end();
    assert_eq!(exit, Some(2), "{stdout}{stderr}");
    assert!(stderr.contains("reconnecting, no events are lost"), "{stderr}");
    assert!(stdout.contains("(sandbox_lost)"), "{stdout}");
}
