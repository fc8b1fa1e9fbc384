//! The network of a sandbox: real programs inside, test servers outside.

mod apt;
mod limits;
pub mod network_tools;
mod policy_changes;
mod private_addresses;
pub mod test_sites;
mod tls;

use atoll_tests::local::{ExecResult, LocalServer};
use serde_json::{Value, json};
use test_sites::HttpSite;

/// Starts a server whose sandboxes may reach these private hosts if their policy allows them.
fn start_server(private: &[String]) -> LocalServer {
    LocalServer::start_with_config(&format!("network: {{allow_private: {}}}\n", json!(private)))
}

fn allow_policy(hosts: &[&str]) -> Value {
    json!({ "network": { "policy": "allow", "allow": hosts } })
}

/// Runs `curl` and returns the response head and body, and the exit code.
async fn run_curl(server: &LocalServer, id: &str, arguments: &str) -> String {
    let script = format!("curl --silent --show-error --include --max-time 20 {arguments} 2>&1; echo \"[exit $?]\"");
    server.run_shell(id, &script).await.expect_success()
}

async fn run_python(server: &LocalServer, id: &str, script: &str) -> ExecResult {
    server.run_exec(id, json!({ "argv": ["/usr/bin/python3", "-c", script] })).await
}

/// Waits for a refusal event with this reason.
async fn wait_for_refusal(server: &LocalServer, id: &str, reason: &str) -> Value {
    server.wait_for_event(id, |event| event["type"] == "network.refused" && event["data"]["reason"] == reason).await
}

