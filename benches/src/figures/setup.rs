//! Set-up of a TypeScript project with npm packages: the first sandbox runs it, the second starts from its layer. Floor:
//! the same command outside of a sandbox, with an empty download cache.

use super::local_sandboxes::LocalSandboxes;
use crate::bench::{Bench, print_progress};
use crate::report::{Figure, FigureVerdict};
use crate::server::BenchServer;
use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};
use std::net::ToSocketAddrs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const REGISTRY: &str = "registry.npmjs.org";
/// The second start, relative to the same set-up outside.
const BAR_SECOND: f64 = 0.1;

fn run_program(dir: &Path, program: &str, arguments: &[&str], environment: &[(&str, &Path)]) -> Result<Duration> {
    let began = Instant::now();
    let mut command = Command::new(program);
    command.args(arguments).current_dir(dir).envs(environment.iter().copied()).stdin(Stdio::null());
    let output = command.output().with_context(|| format!("cannot run {program}"))?;
    ensure!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(began.elapsed())
}

/// Copies the sample project and commits it.
fn create_repository(dir: &Path) -> Result<()> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("tests").join("projects/typescript");
    let project = project.to_str().context("the path of the sample project is not UTF-8")?;
    let target = dir.to_str().context("the path of the scratch directory is not UTF-8")?;
    run_program(Path::new("/"), "cp", &["-r", project, target], &[])?;
    for arguments in [
        &["init", "--quiet"][..],
        &["add", "--all"],
        &["-c", "user.name=Bench", "-c", "user.email=bench@example.org", "commit", "--quiet", "--message", "start"],
    ] {
        run_program(dir, "git", arguments, &[])?;
    }
    Ok(())
}

/// Times the start of a sandbox. Returns also whether its set-up came from a layer.
async fn time_start(sandboxes: &LocalSandboxes<'_>, repository: &Path, env: &Value) -> Result<(Duration, bool)> {
    let request = json!({ "provider": "local", "agent": "demo", "repo": { "path": repository }, "env": env });
    let began = Instant::now();
    let id = sandboxes.create_sandbox(request).await?;
    sandboxes.wait_for_state(&id, &["running"]).await?;
    let took = began.elapsed();
    let events = sandboxes.list_events(&id).await?;
    let completed = events.iter().find(|event| event["type"] == "setup.completed").context("no set-up completed")?;
    let is_cached = completed["data"]["cached"].as_bool().unwrap_or(false);
    sandboxes.delete_sandbox(&id).await?;
    Ok((took, is_cached))
}

pub async fn measure_setup(bench: &Bench) -> Result<Vec<Figure>> {
    if run_program(Path::new("/"), "npm", &["--version"], &[]).is_err() {
        print_progress("  skipped: there is no npm");
        return Ok(Vec::new());
    }
    let dir = bench.scratch_dir()?;
    let (repository, outside, cache) =
        (dir.path().join("repository"), dir.path().join("outside"), dir.path().join("cache"));
    create_repository(&repository)?;
    create_repository(&outside)?;
    let floor = run_program(&outside, "npm", &["ci"], &[("npm_config_cache", cache.as_path())])?;

    // The registry's address may be private, as that of a mirror.
    let addresses: Vec<String> = (REGISTRY, 443).to_socket_addrs()?.map(|address| address.ip().to_string()).collect();
    let private = addresses.join(",");
    let environment = [("ATOLL_NETWORK_ALLOW_PRIVATE", private.as_str())];
    let server = BenchServer::start_with_env(&bench.program, &dir.path().join("data"), None, &environment)?;
    let sandboxes = LocalSandboxes::new(&server);
    let certificates = std::env::var("NODE_EXTRA_CA_CERTS").ok().filter(|path| path.starts_with("/etc/ssl/"));
    let certificates = certificates.map(|path| ("NODE_EXTRA_CA_CERTS".to_owned(), Value::from(path)));
    let env = Value::Object(certificates.into_iter().collect::<Map<_, _>>());
    let (first, is_cached) = time_start(&sandboxes, &repository, &env).await?;
    ensure!(!is_cached, "the first start had a layer");
    let (second, is_cached) = time_start(&sandboxes, &repository, &env).await?;
    ensure!(is_cached, "the second start had no layer");
    let [first, second, floor] = [first, second, floor].map(|took| took.as_secs_f64());
    print_progress(&format!("  set-up {first:.2} s, from its layer {second:.2} s, outside {floor:.2} s"));
    Ok(vec![Figure {
        name: "set-up of a TypeScript project: second start".into(),
        measured: format!("{second:.2} s ({:.2} × outside); first start {first:.2} s", second / floor),
        floor: format!("`npm ci` outside {floor:.2} s"),
        bar: format!("< {BAR_SECOND} × outside"),
        verdict: FigureVerdict::from_met(second < BAR_SECOND * floor),
        numbers: json!({ "first_s": first, "second_s": second, "outside_s": floor }),
    }])
}
