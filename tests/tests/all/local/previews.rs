//! Ports and previews of a real sandbox.

use super::exposed_secrets::run_atoll;
use atoll_test_wait::{WAIT_TIMEOUT, poll_until};
use atoll_tests::actor::{ClientWebSocket, build_http_client};
use atoll_tests::local::{LocalServer, event_data};
use futures_util::{SinkExt, StreamExt};
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::task::block_in_place;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message};

/// An HTTP and WebSocket server. `/headers` returns the request's headers, `/stream` never ends.
const SERVER_SCRIPT: &str = r#"
import base64, hashlib, http.server, json, socketserver, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def reply(self, body, headers=()):
        self.send_response(200)
        for name, value in headers: self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.reply(hashlib.sha256(body).hexdigest().encode())
    def do_GET(self):
        if self.path == "/stream":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while True:
                self.wfile.write(b"1\r\n.\r\n"); self.wfile.flush(); time.sleep(0.05)
        if self.path == "/ws":
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101)
            self.send_header("Upgrade", "websocket"); self.send_header("Connection", "Upgrade")
            self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
            self.end_headers()
            while True:
                head = self.rfile.read(2)
                if len(head) < 2 or head[0] & 15 == 8: self.close_connection = True; return
                mask = self.rfile.read(4)
                data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(head[1] & 127)))
                self.wfile.write(bytes([0x81, len(data)]) + data); self.wfile.flush()
        headers = [("Set-Cookie", "own=1; Domain=localhost; Path=/"), ("Set-Cookie", "atoll_session=forged"),
                   ("X-Frame-Options", "DENY"), ("Location", "http://localhost:3000/next")]
        self.reply(json.dumps(self.headers.items()).encode(), headers)
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer): daemon_threads = True
Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

async fn start_program(server: &LocalServer, id: &str, port: u16) {
    let put = server.admin.request(Method::PUT, &format!("/sandboxes/{id}/files?path=/workspace/server.py"));
    server.admin.send(put.body(SERVER_SCRIPT)).await.expect_status(200);
    let start =
        format!("setsid /usr/bin/python3 /workspace/server.py {port} >/dev/null 2>&1 </dev/null & echo $! >/tmp/pid");
    server.run_shell(id, &start).await.expect_success();
    server
        .wait_for_event(id, |event| event["type"] == "preview.port_opened" && event["data"]["port"] == json!(port))
        .await;
}

/// A link as a browser uses it, which resolves the host to this machine.
struct Link {
    server: String,
    host: String,
    client: Client,
}

impl Link {
    fn new(server: &LocalServer, url: &str) -> Self {
        let host = url.strip_prefix("http://").unwrap().strip_suffix('/').unwrap().to_owned();
        Self { server: server.process.url.clone(), host, client: build_http_client() }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.server)).header("host", &self.host)
    }

    async fn get_text(&self, path: &str) -> (StatusCode, String) {
        let response = self.request(Method::GET, path).send().await.unwrap();
        (response.status(), response.text().await.unwrap())
    }

    async fn open_web_socket(&self) -> Result<ClientWebSocket, tungstenite::Error> {
        let mut request = format!("{}/ws", self.server.replace("http", "ws")).into_client_request()?;
        request.headers_mut().insert("host", self.host.parse().unwrap());
        request.headers_mut().insert("origin", format!("http://{}", self.host).parse().unwrap());
        Ok(tokio_tungstenite::connect_async(request).await?.0)
    }
}

