//! What leaves a sandbox, and what does not: real programs inside, servers of the test outside.

mod changes;
mod limits;
mod places;
pub mod serving;
mod tls;
mod tools;

use atoll_tests::local::{Ground, PATIENCE, Ran};
use serde_json::{Value, json};
use serving::Site;
use std::time::{Duration, Instant};

/// A server whose sandboxes may reach these places of this machine, if their policy allows them.
fn ground(private: &[String]) -> Ground {
    Ground::start_with(&format!("network: {{allow_private: {}}}\n", json!(private)))
}

fn allow(hosts: &[&str]) -> Value {
    json!({ "network": { "policy": "allow", "allow": hosts } })
}

/// `curl` with the answer's head before its body; says the status it got as well.
async fn curl(ground: &Ground, id: &str, arguments: &str) -> String {
    let script = format!("curl --silent --show-error --include --max-time 20 {arguments} 2>&1; echo \"[exit $?]\"");
    ground.shell(id, &script).await.well()
}

async fn python(ground: &Ground, id: &str, script: &str) -> Ran {
    ground.exec(id, json!({ "argv": ["/usr/bin/python3", "-c", script] })).await
}

/// Waits for an event of a refusal for this reason.
async fn refusal(ground: &Ground, id: &str, reason: &str) -> Value {
    ground.event(id, |event| event["type"] == "network.refused" && event["data"]["reason"] == reason).await
}

