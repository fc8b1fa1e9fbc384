//! A server that makes real sandboxes on this machine, and everything that they leave on it.

pub mod repository;
pub mod traces;

use crate::actor::Actor;
use crate::ordinary::{Ids, Person, own};
use crate::process::{How, ServerProcess};
use futures_util::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use traces::Process;

/// For what must come in the end, however slow the machine is.
pub const PATIENCE: Duration = Duration::from_secs(60);

const CONFIG: &str = "limits: {worker_requests_per_minute: 0, messages_per_minute: 0, writes_per_minute: 0}\n";

/// Says on the error output, where it is always seen, that a test could not be made here.
pub fn skipped(what: &str, why: &str) {
    let line = format!("skipped: {what}: {why}\n");
    drop(std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes()));
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A directory that goes with the test. Others may pass through it: agents have ids of their own.
pub fn directory(prefix: &str) -> TempDir {
    tempfile::Builder::new().prefix(prefix).tempdir().unwrap()
}

/// `atoll serve` with a data directory of its own. When it is dropped in the middle of a failing test,
/// the processes, cgroups and directories of its sandboxes go nevertheless.
pub struct Ground {
    pub server: ServerProcess,
    pub admin: Actor,
    dir: TempDir,
    made: Mutex<Vec<String>>,
    /// Its sandboxes may have no cgroups to find them by.
    ordinary: bool,
}

/// A command that ran in a sandbox.
#[derive(Debug, Clone)]
pub struct Ran {
    pub stdout: String,
    pub stderr: String,
    /// `{"kind": "exited", "code": 0}`, and its like.
    pub exit: Value,
    /// What the server itself says of it.
    pub error: Option<String>,
}

impl Ran {
    #[track_caller]
    pub fn well(self) -> String {
        assert_eq!(self.exit, json!({ "kind": "exited", "code": 0 }), "{self:?}");
        self.stdout
    }

    pub fn code(&self) -> Option<i64> {
        self.exit["code"].as_i64()
    }
}

pub fn has_ended(row: &Value) -> bool {
    row["state"] == "completed" || row["state"] == "failed"
}

/// The data of all events of one type, in their order.
pub fn told<'a>(events: &'a [Value], event_type: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["type"] == event_type).map(|event| &event["data"]).collect()
}

/// Every call is in one answer and every result goes back once, in the turn in which they were told and before its end.
pub fn assert_belongs_together(events: &[Value]) {
    let parts = |event_type: &str, list: &str| -> Vec<(Value, Value)> {
        let of = events.iter().filter(|event| event["type"] == event_type);
        let all = of.flat_map(|event| event["data"][list].as_array().unwrap().iter().map(|one| (one, &event["turn"])));
        all.filter(|(one, _)| one["tool_use_id"].is_string())
            .map(|(one, turn)| (one["tool_use_id"].clone(), turn.clone()))
            .collect()
    };
    let ids = |event_type: &str| -> Vec<(Value, Value)> {
        let of = events.iter().filter(|event| event["type"] == event_type);
        of.map(|event| (event["data"]["tool_use_id"].clone(), event["turn"].clone())).collect()
    };
    assert_eq!(parts("agent.assistant_message", "content"), ids("agent.tool_use"), "{events:#?}");
    assert_eq!(parts("agent.user_tool_result", "results"), ids("agent.tool_completed"), "{events:#?}");
    let last = |event_type: &str| events.iter().rposition(|event| event["type"] == event_type);
    assert!(last("agent.assistant_message").is_some(), "no answer: {events:#?}");
    assert!(last("agent.assistant_message") < last("agent.completed"), "{events:#?}");
}

/// What the agent said, in its order.
pub fn said(events: &[Value]) -> Vec<String> {
    told(events, "agent.message").iter().map(|data| data["text"].as_str().unwrap().to_owned()).collect()
}

#[track_caller]
pub fn assert_whole(events: &[Value]) {
    for (index, event) in events.iter().enumerate() {
        assert_eq!(event["seq"], index + 1, "seq has no gap");
    }
    let mut ids: Vec<&str> = events.iter().map(|event| event["id"].as_str().unwrap()).collect();
    ids.sort_unstable();
    assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "an event is stored once");
}

impl Ground {
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// With more lines of configuration.
    pub fn start_with(config: &str) -> Self {
        Self::start_in(config, &[])
    }

    /// The same with further flags of `atoll serve`.
    pub fn start_as(config: &str, flags: &[&str]) -> Self {
        Self::start_wholly(config, flags, &[], None)
    }

