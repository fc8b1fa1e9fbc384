//! The real agent programs behind their drivers, against the scripted model: outside a sandbox, each in a home of its
//! own. `scripts/agents` installs them; without them these tests are skipped, unless `ATOLL_TEST_AGENTS` is set.
//! `ATOLL_TEST_SHOW=1` shows what the driver makes of each line.

mod fuzz;
mod golden;
mod record;
mod stage;

use anyhow::{Context, Result, ensure};
use atoll_core::sandbox::Approvals;
use atoll_worker::driver::{Answer, Standing};
use serde_json::Value;
use stage::Stage;

const SCRIPTS: &str = r#"
scripts:
  - name: basic
    steps:
      - think: What is there to do?
      - say: I make a file.
      - write: {file: hello.txt, content: "hello\nworld\n"}
      - edit: {file: hello.txt, old: hello, new: goodbye}
      - usage: {input: 1234, output: 56, cache_read: 789}
      - run: cat hello.txt && echo ran > ran.txt
      - expect: {text: goodbye, new: true}
      - say: All is done.
  - name: long
    steps:
      - run: touch begun && sleep 2
      - expect: {text: and this too}
      - say: I saw both.
  - name: endless
    steps:
      - slow: {pieces: [and, on, and, on], pause: 1}
      - run: sleep 60
  - name: commands
    steps:
      - run: touch allowed
      - say: That was it.
  - name: several
    steps:
      - say: Both at once.
      - parallel:
          - run: echo one > one.txt
          - run: sleep 1 && echo two > two.txt
      - say: Both are done.
  - name: second
    steps:
      - say: The first turn.
      - end
      - expect: {text: go on please, new: true}
      - say: The second turn.
"#;

fn writes_edits_runs_and_finishes(agent: &str) -> Result<()> {
    let test = format!("{agent}_writes_edits_runs_and_finishes");
    let Some(mut stage) = Stage::set(agent, &test, SCRIPTS, Approvals::Full)? else { return Ok(()) };
    let id = stage.tell("please #script:basic", Standing::Idle)?;
    stage.until("Idle")?;
    assert_eq!(stage.read("hello.txt")?, "goodbye\nworld\n");
    assert_eq!(stage.read("ran.txt")?, "ran\n");
    assert_eq!((stage.count("receipt"), stage.count(&format!("receipt new_turn {id}"))), (1, 1));
    for (beginning, times) in [("agent.started", 1), ("agent.completed", 1), ("Native", 1), ("asks", 0)] {
        assert_eq!(stage.count(beginning), times, "{beginning}: {}", stage.log.join("\n"));
    }
    let (begun, ended) = (stage.count("agent.tool_use"), stage.count("agent.tool_completed"));
    ensure!(begun == 3 && ended == 3, "{begun} tools, {ended} ends: {}", stage.log.join("\n"));
    ensure!(stage.log.iter().any(|line| line.contains("All is done.")), "{}", stage.log.join("\n"));
    // Some tell it for each request, some for the turn.
    ensure!(stage.count("agent.usage") >= 1, "{}", stage.log.join("\n"));
    belongs_together(&stage, 4, 3)?;
    for request in stage.played() {
        ensure!(request.problem.is_none(), "{:?}", request.problem);
    }
    ensure!(stage.played()[0].mentions("atoll-mark"), "the system prompt did not reach the model");
    Ok(())
}

/// Into the running turn, where the next request of the model has it.
fn is_steered(agent: &str, how: &str) -> Result<()> {
    let test = format!("{agent}_is_steered");
    let Some(mut stage) = Stage::set(agent, &test, SCRIPTS, Approvals::Full)? else { return Ok(()) };
    stage.tell("please #script:long", Standing::Idle)?;
    stage.until("agent.tool_use")?;
    let id = stage.tell("and this too", Standing::InTurn)?;
    stage.until(&format!("receipt {how} {id}"))?;
    stage.until("Idle")?;
    assert_eq!(stage.count("agent.started"), 1, "{}", stage.log.join("\n"));
    ensure!(stage.log.iter().any(|line| line.contains("I saw both.")), "{}", stage.log.join("\n"));
    Ok(())
}

