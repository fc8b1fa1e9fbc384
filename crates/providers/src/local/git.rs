//! Git over a workspace, in a jail of its own: no network, no agent, nothing of the host but a pipe.

use crate::inside::WORKER;
use crate::inside::git::{arguments, arguments_in};
use atoll_core::provider::{Error, Exit, GitDone, GitJob, Source};
use atoll_jail::Launcher;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Long enough for very large repositories; who asks has a shorter patience of their own.
const DEADLINE: Duration = Duration::from_secs(1200);
/// How much of what git says in error is kept.
const SAID: u64 = 64 << 10;

fn argv(arguments: Vec<String>) -> Vec<String> {
    std::iter::once(WORKER.to_owned()).chain(arguments).collect()
}

pub(super) fn broken(what: &str, error: &std::io::Error) -> Error {
    Error::Unreachable { detail: format!("{what}: {error}") }
}

/// Runs it to its end. Its error output is read meanwhile, so that a full pipe can't hold it up.
fn run_one(
    launcher: &Launcher,
    name: &str,
    argv: &[String],
    input: OwnedFd,
    output: OwnedFd,
) -> Result<GitDone, Error> {
    let (said, errors) = std::io::pipe().map_err(|error| broken("no pipe to be had", &error))?;
    let mut running = launcher.run(name, argv, input, output, errors.into()).map_err(|error| super::failure(&error))?;
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        let mut said = said;
        drop((&mut said).take(SAID).read_to_end(&mut text));
        drop(std::io::copy(&mut said, &mut std::io::sink()));
        String::from_utf8_lossy(&text).into_owned()
    });
    let exit = running.wait(DEADLINE).map_err(|error| super::failure(&error))?;
    let said = reader.join().unwrap_or_default();
    Ok(GitDone { exit: super::exit(exit), said })
}

fn nothing() -> Result<File, Error> {
    let options = File::options().read(true).write(true).open("/dev/null");
    options.map_err(|error| broken("/dev/null can't be opened", &error))
}

pub(super) fn run(launcher: &Launcher, name: &str, job: &GitJob, output: File) -> Result<GitDone, Error> {
    run_one(launcher, name, &argv(arguments(job)), nothing()?.into(), output.into())
}

/// Puts a repository into a fresh workspace.
pub(super) fn take_in(launcher: &Launcher, name: &str, source: &Source) -> Result<(), Error> {
    let bundle = File::open(&source.bundle).map_err(|error| broken("the repository's bundle can't be read", &error))?;
    let done = run_one(launcher, name, &argv(arguments_in(source)), bundle.into(), nothing()?.into())?;
    match done.exit {
        Exit::Exited { code: 0 } => Ok(()),
        Exit::TimedOut => {
            Err(Error::Refused { detail: format!("the repository was not in place within {DEADLINE:?}") })
        }
        exit => {
            Err(Error::Refused { detail: format!("the repository can't be put in place ({exit:?}): {}", done.said) })
        }
    }
}
