//! Makes the checks of a continuous run: commands in the sandbox, with their real ends.

use crate::app::lifecycle::has_results;
use crate::providers::Providers;
use atoll_core::continuous::check::{Checked, TAIL, of_exit};
use atoll_core::continuous::{Continuous, Requirement, Verdict};
use atoll_core::provider::{Command, Error, ExecEvent, ExecRef, ExecSpec, Exit, Provider, ProviderId};
use atoll_core::sandbox::ProviderKind;
use atoll_store::sandboxes::Sandbox;
use futures_util::StreamExt;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// All checks of a round together; what does not fit is unknown. Less than a job may take.
const ROUND: Duration = Duration::from_secs(50 * 60);
const GIT_TIMEOUT: Duration = Duration::from_secs(60);
const SIGKILL: i32 = 9;

/// Where commands are run.
pub(super) struct Place {
    pub providers: Arc<Providers>,
    pub kind: ProviderKind,
    pub sandbox: ProviderId,
}

impl Place {
    fn provider(&self) -> &dyn Provider {
        self.providers.get(self.kind)
    }
}

/// How a command ended, and the last that it printed.
struct Ran {
    exit: Exit,
    output: String,
}

/// Ends a command that nobody waits for any more.
struct Guard {
    providers: Arc<Providers>,
    kind: ProviderKind,
    exec: Option<ExecRef>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(exec) = self.exec.take() {
            let (providers, kind) = (Arc::clone(&self.providers), self.kind);
            tokio::spawn(async move { drop(providers.get(kind).signal(&exec, SIGKILL).await) });
        }
    }
}

/// Every check of the task. An error is a fault on the way, worth another try.
pub(super) async fn make(place: &Place, row: &Sandbox) -> Result<Vec<Checked>, String> {
    let settings = row.settings.continuous.clone().unwrap_or_default();
    let begun = Instant::now();
    let mut made = Vec::new();
    // Before the commands, which may leave files of their own.
    for requirement in settings.required(has_results(row)) {
        made.push(require(place, row, requirement).await?);
    }
    for check in settings.checks.iter().flatten() {
        let left = ROUND.saturating_sub(begun.elapsed());
        made.push(command(place, &settings, check, left).await?);
    }
    Ok(made)
}

/// What can't be decided, and why.
pub(super) fn unknown(row: &Sandbox, why: &str) -> Vec<Checked> {
    let settings = row.settings.continuous.clone().unwrap_or_default();
    let required = settings.required(has_results(row)).into_iter().map(|requirement| requirement.to_string());
    let names = required.chain(settings.checks.into_iter().flatten());
    names.map(|name| undecided(name, why)).collect()
}

fn undecided(name: String, why: &str) -> Checked {
    let (detail, output) = (why.to_owned(), String::new());
    Checked { name, verdict: Verdict::Unknown, exit: None, detail, output, duration_ms: 0 }
}

async fn command(place: &Place, settings: &Continuous, check: &str, left: Duration) -> Result<Checked, String> {
    let name = check.to_owned();
    if left.is_zero() {
        return Ok(undecided(name, "there was no time left for it: all checks together may take 50 minutes"));
    }
    let timeout = settings.check_timeout().min(left);
    let begun = Instant::now();
    let ran = match run(place, Command::Shell(check.to_owned()), timeout).await {
        Ok(ran) => ran,
        Err(error) => return of_fault(name, &error),
    };
    let (verdict, mut detail) = of_exit(ran.exit);
    if ran.exit == Exit::TimedOut {
        detail = format!("killed because it took longer than {} s", timeout.as_secs());
    }
    Ok(Checked { name, verdict, exit: Some(ran.exit), detail, output: ran.output, duration_ms: spent(begun) })
}

