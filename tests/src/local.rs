//! A server that creates real sandboxes on this machine, and checks that they leave nothing behind.

pub mod host_state;
pub mod repository;
pub mod spool;

use crate::actor::Actor;
use crate::process::{ServeOptions, ServerProcess};
use crate::typed::{assert_catalogued, assert_round_trip};
use crate::unprivileged_user::{SubordinateIds, UnprivilegedUser, chown_tree};
use atoll_test_wait::{try_poll_for, try_wait_for};
use futures_util::StreamExt;
use host_state::HostProcess;
use reqwest::Method;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use tempfile::TempDir;

const UNLIMITED_CONFIG: &str =
    "limits: {worker_requests_per_minute: 0, messages_per_minute: 0, writes_per_minute: 0}\n";

/// Reports a test that cannot run here, on stderr itself because libtest captures `eprintln!`.
pub fn report_skipped(what: &str, why: &str) {
    let line = format!("skipped: {what}: {why}\n");
    drop(std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes()));
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Creates a temporary directory. Agents have other ids and can still traverse it.
pub fn create_temp_dir(prefix: &str) -> TempDir {
    tempfile::Builder::new().prefix(prefix).tempdir().unwrap()
}

/// `atoll serve` with its own data directory.
///
/// Dropping it removes the processes, cgroups and directories of its sandboxes, also when the test fails.
pub struct LocalServer {
    pub process: ServerProcess,
    pub admin: Actor,
    dir: TempDir,
    sandbox_ids: Mutex<Vec<String>>,
    /// The sandboxes of an unprivileged server may have no cgroups to find them by.
    is_unprivileged: bool,
}

/// The result of a command that ran in a sandbox.
#[derive(Debug, Clone)]
pub struct ExecResult {
    pub stdout: String,
    pub stderr: String,
    /// For example `{"kind": "exited", "code": 0}`.
    pub exit: Value,
    /// The server's own error, if it reported one.
    pub error: Option<String>,
}

impl ExecResult {
    #[track_caller]
    pub fn expect_success(self) -> String {
        assert_eq!(self.exit, json!({ "kind": "exited", "code": 0 }), "{self:?}");
        self.stdout
    }

    pub fn exit_code(&self) -> Option<i64> {
        self.exit["code"].as_i64()
    }
}

pub fn has_ended(row: &Value) -> bool {
    row["state"] == "completed" || row["state"] == "failed"
}

/// Returns the data of all events of one type, in order.
pub fn event_data<'a>(events: &'a [Value], event_type: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["type"] == event_type).map(|event| &event["data"]).collect()
}

/// Checks that each tool call is in one assistant message and each result in one reply, within the same turn.
pub fn assert_tool_calls_are_paired(events: &[Value]) {
    let parts = |event_type: &str, list: &str| -> Vec<(Value, Value)> {
        let matching = events.iter().filter(|event| event["type"] == event_type);
        let all = matching
            .flat_map(|event| event["data"][list].as_array().unwrap().iter().map(|part| (part, &event["turn"])));
        all.filter(|(part, _)| part["tool_use_id"].is_string())
            .map(|(part, turn)| (part["tool_use_id"].clone(), turn.clone()))
            .collect()
    };
    let ids = |event_type: &str| -> Vec<(Value, Value)> {
        let matching = events.iter().filter(|event| event["type"] == event_type);
        matching.map(|event| (event["data"]["tool_use_id"].clone(), event["turn"].clone())).collect()
    };
    assert_eq!(parts("agent.assistant_message", "content"), ids("agent.tool_use"), "{events:#?}");
    assert_eq!(parts("agent.user_tool_result", "results"), ids("agent.tool_completed"), "{events:#?}");
    let last = |event_type: &str| events.iter().rposition(|event| event["type"] == event_type);
    assert!(last("agent.assistant_message").is_some(), "no assistant message: {events:#?}");
    assert!(last("agent.assistant_message") < last("agent.completed"), "{events:#?}");
}

/// Returns the texts of the agent's messages, in order.
pub fn agent_messages(events: &[Value]) -> Vec<String> {
    event_data(events, "agent.message").iter().map(|data| data["text"].as_str().unwrap().to_owned()).collect()
}

