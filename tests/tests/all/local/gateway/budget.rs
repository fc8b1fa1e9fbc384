//! A project's budget: its sandboxes share it, however they ask, and wait together until there is more.

use super::{Upstream, costs, curl, ground, is, messages};
use atoll_core::budget::Held;
use atoll_store::{Error, Location, Store, budgets};
use atoll_tests::local::{Ground, PATIENCE, said, told};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::task::block_in_place;

async fn project(ground: &Ground, budget: Value) -> String {
    let body = json!({ "name": "parser", "budget": budget });
    let made = ground.admin.post("/projects", body).await.expect(201);
    made["id"].as_str().unwrap().to_owned()
}

fn is_near(figure: &Value, dollars: f64) -> bool {
    (figure.as_f64().unwrap() - dollars).abs() < 1e-9
}

/// One request costs $0.0051 and may cost $0.0016.
fn ask() -> String {
    format!("curl -sf -o /dev/null {}", messages("claude-sonnet-4-5", 100).replace("$KEY", "$ATOLL_GATEWAY_KEY"))
}

fn story(events: &[Value]) -> Vec<&str> {
    events.iter().filter_map(|event| event["type"].as_str()?.strip_prefix("limit.")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_of_a_project_share_its_budget_and_go_on_when_it_is_raised() {
    let upstream = Upstream::start().await;
    let mut ground = ground(&upstream, "");
    let project = project(&ground, json!({ "usd": 0.011 })).await;
    let path = format!("/projects/{project}");
    let first = ground.kept(json!({ "project_id": project })).await;
    let unknown = curl(&ground, &first, &messages("nobody-knows-its-price", 1)).await;
    assert!(is(&unknown, 402) && unknown.contains("project has a budget"), "{unknown}");
    assert!(is(&curl(&ground, &first, &messages("claude-sonnet-4-5", 100)).await, 200));
    costs(&ground, &first, 0.0051).await;

    let ask = ask();
    let prompt = format!("run {ask}\nwait 1\nrun until {ask}; do sleep 0.2; done\nsay done");
    let second = ground.make(json!({ "project_id": project, "prompt": prompt })).await;
    let paused = ground.event(&second, |event| event["type"] == "limit.paused").await;
    let data = &paused["data"];
    assert_eq!(
        (&data["limit"], &data["per"], &data["project_id"]),
        (&json!("project_budget"), &json!("month"), &json!(project))
    );
    assert!(is_near(&data["used"], 0.0102) && data["until"].is_string(), "{data}");
    let row = ground.until(&second, |row| row["activity"] == "limit_paused").await;
    assert_eq!((&row["state"], &row["limit_paused"]), (&json!("running"), &json!("project_budget")), "{row}");
    let refused = ground.event(&second, |event| event["type"] == "model.refused").await;
    let detail = refused["data"]["detail"].as_str().unwrap();
    let raise = format!("`atoll project budget {project} …`");
    for part in ["project parser", "$0.011000 a month", "$0.010200 is spent this month", "a new one from", &raise] {
        assert!(detail.contains(part), "{part}: {refused}");
    }
    assert_eq!(refused["data"]["reason"], "budget");

    ground.event(&second, |event| event["type"] == "limit.warned").await;
    let heard = upstream.requests().len();
    let over = curl(&ground, &first, &messages("claude-sonnet-4-5", 100)).await;
    assert!(is(&over, 429) && over.contains("rate_limit_error") && over.contains(&project), "{over}");
    ground.until(&first, |row| row["limit_paused"] == "project_budget").await;
    block_in_place(|| {
        ground.server.kill();
        ground.server.start_again();
    });
    let over = curl(&ground, &first, &messages("claude-sonnet-4-5", 100)).await;
    assert!(is(&over, 429) && over.contains("$0.010200 is spent"), "{over}");
    assert_eq!(upstream.requests().len(), heard, "nothing of that was sent");
    let shown = ground.admin.get(&path).await.expect(200);
    let budget = &shown["budget"];
    assert!(is_near(&budget["spent"], 0.0102) && is_near(&budget["left"], 0.0008), "{shown}");
    // Less is no reason to go on.
    ground.admin.patch(&path, json!({ "budget": { "usd": 0.01 } })).await.expect(200);
    assert_eq!(ground.row(&first).await["limit_paused"], "project_budget");

    let raised = ground.admin.patch(&path, json!({ "budget": { "usd": 0.5 } })).await.expect(200);
    assert_eq!(raised["budget"]["per"], "month", "what is not said stays: {raised}");
    assert_eq!(ground.row(&first).await["limit_paused"], Value::Null, "at once");
    assert!(is(&curl(&ground, &first, &messages("claude-sonnet-4-5", 100)).await, 200));
    let row = ground.ended(&second).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let events = ground.admin.all_events(&second).await;
    assert_eq!(story(&events), ["warned", "paused", "resumed"]);
    assert!(said(&events).iter().any(|text| text.contains("this project's $0.011 for models")));
    let events = ground.admin.all_events(&first).await;
    assert_eq!(story(&events), ["paused", "resumed"], "{events:#?}");

    for (wrong, why) in [
        (json!({ "usd": 0 }), "budget.usd"),
        (json!({ "usd": -3 }), "budget.usd"),
        (json!({ "usd": 5, "per": "week" }), "expected one of `day`, `month`, `ever`"),
        (json!({ "per": "day" }), "missing field `usd`"),
        (json!([5]), "expected an object"),
    ] {
        let answer = ground.admin.patch(&path, json!({ "budget": wrong })).await;
        assert!(answer.status == 422 || answer.status == 400, "{why}: {}", answer.body);
        assert!(answer.body.to_string().contains(why), "{why}: {}", answer.body);
    }
    let none = ground.admin.patch(&path, json!({ "budget": null })).await.expect(200);
    assert_eq!(none["budget"], Value::Null, "{none}");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_sandbox_has_under_way_counts_for_the_others() {
    let upstream = Upstream::start().await;
    let ground = ground(&upstream, "");
    // 800 tokens may cost $0.012: there is room for one at a time.
    let project = project(&ground, json!({ "usd": 0.02, "per": "ever" })).await;
    let first = ground.kept(json!({ "project_id": project })).await;
    let second = ground.kept(json!({ "project_id": project })).await;
    let hangs = messages("claude-sonnet-4-5", 800).replace("\"messages\":[]", "\"messages\":[\"hangs\"]");
    let script = format!(
        "KEY=$ATOLL_GATEWAY_KEY; curl -s {hangs} & until [ -e /workspace/enough ]; do sleep 0.1; done; kill $!; wait; true"
    );
    let holder = ground.shell(&first, &script);
    let other = async {
        while upstream.requests().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let over = curl(&ground, &second, &messages("claude-sonnet-4-5", 800)).await;
        assert!(is(&over, 429) && over.contains("is held for requests that are under way"), "{over}");
        ground.shell(&first, "touch /workspace/enough").await.well();
    };
    let (held, ()) = tokio::join!(holder, other);
    held.well();
    upstream.gone(1).await;
    let deadline = Instant::now() + PATIENCE;
    while !is(&curl(&ground, &second, &messages("claude-sonnet-4-5", 800)).await, 200) {
        assert!(Instant::now() < deadline, "what was held is not given back");
    }
    let events = ground.admin.all_events(&second).await;
    assert!(story(&events).iter().all(|what| *what != "paused"), "it only had to wait: {events:#?}");
    ground.leave().await;
}

/// The server was away when the day ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_day_lets_an_agent_go_on() {
    let upstream = Upstream::start().await;
    let mut ground = ground(&upstream, "");
    let project = project(&ground, json!({ "usd": 0.006, "per": "day" })).await;
    let ask = ask();
    let prompt = format!("run {ask}\nrun until {ask}; do sleep 0.2; done\nsay done");
    let id = ground.make(json!({ "project_id": project, "prompt": prompt })).await;
    ground.event(&id, |event| event["type"] == "limit.paused").await;
    costs(&ground, &id, 0.0051).await;
    block_in_place(|| ground.server.kill());
    a_day_passes(&ground).await;
    block_in_place(|| ground.server.start_again());
    let row = ground.ended(&id).await;
    assert_eq!((&row["outcome"], &row["limit_paused"]), (&json!("succeeded"), &Value::Null), "{row}");
    let events = ground.admin.all_events(&id).await;
    assert_eq!(told(&events, "limit.paused").len(), 1, "{events:#?}");
    assert_eq!(told(&events, "limit.resumed"), [&json!({ "limit": "project_budget" })]);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let shown = ground.admin.get(&format!("/projects/{project}")).await.expect(200);
        if is_near(&shown["usage"]["cost"], 0.0102) {
            assert!(is_near(&shown["budget"]["spent"], 0.0051), "only today's: {shown}");
            break;
        }
        assert!(Instant::now() < deadline, "the second request is not written down: {shown}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ground.leave().await;
}

/// Everything that was spent and held was so a day earlier.
async fn a_day_passes(ground: &Ground) {
    let store = Store::open(&Location::Sqlite(ground.data().join("atoll.db"))).await.unwrap();
    let moved = store.write::<_, Error, _>(|tx| {
        Box::pin(async move {
            tx.execute("UPDATE project_costs SET day = day - 1", &[]).await?;
            let waiting = budgets::waiting(tx).await?;
            for one in &waiting {
                let held = Held { first: one.held.first.map(|day| day - 1), ..one.held };
                budgets::hold(tx, one.sandbox, &held).await?;
            }
            Ok(waiting.len())
        })
    });
    assert_eq!(moved.await.unwrap(), 1);
    store.close().await;
}

/// What an upstream has taken is paid for, also when it breaks off; what it never got is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_breaks_off_is_charged_its_input() {
    let upstream = Upstream::start().await;
    // A port that nobody serves as long as this is bound, and not listened on.
    let nobody = tokio::net::TcpSocket::new_v4().unwrap();
    nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let config = format!(
        "upstreams:\n  nowhere: {{kind: anthropic, url: \"http://{}\"}}\n\
         models:\n- {{name: cuts, upstream: anthropic, price: {{input: 1000, output: 1}}}}\n\
         - {{name: away, upstream: nowhere, price: {{input: 1000, output: 1}}}}\n\
         - {{name: far, upstream: openai, price: {{input: 1, output: 1}}}}\n",
        nobody.local_addr().unwrap()
    );
    let ground = ground(&upstream, &config);
    let id = ground.kept(json!({})).await;
    let away = curl(&ground, &id, &messages("away", 1)).await;
    assert!(is(&away, 502) && away.contains("nowhere can't be reached"), "{away}");
    let cut = curl(&ground, &id, &messages("cuts", 1)).await;
    assert!(is(&cut, 502), "{cut}");
    let (_, body) = upstream.requests().pop().unwrap();
    // Four bytes are a token, and a token is $0.001: only what was sent counts.
    let row = costs(&ground, &id, body.len().div_ceil(4) as f64 * 0.001).await;
    assert_eq!(row["usage"]["output"], 0, "{row}");

    let heard = upstream.requests().len();
    let later = "$ATOLL_GATEWAY_URL/openai/v1/responses -H \"authorization: Bearer $KEY\" \
                 -d '{\"model\":\"far\",\"background\":true}'";
    let refused = curl(&ground, &id, later).await;
    assert!(is(&refused, 400) && refused.contains("`background: true` is not passed on"), "{refused}");
    assert_eq!(upstream.requests().len(), heard, "it was not sent");
    assert!(is(&curl(&ground, &id, &later.replace("true", "false")).await, 200));
    ground.leave().await;
}
