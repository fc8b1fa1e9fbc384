//! A server as a worker sees it, in memory. Follows the protocol, and fails where a test says so.

use atoll_protocol::exec::Opening;
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::collections::BTreeMap;
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

pub(crate) struct State {
    pub(crate) state: &'static str,
    /// How many more requests of the kind fail.
    pub(crate) fail_events: u32,
    pub(crate) fail_answers: u32,
    pub(crate) failed_answers: u32,
    pub(crate) most_events: usize,
    pub(crate) refuse: Option<&'static str>,
    pub(crate) finals: u32,
    /// What the first heartbeat is told to run.
    pub(crate) agent: Option<&'static str>,
    /// What it is told beside that.
    pub(crate) start: serde_json::Map<String, Value>,
    pub(crate) interval_s: u32,
    events: Vec<(String, Value)>,
    last_keys: BTreeMap<String, i64>,
    current: Option<(String, i64)>,
    heartbeats: Vec<Value>,
    answers: Vec<(String, Value)>,
    frames: Vec<Value>,
    messages: Vec<Queued>,
}

struct Queued {
    message: Value,
    /// The stream that holds it.
    holder: Option<String>,
    done: bool,
}

impl State {
    /// Loses the last events, as a database from a backup would have.
    pub(crate) fn forget(&mut self, count: usize) {
        for _ in 0..count {
            let (stream, _) = self.events.pop().unwrap();
            *self.last_keys.get_mut(&stream).unwrap() -= 1;
        }
    }

    fn lease(&mut self, stream: &str) -> Option<Value> {
        let queued = self.messages.iter_mut().find(|queued| !queued.done && queued.holder.is_none())?;
        queued.holder = Some(stream.to_owned());
        queued.message["lease"] = json!(atoll_core::id::LeaseId::new());
        Some(queued.message.clone())
    }
}

#[derive(Clone)]
pub(crate) struct Fake {
    state: Arc<Mutex<State>>,
    reached: Reached,
    restarted: Arc<Notify>,
}

/// How a worker gets its connections.
#[derive(Clone)]
enum Reached {
    /// It dials.
    Port(u16),
    /// This dials, and each connection says what it is for.
    Socket(PathBuf),
}

