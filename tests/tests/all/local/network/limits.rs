//! How much goes through, and how much at once.

use super::serving::Site;
use super::{allow, curl, ground, network_of, refusal};
use atoll_tests::local::Ground;
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_transfers_no_more_than_it_may() {
    let site = Site::start().await;
    let ground = Ground::start_with("network: {allow_private: [127.0.0.0/8, \"::1\"], max_bytes: 1000000}\n");
    let id = ground.kept(allow(&[&format!("localhost:{}", site.port)])).await;
    let url = format!("http://localhost:{}", site.port);
    let small = ground.shell(&id, &format!("curl -sS --noproxy '' {url}/size/400000 | wc -c")).await.well();
    assert_eq!(small.trim(), "400000");
    let big = ground.shell(&id, &format!("curl -s --noproxy '' {url}/size/5000000 | wc -c")).await.well();
    let got: u64 = big.trim().parse().unwrap();
    assert!(got < 700_000, "it was cut: {got}");
    let refused = curl(&ground, &id, &format!("--noproxy '' {url}/")).await;
    assert!(refused.contains("x-atoll-refused: cap") && refused.contains("1000000 bytes"), "{refused}");
    refusal(&ground, &id, "cap").await;
    let total = network_of(&ground, &id).await["total"]["received"].as_u64().unwrap();
    assert!((1_000_000..1_200_000).contains(&total), "{total}");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_connections_at_once() {
    let site = Site::start().await;
    let ground = ground(&["127.0.0.0/8".to_owned(), "::1".to_owned()]);
    let id = ground.kept(allow(&[&format!("localhost:{}", site.port)])).await;
    for way in ["", "--proxytunnel"] {
        let script = format!(
            "curl -sS --noproxy '' {way} --parallel --parallel-immediate --parallel-max 200 --max-time 60 \
             -o /dev/null -w '%{{http_code}} %{{size_download}}\\n' 'http://localhost:{}/size/2000[1-200]' | sort | uniq -c",
            site.port
        );
        let said = ground.shell(&id, &script).await.well();
        let answers: u64 = said
            .lines()
            .filter(|line| line.contains(" 200 "))
            .map(|line| line.split_whitespace().next().unwrap().parse::<u64>().unwrap())
            .sum();
        assert_eq!(answers, 200, "{way}: {said}");
    }
    assert_eq!(site.requests(), 400);
    assert!(network_of(&ground, &id).await["total"]["refused"] == json!(0));
    ground.leave().await;
}
