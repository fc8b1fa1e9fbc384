//! Terminals: a real shell in a real sandbox, over the WebSocket.

use atoll_tests::actor::Actor;
use atoll_tests::local::{Ground, PATIENCE, is_root};
use futures_util::{SinkExt, StreamExt};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::task::block_in_place;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// One viewer of a terminal.
struct View {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    opened: Value,
    shown: Vec<u8>,
    /// Frames of text after the first.
    said: Vec<Value>,
}

impl View {
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
        let mut view = Self { socket, opened: Value::Null, shown: Vec::new(), said: Vec::new() };
        assert!(view.hear().await, "the first frame says what was opened");
        view.opened = view.said.pop().unwrap();
        assert_eq!(view.opened["type"], "opened");
        Ok(view)
    }

    fn exec(&self) -> &str {
        self.opened["exec"].as_str().unwrap()
    }

    /// The next frame; false when the server has closed.
    async fn hear(&mut self) -> bool {
        let next = tokio::time::timeout(PATIENCE, self.socket.next());
        match next.await.unwrap_or_else(|_| panic!("nothing comes after {:?}", self.text())) {
            Some(Ok(Message::Binary(data))) => self.shown.extend_from_slice(&data),
            Some(Ok(Message::Text(text))) => self.said.push(serde_json::from_str(&text).unwrap()),
            Some(Ok(Message::Close(_)) | Err(_)) | None => return false,
            Some(Ok(_)) => {}
        }
        true
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown).into_owned()
    }

    async fn until(&mut self, wanted: &str) {
        let deadline = Instant::now() + PATIENCE;
        let mut looked_at = 0;
        // Only what is new is looked at: there may be megabytes of it.
        while !String::from_utf8_lossy(&self.shown[looked_at..]).contains(wanted) {
            looked_at = self.shown.len().saturating_sub(wanted.len());
            let end = || String::from_utf8_lossy(&self.shown[self.shown.len().saturating_sub(1000)..]).into_owned();
            assert!(Instant::now() < deadline, "{wanted:?} does not come: {}", end());
            assert!(self.hear().await, "it closed without {wanted:?}: {} {:?}", self.text(), self.said);
        }
    }

    async fn press(&mut self, keys: &str) {
        self.socket.send(Message::binary(keys.as_bytes().to_vec())).await.unwrap();
    }

    async fn say(&mut self, word: Value) {
        self.socket.send(Message::text(word.to_string())).await.unwrap();
    }

    /// The first word of a kind that the server says.
    async fn word(&mut self, kind: &str) -> Value {
        loop {
            if let Some(found) = self.said.iter().find(|word| word["type"] == kind) {
                return found.clone();
            }
            assert!(self.hear().await, "it closed without a {kind}: {} {:?}", self.text(), self.said);
        }
    }
}

/// The status and code of a refused opening.
async fn refusal(actor: &Actor, sandbox: &str, query: &str) -> (u16, String) {
    match View::try_open(actor, sandbox, query).await.map_err(|error| *error) {
        Err(Error::Http(response)) => {
            let body: Value = serde_json::from_slice(response.body().as_deref().unwrap_or_default()).unwrap();
            (response.status().as_u16(), body["detail"].as_str().unwrap().to_owned())
        }
        Err(error) => panic!("{error:?}"),
        Ok(view) => panic!("it was opened: {}", view.opened),
    }
}