async fn network_of(ground: &Ground, id: &str) -> Value {
    ground.admin.get(&format!("/sandboxes/{id}/network")).await.expect(200)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_leaves_a_sandbox_that_nobody_allowed_anything() {
    let site = Site::start().await;
    let ground = ground(&[format!("localhost:{}", site.port)]);
    let id = ground.kept(json!({})).await;
    let answer = curl(&ground, &id, &format!("http://localhost:{}/ --noproxy ''", site.port)).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(answer.contains("x-atoll-refused: policy\r\n") && answer.contains("text/plain"), "{answer}");
    // What an agent reads says what is so and what can be done.
    let command = format!("atoll sandbox network {id} --allow localhost:{}", site.port);
    assert!(answer.contains("policy is `none`") && answer.contains(&command), "{answer}");
    let tunnel = curl(&ground, &id, "https://example.org/").await;
    assert!(tunnel.contains("403") && tunnel.contains("[exit 56]"), "{tunnel}");
    // Of a refused tunnel most programs show one line at the most.
    let script = "import urllib.request as r\ntry: r.urlopen('https://example.org/')\nexcept Exception as e: print(e)";
    let shown = python(&ground, &id, script).await.well();
    assert!(shown.contains("403 Forbidden (Atoll: this sandbox's network policy"), "{shown}");
    let socks = curl(&ground, &id, "--noproxy '' --socks5-hostname 127.0.0.1:7709 http://example.org/").await;
    assert!(socks.contains("[exit 97]") && socks.contains("(2)"), "not allowed by the rules, says SOCKS: {socks}");

    // Told once for each place, however often it is tried.
    for _ in 0..5 {
        curl(&ground, &id, "https://example.org/").await;
    }
    let event = refusal(&ground, &id, "policy").await;
    assert_eq!(event["source"], "system");
    assert!(event["data"]["detail"].as_str().unwrap().contains(&command), "{event}");
    let events = ground.admin.all_events(&id).await;
    let told = events.iter().filter(|event| event["data"]["host"] == "example.org" && event["data"]["port"] == 443);
    assert_eq!(told.count(), 1, "{events:#?}");
    let view = network_of(&ground, &id).await;
    assert_eq!((&view["policy"], &view["total"]["connections"]), (&json!("none"), &json!(0)), "{view}");
    assert_eq!(view["total"]["refused"], 9, "{view}");
    assert_eq!(site.requests(), 0);
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_proxy_there_is_no_way_at_all() {
    let site = Site::start().await;
    let ground = ground(&[format!("localhost:{}", site.port)]);
    let id = ground.kept(json!({ "network": { "policy": "all" } })).await;
    // Host loopback and the server itself, the machine's name server, the Internet, by every family and protocol.
    let script = format!(
        r#"
import socket, errno
def tried(family, kind, address):
    s = socket.socket(family, kind)
    s.settimeout(3)
    try:
        if kind == socket.SOCK_DGRAM:
            s.connect(address)
            s.send(bytes.fromhex("1234010000010000000000000765786d706c65036f72670000010001"))
            s.recv(512)
        else:
            s.connect(address)
        return "REACHED"
    except OSError as error:
        return errno.errorcode.get(error.errno, type(error).__name__)
S, D = socket.SOCK_STREAM, socket.SOCK_DGRAM
for port in ({site}, {own}):
    print("loopback", tried(socket.AF_INET, S, ("127.0.0.1", port)))
for kind in (S, D):
    print("dns", tried(socket.AF_INET, kind, ("8.8.8.8", 53)))
    print("dns6", tried(socket.AF_INET6, kind, ("2001:4860:4860::8888", 53)))
    print("metadata", tried(socket.AF_INET, kind, ("169.254.169.254", 80)))
print("internet", tried(socket.AF_INET, S, ("1.1.1.1", 443)))
try:
    socket.getaddrinfo("example.org", 80)
    print("name REACHED")
except OSError:
    print("name unknown")
"#,
        site = site.port,
        own = ground.server.address.port()
    );
    let said = python(&ground, &id, &script).await.well();
    assert!(!said.contains("REACHED"), "{said}");
    assert_eq!(said.lines().count(), 10, "{said}");
    let unset = curl(&ground, &id, &format!("--noproxy '*' http://localhost:{}/", site.port)).await;
    assert!(unset.contains("[exit 7]"), "{unset}");
    // And the same place is there for whoever takes the one way.
    let by_proxy = curl(&ground, &id, &format!("--noproxy '' http://localhost:{}/", site.port)).await;
    assert!(by_proxy.starts_with("HTTP/1.1 200"), "{by_proxy}");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_listed_is_reached_and_nothing_beside() {
    let (site, other) = (Site::start().await, Site::start().await);
    let ground = ground(&["127.0.0.0/8".to_owned(), "::1".to_owned()]);
    let id = ground.kept(allow(&[&format!("localhost:{}", site.port)])).await;
    let (good, bad) = (format!("http://localhost:{}", site.port), format!("http://localhost:{}", other.port));
    let answer = curl(&ground, &id, &format!("--noproxy '' {good}/hello")).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("GET /hello HTTP/1.1"), "{answer}");
    // What is said to the proxy goes no further, and the server sees a request as to itself.
    let headers = "-H 'Proxy-Authorization: Basic c2VjcmV0' -H 'Connection: X-Hop' -H 'X-Hop: 1' -H 'X-Mine: 1'";
    let seen = curl(&ground, &id, &format!("--noproxy '' {headers} {good}/")).await.to_lowercase();
    assert!(seen.contains("x-mine: 1") && !seen.contains("x-hop: 1") && !seen.contains("c2vjcmv0"), "{seen}");
    assert!(!seen.contains("proxy-connection"), "{seen}");
    // Through a tunnel, by CONNECT and by SOCKS.
    for way in ["--proxytunnel", "--socks5-hostname 127.0.0.1:7709"] {
        let answer = curl(&ground, &id, &format!("--noproxy '' {way} {good}/hello")).await;
        assert!(answer.contains("GET /hello HTTP/1.1") && answer.contains("[exit 0]"), "{way}: {answer}");
    }
    for place in [&bad, &format!("http://127.0.0.1:{}", site.port), &format!("http://a.localhost:{}", site.port)] {
        let answer = curl(&ground, &id, &format!("--noproxy '' {place}/")).await;
        assert!(answer.contains("x-atoll-refused: policy"), "{place}: {answer}");
    }
    assert_eq!(other.requests(), 0);
    // A body goes up and one comes down, and both are counted.
    let script = format!(
        "head -c 300000 /dev/zero > /tmp/up; curl -sS --noproxy '' --data-binary @/tmp/up {good}/size/500000 | wc -c"
    );
    assert_eq!(ground.shell(&id, &script).await.well().trim(), "500000");
    let view = network_of(&ground, &id).await;
    let line = view["hosts"].as_array().unwrap().iter().find(|line| line["port"] == site.port).unwrap();
    assert_eq!(line["host"], "localhost");
    assert!(line["sent"].as_u64().unwrap() > 300_000 && line["received"].as_u64().unwrap() > 500_000, "{view}");
    assert_eq!(line["connections"], 5, "{view}");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_is_judged_by_itself() {
    let site = Site::start().await;
    let ground = ground(&["127.0.0.0/8".to_owned(), "::1".to_owned()]);
    let id = ground.kept(allow(&[&format!("localhost:{}", site.port)])).await;
    let good = format!("http://localhost:{}", site.port);
    for way in ["", "--proxytunnel", "--socks5-hostname 127.0.0.1:7709"] {
        let answer = curl(&ground, &id, &format!("--noproxy '' {way} -H 'Host: other.example' {good}/")).await;
        assert!(answer.contains("x-atoll-refused: host_header"), "{way}: {answer}");
    }
    assert_eq!(site.requests(), 0, "none of them got there");
    // Two requests on one connection of a program: the first is fine, the second is not.
    let script = format!(
        r#"
import socket
def talk(text, half=True):
    s = socket.create_connection(("127.0.0.1", 7709))
    s.settimeout(30)
    s.sendall(text.replace("\n", "\r\n").encode())
    if half: s.shutdown(socket.SHUT_WR)
    got = b""
    while True:
        piece = s.recv(65536)
        if not piece: break
        got += piece
    return [line for line in got.decode().split("\r\n") if line.startswith("HTTP/1.1") or line.startswith("x-atoll")]
good = "GET {good}/one HTTP/1.1\nHost: localhost:{port}\n\n"
print(talk(good + good.replace("/one", "/two")))
print(talk(good + good.replace("localhost", "elsewhere.example")))
print(talk(good.replace("Host: localhost:{port}", "Host: localhost:{port}\nHost: localhost:{port}")))
print(talk(good.replace("Host: localhost:{port}\n", "")))
print(talk(good.replace("http://", "http://user@")))
# To the gateway, whose clients are gone when they close their half.
print(talk("GET / HTTP/1.1\nHost: localhost\nConnection: close\n\n", half=False))
print(talk("GET https://localhost:{port}/ HTTP/1.1\nHost: localhost:{port}\n\n"))
print(talk("CONNECT localhost HTTP/1.1\nHost: localhost\n\n"))
# One message in one reading and two in another: whatever is made of it, the server hears whole requests only.
print(talk("POST {good}/up HTTP/1.1\nHost: localhost:{port}\nContent-Length: 4\nContent-Length: 5\n\nabcd"))
smuggled = "POST {good}/up HTTP/1.1\nHost: localhost:{port}\nContent-Length: 4\nTransfer-Encoding: chunked\n\n0\n\n"
print(talk(smuggled + "GET /smuggled HTTP/1.1\nHost: other.example\n\n"))
"#,
        port = site.port
    );
    let said = python(&ground, &id, &script).await.well();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "['HTTP/1.1 200 OK', 'HTTP/1.1 200 OK']", "{said}");
    let policy = "HTTP/1.1 403 Forbidden (Atoll: this sandbox\'s network policy does not allow the host)";
    assert_eq!(lines[1], format!("['HTTP/1.1 200 OK', \"{policy}\", 'x-atoll-refused: policy']"), "{said}");
    for line in &lines[2..4] {
        let refused = "HTTP/1.1 403 Forbidden (Atoll: the Host header is not the URL\'s)";
        assert_eq!(*line, format!("[\"{refused}\", 'x-atoll-refused: host_header']"), "{said}");
    }
    assert!(lines[4].contains("403") || lines[4].contains("400"), "{said}");
    assert!(lines[5].contains("400"), "{said}");
    assert!(lines[6].contains("502"), "{said}");
    assert!(lines[7].contains("403") || lines[7].contains("400"), "{said}");
    assert!(lines[8].contains("400"), "{said}");
    assert!(!site.heard().contains("smuggled") && !site.heard().contains("other.example"), "{}", site.heard());
    ground.leave().await;
}

/// As web sockets do, by the URL and inside a tunnel.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_protocol_goes_through() {
    let site = Site::start().await;
    let ground = ground(&["127.0.0.0/8".to_owned(), "::1".to_owned()]);
    let id = ground.kept(allow(&[&format!("localhost:{}", site.port)])).await;
    let script = format!(
        r#"
import socket
def switch(before, url):
    s = socket.create_connection(("127.0.0.1", 7709))
    s.settimeout(20)
    if before:
        s.sendall(before)
        assert s.recv(4096).startswith(b"HTTP/1.1 200")
    s.sendall(b"GET " + url + b" HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n")
    got = b""
    while not got.endswith(b"here "): got += s.recv(4096)
    assert got.startswith(b"HTTP/1.1 101"), got
    s.sendall(b"any \x00 bytes")
    got = b""
    while len(got) < 11: got += s.recv(4096)
    return got
print(switch(b"", b"http://localhost:{port}/"))
print(switch(b"CONNECT localhost:{port} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n", b"/"))
"#,
        port = site.port
    );
    let said = python(&ground, &id, &script).await.well();
    assert_eq!(said, "b'any \\x00 bytes'\n".repeat(2));
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_that_makes_no_sense_is_refused() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let path = format!("/sandboxes/{id}/network");
    for (body, said) in [
        (json!({ "policy": "allow", "allow": ["https://example.org"] }), "without a scheme"),
        (json!({ "policy": "allow", "allow": ["*"] }), "policy `all`"),
        (json!({ "policy": "allow", "allow": ["127.1"] }), "four plain numbers"),
        (json!({ "policy": "allow", "allow": ["example.org:99999"] }), "65535"),
        (json!({ "policy": "none", "allow": ["example.org"] }), "policy `allow`"),
        (json!({ "policy": "allow", "allow": vec!["h.example"; 201] }), "at most 200"),
    ] {
        let answer = ground.admin.put(&path, body.clone()).await.expect(422);
        assert!(answer["detail"].as_str().unwrap().contains(said), "{body}: {answer}");
        let settings = Ground::request(json!({ "network": body }));
        ground.admin.post("/sandboxes", settings).await.expect(422);
    }
    ground.admin.put(&path, json!({ "policy": "some" })).await.expect(422);
    ground.leave().await;
}

/// Waits until `wanted` is so.
async fn until(what: &str, mut wanted: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !wanted() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
