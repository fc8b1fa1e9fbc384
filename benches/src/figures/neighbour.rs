//! Noisy neighbour: commands in one sandbox while another repeatedly runs a fork bomb, a memory bomb, a descriptor leak and
//! a large file, against the same commands without them. Programs of the host show the kernel's share of the slow-down.

use super::sandbox::{sandbox_spec, start_provider, time_commands, time_programs};
use crate::bench::Bench;
use crate::report::{Figure, FigureVerdict};
use crate::stats::Latencies;
use anyhow::{Result, bail};
use atoll_core::provider::{CreateSpec, ExecCommand, ExecSpec, Provider, ProviderId};
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

/// Runs a bomb in a loop and ignores its outcome.
async fn run_bomb_repeatedly(local: &Local, id: &ProviderId, bomb: &str) {
    loop {
        // In a child of the started program, as an agent's tools are.
        let script = format!("({bomb}) & wait");
        let command = ExecCommand::Argv(["bash", "-c", &script].map(str::to_owned).to_vec());
        let timeout = Some(Duration::from_secs(5));
        let spec = ExecSpec {
            command,
            cwd: None,
            env: Default::default(),
            has_stdin: false,
            as_root: false,
            terminal: None,
            timeout,
        };
        if let Ok(exec) = local.exec(id, &spec).await
            && let Ok(mut events) = local.attach(&exec, 0).await
        {
            while events.next().await.is_some() {}
        }
        // Limit the loop's own load when no process can start any more.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Times programs of the host, started without Atoll.
async fn time_host_programs(count: usize) -> Result<Latencies> {
    tokio::task::spawn_blocking(move || time_programs(count, || Bare::new("true"))).await?
}

/// Latencies of commands in the sandbox and of programs of the host.
#[derive(Default)]
struct NeighbourTimes {
    commands: Latencies,
    host_programs: Latencies,
}

impl NeighbourTimes {
    async fn add_round(&mut self, local: &Local, neighbour: &ProviderId, count: usize) -> Result<()> {
        self.commands.extend(time_commands(local, neighbour, count).await?);
        self.host_programs.extend(time_host_programs(count).await?);
        Ok(())
    }
}

pub async fn measure_neighbour(bench: &Bench) -> Result<Vec<Figure>> {
    let dir = bench.scratch_dir()?;
    let local = start_provider(bench, dir.path())?;
    let resources = Resources { memory_gb: Some(0.15), cpu: Some(1.0), disk_gb: Some(1.0), pids: Some(100) };
    let narrow =
        CreateSpec { settings: Settings { resources: Some(resources), ..Settings::default() }, ..sandbox_spec() };
    let bombed = local.create(&narrow, "bombed").await?.id;
    let neighbour = local.create(&sandbox_spec(), "neighbour").await?.id;
    let count = bench.plan.neighbour_commands;
    time_commands(&local, &neighbour, 10).await?;
    let (mut quiet, mut loud) = (NeighbourTimes::default(), NeighbourTimes::default());
    for _ in 0..bench.plan.rounds {
        quiet.add_round(&local, &neighbour, count).await?;
        let [one, two, three, four] = BOMBS.map(|bomb| run_bomb_repeatedly(&local, &bombed, bomb));
        let measured = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            loud.add_round(&local, &neighbour, count).await
        };
        tokio::select! {
            measured = measured => measured?,
            ((), (), (), ()) = async { tokio::join!(one, two, three, four) } => bail!("the bomb loops ended"),
        }
        // Wait until the time-out ends the remaining bombs.
        tokio::time::sleep(Duration::from_secs(6)).await;
    }
    local.destroy(&bombed).await?;
    local.destroy(&neighbour).await?;
    let [quiet, loud] = [quiet, loud].map(|mut took| (took.commands.p99(), took.host_programs.p99()));
    Ok(vec![Figure {
        name: "exec of `true` with bombs in another sandbox".into(),
        measured: format!("p99 {:.2} ms ({:.2} ×)", loud.0, loud.0 / quiet.0),
        floor: format!("quiet {:.2} ms; bare {:.2} ms ({:.2} ×)", quiet.0, loud.1, loud.1 / quiet.1),
        bar: format!("< {BAR} × quiet"),
        verdict: FigureVerdict::from_met(loud.0 < BAR * quiet.0),
        numbers: json!({
            "p99_ms": loud.0, "quiet_p99_ms": quiet.0, "bare_p99_ms": loud.1, "bare_quiet_p99_ms": quiet.1,
            "commands": count * bench.plan.rounds,
        }),
    }])
}
