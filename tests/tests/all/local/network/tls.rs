//! TLS through the proxy: a handshake must name the requested host.

use super::test_sites::{HttpSite, TlsSite, start_echo};
use super::{run_curl, run_python, start_server, wait_for_refusal};
use atoll_tests::local::{LocalServer, create_temp_dir, is_root, report_skipped};
use serde_json::json;

fn find_free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Connects with `openssl s_client` and returns the lines about the certificate and about errors.
async fn run_handshake(server: &LocalServer, id: &str, connect: &str, name: &str) -> String {
    let script = format!(
        "openssl s_client -proxy 127.0.0.1:7709 -connect {connect} {name} < /dev/null 2>&1 | grep -a -E 'subject=|alert|error|errno' ; true"
    );
    server.run_shell(id, &script).await.expect_success()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tls_handshake_must_name_the_requested_host() {
    let dir = create_temp_dir("atoll-tls-");
    let site = TlsSite::start(dir.path(), "127.0.0.1", find_free_port()).await;
    let server = start_server(&["127.0.0.0/8".to_owned(), "::1".to_owned()]);
    let id = server.create_idle_sandbox(json!({ "network": { "policy": "all" } })).await;
    let address = format!("localhost:{}", site.port);
    let response = run_curl(&server, &id, &format!("--noproxy '' --insecure https://{address}/")).await;
    assert!(response.contains("200 ok") && response.contains("[exit 0]"), "{response}");
    let good = run_handshake(&server, &id, &address, "-servername localhost").await;
    assert!(good.contains("subject=CN = localhost"), "{good}");
    for name in ["-servername evil.example", "-noservername"] {
        let bad = run_handshake(&server, &id, &address, name).await;
        assert!(bad.contains("unrecognized name") && !bad.contains("subject="), "{name}: {bad}");
    }
    let event = wait_for_refusal(&server, &id, "server_name").await;
    assert_eq!((&event["data"]["host"], &event["data"]["port"]), (&json!("localhost"), &json!(site.port)));
    // A client sends no server name for an IP address.
    let address = format!("127.0.0.1:{}", site.port);
    let good = run_handshake(&server, &id, &address, "-noservername").await;
    assert!(good.contains("subject=CN = localhost"), "{good}");
    let bad = run_handshake(&server, &id, &address, "-servername localhost").await;
    assert!(bad.contains("unrecognized name"), "{bad}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ports_80_and_443_carry_only_http_and_tls() {
    let host =
        format!("127.{}.{}.{}", rand::random_range(1..255), rand::random_range(0..255), rand::random_range(1..255));
    let Ok(plain) = HttpSite::start_on(&format!("{host}:80")).await else {
        assert!(!is_root());
        return report_skipped("ports 80 and 443", "an ordinary user cannot listen there");
    };
    let dir = create_temp_dir("atoll-tls-");
    let _secure = TlsSite::start(dir.path(), &host, 443).await;
    let server = start_server(&["127.0.0.0/8".to_owned()]);
    let id = server.create_idle_sandbox(json!({ "network": { "policy": "allow", "allow": [host] } })).await;
    let response = run_curl(&server, &id, &format!("--insecure https://{host}/")).await;
    assert!(response.contains("200 ok"), "{response}");
    for option in ["", "--proxytunnel", "--socks5-hostname 127.0.0.1:7709"] {
        let response = run_curl(&server, &id, &format!("{option} http://{host}/here")).await;
        assert!(response.contains("GET /here HTTP/1.1"), "{option}: {response}");
        let response = run_curl(&server, &id, &format!("{option} -H 'Host: front.example' http://{host}/here")).await;
        assert!(response.contains("x-atoll-refused: host_header"), "{option}: {response}");
    }
    assert!(!plain.request_heads().contains("front.example"));
    // The proxy refuses everything but TLS on port 443 and everything but HTTP on port 80.
    let script = format!(
        r#"
import socket
def talk(port, text):
    s = socket.create_connection(("127.0.0.1", 7709))
    s.settimeout(20)
    s.sendall(f"CONNECT {host}:{{port}} HTTP/1.1\r\nHost: {host}:{{port}}\r\n\r\n".encode())
    head = s.recv(4096)
    assert head.startswith(b"HTTP/1.1 200"), head
    s.sendall(text)
    got = b""
    try:
        while True:
            piece = s.recv(65536)
            if not piece: break
            got += piece
    except ConnectionResetError:
        pass
    return got[:12]
print(talk(443, b"GET / HTTP/1.0\r\n\r\n"))
print(talk(443, b"SSH-2.0-x\r\n"))
print(talk(80, b"SSH-2.0-x\r\n\r\n"))
"#
    );
    let output = run_python(&server, &id, &script).await.expect_success();
    let lines: Vec<&str> = output.lines().collect();
    assert!(
        lines[0].starts_with("b'\\x15\\x03") && lines[1].starts_with("b'\\x15\\x03"),
        "expected a TLS alert: {output}"
    );
    assert!(lines[2].contains("HTTP/1.1 400"), "{output}");
    wait_for_refusal(&server, &id, "not_tls").await;
    server.stop_and_check().await;
}

/// Other ports carry any protocol, also one in which the server speaks first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_protocols_pass_through_a_tunnel() {
    let (first, first_serving) = start_echo(b"220 hello\r\n").await;
    let (second, second_serving) = start_echo(b"").await;
    let server = start_server(&["127.0.0.0/8".to_owned(), "::1".to_owned()]);
    let list = [format!("localhost:{first}"), format!("localhost:{second}")];
    let id = server.create_idle_sandbox(json!({ "network": { "policy": "allow", "allow": list } })).await;
    let script = format!(
        r#"
import socket, struct
def socks(port):
    s = socket.create_connection(("127.0.0.1", 7709))
    s.settimeout(20)
    s.sendall(b"\x05\x01\x00")
    assert s.recv(2) == b"\x05\x00"
    s.sendall(b"\x05\x01\x00\x03\x09localhost" + struct.pack(">H", port))
    assert s.recv(10)[:2] == b"\x05\x00"
    return s
def rest(s):
    got = b""
    while True:
        piece = s.recv(65536)
        if not piece: return got
        got += piece
s = socks({first})
assert s.recv(100) == b"220 hello\r\n"
s.sendall(b"EHLO x\r\n")
s.shutdown(socket.SHUT_WR)
print(rest(s))
s = socks({second})
s.sendall(b"SSH-2.0-x\r\n" + b"y" * 1000000)
s.shutdown(socket.SHUT_WR)
print(len(rest(s)))
# No password authentication, and no command but CONNECT.
s = socket.create_connection(("127.0.0.1", 7709)); s.sendall(b"\x05\x01\x02"); print(s.recv(2))
s = socket.create_connection(("127.0.0.1", 7709)); s.sendall(b"\x05\x01\x00"); s.recv(2)
s.sendall(b"\x05\x03\x00\x01\x7f\x00\x00\x01\x00\x50"); print(s.recv(10)[:2])
"#
    );
    let output = run_python(&server, &id, &script).await.expect_success();
    assert_eq!(output, "b'EHLO x\\r\\n'\n1000011\nb'\\x05\\xff'\nb'\\x05\\x07'\n");
    first_serving.abort();
    second_serving.abort();
    server.stop_and_check().await;
}
