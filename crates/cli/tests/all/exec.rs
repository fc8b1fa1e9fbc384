//! Requests and output of `atoll sandbox exec`, `diff` and `results`.

use crate::canned::serve_response;
use crate::program::{atoll, text, with_input};
use serde_json::{Value, json};
use std::process::Command;

const ID: &str = "sbx_01m7fkrr8mezdtrwya23zj4ref";

fn sandbox(url: &str, arguments: &[&str]) -> Command {
    let dir = std::env::temp_dir();
    let mut command = atoll(&dir);
    command.args(["sandbox", arguments[0], ID]).args(&arguments[1..]).env("ATOLL_SERVER", url).env("ATOLL_TOKEN", "t");
    command
}

fn lines(lines: &[Value]) -> Vec<u8> {
    lines.iter().map(|line| format!("{line}\n")).collect::<String>().into_bytes()
}

#[test]
fn forwards_output_and_exit_code() {
    let answer = lines(&[
        json!({"stream": "stdout", "data": "one\n", "cursor": 4}),
        json!({"stream": "stderr", "data": "oh\n", "cursor": 7}),
        json!({"stream": "stdout", "base64": "/wAK", "cursor": 10}),
        json!({"exit": {"kind": "exited", "code": 7}}),
    ]);
    let (url, requests) = serve_response("application/x-ndjson", answer);
    let mut command =
        sandbox(&url, &["exec", "--cwd", "src", "--env", "A=b", "--timeout", "5", "--", "cat", "--json", "-"]);
    let done = command.output().unwrap();
    assert_eq!((done.status.code(), done.stdout.as_slice()), (Some(7), b"one\n\xff\0\n".as_slice()));
    assert_eq!(text(&done.stderr), "oh\n");
    let request = requests.recv().unwrap();
    assert!(request.line.starts_with(&format!("POST /api/v1/sandboxes/{ID}/exec ")), "{}", request.line);
    let body: Value = serde_json::from_str(&request.body).unwrap();
    assert_eq!(body, json!({"argv": ["cat", "--json", "-"], "cwd": "src", "env": {"A": "b"}, "timeout_s": 5}));
}

#[test]
fn abnormal_exits_have_a_code_and_an_explanation() {
    for (exit, code, message) in [
        (json!({"kind": "signalled", "signal": 15}), 143, ""),
        (json!({"kind": "out_of_memory"}), 125, "out of memory"),
        (json!({"kind": "timed_out"}), 124, "timed out"),
        (json!({"kind": "unknown"}), 126, "unknown"),
    ] {
        let (url, _requests) = serve_response("application/x-ndjson", lines(&[json!({ "exit": exit })]));
        let done = sandbox(&url, &["exec", "--shell", "true"]).output().unwrap();
        assert_eq!(done.status.code(), Some(code));
        assert!(text(&done.stderr).contains(message), "{exit}");
    }
    let (url, _requests) =
        serve_response("application/x-ndjson", lines(&[json!({"stream": "stdout", "data": "x", "cursor": 1})]));
    let cut = sandbox(&url, &["exec", "--shell", "true"]).output().unwrap();
    assert_eq!(
        (cut.status.code(), text(&cut.stdout).as_str()),
        (Some(126), "x"),
        "an incomplete response is not a success"
    );
}

#[test]
fn piped_stdin_becomes_the_input() {
    // The input itself follows in another request.
    for (flags, stdin) in [(&[][..], json!(true)), (&["--no-stdin"], Value::Null)] {
        let (url, requests) =
            serve_response("application/x-ndjson", lines(&[json!({"exit": {"kind": "exited", "code": 0}})]));
        let mut arguments = vec!["exec"];
        arguments.extend(flags);
        arguments.extend(["--", "cat"]);
        let done = with_input(sandbox(&url, &arguments), "hello\n");
        assert_eq!(done.status.code(), Some(0));
        let body: Value = serde_json::from_str(&requests.recv().unwrap().body).unwrap();
        assert_eq!(body["stdin"], stdin);
    }
}

#[test]
fn a_patch_reaches_a_pipe_unchanged() {
    let patch = b"diff --git a/x b/x\n+\xff\x1b[31m\n".to_vec();
    let (url, requests) = serve_response("text/x-diff", patch.clone());
    let done = sandbox(&url, &["diff", "src"]).output().unwrap();
    assert_eq!((done.status.code(), done.stdout), (Some(0), patch));
    assert!(requests.recv().unwrap().line.contains("/diff?path=src "));
}

#[test]
fn prints_a_diffstat() {
    let files = json!([{"path": "a.rs", "change": "modified", "added": 2, "removed": 1, "binary": false}]);
    let answer = json!({"base": "1a2b", "files": files}).to_string().into_bytes();
    let (url, _requests) = serve_response("application/json", answer);
    let done = sandbox(&url, &["diff", "--stat"]).output().unwrap();
    assert_eq!(text(&done.stdout), "a.rs  +2 −1\n");
}

fn sandbox_response() -> Value {
    let at = "2026-01-31T12:00:00Z";
    json!({
        "id": ID, "session_id": "ses_01m7fkrr8mezdtrwya23zj4ref", "project_id": "prj_01m7fkrr8mezdtrwya23zj4ref",
        "state": "failed", "activity": "ended", "limit_paused": null, "outcome": "failed", "reason": null, "results": "taken",
        "end": "when_done", "provider": "local", "provider_id": null, "agent": "demo", "labels": {}, "settings": {},
        "exposed_secrets": [], "turn": null, "first_seq": 1, "last_seq": 9, "last_heartbeat": null,
        "cost": {"model": 0.0, "model_source": "prices", "compute": 0.0}, "created_by": null, "created_at": at, "updated_at": at,
        "state_since": at, "ended_at": at,
    })
}

#[test]
fn results_name_their_branch() {
    let answer = json!({
        "taken": [{"kind": "branch", "branch": "atoll/x", "commit": "1a2b3c4d5e6f", "repo": "/src/x"}],
        "sandbox": sandbox_response(),
    });
    let (url, _requests) = serve_response("application/json", answer.to_string().into_bytes());
    let done = sandbox(&url, &["results"]).output().unwrap();
    let expected = format!("{ID} is failed (failed); the results are on branch atoll/x (1a2b3c4d) in /src/x\n");
    assert_eq!(text(&done.stdout), expected);
}
