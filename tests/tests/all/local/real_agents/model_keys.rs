//! Model keys and prices with the real agent programs.

use super::SCRIPTS;
use super::agent_fixture::{AgentFixture, agent_program_path};
use atoll_core::model::ModelApi;
use atoll_core::price_table::list_price;
use atoll_test_wait::poll_until;
use atoll_tests::local::{event_data, report_skipped};
use serde_json::{Value, json};
use std::process::Command;

/// The models of all requests so far; Gemini's are in the path.
fn requested_models(fixture: &AgentFixture) -> Vec<String> {
    let model_of = |request: &atoll_model_script::RecordedRequest| {
        let in_path = request.path.split_once("/models/").and_then(|(_, rest)| rest.split_once(':'));
        let in_body = request.body["model"].as_str();
        in_path.map(|(model, _)| model).or(in_body).map(str::to_owned)
    };
    fixture.model.requests().iter().filter_map(|request| model_of(request)).collect()
}

pub async fn assert_cost_is_known(fixture: &AgentFixture, id: &str) {
    poll_until("the cost of all requests", async || {
        let cost = &fixture.server.get_sandbox(id).await["cost"];
        cost["model"].as_f64().is_some_and(|cost| cost > 0.0) && cost["model_source"] == "prices"
    })
    .await;
}

/// The agent uses its default model here, which must have a price. (The scripted model does not know Codex's.)
pub async fn ends_with_a_refused_key(agent: &str) {
    let Some(fixture) = AgentFixture::start(agent, "a refused key", SCRIPTS).await else { return };
    let settings =
        if agent == "codex" { json!({ "approvals": "full" }) } else { json!({ "approvals": "full", "model": null }) };
    let id = fixture.create_sandbox("go #script:refused", settings).await;
    fixture.server.wait_until_ended(&id).await;
    let events = fixture.server.admin.all_events(&id).await;
    let refusals = event_data(&events, "model.refused");
    let is_sentence = |data: &&Value| {
        let detail = data["detail"].as_str().unwrap();
        data["reason"] == "key" && detail.contains(" refused Atoll's key (401): run `atoll secret set ")
    };
    assert_eq!(refusals.iter().filter(|data| is_sentence(data)).count(), refusals.len(), "{refusals:#?}");
    assert!(!refusals.is_empty());
    let failed = event_data(&events, "agent.failed");
    assert!(json!(failed).to_string().contains("refused Atoll's key"), "{agent} must show it: {failed:#?}");
    let models = requested_models(&fixture);
    // Codex repeats every failed request five times within seconds.
    assert!(models.len() <= 6, "{agent} must not retry for minutes: {models:?}");
    for model in models {
        assert!(list_price(&model).is_some(), "{agent} requests {model} by default, whose price is unknown");
    }
    fixture.stop_and_check().await;
}

pub async fn uses_the_only_key(api: ModelApi, path: &str) {
    let scripts = "scripts:\n  - name: hello\n    steps:\n      - say: Hello from the model.\n";
    let fixture = AgentFixture::start_with_keys("opencode", "the model key", scripts, &[api]).await;
    let Some(fixture) = fixture else { return };
    let id = fixture.create_sandbox("go #script:hello", json!({ "approvals": "full" })).await;
    let row = fixture.server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{api}: {row}");
    let requests = fixture.model.requests();
    assert!(requests.iter().all(|request| request.path.contains(path)), "{api}: {requests:?}");
    for model in requested_models(&fixture) {
        assert!(list_price(&model).is_some(), "OpenCode requests {model}, whose price is unknown");
    }
    fixture.stop_and_check().await;
}

/// Lists the matches of a regular expression in a program.
fn find_in_program(agent: &str, pattern: &str) -> Option<Vec<String>> {
    let program = agent_program_path(agent);
    if !program.exists() {
        report_skipped(&format!("the model catalogue of {agent}"), &format!("{} is missing", program.display()));
        return None;
    }
    let output = Command::new("grep").args(["-aoE", pattern]).arg(program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut names: Vec<String> =
        text.lines().filter_map(|line| line.split('"').rev().nth(1)).map(str::to_owned).collect();
    names.sort_unstable();
    names.dedup();
    Some(names)
}

/// The pinned versions of Claude Code and Codex contain their catalogues of models.
#[test]
fn every_model_of_the_pinned_agents_has_a_price() {
    for (agent, pattern, least) in
        [("claude", r#"first_party:"claude-[a-z0-9-]+""#, 20), ("codex", r#""slug": "gpt-[a-z0-9.-]+""#, 10)]
    {
        let Some(names) = find_in_program(agent, pattern) else { continue };
        assert!(names.len() >= least, "{agent}: {names:?}");
        let unpriced: Vec<&String> = names.iter().filter(|name| list_price(name).is_none()).collect();
        assert!(unpriced.is_empty(), "{agent}: {unpriced:?}");
    }
}
