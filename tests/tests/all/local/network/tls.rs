//! A handshake names the host that was asked for, or nothing gets through.

use super::serving::{Site, TlsSite, echo};
use super::{curl, ground, python, refusal};
use atoll_tests::local::{Ground, directory, is_root, skipped};
use serde_json::json;

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// What a client of `openssl` gets to know of the server; the handshake is all it wants.
async fn handshake(ground: &Ground, id: &str, connect: &str, name: &str) -> String {
    let script = format!(
        "openssl s_client -proxy 127.0.0.1:7709 -connect {connect} {name} < /dev/null 2>&1 | grep -a -E 'subject=|alert|error|errno' ; true"
    );
    ground.shell(id, &script).await.well()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_s_name_is_the_host_that_was_asked_for() {
    let dir = directory("atoll-tls-");
    let site = TlsSite::start(dir.path(), "127.0.0.1", free_port()).await;
    let ground = ground(&["127.0.0.0/8".to_owned(), "::1".to_owned()]);
    let id = ground.kept(json!({ "network": { "policy": "all" } })).await;
    let place = format!("localhost:{}", site.port);
    let answer = curl(&ground, &id, &format!("--noproxy '' --insecure https://{place}/")).await;
    assert!(answer.contains("200 ok") && answer.contains("[exit 0]"), "{answer}");
    let good = handshake(&ground, &id, &place, "-servername localhost").await;
    assert!(good.contains("subject=CN = localhost"), "{good}");
    for name in ["-servername evil.example", "-noservername"] {
        let bad = handshake(&ground, &id, &place, name).await;
        assert!(bad.contains("unrecognized name") && !bad.contains("subject="), "{name}: {bad}");
    }
    let event = refusal(&ground, &id, "server_name").await;
    assert_eq!((&event["data"]["host"], &event["data"]["port"]), (&json!("localhost"), &json!(site.port)));
    // An address has no name to be named by.
    let place = format!("127.0.0.1:{}", site.port);
    let good = handshake(&ground, &id, &place, "-noservername").await;
    assert!(good.contains("subject=CN = localhost"), "{good}");
    let bad = handshake(&ground, &id, &place, "-servername localhost").await;
    assert!(bad.contains("unrecognized name"), "{bad}");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_usual_ports_carry_only_what_they_are_for() {
    let host =
        format!("127.{}.{}.{}", rand::random_range(1..255), rand::random_range(0..255), rand::random_range(1..255));
    let Ok(plain) = Site::start_on(&format!("{host}:80")).await else {
        assert!(!is_root());
        return skipped("ports 80 and 443", "an ordinary user can't listen there");
    };
    let dir = directory("atoll-tls-");
    let _secure = TlsSite::start(dir.path(), &host, 443).await;
    let ground = ground(&["127.0.0.0/8".to_owned()]);
    let id = ground.kept(json!({ "network": { "policy": "allow", "allow": [host] } })).await;
    let answer = curl(&ground, &id, &format!("--insecure https://{host}/")).await;
    assert!(answer.contains("200 ok"), "{answer}");
    for way in ["", "--proxytunnel", "--socks5-hostname 127.0.0.1:7709"] {
        let answer = curl(&ground, &id, &format!("{way} http://{host}/here")).await;
        assert!(answer.contains("GET /here HTTP/1.1"), "{way}: {answer}");
        let answer = curl(&ground, &id, &format!("{way} -H 'Host: front.example' http://{host}/here")).await;
        assert!(answer.contains("x-atoll-refused: host_header"), "{way}: {answer}");
    }
    assert!(!plain.heard().contains("front.example"));
    // What is not TLS has no business at 443, and what is not HTTP none at 80.
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
    let said = python(&ground, &id, &script).await.well();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("b'\\x15\\x03") && lines[1].starts_with("b'\\x15\\x03"), "an alert: {said}");
    assert!(lines[2].contains("HTTP/1.1 400"), "{said}");
    refusal(&ground, &id, "not_tls").await;
    ground.leave().await;
}

/// At other ports anything may be spoken, also by a server that speaks first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_protocols_go_through_a_tunnel() {
    let (first, first_serving) = echo(b"220 hello\r\n").await;
    let (second, second_serving) = echo(b"").await;
    let ground = ground(&["127.0.0.0/8".to_owned(), "::1".to_owned()]);
    let list = [format!("localhost:{first}"), format!("localhost:{second}")];
    let id = ground.kept(json!({ "network": { "policy": "allow", "allow": list } })).await;
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
# Neither another version nor another command nor a password.
s = socket.create_connection(("127.0.0.1", 7709)); s.sendall(b"\x05\x01\x02"); print(s.recv(2))
s = socket.create_connection(("127.0.0.1", 7709)); s.sendall(b"\x05\x01\x00"); s.recv(2)
s.sendall(b"\x05\x03\x00\x01\x7f\x00\x00\x01\x00\x50"); print(s.recv(10)[:2])
"#
    );
    let said = python(&ground, &id, &script).await.well();
    assert_eq!(said, "b'EHLO x\\r\\n'\n1000011\nb'\\x05\\xff'\nb'\\x05\\x07'\n");
    first_serving.abort();
    second_serving.abort();
    ground.leave().await;
}
