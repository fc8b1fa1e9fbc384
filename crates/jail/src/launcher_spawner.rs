//! A root process that starts launchers for a server that gave up root.
//!
//! The launcher's settings are fixed before the server gives up root. From then on the server can only request another
//! launcher with the same settings; it gets one end of a socket pair.

use std::fmt;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::client::LauncherOptions;
use crate::error::Error;
use crate::wire::{self, MAX_PACKET, Settings};
use crate::{init_process, kernel};

/// The server's handle on the spawner, which ends when this is dropped.
pub struct LauncherSpawner {
    socket: Mutex<OwnedFd>,
}

impl fmt::Debug for LauncherSpawner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Keeper").finish_non_exhaustive()
    }
}

/// First packet: how to start every launcher.
#[derive(Debug, Serialize, Deserialize)]
struct SpawnerConfig {
    exe: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    settings: Settings,
}

#[derive(Debug, Serialize, Deserialize)]
struct SpawnRequest {}

impl LauncherSpawner {
    /// Starts the spawner; `args` make the program of `options` run [`launcher_spawner_main`].
    pub fn start(options: &LauncherOptions, args: &[&str]) -> Result<Self, Error> {
        let (socket, spawner_socket) = wire::socket_pair()?;
        let config = SpawnerConfig {
            exe: options.exe.clone(),
            args: options.args.clone(),
            env: options.env.clone(),
            settings: options.to_settings()?,
        };
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        // The server does not reap the spawner: it ends with the server.
        drop(
            spawn_with_socket(options.exe.clone(), &args, &options.env, spawner_socket)
                .map_err(|error| start_error(&options.exe, error))?,
        );
        wire::send_packet(socket.as_fd(), &config, &[])?;
        Ok(Self { socket: Mutex::new(socket) })
    }

    /// Starts another launcher, which has its settings already.
    pub(crate) fn start_launcher(&self) -> Result<OwnedFd, Error> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = |_| Error::SpawnerGone;
        wire::send_packet(socket.as_fd(), &SpawnRequest {}, &[]).map_err(lost)?;
        let received = wire::receive_packet::<Option<Error>>(socket.as_fd(), &mut vec![0; MAX_PACKET]).map_err(lost)?;
        match received {
            None => Err(Error::SpawnerGone),
            Some((Some(error), _)) => Err(error),
            Some((None, descriptors)) => descriptors.into_iter().next().ok_or(Error::SpawnerGone),
        }
    }
}

fn start_error(exe: &std::path::Path, error: io::Error) -> Error {
    Error::LauncherStartFailed { path: exe.to_owned(), source: error.into() }
}

/// Starts this program with nothing but a socket as stdin.
pub(crate) fn spawn_with_socket(
    exe: PathBuf,
    args: &[String],
    env: &[(String, String)],
    socket: OwnedFd,
) -> io::Result<Child> {
    let mut command = Command::new(exe);
    command.args(args).env_clear().envs(env.iter().cloned()).current_dir("/");
    command.stdin(socket).stdout(Stdio::null()).process_group(0).spawn()
}

/// Entry point of the hidden argument `launcher-spawner`. Call it before any thread starts.
pub fn launcher_spawner_main() -> ExitCode {
    match serve_requests() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // There is no other place to report it.
            let _ = writeln!(io::stderr(), "launcher spawner: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve_requests() -> Result<(), Error> {
    kernel::ignore_terminal_signals();
    kernel::close_from(3).map_err(Error::protocol)?;
    let socket = init_process::take_inherited_fd(0).map_err(Error::protocol)?;
    let mut buffer = vec![0; MAX_PACKET];
    let Some((config, _)) = wire::receive_packet::<SpawnerConfig>(socket.as_fd(), &mut buffer)? else { return Ok(()) };
    let mut children: Vec<Child> = Vec::new();
    while wire::receive_packet::<SpawnRequest>(socket.as_fd(), &mut buffer)?.is_some() {
        // Reap launchers that have ended.
        children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        match spawn_launcher(&config) {
            Ok((child, end)) => {
                children.push(child);
                wire::send_packet(socket.as_fd(), &None::<Error>, &[end.as_fd()])?;
            }
            Err(error) => wire::send_packet(socket.as_fd(), &Some(error), &[])?,
        }
    }
    Ok(())
}

fn spawn_launcher(config: &SpawnerConfig) -> Result<(Child, OwnedFd), Error> {
    let (socket, launcher_socket) = wire::socket_pair()?;
    wire::send_packet(socket.as_fd(), &config.settings, &[])?;
    let child = spawn_with_socket(config.exe.clone(), &config.args, &config.env, launcher_socket);
    Ok((child.map_err(|error| start_error(&config.exe, error))?, socket))
}
