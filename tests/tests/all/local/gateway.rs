//! Models from inside of a sandbox whose network policy lets nothing out: a real sandbox, `curl` in it, and a model's
//! API of the test outside.

mod budget;
mod logins;
mod money;
mod upstream;

use super::network::serving::TlsSite;
use atoll_tests::local::{Ground, PATIENCE, directory};
use serde_json::{Value, json};
use std::time::Instant;
use tokio::task::block_in_place;
use upstream::Upstream;

const REAL: &str = "sk-ant-the-real-key-4711";

fn ground(upstream: &Upstream, config: &str) -> Ground {
    let place = format!("http://127.0.0.1:{}", upstream.port);
    let environment = [
        ("ANTHROPIC_BASE_URL".to_owned(), place.clone()),
        ("ANTHROPIC_API_KEY".to_owned(), REAL.to_owned()),
        ("OPENAI_BASE_URL".to_owned(), format!("{place}/v1")),
        ("OPENAI_API_KEY".to_owned(), REAL.to_owned()),
        ("GEMINI_BASE_URL".to_owned(), place),
        ("GEMINI_API_KEY".to_owned(), REAL.to_owned()),
    ];
    Ground::start_in(config, &environment)
}

/// `curl` with the answer's head before its body. `$KEY` is the sandbox's placeholder.
async fn curl(ground: &Ground, id: &str, arguments: &str) -> String {
    let script = format!(
        "KEY=$ATOLL_GATEWAY_KEY; curl --silent --show-error --include --max-time 20 {arguments} 2>&1; echo \"[exit $?]\""
    );
    ground.shell(id, &script).await.well()
}

fn messages(model: &str, most: u32) -> String {
    let body = json!({ "messages": [], "max_tokens": most, "model": model });
    format!("$ATOLL_GATEWAY_URL/anthropic/v1/messages?beta=true -H \"x-api-key: $KEY\" -d '{body}'")
}

fn is(answer: &str, status: u16) -> bool {
    answer.starts_with(&format!("HTTP/1.1 {status} "))
}

