//! Runs `atoll code` and reads its lines of JSON.

use atoll_tests::local::LocalServer;
use atoll_tests::local::repository::read_files;
use atoll_tests::process;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use tokio::task::block_in_place;

/// The exit code and the lines of a call with `--json`.
pub struct CallResult {
    pub exit: Option<i32>,
    pub lines: Vec<Value>,
}

impl CallResult {
    pub fn of_type(&self, name: &str) -> Vec<&Value> {
        self.lines.iter().filter(|line| line["type"] == name).collect()
    }

    pub fn done(&self) -> &Value {
        let done = self.lines.last().unwrap();
        assert_eq!(done["type"], "done", "{:#?}", self.lines);
        assert_eq!(done["exit"].as_i64(), self.exit.map(i64::from), "{done}");
        done
    }

    pub fn sandbox(&self) -> String {
        self.done()["sandbox"].as_str().unwrap().to_owned()
    }
}

pub fn spawn_code(server: &LocalServer, directory: &Path, arguments: &[&str]) -> Child {
    let mut command = process::program_command("atoll");
    command.args(["code", "--json"]).args(arguments).env("ATOLL_DATA_DIR", server.data_dir());
    command.current_dir(directory).stdout(Stdio::piped()).stderr(Stdio::piped());
    process::spawn_process(command)
}

pub fn finish(child: Child) -> CallResult {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!lines.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    CallResult { exit: output.status.code(), lines }
}

pub fn run_code(server: &LocalServer, directory: &Path, arguments: &[&str]) -> CallResult {
    block_in_place(|| finish(spawn_code(server, directory, arguments)))
}

pub const fn ask_demo(prompt: &str) -> [&str; 5] {
    [prompt, "--agent", "demo", "--provider", "local"]
}

pub fn worktree_files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = read_files(root);
    files.retain(|path, _| !path.starts_with(".git"));
    files
}

/// Waits for the sandbox of the only worktree.
pub async fn find_worktree_sandbox(server: &LocalServer) -> String {
    let find = || async {
        let page = server.admin.get("/sandboxes?label=worktree").await.expect_status(200);
        page["items"][0]["id"].as_str().map(str::to_owned)
    };
    atoll_test_wait::poll_for("the worktree's sandbox", find).await
}

pub fn read_lock(root: &Path) -> String {
    fs::read_to_string(root.join(".git/atoll/lock")).unwrap_or_default()
}

/// Stops the sandbox and the server.
pub async fn stop_all(server: LocalServer, sandboxes: &[&str]) {
    for sandbox in sandboxes {
        server.admin.post(&format!("/sandboxes/{sandbox}/stop"), serde_json::json!({})).await.expect_status(200);
        server.wait_until_ended(sandbox).await;
    }
    server.stop_and_check().await;
}