async fn get_network(server: &LocalServer, id: &str) -> Value {
    server.admin.get(&format!("/sandboxes/{id}/network")).await.expect_status(200)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_default_policy_refuses_every_connection() {
    let site = HttpSite::start().await;
    let server = start_server(&[format!("localhost:{}", site.port)]);
    let id = server.create_idle_sandbox(json!({})).await;
    let response = run_curl(&server, &id, &format!("http://localhost:{}/ --noproxy ''", site.port)).await;
    assert!(response.starts_with("HTTP/1.1 403"), "{response}");
    assert!(response.contains("x-atoll-refused: policy\r\n") && response.contains("text/plain"), "{response}");
    // The text for the agent names the cause and the remedy.
    let command = format!("atoll sandbox network {id} --allow localhost:{}", site.port);
    assert!(response.contains("policy is `none`") && response.contains(&command), "{response}");
    let tunnel = run_curl(&server, &id, "https://example.org/").await;
    assert!(tunnel.contains("403") && tunnel.contains("[exit 56]"), "{tunnel}");
    // Most programs show at most one line of a refused tunnel.
    let script = "import urllib.request as r\ntry: r.urlopen('https://example.org/')\nexcept Exception as e: print(e)";
    let output = run_python(&server, &id, script).await.expect_success();
    assert!(output.contains("403 Forbidden (Atoll: this sandbox's network policy"), "{output}");
    let socks = run_curl(&server, &id, "--noproxy '' --socks5-hostname 127.0.0.1:7709 http://example.org/").await;
    assert!(socks.contains("[exit 97]") && socks.contains("(2)"), "SOCKS reply 2: not allowed by the ruleset: {socks}");

    // Repeated attempts to one host cause one event.
    for _ in 0..5 {
        run_curl(&server, &id, "https://example.org/").await;
    }
    let event = wait_for_refusal(&server, &id, "policy").await;
    assert_eq!(event["source"], "system");
    assert!(event["data"]["detail"].as_str().unwrap().contains(&command), "{event}");
    let events = server.admin.all_events(&id).await;
    let refusals = events.iter().filter(|event| event["data"]["host"] == "example.org" && event["data"]["port"] == 443);
    assert_eq!(refusals.count(), 1, "{events:#?}");
    let view = get_network(&server, &id).await;
    assert_eq!((&view["policy"], &view["total"]["connections"]), (&json!("none"), &json!(0)), "{view}");
    assert_eq!(view["total"]["refused"], 9, "{view}");
    assert_eq!(site.request_count(), 0);
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_traffic_bypasses_the_proxy() {
    let site = HttpSite::start().await;
    let server = start_server(&[format!("localhost:{}", site.port)]);
    let id = server.create_idle_sandbox(json!({ "network": { "policy": "all" } })).await;
    // Tries host loopback, the server itself, the host's name server and the Internet, over every family and protocol.
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
        own = server.process.address.port()
    );
    let output = run_python(&server, &id, &script).await.expect_success();
    assert!(!output.contains("REACHED"), "{output}");
    assert_eq!(output.lines().count(), 10, "{output}");
    let unset = run_curl(&server, &id, &format!("--noproxy '*' http://localhost:{}/", site.port)).await;
    assert!(unset.contains("[exit 7]"), "{unset}");
    // The same site is reachable through the proxy.
    let by_proxy = run_curl(&server, &id, &format!("--noproxy '' http://localhost:{}/", site.port)).await;
    assert!(by_proxy.starts_with("HTTP/1.1 200"), "{by_proxy}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_listed_hosts_are_reachable() {
    let (site, other) = (HttpSite::start().await, HttpSite::start().await);
    let server = start_server(&["127.0.0.0/8".to_owned(), "::1".to_owned()]);
    let id = server.create_idle_sandbox(allow_policy(&[&format!("localhost:{}", site.port)])).await;
    let (good, bad) = (format!("http://localhost:{}", site.port), format!("http://localhost:{}", other.port));
    let response = run_curl(&server, &id, &format!("--noproxy '' {good}/hello")).await;
    assert!(response.starts_with("HTTP/1.1 200") && response.contains("GET /hello HTTP/1.1"), "{response}");
    // The proxy removes headers for itself, and the site sees an ordinary request.
    let headers = "-H 'Proxy-Authorization: Basic c2VjcmV0' -H 'Connection: X-Hop' -H 'X-Hop: 1' -H 'X-Mine: 1'";
    let response = run_curl(&server, &id, &format!("--noproxy '' {headers} {good}/")).await.to_lowercase();
    assert!(
        response.contains("x-mine: 1") && !response.contains("x-hop: 1") && !response.contains("c2vjcmv0"),
        "{response}"
    );
    assert!(!response.contains("proxy-connection"), "{response}");
    // Through a tunnel, with CONNECT and with SOCKS.
    for option in ["--proxytunnel", "--socks5-hostname 127.0.0.1:7709"] {
        let response = run_curl(&server, &id, &format!("--noproxy '' {option} {good}/hello")).await;
        assert!(response.contains("GET /hello HTTP/1.1") && response.contains("[exit 0]"), "{option}: {response}");
    }
    for url in [&bad, &format!("http://127.0.0.1:{}", site.port), &format!("http://a.localhost:{}", site.port)] {
        let response = run_curl(&server, &id, &format!("--noproxy '' {url}/")).await;
        assert!(response.contains("x-atoll-refused: policy"), "{url}: {response}");
    }
    assert_eq!(other.request_count(), 0);
    // The proxy counts an uploaded and a downloaded body.
    let script = format!(
        "head -c 300000 /dev/zero > /tmp/up; curl -sS --noproxy '' --data-binary @/tmp/up {good}/size/500000 | wc -c"
    );
    assert_eq!(server.run_shell(&id, &script).await.expect_success().trim(), "500000");
    let view = get_network(&server, &id).await;
    let line = view["hosts"].as_array().unwrap().iter().find(|line| line["port"] == site.port).unwrap();
    assert_eq!(line["host"], "localhost");
    assert!(line["sent"].as_u64().unwrap() > 300_000 && line["received"].as_u64().unwrap() > 500_000, "{view}");
    assert_eq!(line["connections"], 5, "{view}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_proxy_checks_each_request_of_a_connection() {
    let site = HttpSite::start().await;
    let server = start_server(&["127.0.0.0/8".to_owned(), "::1".to_owned()]);
    let id = server.create_idle_sandbox(allow_policy(&[&format!("localhost:{}", site.port)])).await;
    let good = format!("http://localhost:{}", site.port);
    for option in ["", "--proxytunnel", "--socks5-hostname 127.0.0.1:7709"] {
        let response = run_curl(&server, &id, &format!("--noproxy '' {option} -H 'Host: other.example' {good}/")).await;
        assert!(response.contains("x-atoll-refused: host_header"), "{option}: {response}");
    }
    assert_eq!(site.request_count(), 0, "the site must receive none of them");
    // The first request on a connection is allowed, the second one is refused.
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
# The gateway treats a half-closed client as gone.
print(talk("GET / HTTP/1.1\nHost: localhost\nConnection: close\n\n", half=False))
print(talk("GET https://localhost:{port}/ HTTP/1.1\nHost: localhost:{port}\n\n"))
print(talk("CONNECT localhost HTTP/1.1\nHost: localhost\n\n"))
# Ambiguous message lengths: the site must receive complete requests only.
print(talk("POST {good}/up HTTP/1.1\nHost: localhost:{port}\nContent-Length: 4\nContent-Length: 5\n\nabcd"))
smuggled = "POST {good}/up HTTP/1.1\nHost: localhost:{port}\nContent-Length: 4\nTransfer-Encoding: chunked\n\n0\n\n"
print(talk(smuggled + "GET /smuggled HTTP/1.1\nHost: other.example\n\n"))
"#,
        port = site.port
    );
    let output = run_python(&server, &id, &script).await.expect_success();
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[0], "['HTTP/1.1 200 OK', 'HTTP/1.1 200 OK']", "{output}");
    let policy = "HTTP/1.1 403 Forbidden (Atoll: this sandbox\'s network policy does not allow the host)";
    assert_eq!(lines[1], format!("['HTTP/1.1 200 OK', \"{policy}\", 'x-atoll-refused: policy']"), "{output}");
    for line in &lines[2..4] {
        let refused = "HTTP/1.1 403 Forbidden (Atoll: the Host header is not the URL\'s)";
        assert_eq!(*line, format!("[\"{refused}\", 'x-atoll-refused: host_header']"), "{output}");
    }
    assert!(lines[4].contains("403") || lines[4].contains("400"), "{output}");
    assert!(lines[5].contains("400"), "{output}");
    assert!(lines[6].contains("502"), "{output}");
    assert!(lines[7].contains("403") || lines[7].contains("400"), "{output}");
    assert!(lines[8].contains("400"), "{output}");
    assert!(
        !site.request_heads().contains("smuggled") && !site.request_heads().contains("other.example"),
        "{}",
        site.request_heads()
    );
    server.stop_and_check().await;
}

/// Web socket upgrades, with an absolute URL and inside a tunnel.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn protocol_upgrades_pass_through_the_proxy() {
    let site = HttpSite::start().await;
    let server = start_server(&["127.0.0.0/8".to_owned(), "::1".to_owned()]);
    let id = server.create_idle_sandbox(allow_policy(&[&format!("localhost:{}", site.port)])).await;
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
    let output = run_python(&server, &id, &script).await.expect_success();
    assert_eq!(output, "b'any \\x00 bytes'\n".repeat(2));
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_network_policy_is_rejected() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let path = format!("/sandboxes/{id}/network");
    for (body, message) in [
        (json!({ "policy": "allow", "allow": ["https://example.org"] }), "without a scheme"),
        (json!({ "policy": "allow", "allow": ["*"] }), "policy `all`"),
        (json!({ "policy": "allow", "allow": ["127.1"] }), "four decimal numbers"),
        (json!({ "policy": "allow", "allow": ["example.org:99999"] }), "65535"),
        (json!({ "policy": "none", "allow": ["example.org"] }), "policies `allow` and `packages`"),
        (json!({ "policy": "allow", "allow": vec!["h.example"; 201] }), "at most 200"),
    ] {
        let problem = server.admin.put(&path, body.clone()).await.expect_status(422);
        assert!(problem["detail"].as_str().unwrap().contains(message), "{body}: {problem}");
        let settings = LocalServer::sandbox_request(json!({ "network": body }));
        server.admin.post("/sandboxes", settings).await.expect_status(422);
    }
    server.admin.put(&path, json!({ "policy": "some" })).await.expect_status(422);
    server.stop_and_check().await;
}
