//! An in-memory server that follows the worker protocol and fails on request of a test.

use atoll_core::BoxFuture;
use atoll_core::id::{MessageId, SandboxId};
use atoll_protocol::exec::ConnectionKind;
use atoll_protocol::link::{LinkError, WorkerLink};
use atoll_protocol::{Ack, Batch, BatchAnswer, Heartbeat, HeartbeatAnswer, LeaseAnswer, LeaseRequest, Nack};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::future::ready;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::{Message, protocol::Role};

pub(crate) struct FakeServerState {
    pub(crate) sandbox_state: &'static str,
    /// Number of event requests that still fail.
    pub(crate) event_failures_left: u32,
    /// Number of acknowledgements that still fail.
    pub(crate) ack_failures_left: u32,
    pub(crate) failed_acks: u32,
    pub(crate) max_batch_events: usize,
    pub(crate) refusal_code: Option<&'static str>,
    pub(crate) final_batches: u32,
    /// The agent in the response to the first heartbeat.
    pub(crate) agent: Option<&'static str>,
    /// More fields of that response.
    pub(crate) start_fields: serde_json::Map<String, Value>,
    pub(crate) interval_s: u32,
    events: Vec<(String, Value)>,
    last_keys: BTreeMap<String, i64>,
    current_stream: Option<(String, i64)>,
    heartbeats: Vec<Value>,
    pub(crate) blobs: BTreeMap<String, Bytes>,
    message_answers: Vec<(String, Value)>,
    frames: Vec<Value>,
    messages: Vec<QueuedMessage>,
    /// Late copies of messages, to be sent next.
    late_copies: Vec<Value>,
}

struct QueuedMessage {
    message: Value,
    /// The stream with the lease.
    leased_by: Option<String>,
    is_settled: bool,
}

impl FakeServerState {
    /// Loses the last events, like a database restored from a backup.
    pub(crate) fn drop_last_events(&mut self, count: usize) {
        for _ in 0..count {
            let (stream, _) = self.events.pop().unwrap();
            *self.last_keys.get_mut(&stream).unwrap() -= 1;
        }
    }

    fn lease_message(&mut self, stream: &str) -> Option<Value> {
        let queued = self.messages.iter_mut().find(|queued| !queued.is_settled && queued.leased_by.is_none())?;
        queued.leased_by = Some(stream.to_owned());
        queued.message["lease"] = json!(atoll_core::id::LeaseId::new());
        Some(queued.message.clone())
    }
}

#[derive(Clone)]
pub(crate) struct FakeServer {
    state: Arc<Mutex<FakeServerState>>,
    transport: Transport,
    restarted: Arc<Notify>,
}

/// The side that opens connections.
#[derive(Clone)]
enum Transport {
    /// The worker dials this port.
    WorkerDials(u16),
    /// The server dials this socket; the first byte states the kind of connection.
    ServerDials(PathBuf),
}

