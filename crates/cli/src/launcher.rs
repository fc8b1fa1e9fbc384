//! Starts the launcher, the process that creates sandboxes on this machine.
//!
//! The launcher is this program with another argument. It must start before this process has threads.

use atoll_config::Config;
use atoll_jail::{Launcher, LauncherOptions};
use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The argument that makes this program the launcher.
pub const LAUNCHER_ARGUMENT: &str = "launcher";

/// The argument that makes this program start launchers for a server that has given up root.
pub const SPAWNER_ARGUMENT: &str = "launcher-spawner";

/// The worker's program, as the build script embeds it.
struct EmbeddedWorker {
    /// The first digits of the program's SHA-256.
    hash: &'static str,
    /// The program's size in bytes.
    size: u64,
    /// True if `bytes` are the program in gzip format.
    is_compressed: bool,
    bytes: &'static [u8],
}

/// `None` in a plain development build.
static WORKER: Option<EmbeddedWorker> = include!(concat!(env!("OUT_DIR"), "/worker.rs"));
const WORKER_FILE_NAME: &str = "atoll-worker";

/// Starts the launcher, or says why this machine cannot create sandboxes.
pub fn start_launcher(config: &Config) -> Result<Arc<Launcher>, String> {
    start_launcher_probing(config, &config.data_dir)
}

/// Starts a launcher that probes the file system of `probed`.
pub fn start_launcher_probing(config: &Config, probed: &Path) -> Result<Arc<Launcher>, String> {
    let options = LauncherOptions { probed_disk: Some(probed.to_path_buf()), ..launcher_options(config)? };
    Launcher::start(options).map(Arc::new).map_err(|error| error.to_string())
}

/// Creates the data directory with the worker, and returns the options of the launcher.
pub fn launcher_options(config: &Config) -> Result<LauncherOptions, String> {
    // This process relays between people and agents: it must not wait for busy agents to be scheduled out.
    atoll_jail::request_short_slices(atoll_jail::SliceInheritance::Inherit);
    let data_dir = prepare_data_dir(&config.data_dir)?;
    let worker = find_worker(config, &data_dir)?;
    Ok(LauncherOptions {
        id_base: config.local.id_base,
        tool_dirs: config.local.tools.clone(),
        // An f64 represents these sizes exactly.
        disk_pool_bytes: config.local.disk_pool_gb.map(|gigabytes| (gigabytes * f64::from(1 << 30)) as u64),
        ..LauncherOptions::new(data_dir.clone(), worker, cgroup_name(&data_dir))
    })
}

fn prepare_data_dir(data_dir: &Path) -> Result<PathBuf, String> {
    atoll_server::secure_data_dir(data_dir)
        .and_then(|()| data_dir.canonicalize())
        .map_err(|error| format!("cannot use the data directory {}: {error}", data_dir.display()))
}

/// The name of the launcher's cgroups: a hash of the data directory, which only one server uses at a time.
fn cgroup_name(data_dir: &Path) -> String {
    hex_prefix(&Sha256::digest(data_dir.as_os_str().as_encoded_bytes()))
}

fn hex_prefix(digest: &[u8]) -> String {
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Finds the worker's program: the configured one, the embedded one, or the one beside this program.
fn find_worker(config: &Config, data_dir: &Path) -> Result<PathBuf, String> {
    if let Some(path) = &config.local.worker {
        return require_file(path.clone()).map_err(|path| format!("local.worker: there is no {}", path.display()));
    }
    if let Some(worker) = &WORKER {
        return unpack_worker(worker, data_dir)
            .map_err(|error| format!("cannot put the worker into the data directory: {error}"));
    }
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(WORKER_FILE_NAME)));
    beside
        .and_then(|path| require_file(path).ok())
        .ok_or_else(|| "this program embeds no worker: install one with `make install`, or set local.worker".to_owned())
}

/// Finds the worker's program for containers: `docker.worker`, or the one for local sandboxes.
pub fn find_container_worker(config: &Config) -> Result<PathBuf, String> {
    match &config.docker.worker {
        Some(path) => {
            require_file(path.clone()).map_err(|path| format!("docker.worker: there is no {}", path.display()))
        }
        None => find_worker(config, &prepare_data_dir(&config.data_dir)?),
    }
}

fn require_file(path: PathBuf) -> Result<PathBuf, PathBuf> {
    if path.is_file() { Ok(path) } else { Err(path) }
}

/// Writes the embedded worker once per version, atomically: live sandboxes may run an older one.
fn unpack_worker(worker: &EmbeddedWorker, data_dir: &Path) -> io::Result<PathBuf> {
    let file = data_dir.join(format!("worker-{}", worker.hash));
    // Another user with write access to the directory could have replaced the file, or put a link there.
    let is_trusted = |found: &fs::Metadata| {
        found.is_file() && found.nlink() == 1 && [0, rustix::process::geteuid().as_raw()].contains(&found.uid())
    };
    if fs::symlink_metadata(&file).is_ok_and(|found| is_trusted(&found) && found.len() == worker.size) {
        return Ok(file);
    }
    let beside = file.with_extension(format!("new-{}", std::process::id()));
    if worker.is_compressed {
        write_program(&beside, GzDecoder::new(worker.bytes))?;
    } else {
        write_program(&beside, worker.bytes)?;
    }
    fs::rename(&beside, &file)?;
    Ok(file)
}

/// Writes a program to a new file; removes an existing file of that name and never writes to it.
fn write_program(path: &Path, mut program: impl io::Read) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut written = File::options().write(true).create_new(true).mode(0o755).open(path)?;
    io::copy(&mut program, &mut written)?;
    written.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_a_symlink_instead_of_following_it() {
        let directory = tempfile::tempdir().unwrap();
        let (elsewhere, path) = (directory.path().join("elsewhere"), directory.path().join("worker.new-1"));
        fs::write(&elsewhere, "kept").unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        write_program(&path, &b"program"[..]).unwrap();
        assert_eq!(fs::read(&elsewhere).unwrap(), b"kept");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(fs::read(&path).unwrap(), b"program");
    }
}