impl Fake {
    pub(crate) fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let fake = Self::new(Reached::Port(listener.local_addr().unwrap().port()));
        let served = fake.clone();
        in_background(async move { served.serve(listener).await });
        fake
    }

    /// A server that dials the worker's socket.
    pub(crate) fn dialling(socket: &Path) -> Self {
        let fake = Self::new(Reached::Socket(socket.to_owned()));
        let served = fake.clone();
        std::thread::spawn(move || {
            loop {
                // Every connection ends with its runtime, as it would with a server's process.
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    tokio::select! {
                        () = served.clone().dial() => {}
                        () = served.restarted.notified() => {}
                    }
                });
                drop(runtime);
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        fake
    }

    /// Ends every connection, and dials again a while later.
    pub(crate) fn restart(&self) {
        self.restarted.notify_one();
    }

    /// Another door to the same server, for whoever dials it himself and needs no token; gives its address.
    pub(crate) fn beside(&self) -> String {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://127.0.0.1:{}", listener.local_addr().unwrap().port());
        let served = self.clone();
        in_background(async move { served.serve(listener).await });
        url
    }

    fn new(reached: Reached) -> Self {
        let state = State {
            state: "running",
            fail_events: 0,
            fail_answers: 0,
            failed_answers: 0,
            most_events: 500,
            refuse: None,
            finals: 0,
            agent: None,
            start: serde_json::Map::new(),
            interval_s: 1,
            events: Vec::new(),
            last_keys: BTreeMap::new(),
            current: None,
            heartbeats: Vec::new(),
            answers: Vec::new(),
            frames: Vec::new(),
            messages: Vec::new(),
        };
        Self { state: Arc::new(Mutex::new(state)), reached, restarted: Arc::default() }
    }

    pub(crate) fn url(&self) -> String {
        match &self.reached {
            Reached::Port(port) => format!("http://127.0.0.1:{port}"),
            Reached::Socket(path) => panic!("{} is dialled", path.display()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.lock())
    }

    pub(crate) fn queue(&self, content: &str) -> Value {
        self.queue_as("user_message", "steer", content)
    }

    /// Gives the message's id.
    pub(crate) fn queue_as(&self, kind: &str, delivery: &str, content: &str) -> Value {
        let mut state = self.lock();
        let message = json!({
            "id": atoll_core::id::MessageId::new(), "session_id": atoll_core::id::SessionId::new(),
            "type": kind, "delivery": delivery, "content": content, "position": state.messages.len(),
            "created_at": "2026-01-01T00:00:00Z", "lease_until": "2026-01-01T00:00:30Z",
        });
        let id = message["id"].clone();
        state.messages.push(Queued { message, holder: None, done: false });
        id
    }

    pub(crate) fn events(&self) -> Vec<Value> {
        self.lock().events.iter().map(|(_, event)| event.clone()).collect()
    }

    pub(crate) fn types(&self) -> Vec<String> {
        self.events().iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect()
    }

    pub(crate) fn heartbeats(&self) -> Vec<Value> {
        self.lock().heartbeats.clone()
    }

    pub(crate) fn answers(&self, kind: &str) -> Vec<Value> {
        self.lock().answers.iter().filter(|(it, _)| it == kind).map(|(_, body)| body.clone()).collect()
    }

    pub(crate) fn frames(&self, kind: &str) -> Vec<Value> {
        self.lock().frames.iter().filter(|frame| frame["type"] == kind).cloned().collect()
    }

    async fn serve(self, listener: std::net::TcpListener) {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            self.serve_one(stream, Arc::default());
        }
    }

    /// Keeps two connections that nothing was asked on.
    async fn dial(self) {
        let Reached::Socket(socket) = &self.reached else { return };
        let used = Arc::new(Notify::new());
        let mut unused = 0;
        loop {
            while unused < 2 {
                match UnixStream::connect(socket).await {
                    Ok(mut stream) => {
                        stream.write_all(&[Opening::Http.byte()]).await.unwrap();
                        self.serve_one(stream, used.clone());
                        unused += 1;
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
            used.notified().await;
            unused -= 1;
        }
    }

    fn serve_one(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, used: Arc<Notify>) {
        let (fake, first) = (self.clone(), Arc::new(AtomicBool::new(true)));
        let service = hyper::service::service_fn(move |request| {
            if first.swap(false, Ordering::Relaxed) {
                used.notify_one();
            }
            let fake = fake.clone();
            async move { Ok::<_, std::convert::Infallible>(fake.answer(request).await) }
        });
        let connection =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades();
        tokio::spawn(async move { drop(connection.await) });
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let token = request.headers().get("authorization").map(|token| token.to_str().unwrap());
        match &self.reached {
            Reached::Port(_) => assert_eq!(token, Some("Bearer good")),
            Reached::Socket(_) => assert_eq!(token, None, "the connection is the credential"),
        }
        if let Some(code) = self.with(|state| state.refuse) {
            let status = if code == "unauthorized" { 401 } else { 409 };
            return respond(status, &json!({"code": code, "detail": "the test says so"}));
        }
        let path = request.uri().path().rsplit_once("sbx_").unwrap().1;
        let path: Vec<String> = path.split('/').skip(1).map(str::to_owned).collect();
        if path == ["stream"] {
            return self.upgrade(request);
        }
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        if let ["blobs", sha256] = path[..] {
            return respond(200, &json!({"sha256": sha256, "size": body.len()}));
        }
        let body: Value = serde_json::from_slice(&body).unwrap();
        match path[..] {
            ["events"] => self.store(&body),
            ["heartbeat"] => self.heartbeat(&body),
            ["messages", id, kind] => self.answered(id, kind, &body),
            _ => respond(404, &json!({"code": "not_found"})),
        }
    }

    fn store(&self, batch: &Value) -> Response<Full<Bytes>> {
        let mut state = self.lock();
        if state.fail_events > 0 {
            state.fail_events -= 1;
            return respond(503, &json!({"code": "store_unavailable"}));
        }
        let events = batch["events"].as_array().unwrap();
        if events.len() > state.most_events {
            return respond(413, &json!({"code": "too_large"}));
        }
        let stream = batch["stream"].as_str().unwrap().to_owned();
        let mut last_key = *state.last_keys.get(&stream).unwrap_or(&0);
        if events.first().is_some_and(|first| first["key"].as_i64().unwrap() > last_key + 1) {
            return respond(409, &json!({"code": "key_gap", "last_key": last_key}));
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
        state.finals += u32::from(batch["final"] == true);
        respond(200, &json!({"stored": 0, "duplicates": 0, "rejected": [], "last_key": last_key, "last_seq": 0}))
    }

    fn heartbeat(&self, beat: &Value) -> Response<Full<Bytes>> {
        let mut state = self.lock();
        state.heartbeats.push(beat.clone());
        let stream = beat["stream"].as_str().unwrap().to_owned();
        let boot = beat["boot"].as_i64().unwrap();
        if state.current.as_ref().is_none_or(|(_, before)| boot > *before) {
            state.current = Some((stream.clone(), boot));
            for queued in &mut state.messages {
                queued.holder = None;
            }
        }
        let mut answer = json!({"state": state.state, "interval_s": state.interval_s});
        if beat["activity"] == "starting" {
            answer["start"] = json!({"settings": {"a_newer_server_s": "setting", "env": {"FROM_SETTINGS": "yes"}}});
            if let Some(agent) = state.agent {
                answer["start"]["agent"] = agent.into();
            }
            for (name, value) in &state.start {
                answer["start"][name] = value.clone();
            }
            if let Some(prompt) = state.lease(&stream) {
                answer["start"]["prompt"] = prompt;
            }
        }
        respond(200, &answer)
    }

    fn answered(&self, id: &str, kind: &str, body: &Value) -> Response<Full<Bytes>> {
        let mut state = self.lock();
        if state.fail_answers > 0 {
            state.fail_answers -= 1;
            state.failed_answers += 1;
            return respond(502, &json!({}));
        }
        let Some(queued) = state.messages.iter_mut().find(|queued| queued.message["id"] == id) else {
            return respond(404, &json!({"code": "not_found"}));
        };
        if queued.done || queued.message["lease"] != body["lease"] {
            return respond(409, &json!({"code": "not_your_lease"}));
        }
        let given_back = kind == "nack" && body["handed"] == false && body["retry"] == true;
        queued.done = !given_back;
        if given_back {
            queued.holder = None;
        }
        let mut answer = body.clone();
        answer["id"] = id.into();
        state.answers.push((kind.to_owned(), answer));
        respond(200, &json!({}))
    }

    fn upgrade(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let key = request.headers()["sec-websocket-key"].to_str().unwrap().to_owned();
        let query = request.uri().query().unwrap().to_owned();
        let stream = query.strip_prefix("stream=").unwrap().split('&').next().unwrap().to_owned();
        let fake = self.clone();
        tokio::spawn(async move {
            let upgraded = hyper::upgrade::on(request).await.unwrap();
            let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
            fake.talk(socket, &stream).await;
        });
        Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-accept", derive_accept_key(key.as_bytes()))
            .body(Full::default())
            .unwrap()
    }

    async fn talk(&self, mut socket: WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>, stream: &str) {
        let mut is_told = false;
        loop {
            tokio::select! {
                received = socket.next() => match received {
                    Some(Ok(Message::Text(text))) => {
                        let frame: Value = serde_json::from_str(&text).unwrap();
                        if frame["type"] == "heartbeat" {
                            drop(self.heartbeat(&frame));
                        }
                        self.lock().frames.push(frame);
                    }
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return,
                },
                () = tokio::time::sleep(Duration::from_millis(20)) => {
                    let (leased, state) = self.with(|state| (state.lease(stream), state.state));
                    let message = leased.map(|message| json!({"type": "message", "message": message}));
                    // Of an end the worker hears here, as nobody answers its heartbeats.
                    let is_over = state != "running" && !std::mem::replace(&mut is_told, state != "running");
                    let stop = is_over
                        .then(|| json!({"type": "command", "id": 1, "command": {"name": "stop", "state": state}}));
                    for frame in message.into_iter().chain(stop) {
                        if socket.send(Message::text(frame.to_string())).await.is_err() {
                            return;
                        }
                    }
                }
            }
        }
    }
}

fn in_background(serving: impl Future<Output = ()> + Send + 'static) {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(serving);
    });
}

fn respond(status: u16, body: &Value) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::new(Bytes::from(body.to_string()))).unwrap()
}
