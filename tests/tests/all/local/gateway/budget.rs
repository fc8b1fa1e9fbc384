//! A project's budget: all its sandboxes share it, pause when it is spent, and resume when it grows.

use super::{FakeUpstream, has_status, messages_arguments, run_curl, start_server, wait_for_cost};
use atoll_core::budget::BudgetPause;
use atoll_store::{DatabaseLocation, Error, Store, budgets};
use atoll_test_wait::{poll_until, try_poll_for};
use atoll_tests::local::{LocalServer, agent_messages, event_data};
use serde_json::{Value, json};
use tokio::task::block_in_place;

async fn create_project(server: &LocalServer, budget: Value) -> String {
    let body = json!({ "name": "parser", "budget": budget });
    let created = server.admin.post("/projects", body).await.expect_status(201);
    created["id"].as_str().unwrap().to_owned()
}

fn is_near(value: &Value, dollars: f64) -> bool {
    (value.as_f64().unwrap() - dollars).abs() < 1e-9
}

/// One request costs $0.0051. Its estimate before the call is $0.0016.
fn request_command() -> String {
    format!(
        "curl -sf -o /dev/null {}",
        messages_arguments("claude-sonnet-4-5", 100).replace("$KEY", "$ATOLL_GATEWAY_KEY")
    )
}

