//! A local sandbox by its provider's own interface: from `create` until the exit of `true` is known,
//! and `true` in one that is there. Floors: bubblewrap and runc doing the same; `true` without a sandbox.

use crate::bench::{Bench, note};
use crate::report::{Figure, Verdict};
use crate::stats::{Latencies, median};
use anyhow::{Context, Result, bail, ensure};
use atoll_core::BoxFuture;
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::provider::{Command as Run, CreateSpec, ExecEvent, ExecSpec, Exit, Identity, Provider, ProviderId};
use atoll_core::sandbox::Settings;
use atoll_jail::{Launcher, LauncherOptions};
use atoll_providers::{LinkHost, Local, Notice};
use futures_util::StreamExt;
use serde_json::json;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;
use tokio::net::UnixStream;
use tokio::sync::Notify;

/// Made and run, against bubblewrap's whole life.
const BAR_CREATE: f64 = 2.5;
/// A command, against starting one and waiting for it.
const BAR_EXEC: f64 = 5.0;

/// Nobody answers the workers: what is measured needs no server.
pub(super) struct Nobody;

impl LinkHost for Nobody {
    fn serve(&self, _sandbox: SandboxId, connection: UnixStream, _first: Arc<Notify>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            std::future::pending::<()>().await;
            drop(connection);
        })
    }

    fn worker_gone(&self, _sandbox: SandboxId) {}

    fn notice(&self, _sandbox: SandboxId, _notice: Notice) {}
}

pub(super) fn spec() -> CreateSpec {
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
    }
}

fn nothing() -> ExecSpec {
    let command = Run::Argv(vec!["true".into()]);
    ExecSpec {
        command,
        cwd: None,
        env: Default::default(),
        stdin: false,
        as_root: false,
        terminal: None,
        timeout: None,
    }
}

pub(super) async fn run_true(provider: &dyn Provider, id: &ProviderId) -> Result<()> {
    let exec = provider.exec(id, &nothing()).await?;
    let mut events = provider.attach(&exec, 0).await?;
    while let Some(event) = events.next().await {
        match event? {
            ExecEvent::Ended(Exit::Exited { code: 0 }) => return Ok(()),
            ExecEvent::Ended(exit) => bail!("`true` ended with {exit:?}"),
            ExecEvent::Output { .. } | ExecEvent::Gap { .. } => {}
        }
    }
    bail!("`true` has no end")
}

pub(super) async fn creations(provider: &dyn Provider, count: usize) -> Result<Latencies> {
    let mut latencies = Latencies::default();
    for _ in 0..count {
        let spec = spec();
        let began = Instant::now();
        let found = provider.create(&spec, "bench").await?;
        run_true(provider, &found.id).await?;
        latencies.push(began.elapsed());
        provider.destroy(&found.id).await?;
    }
    Ok(latencies)
}

pub(super) async fn commands(local: &Local, id: &ProviderId, count: usize) -> Result<Latencies> {
    let mut latencies = Latencies::default();
    for _ in 0..count {
        let began = Instant::now();
        run_true(local, id).await?;
        latencies.push(began.elapsed());
    }
    Ok(latencies)
}

/// One of the programs beside which it is measured, again and again.
pub(super) fn programs(count: usize, mut command: impl FnMut() -> Command) -> Result<Latencies> {
    let mut latencies = Latencies::default();
    for _ in 0..count {
        let mut command = command();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let began = Instant::now();
        let status = command.status().with_context(|| format!("can't run {:?}", command.get_program()))?;
        latencies.push(began.elapsed());
        ensure!(status.success(), "{:?} ended with {status}", command.get_program());
    }
    Ok(latencies)
}