impl FakeServer {
    pub(crate) fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let fake = Self::new(Transport::WorkerDials(listener.local_addr().unwrap().port()));
        let served = fake.clone();
        run_in_background(async move { served.accept_connections(listener).await });
        fake
    }

    /// Starts a server that dials the worker's socket.
    pub(crate) fn start_dialling(socket: &Path) -> Self {
        let fake = Self::new(Transport::ServerDials(socket.to_owned()));
        let served = fake.clone();
        std::thread::spawn(move || {
            loop {
                // Dropping the runtime closes every connection, like the end of a server process.
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    tokio::select! {
                        () = served.clone().dial_worker() => {}
                        () = served.restarted.notified() => {}
                    }
                });
                drop(runtime);
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        fake
    }

    /// Closes every connection and dials again after a delay.
    pub(crate) fn restart(&self) {
        self.restarted.notify_one();
    }

    fn new(transport: Transport) -> Self {
        let state = FakeServerState {
            sandbox_state: "running",
            event_failures_left: 0,
            ack_failures_left: 0,
            failed_acks: 0,
            max_batch_events: 500,
            refusal_code: None,
            final_batches: 0,
            agent: None,
            start_fields: serde_json::Map::new(),
            interval_s: 1,
            events: Vec::new(),
            last_keys: BTreeMap::new(),
            current_stream: None,
            heartbeats: Vec::new(),
            blobs: BTreeMap::new(),
            message_answers: Vec::new(),
            frames: Vec::new(),
            messages: Vec::new(),
            late_copies: Vec::new(),
        };
        Self { state: Arc::new(Mutex::new(state)), transport, restarted: Arc::default() }
    }

    pub(crate) fn base_url(&self) -> String {
        match &self.transport {
            Transport::WorkerDials(port) => format!("http://127.0.0.1:{port}"),
            Transport::ServerDials(path) => panic!("the server dials {}; it has no URL", path.display()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, FakeServerState> {
        self.state.lock().unwrap()
    }

    pub(crate) fn with_state<T>(&self, act: impl FnOnce(&mut FakeServerState) -> T) -> T {
        act(&mut self.lock())
    }

    pub(crate) fn queue_message(&self, content: &str) -> Value {
        self.queue_message_as("user_message", "steer", content)
    }

    /// Sends a message once more under the lease that it had.
    pub(crate) fn send_late_copy(&self, id: &Value) {
        let mut state = self.lock();
        let copy = state.messages.iter().find(|queued| queued.message["id"] == *id).unwrap().message.clone();
        state.late_copies.push(copy);
    }

    /// Queues a message and returns its id.
    pub(crate) fn queue_message_as(&self, kind: &str, delivery: &str, content: &str) -> Value {
        let mut state = self.lock();
        let message = json!({
            "id": MessageId::new(), "session_id": atoll_core::id::SessionId::new(),
            "type": kind, "delivery": delivery, "content": content, "position": state.messages.len(),
            "created_at": "2026-01-01T00:00:00Z", "lease_until": "2026-01-01T00:00:30Z",
        });
        let id = message["id"].clone();
        state.messages.push(QueuedMessage { message, leased_by: None, is_settled: false });
        id
    }

    pub(crate) fn events(&self) -> Vec<Value> {
        self.lock().events.iter().map(|(_, event)| event.clone()).collect()
    }

    pub(crate) fn event_types(&self) -> Vec<String> {
        self.events().iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect()
    }

    pub(crate) fn heartbeats(&self) -> Vec<Value> {
        self.lock().heartbeats.clone()
    }

    pub(crate) fn message_answers(&self, kind: &str) -> Vec<Value> {
        self.lock().message_answers.iter().filter(|(it, _)| it == kind).map(|(_, body)| body.clone()).collect()
    }

    pub(crate) fn frames_of_type(&self, kind: &str) -> Vec<Value> {
        self.lock().frames.iter().filter(|frame| frame["type"] == kind).cloned().collect()
    }

    async fn accept_connections(self, listener: std::net::TcpListener) {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            self.serve_connection(stream, Arc::default());
        }
    }

    /// Maintains two connections without a request.
    async fn dial_worker(self) {
        let Transport::ServerDials(socket) = &self.transport else { return };
        let used = Arc::new(Notify::new());
        let mut unused = 0;
        loop {
            while unused < 2 {
                match UnixStream::connect(socket).await {
                    Ok(mut stream) => {
                        stream.write_all(&[ConnectionKind::Http.to_byte()]).await.unwrap();
                        self.serve_connection(stream, used.clone());
                        unused += 1;
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
            used.notified().await;
            unused -= 1;
        }
    }

    fn serve_connection(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, used: Arc<Notify>) {
        let (fake, first) = (self.clone(), Arc::new(AtomicBool::new(true)));
        let service = hyper::service::service_fn(move |request| {
            if first.swap(false, Ordering::Relaxed) {
                used.notify_one();
            }
            let fake = fake.clone();
            async move { Ok::<_, std::convert::Infallible>(fake.handle_request(request).await) }
        });
        let connection =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades();
        tokio::spawn(async move { drop(connection.await) });
    }

    async fn handle_request(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let token = request.headers().get("authorization").map(|token| token.to_str().unwrap());
        match &self.transport {
            Transport::WorkerDials(_) => assert_eq!(token, Some("Bearer good")),
            Transport::ServerDials(_) => assert_eq!(token, None, "the worker sent a token"),
        }
        if let Some(code) = self.with_state(|state| state.refusal_code) {
            let status = if code == "unauthorized" { 401 } else { 409 };
            return build_response(status, &json!({"code": code, "detail": "refused by the test"}));
        }
        let path = request.uri().path().rsplit_once("sbx_").unwrap().1;
        let path: Vec<String> = path.split('/').skip(1).map(str::to_owned).collect();
        if path == ["stream"] {
            return self.upgrade_to_web_socket(request);
        }
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        if let ["blobs", sha256] = path[..] {
            self.lock().blobs.insert(sha256.to_owned(), body.clone());
            return build_response(200, &json!({"sha256": sha256, "size": body.len()}));
        }
        let body: Value = serde_json::from_slice(&body).unwrap();
        let (status, reply) = match path[..] {
            ["events"] => self.store_events(&body),
            ["heartbeat"] => self.answer_heartbeat(&body),
            ["messages", id, kind] => self.settle_message(id, kind, &body),
            _ => (404, json!({"code": "not_found"})),
        };
        build_response(status, &reply)
    }

    fn store_events(&self, batch: &Value) -> FakeReply {
        let mut state = self.lock();
        if state.event_failures_left > 0 {
            state.event_failures_left -= 1;
            return (503, json!({"code": "store_unavailable"}));
        }
        let events = batch["events"].as_array().unwrap();
        if events.len() > state.max_batch_events {
            return (413, json!({"code": "too_large"}));
        }
        let stream = batch["stream"].as_str().unwrap().to_owned();
        let mut last_key = *state.last_keys.get(&stream).unwrap_or(&0);
        if events.first().is_some_and(|first| first["key"].as_i64().unwrap() > last_key + 1) {
            return (409, json!({"code": "key_gap", "last_key": last_key}));
        }
        for event in events {
            let key = event["key"].as_i64().unwrap();
            if key > last_key {
                assert_eq!(key, last_key + 1);
                state.events.push((stream.clone(), event.clone()));
                last_key = key;
            }
        }
        state.last_keys.insert(stream, last_key);
        state.final_batches += u32::from(batch["final"] == true);
        (200, json!({"stored": 0, "duplicates": 0, "rejected": [], "last_key": last_key, "last_seq": 0}))
    }

    fn answer_heartbeat(&self, beat: &Value) -> FakeReply {
        let mut state = self.lock();
        state.heartbeats.push(beat.clone());
        let stream = beat["stream"].as_str().unwrap().to_owned();
        let boot = beat["boot"].as_i64().unwrap();
        if state.current_stream.as_ref().is_none_or(|(_, before)| boot > *before) {
            state.current_stream = Some((stream.clone(), boot));
            for queued in &mut state.messages {
                queued.leased_by = None;
            }
        }
        let mut answer = json!({"state": state.sandbox_state, "interval_s": state.interval_s});
        if beat["activity"] == "starting" {
            answer["start"] = json!({"settings": {"a_newer_server_s": "setting", "env": {"FROM_SETTINGS": "yes"}}});
            if let Some(agent) = state.agent {
                answer["start"]["agent"] = agent.into();
            }
            for (name, value) in &state.start_fields {
                answer["start"][name] = value.clone();
            }
            if let Some(prompt) = state.lease_message(&stream) {
                answer["start"]["prompt"] = prompt;
            }
        }
        (200, answer)
    }

    fn settle_message(&self, id: &str, kind: &str, body: &Value) -> FakeReply {
        let mut state = self.lock();
        if state.ack_failures_left > 0 {
            state.ack_failures_left -= 1;
            state.failed_acks += 1;
            return (502, json!({}));
        }
        let Some(queued) = state.messages.iter_mut().find(|queued| queued.message["id"] == id) else {
            return (404, json!({"code": "not_found"}));
        };
        if queued.is_settled || queued.message["lease"] != body["lease"] {
            return (409, json!({"code": "not_your_lease"}));
        }
        let is_returned = kind == "nack" && body["handed"] == false && body["retry"] == true;
        queued.is_settled = !is_returned;
        if is_returned {
            queued.leased_by = None;
        }
        let mut answer = body.clone();
        answer["id"] = id.into();
        state.message_answers.push((kind.to_owned(), answer));
        (200, json!({}))
    }

    fn upgrade_to_web_socket(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let key = request.headers()["sec-websocket-key"].to_str().unwrap().to_owned();
        let query = request.uri().query().unwrap().to_owned();
        let stream = query.strip_prefix("stream=").unwrap().split('&').next().unwrap().to_owned();
        let fake = self.clone();
        tokio::spawn(async move {
            let upgraded = hyper::upgrade::on(request).await.unwrap();
            let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
            fake.serve_web_socket(socket, &stream).await;
        });
        Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-accept", derive_accept_key(key.as_bytes()))
            .body(Full::default())
            .unwrap()
    }

    async fn serve_web_socket(&self, mut socket: WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>, stream: &str) {
        let mut stop_sent = false;
        loop {
            tokio::select! {
                received = socket.next() => match received {
                    Some(Ok(Message::Text(text))) => {
                        let frame: Value = serde_json::from_str(&text).unwrap();
                        self.lock().frames.push(frame);
                    }
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return,
                },
                () = tokio::time::sleep(Duration::from_millis(20)) => {
                    let (messages, state) = self.with_state(|state| {
                        let mut messages = std::mem::take(&mut state.late_copies);
                        messages.extend(state.lease_message(stream));
                        (messages, state.sandbox_state)
                    });
                    let messages = messages.into_iter().map(|message| json!({"type": "message", "message": message}));
                    // Send the stop command: an ending sandbox gets no answers to its heartbeats.
                    let is_ending = state != "running" && !std::mem::replace(&mut stop_sent, state != "running");
                    let stop = is_ending
                        .then(|| json!({"type": "command", "id": 1, "command": {"name": "stop", "state": state}}));
                    for frame in messages.chain(stop) {
                        if socket.send(Message::text(frame.to_string())).await.is_err() {
                            return;
                        }
                    }
                }
            }
        }
    }
}

/// Status and body of a response.
type FakeReply = (u16, Value);

/// The server's in-process link, which drains spools without HTTP.
impl WorkerLink for FakeServer {
    fn send_heartbeat<'a>(&'a self, _: SandboxId, _: &'a Heartbeat) -> LinkResult<'a, HeartbeatAnswer> {
        panic!("a drain sends no heartbeats")
    }

    fn send_events<'a>(&'a self, _: SandboxId, batch: &'a Batch) -> LinkResult<'a, BatchAnswer> {
        Box::pin(ready(to_link_result(self.store_events(&json!(batch)))))
    }

    fn send_blob<'a>(&'a self, _: SandboxId, sha256: &'a str, content: Bytes) -> LinkResult<'a, ()> {
        self.lock().blobs.insert(sha256.to_owned(), content);
        Box::pin(ready(Ok(())))
    }

    fn lease_messages<'a>(&'a self, _: SandboxId, _: &'a LeaseRequest) -> LinkResult<'a, LeaseAnswer> {
        panic!("a drain leases no messages")
    }

    fn send_ack<'a>(&'a self, _: SandboxId, id: MessageId, ack: &'a Ack) -> LinkResult<'a, ()> {
        let reply = self.settle_message(&id.to_string(), "ack", &json!(ack));
        Box::pin(ready(to_link_result::<Value>(reply).map(drop)))
    }

    fn send_nack<'a>(&'a self, _: SandboxId, id: MessageId, nack: &'a Nack) -> LinkResult<'a, ()> {
        let reply = self.settle_message(&id.to_string(), "nack", &json!(nack));
        Box::pin(ready(to_link_result::<Value>(reply).map(drop)))
    }
}

type LinkResult<'a, T> = BoxFuture<'a, Result<T, LinkError>>;

fn to_link_result<T: DeserializeOwned>((status, body): FakeReply) -> Result<T, LinkError> {
    match status {
        200 => Ok(serde_json::from_value(body).unwrap()),
        500.. => Err(LinkError::Unavailable(body.to_string())),
        _ => {
            let code = body["code"].as_str().unwrap_or_default().to_owned();
            Err(LinkError::Rejected { code, detail: String::new() })
        }
    }
}

fn run_in_background(serving: impl Future<Output = ()> + Send + 'static) {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(serving);
    });
}

fn build_response(status: u16, body: &Value) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::new(Bytes::from(body.to_string()))).unwrap()
}