/// And takes the next message after it.
fn is_interrupted(agent: &str) -> Result<()> {
    let test = format!("{agent}_is_interrupted");
    let Some(mut stage) = Stage::set(agent, &test, SCRIPTS, Approvals::Full)? else { return Ok(()) };
    stage.tell("please #script:endless", Standing::Idle)?;
    stage.until("live")?;
    let id = stage.interrupt()?;
    stage.until("agent.interrupted")?;
    assert_eq!(stage.count(&format!("receipt injected {id}")), 1, "{}", stage.log.join("\n"));
    stage.tell("please #script:basic", Standing::Idle)?;
    stage.until("agent.completed")?;
    assert_eq!(stage.read("ran.txt")?, "ran\n");
    Ok(())
}

/// What came into a turn that was broken off before the model saw it is not lost: it begins the next one, once.
fn keeps_what_it_was_told(agent: &str) -> Result<()> {
    let test = format!("{agent}_keeps_what_it_was_told");
    let Some(mut stage) = Stage::set(agent, &test, SCRIPTS, Approvals::Full)? else { return Ok(()) };
    stage.tell("please #script:endless", Standing::Idle)?;
    stage.until("live")?;
    let id = stage.tell("rather #script:commands", Standing::InTurn)?;
    stage.interrupt()?;
    stage.until("agent.interrupted")?;
    stage.until("agent.completed")?;
    stage.read("allowed").context("it was not done")?;
    assert_eq!(stage.count(&format!("receipt new_turn {id}")), 1, "{}", stage.log.join("\n"));
    for (beginning, times) in [("receipt", 3), ("agent.started", 2), ("Idle", 2)] {
        assert_eq!(stage.count(beginning), times, "{beginning}: {}", stage.log.join("\n"));
    }
    Ok(())
}

fn uses_several_tools_at_once(agent: &str) -> Result<()> {
    let test = format!("{agent}_uses_several_tools_at_once");
    let Some(mut stage) = Stage::set(agent, &test, SCRIPTS, Approvals::Full)? else { return Ok(()) };
    stage.tell("please #script:several", Standing::Idle)?;
    stage.until("Idle")?;
    for file in ["one.txt", "two.txt"] {
        stage.read(file)?;
    }
    // One that says nothing of its model's answers, and uses one tool after the other, can't be seen to have been
    // told both at once.
    let (answers, groups) = if agent == "gemini" { (3, 2) } else { (2, 1) };
    belongs_together(&stage, answers, groups)
}

/// Every call is in one answer, every result in one group, and what the agent is told comes between the answers.
fn belongs_together(stage: &Stage, answers: usize, groups: usize) -> Result<()> {
    let log = stage.log.join("\n");
    let named = |all: &[Value], list: &str| -> Vec<Value> {
        let parts = all.iter().flat_map(|one| one[list].as_array().into_iter().flatten());
        parts.map(|part| part["tool_use_id"].clone()).filter(|id| !id.is_null()).collect()
    };
    let ids = |all: &[Value]| -> Vec<Value> { all.iter().map(|one| one["tool_use_id"].clone()).collect() };
    let told = stage.told("agent.assistant_message")?;
    let results = stage.told("agent.user_tool_result")?;
    assert_eq!((told.len(), results.len()), (answers, groups), "{log}");
    assert_eq!(named(&told, "content"), ids(&stage.told("agent.tool_use")?), "{log}");
    assert_eq!(named(&results, "results"), ids(&stage.told("agent.tool_completed")?), "{log}");
    let words = told.iter().flat_map(|one| one["content"].as_array().into_iter().flatten());
    let words = words.filter(|part| part["type"] == "text").count();
    assert_eq!(words, stage.count("agent.message "), "{log}");
    for answer in &told {
        ensure!(answer["model"].as_str() == Some(stage::model_of(&stage.agent)), "{answer}\n{log}");
        let is_named = matches!(stage.agent.as_str(), "claude" | "opencode");
        ensure!(answer["message_id"].is_string() == is_named, "{answer}\n{log}");
    }
    let order: Vec<&str> = stage.log.iter().filter_map(|line| line.split(' ').next()).collect();
    let ends = ["agent.assistant_message", "agent.user_tool_result", "agent.completed"];
    let order: Vec<&&str> = order.iter().filter(|kind| ends.contains(kind)).collect();
    for two in order.windows(2) {
        ensure!(two[0] != two[1], "in turn: {order:?}");
    }
    assert_eq!(order.last(), Some(&&"agent.completed"), "{log}");
    Ok(())
}