/// Waits until the sandbox has cost that much.
async fn costs(ground: &Ground, id: &str, dollars: f64) -> Value {
    ground.until(id, |row| (row["cost"]["model"].as_f64().unwrap() - dollars).abs() < 1e-9).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_is_reached_and_its_key_stays_outside() {
    let upstream = Upstream::start().await;
    let ground = ground(&upstream, "");
    let id = ground.kept(json!({ "network": { "policy": "none" } })).await;
    let arguments = messages("claude-sonnet-4-5", 100) + " -H 'anthropic-beta: some-beta-1'";
    let answer = curl(&ground, &id, &arguments).await;
    assert!(
        is(&answer, 200) && answer.contains("\"text\":\"hello\"") && answer.contains("request-id: req_1"),
        "{answer}"
    );
    let (head, body) = upstream.requests().pop().unwrap();
    assert!(head.starts_with("post /v1/messages?beta=true http/1.1"), "{head}");
    assert!(head.contains(&format!("x-api-key: {REAL}\r\n")), "{head}");
    assert!(
        head.contains("anthropic-beta: some-beta-1\r\n")
            && head.contains(&format!("host: 127.0.0.1:{}", upstream.port))
    );
    assert!(body.contains("claude-sonnet-4-5"), "{body}");
    // 1000 new ones, 2000 from a cache, 100 written.
    costs(&ground, &id, 0.003 + 0.0006 + 0.0015).await;

    let placeholder = ground.shell(&id, "echo $ATOLL_GATEWAY_KEY").await.well().trim().to_owned();
    assert!(placeholder.len() > 20 && !head.contains(&placeholder.to_ascii_lowercase()), "{head}");
    // Nowhere inside, as far as anybody there can look.
    let look = format!(
        "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; \
         grep -rsF {REAL} /workspace /home /tmp /run /etc /var 2>/dev/null"
    );
    let seen = ground.shell(&id, &look).await.stdout;
    let own = seen.lines().filter(|line| line.contains(REAL) && !line.contains("grep")).collect::<Vec<_>>();
    assert!(own.is_empty() && seen.contains(&placeholder), "{own:?}");

    // By way of the proxy it is the same place.
    let by_proxy = messages("claude-sonnet-4-5", 1) + " --noproxy ''";
    assert!(is(&curl(&ground, &id, &by_proxy).await, 200));
    let bearer = messages("claude-sonnet-4-5", 1).replace("x-api-key: ", "authorization: Bearer ");
    assert!(is(&curl(&ground, &id, &bearer).await, 200));
    assert_eq!(upstream.connections(), 1, "connections are used again");

    let heard = upstream.requests().len();
    let other = ground.kept(json!({})).await;
    let foreign = messages("m", 1).replace("$KEY", &placeholder);
    for (what, sandbox, arguments) in [
        ("another sandbox's", &other, foreign),
        ("a made up one", &id, messages("m", 1).replace("$KEY", "sk-ant-x")),
        ("none", &id, messages("m", 1).replace("x-api-key", "x-nothing")),
        ("the real one", &id, messages("m", 1).replace("$KEY", REAL)),
    ] {
        let answer = curl(&ground, sandbox, &arguments).await;
        assert!(is(&answer, 401) && answer.contains("\"authentication_error\""), "{what}: {answer}");
    }
    // A key is good for models, and not for what else an account has.
    let files = curl(&ground, &id, "$ATOLL_GATEWAY_URL/anthropic/v1/files -H \"x-api-key: $KEY\"").await;
    assert!(is(&files, 404) && files.contains("not_found_error"), "{files}");
    let nothing = curl(&ground, &id, "$ATOLL_GATEWAY_URL/").await;
    assert!(is(&nothing, 400), "{nothing}");
    assert_eq!(upstream.requests().len(), heard, "nothing of that was sent");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_pass_as_they_come() {
    let upstream = Upstream::start().await;
    let ground = ground(&upstream, "");
    let id = ground.kept(json!({ "network": { "policy": "none" } })).await;
    let busy = curl(&ground, &id, &messages("is-busy", 1)).await;
    assert!(is(&busy, 429) && busy.contains("retry-after: 7\r\n") && busy.contains("request-id: req_9"), "{busy}");
    assert!(busy.contains("rate_limit_error"), "{busy}");

    // Each line with the time at which it came.
    let script = "KEY=$ATOLL_GATEWAY_KEY; curl -sN ".to_owned()
        + &messages("streams", 1)
        + " | while read -r line; do echo \"$(date +%s%3N) $line\"; done";
    let lines = ground.shell(&id, &script).await.well();
    let at = |what: &str| -> u64 {
        let line = lines.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{what}: {lines}"));
        line.split(' ').next().unwrap().parse().unwrap()
    };
    let (first, second, third) =
        (at("data: {\"type\":\"message_start\""), at("bit by bit"), at("\"message_delta\",\"usage\""));
    let least = upstream::PAUSE.as_millis() as u64 / 2;
    assert!(second - first > least && third - second > least, "piece by piece: {lines}");

    // The client goes before the answer, and in the middle of one; also where it came by way of the proxy.
    for (model, way, count) in [("hangs", "*", 1), ("trickles", "*", 2), ("hangs", "", 3), ("trickles", "", 4)] {
        let answer = curl(&ground, &id, &format!("{} --noproxy '{way}' --max-time 1", messages(model, 1))).await;
        assert!(answer.contains("[exit 28]"), "{answer}");
        upstream.gone(count).await;
    }
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_holds_before_anything_is_sent_and_after_a_restart() {
    let upstream = Upstream::start().await;
    let mut ground = ground(&upstream, "");
    let id = ground.kept(json!({ "limits": { "cost_usd": 0.02 } })).await;
    let unknown = curl(&ground, &id, &messages("nobody-knows-its-price", 1)).await;
    assert!(is(&unknown, 402) && unknown.contains("limits.cost_usd") && unknown.contains("price"), "{unknown}");
    let large = curl(&ground, &id, &messages("claude-sonnet-4-5", 2000)).await;
    assert!(
        is(&large, 429) && large.contains("rate_limit_error") && large.contains("limits.cost_usd is $0.02"),
        "{large}"
    );
    assert!(large.contains("x-should-retry: true"), "{large}");
    assert_eq!(upstream.requests().len(), 0, "nothing of that was sent");
    let told = ground.event(&id, |event| event["type"] == "model.refused" && event["data"]["reason"] == "budget").await;
    assert!(told["data"]["detail"].as_str().unwrap().contains("up to $0.03"), "{told}");

    // Two at once, each with room for itself alone: 800 tokens may cost $0.012.
    let one = messages("claude-sonnet-4-5", 800).replace("\"messages\":[]", "\"messages\":[\"streams\"]");
    let script = format!(
        "KEY=$ATOLL_GATEWAY_KEY; for i in 1 2; do curl -s -o /dev/null -w '%{{http_code}}\\n' {one} & done; wait"
    );
    let mut codes: Vec<String> = ground.shell(&id, &script).await.well().lines().map(str::to_owned).collect();
    codes.sort_unstable();
    assert_eq!(codes, ["200", "429"]);
    // 10 in, 20 out.
    costs(&ground, &id, 0.00033).await;
    assert!(is(&curl(&ground, &id, &messages("claude-sonnet-4-5", 100)).await, 200));
    costs(&ground, &id, 0.00543).await;

    block_in_place(|| {
        ground.server.kill();
        ground.server.start_again();
    });
    let row = costs(&ground, &id, 0.00543).await;
    assert!(is(&curl(&ground, &id, &messages("claude-sonnet-4-5", 800)).await, 200), "the placeholder is still good");
    costs(&ground, &id, 0.01053).await;
    let over = curl(&ground, &id, &messages("claude-sonnet-4-5", 800)).await;
    assert!(is(&over, 429) && over.contains("$0.010530 is spent"), "{over}");
    let session = row["session_id"].as_str().unwrap();
    let session = ground.admin.get(&format!("/sessions/{session}")).await.expect(200);
    assert!((session["cost"].as_f64().unwrap() - 0.01053).abs() < 1e-9, "{session}");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listed_models_are_the_only_ones_and_every_api_is_spoken() {
    let upstream = Upstream::start().await;
    let config = "models:\n\
        - {name: big, upstream: anthropic, model: claude-large-9, price: {input: 10, output: 50}}\n\
        - {name: chatty, upstream: openai, price: {input: 1, output: 2, cache_read: 0.5}}\n\
        - {name: quick, upstream: gemini, model: gemini-quick-3}\n";
    let ground = ground(&upstream, config);
    let id = ground.kept(json!({})).await;
    let other = curl(&ground, &id, &messages("claude-sonnet-4-5", 1)).await;
    assert!(is(&other, 400) && other.contains("not among") && other.contains("big, chatty, quick"), "{other}");
    let wrong = curl(&ground, &id, &messages("chatty", 1)).await;
    assert!(is(&wrong, 400) && wrong.contains("API of openai"), "{wrong}");
    let double =
        curl(&ground, &id, &messages("big", 1).replace("-d '{", "-d '{\"model\":\"claude-sonnet-4-5\",")).await;
    assert!(is(&double, 400), "{double}");
    assert_eq!(upstream.requests().len(), 0);

    assert!(is(&curl(&ground, &id, &messages("big", 1)).await, 200));
    let (_, body) = upstream.requests().pop().unwrap();
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["model"], "claude-large-9");
    let bearer = "-H \"authorization: Bearer $KEY\"";
    let chat = format!("$ATOLL_GATEWAY_URL/openai/v1/chat/completions {bearer} -d '{{\"model\":\"chatty\"}}'");
    assert!(is(&curl(&ground, &id, &chat).await, 200));
    let (head, _) = upstream.requests().pop().unwrap();
    assert!(head.starts_with("post /v1/chat/completions ") && head.contains(&format!("bearer {REAL}\r\n")), "{head}");
    let gemini = "\"$ATOLL_GATEWAY_URL/gemini/v1beta/models/quick:generateContent?key=$KEY&x=1\" -d '{}'";
    assert!(is(&curl(&ground, &id, gemini).await, 200));
    let (head, _) = upstream.requests().pop().unwrap();
    assert!(head.starts_with("post /v1beta/models/gemini-quick-3:generatecontent?x=1 "), "{head}");
    assert!(head.contains(&format!("x-goog-api-key: {REAL}\r\n")), "{head}");
    // 1000 and 2000 of a cache for $10, 100 for $50; 20 for $1, 10 for $0.5, 7 for $2; the last has no price.
    let row = costs(&ground, &id, 0.035 + 0.000_039).await;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let usage = &ground.row(&id).await["usage"];
        if usage["requests"] == 3 {
            assert_eq!((&usage["input"], &usage["output"]), (&json!(1000 + 20 + 8), &json!(100 + 7 + 6)), "{usage}");
            assert_eq!(usage["cache_read"], 2000 + 10, "{usage}");
            break;
        }
        assert!(Instant::now() < deadline, "{usage}");
    }
    let project = row["project_id"].as_str().unwrap();
    let project = ground.admin.get(&format!("/projects/{project}")).await.expect(200);
    assert_eq!((&project["usage"]["requests"], &project["usage"]["cost"]), (&json!(3), &json!(0.035_039)), "{project}");
    ground.leave().await;
}

/// A stored secret that is the key of an upstream, and bound to its host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_project_s_own_key_goes_before_the_server_s() {
    let upstream = Upstream::start().await;
    let place = format!("127.0.0.1:{}", upstream.port);
    let config = format!(
        "upstreams:\n  elsewhere: {{kind: openai, url: \"http://{place}/other\", key_secret: OTHER_KEY}}\n\
         models:\n- {{name: claude-sonnet-4-5, upstream: anthropic}}\n- {{name: far, upstream: elsewhere}}\n"
    );
    let ground = ground(&upstream, &config);
    let mut ids = Vec::new();
    for (project, bound) in [("own", place.as_str()), ("strange", "api.example.org")] {
        let project = ground.admin.post("/projects", json!({ "name": project })).await.expect(201)["id"].clone();
        let secret = json!({ "value": "sk-ant-of-the-project", "project_id": project, "upstreams": [bound] });
        ground.admin.put("/secrets/ANTHROPIC_API_KEY", secret).await.expect(201);
        ids.push(ground.kept(json!({ "project_id": project })).await);
    }
    for (id, key) in ids.iter().zip(["sk-ant-of-the-project", REAL]) {
        assert!(is(&curl(&ground, id, &messages("claude-sonnet-4-5", 1)).await, 200));
        let (head, _) = upstream.requests().pop().unwrap();
        assert!(head.contains(&format!("x-api-key: {key}\r\n")), "{head}");
    }

    let far = "$ATOLL_GATEWAY_URL/openai/v1/responses -H \"authorization: Bearer $KEY\" -d '{\"model\":\"far\"}'";
    let answer = curl(&ground, &ids[0], far).await;
    let command = format!("atoll secret set OTHER_KEY --upstream {place}");
    assert!(is(&answer, 403) && answer.contains(&command), "{answer}");
    assert_eq!(upstream.requests().len(), 2, "nothing is asked without a key");
    let secret = json!({ "value": "sk-of-the-deployment", "upstreams": [place] });
    ground.admin.put("/secrets/OTHER_KEY", secret).await.expect(201);
    // What was found a moment ago counts a moment longer.
    assert!(is(&curl(&ground, &ids[1], far).await, 200));
    let (head, _) = upstream.requests().pop().unwrap();
    assert!(head.starts_with("post /other/responses ") && head.contains("bearer sk-of-the-deployment\r\n"), "{head}");
    ground.leave().await;
}

/// Over TLS, with an authority that the machine trusts, and with one that it does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_over_tls_is_who_it_says() {
    let dir = directory("atoll-tls-");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let site = TlsSite::start(dir.path(), "127.0.0.1", port).await;
    let trusted = dir.path().join("certificate.pem").to_str().unwrap().to_owned();
    for (certificates, name, status) in
        [(Some(&trusted), "localhost", 200), (Some(&trusted), "127.0.0.1", 502), (None, "localhost", 502)]
    {
        let mut environment = vec![("ANTHROPIC_BASE_URL".to_owned(), format!("https://{name}:{}", site.port))];
        environment.extend(certificates.map(|file| ("SSL_CERT_FILE".to_owned(), file.clone())));
        let ground = Ground::start_in("", &environment);
        let id = ground.kept(json!({})).await;
        let answer = curl(&ground, &id, "$ATOLL_GATEWAY_URL/anthropic/v1/models -H \"x-api-key: $KEY\"").await;
        assert!(is(&answer, status), "{certificates:?} {name}: {answer}");
        assert!(status == 200 || answer.contains("can't be reached by Atoll: invalid peer certificate"), "{answer}");
        ground.leave().await;
    }
}
