//! Policy changes while a sandbox runs, and across a restart of the server.

use super::test_sites::{HttpSite, start_echo, start_proxy};
use super::{allow_policy, get_network, run_curl, run_python, start_server};
use atoll_test_wait::{poll_until, try_poll_for};
use atoll_tests::local::{LocalServer, event_data};
use atoll_tests::process::program_command;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::task::block_in_place;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_change_also_closes_open_connections() {
    let (port, serving) = start_echo(b"hello\n").await;
    let site = HttpSite::start().await;
    let server = start_server(&["127.0.0.0/8".to_owned(), "::1".to_owned()]);
    let id = server.create_idle_sandbox(json!({})).await;
    let path = format!("/sandboxes/{id}/network");
    let url = format!("--noproxy '' http://localhost:{}/", site.port);
    assert!(run_curl(&server, &id, &url).await.contains("x-atoll-refused: policy"));
    let (one, two) = (format!("localhost:{port}"), format!("localhost:{}", site.port));
    let view = server.admin.put(&path, json!({ "policy": "allow", "allow": [one, two] })).await.expect_status(200);
    assert_eq!((&view["policy"], &view["allow"]), (&json!("allow"), &json!([one, two])));
    assert!(run_curl(&server, &id, &url).await.starts_with("HTTP/1.1 200"));

    // Keeps a connection open and prints when it is closed.
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
        let counted = try_poll_for(async || {
            let view = get_network(&server, &id).await;
            let line = view["hosts"].as_array().unwrap().iter().find(|line| line["port"] == port);
            let is_counted = line.is_some_and(|line| line["sent"] == 3 && line["received"] == 9);
            if is_counted { Ok(()) } else { Err(view) }
        });
        counted.await.expect("the server must count the bytes of the connection");
        let started = Instant::now();
        server.admin.put(&path, json!({ "policy": "allow", "allow": [two] })).await.expect_status(200);
        started
    };
    let (ran, started) = tokio::join!(run_python(&server, &id, &script), change);
    assert_eq!(ran.expect_success(), "cut b''\n");
    assert!(started.elapsed() < Duration::from_secs(50), "{:?}", started.elapsed());
    assert!(run_curl(&server, &id, &url).await.starts_with("HTTP/1.1 200"), "the other host must stay reachable");
    server.admin.put(&path, json!({ "policy": "none" })).await.expect_status(200);
    assert!(run_curl(&server, &id, &url).await.contains("x-atoll-refused: policy"));
    // The same policy again causes no event.
    server.admin.put(&path, json!({ "policy": "none" })).await.expect_status(200);

    let events = server.admin.all_events(&id).await;
    let changes: Vec<&Value> = events.iter().filter(|event| event["type"] == "network.changed").collect();
    let policies: Vec<_> = changes.iter().map(|event| event["data"]["policy"].as_str().unwrap()).collect();
    assert_eq!(policies, ["allow", "allow", "none"]);
    assert!(changes.iter().all(|event| event["source"] == "user" && event["actor"].is_string()), "{changes:?}");
    assert!(!event_data(&events, "network.refused").is_empty());
    serving.abort();
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_survives_a_restart_of_the_server() {
    let site = HttpSite::start().await;
    let mut server = start_server(&["127.0.0.0/8".to_owned(), "::1".to_owned()]);
    let id = server.create_idle_sandbox(json!({})).await;
    let list = [format!("localhost:{}", site.port)];
    let path = format!("/sandboxes/{id}/network");
    server.admin.put(&path, json!({ "policy": "allow", "allow": list })).await.expect_status(200);
    let url = format!("--noproxy '' http://localhost:{}/", site.port);
    assert!(run_curl(&server, &id, &url).await.starts_with("HTTP/1.1 200"));
    block_in_place(|| server.process.restart());
    assert!(run_curl(&server, &id, &url).await.starts_with("HTTP/1.1 200"), "the policy must be stored");
    let view = get_network(&server, &id).await;
    assert_eq!((&view["policy"], &view["allow"]), (&json!("allow"), &json!(list)));
    server.stop_and_check().await;
}