fn limit_events(events: &[Value]) -> Vec<&str> {
    events.iter().filter_map(|event| event["type"].as_str()?.strip_prefix("limit.")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_share_the_project_budget_and_resume_when_it_is_raised() {
    let upstream = FakeUpstream::start().await;
    let mut server = start_server(&upstream, "");
    let project = create_project(&server, json!({ "usd": 0.011 })).await;
    let path = format!("/projects/{project}");
    let first = server.create_idle_sandbox(json!({ "project_id": project })).await;
    assert!(has_status(&run_curl(&server, &first, &messages_arguments("claude-sonnet-4-5", 100)).await, 200));
    wait_for_cost(&server, &first, 0.0051).await;

    let request = request_command();
    let prompt = format!("run {request}\nwait 1\nrun until {request}; do sleep 0.2; done\nsay done");
    let second = server.create_sandbox(json!({ "project_id": project, "prompt": prompt })).await;
    let paused = server.wait_for_event(&second, |event| event["type"] == "limit.paused").await;
    let data = &paused["data"];
    assert_eq!(
        (&data["limit"], &data["per"], &data["project_id"]),
        (&json!("project_budget"), &json!("month"), &json!(project))
    );
    assert!(is_near(&data["used"], 0.0102) && data["until"].is_string(), "{data}");
    let row = server.wait_until(&second, |row| row["activity"] == "limit_paused").await;
    assert_eq!((&row["state"], &row["limit_paused"]), (&json!("running"), &json!("project_budget")), "{row}");
    let refused = server.wait_for_event(&second, |event| event["type"] == "model.refused").await;
    let detail = refused["data"]["detail"].as_str().unwrap();
    let raise = format!("`atoll project budget {project} …`");
    for part in
        ["project parser", "$0.011000 a month", "$0.010200 is spent this month", "a new period starts at", &raise]
    {
        assert!(detail.contains(part), "{part}: {refused}");
    }
    assert_eq!(refused["data"]["reason"], "budget");

    server.wait_for_event(&second, |event| event["type"] == "limit.warned").await;
    let request_count = upstream.requests().len();
    let refusal = run_curl(&server, &first, &messages_arguments("claude-sonnet-4-5", 100)).await;
    assert!(
        has_status(&refusal, 429) && refusal.contains("rate_limit_error") && refusal.contains(&project),
        "{refusal}"
    );
    server.wait_until(&first, |row| row["limit_paused"] == "project_budget").await;
    block_in_place(|| {
        server.process.kill();
        server.process.restart();
    });
    let refusal = run_curl(&server, &first, &messages_arguments("claude-sonnet-4-5", 100)).await;
    assert!(has_status(&refusal, 429) && refusal.contains("$0.010200 is spent"), "{refusal}");
    assert_eq!(upstream.requests().len(), request_count, "the gateway must send none of these");
    let project_view = server.admin.get(&path).await.expect_status(200);
    let budget = &project_view["budget"];
    assert!(is_near(&budget["spent"], 0.0102) && is_near(&budget["left"], 0.0008), "{project_view}");
    // A lower budget does not resume the agent.
    server.admin.patch(&path, json!({ "budget": { "usd": 0.01 } })).await.expect_status(200);
    assert_eq!(server.get_sandbox(&first).await["limit_paused"], "project_budget");

    let raised = server.admin.patch(&path, json!({ "budget": { "usd": 0.5 } })).await.expect_status(200);
    assert_eq!(raised["budget"]["per"], "month", "an omitted field must stay: {raised}");
    assert_eq!(server.get_sandbox(&first).await["limit_paused"], Value::Null, "at once");
    assert!(has_status(&run_curl(&server, &first, &messages_arguments("claude-sonnet-4-5", 100)).await, 200));
    let row = server.wait_until_ended(&second).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let events = server.admin.all_events(&second).await;
    assert_eq!(limit_events(&events), ["warned", "paused", "resumed"]);
    assert!(agent_messages(&events).iter().any(|text| text.contains("this project's $0.011 for models")));
    let events = server.admin.all_events(&first).await;
    assert_eq!(limit_events(&events), ["paused", "resumed"], "{events:#?}");

    for (wrong, message) in [
        (json!({ "usd": 0 }), "budget.usd"),
        (json!({ "usd": -3 }), "budget.usd"),
        (json!({ "usd": 5, "per": "week" }), "expected one of `day`, `month`, `ever`"),
        (json!({ "per": "day" }), "missing field `usd`"),
        (json!([5]), "expected an object"),
    ] {
        let response = server.admin.patch(&path, json!({ "budget": wrong })).await;
        assert!(response.status == 422 || response.status == 400, "{message}: {}", response.body);
        assert!(response.body.to_string().contains(message), "{message}: {}", response.body);
    }
    let none = server.admin.patch(&path, json!({ "budget": null })).await.expect_status(200);
    assert_eq!(none["budget"], Value::Null, "{none}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_flight_count_against_the_budget_of_other_sandboxes() {
    let upstream = FakeUpstream::start().await;
    let server = start_server(&upstream, "");
    // 800 tokens may cost $0.012: the budget allows one request at a time.
    let project = create_project(&server, json!({ "usd": 0.02, "per": "ever" })).await;
    let first = server.create_idle_sandbox(json!({ "project_id": project })).await;
    let second = server.create_idle_sandbox(json!({ "project_id": project })).await;
    let hangs = messages_arguments("claude-sonnet-4-5", 800).replace("\"messages\":[]", "\"messages\":[\"hangs\"]");
    let script = format!(
        "KEY=$ATOLL_GATEWAY_KEY; curl -s {hangs} & until [ -e /workspace/enough ]; do sleep 0.1; done; kill $!; wait; true"
    );
    let hanging = server.run_shell(&first, &script);
    let other = async {
        poll_until("the request in flight", async || !upstream.requests().is_empty()).await;
        let response = run_curl(&server, &second, &messages_arguments("claude-sonnet-4-5", 800)).await;
        assert!(has_status(&response, 429) && response.contains("is reserved for requests in flight"), "{response}");
        server.run_shell(&first, "touch /workspace/enough").await.expect_success();
    };
    let (ran, ()) = tokio::join!(hanging, other);
    ran.expect_success();
    // The client is gone, but the cost of its request is unknown: the reservation stays.
    let response = run_curl(&server, &second, &messages_arguments("claude-sonnet-4-5", 800)).await;
    assert!(has_status(&response, 429) && response.contains("is reserved for requests in flight"), "{response}");
    let events = server.admin.all_events(&second).await;
    assert!(limit_events(&events).iter().all(|what| *what != "paused"), "a reservation must not pause: {events:#?}");
    server.stop_and_check().await;
}

/// The server is down when the day ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_day_resumes_an_agent_paused_by_a_daily_budget() {
    let upstream = FakeUpstream::start().await;
    let mut server = start_server(&upstream, "");
    let project = create_project(&server, json!({ "usd": 0.006, "per": "day" })).await;
    let request = request_command();
    let prompt = format!("run {request}\nrun until {request}; do sleep 0.2; done\nsay done");
    let id = server.create_sandbox(json!({ "project_id": project, "prompt": prompt })).await;
    server.wait_for_event(&id, |event| event["type"] == "limit.paused").await;
    wait_for_cost(&server, &id, 0.0051).await;
    block_in_place(|| server.process.kill());
    shift_costs_by_a_day(&server).await;
    block_in_place(|| server.process.restart());
    let row = server.wait_until_ended(&id).await;
    assert_eq!((&row["outcome"], &row["limit_paused"]), (&json!("succeeded"), &Value::Null), "{row}");
    let events = server.admin.all_events(&id).await;
    assert_eq!(event_data(&events, "limit.paused").len(), 1, "{events:#?}");
    assert_eq!(event_data(&events, "limit.resumed"), [&json!({ "limit": "project_budget" })]);
    let polled = try_poll_for(async || {
        let project_view = server.admin.get(&format!("/projects/{project}")).await.expect_status(200);
        if is_near(&project_view["usage"]["cost"], 0.0102) { Ok(project_view) } else { Err(project_view) }
    });
    let project_view = polled.await.expect("the second request must be recorded");
    assert!(is_near(&project_view["budget"]["spent"], 0.0051), "only today's: {project_view}");
    server.stop_and_check().await;
}

/// Moves all costs and budget pauses to the previous day.
async fn shift_costs_by_a_day(server: &LocalServer) {
    let store = Store::open(&DatabaseLocation::Sqlite(server.data_dir().join("atoll.db"))).await.unwrap();
    let moved = store.write::<_, Error, _>(async move |tx| {
        tx.execute("UPDATE project_costs SET day = day - 1", &[]).await?;
        let agents = budgets::list_paused_agents(tx).await?;
        for agent in &agents {
            let pause = BudgetPause { first: agent.budget_pause.first.map(|day| day - 1), ..agent.budget_pause };
            budgets::record_budget_pause(tx, agent.sandbox, &pause).await?;
        }
        Ok(agents.len())
    });
    assert_eq!(moved.await.unwrap(), 1);
    store.close().await;
}

/// The gateway charges a request that the upstream received, even if the response breaks off. It charges no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_breaks_off_is_charged_for_its_input() {
    let upstream = FakeUpstream::start().await;
    // A port that is bound but not listened on: connections fail.
    let unreachable = tokio::net::TcpSocket::new_v4().unwrap();
    unreachable.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let config = format!(
        "upstreams:\n  nowhere: {{kind: anthropic, url: \"http://{}\"}}\n\
         models:\n- {{name: cuts, upstream: anthropic, price: {{input: 1000, output: 1}}}}\n\
         - {{name: away, upstream: nowhere, price: {{input: 1000, output: 1}}}}\n\
         - {{name: far, upstream: openai, price: {{input: 1, output: 1}}}}\n",
        unreachable.local_addr().unwrap()
    );
    let server = start_server(&upstream, &config);
    let id = server.create_idle_sandbox(json!({})).await;
    let away = run_curl(&server, &id, &messages_arguments("away", 1)).await;
    assert!(has_status(&away, 502) && away.contains("cannot reach nowhere"), "{away}");
    let broken = run_curl(&server, &id, &messages_arguments("cuts", 1)).await;
    assert!(has_status(&broken, 502), "{broken}");
    let (_, body) = upstream.requests().pop().unwrap();
    // A token is four bytes and costs $0.001. Only the request that was sent counts.
    let row = wait_for_cost(&server, &id, body.len().div_ceil(4) as f64 * 0.001).await;
    assert_eq!(row["usage"]["output"], 0, "{row}");

    let request_count = upstream.requests().len();
    let background = "$ATOLL_GATEWAY_URL/openai/v1/responses -H \"authorization: Bearer $KEY\" \
                 -d '{\"model\":\"far\",\"background\":true}'";
    let refused = run_curl(&server, &id, background).await;
    assert!(has_status(&refused, 400) && refused.contains("`background: true` is not supported"), "{refused}");
    assert_eq!(upstream.requests().len(), request_count, "the gateway must not send it");
    assert!(has_status(&run_curl(&server, &id, &background.replace("true", "false")).await, 200));
    server.stop_and_check().await;
}

/// When the budget is used up, waiting agents pause before they ask for a model, the longest idle one first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_agents_of_a_project_without_budget_pause_the_longest_idle_first() {
    let upstream = FakeUpstream::start().await;
    let server = start_server(&upstream, "heartbeat:\n  interval: 1s\n");
    let project = create_project(&server, json!({ "usd": 0.006 })).await;
    let mut waiting = Vec::new();
    for name in ["one", "two", "three"] {
        let settings = json!({ "project_id": project, "prompt": format!("say {name}"), "end": "keep" });
        waiting.push(server.create_idle_sandbox(settings).await);
    }
    let other = server.create_idle_sandbox(json!({})).await;
    // Two requests cost more than the budget; the second is estimated to fit.
    for _ in 0..2 {
        let response = run_curl(&server, &waiting[2], &messages_arguments("claude-sonnet-4-5", 1)).await;
        assert!(has_status(&response, 200) || has_status(&response, 429), "{response}");
    }
    let mut paused = Vec::new();
    for id in &waiting {
        server.wait_until(id, |row| row["limit_paused"] == "project_budget").await;
        let events = server.admin.all_events(id).await;
        let event = events.iter().find(|event| event["type"] == "limit.paused").unwrap();
        paused.push(event["received_at"].as_str().unwrap().to_owned());
    }
    assert!(paused[0] <= paused[1], "the longest idle one first: {paused:?}");
    let row = server.get_sandbox(&other).await;
    assert_eq!(row["limit_paused"], Value::Null, "another project's sandbox goes on");
    let path = format!("/projects/{project}");
    server.admin.patch(&path, json!({ "budget": { "usd": 1 } })).await.expect_status(200);
    for id in &waiting {
        server.wait_until(id, |row| row["activity"] == "waiting_message").await;
    }
    server.stop_and_check().await;
}
