//! Copying a tree into a sandbox and back with `atoll sandbox cp`. Floor: `tar` piped into another `tar` over the same
//! files, also in memory.

use super::local_sandboxes::LocalSandboxes;
use crate::bench::{Bench, print_progress};
use crate::report::{Figure, FigureVerdict};
use crate::server::BenchServer;
use crate::stats::median_of;
use anyhow::{Result, ensure};
use serde_json::json;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Bar, relative to the floor's throughput.
const BAR: f64 = 0.6;
const LARGE_FILE_BYTES: usize = 8 << 20;

/// Writes files of many sizes, a hundred per directory; returns their total size.
fn write_tree(root: &Path, small: usize, large: usize) -> Result<u64> {
    let mut bytes = 0;
    let pattern: Vec<u8> =
        (0..LARGE_FILE_BYTES as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut write_file = |path: &Path, size: usize| -> Result<()> {
        bytes += size as u64;
        Ok(std::fs::write(path, &pattern[..size])?)
    };
    for number in 0..small {
        let directory = root.join(format!("small/{}", number / 100));
        std::fs::create_dir_all(&directory)?;
        write_file(&directory.join(format!("file-{number}")), 200 + number * 7919 % 40_000)?;
    }
    std::fs::create_dir_all(root.join("large"))?;
    for number in 0..large {
        write_file(&root.join(format!("large/{number}")), LARGE_FILE_BYTES)?;
    }
    Ok(bytes)
}

fn time_command(mut command: Command) -> Result<f64> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    // Otherwise this command would wait for the previous one's writes.
    ensure!(Command::new("sync").status()?.success(), "`sync` failed");
    let began = Instant::now();
    let status = command.status()?;
    let took = began.elapsed().as_secs_f64();
    ensure!(status.success(), "{:?} ended with {status}", command.get_program());
    Ok(took)
}

fn time_tar(from: &Path, to: &Path) -> Result<f64> {
    std::fs::create_dir(to)?;
    let mut command = Command::new("sh");
    command.args(["-c", "tar -C \"$0\" -c . | tar -C \"$1\" -x"]).arg(from).arg(to);
    time_command(command)
}

fn time_copy(program: &Path, server: &BenchServer, from: &str, to: &str) -> Result<f64> {
    let mut command = Command::new(program);
    command.args(["sandbox", "cp", from, to]);
    command.env("ATOLL_SERVER", format!("http://{}", server.address)).env("ATOLL_TOKEN", &server.token);
    time_command(command)
}

pub async fn measure_file_copy(bench: &Bench) -> Result<Vec<Figure>> {
    let scratch = bench.start_server_in_memory()?;
    let (server, dir) = (&scratch.server, scratch.dir.path());
    let tree = dir.join("tree");
    let bytes = write_tree(&tree, bench.plan.small_files, bench.plan.large_files)?;
    let text = |path: &Path| path.to_string_lossy().into_owned();

    let work = LocalSandboxes::new(server);
    let id = work
        .create_sandbox(json!({ "provider": "local", "agent": "demo", "prompt": "say ready", "end": "keep" }))
        .await?;
    work.wait_for_state(&id, &["running"]).await?;
    let (mut floors, mut ups, mut downs) = (Vec::new(), Vec::new(), Vec::new());
    // The first round warms the caches.
    for round in 0..=bench.plan.rounds {
        let (piped, down) = (dir.join(format!("piped-{round}")), dir.join(format!("down-{round}")));
        let inside = format!("{id}:copy-{round}");
        let floor = time_tar(&tree, &piped)?;
        let up = time_copy(&bench.program, server, &text(&tree), &inside)?;
        let back = time_copy(&bench.program, server, &inside, &text(&down))?;
        let compared = Command::new("diff").args(["-r", "-q"]).arg(&tree).arg(&down).status()?;
        ensure!(compared.success(), "the downloaded tree differs");
        std::fs::remove_dir_all(piped)?;
        std::fs::remove_dir_all(down)?;
        let path = format!("/api/v1/sandboxes/{id}/files?path=copy-{round}&recursive=true");
        server.connect_admin().await?.delete(&path.parse()?).await?;
        if round > 0 {
            let rate = |seconds: f64| bytes as f64 / seconds / 1e6;
            print_progress(&format!(
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
    work.delete_sandbox(&id).await?;
    let floor = median_of(floors.iter().copied());
    let figure = |name: &str, rates: &[f64]| {
        let rate = median_of(rates.iter().copied());
        Figure {
            name: format!("files: {name} through the API"),
            measured: format!("{rate:.0} MB/s ({:.2} × tar)", rate / floor),
            floor: format!("tar through a pipe {floor:.0} MB/s"),
            bar: format!("≥ {BAR} × tar"),
            verdict: FigureVerdict::from_met(rate >= BAR * floor),
            numbers: json!({ "megabytes_per_second": rates, "tar_megabytes_per_second": floors, "bytes": bytes }),
        }
    };
    Ok(vec![figure("upload", &ups), figure("download", &downs)])
}
