//! A login in place of a key: the server shows its token, renews it in time, and is the only one who does.

use super::upstream::Upstream;
use super::{curl, ground, is, messages};
use atoll_tests::local::{Ground, PATIENCE};
use serde_json::{Value, json};
use std::time::{Duration, Instant, SystemTime};
use tokio::task::block_in_place;

fn config(upstream: &Upstream) -> String {
    let place = format!("http://127.0.0.1:{}", upstream.port);
    format!(
        "upstreams:\n  subscription: {{kind: anthropic, url: \"{place}\", key_secret: THE_LOGIN, login: {{token_url: \
         \"{place}/oauth/token\", client_id: some-client, body: json}}}}\n\
         models:\n- {{name: claude-sonnet-4-5, upstream: subscription}}\n"
    )
}

/// As Claude Code keeps it, good for so many seconds more.
fn login(access: &str, refresh: &str, seconds: i64) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as i64;
    let ends = now + seconds * 1000;
    json!({ "claudeAiOauth": { "accessToken": access, "refreshToken": refresh, "expiresAt": ends, "scopes": ["user:inference"] } })
        .to_string()
}

async fn store(ground: &Ground, upstream: &Upstream, value: &str) {
    let secret = json!({ "value": value, "upstreams": [format!("127.0.0.1:{}", upstream.port)] });
    ground.admin.put("/secrets/THE_LOGIN", secret).await.expect(201);
}

/// What the upstream was shown, and the requests to renew among it.
fn shown(upstream: &Upstream) -> (Vec<String>, Vec<Value>) {
    let (renewals, asked): (Vec<_>, Vec<_>) =
        upstream.requests().into_iter().partition(|(head, _)| head.starts_with("post /oauth/token "));
    let bearer = |head: &str| head.lines().find_map(|line| line.strip_prefix("authorization: ").map(str::to_owned));
    let tokens = asked.iter().map(|(head, _)| bearer(head).unwrap_or_default()).collect();
    (tokens, renewals.iter().map(|(_, body)| serde_json::from_str(body).unwrap()).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_is_renewed_once_and_kept() {
    let upstream = Upstream::start().await;
    let mut ground = ground(&upstream, &config(&upstream));
    // Over in a minute: it is renewed before it is shown.
    store(&ground, &upstream, &login("stale-0", "again-1", 60)).await;
    let id = ground.kept(json!({ "network": { "policy": "none" } })).await;
    let ask = messages("claude-sonnet-4-5", 1);
    let many = format!("for n in 1 2 3 4 5 6; do curl -s -o /dev/null -w '%{{http_code}} ' {ask} & done; wait");
    let codes = ground.shell(&id, &format!("KEY=$ATOLL_GATEWAY_KEY; {many}")).await.well();
    assert_eq!(codes.trim(), "200 200 200 200 200 200");
    let (tokens, renewals) = shown(&upstream);
    assert_eq!(tokens, vec!["bearer fresh-1"; 6]);
    let asked = json!({ "grant_type": "refresh_token", "refresh_token": "again-1", "client_id": "some-client" });
    assert_eq!(renewals, [asked], "six at once renew it once");
    let (head, _) = upstream.requests().pop().unwrap();
    assert!(head.contains("anthropic-beta: oauth-2025-04-20") && !head.contains("x-api-key"), "{head}");

    // What was granted is stored: after a crash it is still good, and what was shown once is not shown again.
    block_in_place(|| {
        ground.server.kill();
        ground.server.start_again();
    });
    ground.until(&id, |row| row["state"] == "running").await;
    let deadline = Instant::now() + PATIENCE;
    while !is(&curl(&ground, &id, &ask).await, 200) {
        assert!(Instant::now() < deadline, "the sandbox does not reach the gateway after the server's crash");
    }
    assert_eq!(shown(&upstream).1.len(), 1);

    // Before its time the upstream no longer takes it: renewed, and the agent notices nothing. One that is too young to be
    // old is left as it is, so that a login that is refused for another reason is not renewed without end.
    upstream.revoke("fresh-1");
    let deadline = Instant::now() + PATIENCE;
    while !is(&curl(&ground, &id, &ask).await, 200) {
        assert!(Instant::now() < deadline, "{:?}", shown(&upstream));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let (tokens, renewals) = shown(&upstream);
    assert_eq!(tokens.last().unwrap(), "bearer fresh-2");
    assert_eq!(renewals.len(), 2, "{renewals:?}");
    assert_eq!(renewals[1]["refresh_token"], "again-2");
    // Its tokens are nowhere inside, nor in the log.
    let seen =
        ground.shell(&id, "env; grep -rsE 'fresh-[0-9]|again-[0-9]' /workspace /home /tmp /run /etc").await.stdout;
    assert!(!seen.contains("fresh-") && !seen.contains("again-"), "{seen}");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_can_t_be_renewed_is_used_up_and_then_told() {
    let upstream = Upstream::start().await;
    let ground = ground(&upstream, &config(&upstream));
    let ask = messages("claude-sonnet-4-5", 1);
    // The server of logins refuses it; for a few minutes it is still good.
    store(&ground, &upstream, &login("first-0", "unknown", 200)).await;
    let id = ground.kept(json!({})).await;
    assert!(is(&curl(&ground, &id, &ask).await, 200));
    assert_eq!(shown(&upstream).0, ["bearer first-0"]);

    let heard = shown(&upstream).0.len();
    let over = ground.admin.post("/projects", json!({ "name": "over" })).await.expect(201)["id"].clone();
    for (value, sentence) in [
        (login("over-0", "unknown", -10), "no longer taken for renewal"),
        (login("over-0", "", -10), "can't be renewed: log in again"),
        (json!({ "something": "else" }).to_string(), "no login of an agent that is known here"),
    ] {
        let secret =
            json!({ "value": value, "project_id": over, "upstreams": [format!("127.0.0.1:{}", upstream.port)] });
        drop(ground.admin.put("/secrets/THE_LOGIN", secret).await);
        let id = ground.kept(json!({ "project_id": over })).await;
        // What was found a moment ago counts a moment longer.
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = curl(&ground, &id, &ask).await;
            assert!(is(&answer, 403), "{answer}");
            if answer.contains(sentence) {
                break;
            }
            assert!(Instant::now() < deadline, "{sentence}: {answer}");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let told = ground.event(&id, |event| event["type"] == "model.refused").await;
        assert_eq!(told["data"]["reason"], "key", "{told}");
    }
    assert_eq!(shown(&upstream).0.len(), heard, "none of that was shown to the upstream");
    ground.leave().await;
}
