//! Costs that a response does not report: unknown prices, streams without usage, and clients that disconnect early.

use super::{FakeUpstream, has_status, messages_arguments, run_curl, start_server, wait_for_cost};
use atoll_tests::local::event_data;
use serde_json::{Value, json};
use tokio::task::block_in_place;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_price_is_charged_at_the_highest_one_under_a_limit_and_is_never_zero() {
    let upstream = FakeUpstream::start().await;
    let server = start_server(&upstream, "");
    let limited = server.create_idle_sandbox(json!({ "limits": { "cost_usd": 1 } })).await;
    let request = messages_arguments("nobody-knows-its-price", 1);
    for _ in 0..2 {
        assert!(has_status(&run_curl(&server, &limited, &request).await, 200));
    }
    // Claude Opus 4 is the most expensive model: 1000 tokens at $15, 2000 cached at $1.50, 100 at $75.
    let row = wait_for_cost(&server, &limited, 2.0 * 0.0255).await;
    assert_eq!(row["cost"]["model_source"], "estimate", "{row}");
    let is_notice =
        |event: &Value| event["type"] == "sandbox.notice" && event["data"].to_string().contains("nobody-knows");
    let notice = server.wait_for_event(&limited, is_notice).await;
    let text = notice["data"]["text"].as_str().unwrap();
    assert!(text.contains("highest known price of anthropic") && text.contains("$75"), "{text}");
    let events = server.admin.all_events(&limited).await;
    assert_eq!(events.iter().filter(|event| is_notice(event)).count(), 1, "once per model");

    let free = server.create_idle_sandbox(json!({})).await;
    assert!(has_status(&run_curl(&server, &free, &request).await, 200));
    let row = server.wait_until(&free, |row| row["usage"]["requests"] == 1).await;
    for cost in [&row["cost"]["model"], &row["usage"]["cost"]] {
        assert_eq!(*cost, Value::Null, "{row}");
    }
    assert_eq!(row["cost"]["model_source"], "unknown", "{row}");
    let limits = server.admin.get(&format!("/sandboxes/{free}/limits")).await.expect_status(200);
    assert_eq!((&limits["cost_usd"], &limits["cost_source"]), (&Value::Null, &json!("unknown")), "{limits}");
    let session = row["session_id"].as_str().unwrap();
    let session = server.admin.get(&format!("/sessions/{session}")).await.expect_status(200);
    assert_eq!((&session["cost"], &session["cost_source"]), (&Value::Null, &json!("unknown")), "{session}");
    assert!(event_data(&server.admin.all_events(&free).await, "model.refused").is_empty());
    server.stop_and_check().await;
}

/// Each of these requests may cost $0.10.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_a_limit_a_request_without_usage_costs_what_was_reserved() {
    let upstream = FakeUpstream::start().await;
    let config = "models:\n\
        - {name: quiet, upstream: openai, price: {input: 0, output: 1000}}\n\
        - {name: streams, upstream: anthropic, price: {input: 0, output: 1000}}\n\
        - {name: trickles, upstream: anthropic, price: {input: 0, output: 1000}}\n";
    let mut server = start_server(&upstream, config);
    let id = server.create_idle_sandbox(json!({ "limits": { "cost_usd": 1 } })).await;
    let quiet = "$ATOLL_GATEWAY_URL/openai/v1/chat/completions -H \"authorization: Bearer $KEY\" \
                 -d '{\"model\":\"quiet\",\"stream\":true,\"max_tokens\":100}'";
    assert!(has_status(&run_curl(&server, &id, quiet).await, 200));
    let (_, body) = upstream.requests().pop().unwrap();
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["stream_options"], json!({ "include_usage": true }), "{body}");
    wait_for_cost(&server, &id, 0.1).await;

    // The client disconnects before the end of a stream. The gateway reads on and finds 20 output tokens.
    let early = format!("{} --max-time 0.6", messages_arguments("streams", 100));
    let response = run_curl(&server, &id, &early).await;
    assert!(response.contains("[exit 28]"), "{response}");
    wait_for_cost(&server, &id, 0.12).await;

    // This response never ends: its reserved amount counts, also after a restart.
    let endless = format!("{} --max-time 0.6", messages_arguments("trickles", 100));
    let response = run_curl(&server, &id, &endless).await;
    assert!(response.contains("[exit 28]"), "{response}");
    let refused = run_curl(&server, &id, &messages_arguments("streams", 800)).await;
    assert!(has_status(&refused, 429) && refused.contains("$0.10 is reserved for requests in flight"), "{refused}");
    block_in_place(|| {
        server.process.terminate();
        server.process.wait_for_exit();
        server.process.restart();
    });
    let row = wait_for_cost(&server, &id, 0.22).await;
    assert_eq!(row["cost"]["model_source"], "estimate", "{row}");
    server.stop_and_check().await;
}

/// Codex closes its connection after the event with the usage, before the stream's end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_after_the_last_event_pays_the_reported_usage() {
    let upstream = FakeUpstream::start().await;
    let config = "models:\n- {name: streams, upstream: anthropic, price: {input: 0, output: 1000}}\n";
    let server = start_server(&upstream, config);
    let id = server.create_idle_sandbox(json!({})).await;
    let script = format!(
        "KEY=$ATOLL_GATEWAY_KEY; curl --silent --no-buffer --output /tmp/stream {} & client=$!\n\
         until grep -qs message_delta /tmp/stream; do sleep 0.02; done; kill -9 $client",
        messages_arguments("streams", 100)
    );
    server.run_shell(&id, &script).await.expect_success();
    let row = server.wait_until(&id, |row| row["usage"]["requests"] == 1).await;
    assert_eq!((&row["usage"]["output"], &row["cost"]["model_source"]), (&json!(20), &json!("prices")), "{row}");
    server.stop_and_check().await;
}
