//! `atoll sandbox exec` and `diff`: what is asked, and what becomes of the answer.

use crate::canned::answering;
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
fn outputs_go_where_they_belong_and_the_exit_code_is_the_commands_own() {
    let answer = lines(&[
        json!({"stream": "stdout", "data": "one\n"}),
        json!({"stream": "stderr", "data": "oh\n"}),
        json!({"stream": "stdout", "base64": "/wAK"}),
        json!({"exit": {"kind": "exited", "code": 7}}),
    ]);
    let (url, asked) = answering("application/x-ndjson", answer);
    let mut command =
        sandbox(&url, &["exec", "--cwd", "src", "--env", "A=b", "--timeout", "5", "--", "cat", "--json", "-"]);
    let done = command.output().unwrap();
    assert_eq!((done.status.code(), done.stdout.as_slice()), (Some(7), b"one\n\xff\0\n".as_slice()));
    assert_eq!(text(&done.stderr), "oh\n");
    let asked = asked.recv().unwrap();
    assert!(asked.line.starts_with(&format!("POST /api/v1/sandboxes/{ID}/exec ")), "{}", asked.line);
    let body: Value = serde_json::from_str(&asked.body).unwrap();
    assert_eq!(body, json!({"argv": ["cat", "--json", "-"], "cwd": "src", "env": {"A": "b"}, "timeout_s": 5}));
}

#[test]
fn every_other_end_has_its_code_and_its_sentence() {
    for (exit, code, said) in [
        (json!({"kind": "signalled", "signal": 15}), 143, ""),
        (json!({"kind": "out_of_memory"}), 125, "memory ran out"),
        (json!({"kind": "timed_out"}), 124, "time ran out"),
        (json!({"kind": "unknown"}), 126, "not known"),
    ] {
        let (url, _asked) = answering("application/x-ndjson", lines(&[json!({ "exit": exit })]));
        let done = sandbox(&url, &["exec", "--shell", "true"]).output().unwrap();
        assert_eq!(done.status.code(), Some(code));
        assert!(text(&done.stderr).contains(said), "{exit}");
    }
    let (url, _asked) = answering("application/x-ndjson", lines(&[json!({"stream": "stdout", "data": "x"})]));
    let cut = sandbox(&url, &["exec", "--shell", "true"]).output().unwrap();
    assert_eq!(
        (cut.status.code(), text(&cut.stdout).as_str()),
        (Some(126), "x"),
        "an answer that is cut off is no success"
    );
}

#[test]
fn what_is_piped_in_becomes_the_input() {
    // It follows by itself, as it comes.
    for (flags, stdin) in [(&[][..], json!(true)), (&["--no-stdin"], Value::Null)] {
        let (url, asked) = answering("application/x-ndjson", lines(&[json!({"exit": {"kind": "exited", "code": 0}})]));
        let mut arguments = vec!["exec"];
        arguments.extend(flags);
        arguments.extend(["--", "cat"]);
        let done = with_input(sandbox(&url, &arguments), "hello\n");
        assert_eq!(done.status.code(), Some(0));
        let body: Value = serde_json::from_str(&asked.recv().unwrap().body).unwrap();
        assert_eq!(body["stdin"], stdin);
    }
}

#[test]
fn a_patch_reaches_a_pipe_as_it_is() {
    let patch = b"diff --git a/x b/x\n+\xff\x1b[31m\n".to_vec();
    let (url, asked) = answering("text/x-diff", patch.clone());
    let done = sandbox(&url, &["diff", "--path", "src"]).output().unwrap();
    assert_eq!((done.status.code(), done.stdout), (Some(0), patch));
    assert!(asked.recv().unwrap().line.contains("/diff?path=src "));
}

#[test]
fn files_that_changed_are_listed() {
    let files = json!([{"path": "a.rs", "change": "modified", "added": 2, "removed": 1, "binary": false}]);
    let answer = json!({"base": "1a2b", "files": files}).to_string().into_bytes();
    let (url, _asked) = answering("application/json", answer);
    let done = sandbox(&url, &["diff", "--stat"]).output().unwrap();
    assert_eq!(text(&done.stdout), "a.rs  +2 −1\n");
}

#[test]
fn results_say_which_branch_they_are_on() {
    let answer = json!({
        "taken": [{"kind": "branch", "branch": "atoll/x", "commit": "1a2b3c4d5e6f", "repo": "/src/x"}],
        "sandbox": {"id": ID, "state": "failed", "outcome": "failed"},
    });
    let (url, _asked) = answering("application/json", answer.to_string().into_bytes());
    let done = sandbox(&url, &["results"]).output().unwrap();
    let wanted = format!("{ID} is failed (failed); the work is on branch atoll/x (1a2b3c4d) in /src/x\n");
    assert_eq!(text(&done.stdout), wanted);
}
