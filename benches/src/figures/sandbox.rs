//! Local sandboxes through the provider: from `create` to the exit of `true`, and `true` in an existing sandbox. Floors:
//! bubblewrap and runc for the same; `true` without a sandbox.

use crate::bench::{Bench, print_progress};
use crate::report::{Figure, FigureVerdict};
use crate::stats::{Latencies, median_of};
use anyhow::{Context, Result, bail, ensure};
use atoll_core::BoxFuture;
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::provider::{
    CommandExit, CreateSpec, ExecCommand as Run, ExecEvent, ExecSpec, Identity, Provider, ProviderId,
};
use atoll_core::sandbox::Settings;
use atoll_jail::{Launcher, LauncherOptions};
use atoll_providers::{LinkHost, Local, SandboxNotice};
use futures_util::StreamExt;
use serde_json::json;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;
use tokio::net::UnixStream;
use tokio::sync::Notify;

/// Create and run `true`, relative to a whole bubblewrap run.
const BAR_CREATE: f64 = 2.5;
/// A command, relative to spawn and wait on the host.
const BAR_EXEC: f64 = 5.0;

/// Never answers the workers: these figures need no server.
pub(super) struct SilentLinkHost;

impl LinkHost for SilentLinkHost {
    fn serve_connection(
        &self,
        _sandbox: SandboxId,
        connection: UnixStream,
        _first: Arc<Notify>,
    ) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            std::future::pending::<()>().await;
            drop(connection);
        })
    }

    fn report_worker_death(&self, _sandbox: SandboxId) {}

    fn report_notice(&self, _sandbox: SandboxId, _notice: SandboxNotice) {}
}

pub(super) fn sandbox_spec() -> CreateSpec {
    let identity = Identity {
        deployment: "bench".into(),
        sandbox: SandboxId::new(),
        session: SessionId::new(),
        project: ProjectId::new(),
    };
    CreateSpec {
        identity,
        labels: Default::default(),
        settings: Settings::default(),
        source: None,
        programs: Vec::new(),
        cache: None,
    }
}

fn true_command() -> ExecSpec {
    let command = Run::Argv(vec!["true".into()]);
    ExecSpec {
        command,
        cwd: None,
        env: Default::default(),
        has_stdin: false,
        as_root: false,
        terminal: None,
        timeout: None,
    }
}

pub(super) async fn run_true(provider: &dyn Provider, id: &ProviderId) -> Result<()> {
    let exec = provider.exec(id, &true_command()).await?;
    let mut events = provider.attach(&exec, 0).await?;
    while let Some(event) = events.next().await {
        match event? {
            ExecEvent::Ended(CommandExit::Exited { code: 0 }) => return Ok(()),
            ExecEvent::Ended(exit) => bail!("`true` ended with {exit:?}"),
            ExecEvent::Output { .. } | ExecEvent::Gap { .. } => {}
        }
    }
    bail!("`true` did not end")
}

pub(super) async fn time_creations(provider: &dyn Provider, count: usize) -> Result<Latencies> {
    let mut latencies = Latencies::default();
    for _ in 0..count {
        let spec = sandbox_spec();
        let began = Instant::now();
        let sandbox = provider.create(&spec, "bench").await?;
        run_true(provider, &sandbox.id).await?;
        latencies.push(began.elapsed());
        provider.destroy(&sandbox.id).await?;
    }
    Ok(latencies)
}

pub(super) async fn time_commands(local: &Local, id: &ProviderId, count: usize) -> Result<Latencies> {
    let mut latencies = Latencies::default();
    for _ in 0..count {
        let began = Instant::now();
        run_true(local, id).await?;
        latencies.push(began.elapsed());
    }
    Ok(latencies)
}

/// Times `count` runs of a program of the host.
pub(super) fn time_programs(count: usize, mut command: impl FnMut() -> Command) -> Result<Latencies> {
    let mut latencies = Latencies::default();
    for _ in 0..count {
        let mut command = command();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let began = Instant::now();
        let status = command.status().with_context(|| format!("cannot run {:?}", command.get_program()))?;
        latencies.push(began.elapsed());
        ensure!(status.success(), "{:?} ended with {status}", command.get_program());
    }
    Ok(latencies)
}