async fn create_link(server: &LocalServer, id: &str, port: u16) -> (String, Link) {
    let path = format!("/sandboxes/{id}/previews");
    let created = server.admin.post(&path, json!({ "port": port })).await.expect_status(201);
    (created["id"].as_str().unwrap().to_owned(), Link::new(server, created["url"].as_str().unwrap()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_preview_forwards_http_and_web_sockets_and_nothing_of_atoll() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let (preview, link) = create_link(&server, &id, 3000).await;
    let (status, text) = link.get_text("/").await;
    assert_eq!(status, 502);
    assert!(text.contains("No program in the sandbox listens on port 3000, or on any other."), "{text}");
    start_program(&server, &id, 3000).await;
    let ports = server.admin.get(&format!("/sandboxes/{id}/ports")).await.expect_status(200);
    assert_eq!((&ports["items"][0]["port"], &ports["items"][0]["program"]), (&json!(3000), &json!("python3")));
    let (_, other) = create_link(&server, &id, 3001).await;
    let (_, text) = other.get_text("/").await;
    assert!(text.contains("Open ports: 3000 (python3)."), "{text}");

    let request = link
        .request(Method::GET, "/headers")
        .header("cookie", "own=1; atoll_session=sin_0.secret")
        .header("x-atoll-page", "1")
        .header("x-forwarded-host", &link.host)
        .header("authorization", "Bearer atoll_0_secret")
        .header("referer", format!("http://{}/page", link.host));
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200);
    let cookies: Vec<_> = response.headers().get_all("set-cookie").iter().collect();
    assert_eq!(cookies, ["own=1; Path=/"]);
    assert_eq!(response.headers()["location"], format!("http://{}/next", link.host).as_str());
    assert!(!response.headers().contains_key("x-frame-options"));
    let text = response.text().await.unwrap();
    let token = link.host.split('.').next().unwrap();
    for secret in [token, "atoll"] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    let seen: Vec<(String, String)> = serde_json::from_str(&text).unwrap();
    let seen = |name: &str| seen.iter().find(|(it, _)| it.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str());
    assert_eq!(
        (seen("host"), seen("cookie"), seen("referer")),
        (Some("localhost:3000"), Some("own=1"), Some("http://localhost:3000/page"))
    );
    let body = vec![b'x'; 3 << 20];
    let expected: String = Sha256::digest(&body).iter().map(|byte| format!("{byte:02x}")).collect();
    let sent = link.request(Method::POST, "/").body(body).send().await.unwrap().text().await.unwrap();
    assert_eq!(sent, expected);
    let mut socket = link.open_web_socket().await.unwrap();
    socket.send(Message::text("hello")).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("hello"));

    // The preview's host has no API, also with a valid token.
    let api = link.request(Method::GET, "/api/v1/me").bearer_auth(server.admin.token.as_ref().unwrap());
    let answer = api.send().await.unwrap().text().await.unwrap();
    assert!(answer.starts_with("[[") && !answer.contains("admin"), "{answer}");
    let streaming = link.request(Method::GET, "/stream").send().await.unwrap();
    let revoked = server.admin.delete(&format!("/sandboxes/{id}/previews/{preview}")).await.expect_status(200);
    assert_eq!(revoked["id"], json!(preview));
    let ended = async {
        let mut streaming = streaming;
        while let Ok(Some(_)) = streaming.chunk().await {}
        while let Some(Ok(_)) = socket.next().await {}
    };
    tokio::time::timeout(WAIT_TIMEOUT, ended).await.expect("revoked connections stay open");
    assert_eq!(link.get_text("/").await.0, StatusCode::NOT_FOUND);

    let events = server.admin.all_events(&id).await;
    assert_eq!(event_data(&events, "preview.created").len(), 2);
    assert_eq!(event_data(&events, "preview.revoked")[0]["preview_id"], json!(preview));
    server.run_shell(&id, "kill $(cat /tmp/pid)").await.expect_success();
    server.wait_for_event(&id, |event| event["type"] == "preview.port_closed").await;
    let ports = server.admin.get(&format!("/sandboxes/{id}/ports")).await.expect_status(200);
    assert_eq!(ports["items"], json!([]));
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_preview_ends_with_its_time_its_creator_and_its_sandbox() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let path = format!("/sandboxes/{id}/previews");
    let user = server.admin.post("/users", json!({ "name": "ada", "role": "member" })).await.expect_status(201);
    let token = server.admin.post("/tokens", json!({ "name": "t", "user_id": user["id"] })).await.expect_status(201);
    let ada = server.admin.with_token(token["token"].as_str().unwrap());
    let made = ada.post(&path, json!({ "port": 3000 })).await.expect_status(201);
    let of_ada = Link::new(&server, made["url"].as_str().unwrap());
    assert_eq!(of_ada.get_text("/").await.0, StatusCode::BAD_GATEWAY, "nothing listens yet");
    server.admin.delete(&format!("/tokens/{}", token["id"].as_str().unwrap())).await.expect_status(200);
    assert_eq!(of_ada.get_text("/").await.0, StatusCode::NOT_FOUND);

    let short = server.admin.post(&path, json!({ "port": 3000, "ttl_s": 1 })).await.expect_status(201);
    let short = Link::new(&server, short["url"].as_str().unwrap());
    let (_, link) = create_link(&server, &id, 3000).await;
    for port in [0, 7709] {
        server.admin.post(&path, json!({ "port": port })).await.expect_problem(422, "invalid");
    }
    // Hosts that only look like one of a preview lead to neither the preview nor the API.
    let host = link.host.clone();
    let (token, rest) = host.split_once('.').unwrap();
    for hostile in [
        format!("{token}.evil.example"),
        format!("x.{token}.{rest}"),
        format!("{token}.localhost.evil.example"),
        format!("{token}.{rest}@127.0.0.1"),
        format!("{token}.localhost."),
    ] {
        let request = link.client.get(format!("{}/api/v1/me", link.server)).header("host", &hostile);
        assert_eq!(request.send().await.unwrap().status(), StatusCode::FORBIDDEN, "{hostile}");
    }
    let unknown = Link { host: format!("{}.{rest}", "a".repeat(32)), ..Link::new(&server, &format!("http://{host}/")) };
    assert_eq!(unknown.get_text("/").await.0, StatusCode::NOT_FOUND);

    poll_until("the preview expires", async || short.get_text("/").await.0 == StatusCode::GONE).await;
    let (printed, text) = block_in_place(|| run_atoll(&server, &["sandbox", "preview", &id, "3000"], ""));
    assert!(printed && text.starts_with("http://"), "{text}");
    server.admin.post(&format!("/sandboxes/{id}/stop"), json!({ "results": "discard" })).await.expect_status(200);
    server.wait_until_ended(&id).await;
    let (status, text) = link.get_text("/").await;
    assert!(status == StatusCode::GONE && text.contains("stale"), "{status} {text}");
    server.admin.post(&path, json!({ "port": 3000 })).await.expect_problem(409, "sandbox_ended");
    server.stop_and_check().await;
}
