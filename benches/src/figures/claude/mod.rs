//! What Atoll adds to a working Claude Code: to a message until the model sees it, to an interrupt until the agent is
//! idle, and to a whole run. Each beside the same with the same program and nothing of Atoll around it, which is the
//! agent's own minimum. The model plays a script; `scripts/agents` installs the program.

mod direct;

use super::local_work::Work;
use crate::bench::{Bench, note};
use crate::report::{Figure, Verdict};
use crate::server::Server;
use crate::stats::Latencies;
use anyhow::{Context, Result, ensure};
use atoll_core::time::Timestamp;
use atoll_model_script::{ScriptedModel, Scripts};
use atoll_worker::driver::Standing;
use direct::Direct;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);
const STEER_BAR_MS: f64 = 50.0;
const INTERRUPT_BAR_MS: f64 = 150.0;
/// Into a tool, until something is said.
const INTO_IT: Duration = Duration::from_millis(300);

fn scripts(messages: usize) -> Result<Scripts> {
    let steps = "      - run: sleep 0.7; echo slept\n".repeat(messages + 1);
    let text = format!(
        "scripts:\n  - name: steer\n    steps:\n{steps}      - say: All is done.\n  \
           - name: interrupt\n    steps:\n      - run: tail -f /dev/null\n  \
           - name: work\n    steps:\n      - say: I begin.\n      - write: {{file: a.txt, content: \"hello\\n\"}}\n      \
           - edit: {{file: a.txt, old: hello, new: goodbye}}\n      - run: cat a.txt\n      - say: Done.\n"
    );
    Ok(Scripts::parse(&text)?)
}

/// Where somebody speaks to the agent: through Atoll, or by its pipe.
enum Way<'a> {
    Atoll { server: &'a Server, work: Work<'a>, id: String },
    Direct(Direct),
}

impl Way<'_> {
    async fn begin(&mut self, text: &str) -> Result<()> {
        match self {
            Self::Atoll { .. } => self.post(text, "user_message").await,
            Self::Direct(direct) => {
                direct.tell(text, Standing::Idle);
                Ok(())
            }
        }
    }

    async fn steer(&mut self, text: &str) -> Result<()> {
        match self {
            Self::Atoll { .. } => self.post(text, "user_message").await,
            Self::Direct(direct) => {
                direct.tell(text, Standing::InTurn);
                Ok(())
            }
        }
    }

    async fn interrupt(&mut self) -> Result<()> {
        match self {
            Self::Atoll { .. } => self.post("enough", "interrupt").await,
            Self::Direct(direct) => {
                direct.interrupt();
                Ok(())
            }
        }
    }

    async fn post(&self, text: &str, kind: &str) -> Result<()> {
        let Self::Atoll { server, id, .. } = self else { return Ok(()) };
        let path = format!("/api/v1/sandboxes/{id}/messages").parse()?;
        let body = json!({ "content": text, "type": kind }).to_string();
        server.admin().await?.post(&path, body.into()).await?;
        Ok(())
    }

    /// How long it took from `began` until the `turns`th turn was over: through Atoll, until that was stored.
    async fn over(&mut self, turns: usize, began: Instant, at: Timestamp) -> Result<Duration> {
        match self {
            Self::Direct(direct) => Ok(direct.idle().await?.saturating_duration_since(began)),
            Self::Atoll { work, id, .. } => loop {
                let events = work.events(id).await?;
                let is_end =
                    |event: &&Value| event["type"] == "agent.completed" || event["type"] == "agent.interrupted";
                if let Some(end) = events.iter().filter(is_end).nth(turns - 1) {
                    let stored: Timestamp = end["received_at"].as_str().unwrap_or_default().parse().map_err(wrong)?;
                    let took = stored.as_micros() - at.as_micros();
                    return Ok(Duration::from_micros(u64::try_from(took).unwrap_or(0)));
                }
                ensure!(began.elapsed() < PATIENCE, "the turn does not end");
                tokio::time::sleep(Duration::from_millis(20)).await;
            },
        }
    }
}

fn wrong(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("no time: {error}")
}

fn now() -> Timestamp {
    use atoll_core::time::Clock;
    atoll_core::time::SystemClock::start().now()
}

struct Measured {
    run: Duration,
    steered: Latencies,
    interrupted: Latencies,
}