#[track_caller]
pub fn assert_log_is_complete(events: &[Value]) {
    for (index, event) in events.iter().enumerate() {
        assert_eq!(event["seq"], index + 1, "seq must have no gap");
    }
    let mut ids: Vec<&str> = events.iter().map(|event| event["id"].as_str().unwrap()).collect();
    ids.sort_unstable();
    assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "an event is stored twice");
}

impl LocalServer {
    pub fn start() -> Self {
        Self::start_with_config("")
    }

    /// Starts with additional configuration lines.
    pub fn start_with_config(config: &str) -> Self {
        Self::start_with_env(config, &[])
    }

    /// Starts with additional configuration lines and flags of `atoll serve`.
    pub fn start_with_flags(config: &str, flags: &[&str]) -> Self {
        Self::start_with_options(config, flags, &[], None)
    }

    /// Starts with additional configuration lines and environment variables.
    pub fn start_with_env(config: &str, environment: &[(String, String)]) -> Self {
        Self::start_with_options(config, &[], environment, None)
    }

    /// Starts with all of these options, as an unprivileged user if `user` is set.
    pub fn start_with_options(
        config: &str,
        flags: &[&str],
        environment: &[(String, String)],
        user: Option<(u32, SubordinateIds)>,
    ) -> Self {
        let dir = create_temp_dir("atoll-local-");
        let (data, file) = (dir.path().join("data"), dir.path().join("atoll.yaml"));
        std::fs::create_dir(&data).unwrap();
        std::fs::write(&file, format!("{UNLIMITED_CONFIG}{config}")).unwrap();
        let mut arguments = vec!["--config".to_owned(), file.to_str().unwrap().to_owned()];
        arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let unprivileged = user.map(|(user, ids)| {
            chown_tree(&data, user);
            UnprivilegedUser::set_up(user, ids, dir.path())
        });
        let options = ServeOptions { arguments, environment: environment.to_vec(), user: unprivileged };
        let process = ServerProcess::start_with_options(&data, options);
        let admin = Actor::new(&process.url, Some(&process.admin_token()));
        Self { process, admin, dir, sandbox_ids: Mutex::default(), is_unprivileged: user.is_some() }
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// The directory of a sandbox on the host.
    pub fn sandbox_dir(&self, id: &str) -> PathBuf {
        self.data_dir().join("sandboxes").join(id)
    }

    /// The writable layer of a sandbox's workspace on the host.
    pub fn workspace_dir(&self, id: &str) -> PathBuf {
        let record = std::fs::read(self.sandbox_dir(id).join("record.json")).unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        let top = record["stack"]["top"].as_str().unwrap();
        let pool = self.data_dir().join("pool/layers").join(top);
        let layer = if pool.exists() { pool } else { self.data_dir().join("layers").join(top) };
        layer.join("files/workspace")
    }

    /// Registers a sandbox for clean-up, also when the test fails.
    pub fn track_sandbox(&self, id: &str) {
        self.sandbox_ids.lock().unwrap_or_else(PoisonError::into_inner).push(id.to_owned());
    }

    pub fn sandbox_ids(&self) -> Vec<String> {
        self.sandbox_ids.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn sandbox_request(settings: Value) -> Value {
        let mut body = json!({ "provider": "local", "agent": "demo" });
        body.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        body
    }

    pub async fn create_sandbox(&self, settings: Value) -> String {
        let created = self.admin.post("/sandboxes", Self::sandbox_request(settings)).await.expect_status(201);
        let id = created["id"].as_str().unwrap().to_owned();
        self.track_sandbox(&id);
        id
    }

    /// Creates a sandbox with `end: keep` and waits until its agent is idle.
    pub async fn create_idle_sandbox(&self, settings: Value) -> String {
        let mut body = json!({ "prompt": "say ready", "end": "keep" });
        body.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        let id = self.create_sandbox(body).await;
        self.wait_until(&id, |row| row["activity"] == "waiting_message").await;
        id
    }

    pub async fn get_sandbox(&self, id: &str) -> Value {
        let row = self.admin.get(&format!("/sandboxes/{id}")).await.expect_status(200);
        assert_round_trip::<atoll_api::Sandbox>(&row);
        row
    }

    /// Waits until the sandbox's row matches.
    pub async fn wait_until(&self, id: &str, is_match: impl Fn(&Value) -> bool) -> Value {
        let polled = try_poll_for(async || {
            let row = self.get_sandbox(id).await;
            if is_match(&row) || has_ended(&row) { Ok(row) } else { Err(row) }
        });
        match polled.await {
            Ok(row) if is_match(&row) => row,
            Ok(row) | Err(row) => {
                panic!("the sandbox never reached the expected state: {row}\n{:#?}", self.admin.all_events(id).await)
            }
        }
    }

    pub async fn wait_until_ended(&self, id: &str) -> Value {
        self.wait_until(id, has_ended).await
    }

    /// Waits for the first event that matches.
    pub async fn wait_for_event(&self, id: &str, is_match: impl Fn(&Value) -> bool) -> Value {
        let polled = try_poll_for(async || {
            let is_over = has_ended(&self.get_sandbox(id).await);
            let mut events = self.admin.all_events(id).await;
            let found = events.iter().position(&is_match).map(|index| events.swap_remove(index));
            assert!(found.is_some() || !is_over, "the sandbox ended without the expected event: {events:#?}");
            found.ok_or(events)
        });
        polled.await.unwrap_or_else(|events| panic!("the expected event never came: {events:#?}"))
    }

    pub async fn send_message(&self, id: &str, message: Value) -> String {
        let sent = self.admin.post(&format!("/sandboxes/{id}/messages"), message).await.expect_status(201);
        sent["id"].as_str().unwrap().to_owned()
    }

    /// Waits until a message is acknowledged.
    pub async fn wait_until_acknowledged(&self, id: &str, message: &str) -> Value {
        let polled = try_poll_for(async || {
            let list = self.admin.list_all(&format!("/sandboxes/{id}/messages"), 200).await;
            let found = list.into_iter().find(|item| item["id"] == message).unwrap();
            assert_round_trip::<atoll_api::Message>(&found);
            if found["state"] == "acknowledged" { Ok(found) } else { Err(found) }
        });
        polled.await.unwrap_or_else(|found| panic!("the message was not delivered: {found}"))
    }

    /// Runs a command in a sandbox and waits for its end.
    pub async fn run_exec(&self, id: &str, body: Value) -> ExecResult {
        let request = self.admin.request(Method::POST, &format!("/sandboxes/{id}/exec")).json(&body);
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200, "{body}: {}", response.text().await.unwrap_or_default());
        let mut chunks = response.bytes_stream();
        let mut bytes = Vec::new();
        while let Some(chunk) = chunks.next().await {
            bytes.extend_from_slice(&chunk.unwrap());
        }
        let mut result = ExecResult { stdout: String::new(), stderr: String::new(), exit: Value::Null, error: None };
        for line in String::from_utf8(bytes).unwrap().lines().filter(|line| !line.is_empty()) {
            let line: Value = serde_json::from_str(line).unwrap();
            match line["stream"].as_str() {
                Some("stdout") => result.stdout.push_str(line["data"].as_str().unwrap()),
                Some("stderr") => result.stderr.push_str(line["data"].as_str().unwrap()),
                Some(other) => panic!("output of an unknown stream {other}"),
                None if line["error"].is_string() => result.error = line["error"].as_str().map(str::to_owned),
                None => result.exit = line["exit"].clone(),
            }
        }
        assert!(!result.exit.is_null(), "the stream ended without an exit: {result:?}");
        result
    }

    pub async fn run_shell(&self, id: &str, script: &str) -> ExecResult {
        self.run_exec(id, json!({ "shell": script })).await
    }

    /// Removes every sandbox, stops the server, and checks that they leave nothing behind.
    pub async fn stop_and_check(mut self) {
        let ids = self.sandbox_ids();
        for id in &ids {
            self.wait_until_created(id).await;
        }
        let shared_cgroups: Vec<PathBuf> = ids
            .iter()
            .flat_map(|id| host_state::find_cgroups(id))
            .filter_map(|dir| dir.parent().map(Path::to_owned))
            .collect();
        let mut processes: Vec<HostProcess> =
            ids.iter().flat_map(|id| host_state::list_sandbox_processes(id)).collect();
        processes.extend(host_state::list_children(self.process.pid()));
        for id in &ids {
            // The list of a removed sandbox's events is a problem document.
            if self.admin.get(&format!("/sandboxes/{id}")).await.status == 200 {
                self.admin.all_events(id).await.iter().for_each(assert_catalogued);
            }
            let answer = self.admin.delete(&format!("/sandboxes/{id}?force=true")).await;
            assert!(answer.status.as_u16() == 200 || answer.body["code"] == "not_found", "{}", answer.body);
        }
        for id in &ids {
            self.wait_until_removed(id).await;
        }
        self.process.terminate();
        let status = self.process.wait_for_exit();
        assert!(status.success(), "{status}");
        self.assert_nothing_left(&ids, &processes);
        let left: Vec<&PathBuf> = shared_cgroups.iter().filter(|dir| dir.exists()).collect();
        assert!(left.is_empty(), "cgroups are left: {left:?}");
    }

    /// Waits for the end of a sandbox's creation. A sandbox that is removed before has nothing to remove yet, so it looks
    /// removed, and its creation would go on while the server stops.
    async fn wait_until_created(&self, id: &str) {
        let polled = try_poll_for(async || {
            let row = self.admin.get(&format!("/sandboxes/{id}")).await.body;
            if row["state"] == "pending" || row["state"] == "creating" { Err(row) } else { Ok(()) }
        });
        polled.await.unwrap_or_else(|row| panic!("the sandbox is still being created: {row}"));
    }

    /// Waits until a sandbox's directory and cgroups are gone.
    pub async fn wait_until_removed(&self, id: &str) {
        let polled = try_poll_for(async || self.find_leftover(id).map_or(Ok(()), Err));
        if let Err(leftover) = polled.await {
            let files = repository::read_files(&self.sandbox_dir(id));
            let (files, processes): (Vec<_>, _) = (files.keys().collect(), host_state::list_sandbox_processes(id));
            let row = self.get_sandbox(id).await;
            panic!(
                "the sandbox is still there: {leftover}: {files:?} {processes:?}\n{row}\n{:#?}",
                self.admin.all_events(id).await
            );
        }
    }

    /// Returns a directory or cgroup of a sandbox that is still on this machine.
    pub fn find_leftover(&self, id: &str) -> Option<String> {
        let dir = self.sandbox_dir(id);
        if dir.exists() {
            return Some(format!("directory {}", dir.display()));
        }
        host_state::find_cgroups(id).first().map(|cgroup| format!("cgroup {}", cgroup.display()))
    }

    /// Checks, after the server's end, that its processes, directories, cgroups and mounts are gone.
    pub fn assert_nothing_left(&self, ids: &[String], processes: &[HostProcess]) {
        for process in processes {
            assert!(process.ends_in_time(), "a process is left: {process:?}");
            process.reap();
        }
        for id in ids {
            assert_eq!(self.find_leftover(id), None);
        }
        let rest: Vec<_> = match std::fs::read_dir(self.data_dir().join("sandboxes")) {
            Ok(entries) => entries.map(|entry| entry.unwrap().file_name()).collect(),
            Err(_) => Vec::new(),
        };
        let rest: Vec<_> = rest.iter().filter(|name| name.to_string_lossy().starts_with("sbx_")).collect();
        assert!(rest.is_empty(), "directories are left: {rest:?}");
        let mounts = host_state::mounts_under(self.dir.path());
        assert!(mounts.is_empty(), "mounts are left: {mounts:?}");
    }

    pub fn root_dir(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        self.process.kill();
        for id in self.sandbox_ids() {
            host_state::remove_leftovers(&id);
        }
        if self.is_unprivileged {
            host_state::kill_processes_with_mounts(self.dir.path());
        }
        // A launcher that lost its server may still write to the directory for a moment.
        drop(try_wait_for(|| match std::fs::remove_dir_all(self.dir.path()) {
            Err(error) if self.dir.path().exists() => Err(error),
            _ => Ok(()),
        }));
    }
}