pub(super) fn bubblewrap_command() -> Command {
    let mut command = Command::new("bwrap");
    command.args(["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]);
    command
}

/// Writes a bundle with the host's /usr as root and runc's default namespaces.
fn write_runc_bundle(dir: &Path) -> Result<()> {
    let root = dir.join("rootfs");
    for name in ["usr", "proc", "dev", "sys"] {
        std::fs::create_dir_all(root.join(name))?;
    }
    for name in ["bin", "lib", "lib64"] {
        std::os::unix::fs::symlink(format!("usr/{name}"), root.join(name))?;
    }
    let status = Command::new("runc").arg("spec").current_dir(dir).status().context("cannot run runc")?;
    ensure!(status.success(), "`runc spec` failed");
    let file = dir.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    config["process"]["args"] = json!(["/usr/bin/true"]);
    config["process"]["terminal"] = false.into();
    config["mounts"] = json!([
        {"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"]},
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
    ]);
    Ok(std::fs::write(file, config.to_string())?)
}

fn runc_command(bundle: &Path, state: &Path, number: &mut usize) -> Command {
    *number += 1;
    let mut command = Command::new("runc");
    command.arg("--root").arg(state).arg("run").arg("--bundle").arg(bundle);
    command.arg(format!("bench-{}-{number}", std::process::id()));
    command
}

/// Starts a provider with its own launcher and data in `dir`.
pub(super) fn start_provider(bench: &Bench, dir: &Path) -> Result<Local> {
    let data = dir.join("data");
    std::fs::create_dir(&data)?;
    let worker = bench.worker_program()?;
    let options = LauncherOptions { exe: bench.program.clone(), ..LauncherOptions::new(data, worker, "bench") };
    Ok(Local::new(Ok(Arc::new(Launcher::start(options)?)), Arc::new(SilentLinkHost)))
}

pub async fn measure_sandbox(bench: &Bench) -> Result<Vec<Figure>> {
    let dir = bench.scratch_dir()?;
    let local = start_provider(bench, dir.path())?;
    let bundle = dir.path().join("bundle");
    std::fs::create_dir(&bundle)?;
    write_runc_bundle(&bundle)?;
    let (state, mut number) = (dir.path().join("runc"), 0);

    let (rounds, count) = (bench.plan.rounds, bench.plan.sandboxes);
    time_creations(&local, 3).await?;
    let (mut creations, mut bwraps, mut runcs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        bwraps.push(time_programs(count, bubblewrap_command)?.p50());
        creations.push(time_creations(&local, count).await?.p50());
        runcs.push(time_programs(count.div_ceil(3), || runc_command(&bundle, &state, &mut number))?.p50());
        if let (Some(creations), Some(bwrap), Some(runc)) = (creations.last(), bwraps.last(), runcs.last()) {
            print_progress(&format!(
                "  create → exit of true {creations:.2} ms, bwrap {bwrap:.2} ms, runc {runc:.2} ms"
            ));
        }
    }

    let sandbox = local.create(&sandbox_spec(), "bench").await?;
    time_commands(&local, &sandbox.id, 10).await?;
    let (mut execs, mut spawns) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        spawns.push(time_programs(bench.plan.commands, || Command::new("/usr/bin/true"))?.p50());
        execs.push(time_commands(&local, &sandbox.id, bench.plan.commands).await?.p50());
        if let (Some(exec), Some(spawn)) = (execs.last(), spawns.last()) {
            print_progress(&format!("  exec of true {exec:.2} ms, spawn {spawn:.2} ms"));
        }
    }
    local.destroy(&sandbox.id).await?;

    let [create, bwrap, runc] = [&creations, &bwraps, &runcs].map(|all| median_of(all.iter().copied()));
    let [exec, spawn] = [&execs, &spawns].map(|all| median_of(all.iter().copied()));
    Ok(vec![
        Figure {
            name: "local sandbox: create → exit of `true`".into(),
            measured: format!("p50 {create:.2} ms ({:.2} × bwrap)", create / bwrap),
            floor: format!("bwrap {bwrap:.2} ms, runc {runc:.2} ms"),
            bar: format!("< {BAR_CREATE} × bwrap, < runc"),
            verdict: FigureVerdict::from_met(create < BAR_CREATE * bwrap && create < runc),
            numbers: json!({ "p50_ms": creations, "bwrap_p50_ms": bwraps, "runc_p50_ms": runcs }),
        },
        Figure {
            name: "local sandbox: exec of `true`".into(),
            measured: format!("p50 {exec:.2} ms ({:.2} × spawn)", exec / spawn),
            floor: format!("spawn and wait {spawn:.2} ms"),
            bar: format!("< {BAR_EXEC} × spawn"),
            verdict: FigureVerdict::from_met(exec < BAR_EXEC * spawn),
            numbers: json!({ "p50_ms": execs, "spawn_p50_ms": spawns }),
        },
    ])
}