/// The server holds sockets of each sandbox's network and must close them with the sandbox.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_sandbox_leaves_no_sockets_in_the_server() {
    let server = start_server(&[]);
    let count_sockets = |pid: u32| {
        let sockets = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().filter_map(|entry| {
            let target = std::fs::read_link(entry.ok()?.path()).ok()?;
            target.to_str()?.starts_with("socket:").then_some(())
        });
        sockets.count()
    };
    let pid = server.process.pid();
    let warm_up = server.create_idle_sandbox(json!({})).await;
    run_curl(&server, &warm_up, "http://example.org/").await;
    server.admin.delete(&format!("/sandboxes/{warm_up}?force=true")).await.expect_status(200);
    server.wait_until_removed(&warm_up).await;
    let ids = [
        server.create_idle_sandbox(json!({})).await,
        server.create_idle_sandbox(json!({})).await,
        server.create_idle_sandbox(json!({})).await,
    ];
    for id in &ids {
        run_curl(&server, id, "http://example.org/").await;
    }
    let before = count_sockets(pid);
    for id in &ids {
        server.admin.delete(&format!("/sandboxes/{id}?force=true")).await.expect_status(200);
        server.wait_until_removed(id).await;
    }
    // One listening socket and two connections for each.
    poll_until("the sockets to be closed", async || count_sockets(pid) + 9 <= before).await;
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_shows_and_changes_the_policy() {
    let server = start_server(&[]);
    let id = server.create_idle_sandbox(allow_policy(&["a.example"])).await;
    let run = |arguments: &[&str]| {
        let mut atoll = program_command("atoll");
        atoll.args(["sandbox", "--server", &server.process.url, "network", &id]).args(arguments);
        atoll.env("ATOLL_TOKEN", server.process.admin_token());
        let done = block_in_place(|| atoll.output().unwrap());
        (done.status.code(), String::from_utf8(done.stdout).unwrap() + &String::from_utf8_lossy(&done.stderr))
    };
    let (code, output) = run(&[]);
    assert!(code == Some(0) && output.starts_with("policy allow: a.example\nno traffic yet"), "{output}");
    let (code, output) = run(&["--allow", "*.b.example:8443"]);
    assert!(code == Some(0) && output.starts_with("policy allow: a.example, *.b.example:8443\n"), "{output}");
    run_curl(&server, &id, "http://c.example/").await;
    let (_, output) = run(&["--policy", "none"]);
    assert!(output.starts_with("policy none\n") && output.contains("c.example"), "{output}");
    let (code, output) = run(&["--allow", "https://x"]);
    assert!(code != Some(0) && output.contains("without a scheme"), "{output}");
    server.stop_and_check().await;
}

/// A server behind an upstream proxy sends its sandboxes' connections through it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_upstream_proxy_of_the_server_is_used() {
    let site = HttpSite::start().await;
    let (port, requests, serving) = start_proxy(site.port).await;
    let config = format!("network: {{upstream_proxy: \"http://me:secret@127.0.0.1:{port}\"}}\n");
    let server = LocalServer::start_with_config(&config);
    let id = server.create_idle_sandbox(allow_policy(&["name.invalid", "name.invalid:8080"])).await;
    // The name does not resolve on this host; the proxy resolves it.
    let response = run_curl(&server, &id, "http://name.invalid/by/url").await;
    assert!(response.contains("GET http://name.invalid/by/url HTTP/1.1"), "{response}");
    assert!(response.contains("host: name.invalid\r\n"), "{response}");
    let response = run_curl(&server, &id, "--proxytunnel http://name.invalid:8080/by/tunnel").await;
    assert!(response.contains("GET /by/tunnel HTTP/1.1"), "{response}");
    let requests = requests.lock().unwrap().to_lowercase();
    assert!(requests.contains("connect name.invalid:8080 http/1.1\r\n"), "{requests}");
    assert_eq!(requests.matches("proxy-authorization: basic bwu6c2vjcmv0\r\n").count(), 2, "me:secret: {requests}");
    // The upstream proxy does not bypass the policy.
    assert!(run_curl(&server, &id, "http://other.invalid/").await.contains("x-atoll-refused: policy"));
    server.admin.put(&format!("/sandboxes/{id}/network"), json!({ "policy": "all" })).await.expect_status(200);
    let private = run_curl(&server, &id, "http://169.254.169.254/").await;
    assert!(private.contains("x-atoll-refused: private_address"), "{private}");
    serving.abort();
    server.stop_and_check().await;
}
