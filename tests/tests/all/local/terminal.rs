//! Terminals: a real shell in a real sandbox, over the WebSocket.

use atoll_test_wait::{WAIT_TIMEOUT, poll_for, poll_until};
use atoll_tests::actor::Actor;
use atoll_tests::local::{LocalServer, is_root};
use futures_util::{SinkExt, StreamExt};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::Instant;
use tokio::net::TcpStream;
use tokio::task::block_in_place;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// A client connected to a terminal.
struct TerminalViewer {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    opened: Value,
    output: Vec<u8>,
    /// Text frames after the first one.
    control_frames: Vec<Value>,
}

impl TerminalViewer {
    async fn open(actor: &Actor, sandbox: &str, query: &str) -> Self {
        match Self::try_open(actor, sandbox, query).await {
            Ok(view) => view,
            Err(error) => panic!("{query}: {error:?}"),
        }
    }

    async fn try_open(actor: &Actor, sandbox: &str, query: &str) -> Result<Self, Box<Error>> {
        let url = actor.url.replacen("http", "ws", 1);
        let mut request = format!("{url}/api/v1/sandboxes/{sandbox}/terminal?{query}").into_client_request().unwrap();
        if let Some(token) = &actor.token {
            request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        let (socket, _) = tokio_tungstenite::connect_async(request).await.map_err(Box::new)?;
        let mut view = Self { socket, opened: Value::Null, output: Vec::new(), control_frames: Vec::new() };
        assert!(view.read_frame().await, "the first frame must describe the terminal");
        view.opened = view.control_frames.pop().unwrap();
        assert_eq!(view.opened["type"], "opened");
        Ok(view)
    }

    fn exec_id(&self) -> &str {
        self.opened["exec"].as_str().unwrap()
    }

    /// Reads the next frame. Returns false when the server has closed.
    async fn read_frame(&mut self) -> bool {
        let next = tokio::time::timeout(WAIT_TIMEOUT, self.socket.next());
        match next.await.unwrap_or_else(|_| panic!("nothing comes after {:?}", self.screen_text())) {
            Some(Ok(Message::Binary(data))) => self.output.extend_from_slice(&data),
            Some(Ok(Message::Text(text))) => self.control_frames.push(serde_json::from_str(&text).unwrap()),
            Some(Ok(Message::Close(_)) | Err(_)) | None => return false,
            Some(Ok(_)) => {}
        }
        true
    }

    fn screen_text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }

    async fn wait_for_text(&mut self, expected: &str) {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        let mut searched = 0;
        // Search only new output: there may be megabytes of it.
        while !String::from_utf8_lossy(&self.output[searched..]).contains(expected) {
            searched = self.output.len().saturating_sub(expected.len());
            let end = || String::from_utf8_lossy(&self.output[self.output.len().saturating_sub(1000)..]).into_owned();
            assert!(Instant::now() < deadline, "{expected:?} does not come: {}", end());
            assert!(
                self.read_frame().await,
                "it closed without {expected:?}: {} {:?}",
                self.screen_text(),
                self.control_frames
            );
        }
    }

    async fn send_keys(&mut self, keys: &str) {
        self.socket.send(Message::binary(keys.as_bytes().to_vec())).await.unwrap();
    }

    async fn send_control(&mut self, frame: Value) {
        self.socket.send(Message::text(frame.to_string())).await.unwrap();
    }

    /// Waits for a control frame of this type.
    async fn wait_for_control(&mut self, kind: &str) -> Value {
        loop {
            if let Some(found) = self.control_frames.iter().find(|frame| frame["type"] == kind) {
                return found.clone();
            }
            assert!(
                self.read_frame().await,
                "it closed without a {kind}: {} {:?}",
                self.screen_text(),
                self.control_frames
            );
        }
    }
}

/// Returns the status and the detail of a refused opening.
async fn expect_refused_open(actor: &Actor, sandbox: &str, query: &str) -> (u16, String) {
    match TerminalViewer::try_open(actor, sandbox, query).await.map_err(|error| *error) {
        Err(Error::Http(response)) => {
            let body: Value = serde_json::from_slice(response.body().as_deref().unwrap_or_default()).unwrap();
            (response.status().as_u16(), body["detail"].as_str().unwrap().to_owned())
        }
        Err(error) => panic!("{error:?}"),
        Ok(view) => panic!("it was opened: {}", view.opened),
    }
}

