//! Runs the real agents with their drivers against the scripted model, without a sandbox, each with its own home
//! directory. `scripts/agents` installs the agents; without them the tests are skipped, unless `ATOLL_TEST_AGENTS` is
//! set. `ATOLL_TEST_SHOW=1` prints the drivers' output.

mod flood;
mod fuzz;
mod golden;
mod harness;
mod record;

use anyhow::{Context, Result, ensure};
use atoll_core::sandbox::ApprovalMode;
use atoll_drivers::{AgentTurn, RequestAnswer};
use harness::AgentHarness;
use serde_json::Value;

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

fn completes_a_turn(agent: &str) -> Result<()> {
    let test = format!("{agent}_completes_a_turn");
    let Some(mut harness) = AgentHarness::start(agent, &test, SCRIPTS, ApprovalMode::Full)? else { return Ok(()) };
    let id = harness.send_text("please #script:basic", AgentTurn::Idle)?;
    harness.wait_for("Idle")?;
    assert_eq!(harness.read_file("hello.txt")?, "goodbye\nworld\n");
    assert_eq!(harness.read_file("ran.txt")?, "ran\n");
    assert_eq!(
        (harness.count_lines("acknowledged"), harness.count_lines(&format!("acknowledged new_turn {id}"))),
        (1, 1)
    );
    for (beginning, times) in [("agent.started", 1), ("agent.completed", 1), ("NativeId", 1), ("request", 0)] {
        assert_eq!(harness.count_lines(beginning), times, "{beginning}: {}", harness.log.join("\n"));
    }
    let (begun, ended) = (harness.count_lines("agent.tool_use"), harness.count_lines("agent.tool_completed"));
    ensure!(begun == 3 && ended == 3, "{begun} tools, {ended} ends: {}", harness.log.join("\n"));
    ensure!(harness.log.iter().any(|line| line.contains("All is done.")), "{}", harness.log.join("\n"));
    // Some agents report usage per request, some per turn.
    ensure!(harness.count_lines("agent.usage") >= 1, "{}", harness.log.join("\n"));
    check_responses(&harness, 4, 3)?;
    for request in harness.scripted_requests() {
        ensure!(request.problem.is_none(), "{:?}", request.problem);
    }
    ensure!(harness.scripted_requests()[0].body_contains("atoll-mark"), "the system prompt did not reach the model");
    Ok(())
}

/// A steer reaches the model's next request in the same turn.
fn accepts_a_steer(agent: &str, how: &str) -> Result<()> {
    let test = format!("{agent}_accepts_a_steer");
    let Some(mut harness) = AgentHarness::start(agent, &test, SCRIPTS, ApprovalMode::Full)? else { return Ok(()) };
    harness.send_text("please #script:long", AgentTurn::Idle)?;
    harness.wait_for("agent.tool_use")?;
    let id = harness.send_text("and this too", AgentTurn::InTurn)?;
    harness.wait_for(&format!("acknowledged {how} {id}"))?;
    harness.wait_for("Idle")?;
    assert_eq!(harness.count_lines("agent.started"), 1, "{}", harness.log.join("\n"));
    ensure!(harness.log.iter().any(|line| line.contains("I saw both.")), "{}", harness.log.join("\n"));
    Ok(())
}

/// The agent accepts the next message after an interrupt.
fn stops_on_interrupt(agent: &str) -> Result<()> {
    let test = format!("{agent}_stops_on_interrupt");
    let Some(mut harness) = AgentHarness::start(agent, &test, SCRIPTS, ApprovalMode::Full)? else { return Ok(()) };
    harness.send_text("please #script:endless", AgentTurn::Idle)?;
    harness.wait_for("delta")?;
    let id = harness.send_interrupt()?;
    harness.wait_for("agent.interrupted")?;
    assert_eq!(harness.count_lines(&format!("acknowledged injected {id}")), 1, "{}", harness.log.join("\n"));
    harness.send_text("please #script:basic", AgentTurn::Idle)?;
    harness.wait_for("agent.completed")?;
    assert_eq!(harness.read_file("ran.txt")?, "ran\n");
    Ok(())
}

