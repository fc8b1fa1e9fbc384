//! Runs git over a workspace in its own jail: no network, no agent, and only pipes connect it to the host.

use super::caches::WorkspaceStart;
use crate::worker_client::WORKER_PATH;
use crate::worker_client::git_arguments::{
    ADD_PARTS_COMMAND, import_arguments, open_bundle, open_job_input, open_parts, operation_arguments,
};
use atoll_core::provider::{CommandExit, Error, GitOperation, GitResult, RepositorySource};
use atoll_jail::Launcher;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Enough for very large repositories; callers set shorter deadlines.
const GIT_TIMEOUT: Duration = Duration::from_secs(1200);
/// Limit on the retained error output of git.
const MAX_STDERR_BYTES: u64 = 64 << 10;

fn worker_argv(arguments: Vec<String>) -> Vec<String> {
    std::iter::once(WORKER_PATH.to_owned()).chain(arguments).collect()
}

pub(super) fn io_failure(what: &str, error: &std::io::Error) -> Error {
    Error::Unreachable { detail: format!("{what}: {error}") }
}

/// Runs git to completion. A thread reads stderr, so that a full pipe cannot block it.
fn run_git(
    launcher: &Launcher,
    name: &str,
    argv: &[String],
    input: OwnedFd,
    output: OwnedFd,
) -> Result<GitResult, Error> {
    let (stderr_reader, stderr_writer) = std::io::pipe().map_err(|error| io_failure("cannot create a pipe", &error))?;
    let mut running = launcher
        .run_program(name, argv, input, output, stderr_writer.into())
        .map_err(|error| super::translate_error(&error))?;
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        let mut pipe = stderr_reader;
        drop((&mut pipe).take(MAX_STDERR_BYTES).read_to_end(&mut text));
        drop(std::io::copy(&mut pipe, &mut std::io::sink()));
        String::from_utf8_lossy(&text).into_owned()
    });
    let exit = running.wait(GIT_TIMEOUT).map_err(|error| super::translate_error(&error))?;
    let stderr = reader.join().unwrap_or_default();
    Ok(GitResult { exit: super::provider_exit(exit), error_output: stderr })
}

fn open_null() -> Result<File, Error> {
    let options = File::options().read(true).write(true).open("/dev/null");
    options.map_err(|error| io_failure("cannot open /dev/null", &error))
}

pub(super) fn run_job(launcher: &Launcher, name: &str, job: &GitOperation, output: File) -> Result<GitResult, Error> {
    let input = open_job_input(job)?.map_or_else(open_null, Ok)?;
    run_git(launcher, name, &worker_argv(operation_arguments(job)), input.into(), output.into())
}

/// Imports a repository into a new workspace, or into the workspace of a layer.
pub(super) fn import_source(
    launcher: &Launcher,
    name: &str,
    source: &RepositorySource,
    start: WorkspaceStart,
) -> Result<(), Error> {
    let bundle = open_bundle(source)?;
    let mut arguments = import_arguments(source);
    match start {
        WorkspaceStart::Empty => arguments.extend(source.store_as.is_some().then(|| "--for-layer".to_owned())),
        WorkspaceStart::SetUpLayer => arguments.push("--over-layer".to_owned()),
        WorkspaceStart::CheckoutLayer => {
            let commit = source.layer_commit.clone().unwrap_or_default();
            arguments.extend(["--over-checkout".to_owned(), commit]);
        }
    }
    let done = run_git(launcher, name, &worker_argv(arguments), bundle.into(), open_null()?.into())?;
    require_success("importing the repository", &done)?;
    let Some(parts) = open_parts(source)? else { return Ok(()) };
    let argv = worker_argv(vec![ADD_PARTS_COMMAND.to_owned()]);
    let done = run_git(launcher, name, &argv, parts.into(), open_null()?.into())?;
    require_success("adding the submodules and large files", &done)
}

/// Runs a command of the worker program over a sandbox's files, in the same jail as git.
pub(super) fn run_worker_command(launcher: &Launcher, name: &str, command: &str) -> Result<(), Error> {
    let argv = worker_argv(vec![command.to_owned()]);
    let done = run_git(launcher, name, &argv, open_null()?.into(), open_null()?.into())?;
    require_success(command, &done)
}

fn require_success(what: &str, done: &GitResult) -> Result<(), Error> {
    match done.exit {
        CommandExit::Exited { code: 0 } => Ok(()),
        CommandExit::TimedOut => Err(Error::Refused { detail: format!("{what} took longer than {GIT_TIMEOUT:?}") }),
        exit => Err(Error::Refused { detail: format!("{what} failed ({exit:?}): {}", done.error_output) }),
    }
}
