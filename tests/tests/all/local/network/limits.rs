//! Limits on transferred bytes and on connections.

use super::test_sites::HttpSite;
use super::{allow_policy, get_network, run_curl, start_server, wait_for_refusal};
use atoll_tests::local::LocalServer;
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_cannot_exceed_its_transfer_limit() {
    let site = HttpSite::start().await;
    let server =
        LocalServer::start_with_config("network: {allow_private: [127.0.0.0/8, \"::1\"], max_bytes: 1000000}\n");
    let id = server.create_idle_sandbox(allow_policy(&[&format!("localhost:{}", site.port)])).await;
    let url = format!("http://localhost:{}", site.port);
    let small =
        server.run_shell(&id, &format!("curl -sS --noproxy '' {url}/size/400000 | wc -c")).await.expect_success();
    assert_eq!(small.trim(), "400000");
    let big = server.run_shell(&id, &format!("curl -s --noproxy '' {url}/size/5000000 | wc -c")).await.expect_success();
    let got: u64 = big.trim().parse().unwrap();
    assert!(got < 700_000, "the transfer must be cut: {got}");
    let refused = run_curl(&server, &id, &format!("--noproxy '' {url}/")).await;
    assert!(refused.contains("x-atoll-refused: cap") && refused.contains("1000000 bytes"), "{refused}");
    wait_for_refusal(&server, &id, "cap").await;
    let total = get_network(&server, &id).await["total"]["received"].as_u64().unwrap();
    assert!((1_000_000..1_200_000).contains(&total), "{total}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_concurrent_connections_succeed() {
    let site = HttpSite::start().await;
    let server = start_server(&["127.0.0.0/8".to_owned(), "::1".to_owned()]);
    let id = server.create_idle_sandbox(allow_policy(&[&format!("localhost:{}", site.port)])).await;
    for option in ["", "--proxytunnel"] {
        let script = format!(
            "curl -sS --noproxy '' {option} --parallel --parallel-immediate --parallel-max 200 --max-time 60 \
             -o /dev/null -w '%{{http_code}} %{{size_download}}\\n' 'http://localhost:{}/size/2000[1-200]' | sort | uniq -c",
            site.port
        );
        let output = server.run_shell(&id, &script).await.expect_success();
        let successes: u64 = output
            .lines()
            .filter(|line| line.contains(" 200 "))
            .map(|line| line.split_whitespace().next().unwrap().parse::<u64>().unwrap())
            .sum();
        assert_eq!(successes, 200, "{option}: {output}");
    }
    assert_eq!(site.request_count(), 400);
    assert!(get_network(&server, &id).await["total"]["refused"] == json!(0));
    server.stop_and_check().await;
}