/// A steer just before an interrupt reaches the conversation once.
///
/// The agent forgets a steer that it has not added to the conversation, so the steer starts the next turn. OpenCode keeps
/// it, and its driver starts the next turn with it. Codex sometimes adds it before it stops. The steer is then
/// acknowledged, and the model reads it in the next turn.
fn requeues_unseen_messages(agent: &str) -> Result<()> {
    const STEER: &str = "rather #script:commands";
    let test = format!("{agent}_requeues_unseen_messages");
    let Some(mut harness) = AgentHarness::start(agent, &test, SCRIPTS, ApprovalMode::Full)? else { return Ok(()) };
    harness.send_text("please #script:endless", AgentTurn::Idle)?;
    harness.wait_for("delta")?;
    let id = harness.send_text(STEER, AgentTurn::InTurn)?;
    harness.send_interrupt()?;
    harness.wait_for("agent.interrupted")?;
    let was_added = agent == "codex" && harness.count_lines(&format!("acknowledged injected {id}")) == 1;
    if was_added {
        harness.send_text("now #script:commands", AgentTurn::Idle)?;
    }
    harness.wait_for("agent.completed")?;
    harness.read_file("allowed").context("the file is missing")?;
    let (how, acknowledged) = if was_added { ("injected", 4) } else { ("new_turn", 3) };
    assert_eq!(harness.count_lines(&format!("acknowledged {how} {id}")), 1, "{}", harness.log.join("\n"));
    for (beginning, times) in [("acknowledged", acknowledged), ("agent.started", 2), ("Idle", 2)] {
        assert_eq!(harness.count_lines(beginning), times, "{beginning}: {}", harness.log.join("\n"));
    }
    let requests = harness.scripted_requests();
    let last = requests.last().context("no request reached the model")?.body.to_string();
    assert_eq!(last.matches(STEER).count(), 1, "{last}");
    Ok(())
}

fn runs_tools_in_parallel(agent: &str) -> Result<()> {
    let test = format!("{agent}_runs_tools_in_parallel");
    let Some(mut harness) = AgentHarness::start(agent, &test, SCRIPTS, ApprovalMode::Full)? else { return Ok(()) };
    harness.send_text("please #script:several", AgentTurn::Idle)?;
    harness.wait_for("Idle")?;
    for file in ["one.txt", "two.txt"] {
        harness.read_file(file)?;
    }
    // Gemini reports no response boundaries and runs tools one after the other.
    let (answers, groups) = if agent == "gemini" { (3, 2) } else { (2, 1) };
    check_responses(&harness, answers, groups)
}

/// Checks that every call is in one response, every result in one group, and that both alternate.
fn check_responses(harness: &AgentHarness, answers: usize, groups: usize) -> Result<()> {
    let log = harness.log.join("\n");
    let named = |all: &[Value], list: &str| -> Vec<Value> {
        let parts = all.iter().flat_map(|one| one[list].as_array().into_iter().flatten());
        parts.map(|part| part["tool_use_id"].clone()).filter(|id| !id.is_null()).collect()
    };
    let ids = |all: &[Value]| -> Vec<Value> { all.iter().map(|one| one["tool_use_id"].clone()).collect() };
    let responses = harness.events_of_type("agent.assistant_message")?;
    let results = harness.events_of_type("agent.user_tool_result")?;
    assert_eq!((responses.len(), results.len()), (answers, groups), "{log}");
    assert_eq!(named(&responses, "content"), ids(&harness.events_of_type("agent.tool_use")?), "{log}");
    assert_eq!(named(&results, "results"), ids(&harness.events_of_type("agent.tool_completed")?), "{log}");
    let texts = responses.iter().flat_map(|one| one["content"].as_array().into_iter().flatten());
    let texts = texts.filter(|part| part["type"] == "text").count();
    assert_eq!(texts, harness.count_lines("agent.message "), "{log}");
    for answer in &responses {
        ensure!(answer["model"].as_str() == Some(harness::model_for(&harness.agent)), "{answer}\n{log}");
        let has_message_id = matches!(harness.agent.as_str(), "claude" | "opencode");
        ensure!(answer["message_id"].is_string() == has_message_id, "{answer}\n{log}");
    }
    let order: Vec<&str> = harness.log.iter().filter_map(|line| line.split(' ').next()).collect();
    let ends = ["agent.assistant_message", "agent.user_tool_result", "agent.completed"];
    let order: Vec<&&str> = order.iter().filter(|kind| ends.contains(kind)).collect();
    for two in order.windows(2) {
        ensure!(two[0] != two[1], "messages and results must alternate: {order:?}");
    }
    assert_eq!(order.last(), Some(&&"agent.completed"), "{log}");
    Ok(())
}

