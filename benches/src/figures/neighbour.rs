//! What a sandbox feels of bombs in another: its commands in quiet, and while one next to it has a fork bomb, a memory
//! bomb, a flood of descriptors and a full file going on, again and again.

use super::sandbox::{commands, provider, spec};
use crate::bench::{Bench, note};
use crate::report::{Figure, Verdict};
use crate::stats::median;
use anyhow::Result;
use atoll_core::provider::{Command, CreateSpec, ExecSpec, Provider, ProviderId};
use atoll_core::sandbox::{Resources, Settings};
use atoll_providers::Local;
use futures_util::StreamExt;
use serde_json::json;
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

pub async fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let dir = bench.scratch()?;
    let local = provider(bench, dir.path())?;
    let resources = Resources { memory_gb: Some(0.15), cpu: Some(1.0), disk_gb: Some(1.0), pids: Some(100) };
    let narrow = CreateSpec { settings: Settings { resources: Some(resources), ..Settings::default() }, ..spec() };
    let bombed = local.create(&narrow, "bombed").await?.id;
    let neighbour = local.create(&spec(), "neighbour").await?.id;
    let count = bench.plan.neighbour;
    commands(&local, &neighbour, 10).await?;
    let (mut quiets, mut louds) = (Vec::new(), Vec::new());
    for _ in 0..bench.plan.rounds {
        let quiet = commands(&local, &neighbour, count).await?.p99();
        let loud = {
            let [one, two, three, four] = BOMBS.map(|bomb| explode(&local, &bombed, bomb));
            let measured = async {
                tokio::time::sleep(Duration::from_millis(500)).await;
                commands(&local, &neighbour, count).await
            };
            tokio::select! {
                loud = measured => loud?.p99(),
                ((), (), (), ()) = async { tokio::join!(one, two, three, four) } => f64::NAN,
            }
        };
        note(&format!("  exec of true p99 {loud:.2} ms beside bombs, {quiet:.2} ms in quiet"));
        quiets.push(quiet);
        louds.push(loud);
        // What is still going on there ends by its time-out.
        tokio::time::sleep(Duration::from_secs(6)).await;
    }
    local.destroy(&bombed).await?;
    local.destroy(&neighbour).await?;
    let [quiet, loud] = [&quiets, &louds].map(|all| median(all.iter().copied()));
    Ok(vec![Figure {
        figure: "exec of `true` beside bombs in another sandbox".into(),
        measured: format!("p99 {loud:.2} ms ({:.2} ×)", loud / quiet),
        floor: format!("in quiet p99 {quiet:.2} ms"),
        bar: format!("< {BAR} × quiet"),
        verdict: Verdict::of(loud < BAR * quiet),
        numbers: json!({ "p99_ms": louds, "quiet_p99_ms": quiets, "commands": count }),
    }])
}