    /// With more in the server's environment.
    pub fn start_in(config: &str, environment: &[(String, String)]) -> Self {
        Self::start_wholly(config, &[], environment, None)
    }

    /// All of that, and by somebody without any privilege.
    pub fn start_wholly(
        config: &str,
        flags: &[&str],
        environment: &[(String, String)],
        user: Option<(u32, Ids)>,
    ) -> Self {
        let dir = directory("atoll-local-");
        let (data, file) = (dir.path().join("data"), dir.path().join("atoll.yaml"));
        std::fs::create_dir(&data).unwrap();
        std::fs::write(&file, format!("{CONFIG}{config}")).unwrap();
        let mut arguments = vec!["--config".to_owned(), file.to_str().unwrap().to_owned()];
        arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let person = user.map(|(user, ids)| {
            own(&data, user);
            Person::settle(user, ids, dir.path())
        });
        let how = How { arguments, environment: environment.to_vec(), person };
        let server = ServerProcess::start_as(&data, how);
        let admin = Actor::new(&server.url, Some(&server.token()));
        Self { server, admin, dir, made: Mutex::default(), ordinary: user.is_some() }
    }

    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Where a sandbox is on the host.
    pub fn home_of(&self, id: &str) -> PathBuf {
        self.data().join("sandboxes").join(id)
    }

    /// Where on the host a sandbox's workspace is written to.
    pub fn workspace_of(&self, id: &str) -> PathBuf {
        let record = std::fs::read(self.home_of(id).join("record.json")).unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        let top = record["stack"]["top"].as_str().unwrap();
        let pool = self.data().join("pool/layers").join(top);
        let layer = if pool.exists() { pool } else { self.data().join("layers").join(top) };
        layer.join("files/workspace")
    }