fn asks_for_approval(agent: &str) -> Result<()> {
    let test = format!("{agent}_asks_for_approval");
    let Some(mut harness) = AgentHarness::start(agent, &test, SCRIPTS, ApprovalMode::Ask)? else { return Ok(()) };
    harness.set_answer(RequestAnswer::Deny { reason: "not here".to_owned() });
    harness.send_text("please #script:commands", AgentTurn::Idle)?;
    let request = harness.wait_for("request bash")?;
    ensure!(request.contains("touch allowed"), "{request}");
    harness.wait_for("agent.completed")?;
    assert!(harness.read_file("allowed").is_err(), "a denied command ran");
    harness.set_answer(RequestAnswer::Allow { input: None, context: None });
    harness.send_text("please #script:commands", AgentTurn::Idle)?;
    harness.wait_for("request bash")?;
    harness.wait_for("agent.completed")?;
    harness.read_file("allowed").context("the file is missing")?;
    Ok(())
}

fn resumes_a_conversation(agent: &str) -> Result<()> {
    let test = format!("{agent}_resumes_a_conversation");
    let Some(mut harness) = AgentHarness::start(agent, &test, SCRIPTS, ApprovalMode::Full)? else { return Ok(()) };
    harness.send_text("please #script:second", AgentTurn::Idle)?;
    harness.wait_for("agent.completed")?;
    harness.restart(&test)?;
    harness.send_text("go on please", AgentTurn::Idle)?;
    harness.wait_for("agent.completed")?;
    // An agent without this ability usually reports the failure; if it finds its conversation after all, it must use it.
    if !harness.can_resume() && harness.count_lines("agent.system_message") == 1 {
        return Ok(());
    }
    ensure!(harness.log.iter().any(|line| line.contains("The second turn.")), "{}", harness.log.join("\n"));
    Ok(())
}

macro_rules! agents {
    ($($agent:ident: $how:literal),+) => {$(
        mod $agent {
            use anyhow::Result;

            #[test]
            fn completes_a_turn() -> Result<()> {
                super::completes_a_turn(stringify!($agent))
            }

            #[test]
            fn accepts_a_steer() -> Result<()> {
                super::accepts_a_steer(stringify!($agent), $how)
            }

            #[test]
            fn stops_on_interrupt() -> Result<()> {
                super::stops_on_interrupt(stringify!($agent))
            }

            #[test]
            fn requeues_unseen_messages() -> Result<()> {
                super::requeues_unseen_messages(stringify!($agent))
            }

            #[test]
            fn runs_tools_in_parallel() -> Result<()> {
                super::runs_tools_in_parallel(stringify!($agent))
            }

            #[test]
            fn asks_for_approval() -> Result<()> {
                super::asks_for_approval(stringify!($agent))
            }

            #[test]
            fn resumes_a_conversation() -> Result<()> {
                super::resumes_a_conversation(stringify!($agent))
            }
        }
    )+};
}

agents! { claude: "injected", codex: "injected", gemini: "restarted", opencode: "injected" }

/// The bridge ends its server, which would ignore the signal.
#[test]
fn the_opencode_bridge_stops_its_server() -> Result<()> {
    let test = "the_opencode_bridge_stops_its_server";
    let Some(mut harness) = AgentHarness::start("opencode", test, SCRIPTS, ApprovalMode::Full)? else { return Ok(()) };
    harness.wait_for("NativeId")?;
    let server = harness.child_pids()?;
    assert_eq!(server.len(), 1);
    harness.send_sigterm()?;
    let process = format!("/proc/{}", server[0]);
    atoll_test_wait::wait_until("the server's end", || !std::path::Path::new(&process).exists());
    Ok(())
}
