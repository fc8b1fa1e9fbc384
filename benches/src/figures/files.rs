//! A tree of files into a sandbox and out of it, by the command line and the API. Floor: `tar` through a pipe into
//! another `tar`, over the same files in the same place: in memory.

use super::local_work::Work;
use crate::bench::{Bench, note};
use crate::report::{Figure, Verdict};
use crate::server::Server;
use crate::stats::median;
use anyhow::{Result, ensure};
use serde_json::json;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Of the floor's speed.
const BAR: f64 = 0.6;
const LARGE: usize = 8 << 20;

/// Files of many sizes in directories of a hundred; gives their bytes.
fn plant(root: &Path, small: usize, large: usize) -> Result<u64> {
    let mut bytes = 0;
    let pattern: Vec<u8> = (0..LARGE as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut put = |path: &Path, size: usize| -> Result<()> {
        bytes += size as u64;
        Ok(std::fs::write(path, &pattern[..size])?)
    };
    for number in 0..small {
        let directory = root.join(format!("small/{}", number / 100));
        std::fs::create_dir_all(&directory)?;
        put(&directory.join(format!("file-{number}")), 200 + number * 7919 % 40_000)?;
    }
    std::fs::create_dir_all(root.join("large"))?;
    for number in 0..large {
        put(&root.join(format!("large/{number}")), LARGE)?;
    }
    Ok(bytes)
}

fn timed(mut command: Command) -> Result<f64> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    // What the one before wrote is not to be waited for by this one.
    ensure!(Command::new("sync").status()?.success(), "`sync` failed");
    let began = Instant::now();
    let status = command.status()?;
    let took = began.elapsed().as_secs_f64();
    ensure!(status.success(), "{:?} ended with {status}", command.get_program());
    Ok(took)
}

fn tar(from: &Path, to: &Path) -> Result<f64> {
    std::fs::create_dir(to)?;
    let mut command = Command::new("sh");
    command.args(["-c", "tar -C \"$0\" -c . | tar -C \"$1\" -x"]).arg(from).arg(to);
    timed(command)
}

fn copy(program: &Path, server: &Server, from: &str, to: &str) -> Result<f64> {
    let mut command = Command::new(program);
    command.args(["sandbox", "cp", from, to]);
    command.env("ATOLL_SERVER", format!("http://{}", server.address)).env("ATOLL_TOKEN", &server.token);
    timed(command)
}

pub async fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let scratch = bench.server_in_memory()?;
    let (server, dir) = (&scratch.server, scratch.dir.path());
    let tree = dir.join("tree");
    let bytes = plant(&tree, bench.plan.small_files, bench.plan.large_files)?;
    let text = |path: &Path| path.to_string_lossy().into_owned();

    let work = Work::new(server);
    let id = work.make(json!({ "provider": "local", "agent": "demo", "prompt": "say ready", "end": "keep" })).await?;
    work.until(&id, &["running"]).await?;
    let (mut floors, mut ups, mut downs) = (Vec::new(), Vec::new(), Vec::new());
    // The first round warms the caches.
    for round in 0..=bench.plan.rounds {
        let (piped, down) = (dir.join(format!("piped-{round}")), dir.join(format!("down-{round}")));
        let inside = format!("{id}:copy-{round}");
        let floor = tar(&tree, &piped)?;
        let up = copy(&bench.program, server, &text(&tree), &inside)?;
        let back = copy(&bench.program, server, &inside, &text(&down))?;
        let compared = Command::new("diff").args(["-r", "-q"]).arg(&tree).arg(&down).status()?;
        ensure!(compared.success(), "what came back is not what went");
        std::fs::remove_dir_all(piped)?;
        std::fs::remove_dir_all(down)?;
        let path = format!("/api/v1/sandboxes/{id}/files?path=copy-{round}&recursive=true");
        server.admin().await?.delete(&path.parse()?).await?;
        if round > 0 {
            let rate = |seconds: f64| bytes as f64 / seconds / 1e6;
            note(&format!(
                "  up {:.0} MB/s, down {:.0} MB/s, tar through a pipe {:.0} MB/s",
                rate(up),
                rate(back),
                rate(floor)
            ));
            floors.push(rate(floor));
            ups.push(rate(up));
            downs.push(rate(back));
        }
    }
    work.remove(&id).await?;
    let floor = median(floors.iter().copied());
    let figure = |name: &str, rates: &[f64]| {
        let rate = median(rates.iter().copied());
        Figure {
            figure: format!("files: {name} through the API"),
            measured: format!("{rate:.0} MB/s ({:.2} × tar)", rate / floor),
            floor: format!("tar through a pipe {floor:.0} MB/s"),
            bar: format!("≥ {BAR} × tar"),
            verdict: Verdict::of(rate >= BAR * floor),
            numbers: json!({ "megabytes_per_second": rates, "tar_megabytes_per_second": floors, "bytes": bytes }),
        }
    };
    Ok(vec![figure("upload", &ups), figure("download", &downs)])
}
