//! The report of a failed set-up: what happened, and what to do about it. Pure.

use crate::app::lifecycle::truncate_text;
use crate::egress::RefusedHost;
use crate::problem::Problem;
use atoll_api::events::SetupFailed;
use atoll_core::provider::CommandExit;
use atoll_core::sandbox::{NetworkPolicy, Reason};
use atoll_core::setup::remedy_for_tool;
use std::time::Duration;

/// The shell's exit code for an unknown program.
const EXIT_NOT_FOUND: i32 = 127;
/// Refused hosts that a remedy names.
const MAX_NAMED_HOSTS: usize = 3;
const MAX_REASON_CHARS: usize = 1000;
const MAX_LINE_CHARS: usize = 200;
const MAX_TOOL_CHARS: usize = 60;

/// The step that failed.
#[derive(Debug, Clone)]
pub(super) struct FailedStep {
    /// From 1.
    pub number: usize,
    pub command: String,
    pub exit: CommandExit,
    /// The end of its output.
    pub tail: String,
    /// Programs that the step needs and the sandbox lacks.
    pub missing_tools: Vec<String>,
}

/// What is known about the surroundings of a failure.
pub(super) struct FailureContext {
    pub policy: NetworkPolicy,
    /// Hosts that the egress proxy refused during set-up, most refused first.
    pub refused: Vec<RefusedHost>,
    pub time_limit: Duration,
}

/// Reports a step that failed by itself.
pub(super) fn report_failed_step(step: FailedStep, context: &FailureContext) -> SetupFailed {
    let verb = match step.exit {
        CommandExit::Exited { code } => format!("failed with exit code {code}"),
        CommandExit::Signalled { signal } => format!("was killed by signal {signal}"),
        CommandExit::OutOfMemory => "was killed because the sandbox's memory ran out".to_owned(),
        CommandExit::TimedOut => {
            format!("was killed because set-up took longer than {} s", context.time_limit.as_secs())
        }
        CommandExit::Unknown => "ended in an unknown way".to_owned(),
    };
    let error = format!("step {} `{}` {verb}", step.number, truncate_text(&step.command, MAX_LINE_CHARS));
    let remedy = find_remedy(&step, context);
    SetupFailed {
        step: Some(step.number),
        command: Some(step.command),
        exit: Some(step.exit),
        error,
        tail: step.tail,
        remedy,
    }
}

/// Reports a failure of the server or the provider.
pub(super) fn report_problem(problem: &Problem) -> SetupFailed {
    let error = format!("set-up could not run: {}", problem.detail);
    SetupFailed { step: None, command: None, exit: None, error, tail: String::new(), remedy: None }
}

/// Reports a host that was refused so often that the package manager would retry for minutes.
pub(super) fn report_refused_host(step: FailedStep, host: &RefusedHost, context: &FailureContext) -> SetupFailed {
    let error = format!(
        "step {} `{}` was stopped after {} refused connections to {}",
        step.number,
        truncate_text(&step.command, MAX_LINE_CHARS),
        host.count,
        host.place()
    );
    SetupFailed {
        step: Some(step.number),
        command: Some(step.command),
        exit: None,
        error,
        tail: step.tail,
        remedy: Some(allow_hosts(&[host], context.policy)),
    }
}

/// The reason of the sandbox's failure, on one line.
pub(super) fn failure_reason(failed: &SetupFailed) -> Reason {
    // The log that npm names is gone with the sandbox.
    let tells = |line: &&str| !line.is_empty() && !line.contains("A complete log of this run");
    let last = failed.tail.lines().rev().map(str::trim).find(tells).unwrap_or_default();
    let output = if last.is_empty() { String::new() } else { format!(": {}", truncate_text(last, MAX_LINE_CHARS)) };
    let remedy = failed.remedy.as_ref().map(|remedy| format!("; {remedy}")).unwrap_or_default();
    Reason::new("setup_failed", truncate_text(&format!("{}{output}{remedy}", failed.error), MAX_REASON_CHARS))
}

fn find_remedy(step: &FailedStep, context: &FailureContext) -> Option<String> {
    let missing = match step.exit {
        CommandExit::Exited { code: EXIT_NOT_FOUND } if step.missing_tools.is_empty() => {
            find_missing_program(&step.tail).into_iter().collect()
        }
        _ => step.missing_tools.clone(),
    };
    if !missing.is_empty() {
        let lacks = |tool: &String| format!("this machine lacks {tool}: {}", remedy_for_tool(tool));
        return Some(missing.iter().map(lacks).collect::<Vec<_>>().join("; "));
    }
    match step.exit {
        CommandExit::OutOfMemory => return Some("give the sandbox more memory (--memory)".to_owned()),
        CommandExit::TimedOut => return Some("raise `setup.timeout`, or let set-up do less".to_owned()),
        CommandExit::Exited { .. } | CommandExit::Signalled { .. } | CommandExit::Unknown => {}
    }
    let refused: Vec<&RefusedHost> = context.refused.iter().take(MAX_NAMED_HOSTS).collect();
    (!refused.is_empty()).then(|| allow_hosts(&refused, context.policy))
}

