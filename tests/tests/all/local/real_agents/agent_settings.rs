//! The settings of a sandbox appear in the agent's requests to the model.

use super::agent_fixture::AgentFixture;
use atoll_tests::local::event_data;
use serde_json::{Value, json};

const SCRIPTS: &str = r#"
scripts:
  - name: hello
    steps:
      - say: Hello.
  - name: mend
    steps:
      - run: echo wrong > answer.txt
      - say: I think that is it.
      - end
      - expect: {text: "FOUND: wrong", new: true}
      - run: echo right > answer.txt
      - say: Now it is right.
"#;

/// The names of all tools that a request offers, for every model API.
fn offered_tools(body: &Value) -> Vec<String> {
    let name = |tool: &Value| {
        let fields = [&tool["name"], &tool["function"]["name"], &tool["type"]];
        fields.into_iter().find_map(|name| name.as_str().map(str::to_owned))
    };
    let all = body["tools"].as_array().into_iter().flatten();
    all.flat_map(|tool| match tool["functionDeclarations"].as_array() {
        Some(functions) => functions.iter().filter_map(name).collect::<Vec<_>>(),
        None => name(tool).into_iter().collect(),
    })
    .collect()
}

pub(super) async fn follows_settings(agent: &str) {
    let Some(fixture) = AgentFixture::start(agent, "settings", SCRIPTS).await else { return };
    let prompt = "Always mention the ZEBRA-RULE.";
    let shell = ["Bash", "bash", "exec_command", "run_shell_command"];
    for denied in [json!([]), json!(["Bash"])] {
        let before = fixture.model.requests().len();
        let settings = json!({ "system_prompt": prompt, "denied_tools": denied, "end": "keep" });
        let id = fixture.create_sandbox("go #script:hello", settings).await;
        let row = fixture.wait_until_idle(&id).await;
        assert_eq!(row["state"], "running", "{row}");
        let requests = fixture.model.requests().split_off(before);
        let with_tools: Vec<_> = requests.iter().filter(|request| !offered_tools(&request.body).is_empty()).collect();
        assert!(!with_tools.is_empty(), "{agent} sent no request with tools");
        for request in with_tools {
            assert!(request.body_contains(prompt), "{agent} did not send the system prompt: {}", request.body);
            let offered = offered_tools(&request.body);
            let has_shell = offered.iter().any(|tool| shell.contains(&tool.as_str()));
            assert_eq!(has_shell, denied == json!([]), "{agent} offers {offered:?}");
        }
        let events = fixture.server.admin.all_events(&id).await;
        assert!(event_data(&events, "agent.settings_ignored").is_empty(), "the agent must apply all of them");
    }
    fixture.stop_and_check().await;
}

/// Tools that an agent offers besides the listed ones: its housekeeping, and tools that it cannot disable.
fn builtin_tools(agent: &str) -> &'static [&'static str] {
    match agent {
        // A placeholder for tools that load later. Claude never calls it.
        "claude" => &["DeferredToolPlaceholder"],
        "codex" => &["apply_patch", "request_user_input", "get_goal", "create_goal", "update_goal"],
        _ => &[],
    }
}

/// The model gets only the listed tools. The log names the ones that the agent cannot disable.
pub(super) async fn offers_listed_tools(agent: &str) {
    let Some(fixture) = AgentFixture::start(agent, "a list of tools", SCRIPTS).await else { return };
    let (shell, read): (&[&str], &[&str]) = match agent {
        "claude" => (&["Bash"], &["Read"]),
        // Codex reads files with its shell only.
        "codex" => (&["exec_command", "write_stdin"], &[]),
        "opencode" => (&["bash"], &["read"]),
        _ => (&["run_shell_command"], &["read_file"]),
    };
    for (listed, expected) in [(json!(["Read", "Bash"]), [read, shell].concat()), (json!(["Read"]), read.to_vec())] {
        let before = fixture.model.requests().len();
        let settings = json!({ "tools": listed, "approvals": "full", "end": "keep" });
        let id = fixture.create_sandbox("go #script:hello", settings).await;
        let row = fixture.wait_until_idle(&id).await;
        assert_eq!(row["state"], "running", "{row}");
        let requests = fixture.model.requests().split_off(before);
        let tool_lists: Vec<_> =
            requests.iter().map(|request| offered_tools(&request.body)).filter(|all| !all.is_empty()).collect();
        assert!(!tool_lists.is_empty(), "{agent} sent no request with tools");
        for offered in tool_lists {
            let is_configurable = |tool: &&String| !builtin_tools(agent).contains(&tool.as_str());
            let mut offered: Vec<&String> = offered.iter().filter(is_configurable).collect();
            offered.sort_unstable();
            let mut expected = expected.clone();
            expected.sort_unstable();
            assert_eq!(offered, expected, "{agent} with {listed}");
        }
        let events = fixture.server.admin.all_events(&id).await;
        let ignored = event_data(&events, "agent.settings_ignored");
        if agent == "codex" {
            let settings = ignored[0]["settings"].as_array().unwrap();
            assert_eq!((settings.len(), &settings[0]["setting"]), (1, &json!("tools")), "{ignored:?}");
            assert!(settings[0]["reason"].as_str().unwrap().contains("its patch tool"), "{ignored:?}");
        } else {
            assert!(ignored.is_empty(), "{ignored:?}");
        }
    }
    fixture.stop_and_check().await;
}

/// The next request to the model contains the failed command, its exit code and its output.
pub(super) async fn works_until_checks_pass(agent: &str) {
    let Some(fixture) = AgentFixture::start(agent, "continuous work", SCRIPTS).await else { return };
    let check = "grep -q right answer.txt || { echo \"FOUND: $(cat answer.txt)\"; exit 4; }";
    let settings = json!({ "approvals": "full", "continuous": { "checks": [check] } });
    let id = fixture.create_sandbox("mend it #script:mend", settings).await;
    let row = fixture.server.wait_until_ended(&id).await;
    assert_eq!((&row["outcome"], &row["continuous"]["iteration"]), (&json!("succeeded"), &json!(2)), "{row}");
    let requests = fixture.model.requests();
    let problems: Vec<_> = requests.iter().filter_map(|request| request.problem.clone()).collect();
    assert!(problems.is_empty(), "{problems:?}");
    let with_output = requests.iter().filter(|request| request.body_contains("FOUND: wrong")).count();
    assert!(with_output >= 2 && with_output < requests.len(), "{with_output} of {}", requests.len());
    let first = requests.iter().find(|request| request.body_contains("FOUND: wrong")).unwrap();
    assert!(first.body_contains("exit code 4") && first.body_contains(check), "{}", first.body);
    assert!(requests[0].body_contains("this command succeeds"), "the first prompt must name the checks");
    fixture.stop_and_check().await;
}
