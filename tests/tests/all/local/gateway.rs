//! The model gateway, called with `curl` from a real sandbox without network access. The model API is a fake.

mod budget;
mod cost_limits;
mod fake_upstream;
mod login_renewal;
mod unknown_usage;

use super::network::test_sites::TlsSite;
use atoll_tests::local::{LocalServer, create_temp_dir};
use fake_upstream::FakeUpstream;
use serde_json::{Value, json};
use tokio::task::block_in_place;

const REAL_API_KEY: &str = "sk-ant-the-real-key-4711";

fn start_server(upstream: &FakeUpstream, config: &str) -> LocalServer {
    let base_url = format!("http://127.0.0.1:{}", upstream.port);
    let environment = [
        ("ANTHROPIC_BASE_URL".to_owned(), base_url.clone()),
        ("ANTHROPIC_API_KEY".to_owned(), REAL_API_KEY.to_owned()),
        ("OPENAI_BASE_URL".to_owned(), format!("{base_url}/v1")),
        ("OPENAI_API_KEY".to_owned(), REAL_API_KEY.to_owned()),
        ("GEMINI_BASE_URL".to_owned(), base_url),
        ("GEMINI_API_KEY".to_owned(), REAL_API_KEY.to_owned()),
    ];
    LocalServer::start_with_env(config, &environment)
}

/// Runs `curl` and returns the response head and body. `$KEY` is the sandbox's placeholder key.
async fn run_curl(server: &LocalServer, id: &str, arguments: &str) -> String {
    let script = format!(
        "KEY=$ATOLL_GATEWAY_KEY; curl --silent --show-error --include --max-time 20 {arguments} 2>&1; echo \"[exit $?]\""
    );
    server.run_shell(id, &script).await.expect_success()
}

fn messages_arguments(model: &str, max_tokens: u32) -> String {
    let body = json!({ "messages": [], "max_tokens": max_tokens, "model": model });
    format!("$ATOLL_GATEWAY_URL/anthropic/v1/messages?beta=true -H \"x-api-key: $KEY\" -d '{body}'")
}

fn has_status(response: &str, status: u16) -> bool {
    response.starts_with(&format!("HTTP/1.1 {status} "))
}

