//! Starts the launcher, the process that makes sandboxes on this machine. It must be started before
//! this one has threads: it is this program again, and what it inherits is kept small.

use atoll_config::Config;
use atoll_jail::{Launcher, LauncherOptions};
use sha2::{Digest, Sha256};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The argument under which this program is the launcher.
pub const ARGUMENT: &str = "launcher";

/// And the one under which it starts launchers for a server that is not root any more.
pub const KEEPER: &str = "launcher-keeper";

/// The worker that this program carries; empty in a plain development build.
static WORKER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/worker"));
const BESIDE: &str = "atoll-worker";

/// Or why sandboxes can't be made on this machine, in a sentence.
pub fn start(config: &Config) -> Result<Arc<Launcher>, String> {
    start_for(config, &config.data_dir)
}

/// The same, for a look at what can be done where `probed` is.
pub fn start_for(config: &Config, probed: &Path) -> Result<Arc<Launcher>, String> {
    let options = LauncherOptions { probed_disk: Some(probed.to_path_buf()), ..options(config)? };
    Launcher::start(options).map(Arc::new).map_err(|error| error.to_string())
}

/// What it is started with; the data directory is there then, and the worker in it.
pub fn options(config: &Config) -> Result<LauncherOptions, String> {
    // Of this process too: between a person and an agent nothing should wait for a busy agent's turn to end.
    atoll_jail::prompt(atoll_jail::Heirs::Same);
    let data_dir = prepared(&config.data_dir)?;
    let worker = worker(config, &data_dir)?;
    Ok(LauncherOptions {
        id_base: config.local.id_base,
        tools: config.local.tools.clone(),
        // Far inside what f64 holds exactly.
        disk_pool: config.local.disk_pool_gb.map(|gigabytes| (gigabytes * f64::from(1 << 30)) as u64),
        ..LauncherOptions::new(data_dir.clone(), worker, name_of(&data_dir))
    })
}

fn prepared(data_dir: &Path) -> Result<PathBuf, String> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(data_dir);
    made.and_then(|()| data_dir.canonicalize())
        .map_err(|error| format!("can't use the data directory {}: {error}", data_dir.display()))
}

/// What the launcher's cgroups are named by: the data directory, which only one server has at a time.
fn name_of(data_dir: &Path) -> String {
    hex(&Sha256::digest(data_dir.as_os_str().as_encoded_bytes()))
}

fn hex(digest: &[u8]) -> String {
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The worker's program: the configured one, the one that this program carries, or the one beside it.
fn worker(config: &Config, data_dir: &Path) -> Result<PathBuf, String> {
    if let Some(path) = &config.local.worker {
        return existing(path.clone()).map_err(|path| format!("local.worker: there is no {}", path.display()));
    }
    if !WORKER.is_empty() {
        return unpacked(data_dir).map_err(|error| format!("can't put the worker into the data directory: {error}"));
    }
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(BESIDE)));
    beside.and_then(|path| existing(path).ok()).ok_or_else(|| {
        "this build carries no worker and has none beside it; build it with `make build`, or name one with local.worker"
            .to_owned()
    })
}

/// The worker's program for containers: theirs, or the same as for local sandboxes.
pub fn worker_of_containers(config: &Config) -> Result<PathBuf, String> {
    match &config.docker.worker {
        Some(path) => existing(path.clone()).map_err(|path| format!("docker.worker: there is no {}", path.display())),
        None => worker(config, &prepared(&config.data_dir)?),
    }
}

fn existing(path: PathBuf) -> Result<PathBuf, PathBuf> {
    if path.is_file() { Ok(path) } else { Err(path) }
}

/// Written once for each version, whole or not at all: live sandboxes may be running an older one.
fn unpacked(data_dir: &Path) -> io::Result<PathBuf> {
    let file = data_dir.join(format!("worker-{}", hex(&Sha256::digest(WORKER))));
    // Whoever may write beside it could have put another there, or a link.
    let is_trusted = |found: &fs::Metadata| {
        found.is_file() && found.nlink() == 1 && [0, rustix::process::geteuid().as_raw()].contains(&found.uid())
    };
    if fs::symlink_metadata(&file).is_ok_and(|found| is_trusted(&found) && found.len() == WORKER.len() as u64) {
        return Ok(file);
    }
    let beside = file.with_extension(format!("new-{}", std::process::id()));
    put(&beside, WORKER)?;
    fs::rename(&beside, &file)?;
    Ok(file)
}

/// Writes a program into a file that was not there: whatever has its name is removed, never written to.
fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut written = File::options().write(true).create_new(true).mode(0o755).open(path)?;
    written.write_all(bytes)?;
    written.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_in_its_place_leads_nowhere() {
        let directory = tempfile::tempdir().unwrap();
        let (elsewhere, path) = (directory.path().join("elsewhere"), directory.path().join("worker.new-1"));
        fs::write(&elsewhere, "kept").unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        put(&path, b"program").unwrap();
        assert_eq!(fs::read(&elsewhere).unwrap(), b"kept");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(fs::read(&path).unwrap(), b"program");
    }
}