async fn measured(way: &mut Way<'_>, model: &ScriptedModel, messages: usize, interrupts: usize) -> Result<Measured> {
    // Its first turn takes what a program takes to come up; the second is the one that counts.
    let mut turns = 1;
    way.begin("warm up #script:work").await?;
    way.over(turns, Instant::now(), now()).await?;
    let (began, at) = (Instant::now(), now());
    turns += 1;
    way.begin("do it #script:work").await?;
    let run = way.over(turns, began, at).await?;

    let mut steered = Latencies::default();
    let before = model.requests().len();
    let (began, at) = (Instant::now(), now());
    turns += 1;
    way.begin("go #script:steer").await?;
    let asked = |count: usize| model.wait_for(move |it| it.number as usize > before + count, PATIENCE);
    for number in 0..messages {
        asked(number).await.context("the model is not asked")?;
        tokio::time::sleep(INTO_IT).await;
        let word = format!("MARK-{turns}-{number}-END");
        let sent = Instant::now();
        way.steer(&word).await?;
        model.wait_for(|it| it.mentions(&word), PATIENCE).await.context("the model does not hear of it")?;
        steered.push(sent.elapsed());
    }
    way.over(turns, began, at).await?;

    let mut interrupted = Latencies::default();
    for _ in 0..interrupts {
        let before = model.requests().len();
        turns += 1;
        way.begin("go #script:interrupt").await?;
        model
            .wait_for(|it| it.number as usize > before && it.script.is_some(), PATIENCE)
            .await
            .context("no request")?;
        tokio::time::sleep(INTO_IT + INTO_IT).await;
        let (began, at) = (Instant::now(), now());
        way.interrupt().await?;
        interrupted.push(way.over(turns, began, at).await?);
    }
    Ok(Measured { run, steered, interrupted })
}

fn program() -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let program = target.join("agents/bin/claude");
    ensure!(program.exists(), "{} is not there: scripts/agents installs it", program.display());
    Ok(program.canonicalize()?)
}

async fn through_atoll(bench: &Bench, program: &Path, dir: &Path) -> Result<Measured> {
    let model = ScriptedModel::start(scripts(bench.plan.steered)?).await?;
    let (place, program) = (model.base_url(), program.to_string_lossy().into_owned());
    let environment = [
        ("ANTHROPIC_BASE_URL", place.as_str()),
        ("ANTHROPIC_API_KEY", "sk-bench"),
        ("ATOLL_AGENTS_CLAUDE_PATH", program.as_str()),
    ];
    let server = Server::start_in(&bench.program, &dir.join("data"), None, &environment)?;
    let work = Work::new(&server);
    let settings = json!({ "provider": "local", "agent": "claude", "end": "keep", "approvals": "full" });
    let id = work.make(settings).await?;
    work.until(&id, &["running"]).await?;
    let mut way = Way::Atoll { server: &server, work: Work::new(&server), id: id.clone() };
    let measured = measured(&mut way, &model, bench.plan.steered, bench.plan.interrupted).await?;
    work.remove(&id).await?;
    Ok(measured)
}

async fn without(bench: &Bench, program: &Path, dir: &Path) -> Result<Measured> {
    let model = ScriptedModel::start(scripts(bench.plan.steered)?).await?;
    let mut way = Way::Direct(Direct::start(program, &model.base_url(), &dir.join("direct"))?);
    let measured = measured(&mut way, &model, bench.plan.steered, bench.plan.interrupted).await?;
    if let Way::Direct(direct) = way {
        direct.end().await?;
    }
    Ok(measured)
}

pub async fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let (program, dir) = (program()?, bench.scratch()?);
    let mut floor = without(bench, &program, dir.path()).await?;
    note(&format!("  without Atoll: a message p95 {:.1} ms", floor.steered.p95()));
    let mut figure = through_atoll(bench, &program, dir.path()).await?;
    note(&format!("  through Atoll: a message p95 {:.1} ms", figure.steered.p95()));
    let (with, alone) = (figure.steered.p95(), floor.steered.p95());
    let added = with - alone;
    let (idle, idle_alone) = (figure.interrupted.p95(), floor.interrupted.p95());
    let (run, run_alone) = (figure.run.as_secs_f64() * 1000.0, floor.run.as_secs_f64() * 1000.0);
    Ok(vec![
        Figure {
            figure: "message POST → in Claude Code's next request".into(),
            measured: format!("{added:+.1} ms at p95 (p95 {with:.1}, p50 {:.1})", figure.steered.p50()),
            floor: format!("without Atoll p95 {alone:.1} ms (p50 {:.1})", floor.steered.p50()),
            bar: format!("< {STEER_BAR_MS} ms added at p95"),
            verdict: Verdict::of(added < STEER_BAR_MS),
            numbers: json!({ "p95_ms": with, "without_p95_ms": alone, "messages": bench.plan.steered }),
        },
        Figure {
            figure: "interrupt POST → Claude Code idle, and stored".into(),
            measured: format!("p95 {idle:.1} ms (p50 {:.1})", figure.interrupted.p50()),
            floor: format!("without Atoll p95 {idle_alone:.1} ms"),
            bar: format!("< {INTERRUPT_BAR_MS} ms"),
            verdict: Verdict::of(idle < INTERRUPT_BAR_MS),
            numbers: json!({ "p95_ms": idle, "without_p95_ms": idle_alone, "interrupts": bench.plan.interrupted }),
        },
        Figure {
            figure: "a whole turn of Claude Code (four requests, three tools)".into(),
            measured: format!("{run:.0} ms through Atoll"),
            floor: format!("without Atoll {run_alone:.0} ms"),
            bar: "—".into(),
            verdict: Verdict::Pass,
            numbers: json!({ "ms": run, "without_ms": run_alone }),
        },
    ])
}