async fn commands(ground: &Ground, id: &str) -> Vec<Value> {
    let list = ground.admin.get(&format!("/sandboxes/{id}/exec")).await.expect(200);
    list["items"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shell_has_a_real_terminal() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let mut view = View::open(&ground.admin, &id, "cols=100&rows=30").await;
    assert_eq!((&view.opened["cursor"], &view.opened["may_type"]), (&json!(0), &json!(true)));
    view.press("echo \"at $(stty size) in $PWD as $(id -un) on $(tty) with $TERM\"\r").await;
    view.until("at 30 100 in /workspace as agent on /dev/pts/").await;
    view.until("with xterm-256color").await;
    // Its own user's, so that programs can open it by its name.
    view.press("test -O $(tty) && echo ow''ned; echo hi > $(tty)\r").await;
    view.until("owned").await;
    view.say(json!({ "type": "resize", "cols": 61, "rows": 17 })).await;
    view.press("stty size\r").await;
    view.until("17 61").await;
    // Job control, and keys that mean something.
    view.press("sleep 1000\r").await;
    view.until("sleep 1000\r\n").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    view.press("\x1a").await;
    view.until("Stopped").await;
    view.press("fg\r").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    view.press("\x03").await;
    view.press("echo it en''ded by $?\r").await;
    view.until("it ended by 130").await;
    // Nobody types for others with TIOCSTI.
    view.press("python3 -c 'import fcntl; fcntl.ioctl(0, 0x5412, b\"x\")' 2>&1 | tail -1\r").await;
    view.until("rror").await;
    for nonsense in [json!({ "type": "resize", "cols": 0, "rows": 5 }), json!({ "type": "dance" })] {
        view.said.clear();
        view.say(nonsense).await;
        assert_eq!(view.word("problem").await["code"], "invalid");
    }
    view.press("exit 7\r").await;
    assert_eq!(view.word("exit").await["exit"], json!({ "kind": "exited", "code": 7 }));
    assert!(!view.hear().await, "and then it closes");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_look_at_one_terminal_and_one_comes_back() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let mut first = View::open(&ground.admin, &id, "shell=/bin/cat").await;
    first.press("one\r").await;
    first.until("one\r\none\r\n").await;
    let exec = first.exec().to_owned();
    let mut second = View::open(&ground.admin, &id, &format!("exec={exec}&cols=90&rows=20")).await;
    second.until("one\r\none\r\n").await;
    assert_eq!(second.opened["until"], second.shown.len(), "everything from before is shown again");
    // Both type, both see it.
    second.press("two\r").await;
    first.until("two\r\ntwo\r\n").await;
    second.until("two\r\ntwo\r\n").await;
    let running = commands(&ground, &id).await;
    let row = running.iter().find(|row| row["id"] == *exec).unwrap();
    assert_eq!((&row["readers"], &row["exit"], &row["argv"]), (&json!(2), &Value::Null, &json!(["/bin/cat"])));
    assert_eq!(row["terminal"], json!({ "cols": 90, "rows": 20 }));
    // Both leave; it goes on, and who comes back goes on where they were.
    let cursor = first.shown.len();
    drop((first, second));
    let path = format!("/sandboxes/{id}/exec/{exec}");
    ground.admin.send(ground.admin.request(Method::POST, &format!("{path}/stdin")).body("three\n")).await.expect(200);
    let mut back = View::open(&ground.admin, &id, &format!("exec={exec}&cursor={cursor}")).await;
    back.until("three\r\nthree\r\n").await;
    assert_eq!(back.text(), "three\r\nthree\r\n", "nothing twice");
    // A viewer of the project looks, and that is all.
    let user = ground.admin.post("/users", json!({ "name": "eye", "role": "viewer" })).await.expect(201);
    let token = ground.admin.post("/tokens", json!({ "name": "eye", "user_id": user["id"] })).await.expect(201);
    let eye = ground.admin.with_token(token["token"].as_str().unwrap());
    let mut looking = View::open(&eye, &id, &format!("exec={exec}")).await;
    assert_eq!(looking.opened["may_type"], false);
    looking.until("three\r\nthree\r\n").await;
    looking.press("four\r").await;
    assert_eq!(looking.word("problem").await["code"], "forbidden");
    looking.say(json!({ "type": "resize", "cols": 10, "rows": 10 })).await;
    assert_eq!(refusal(&eye, &id, "").await.0, 403);
    // A ticket opens it for who can't send a header; once.
    let ticket = ground.admin.post("/ws-tickets", json!({})).await.expect(201);
    let (anon, ticket) = (Actor::new(&ground.server.url, None), ticket["ticket"].as_str().unwrap().to_owned());
    let mut ticketed = View::open(&anon, &id, &format!("exec={exec}&ticket={ticket}")).await;
    ticketed.press("five\r").await;
    back.until("five\r\nfive\r\n").await;
    assert!(!back.text().contains("four"));
    assert_eq!(refusal(&anon, &id, &format!("exec={exec}&ticket={ticket}")).await.0, 401);
    // What is asked of it by other ways.
    ground.admin.post(&format!("{path}/resize"), json!({ "cols": 33, "rows": 11 })).await.expect(200);
    ground.admin.post(&format!("{path}/signal"), json!({ "signal": "WHO" })).await.refused(422, "invalid");
    ground.admin.delete(&path).await.expect(200);
    let killed = json!({ "kind": "signalled", "signal": 9 });
    assert_eq!(back.word("exit").await["exit"], killed);
    let row = commands(&ground, &id).await.into_iter().find(|row| row["id"] == *exec).unwrap();
    assert_eq!((&row["exit"], &row["terminal"]), (&killed, &json!({ "cols": 33, "rows": 11 })));
    // Its last words can still be read.
    let mut late = View::open(&ground.admin, &id, &format!("exec={exec}")).await;
    assert_eq!(late.word("exit").await["exit"], killed);
    for (query, status) in [("exec=nothing", 404), ("cols=0", 400), ("rows=5000", 400), ("cursor=5", 400), ("x=1", 400)]
    {
        assert_eq!(refusal(&ground.admin, &id, query).await.0, status, "{query}");
    }
    let plain =
        ground.admin.request(Method::POST, &format!("/sandboxes/{id}/exec")).json(&json!({ "shell": "sleep 9" }));
    let plain = plain.send().await.unwrap().headers()["exec-id"].to_str().unwrap().to_owned();
    assert!(refusal(&ground.admin, &id, &format!("exec={plain}")).await.1.contains("has no terminal"));
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_slowly_misses_something_and_holds_up_nobody() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let mut fast = View::open(&ground.admin, &id, "shell=/bin/bash").await;
    let mut slow = View::open(&ground.admin, &id, &format!("exec={}", fast.exec())).await;
    // 60 MB: more than is kept and more than any buffer on the way holds.
    fast.press("head -c 60000000 /dev/zero | tr '\\0' 'x' | fold -w 100; echo all''done\r").await;
    let began = Instant::now();
    let mut seen = 0;
    while !fast.text().contains("alldone") {
        assert!(fast.hear().await);
        seen += fast.shown.len().saturating_sub(200);
        let keep = fast.shown.len().saturating_sub(200);
        fast.shown.drain(..keep);
    }
    assert!(seen > 1_000_000, "{seen} bytes in {:?}", began.elapsed());
    let gap = slow.word("gap").await["cursor"].as_u64().unwrap();
    assert!(gap > 1_000_000, "{gap}");
    slow.until("alldone").await;
    // Who is shown too much can still stop it.
    fast.press("yes 'on and on'\r").await;
    fast.until("on and on\r\non and on").await;
    fast.press("\x03").await;
    fast.shown.clear();
    fast.press("echo sto''pped\r").await;
    let deadline = Instant::now() + PATIENCE;
    while !fast.text().contains("stopped") {
        assert!(Instant::now() < deadline && fast.hear().await);
        let keep = fast.shown.len().saturating_sub(200);
        fast.shown.drain(..keep);
    }
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_that_is_left_alone_is_hung_up() {
    let ground = Ground::start_with("terminal: {linger: 2s}\n");
    let id = ground.kept(json!({})).await;
    let view = View::open(&ground.admin, &id, "").await;
    let exec = view.exec().to_owned();
    drop(view);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut back = View::open(&ground.admin, &id, &format!("exec={exec}")).await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    back.press("echo still he''re; (setsid sleep 1717 &)\r").await;
    back.until("still here").await;
    drop(back);
    let deadline = Instant::now() + PATIENCE;
    let row = loop {
        let row = commands(&ground, &id).await.into_iter().find(|row| row["id"] == *exec).unwrap();
        if !row["exit"].is_null() {
            break row;
        }
        assert!(Instant::now() < deadline, "it does not end: {row}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(row["exit"], json!({ "kind": "signalled", "signal": 1 }));
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_server_says_that_the_terminal_is_gone() {
    let mut ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let mut view = View::open(&ground.admin, &id, "").await;
    let exec = view.exec().to_owned();
    view.press("sleep 1818 &\r").await;
    view.until("[1]").await;
    block_in_place(|| {
        ground.server.kill();
        ground.server.start_again();
    });
    while view.hear().await {}
    ground.until(&id, |row| row["state"] == "running").await;
    let (status, detail) = refusal(&ground.admin, &id, &format!("exec={exec}")).await;
    assert!(status == 404 && detail.contains("end with the server that started them"), "{status} {detail}");
    let deadline = Instant::now() + PATIENCE;
    while ground.shell(&id, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await.well().contains("sleep 1818 ") {
        assert!(Instant::now() < deadline, "what ran in it goes, too");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let mut anew = View::open(&ground.admin, &id, "").await;
    anew.press("echo he''re\r").await;
    anew.until("here").await;
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_out_leaves_nobody_in_a_real_sandbox() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    for way in [
        "setsid sleep 1919 & sleep 1919",
        "(setsid sh -c 'sleep 1919 &' &) ; sleep 1919",
        "setsid setsid sh -c '(sleep 1919 &) ; exec sleep 1919' & sleep 1919",
    ] {
        let ran = ground.exec(&id, json!({ "shell": way, "timeout_s": 1 })).await;
        assert_eq!(ran.exit, json!({ "kind": "timed_out" }), "{way}");
        let left = ground.shell(&id, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 191[9]'; true").await;
        assert_eq!(left.well(), "0\n", "{way}, root: {}", is_root());
    }
    ground.leave().await;
}
