//! Runs the checks of continuous mode as commands in the sandbox.

use super::sandbox_command::{CommandResult, CommandTarget, RunningCommand, command_spec};
use crate::app::branch_workflow::published_work::check_published;
use crate::app::lifecycle::delivers_results;
use crate::state::App;
use atoll_core::branch_workflow::WorkflowGoal;
use atoll_core::continuous::check::{CheckResult, OUTPUT_TAIL_BYTES, verdict_of_exit};
use atoll_core::continuous::{CheckVerdict, Continuous, Requirement};
use atoll_core::provider::{CommandExit, Error, ExecCommand};
use atoll_store::sandboxes::SandboxRow;
use std::time::{Duration, Instant};

/// Time limit for all checks of a round; checks beyond it are unknown. Shorter than a job's claim.
const ROUND_TIMEOUT: Duration = Duration::from_secs(50 * 60);
const GIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs all checks. An error is transient and worth a retry.
pub(super) async fn run_checks(
    app: &App,
    target: &CommandTarget,
    row: &SandboxRow,
) -> Result<Vec<CheckResult>, String> {
    let settings = row.settings.continuous.clone().unwrap_or_default();
    let began = Instant::now();
    let mut results = Vec::new();
    // Requirements come first: commands can leave files in the working tree.
    for requirement in settings.requirements(delivers_results(row, &target.provider.capabilities())) {
        results.push(check_requirement(app, target, row, requirement).await?);
    }
    for check in settings.checks.iter().flatten() {
        let left = ROUND_TIMEOUT.saturating_sub(began.elapsed());
        results.push(run_check_command(target, &settings, check, left).await?);
    }
    Ok(results)
}

/// Marks all checks as unknown, with the reason.
pub(super) fn unknown_checks(target: &CommandTarget, row: &SandboxRow, why: &str) -> Vec<CheckResult> {
    let settings = row.settings.continuous.clone().unwrap_or_default();
    let required = settings.requirements(delivers_results(row, &target.provider.capabilities()));
    let required = required.into_iter().map(|requirement| requirement.to_string());
    let names = required.chain(settings.checks.into_iter().flatten());
    names.map(|name| unknown_check(name, why)).collect()
}

fn unknown_check(name: String, why: &str) -> CheckResult {
    let (detail, output) = (why.to_owned(), String::new());
    CheckResult { name, verdict: CheckVerdict::Unknown, exit: None, detail, output, duration_ms: 0 }
}

async fn run_check_command(
    target: &CommandTarget,
    settings: &Continuous,
    check: &str,
    left: Duration,
) -> Result<CheckResult, String> {
    let name = check.to_owned();
    if left.is_zero() {
        return Ok(unknown_check(name, "not run: all checks together may take 50 minutes"));
    }
    let timeout = settings.check_timeout().min(left);
    let began = Instant::now();
    let ran = match run_command(target, ExecCommand::Shell(check.to_owned()), timeout).await {
        Ok(ran) => ran,
        Err(error) => return check_after_error(name, &error),
    };
    let (verdict, mut detail) = verdict_of_exit(ran.exit);
    if ran.exit == CommandExit::TimedOut {
        detail = format!("killed because it took longer than {} s", timeout.as_secs());
    }
    Ok(CheckResult { name, verdict, exit: Some(ran.exit), detail, output: ran.output, duration_ms: elapsed_ms(began) })
}

