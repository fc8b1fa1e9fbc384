//! Commands in a sandbox: standard input, exit status, and `atoll sandbox exec`.

use atoll_test_wait::poll_for;
use atoll_tests::local::LocalServer;
use atoll_tests::process;
use serde_json::{Value, json};
use std::io::Write;
use std::process::{Command, Output, Stdio};
use tokio::task::block_in_place;

fn atoll_command(server: &LocalServer, arguments: &[&str]) -> Command {
    let mut command = process::program_command("atoll");
    command.args(arguments).env("ATOLL_DATA_DIR", server.data_dir());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs `atoll` with this input to its end.
fn run_atoll(server: &LocalServer, arguments: &[&str], input: Vec<u8>) -> Output {
    let mut child = process::spawn_process(atoll_command(server, arguments));
    let mut stdin = child.stdin.take().unwrap();
    let writing = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    drop(writing.join().unwrap());
    output
}

async fn list_execs(server: &LocalServer, id: &str) -> Vec<Value> {
    let list = server.admin.get(&format!("/sandboxes/{id}/exec")).await.expect_status(200);
    list["items"].as_array().unwrap().clone()
}

async fn wait_until_exec_ended(server: &LocalServer, id: &str, exec: &str) -> Value {
    poll_for("the command's end", async || {
        let found = list_execs(server, id).await.into_iter().find(|row| row["id"] == exec);
        Some(found.expect("the command must be listed")["exit"].clone()).filter(|exit| !exit.is_null())
    })
    .await
}

/// Starts a command, does not read its output, and returns its id.
async fn start_exec(server: &LocalServer, id: &str, body: Value) -> String {
    let url = format!("{}/api/v1/sandboxes/{id}/exec", server.admin.url);
    let token = server.admin.token.clone().unwrap();
    let response = reqwest::Client::new().post(url).bearer_auth(token).json(&body).send().await.unwrap();
    assert_eq!(response.status(), 200);
    response.headers()["exec-id"].to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_input_does_not_block_a_kill_and_a_command_without_stdin_rejects_input() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let exec = start_exec(&server, &id, json!({ "shell": "exec sleep 9999", "stdin": "x".repeat(1_500_000) })).await;
    server.admin.delete(&format!("/sandboxes/{id}/exec/{exec}")).await.expect_status(200);
    assert_eq!(wait_until_exec_ended(&server, &id, &exec).await, json!({ "kind": "signalled", "signal": 9 }));
    // The server rejects input for a command whose whole input came with the request, or that has none.
    for start in [json!({ "shell": "sleep 9999", "stdin": "a" }), json!({ "shell": "sleep 9999" })] {
        let exec = start_exec(&server, &id, start).await;
        let refused =
            server.admin.post(&format!("/sandboxes/{id}/exec/{exec}/stdin"), json!({})).await.expect_status(409);
        assert_eq!(refused["code"], "no_input", "{refused}");
    }
    let exec = start_exec(&server, &id, json!({ "shell": "cat > got; exit 5", "stdin": true })).await;
    for end in ["", "?end=true"] {
        let path = format!("/sandboxes/{id}/exec/{exec}/stdin{end}");
        assert_eq!(server.admin.post(&path, json!({})).await.expect_status(200)["bytes"], 2);
    }
    assert_eq!(wait_until_exec_ended(&server, &id, &exec).await, json!({ "kind": "exited", "code": 5 }));
    assert_eq!(server.run_shell(&id, "cat got").await.expect_success(), "{}{}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_command_waits_for_its_sandbox() {
    let server = LocalServer::start();
    for _ in 0..5 {
        let id = server.create_sandbox(json!({ "end": "keep" })).await;
        // No client waits: the request arrives while the provider creates the sandbox.
        let answer = server.admin.post(&format!("/sandboxes/{id}/exec"), json!({ "shell": "exit 7" })).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_pipes_large_binary_input_and_output() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let bytes: Vec<u8> = (0..6_000_000_u32).map(|number| number.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("big"), &bytes).unwrap();
    let tar = Command::new("tar").arg("cC").arg(files.path()).arg("big").output().unwrap().stdout;
    let done = block_in_place(|| run_atoll(&server, &["sandbox", "exec", &id, "--", "tar", "x"], tar));
    assert!(done.status.success(), "{done:?}");
    let back = block_in_place(|| run_atoll(&server, &["sandbox", "exec", &id, "--", "cat", "big"], Vec::new()));
    assert!(back.stdout == bytes, "{} bytes returned", back.stdout.len());
    let both = block_in_place(|| run_atoll(&server, &["sandbox", "exec", &id, "--", "cat"], bytes.clone()));
    assert!(both.status.success() && both.stdout == bytes, "{} bytes returned", both.stdout.len());
    // Input without an end does not block: it streams to the command, and the client exits when the command does.
    block_in_place(|| {
        let mut child = process::spawn_process(atoll_command(
            &server,
            &["sandbox", "exec", &id, "--", "sh", "-c", "read line; echo $line; exit 7"],
        ));
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"first\n").unwrap();
        let done = child.wait_with_output().unwrap();
        assert_eq!((done.status.code(), done.stdout.as_slice()), (Some(7), &b"first\n"[..]), "{done:?}");
        drop(stdin);
    });
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_kills_the_command_and_commands_are_listed() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let other = start_exec(&server, &id, json!({ "shell": "sleep 8888" })).await;
    let child =
        process::spawn_process(atoll_command(&server, &["sandbox", "exec", &id, "--no-stdin", "--", "sleep", "7777"]));
    let exec = poll_for("the command to start", async || {
        let found = list_execs(&server, &id).await.into_iter().find(|row| row["argv"] == json!(["sleep", "7777"]));
        Some(found.filter(|row| row["readers"] == 1)?["id"].as_str().unwrap().to_owned())
    });
    let exec = exec.await;
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let done = block_in_place(|| child.wait_with_output().unwrap());
    assert_eq!(done.status.code(), Some(130), "{done:?}");
    assert_eq!(wait_until_exec_ended(&server, &id, &exec).await, json!({ "kind": "signalled", "signal": 9 }));
    let listed = block_in_place(|| run_atoll(&server, &["sandbox", "exec", &id, "--list"], Vec::new()));
    let listed = String::from_utf8(listed.stdout).unwrap();
    let line = |name: &str| {
        listed.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{listed}")).to_owned()
    };
    assert!(line(&exec).contains("signal 9") && line(&exec).ends_with("sleep 7777"), "{listed}");
    assert!(line(&other).contains("running"), "{listed}");
    let done = block_in_place(|| run_atoll(&server, &["sandbox", "exec", &id, "--kill", &other], Vec::new()));
    assert!(done.status.success(), "{done:?}");
    assert_eq!(wait_until_exec_ended(&server, &id, &other).await, json!({ "kind": "signalled", "signal": 9 }));
    server.stop_and_check().await;
}
