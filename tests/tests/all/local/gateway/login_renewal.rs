//! A login in place of an API key: the server sends its token, and only the server renews it.

use super::fake_upstream::FakeUpstream;
use super::{has_status, messages_arguments, run_curl, start_server};
use atoll_test_wait::{poll_until, try_poll_for};
use atoll_tests::local::LocalServer;
use serde_json::{Value, json};
use std::time::SystemTime;
use tokio::task::block_in_place;

fn login_config(upstream: &FakeUpstream) -> String {
    let base_url = format!("http://127.0.0.1:{}", upstream.port);
    format!(
        "upstreams:\n  subscription: {{kind: anthropic, url: \"{base_url}\", key_secret: THE_LOGIN, login: {{token_url: \
         \"{base_url}/oauth/token\", client_id: some-client, body: json}}}}\n\
         models:\n- {{name: claude-sonnet-4-5, upstream: subscription}}\n"
    )
}

/// A login in Claude Code's format that expires in `seconds`.
fn login_json(access: &str, refresh: &str, seconds: i64) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as i64;
    let expires_at = now + seconds * 1000;
    json!({ "claudeAiOauth": { "accessToken": access, "refreshToken": refresh, "expiresAt": expires_at, "scopes": ["user:inference"] } })
        .to_string()
}

async fn store_login(server: &LocalServer, upstream: &FakeUpstream, value: &str) {
    let secret = json!({ "value": value, "upstreams": [format!("127.0.0.1:{}", upstream.port)] });
    server.admin.put("/secrets/THE_LOGIN", secret).await.expect_status(201);
}

/// Returns the tokens that the upstream received, and the renewal requests.
fn sent_tokens_and_renewals(upstream: &FakeUpstream) -> (Vec<String>, Vec<Value>) {
    let (renewals, calls): (Vec<_>, Vec<_>) =
        upstream.requests().into_iter().partition(|(head, _)| head.starts_with("post /oauth/token "));
    let bearer = |head: &str| head.lines().find_map(|line| line.strip_prefix("authorization: ").map(str::to_owned));
    let tokens = calls.iter().map(|(head, _)| bearer(head).unwrap_or_default()).collect();
    (tokens, renewals.iter().map(|(_, body)| serde_json::from_str(body).unwrap()).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_renew_a_login_once_and_the_renewal_is_stored() {
    let upstream = FakeUpstream::start().await;
    let mut server = start_server(&upstream, &login_config(&upstream));
    // It expires in a minute, so the server renews it before its first use.
    store_login(&server, &upstream, &login_json("stale-0", "again-1", 60)).await;
    let id = server.create_idle_sandbox(json!({ "network": { "policy": "none" } })).await;
    let request = messages_arguments("claude-sonnet-4-5", 1);
    let many = format!("for n in 1 2 3 4 5 6; do curl -s -o /dev/null -w '%{{http_code}} ' {request} & done; wait");
    let codes = server.run_shell(&id, &format!("KEY=$ATOLL_GATEWAY_KEY; {many}")).await.expect_success();
    assert_eq!(codes.trim(), "200 200 200 200 200 200");
    let (tokens, renewals) = sent_tokens_and_renewals(&upstream);
    assert_eq!(tokens, vec!["bearer fresh-1"; 6]);
    let renewal = json!({ "grant_type": "refresh_token", "refresh_token": "again-1", "client_id": "some-client" });
    assert_eq!(renewals, [renewal], "six concurrent requests must renew it once");
    let (head, _) = upstream.requests().pop().unwrap();
    assert!(head.contains("anthropic-beta: oauth-2025-04-20") && !head.contains("x-api-key"), "{head}");

    // The renewed login is stored: after a crash the server uses it and does not renew again.
    block_in_place(|| {
        server.process.kill();
        server.process.restart();
    });
    server.wait_until(&id, |row| row["state"] == "running").await;
    let is_answered = async || has_status(&run_curl(&server, &id, &request).await, 200);
    poll_until("an answer of the gateway after the server's crash", is_answered).await;
    assert_eq!(sent_tokens_and_renewals(&upstream).1.len(), 1);

    // The upstream rejects the token before it expires: the server renews it, and the agent does not notice. It
    // does not renew a very young token, so that a login that is rejected for another reason does not loop.
    upstream.revoke("fresh-1");
    poll_until("an answer with a renewed token", is_answered).await;
    let (tokens, renewals) = sent_tokens_and_renewals(&upstream);
    assert_eq!(tokens.last().unwrap(), "bearer fresh-2");
    assert_eq!(renewals.len(), 2, "{renewals:?}");
    assert_eq!(renewals[1]["refresh_token"], "again-2");
    // The tokens appear neither in the sandbox's files nor in its environment.
    let output =
        server.run_shell(&id, "env; grep -rsE 'fresh-[0-9]|again-[0-9]' /workspace /home /tmp /run /etc").await.stdout;
    assert!(!output.contains("fresh-") && !output.contains("again-"), "{output}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_cannot_be_renewed_works_until_it_expires_and_then_reports_why() {
    let upstream = FakeUpstream::start().await;
    let server = start_server(&upstream, &login_config(&upstream));
    let request = messages_arguments("claude-sonnet-4-5", 1);
    // The token endpoint rejects the renewal, but the token is valid for a few more minutes.
    store_login(&server, &upstream, &login_json("first-0", "unknown", 200)).await;
    let id = server.create_idle_sandbox(json!({})).await;
    assert!(has_status(&run_curl(&server, &id, &request).await, 200));
    assert_eq!(sent_tokens_and_renewals(&upstream).0, ["bearer first-0"]);

    let token_count = sent_tokens_and_renewals(&upstream).0.len();
    let project = server.admin.post("/projects", json!({ "name": "over" })).await.expect_status(201)["id"].clone();
    for (value, sentence) in [
        (login_json("over-0", "unknown", -10), "can no longer be renewed"),
        (login_json("over-0", "", -10), "no refresh token: log in again"),
        (json!({ "something": "else" }).to_string(), "not a known login format"),
    ] {
        let secret =
            json!({ "value": value, "project_id": project, "upstreams": [format!("127.0.0.1:{}", upstream.port)] });
        drop(server.admin.put("/secrets/THE_LOGIN", secret).await);
        let id = server.create_idle_sandbox(json!({ "project_id": project })).await;
        // The gateway caches a lookup for a moment.
        let refused = try_poll_for(async || {
            let response = run_curl(&server, &id, &request).await;
            assert!(has_status(&response, 403), "{response}");
            if response.contains(sentence) { Ok(()) } else { Err(response) }
        });
        refused.await.expect(sentence);
        let refused = server.wait_for_event(&id, |event| event["type"] == "model.refused").await;
        assert_eq!(refused["data"]["reason"], "key", "{refused}");
    }
    assert_eq!(sent_tokens_and_renewals(&upstream).0.len(), token_count, "the upstream must receive none of these");
    server.stop_and_check().await;
}