fn elapsed_ms(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Retries transient provider errors; any other error makes the check unknown.
fn check_after_error(name: String, error: &Error) -> Result<CheckResult, String> {
    match error {
        Error::Unreachable { .. } | Error::Busy { .. } => Err(error.to_string()),
        Error::Unsupported { .. }
        | Error::Refused { .. }
        | Error::Exhausted { .. }
        | Error::NoInput { .. }
        | Error::Gone
        | Error::CacheGone { .. } => Ok(unknown_check(name, &error.to_string())),
    }
}

async fn run_command(target: &CommandTarget, command: ExecCommand, timeout: Duration) -> Result<CommandResult, Error> {
    RunningCommand::start(target, &command_spec(command, timeout)).await?.collect_tail(OUTPUT_TAIL_BYTES).await
}

async fn check_requirement(
    app: &App,
    target: &CommandTarget,
    row: &SandboxRow,
    requirement: Requirement,
) -> Result<CheckResult, String> {
    let began = Instant::now();
    let name = requirement.to_string();
    let base = row.settings.repo.as_ref().and_then(|repo| repo.base.clone());
    let arguments: Vec<String> = match (requirement, base) {
        (Requirement::Clean, _) => to_strings(&["status", "--porcelain"]),
        (Requirement::Committed, Some(base)) => to_strings(&["rev-list", "--count", &format!("{base}..HEAD")]),
        (Requirement::Committed, None) => {
            return Ok(unknown_check(name, "the sandbox has no repository to compare with"));
        }
        (Requirement::Pushed, _) => return check_publication(app, row, name, WorkflowGoal::Push).await,
        (Requirement::PullRequest, _) => return check_publication(app, row, name, WorkflowGoal::PullRequest).await,
    };
    let ran = match run_git(target, &arguments).await {
        Ok(ran) => ran,
        Err(error) => return check_after_error(name, &error),
    };
    let (verdict, detail) = match (ran.exit, requirement) {
        (CommandExit::Exited { code: 0 }, Requirement::Clean) => judge_clean(&ran.output),
        (CommandExit::Exited { code: 0 }, Requirement::Committed | Requirement::Pushed | Requirement::PullRequest) => {
            judge_committed(&ran.output)
        }
        (exit, _) => (CheckVerdict::Unknown, format!("git failed: {}", verdict_of_exit(exit).1)),
    };
    let output = if verdict == CheckVerdict::Passed { String::new() } else { ran.output };
    Ok(CheckResult { name, verdict, exit: Some(ran.exit), detail, output, duration_ms: elapsed_ms(began) })
}

/// Publishes the work: an agent cannot push, because its sandbox has no credentials.
async fn check_publication(
    app: &App,
    row: &SandboxRow,
    name: String,
    goal: WorkflowGoal,
) -> Result<CheckResult, String> {
    let began = Instant::now();
    let (verdict, detail) = check_published(app, row, goal).await.map_err(|problem| problem.detail)?;
    Ok(CheckResult { name, verdict, exit: None, detail, output: String::new(), duration_ms: elapsed_ms(began) })
}

fn to_strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

async fn run_git(target: &CommandTarget, arguments: &[String]) -> Result<CommandResult, Error> {
    let mut argv = to_strings(&["git", "--no-pager", "--no-optional-locks"]);
    argv.extend_from_slice(arguments);
    run_command(target, ExecCommand::Argv(argv), GIT_TIMEOUT).await
}

fn judge_clean(output: &str) -> (CheckVerdict, String) {
    if output.trim().is_empty() {
        (CheckVerdict::Passed, "the working tree is clean".to_owned())
    } else {
        (CheckVerdict::Failed, "there are changes that are not committed".to_owned())
    }
}

fn judge_committed(output: &str) -> (CheckVerdict, String) {
    match output.trim().parse::<u64>() {
        Ok(0) => (CheckVerdict::Failed, "there is no commit since the work began".to_owned()),
        Ok(commits) => (CheckVerdict::Passed, format!("{commits} commits since the work began")),
        Err(_) => (CheckVerdict::Unknown, "git gave no number of commits".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judges_git_output_and_treats_the_rest_as_unknown() {
        assert_eq!(judge_clean("\n").0, CheckVerdict::Passed);
        assert_eq!(judge_clean(" M a.rs\n").0, CheckVerdict::Failed);
        assert_eq!(judge_committed("2\n").0, CheckVerdict::Passed);
        assert_eq!(judge_committed("0\n").0, CheckVerdict::Failed);
        assert_eq!(judge_committed("fatal").0, CheckVerdict::Unknown);
    }
}