fn spent(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// A fault that may pass is tried again; any other one leaves the check undecided.
fn of_fault(name: String, error: &Error) -> Result<Checked, String> {
    match error {
        Error::Unreachable { .. } | Error::Busy { .. } => Err(error.to_string()),
        Error::Unsupported { .. }
        | Error::Refused { .. }
        | Error::Exhausted { .. }
        | Error::NoInput { .. }
        | Error::Gone => Ok(undecided(name, &error.to_string())),
    }
}

async fn run(place: &Place, command: Command, timeout: Duration) -> Result<Ran, Error> {
    let spec = ExecSpec {
        command,
        cwd: None,
        env: BTreeMap::new(),
        stdin: false,
        as_root: false,
        terminal: None,
        timeout: Some(timeout),
    };
    let exec = place.provider().exec(&place.sandbox, &spec).await?;
    let mut guard = Guard { providers: Arc::clone(&place.providers), kind: place.kind, exec: Some(exec.clone()) };
    let mut events = place.provider().attach(&exec, 0).await?;
    let mut tail: Vec<u8> = Vec::new();
    let mut exit = Exit::Unknown;
    while let Some(event) = events.next().await {
        match event? {
            ExecEvent::Output { data, .. } => {
                tail.extend_from_slice(&data);
                if tail.len() > 4 * TAIL {
                    tail.drain(..tail.len() - TAIL);
                }
            }
            ExecEvent::Gap { .. } => {}
            ExecEvent::Ended(how) => {
                exit = how;
                break;
            }
        }
    }
    guard.exec = None;
    let tail = &tail[tail.len().saturating_sub(TAIL)..];
    Ok(Ran { exit, output: String::from_utf8_lossy(tail).replace('\0', "") })
}

async fn require(place: &Place, row: &Sandbox, requirement: Requirement) -> Result<Checked, String> {
    let begun = Instant::now();
    let name = requirement.to_string();
    let base = row.settings.repo.as_ref().and_then(|repo| repo.base.clone());
    let arguments: Vec<String> = match (requirement, base) {
        (Requirement::Clean, _) => words(&["status", "--porcelain"]),
        (Requirement::Committed, Some(base)) => words(&["rev-list", "--count", &format!("{base}..HEAD")]),
        (Requirement::Committed, None) => return Ok(undecided(name, "it has no repository that the work began with")),
        (Requirement::Pushed, _) => words(&["status", "--porcelain=v2", "--branch", "--untracked-files=no"]),
        (Requirement::PullRequest, _) => {
            return Ok(undecided(name, "this version of Atoll can't look for pull requests"));
        }
    };
    let ran = match git(place, &arguments).await {
        Ok(ran) => ran,
        Err(error) => return of_fault(name, &error),
    };
    let (verdict, detail) = match (ran.exit, requirement) {
        (Exit::Exited { code: 0 }, Requirement::Clean) => clean(&ran.output),
        (Exit::Exited { code: 0 }, Requirement::Committed) => committed(&ran.output),
        (Exit::Exited { code: 0 }, Requirement::Pushed | Requirement::PullRequest) => pushed(&ran.output),
        (exit, _) => (Verdict::Unknown, format!("git could not say: {}", of_exit(exit).1)),
    };
    let output = if verdict == Verdict::Passed { String::new() } else { ran.output };
    Ok(Checked { name, verdict, exit: Some(ran.exit), detail, output, duration_ms: spent(begun) })
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

async fn git(place: &Place, arguments: &[String]) -> Result<Ran, Error> {
    let mut argv = words(&["git", "--no-pager", "--no-optional-locks"]);
    argv.extend_from_slice(arguments);
    run(place, Command::Argv(argv), GIT_TIMEOUT).await
}

fn clean(output: &str) -> (Verdict, String) {
    if output.trim().is_empty() {
        (Verdict::Passed, "the working tree is clean".to_owned())
    } else {
        (Verdict::Failed, "there are changes that are not committed".to_owned())
    }
}

fn committed(output: &str) -> (Verdict, String) {
    match output.trim().parse::<u64>() {
        Ok(0) => (Verdict::Failed, "there is no commit since the work began".to_owned()),
        Ok(commits) => (Verdict::Passed, format!("{commits} commits since the work began")),
        Err(_) => (Verdict::Unknown, "git gave no number of commits".to_owned()),
    }
}

/// From `git status --porcelain=v2 --branch`.
fn pushed(output: &str) -> (Verdict, String) {
    let said = |name: &str| output.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let Some(upstream) = said("# branch.upstream ") else {
        return (Verdict::Unknown, "the branch has no upstream in the sandbox to compare it with".to_owned());
    };
    match said("# branch.ab ").and_then(|counts| counts.split(' ').next()) {
        Some("+0") => (Verdict::Passed, format!("{upstream} has the last commit")),
        Some(ahead) => (Verdict::Failed, format!("{upstream} lacks {} commits", ahead.trim_start_matches('+'))),
        None => (Verdict::Unknown, format!("git could not compare it with {upstream}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_git_says_is_understood_and_what_it_does_not_say_is_unknown() {
        assert_eq!(clean("\n").0, Verdict::Passed);
        assert_eq!(clean(" M a.rs\n").0, Verdict::Failed);
        assert_eq!(committed("2\n").0, Verdict::Passed);
        assert_eq!(committed("0\n").0, Verdict::Failed);
        assert_eq!(committed("fatal").0, Verdict::Unknown);
        let branch = "# branch.oid 1\n# branch.head work\n";
        let upstream = format!("{branch}# branch.upstream origin/work\n");
        assert_eq!(pushed(branch).0, Verdict::Unknown);
        assert_eq!(pushed(&upstream).0, Verdict::Unknown);
        assert_eq!(pushed(&format!("{upstream}# branch.ab +0 -0\n")).0, Verdict::Passed);
        assert_eq!(pushed(&format!("{upstream}# branch.ab +2 -0\n")).0, Verdict::Failed);
    }
}
