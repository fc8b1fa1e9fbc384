//! Addresses that no sandbox reaches unless the server's configuration says so.

use super::serving::Site;
use super::{curl, ground, network_of, refusal};
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_public_is_refused_whatever_it_is_called() {
    let site = Site::start().await;
    let ground = ground(&[]);
    let id = ground.kept(json!({ "network": { "policy": "all" } })).await;
    let (port, own) = (site.port, ground.server.address.port());
    let places = [
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
        (format!("127.0.0.1:{own}"), "own_server"),
        (format!("localhost:{own}"), "own_server"),
    ];
    for (place, reason) in &places {
        let answer = curl(&ground, &id, &format!("--globoff --noproxy '' 'http://{place}/'")).await;
        assert!(answer.contains(&format!("x-atoll-refused: {reason}")), "{place}: {answer}");
        let tunnel = curl(&ground, &id, &format!("--globoff --noproxy '' --proxytunnel 'http://{place}/'")).await;
        assert!(tunnel.contains(&format!("x-atoll-refused: {reason}")), "{place} by tunnel: {tunnel}");
        let socks = format!("--globoff --noproxy '' --socks5-hostname 127.0.0.1:7709 'http://{place}/'");
        assert!(curl(&ground, &id, &socks).await.contains("[exit 97]"), "{place} by SOCKS");
    }
    // Forms that programs read differently; curl itself would make plain ones of them.
    for odd in ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0x7f.1", "127.0.0.1.."] {
        let script = format!(
            "printf 'GET http://{odd}:{port}/ HTTP/1.1\\r\\nHost: {odd}:{port}\\r\\nConnection: close\\r\\n\\r\\n' \
             | curl -s --noproxy '*' --max-time 10 telnet://127.0.0.1:7709"
        );
        let answer = ground.shell(&id, &script).await.stdout;
        assert!(answer.contains("x-atoll-refused: bad_host"), "{odd}: {answer}");
    }
    let event = refusal(&ground, &id, "private_address").await;
    assert!(event["data"]["detail"].as_str().unwrap().contains("network.allow_private"), "{event}");
    refusal(&ground, &id, "own_server").await;
    assert_eq!(site.requests(), 0, "nothing got there");
    assert_eq!(network_of(&ground, &id).await["total"]["connections"], 0);
    ground.leave().await;
}

/// An exception of the server's is not a permission of the sandbox's, and none lets it reach the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exceptions_open_a_place_and_not_its_neighbours() {
    let (site, other) = (Site::start().await, Site::start().await);
    let ground = ground(&[format!("localhost:{}", site.port)]);
    let id = ground.kept(json!({ "network": { "policy": "all" } })).await;
    let answer = curl(&ground, &id, &format!("--noproxy '' http://localhost:{}/", site.port)).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    for place in [format!("127.0.0.1:{}", site.port), format!("localhost:{}", other.port)] {
        let answer = curl(&ground, &id, &format!("--noproxy '' http://{place}/")).await;
        assert!(answer.contains("x-atoll-refused: private_address"), "{place}: {answer}");
    }
    ground.leave().await;

    let all = super::ground(&["0.0.0.0/0".to_owned(), "::/0".to_owned()]);
    let id = all.kept(json!({ "network": { "policy": "all" } })).await;
    let own = all.server.address.port();
    for place in [format!("127.0.0.1:{own}"), format!("localhost:{own}"), format!("[::ffff:127.0.0.1]:{own}")] {
        let answer = curl(&all, &id, &format!("--globoff --noproxy '' 'http://{place}/healthz'")).await;
        assert!(answer.contains("x-atoll-refused: own_server"), "{place}: {answer}");
    }
    all.leave().await;
}
