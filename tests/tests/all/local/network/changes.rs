//! A policy is changed while the sandbox runs, and survives the server.

use super::serving::{Site, echo, forwarder};
use super::{allow, curl, ground, network_of, python};
use atoll_tests::local::{Ground, PATIENCE, told};
use atoll_tests::process::command;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::task::block_in_place;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_counts_at_once_also_for_what_is_open() {
    let (port, serving) = echo(b"hello\n").await;
    let site = Site::start().await;
    let ground = ground(&["127.0.0.0/8".to_owned(), "::1".to_owned()]);
    let id = ground.kept(json!({})).await;
    let path = format!("/sandboxes/{id}/network");
    let url = format!("--noproxy '' http://localhost:{}/", site.port);
    assert!(curl(&ground, &id, &url).await.contains("x-atoll-refused: policy"));
    let (one, two) = (format!("localhost:{port}"), format!("localhost:{}", site.port));
    let view = ground.admin.put(&path, json!({ "policy": "allow", "allow": [one, two] })).await.expect(200);
    assert_eq!((&view["policy"], &view["allow"]), (&json!("allow"), &json!([one, two])));
    assert!(curl(&ground, &id, &url).await.starts_with("HTTP/1.1 200"));

    // A connection that stays open and says when it is cut.
    let script = format!(
        r#"
import socket
s = socket.create_connection(("127.0.0.1", 7709))
s.settimeout(60)
s.sendall(b"CONNECT localhost:{port} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n")
got = b""
while not got.endswith(b"hello\n"): got += s.recv(1000)
s.sendall(b"one")
got = b""
while got != b"one": got += s.recv(3)
try:
    print("cut", s.recv(1))
except ConnectionResetError:
    print("cut b''")
"#
    );
    let change = async {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let view = network_of(&ground, &id).await;
            let line = view["hosts"].as_array().unwrap().iter().find(|line| line["port"] == port).cloned();
            if line.is_some_and(|line| line["sent"] == 3 && line["received"] == 9) {
                break;
            }
            assert!(Instant::now() < deadline, "{view}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let began = Instant::now();
        ground.admin.put(&path, json!({ "policy": "allow", "allow": [two] })).await.expect(200);
        began
    };
    let (ran, began) = tokio::join!(python(&ground, &id, &script), change);
    assert_eq!(ran.well(), "cut b''\n");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(curl(&ground, &id, &url).await.starts_with("HTTP/1.1 200"), "the other host is still there");
    ground.admin.put(&path, json!({ "policy": "none" })).await.expect(200);
    assert!(curl(&ground, &id, &url).await.contains("x-atoll-refused: policy"));
    // Asking for the same again changes nothing.
    ground.admin.put(&path, json!({ "policy": "none" })).await.expect(200);

    let events = ground.admin.all_events(&id).await;
    let changes: Vec<&Value> = events.iter().filter(|event| event["type"] == "network.changed").collect();
    let policies: Vec<_> = changes.iter().map(|event| event["data"]["policy"].as_str().unwrap()).collect();
    assert_eq!(policies, ["allow", "allow", "none"]);
    assert!(changes.iter().all(|event| event["source"] == "user" && event["actor"].is_string()), "{changes:?}");
    assert!(!told(&events, "network.refused").is_empty());
    serving.abort();
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_server_carries_on() {
    let site = Site::start().await;
    let mut ground = ground(&["127.0.0.0/8".to_owned(), "::1".to_owned()]);
    let id = ground.kept(json!({})).await;
    let list = [format!("localhost:{}", site.port)];
    let path = format!("/sandboxes/{id}/network");
    ground.admin.put(&path, json!({ "policy": "allow", "allow": list })).await.expect(200);
    let url = format!("--noproxy '' http://localhost:{}/", site.port);
    assert!(curl(&ground, &id, &url).await.starts_with("HTTP/1.1 200"));
    block_in_place(|| ground.server.start_again());
    assert!(curl(&ground, &id, &url).await.starts_with("HTTP/1.1 200"), "the policy is stored");
    let view = network_of(&ground, &id).await;
    assert_eq!((&view["policy"], &view["allow"]), (&json!("allow"), &json!(list)));
    ground.leave().await;
}

/// The server holds a socket of each sandbox's network: it must let go of it with the sandbox.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_goes_with_its_sandbox() {
    let ground = ground(&[]);
    let spaces = |pid: u32| {
        let listening = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().filter_map(|entry| {
            let target = std::fs::read_link(entry.ok()?.path()).ok()?;
            target.to_str()?.starts_with("socket:").then_some(())
        });
        listening.count()
    };
    let pid = ground.server.pid();
    let warm = ground.kept(json!({})).await;
    curl(&ground, &warm, "http://example.org/").await;
    ground.admin.delete(&format!("/sandboxes/{warm}?force=true")).await.expect(200);
    ground.gone(&warm).await;
    let ids = [ground.kept(json!({})).await, ground.kept(json!({})).await, ground.kept(json!({})).await];
    for id in &ids {
        curl(&ground, id, "http://example.org/").await;
    }
    let with = spaces(pid);
    for id in &ids {
        ground.admin.delete(&format!("/sandboxes/{id}?force=true")).await.expect(200);
        ground.gone(id).await;
    }
    // One listening socket and two connections for each.
    let deadline = Instant::now() + PATIENCE;
    while spaces(pid) + 9 > with {
        assert!(Instant::now() < deadline, "{} sockets of {with} are left", spaces(pid));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_shows_and_changes_it() {
    let ground = ground(&[]);
    let id = ground.kept(allow(&["a.example"])).await;
    let run = |arguments: &[&str]| {
        let mut atoll = command("atoll");
        atoll.args(["sandbox", "--server", &ground.server.url, "network", &id]).args(arguments);
        atoll.env("ATOLL_TOKEN", ground.server.token());
        let done = block_in_place(|| atoll.output().unwrap());
        (done.status.code(), String::from_utf8(done.stdout).unwrap() + &String::from_utf8_lossy(&done.stderr))
    };
    let (code, said) = run(&[]);
    assert!(code == Some(0) && said.starts_with("policy allow: a.example\nnothing has left it yet"), "{said}");
    let (code, said) = run(&["--allow", "*.b.example:8443"]);
    assert!(code == Some(0) && said.starts_with("policy allow: a.example, *.b.example:8443\n"), "{said}");
    curl(&ground, &id, "http://c.example/").await;
    let (_, said) = run(&["--policy", "none"]);
    assert!(said.starts_with("policy none\n") && said.contains("c.example"), "{said}");
    let (code, said) = run(&["--allow", "https://x"]);
    assert!(code != Some(0) && said.contains("without a scheme"), "{said}");
    ground.leave().await;
}

/// A server that reaches the Internet only by a proxy takes its sandboxes' connections there too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_s_own_proxy_is_honoured() {
    let site = Site::start().await;
    let (port, asked, serving) = forwarder(site.port).await;
    let config = format!("network: {{upstream_proxy: \"http://me:secret@127.0.0.1:{port}\"}}\n");
    let ground = Ground::start_with(&config);
    let id = ground.kept(allow(&["name.invalid", "name.invalid:8080"])).await;
    // Nobody here knows that name; the proxy may.
    let answer = curl(&ground, &id, "http://name.invalid/by/url").await;
    assert!(answer.contains("GET http://name.invalid/by/url HTTP/1.1"), "{answer}");
    assert!(answer.contains("host: name.invalid\r\n"), "{answer}");
    let answer = curl(&ground, &id, "--proxytunnel http://name.invalid:8080/by/tunnel").await;
    assert!(answer.contains("GET /by/tunnel HTTP/1.1"), "{answer}");
    let asked = asked.lock().unwrap().to_lowercase();
    assert!(asked.contains("connect name.invalid:8080 http/1.1\r\n"), "{asked}");
    assert_eq!(asked.matches("proxy-authorization: basic bwu6c2vjcmv0\r\n").count(), 2, "me:secret: {asked}");
    // It is no way around the rules.
    assert!(curl(&ground, &id, "http://other.invalid/").await.contains("x-atoll-refused: policy"));
    ground.admin.put(&format!("/sandboxes/{id}/network"), json!({ "policy": "all" })).await.expect(200);
    let private = curl(&ground, &id, "http://169.254.169.254/").await;
    assert!(private.contains("x-atoll-refused: private_address"), "{private}");
    serving.abort();
    ground.leave().await;
}
