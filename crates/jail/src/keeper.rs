//! Starts launchers for a server that can't do so itself any more: a process of root's that does nothing else.
//!
//! What a launcher works with is settled before the server gives up its rights. From then on the server can only ask for
//! another one like it, and gets the end of a connection to it.

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
use crate::{inside, kernel};

/// The server's hold on it. It ends when this is dropped.
pub struct Keeper {
    socket: Mutex<OwnedFd>,
}

impl fmt::Debug for Keeper {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Keeper").finish_non_exhaustive()
    }
}

/// Its first packet: how launchers are started, all of them.
#[derive(Debug, Serialize, Deserialize)]
struct Orders {
    exe: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    settings: Settings,
}

#[derive(Debug, Serialize, Deserialize)]
struct Another {}

impl Keeper {
    /// Starts it: `args` are those under which the program of `options` runs [`keeper_main`].
    pub fn start(options: &LauncherOptions, args: &[&str]) -> Result<Self, Error> {
        let (ours, theirs) = wire::pair()?;
        let orders = Orders {
            exe: options.exe.clone(),
            args: options.args.clone(),
            env: options.env.clone(),
            settings: options.settings()?,
        };
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        // Nobody waits for it: it ends with its server, which is in no state to care.
        drop(process(options.exe.clone(), &args, &options.env, theirs).map_err(|error| failed(&options.exe, error))?);
        wire::send(ours.as_fd(), &orders, &[])?;
        Ok(Self { socket: Mutex::new(ours) })
    }

    /// Another launcher; it has its settings already.
    pub(crate) fn launch(&self) -> Result<OwnedFd, Error> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = |_| Error::KeeperGone;
        wire::send(socket.as_fd(), &Another {}, &[]).map_err(lost)?;
        let received = wire::receive::<Option<Error>>(socket.as_fd(), &mut vec![0; MAX_PACKET]).map_err(lost)?;
        match received {
            None => Err(Error::KeeperGone),
            Some((Some(error), _)) => Err(error),
            Some((None, descriptors)) => descriptors.into_iter().next().ok_or(Error::KeeperGone),
        }
    }
}

fn failed(exe: &std::path::Path, error: io::Error) -> Error {
    Error::Launcher { path: exe.to_owned(), source: error.into() }
}

/// A process of this program's that has nothing but one end of a connection.
pub(crate) fn process(exe: PathBuf, args: &[String], env: &[(String, String)], socket: OwnedFd) -> io::Result<Child> {
    let mut command = Command::new(exe);
    command.args(args).env_clear().envs(env.iter().cloned()).current_dir("/");
    command.stdin(socket).stdout(Stdio::null()).process_group(0).spawn()
}

/// What the hidden argument `launcher-keeper` runs: call it before any thread starts.
pub fn keeper_main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // There is nobody else to tell.
            let _ = writeln!(io::stderr(), "keeper of launchers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Error> {
    kernel::ignore_terminal_signals();
    kernel::close_from(3).map_err(Error::protocol)?;
    let socket = inside::take(0).map_err(Error::protocol)?;
    let mut buffer = vec![0; MAX_PACKET];
    let Some((orders, _)) = wire::receive::<Orders>(socket.as_fd(), &mut buffer)? else { return Ok(()) };
    let mut children: Vec<Child> = Vec::new();
    while wire::receive::<Another>(socket.as_fd(), &mut buffer)?.is_some() {
        // Those that have ended are taken note of.
        children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        match another(&orders) {
            Ok((child, end)) => {
                children.push(child);
                wire::send(socket.as_fd(), &None::<Error>, &[end.as_fd()])?;
            }
            Err(error) => wire::send(socket.as_fd(), &Some(error), &[])?,
        }
    }
    Ok(())
}

fn another(orders: &Orders) -> Result<(Child, OwnedFd), Error> {
    let (ours, theirs) = wire::pair()?;
    wire::send(ours.as_fd(), &orders.settings, &[])?;
    let child = process(orders.exe.clone(), &orders.args, &orders.env, theirs);
    Ok((child.map_err(|error| failed(&orders.exe, error))?, ours))
}