/// Waits until the sandbox's model cost is `dollars`.
async fn wait_for_cost(server: &LocalServer, id: &str, dollars: f64) -> Value {
    let is_reached = |row: &Value| row["cost"]["model"].as_f64().is_some_and(|cost| (cost - dollars).abs() < 1e-9);
    server.wait_until(id, is_reached).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_call_succeeds_and_the_real_key_stays_outside_the_sandbox() {
    let upstream = FakeUpstream::start().await;
    let server = start_server(&upstream, "");
    let id = server.create_idle_sandbox(json!({ "network": { "policy": "none" } })).await;
    let arguments = messages_arguments("claude-sonnet-4-5", 100) + " -H 'anthropic-beta: some-beta-1'";
    let response = run_curl(&server, &id, &arguments).await;
    assert!(
        has_status(&response, 200) && response.contains("\"text\":\"hello\"") && response.contains("request-id: req_1"),
        "{response}"
    );
    let (head, body) = upstream.requests().pop().unwrap();
    assert!(head.starts_with("post /v1/messages?beta=true http/1.1"), "{head}");
    assert!(head.contains(&format!("x-api-key: {REAL_API_KEY}\r\n")), "{head}");
    assert!(
        head.contains("anthropic-beta: some-beta-1\r\n")
            && head.contains(&format!("host: 127.0.0.1:{}", upstream.port))
    );
    assert!(body.contains("claude-sonnet-4-5"), "{body}");
    // 1000 input tokens, 2000 cached ones and 100 output tokens.
    wait_for_cost(&server, &id, 0.003 + 0.0006 + 0.0015).await;

    let placeholder = server.run_shell(&id, "echo $ATOLL_GATEWAY_KEY").await.expect_success().trim().to_owned();
    assert!(placeholder.len() > 20 && !head.contains(&placeholder.to_ascii_lowercase()), "{head}");
    // The agent cannot find the real key anywhere in the sandbox.
    let search = format!(
        "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; \
         grep -rsF {REAL_API_KEY} /workspace /home /tmp /run /etc /var 2>/dev/null"
    );
    let output = server.run_shell(&id, &search).await.stdout;
    let leaks = output.lines().filter(|line| line.contains(REAL_API_KEY) && !line.contains("grep")).collect::<Vec<_>>();
    assert!(leaks.is_empty() && output.contains(&placeholder), "{leaks:?}");

    // An upstream that echoes the request cannot give the key away, nor can a header change the method or the account.
    let foreign = "-H 'x-http-method-override: DELETE' -H 'openai-organization: org-1'";
    let echo = run_curl(&server, &id, &format!("{} {foreign}", messages_arguments("echoes", 1))).await;
    assert!(has_status(&echo, 200) && echo.contains("x-api-key: ****") && echo.contains("x-echo: ****"), "{echo}");
    assert!(!echo.contains(REAL_API_KEY) && !echo.contains("override") && !echo.contains("org-1"), "{echo}");

    // The egress proxy forwards to the same gateway.
    let by_proxy = messages_arguments("claude-sonnet-4-5", 1) + " --noproxy ''";
    assert!(has_status(&run_curl(&server, &id, &by_proxy).await, 200));
    let bearer = messages_arguments("claude-sonnet-4-5", 1).replace("x-api-key: ", "authorization: Bearer ");
    assert!(has_status(&run_curl(&server, &id, &bearer).await, 200));
    assert_eq!(upstream.connections(), 1, "connections must be reused");

    let request_count = upstream.requests().len();
    let other = server.create_idle_sandbox(json!({})).await;
    let foreign = messages_arguments("m", 1).replace("$KEY", &placeholder);
    for (key, sandbox, arguments) in [
        ("another sandbox's key", &other, foreign),
        ("an invented key", &id, messages_arguments("m", 1).replace("$KEY", "sk-ant-x")),
        ("no key", &id, messages_arguments("m", 1).replace("x-api-key", "x-nothing")),
        ("the real key", &id, messages_arguments("m", 1).replace("$KEY", REAL_API_KEY)),
    ] {
        let response = run_curl(&server, sandbox, &arguments).await;
        assert!(has_status(&response, 401) && response.contains("\"authentication_error\""), "{key}: {response}");
    }
    // The key gives access to models only, not to the rest of the account.
    let files = run_curl(&server, &id, "$ATOLL_GATEWAY_URL/anthropic/v1/files -H \"x-api-key: $KEY\"").await;
    assert!(has_status(&files, 404) && files.contains("not_found_error"), "{files}");
    let nothing = run_curl(&server, &id, "$ATOLL_GATEWAY_URL/").await;
    assert!(has_status(&nothing, 400), "{nothing}");
    assert_eq!(upstream.requests().len(), request_count, "the gateway must send none of these");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_stream_through_and_disconnects_reach_the_upstream() {
    let upstream = FakeUpstream::start().await;
    let server = start_server(&upstream, "");
    let id = server.create_idle_sandbox(json!({ "network": { "policy": "none" } })).await;
    let busy = run_curl(&server, &id, &messages_arguments("is-busy", 1)).await;
    assert!(
        has_status(&busy, 429) && busy.contains("retry-after: 7\r\n") && busy.contains("request-id: req_9"),
        "{busy}"
    );
    assert!(busy.contains("rate_limit_error"), "{busy}");

    // Prefixes each line with its arrival time.
    let script = "KEY=$ATOLL_GATEWAY_KEY; curl -sN ".to_owned()
        + &messages_arguments("streams", 1)
        + " | while read -r line; do echo \"$(date +%s%3N) $line\"; done";
    let lines = server.run_shell(&id, &script).await.expect_success();
    let arrival_of = |text: &str| -> u64 {
        let line = lines.lines().find(|line| line.contains(text)).unwrap_or_else(|| panic!("{text}: {lines}"));
        line.split(' ').next().unwrap().parse().unwrap()
    };
    let (first, second, third) = (
        arrival_of("data: {\"type\":\"message_start\""),
        arrival_of("bit by bit"),
        arrival_of("\"message_delta\",\"usage\""),
    );
    let least = fake_upstream::PIECE_INTERVAL.as_millis() as u64 / 2;
    assert!(second - first > least && third - second > least, "pieces must arrive one by one: {lines}");

    // The client disconnects before the response and in the middle of it, directly and through the proxy.
    for (model, noproxy, count) in [("hangs", "*", 1), ("trickles", "*", 2), ("hangs", "", 3), ("trickles", "", 4)] {
        let response =
            run_curl(&server, &id, &format!("{} --noproxy '{noproxy}' --max-time 1", messages_arguments(model, 1)))
                .await;
        assert!(response.contains("[exit 28]"), "{response}");
        upstream.wait_for_disconnects(count).await;
    }
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cost_limit_applies_before_a_request_is_sent_and_after_a_restart() {
    let upstream = FakeUpstream::start().await;
    let mut server = start_server(&upstream, "");
    let id = server.create_idle_sandbox(json!({ "limits": { "cost_usd": 0.02 } })).await;
    let large = run_curl(&server, &id, &messages_arguments("claude-sonnet-4-5", 2000)).await;
    assert!(
        has_status(&large, 429) && large.contains("rate_limit_error") && large.contains("limits.cost_usd is $0.02"),
        "{large}"
    );
    assert!(large.contains("x-should-retry: true"), "{large}");
    assert_eq!(upstream.requests().len(), 0, "the gateway must not send it");
    let refused = server
        .wait_for_event(&id, |event| event["type"] == "model.refused" && event["data"]["reason"] == "budget")
        .await;
    assert!(refused["data"]["detail"].as_str().unwrap().contains("up to $0.03"), "{refused}");

    // Two requests at once, with budget for one of them: 800 tokens may cost $0.012.
    let one = messages_arguments("claude-sonnet-4-5", 800).replace("\"messages\":[]", "\"messages\":[\"streams\"]");
    let script = format!(
        "KEY=$ATOLL_GATEWAY_KEY; for i in 1 2; do curl -s -o /dev/null -w '%{{http_code}}\\n' {one} & done; wait"
    );
    let mut codes: Vec<String> =
        server.run_shell(&id, &script).await.expect_success().lines().map(str::to_owned).collect();
    codes.sort_unstable();
    assert_eq!(codes, ["200", "429"]);
    // 10 input tokens, 20 output tokens.
    wait_for_cost(&server, &id, 0.00033).await;
    assert!(has_status(&run_curl(&server, &id, &messages_arguments("claude-sonnet-4-5", 100)).await, 200));
    wait_for_cost(&server, &id, 0.00543).await;

    block_in_place(|| {
        server.process.kill();
        server.process.restart();
    });
    let row = wait_for_cost(&server, &id, 0.00543).await;
    assert!(
        has_status(&run_curl(&server, &id, &messages_arguments("claude-sonnet-4-5", 800)).await, 200),
        "the placeholder must stay valid"
    );
    wait_for_cost(&server, &id, 0.01053).await;
    let response = run_curl(&server, &id, &messages_arguments("claude-sonnet-4-5", 800)).await;
    assert!(has_status(&response, 429) && response.contains("$0.010530 is spent"), "{response}");
    let session = row["session_id"].as_str().unwrap();
    let session = server.admin.get(&format!("/sessions/{session}")).await.expect_status(200);
    assert!((session["cost"].as_f64().unwrap() - 0.01053).abs() < 1e-9, "{session}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_configured_models_are_allowed_and_every_api_works() {
    let upstream = FakeUpstream::start().await;
    let config = "models:\n\
        - {name: big, upstream: anthropic, model: claude-large-9, price: {input: 10, output: 50}}\n\
        - {name: chatty, upstream: openai, price: {input: 1, output: 2, cache_read: 0.5}}\n\
        - {name: quick, upstream: gemini, model: gemini-quick-3}\n";
    let server = start_server(&upstream, config);
    let id = server.create_idle_sandbox(json!({})).await;
    let other = run_curl(&server, &id, &messages_arguments("claude-sonnet-4-5", 1)).await;
    assert!(
        has_status(&other, 400) && other.contains("does not allow the model") && other.contains("big, chatty, quick"),
        "{other}"
    );
    let wrong = run_curl(&server, &id, &messages_arguments("chatty", 1)).await;
    assert!(has_status(&wrong, 400) && wrong.contains("served by the openai API"), "{wrong}");
    let double =
        run_curl(&server, &id, &messages_arguments("big", 1).replace("-d '{", "-d '{\"model\":\"claude-sonnet-4-5\","))
            .await;
    assert!(has_status(&double, 400), "{double}");
    assert_eq!(upstream.requests().len(), 0);

    assert!(has_status(&run_curl(&server, &id, &messages_arguments("big", 1)).await, 200));
    let (_, body) = upstream.requests().pop().unwrap();
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["model"], "claude-large-9");
    let bearer = "-H \"authorization: Bearer $KEY\"";
    let chat = format!("$ATOLL_GATEWAY_URL/openai/v1/chat/completions {bearer} -d '{{\"model\":\"chatty\"}}'");
    assert!(has_status(&run_curl(&server, &id, &chat).await, 200));
    let (head, _) = upstream.requests().pop().unwrap();
    assert!(
        head.starts_with("post /v1/chat/completions ") && head.contains(&format!("bearer {REAL_API_KEY}\r\n")),
        "{head}"
    );
    // Prices per million tokens: 1000 + 2000 cached at $10, 100 at $50; 20 at $1, 10 at $0.5, 7 at $2.
    let row = wait_for_cost(&server, &id, 0.035 + 0.000_039).await;
    assert_eq!(row["cost"]["model_source"], "prices", "{row}");
    let gemini = "\"$ATOLL_GATEWAY_URL/gemini/v1beta/models/quick:generateContent?key=$KEY&x=1\" -d '{}'";
    assert!(has_status(&run_curl(&server, &id, gemini).await, 200));
    let (head, _) = upstream.requests().pop().unwrap();
    assert!(head.starts_with("post /v1beta/models/gemini-quick-3:generatecontent?x=1 "), "{head}");
    assert!(head.contains(&format!("x-goog-api-key: {REAL_API_KEY}\r\n")), "{head}");
    // The price of the third model is unknown, and so is the sum.
    let row = server.wait_until(&id, |row| row["usage"]["requests"] == 3).await;
    assert_eq!((&row["cost"]["model"], &row["cost"]["model_source"]), (&Value::Null, &json!("unknown")), "{row}");
    let usage = &row["usage"];
    assert_eq!((&usage["input"], &usage["output"]), (&json!(1000 + 20 + 8), &json!(100 + 7 + 6)), "{usage}");
    assert_eq!(usage["cache_read"], 2000 + 10, "{usage}");
    let project = row["project_id"].as_str().unwrap();
    let project = server.admin.get(&format!("/projects/{project}")).await.expect_status(200);
    assert_eq!((&project["usage"]["requests"], &project["usage"]["cost"]), (&json!(3), &Value::Null), "{project}");
    server.stop_and_check().await;
}

/// The key of an upstream can be a stored secret, bound to the upstream's host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_project_key_takes_precedence_over_the_servers_key() {
    let upstream = FakeUpstream::start().await;
    let address = format!("127.0.0.1:{}", upstream.port);
    let config = format!(
        "upstreams:\n  elsewhere: {{kind: openai, url: \"http://{address}/other\", key_secret: OTHER_KEY}}\n\
         models:\n- {{name: claude-sonnet-4-5, upstream: anthropic}}\n- {{name: far, upstream: elsewhere}}\n"
    );
    let server = start_server(&upstream, &config);
    let mut ids = Vec::new();
    for (project, bound) in [("own", address.as_str()), ("strange", "api.example.org")] {
        let project = server.admin.post("/projects", json!({ "name": project })).await.expect_status(201)["id"].clone();
        let secret = json!({ "value": "sk-ant-of-the-project", "project_id": project, "upstreams": [bound] });
        server.admin.put("/secrets/ANTHROPIC_API_KEY", secret).await.expect_status(201);
        ids.push(server.create_idle_sandbox(json!({ "project_id": project })).await);
    }
    for (id, key) in ids.iter().zip(["sk-ant-of-the-project", REAL_API_KEY]) {
        assert!(has_status(&run_curl(&server, id, &messages_arguments("claude-sonnet-4-5", 1)).await, 200));
        let (head, _) = upstream.requests().pop().unwrap();
        assert!(head.contains(&format!("x-api-key: {key}\r\n")), "{head}");
    }

    let far = "$ATOLL_GATEWAY_URL/openai/v1/responses -H \"authorization: Bearer $KEY\" -d '{\"model\":\"far\"}'";
    let response = run_curl(&server, &ids[0], far).await;
    assert!(has_status(&response, 403) && response.contains("`atoll secret set OTHER_KEY`"), "{response}");
    assert_eq!(upstream.requests().len(), 2, "no request without a key");
    // The name of an upstream's key binds the secret to that upstream.
    let secret = json!({ "value": "sk-of-the-deployment" });
    let secret = server.admin.put("/secrets/OTHER_KEY", secret).await.expect_status(201);
    assert_eq!(secret["upstreams"], json!([address]));
    let other = server.admin.put("/secrets/UNRELATED_KEY", json!({ "value": "sk-other" })).await.expect_status(201);
    assert_eq!(other["upstreams"], json!([]), "no other secret is bound");
    // Use the other project: the gateway caches the first one's failed lookup for a moment.
    assert!(has_status(&run_curl(&server, &ids[1], far).await, 200));
    let (head, _) = upstream.requests().pop().unwrap();
    assert!(head.starts_with("post /other/responses ") && head.contains("bearer sk-of-the-deployment\r\n"), "{head}");
    server.stop_and_check().await;
}

/// A trusted certificate, a trusted one for another name, and an untrusted one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_over_tls_must_have_a_valid_certificate() {
    let dir = create_temp_dir("atoll-tls-");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let site = TlsSite::start(dir.path(), "127.0.0.1", port).await;
    let trusted = dir.path().join("certificate.pem").to_str().unwrap().to_owned();
    for (certificates, name, status) in
        [(Some(&trusted), "localhost", 200), (Some(&trusted), "127.0.0.1", 502), (None, "localhost", 502)]
    {
        let mut environment = vec![("ANTHROPIC_BASE_URL".to_owned(), format!("https://{name}:{}", site.port))];
        environment.extend(certificates.map(|file| ("SSL_CERT_FILE".to_owned(), file.clone())));
        let server = LocalServer::start_with_env("", &environment);
        let id = server.create_idle_sandbox(json!({})).await;
        let response = run_curl(&server, &id, "$ATOLL_GATEWAY_URL/anthropic/v1/models -H \"x-api-key: $KEY\"").await;
        assert!(has_status(&response, status), "{certificates:?} {name}: {response}");
        assert!(
            status == 200
                || (response.contains("Atoll cannot reach ") && response.contains(": invalid peer certificate")),
            "{response}"
        );
        server.stop_and_check().await;
    }
}
