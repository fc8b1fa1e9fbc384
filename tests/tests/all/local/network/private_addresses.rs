//! Private addresses: no sandbox reaches them unless the server's configuration allows it.

use super::test_sites::HttpSite;
use super::{get_network, run_curl, start_server, wait_for_refusal};
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_address_is_refused_in_every_spelling() {
    let site = HttpSite::start().await;
    let server = start_server(&[]);
    let id = server.create_idle_sandbox(json!({ "network": { "policy": "all" } })).await;
    let (port, server_port) = (site.port, server.process.address.port());
    let addresses = [
        (format!("localhost:{port}"), "private_address"),
        (format!("LOCALHOST.:{port}"), "private_address"),
        (format!("127.0.0.1:{port}"), "private_address"),
        (format!("127.9.9.9:{port}"), "private_address"),
        (format!("0.0.0.0:{port}"), "private_address"),
        (format!("[::1]:{port}"), "private_address"),
        (format!("[::ffff:127.0.0.1]:{port}"), "private_address"),
        (format!("[::ffff:7f00:1]:{port}"), "private_address"),
        (format!("[64:ff9b::7f00:1]:{port}"), "private_address"),
        (format!("[2002:7f00:1::]:{port}"), "private_address"),
        ("169.254.169.254".to_owned(), "private_address"),
        ("[fd00:ec2::254]".to_owned(), "private_address"),
        ("10.0.0.1".to_owned(), "private_address"),
        ("100.64.0.1".to_owned(), "private_address"),
        ("[fe80::1]".to_owned(), "private_address"),
        ("224.0.0.1".to_owned(), "private_address"),
        (format!("127.0.0.1:{server_port}"), "own_server"),
        (format!("localhost:{server_port}"), "own_server"),
    ];
    for (address, reason) in &addresses {
        let response = run_curl(&server, &id, &format!("--globoff --noproxy '' 'http://{address}/'")).await;
        assert!(response.contains(&format!("x-atoll-refused: {reason}")), "{address}: {response}");
        let tunnel = run_curl(&server, &id, &format!("--globoff --noproxy '' --proxytunnel 'http://{address}/'")).await;
        assert!(tunnel.contains(&format!("x-atoll-refused: {reason}")), "{address} by tunnel: {tunnel}");
        let socks = format!("--globoff --noproxy '' --socks5-hostname 127.0.0.1:7709 'http://{address}/'");
        assert!(run_curl(&server, &id, &socks).await.contains("[exit 97]"), "{address} by SOCKS");
    }
    // Spellings that programs parse differently. curl would normalize them, so send the request raw.
    for host in ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0x7f.1", "127.0.0.1.."] {
        let script = format!(
            "printf 'GET http://{host}:{port}/ HTTP/1.1\\r\\nHost: {host}:{port}\\r\\nConnection: close\\r\\n\\r\\n' \
             | curl -s --noproxy '*' --max-time 10 telnet://127.0.0.1:7709"
        );
        let response = server.run_shell(&id, &script).await.stdout;
        assert!(response.contains("x-atoll-refused: bad_host"), "{host}: {response}");
    }
    let event = wait_for_refusal(&server, &id, "private_address").await;
    assert!(event["data"]["detail"].as_str().unwrap().contains("network.allow_private"), "{event}");
    wait_for_refusal(&server, &id, "own_server").await;
    assert_eq!(site.request_count(), 0, "the site must receive nothing");
    assert_eq!(get_network(&server, &id).await["total"]["connections"], 0);
    server.stop_and_check().await;
}

/// `allow_private` does not replace the sandbox's policy, and never opens the server itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_allowed_private_address_opens_only_itself() {
    let (site, other) = (HttpSite::start().await, HttpSite::start().await);
    let server = start_server(&[format!("localhost:{}", site.port)]);
    let id = server.create_idle_sandbox(json!({ "network": { "policy": "all" } })).await;
    let response = run_curl(&server, &id, &format!("--noproxy '' http://localhost:{}/", site.port)).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    for address in [format!("127.0.0.1:{}", site.port), format!("localhost:{}", other.port)] {
        let response = run_curl(&server, &id, &format!("--noproxy '' http://{address}/")).await;
        assert!(response.contains("x-atoll-refused: private_address"), "{address}: {response}");
    }
    server.stop_and_check().await;

    let all = start_server(&["0.0.0.0/0".to_owned(), "::/0".to_owned()]);
    let id = all.create_idle_sandbox(json!({ "network": { "policy": "all" } })).await;
    let server_port = all.process.address.port();
    for address in [
        format!("127.0.0.1:{server_port}"),
        format!("localhost:{server_port}"),
        format!("[::ffff:127.0.0.1]:{server_port}"),
    ] {
        let response = run_curl(&all, &id, &format!("--globoff --noproxy '' 'http://{address}/healthz'")).await;
        assert!(response.contains("x-atoll-refused: own_server"), "{address}: {response}");
    }
    all.stop_and_check().await;
}