/// The program that a shell did not find, by its message: `sh: 1: NAME: not found`.
fn find_missing_program(tail: &str) -> Option<String> {
    let name = tail.lines().rev().find_map(|line| {
        let line = line.trim();
        let before = line.strip_suffix(": command not found").or_else(|| line.strip_suffix(": not found"))?;
        before.rsplit(": ").next()
    })?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./+".contains(c);
    (!name.is_empty() && name.len() <= MAX_TOOL_CHARS && name.chars().all(is_plain)).then(|| name.to_owned())
}

/// How to allow hosts that were refused.
fn allow_hosts(hosts: &[&RefusedHost], policy: NetworkPolicy) -> String {
    let names = hosts.iter().map(|host| host.place()).collect::<Vec<_>>().join(", ");
    if hosts.iter().any(|host| host.reason == "private_address") {
        return format!("allow {names} with `network.allow_private` in the configuration, if set-up may reach it");
    }
    match policy {
        NetworkPolicy::Packages => format!(
            "allow {names} with `setup.allow` or `network.packages` in the configuration, if set-up may reach it"
        ),
        NetworkPolicy::Allow => format!("add {names} to the hosts that set-up may reach (`setup.allow`)"),
        NetworkPolicy::None | NetworkPolicy::All => {
            format!("choose a network policy for set-up that allows {names} (`setup.network`)")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed_step(exit: CommandExit, tail: &str) -> FailedStep {
        FailedStep { number: 2, command: "npm ci".into(), exit, tail: tail.into(), missing_tools: Vec::new() }
    }

    fn context(refused: &[(&str, &'static str)]) -> FailureContext {
        let refused =
            refused.iter().map(|(host, reason)| RefusedHost { host: (*host).to_owned(), port: 443, reason, count: 50 });
        FailureContext {
            policy: NetworkPolicy::Packages,
            refused: refused.collect(),
            time_limit: Duration::from_secs(900),
        }
    }

    const NOT_FOUND: CommandExit = CommandExit::Exited { code: 127 };
    const ONE: CommandExit = CommandExit::Exited { code: 1 };

    #[test]
    fn the_reason_is_one_line_with_the_last_output_and_the_remedy() {
        let failed = report_failed_step(failed_step(NOT_FOUND, "x\nsh: 1: uv: not found\n"), &context(&[]));
        let reason = failure_reason(&failed);
        assert_eq!(reason.code, "setup_failed");
        assert_eq!(
            reason.detail,
            "step 2 `npm ci` failed with exit code 127: sh: 1: uv: not found; this machine lacks uv: install it (such \
             as `pipx install --global uv`), or give the project an image that has it (`atoll image import`)"
        );
        let plain = failure_reason(&report_failed_step(failed_step(ONE, ""), &context(&[])));
        assert_eq!(plain.detail, "step 2 `npm ci` failed with exit code 1");
    }

    #[test]
    fn finds_the_program_that_a_shell_lacks() {
        for (tail, name) in [
            ("sh: 1: uv: not found", Some("uv")),
            ("bash: line 1: pnpm: command not found", Some("pnpm")),
            ("/bin/sh: 3: ./configure: not found", Some("./configure")),
            ("npm error 404 Not Found", None),
            ("the file \u{1b}[31m: not found", None),
        ] {
            assert_eq!(find_missing_program(tail).as_deref(), name, "{tail}");
        }
    }

    #[test]
    fn a_missing_tool_comes_before_the_network() {
        let mut step = failed_step(ONE, "");
        step.missing_tools = vec!["node".into(), "npm".into()];
        let failed = report_failed_step(step, &context(&[("example.org", "policy")]));
        let remedy = failed.remedy.unwrap();
        assert!(remedy.contains("lacks node: ") && remedy.contains("lacks npm: "), "{remedy}");
    }

    #[test]
    fn a_refused_host_is_named_with_the_key_that_allows_it() {
        let context = context(&[("npm.example.org", "policy")]);
        let failed = report_failed_step(failed_step(ONE, ""), &context);
        assert!(failed.remedy.unwrap().starts_with("allow npm.example.org with `setup.allow`"));
        let host = &context.refused[0];
        let failed = report_refused_host(failed_step(ONE, "npm error"), host, &context);
        assert_eq!(failed.error, "step 2 `npm ci` was stopped after 50 refused connections to npm.example.org");
        let private = RefusedHost { reason: "private_address", ..host.clone() };
        assert!(allow_hosts(&[&private], NetworkPolicy::All).contains("network.allow_private"));
        assert!(allow_hosts(&[host], NetworkPolicy::None).contains("`setup.network`"));
    }
}
