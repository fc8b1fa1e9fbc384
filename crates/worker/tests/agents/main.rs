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
