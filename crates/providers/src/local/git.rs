//! Git over a workspace, in a jail of its own: no network, no agent, nothing of the host but a pipe.

use atoll_core::provider::{Author, Error, Exit, GitDone, GitJob, Source};
use atoll_jail::Launcher;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// The worker's program as it stands in every sandbox.
const WORKER: &str = "/opt/atoll/worker";
/// Long enough for very large repositories; who asks has a shorter patience of their own.
const DEADLINE: Duration = Duration::from_secs(1200);
/// How much of what git says in error is kept.
const SAID: u64 = 64 << 10;

fn author(author: &Author) -> [String; 4] {
    ["--name".into(), author.name.clone(), "--email".into(), author.email.clone()]
}

fn argv(job: &GitJob) -> Vec<String> {
    let mut argv = vec![WORKER.to_owned()];
    match job {
        GitJob::Out { base, message, author: by } => {
            argv.extend(["git-out", "--base", base, "--message", message].map(str::to_owned));
            argv.extend(author(by));
        }
        GitJob::Diff { base, paths, patch } => {
            argv.extend(["git-diff", "--base", base].map(str::to_owned));
            argv.extend(paths.iter().flat_map(|path| ["--path".to_owned(), path.clone()]));
            argv.extend(patch.then(|| "--patch".to_owned()));
        }
    }
    argv
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
    run_one(launcher, name, &argv(job), nothing()?.into(), output.into())
}

/// Puts a repository into a fresh workspace.
pub(super) fn take_in(launcher: &Launcher, name: &str, source: &Source) -> Result<(), Error> {
    let bundle = File::open(&source.bundle).map_err(|error| broken("the repository's bundle can't be read", &error))?;
    let mut argv: Vec<String> =
        [WORKER, "git-in", "--branch", &source.branch, "--base", &source.commit].map(str::to_owned).into();
    argv.extend(author(&source.author));
    let done = run_one(launcher, name, &argv, bundle.into(), nothing()?.into())?;
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