fn asks_and_is_answered(agent: &str) -> Result<()> {
    let test = format!("{agent}_asks_and_is_answered");
    let Some(mut stage) = Stage::set(agent, &test, SCRIPTS, Approvals::Ask)? else { return Ok(()) };
    stage.person(Answer::Deny { reason: "not here".to_owned() });
    stage.tell("please #script:commands", Standing::Idle)?;
    let asked = stage.until("asks bash")?;
    ensure!(asked.contains("touch allowed"), "{asked}");
    stage.until("agent.completed")?;
    assert!(stage.read("allowed").is_err(), "it was denied");
    stage.person(Answer::Allow { input: None, context: None });
    stage.tell("please #script:commands", Standing::Idle)?;
    stage.until("asks bash")?;
    stage.until("agent.completed")?;
    stage.read("allowed").context("it was allowed")?;
    Ok(())
}

fn goes_on_where_it_was(agent: &str) -> Result<()> {
    let test = format!("{agent}_goes_on_where_it_was");
    let Some(mut stage) = Stage::set(agent, &test, SCRIPTS, Approvals::Full)? else { return Ok(()) };
    stage.tell("please #script:second", Standing::Idle)?;
    stage.until("agent.completed")?;
    stage.restart(&test)?;
    stage.tell("go on please", Standing::Idle)?;
    stage.until("agent.completed")?;
    if !stage.resumes() {
        assert_eq!(stage.count("agent.system_message"), 1, "that it can't is said");
        return Ok(());
    }
    ensure!(stage.log.iter().any(|line| line.contains("The second turn.")), "{}", stage.log.join("\n"));
    Ok(())
}

macro_rules! agents {
    ($($agent:ident: $how:literal),+) => {$(
        mod $agent {
            use super::*;

            #[test]
            fn writes() -> Result<()> {
                writes_edits_runs_and_finishes(stringify!($agent))
            }

            #[test]
            fn steered() -> Result<()> {
                is_steered(stringify!($agent), $how)
            }

            #[test]
            fn interrupted() -> Result<()> {
                is_interrupted(stringify!($agent))
            }

            #[test]
            fn keeps() -> Result<()> {
                keeps_what_it_was_told(stringify!($agent))
            }

            #[test]
            fn several() -> Result<()> {
                uses_several_tools_at_once(stringify!($agent))
            }

            #[test]
            fn asks() -> Result<()> {
                asks_and_is_answered(stringify!($agent))
            }

            #[test]
            fn resumes() -> Result<()> {
                goes_on_where_it_was(stringify!($agent))
            }
        }
    )+};
}

agents! { claude: "injected", codex: "injected", gemini: "restarted", opencode: "injected" }

/// Its server does not stay behind, though it would not follow such a signal by itself.
#[test]
fn the_bridge_to_opencode_takes_its_server_along() -> Result<()> {
    let test = "the_bridge_to_opencode_takes_its_server_along";
    let Some(mut stage) = Stage::set("opencode", test, SCRIPTS, Approvals::Full)? else { return Ok(()) };
    stage.until("Native")?;
    let server = stage.children()?;
    assert_eq!(server.len(), 1, "one server");
    stage.terminate()?;
    let until = std::time::Instant::now() + stage::LONGEST;
    while std::path::Path::new(&format!("/proc/{}", server[0])).exists() {
        ensure!(std::time::Instant::now() < until, "the server is still there");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Ok(())
}
