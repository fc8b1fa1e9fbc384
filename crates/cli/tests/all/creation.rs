//! Commands for sandboxes that are still being created.

use crate::program::{Running, atoll, objects, text};
use serde_json::Value;
use std::path::Path;
use std::process::Output;

/// Delays of the fake provider: creation and the first heartbeat take up to half a second each.
const SLOW_PROVIDER: &str = "providers:
  fake:
    seed: 1
    faults:
      - {at: create, kind: delay, rate: 1}
      - {at: heartbeat, kind: delay, rate: 1}
";

fn serve_slowly(data_dir: &Path) -> Running {
    let config = data_dir.with_file_name("slow.yaml");
    std::fs::write(&config, SLOW_PROVIDER).unwrap();
    let mut command = atoll(data_dir);
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--config"]).arg(&config);
    command.env("ATOLL_LOG_LEVEL", "error");
    let mut server = Running::start(command);
    server.until("listening");
    server
}

fn run(data_dir: &Path, arguments: &[&str]) -> Output {
    let done = atoll(data_dir).args(arguments).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{arguments:?}: {}", text(&done.stderr));
    done
}

#[test]
fn commands_wait_for_a_sandbox_that_is_being_created() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = &dir.path().join("data");
    std::fs::create_dir(data_dir).unwrap();
    let _server = serve_slowly(data_dir);
    let new = ["sandbox", "new", "--provider", "fake", "--end", "keep", "--json"];
    let create = || -> (String, Value) {
        let created = objects(&run(data_dir, &[&new[..], &["--detach"]].concat())).remove(0);
        (created["id"].as_str().unwrap().to_owned(), created["state"].clone())
    };
    let (id, state) = create();
    assert_ne!(state, "running", "--detach does not wait");
    let done = run(data_dir, &["sandbox", "exec", &id, "--no-stdin", "--", "echo", "hello"]);
    assert_eq!(text(&done.stdout), "hello\n");
    run(data_dir, &["sandbox", "files", &create().0]);
    std::fs::write(data_dir.join("a.txt"), "x").unwrap();
    run(data_dir, &["sandbox", "cp", "a.txt", &format!("{}:a.txt", create().0)]);
    run(data_dir, &["send", &create().0, "say hello"]);
    let created = objects(&run(data_dir, &new)).remove(0);
    assert_eq!(created["state"], "running", "{created}");
}