    /// To be cleaned up also when the test fails.
    pub fn remember(&self, id: &str) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push(id.to_owned());
    }

    pub fn made(&self) -> Vec<String> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn request(settings: Value) -> Value {
        let mut body = json!({ "provider": "local", "agent": "demo" });
        body.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        body
    }

    pub async fn make(&self, settings: Value) -> String {
        let made = self.admin.post("/sandboxes", Self::request(settings)).await.expect(201);
        let id = made["id"].as_str().unwrap().to_owned();
        self.remember(&id);
        id
    }

    /// A sandbox that stays, with an agent that waits.
    pub async fn kept(&self, settings: Value) -> String {
        let mut body = json!({ "prompt": "say ready", "end": "keep" });
        body.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        let id = self.make(body).await;
        self.until(&id, |row| row["activity"] == "waiting_message").await;
        id
    }

    pub async fn row(&self, id: &str) -> Value {
        self.admin.get(&format!("/sandboxes/{id}")).await.expect(200)
    }

    /// Waits until the sandbox is as `wanted` says.
    pub async fn until(&self, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let row = self.row(id).await;
            if wanted(&row) {
                return row;
            }
            if Instant::now() > deadline || has_ended(&row) {
                panic!("it did not come to that: {row}\n{:#?}", self.admin.all_events(id).await);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn ended(&self, id: &str) -> Value {
        self.until(id, has_ended).await
    }

    /// Waits for the first event that is as `wanted` says.
    pub async fn event(&self, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let over = has_ended(&self.row(id).await) || Instant::now() > deadline;
            let mut events = self.admin.all_events(id).await;
            if let Some(found) = events.iter().position(&wanted) {
                return events.swap_remove(found);
            }
            assert!(!over, "it was not told: {events:#?}");
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }

    pub async fn send(&self, id: &str, message: Value) -> String {
        let sent = self.admin.post(&format!("/sandboxes/{id}/messages"), message).await.expect(201);
        sent["id"].as_str().unwrap().to_owned()
    }

    /// Waits until a message has come to its end.
    pub async fn delivered(&self, id: &str, message: &str) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let list = self.admin.everything(&format!("/sandboxes/{id}/messages"), 200).await;
            let found = list.into_iter().find(|item| item["id"] == message).unwrap();
            if found["state"] == "acknowledged" {
                return found;
            }
            assert!(Instant::now() < deadline, "it was not delivered: {found}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Runs a command in a sandbox to its end.
    pub async fn exec(&self, id: &str, body: Value) -> Ran {
        let request = self.admin.request(Method::POST, &format!("/sandboxes/{id}/exec")).json(&body);
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200, "{body}: {}", response.text().await.unwrap_or_default());
        let mut chunks = response.bytes_stream();
        let mut bytes = Vec::new();
        while let Some(chunk) = chunks.next().await {
            bytes.extend_from_slice(&chunk.unwrap());
        }
        let mut ran = Ran { stdout: String::new(), stderr: String::new(), exit: Value::Null, error: None };
        for line in String::from_utf8(bytes).unwrap().lines().filter(|line| !line.is_empty()) {
            let line: Value = serde_json::from_str(line).unwrap();
            match line["stream"].as_str() {
                Some("stdout") => ran.stdout.push_str(line["data"].as_str().unwrap()),
                Some("stderr") => ran.stderr.push_str(line["data"].as_str().unwrap()),
                Some(other) => panic!("output of an unknown stream {other}"),
                None if line["error"].is_string() => ran.error = line["error"].as_str().map(str::to_owned),
                None => ran.exit = line["exit"].clone(),
            }
        }
        assert!(!ran.exit.is_null(), "the end of a command is always told: {ran:?}");
        ran
    }

    pub async fn shell(&self, id: &str, script: &str) -> Ran {
        self.exec(id, json!({ "shell": script })).await
    }

    /// Removes every sandbox, ends the server, and looks whether anything is left of them.
    pub async fn leave(mut self) {
        let made = self.made();
        let shared: Vec<PathBuf> =
            made.iter().flat_map(|id| traces::cgroups(id)).filter_map(|dir| dir.parent().map(Path::to_owned)).collect();
        let mut processes: Vec<Process> = made.iter().flat_map(|id| traces::processes(id)).collect();
        processes.extend(traces::children(self.server.pid()));
        for id in &made {
            let answer = self.admin.delete(&format!("/sandboxes/{id}?force=true")).await;
            assert!(answer.status.as_u16() == 200 || answer.body["code"] == "not_found", "{}", answer.body);
        }
        for id in &made {
            self.gone(id).await;
        }
        self.server.terminate();
        let status = self.server.wait(PATIENCE).expect("the server ends when it is told to");
        assert!(status.success(), "{status}");
        self.nothing_is_left(&made, &processes);
        let left: Vec<&PathBuf> = shared.iter().filter(|dir| dir.exists()).collect();
        assert!(left.is_empty(), "cgroups are left: {left:?}");
    }

    /// Waits until a sandbox has left the machine.
    pub async fn gone(&self, id: &str) {
        let deadline = Instant::now() + PATIENCE;
        while let Some(trace) = self.trace(id) {
            if Instant::now() > deadline {
                let files = repository::files(&self.home_of(id));
                let (files, processes): (Vec<_>, _) = (files.keys().collect(), traces::processes(id));
                let row = self.row(id).await;
                panic!(
                    "it is still there: {trace}: {files:?} {processes:?}\n{row}\n{:#?}",
                    self.admin.all_events(id).await
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Something of a sandbox that is still on this machine.
    pub fn trace(&self, id: &str) -> Option<String> {
        let dir = self.home_of(id);
        if dir.exists() {
            return Some(format!("directory {}", dir.display()));
        }
        traces::cgroups(id).first().map(|cgroup| format!("cgroup {}", cgroup.display()))
    }

    /// The server has ended: neither it nor its sandboxes may be seen any more.
    pub fn nothing_is_left(&self, made: &[String], processes: &[Process]) {
        for process in processes {
            assert!(process.ends_within(Duration::from_secs(10)), "a process is left: {process:?}");
            process.reap();
        }
        for id in made {
            assert_eq!(self.trace(id), None, "it is gone");
        }
        let rest: Vec<_> = match std::fs::read_dir(self.data().join("sandboxes")) {
            Ok(entries) => entries.map(|entry| entry.unwrap().file_name()).collect(),
            Err(_) => Vec::new(),
        };
        let rest: Vec<_> = rest.iter().filter(|name| name.to_string_lossy().starts_with("sbx_")).collect();
        assert!(rest.is_empty(), "directories are left: {rest:?}");
        let mounts = traces::mounts_under(self.dir.path());
        assert!(mounts.is_empty(), "mounts are left: {mounts:?}");
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.server.kill();
        for id in self.made() {
            traces::wipe(&id);
        }
        if self.ordinary {
            traces::end_all_in(self.dir.path());
        }
        // Directories of a sandbox may be closed to whoever has not its ids, but not to root.
        // A launcher that lost its server may still be writing there for a moment.
        for _ in 0..100 {
            if std::fs::remove_dir_all(self.dir.path()).is_ok() || !self.dir.path().exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
