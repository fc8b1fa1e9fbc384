//! What a sandbox feels of bombs in another: its commands in quiet, and while one next to it has a fork bomb, a memory
//! bomb, a flood of descriptors and a full file going on, again and again. Beside it, what a bare program of the host
//! feels of them: the kernel's own part.

use super::sandbox::{commands, programs, provider, spec};
use crate::bench::Bench;
use crate::report::{Figure, Verdict};
use crate::stats::Latencies;
use anyhow::{Result, bail};
use atoll_core::provider::{Command, CreateSpec, ExecSpec, Provider, ProviderId};
use atoll_core::sandbox::{Resources, Settings};
use atoll_providers::Local;
use futures_util::StreamExt;
use serde_json::json;
use std::process::Command as Bare;
use std::time::Duration;

const BAR: f64 = 3.0;
const BOMBS: [&str; 4] = [
    "bomb() { bomb | bomb & }; bomb 2>/dev/null; sleep 2; kill -s KILL -- -1",
    "tail /dev/zero",
    "while exec {next}</dev/null; do :; done 2>/dev/null",
    "head -c 200M /dev/zero >fill; rm -f fill",
];

/// Sets them off one after another, for ever; what becomes of each is its own affair.
async fn explode(local: &Local, id: &ProviderId, bomb: &str) {
    loop {
        // Below what was started, as an agent's tools are.
        let script = format!("({bomb}) & wait");
        let command = Command::Argv(["bash", "-c", &script].map(str::to_owned).to_vec());
        let timeout = Some(Duration::from_secs(5));
        let spec = ExecSpec {
            command,
            cwd: None,
            env: Default::default(),
            stdin: false,
            as_root: false,
            terminal: None,
            timeout,
        };
        if let Ok(exec) = local.exec(id, &spec).await
            && let Ok(mut events) = local.attach(&exec, 0).await
        {
            while events.next().await.is_some() {}
        }
        // Not even where no process can be had any more does this become a load of its own.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Programs of the host, started one after another without Atoll.
async fn bare(count: usize) -> Result<Latencies> {
    tokio::task::spawn_blocking(move || programs(count, || Bare::new("true"))).await?
}

/// How long commands took in a sandbox, and programs of the host.
#[derive(Default)]
struct Took {
    commands: Latencies,
    bare: Latencies,
}

impl Took {
    async fn add(&mut self, local: &Local, neighbour: &ProviderId, count: usize) -> Result<()> {
        self.commands.extend(commands(local, neighbour, count).await?);
        self.bare.extend(bare(count).await?);
        Ok(())
    }
}

pub async fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let dir = bench.scratch()?;
    let local = provider(bench, dir.path())?;
    let resources = Resources { memory_gb: Some(0.15), cpu: Some(1.0), disk_gb: Some(1.0), pids: Some(100) };
    let narrow = CreateSpec { settings: Settings { resources: Some(resources), ..Settings::default() }, ..spec() };
    let bombed = local.create(&narrow, "bombed").await?.id;
    let neighbour = local.create(&spec(), "neighbour").await?.id;
    let count = bench.plan.neighbour;
    commands(&local, &neighbour, 10).await?;
    let (mut quiet, mut loud) = (Took::default(), Took::default());
    for _ in 0..bench.plan.rounds {
        quiet.add(&local, &neighbour, count).await?;
        let [one, two, three, four] = BOMBS.map(|bomb| explode(&local, &bombed, bomb));
        let measured = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            loud.add(&local, &neighbour, count).await
        };
        tokio::select! {
            measured = measured => measured?,
            ((), (), (), ()) = async { tokio::join!(one, two, three, four) } => bail!("the bombs have ended"),
        }
        // What is still going on there ends by its time-out.
        tokio::time::sleep(Duration::from_secs(6)).await;
    }
    local.destroy(&bombed).await?;
    local.destroy(&neighbour).await?;
    let [quiet, loud] = [quiet, loud].map(|mut took| (took.commands.p99(), took.bare.p99()));
    Ok(vec![Figure {
        figure: "exec of `true` beside bombs in another sandbox".into(),
        measured: format!("p99 {:.2} ms ({:.2} ×)", loud.0, loud.0 / quiet.0),
        floor: format!("quiet {:.2} ms; bare {:.2} ms ({:.2} ×)", quiet.0, loud.1, loud.1 / quiet.1),
        bar: format!("< {BAR} × quiet"),
        verdict: Verdict::of(loud.0 < BAR * quiet.0),
        numbers: json!({
            "p99_ms": loud.0, "quiet_p99_ms": quiet.0, "bare_p99_ms": loud.1, "bare_quiet_p99_ms": quiet.1,
            "commands": count * bench.plan.rounds,
        }),
    }])
}