fn bubblewrap() -> Command {
    let mut command = Command::new("bwrap");
    command.args(["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]);
    command
}

/// A bundle whose root is the host's /usr, with the namespaces that runc gives by default.
fn runc_bundle(dir: &Path) -> Result<()> {
    let root = dir.join("rootfs");
    for name in ["usr", "proc", "dev", "sys"] {
        std::fs::create_dir_all(root.join(name))?;
    }
    for name in ["bin", "lib", "lib64"] {
        std::os::unix::fs::symlink(format!("usr/{name}"), root.join(name))?;
    }
    let done = Command::new("runc").arg("spec").current_dir(dir).status().context("can't run runc")?;
    ensure!(done.success(), "`runc spec` failed");
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

fn runc(bundle: &Path, state: &Path, number: &mut usize) -> Command {
    *number += 1;
    let mut command = Command::new("runc");
    command.arg("--root").arg(state).arg("run").arg("--bundle").arg(bundle);
    command.arg(format!("bench-{}-{number}", std::process::id()));
    command
}

/// The provider with a launcher of its own, whose data is below `dir`.
pub(super) fn provider(bench: &Bench, dir: &Path) -> Result<Local> {
    let data = dir.join("data");
    std::fs::create_dir(&data)?;
    let worker = bench.worker()?;
    let options = LauncherOptions { exe: bench.program.clone(), ..LauncherOptions::new(data, worker, "bench") };
    Ok(Local::new(Ok(Arc::new(Launcher::start(options)?)), Arc::new(Nobody)))
}

pub async fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let dir = bench.scratch()?;
    let local = provider(bench, dir.path())?;
    let bundle = dir.path().join("bundle");
    std::fs::create_dir(&bundle)?;
    runc_bundle(&bundle)?;
    let (state, mut number) = (dir.path().join("runc"), 0);

    let (rounds, count) = (bench.plan.rounds, bench.plan.sandboxes);
    creations(&local, 3).await?;
    let (mut ours, mut bwraps, mut runcs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        bwraps.push(programs(count, bubblewrap)?.p50());
        ours.push(creations(&local, count).await?.p50());
        runcs.push(programs(count.div_ceil(3), || runc(&bundle, &state, &mut number))?.p50());
        if let (Some(ours), Some(bwrap), Some(runc)) = (ours.last(), bwraps.last(), runcs.last()) {
            note(&format!("  create → exit of true {ours:.2} ms, bwrap {bwrap:.2} ms, runc {runc:.2} ms"));
        }
    }

    let found = local.create(&spec(), "bench").await?;
    commands(&local, &found.id, 10).await?;
    let (mut execs, mut spawns) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        spawns.push(programs(bench.plan.commands, || Command::new("/usr/bin/true"))?.p50());
        execs.push(commands(&local, &found.id, bench.plan.commands).await?.p50());
        if let (Some(exec), Some(spawn)) = (execs.last(), spawns.last()) {
            note(&format!("  exec of true {exec:.2} ms, spawn {spawn:.2} ms"));
        }
    }
    local.destroy(&found.id).await?;

    let [create, bwrap, runc] = [&ours, &bwraps, &runcs].map(|all| median(all.iter().copied()));
    let [exec, spawn] = [&execs, &spawns].map(|all| median(all.iter().copied()));
    Ok(vec![
        Figure {
            figure: "local sandbox: create → exit of `true`".into(),
            measured: format!("p50 {create:.2} ms ({:.2} × bwrap)", create / bwrap),
            floor: format!("bwrap {bwrap:.2} ms, runc {runc:.2} ms"),
            bar: format!("< {BAR_CREATE} × bwrap, < runc"),
            verdict: Verdict::of(create < BAR_CREATE * bwrap && create < runc),
            numbers: json!({ "p50_ms": ours, "bwrap_p50_ms": bwraps, "runc_p50_ms": runcs }),
        },
        Figure {
            figure: "local sandbox: exec of `true`".into(),
            measured: format!("p50 {exec:.2} ms ({:.2} × spawn)", exec / spawn),
            floor: format!("spawn and wait {spawn:.2} ms"),
            bar: format!("< {BAR_EXEC} × spawn"),
            verdict: Verdict::of(exec < BAR_EXEC * spawn),
            numbers: json!({ "p50_ms": execs, "spawn_p50_ms": spawns }),
        },
    ])
}
