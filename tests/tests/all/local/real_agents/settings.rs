//! What is set for a task takes effect in what the model is asked.

use super::stage::Stage;
use atoll_tests::local::told;
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

/// The names of all tools that a request offers, in whatever form.
fn tools(body: &Value) -> Vec<String> {
    let name = |tool: &Value| {
        let named = [&tool["name"], &tool["function"]["name"], &tool["type"]];
        named.into_iter().find_map(|name| name.as_str().map(str::to_owned))
    };
    let all = body["tools"].as_array().into_iter().flatten();
    all.flat_map(|tool| match tool["functionDeclarations"].as_array() {
        Some(functions) => functions.iter().filter_map(name).collect::<Vec<_>>(),
        None => name(tool).into_iter().collect(),
    })
    .collect()
}

pub(super) async fn are_followed(agent: &str) {
    let Some(stage) = Stage::set(agent, "settings", SCRIPTS).await else { return };
    let prompt = "Always mention the ZEBRA-RULE.";
    let shell = ["Bash", "bash", "exec_command", "run_shell_command"];
    for denied in [json!([]), json!(["Bash"])] {
        let before = stage.model.requests().len();
        let settings = json!({ "system_prompt": prompt, "denied_tools": denied, "end": "keep" });
        let id = stage.make("go #script:hello", settings).await;
        let row = stage.rests(&id).await;
        assert_eq!(row["state"], "running", "{row}");
        let requests = stage.model.requests().split_off(before);
        let asked: Vec<_> = requests.iter().filter(|request| !tools(&request.body).is_empty()).collect();
        assert!(!asked.is_empty(), "{agent} asked for nothing");
        for request in asked {
            assert!(request.mentions(prompt), "{agent} did not pass on the system prompt: {}", request.body);
            let offered = tools(&request.body);
            let has_shell = offered.iter().any(|tool| shell.contains(&tool.as_str()));
            assert_eq!(has_shell, denied == json!([]), "{agent} offers {offered:?}");
        }
        let events = stage.ground.admin.all_events(&id).await;
        assert!(told(&events, "agent.settings_ignored").is_empty(), "it follows all of them");
    }
    stage.leave().await;
}

/// What an agent offers beside what is listed: its own housekeeping, and what can't be taken from it.
fn always(agent: &str) -> &'static [&'static str] {
    match agent {
        // Keeps the place of tools that are loaded later, and is never called.
        "claude" => &["DeferredToolPlaceholder"],
        "codex" => &["apply_patch", "request_user_input", "get_goal", "create_goal", "update_goal"],
        _ => &[],
    }
}

/// The model is offered the tools of a list and no others; what can't be taken from an agent is in the log.
pub(super) async fn have_the_listed_tools(agent: &str) {
    let Some(stage) = Stage::set(agent, "a list of tools", SCRIPTS).await else { return };
    let (shell, reading): (&[&str], &[&str]) = match agent {
        "claude" => (&["Bash"], &["Read"]),
        // It reads by its shell, and has no other way.
        "codex" => (&["exec_command", "write_stdin"], &[]),
        "opencode" => (&["bash"], &["read"]),
        _ => (&["run_shell_command"], &["read_file"]),
    };
    for (listed, own) in [(json!(["Read", "Bash"]), [reading, shell].concat()), (json!(["Read"]), reading.to_vec())] {
        let before = stage.model.requests().len();
        let settings = json!({ "tools": listed, "approvals": "full", "end": "keep" });
        let id = stage.make("go #script:hello", settings).await;
        let row = stage.rests(&id).await;
        assert_eq!(row["state"], "running", "{row}");
        let requests = stage.model.requests().split_off(before);
        let asked: Vec<_> = requests.iter().map(|request| tools(&request.body)).filter(|all| !all.is_empty()).collect();
        assert!(!asked.is_empty(), "{agent} asked for nothing");
        for offered in asked {
            let is_its = |tool: &&String| !always(agent).contains(&tool.as_str());
            let mut offered: Vec<&String> = offered.iter().filter(is_its).collect();
            offered.sort_unstable();
            let mut own = own.clone();
            own.sort_unstable();
            assert_eq!(offered, own, "{agent} with {listed}");
        }
        let events = stage.ground.admin.all_events(&id).await;
        let ignored = told(&events, "agent.settings_ignored");
        if agent == "codex" {
            let settings = ignored[0]["settings"].as_array().unwrap();
            assert_eq!((settings.len(), &settings[0]["setting"]), (1, &json!("tools")), "{ignored:?}");
            assert!(settings[0]["reason"].as_str().unwrap().contains("its tool for patches"), "{ignored:?}");
        } else {
            assert!(ignored.is_empty(), "{ignored:?}");
        }
    }
    stage.leave().await;
}

/// The failing command, its exit code and its output are in what the model is asked next.
pub(super) async fn are_checked(agent: &str) {
    let Some(stage) = Stage::set(agent, "continuous work", SCRIPTS).await else { return };
    let check = "grep -q right answer.txt || { echo \"FOUND: $(cat answer.txt)\"; exit 4; }";
    let settings = json!({ "approvals": "full", "continuous": { "checks": [check] } });
    let id = stage.make("mend it #script:mend", settings).await;
    let row = stage.ground.ended(&id).await;
    assert_eq!((&row["outcome"], &row["continuous"]["iteration"]), (&json!("succeeded"), &json!(2)), "{row}");
    let requests = stage.model.requests();
    let problems: Vec<_> = requests.iter().filter_map(|request| request.problem.clone()).collect();
    assert!(problems.is_empty(), "{problems:?}");
    let told_so = requests.iter().filter(|request| request.mentions("FOUND: wrong")).count();
    assert!(told_so >= 2 && told_so < requests.len(), "{told_so} of {}", requests.len());
    let first = requests.iter().find(|request| request.mentions("FOUND: wrong")).unwrap();
    assert!(first.mentions("exit code 4") && first.mentions(check), "{}", first.body);
    assert!(requests[0].mentions("this command succeeds"), "it knows beforehand what is checked");
    stage.leave().await;
}