async fn get_exec(server: &LocalServer, id: &str, exec: &str) -> Value {
    let list = server.admin.get(&format!("/sandboxes/{id}/exec")).await.expect_status(200);
    list["items"].as_array().unwrap().iter().find(|row| row["id"] == exec).unwrap().clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shell_has_a_real_terminal() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let mut view = TerminalViewer::open(&server.admin, &id, "cols=100&rows=30").await;
    assert_eq!((&view.opened["cursor"], &view.opened["may_type"]), (&json!(0), &json!(true)));
    view.send_keys("echo \"at $(stty size) in $PWD as $(id -un) on $(tty) with $TERM\"\r").await;
    view.wait_for_text("at 30 100 in /workspace as agent on /dev/pts/").await;
    view.wait_for_text("with xterm-256color").await;
    // The agent owns the terminal device, so that programs can open it by name.
    view.send_keys("test -O $(tty) && echo ow''ned; echo hi > $(tty)\r").await;
    view.wait_for_text("owned").await;
    view.send_control(json!({ "type": "resize", "cols": 61, "rows": 17 })).await;
    view.send_keys("stty size\r").await;
    view.wait_for_text("17 61").await;
    // Job control and control characters work.
    view.send_keys("sleep 1000\r").await;
    view.wait_for_text("sleep 1000\r\n").await;
    let is_in_foreground = async || {
        let ran = server.run_shell(&id, "ps -eo stat=,args= | grep '^S+ *sleep 1000$'").await;
        ran.exit_code() == Some(0)
    };
    poll_until("`sleep` in the foreground", &is_in_foreground).await;
    view.send_keys("\x1a").await;
    view.wait_for_text("Stopped").await;
    view.send_keys("fg\r").await;
    poll_until("`sleep` in the foreground again", &is_in_foreground).await;
    view.send_keys("\x03").await;
    view.send_keys("echo it en''ded by $?\r").await;
    view.wait_for_text("it ended by 130").await;
    // TIOCSTI, which types into other terminals, is blocked.
    view.send_keys("python3 -c 'import fcntl; fcntl.ioctl(0, 0x5412, b\"x\")' 2>&1 | tail -1\r").await;
    view.wait_for_text("rror").await;
    for nonsense in [json!({ "type": "resize", "cols": 0, "rows": 5 }), json!({ "type": "dance" })] {
        view.control_frames.clear();
        view.send_control(nonsense).await;
        assert_eq!(view.wait_for_control("problem").await["code"], "invalid");
    }
    view.send_keys("exit 7\r").await;
    assert_eq!(view.wait_for_control("exit").await["exit"], json!({ "kind": "exited", "code": 7 }));
    assert!(!view.read_frame().await, "the server must close after the exit");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn viewers_share_a_terminal_and_can_reattach() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let mut first = TerminalViewer::open(&server.admin, &id, "shell=/bin/cat").await;
    first.send_keys("one\r").await;
    first.wait_for_text("one\r\none\r\n").await;
    let exec = first.exec_id().to_owned();
    let mut second = TerminalViewer::open(&server.admin, &id, &format!("exec={exec}&cols=90&rows=20")).await;
    second.wait_for_text("one\r\none\r\n").await;
    assert_eq!(second.opened["until"], second.output.len(), "a new viewer must get all earlier output");
    // Both viewers can type and see the output.
    second.send_keys("two\r").await;
    first.wait_for_text("two\r\ntwo\r\n").await;
    second.wait_for_text("two\r\ntwo\r\n").await;
    let row = get_exec(&server, &id, &exec).await;
    assert_eq!((&row["readers"], &row["exit"], &row["argv"]), (&json!(2), &Value::Null, &json!(["/bin/cat"])));
    assert_eq!(row["terminal"], json!({ "cols": 90, "rows": 20 }));
    // The terminal stays open without viewers, and a viewer can resume at its cursor.
    let cursor = first.output.len();
    drop((first, second));
    let path = format!("/sandboxes/{id}/exec/{exec}");
    server
        .admin
        .send(server.admin.request(Method::POST, &format!("{path}/stdin")).body("three\n"))
        .await
        .expect_status(200);
    let mut resumed = TerminalViewer::open(&server.admin, &id, &format!("exec={exec}&cursor={cursor}")).await;
    resumed.wait_for_text("three\r\nthree\r\n").await;
    assert_eq!(resumed.screen_text(), "three\r\nthree\r\n", "no output twice");
    // A project viewer can read but not type.
    let user = server.admin.post("/users", json!({ "name": "eye", "role": "viewer" })).await.expect_status(201);
    let token = server.admin.post("/tokens", json!({ "name": "eye", "user_id": user["id"] })).await.expect_status(201);
    let viewer = server.admin.with_token(token["token"].as_str().unwrap());
    let mut read_only = TerminalViewer::open(&viewer, &id, &format!("exec={exec}")).await;
    assert_eq!(read_only.opened["may_type"], false);
    read_only.wait_for_text("three\r\nthree\r\n").await;
    read_only.send_keys("four\r").await;
    assert_eq!(read_only.wait_for_control("problem").await["code"], "forbidden");
    read_only.send_control(json!({ "type": "resize", "cols": 10, "rows": 10 })).await;
    assert_eq!(expect_refused_open(&viewer, &id, "").await.0, 403);
    // A ticket authenticates once, for clients that cannot send a header.
    let ticket = server.admin.post("/ws-tickets", json!({})).await.expect_status(201);
    let (anon, ticket) = (Actor::new(&server.process.url, None), ticket["ticket"].as_str().unwrap().to_owned());
    let mut ticketed = TerminalViewer::open(&anon, &id, &format!("exec={exec}&ticket={ticket}")).await;
    ticketed.send_keys("five\r").await;
    resumed.wait_for_text("five\r\nfive\r\n").await;
    assert!(!resumed.screen_text().contains("four"));
    assert_eq!(expect_refused_open(&anon, &id, &format!("exec={exec}&ticket={ticket}")).await.0, 401);
    // The same operations over HTTP.
    server.admin.post(&format!("{path}/resize"), json!({ "cols": 33, "rows": 11 })).await.expect_status(200);
    server.admin.post(&format!("{path}/signal"), json!({ "signal": "WHO" })).await.expect_problem(422, "invalid");
    server.admin.delete(&path).await.expect_status(200);
    let killed = json!({ "kind": "signalled", "signal": 9 });
    assert_eq!(resumed.wait_for_control("exit").await["exit"], killed);
    let row = get_exec(&server, &id, &exec).await;
    assert_eq!((&row["exit"], &row["terminal"]), (&killed, &json!({ "cols": 33, "rows": 11 })));
    // The output of an ended terminal is still readable.
    let mut late = TerminalViewer::open(&server.admin, &id, &format!("exec={exec}")).await;
    assert_eq!(late.wait_for_control("exit").await["exit"], killed);
    for (query, status) in [("exec=nothing", 404), ("cols=0", 400), ("rows=5000", 400), ("cursor=5", 400), ("x=1", 400)]
    {
        assert_eq!(expect_refused_open(&server.admin, &id, query).await.0, status, "{query}");
    }
    let plain =
        server.admin.request(Method::POST, &format!("/sandboxes/{id}/exec")).json(&json!({ "shell": "sleep 9" }));
    let plain = plain.send().await.unwrap().headers()["exec-id"].to_str().unwrap().to_owned();
    assert!(expect_refused_open(&server.admin, &id, &format!("exec={plain}")).await.1.contains("has no terminal"));
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_viewer_gets_a_gap_and_delays_no_other_viewer() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let mut fast = TerminalViewer::open(&server.admin, &id, "shell=/bin/bash").await;
    let mut slow = TerminalViewer::open(&server.admin, &id, &format!("exec={}", fast.exec_id())).await;
    // 60 MB: more than the server buffers, and more than any buffer on the way holds.
    fast.send_keys("head -c 60000000 /dev/zero | tr '\\0' 'x' | fold -w 100; echo all''done\r").await;
    let started = Instant::now();
    let mut received = 0;
    while !fast.screen_text().contains("alldone") {
        assert!(fast.read_frame().await);
        received += fast.output.len().saturating_sub(200);
        let keep = fast.output.len().saturating_sub(200);
        fast.output.drain(..keep);
    }
    assert!(received > 1_000_000, "{received} bytes in {:?}", started.elapsed());
    let gap = slow.wait_for_control("gap").await["cursor"].as_u64().unwrap();
    assert!(gap > 1_000_000, "{gap}");
    slow.wait_for_text("alldone").await;
    // A viewer behind on its output can still interrupt the program.
    fast.send_keys("yes 'on and on'\r").await;
    fast.wait_for_text("on and on\r\non and on").await;
    fast.send_keys("\x03").await;
    fast.output.clear();
    fast.send_keys("echo sto''pped\r").await;
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while !fast.screen_text().contains("stopped") {
        assert!(Instant::now() < deadline && fast.read_frame().await);
        let keep = fast.output.len().saturating_sub(200);
        fast.output.drain(..keep);
    }
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_without_viewers_is_hung_up() {
    let server = LocalServer::start_with_config("terminal: {linger: 2s}\n");
    let id = server.create_idle_sandbox(json!({})).await;
    let [view, other] =
        [TerminalViewer::open(&server.admin, &id, "").await, TerminalViewer::open(&server.admin, &id, "").await];
    let [exec, other_exec] = [&view, &other].map(|view| view.exec_id().to_owned());
    drop(view);
    poll_until("the server to notice", async || get_exec(&server, &id, &exec).await["readers"] == 0).await;
    let mut resumed = TerminalViewer::open(&server.admin, &id, &format!("exec={exec}")).await;
    // A terminal that lost its viewer later is hung up, and the one with a new viewer is not.
    drop(other);
    let wait_for_end = async |exec: &str| {
        let ended = async || Some(get_exec(&server, &id, exec).await).filter(|row| !row["exit"].is_null());
        poll_for("the command's end", ended).await
    };
    wait_for_end(&other_exec).await;
    resumed.send_keys("echo still he''re; (setsid sleep 1717 &)\r").await;
    resumed.wait_for_text("still here").await;
    drop(resumed);
    assert_eq!(wait_for_end(&exec).await["exit"], json!({ "kind": "signalled", "signal": 1 }));
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_reports_lost_terminals() {
    let mut server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let mut view = TerminalViewer::open(&server.admin, &id, "").await;
    let exec = view.exec_id().to_owned();
    view.send_keys("sleep 1818 &\r").await;
    view.wait_for_text("[1]").await;
    block_in_place(|| {
        server.process.kill();
        server.process.restart();
    });
    while view.read_frame().await {}
    server.wait_until(&id, |row| row["state"] == "running").await;
    let (status, detail) = expect_refused_open(&server.admin, &id, &format!("exec={exec}")).await;
    assert!(status == 404 && detail.contains("end with the server that started them"), "{status} {detail}");
    poll_until("programs of a lost terminal to end", async || {
        let commands = server.run_shell(&id, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await.expect_success();
        !commands.contains("sleep 1818 ")
    })
    .await;
    let mut fresh = TerminalViewer::open(&server.admin, &id, "").await;
    fresh.send_keys("echo he''re\r").await;
    fresh.wait_for_text("here").await;
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timed_out_command_leaves_no_process_in_a_real_sandbox() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    for script in [
        "setsid sleep 1919 & sleep 1919",
        "(setsid sh -c 'sleep 1919 &' &) ; sleep 1919",
        "setsid setsid sh -c '(sleep 1919 &) ; exec sleep 1919' & sleep 1919",
    ] {
        let ran = server.run_exec(&id, json!({ "shell": script, "timeout_s": 1 })).await;
        assert_eq!(ran.exit, json!({ "kind": "timed_out" }), "{script}");
        let left =
            server.run_shell(&id, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 191[9]'; true").await;
        assert_eq!(left.expect_success(), "0\n", "{script}, root: {}", is_root());
    }
    server.stop_and_check().await;
}
