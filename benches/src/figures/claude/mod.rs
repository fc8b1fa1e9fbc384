//! Atoll's overhead on Claude Code: from a message to the model's next request, from an interrupt to an idle agent, and on
//! a whole turn. Floor: the same program without Atoll. The scripted model answers; `scripts/agents` installs the program.

mod direct_agent;

use super::local_sandboxes::LocalSandboxes;
use crate::bench::{Bench, print_progress};
use crate::report::{Figure, FigureVerdict};
use crate::server::BenchServer;
use crate::stats::Latencies;
use anyhow::{Context, Result, ensure};
use atoll_core::time::Timestamp;
use atoll_drivers::AgentTurn;
use atoll_model_script::{ScriptedModel, Scripts};
use direct_agent::DirectAgent;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const TURN_TIMEOUT: Duration = Duration::from_secs(120);
const STEER_BAR_MS: f64 = 50.0;
const INTERRUPT_BAR_MS: f64 = 150.0;
/// Delay from the model's response until the tool certainly runs.
const TOOL_START_DELAY: Duration = Duration::from_millis(300);

fn model_scripts(messages: usize) -> Result<Scripts> {
    let steps = "      - run: sleep 0.7; echo slept\n".repeat(messages + 1);
    let text = format!(
        "scripts:\n  - name: steer\n    steps:\n{steps}      - say: All is done.\n  \
           - name: interrupt\n    steps:\n      - run: tail -f /dev/null\n  \
           - name: work\n    steps:\n      - say: I begin.\n      - write: {{file: a.txt, content: \"hello\\n\"}}\n      \
           - edit: {{file: a.txt, old: hello, new: goodbye}}\n      - run: cat a.txt\n      - say: Done.\n"
    );
    Ok(Scripts::parse(&text)?)
}

/// The path to the agent: through Atoll, or directly over its pipes.
enum AgentAccess<'a> {
    Atoll { server: &'a BenchServer, work: LocalSandboxes<'a>, id: String },
    Direct(DirectAgent),
}

impl AgentAccess<'_> {
    async fn start_turn(&mut self, text: &str) -> Result<()> {
        match self {
            Self::Atoll { .. } => self.post_message(text, "user_message").await,
            Self::Direct(direct) => {
                direct.send_message(text, AgentTurn::Idle);
                Ok(())
            }
        }
    }

    async fn steer_agent(&mut self, text: &str) -> Result<()> {
        match self {
            Self::Atoll { .. } => self.post_message(text, "user_message").await,
            Self::Direct(direct) => {
                direct.send_message(text, AgentTurn::InTurn);
                Ok(())
            }
        }
    }

    async fn interrupt_agent(&mut self) -> Result<()> {
        match self {
            Self::Atoll { .. } => self.post_message("enough", "interrupt").await,
            Self::Direct(direct) => {
                direct.send_interrupt();
                Ok(())
            }
        }
    }

    async fn post_message(&self, text: &str, kind: &str) -> Result<()> {
        let Self::Atoll { server, id, .. } = self else { return Ok(()) };
        let path = format!("/api/v1/sandboxes/{id}/messages").parse()?;
        let body = json!({ "content": text, "type": kind }).to_string();
        server.connect_admin().await?.post(&path, body.into()).await?;
        Ok(())
    }

    /// Time from `began` to the end of turn number `turns`. Through Atoll, the turn ends when its event is stored.
    async fn wait_for_turn_end(&mut self, turns: usize, began: Instant, at: Timestamp) -> Result<Duration> {
        match self {
            Self::Direct(direct) => Ok(direct.wait_until_idle().await?.saturating_duration_since(began)),
            Self::Atoll { work, id, .. } => loop {
                let events = work.list_events(id).await?;
                let is_end =
                    |event: &&Value| event["type"] == "agent.completed" || event["type"] == "agent.interrupted";
                if let Some(end) = events.iter().filter(is_end).nth(turns - 1) {
                    let stored: Timestamp =
                        end["received_at"].as_str().unwrap_or_default().parse().map_err(time_error)?;
                    let took = stored.as_micros() - at.as_micros();
                    return Ok(Duration::from_micros(u64::try_from(took).unwrap_or(0)));
                }
                ensure!(began.elapsed() < TURN_TIMEOUT, "the turn does not end");
                tokio::time::sleep(Duration::from_millis(20)).await;
            },
        }
    }
}

fn time_error(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("not a timestamp: {error}")
}

fn current_time() -> Timestamp {
    use atoll_core::time::Clock;
    atoll_core::time::SystemClock::start().now()
}

struct AgentTimes {
    run: Duration,
    steered: Latencies,
    interrupted: Latencies,
}

