//! Commands in a sandbox: what is said to them, and what the command line makes of it.

use atoll_tests::local::{Ground, PATIENCE};
use atoll_tests::process;
use serde_json::{Value, json};
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tokio::task::block_in_place;

fn atoll(ground: &Ground, arguments: &[&str]) -> Command {
    let mut command = process::command("atoll");
    command.args(arguments).env("ATOLL_DATA_DIR", ground.data());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The program with this input, to its end.
fn run(ground: &Ground, arguments: &[&str], input: Vec<u8>) -> Output {
    let mut child = process::spawn(atoll(ground, arguments));
    let mut stdin = child.stdin.take().unwrap();
    let writing = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    drop(writing.join().unwrap());
    output
}

async fn commands(ground: &Ground, id: &str) -> Vec<Value> {
    let list = ground.admin.get(&format!("/sandboxes/{id}/exec")).await.expect(200);
    list["items"].as_array().unwrap().clone()
}

async fn until_ended(ground: &Ground, id: &str, exec: &str) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = commands(ground, id).await.into_iter().find(|row| row["id"] == exec);
        match found.map(|row| row["exit"].clone()) {
            Some(Value::Null) => assert!(Instant::now() < deadline, "{exec} does not end"),
            Some(exit) => return exit,
            None => panic!("{exec} is not listed"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Starts a command and does not read it; its name.
async fn begin(ground: &Ground, id: &str, body: Value) -> String {
    let url = format!("{}/api/v1/sandboxes/{id}/exec", ground.admin.url);
    let token = ground.admin.token.clone().unwrap();
    let answer = reqwest::Client::new().post(url).bearer_auth(token).json(&body).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.headers()["exec-id"].to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_reads_nothing_can_be_ended_and_one_that_takes_nothing_says_so() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let exec = begin(&ground, &id, json!({ "shell": "exec sleep 9999", "stdin": "x".repeat(1_500_000) })).await;
    ground.admin.delete(&format!("/sandboxes/{id}/exec/{exec}")).await.expect(200);
    assert_eq!(until_ended(&ground, &id, &exec).await, json!({ "kind": "signalled", "signal": 9 }));
    // Its whole input was said at the beginning, or it has none: nothing is taken and thrown away.
    for start in [json!({ "shell": "sleep 9999", "stdin": "a" }), json!({ "shell": "sleep 9999" })] {
        let exec = begin(&ground, &id, start).await;
        let refused = ground.admin.post(&format!("/sandboxes/{id}/exec/{exec}/stdin"), json!({})).await.expect(409);
        assert_eq!(refused["code"], "no_input", "{refused}");
    }
    let exec = begin(&ground, &id, json!({ "shell": "cat > got; exit 5", "stdin": true })).await;
    for end in ["", "?end=true"] {
        let path = format!("/sandboxes/{id}/exec/{exec}/stdin{end}");
        assert_eq!(ground.admin.post(&path, json!({})).await.expect(200)["bytes"], 2);
    }
    assert_eq!(until_ended(&ground, &id, &exec).await, json!({ "kind": "exited", "code": 5 }));
    assert_eq!(ground.shell(&id, "cat got").await.well(), "{}{}");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_pipes_bytes_of_any_kind_and_number() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let bytes: Vec<u8> = (0..6_000_000_u32).map(|number| number.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("big"), &bytes).unwrap();
    let tar = Command::new("tar").arg("cC").arg(files.path()).arg("big").output().unwrap().stdout;
    let done = block_in_place(|| run(&ground, &["sandbox", "exec", &id, "--", "tar", "x"], tar));
    assert!(done.status.success(), "{done:?}");
    let back = block_in_place(|| run(&ground, &["sandbox", "exec", &id, "--", "cat", "big"], Vec::new()));
    assert!(back.stdout == bytes, "{} bytes came back", back.stdout.len());
    let both = block_in_place(|| run(&ground, &["sandbox", "exec", &id, "--", "cat"], bytes.clone()));
    assert!(both.status.success() && both.stdout == bytes, "{} bytes came back", both.stdout.len());
    // Input without an end holds up nobody: it goes as it comes, and what a command does not want is not waited for.
    block_in_place(|| {
        let mut child = process::spawn(atoll(
            &ground,
            &["sandbox", "exec", &id, "--", "sh", "-c", "read line; echo $line; exit 7"],
        ));
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"first\n").unwrap();
        let done = child.wait_with_output().unwrap();
        assert_eq!((done.status.code(), done.stdout.as_slice()), (Some(7), &b"first\n"[..]), "{done:?}");
        drop(stdin);
    });
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_ends_the_command_and_commands_are_listed() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let other = begin(&ground, &id, json!({ "shell": "sleep 8888" })).await;
    let child = process::spawn(atoll(&ground, &["sandbox", "exec", &id, "--no-stdin", "--", "sleep", "7777"]));
    let deadline = Instant::now() + PATIENCE;
    let exec = loop {
        let found = commands(&ground, &id).await.into_iter().find(|row| row["argv"] == json!(["sleep", "7777"]));
        if let Some(row) = found.filter(|row| row["readers"] == 1) {
            break row["id"].as_str().unwrap().to_owned();
        }
        assert!(Instant::now() < deadline, "it does not begin");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let done = block_in_place(|| child.wait_with_output().unwrap());
    assert_eq!(done.status.code(), Some(130), "{done:?}");
    assert_eq!(until_ended(&ground, &id, &exec).await, json!({ "kind": "signalled", "signal": 9 }));
    let listed = block_in_place(|| run(&ground, &["sandbox", "exec", &id, "--list"], Vec::new()));
    let listed = String::from_utf8(listed.stdout).unwrap();
    let line = |name: &str| {
        listed.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{listed}")).to_owned()
    };
    assert!(line(&exec).contains("signal 9") && line(&exec).ends_with("sleep 7777"), "{listed}");
    assert!(line(&other).contains("runs"), "{listed}");
    let done = block_in_place(|| run(&ground, &["sandbox", "exec", &id, "--end", &other], Vec::new()));
    assert!(done.status.success(), "{done:?}");
    assert_eq!(until_ended(&ground, &id, &other).await, json!({ "kind": "signalled", "signal": 9 }));
    ground.leave().await;
}