async fn time_agent(
    access: &mut AgentAccess<'_>,
    model: &ScriptedModel,
    messages: usize,
    interrupts: usize,
) -> Result<AgentTimes> {
    // The first turn includes the program's start; only the second one counts.
    let mut turns = 1;
    access.start_turn("warm up #script:work").await?;
    access.wait_for_turn_end(turns, Instant::now(), current_time()).await?;
    let (began, at) = (Instant::now(), current_time());
    turns += 1;
    access.start_turn("do it #script:work").await?;
    let run = access.wait_for_turn_end(turns, began, at).await?;

    let mut steered = Latencies::default();
    let before = model.requests().len();
    let (began, at) = (Instant::now(), current_time());
    turns += 1;
    access.start_turn("go #script:steer").await?;
    let wait_for_step =
        |count: usize| model.wait_for_request(move |it| it.number as usize > before + count, TURN_TIMEOUT);
    for number in 0..messages {
        wait_for_step(number).await.context("no request to the model")?;
        tokio::time::sleep(TOOL_START_DELAY).await;
        let word = format!("MARK-{turns}-{number}-END");
        let sent = Instant::now();
        access.steer_agent(&word).await?;
        model
            .wait_for_request(|it| it.body_contains(&word), TURN_TIMEOUT)
            .await
            .context("the message did not reach the model")?;
        steered.push(sent.elapsed());
    }
    access.wait_for_turn_end(turns, began, at).await?;

    let mut interrupted = Latencies::default();
    for _ in 0..interrupts {
        let before = model.requests().len();
        turns += 1;
        access.start_turn("go #script:interrupt").await?;
        model
            .wait_for_request(|it| it.number as usize > before && it.script.is_some(), TURN_TIMEOUT)
            .await
            .context("no request")?;
        tokio::time::sleep(TOOL_START_DELAY + TOOL_START_DELAY).await;
        let (began, at) = (Instant::now(), current_time());
        access.interrupt_agent().await?;
        interrupted.push(access.wait_for_turn_end(turns, began, at).await?);
    }
    Ok(AgentTimes { run, steered, interrupted })
}

fn find_claude() -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let program = target.join("agents/bin/claude");
    ensure!(program.exists(), "{} does not exist: install it with scripts/agents", program.display());
    Ok(program.canonicalize()?)
}

async fn time_through_atoll(bench: &Bench, program: &Path, dir: &Path) -> Result<AgentTimes> {
    let model = ScriptedModel::start(model_scripts(bench.plan.steered_messages)?).await?;
    let (model_url, program) = (model.base_url(), program.to_string_lossy().into_owned());
    let environment = [
        ("ANTHROPIC_BASE_URL", model_url.as_str()),
        ("ANTHROPIC_API_KEY", "sk-bench"),
        ("ATOLL_AGENTS_CLAUDE_PATH", program.as_str()),
    ];
    let server = BenchServer::start_with_env(&bench.program, &dir.join("data"), None, &environment)?;
    let work = LocalSandboxes::new(&server);
    let settings = json!({ "provider": "local", "agent": "claude", "end": "keep", "approvals": "full" });
    let id = work.create_sandbox(settings).await?;
    work.wait_for_state(&id, &["running"]).await?;
    let mut access = AgentAccess::Atoll { server: &server, work: LocalSandboxes::new(&server), id: id.clone() };
    let measured = time_agent(&mut access, &model, bench.plan.steered_messages, bench.plan.interrupts).await?;
    work.delete_sandbox(&id).await?;
    Ok(measured)
}

async fn time_direct(bench: &Bench, program: &Path, dir: &Path) -> Result<AgentTimes> {
    let model = ScriptedModel::start(model_scripts(bench.plan.steered_messages)?).await?;
    let mut access = AgentAccess::Direct(DirectAgent::start_agent(program, &model.base_url(), &dir.join("direct"))?);
    let measured = time_agent(&mut access, &model, bench.plan.steered_messages, bench.plan.interrupts).await?;
    if let AgentAccess::Direct(direct) = access {
        direct.kill_agent().await?;
    }
    Ok(measured)
}

pub async fn measure_claude(bench: &Bench) -> Result<Vec<Figure>> {
    let (program, dir) = (find_claude()?, bench.scratch_dir()?);
    let mut floor = time_direct(bench, &program, dir.path()).await?;
    print_progress(&format!("  without Atoll: a message p95 {:.1} ms", floor.steered.p95()));
    let mut figure = time_through_atoll(bench, &program, dir.path()).await?;
    print_progress(&format!("  through Atoll: a message p95 {:.1} ms", figure.steered.p95()));
    let (steer, steer_direct) = (figure.steered.p95(), floor.steered.p95());
    let added = steer - steer_direct;
    let (idle, idle_direct) = (figure.interrupted.p95(), floor.interrupted.p95());
    let (run, run_direct) = (figure.run.as_secs_f64() * 1000.0, floor.run.as_secs_f64() * 1000.0);
    Ok(vec![
        Figure {
            name: "message POST → in Claude Code's next request".into(),
            measured: format!("{added:+.1} ms at p95 (p95 {steer:.1}, p50 {:.1})", figure.steered.p50()),
            floor: format!("without Atoll p95 {steer_direct:.1} ms (p50 {:.1})", floor.steered.p50()),
            bar: format!("< {STEER_BAR_MS} ms added at p95"),
            verdict: FigureVerdict::from_met(added < STEER_BAR_MS),
            numbers: json!({ "p95_ms": steer, "without_p95_ms": steer_direct, "messages": bench.plan.steered_messages }),
        },
        Figure {
            name: "interrupt POST → Claude Code idle, and stored".into(),
            measured: format!("p95 {idle:.1} ms (p50 {:.1})", figure.interrupted.p50()),
            floor: format!("without Atoll p95 {idle_direct:.1} ms"),
            bar: format!("< {INTERRUPT_BAR_MS} ms"),
            verdict: FigureVerdict::from_met(idle < INTERRUPT_BAR_MS),
            numbers: json!({ "p95_ms": idle, "without_p95_ms": idle_direct, "interrupts": bench.plan.interrupts }),
        },
        Figure {
            name: "a whole turn of Claude Code (four requests, three tools)".into(),
            measured: format!("{run:.0} ms through Atoll"),
            floor: format!("without Atoll {run_direct:.0} ms"),
            bar: "—".into(),
            verdict: FigureVerdict::Pass,
            numbers: json!({ "ms": run, "without_ms": run_direct }),
        },
    ])
}
