//! The data of `agent.failed`: classifies how an agent exited.

use crate::spawner::ExitStatus;
use atoll_api::events::{AgentFailed, ServiceFailed};
use atoll_core::provider::CommandExit;
use atoll_core::size::format_bytes;

/// The exit of an agent with its context.
#[derive(Debug, Clone, Copy)]
pub(super) struct AgentExit<'a> {
    pub status: ExitStatus,
    /// The agent exited during a turn.
    pub in_turn: bool,
    /// The error that the agent itself reported.
    pub reported: Option<&'a str>,
    /// Set if memory ran out: the limit and the peak usage.
    pub out_of_memory: Option<(Option<u64>, Option<u64>)>,
    pub stderr_tail: &'a str,
}

/// Builds the data of `agent.failed`; `None` if an idle agent exited normally.
pub(super) fn failure_data(end: AgentExit<'_>) -> Option<AgentFailed> {
    let (reason, error) = match (end.reported, end.out_of_memory, end.status) {
        (Some(error), ..) => ("agent_failed", error.to_owned()),
        (None, Some((limit, _)), ending) => ("out_of_memory", out_of_memory_text(limit, ending)),
        (None, None, ExitStatus::Signalled(signal)) => {
            ("agent_crashed", format!("the agent was killed by signal {signal}"))
        }
        (None, None, ExitStatus::Lost) => {
            ("agent_crashed", "the agent was killed together with its spawner".to_owned())
        }
        (None, None, ExitStatus::Exited(0)) if !end.in_turn => return None,
        (None, None, ExitStatus::Exited(0)) => ("agent_exited", "the agent exited without ending its turn".to_owned()),
        (None, None, ExitStatus::Exited(code)) => ("agent_failed", format!("the agent exited with code {code}")),
    };
    let (memory_limit, memory_peak) = end.out_of_memory.unwrap_or_default();
    Some(AgentFailed {
        turn: None,
        reason: reason.to_owned(),
        error,
        stderr_tail: Some(end.stderr_tail.to_owned()),
        exit: Some(exit_of(&end)),
        memory_limit,
        memory_peak,
    })
}

fn out_of_memory_text(limit: Option<u64>, ending: ExitStatus) -> String {
    let what = match ending {
        ExitStatus::Exited(code) if code < 128 => {
            format!("the agent exited with code {code} after a process of it was killed")
        }
        ExitStatus::Exited(_) | ExitStatus::Signalled(_) | ExitStatus::Lost => "the agent was killed".to_owned(),
    };
    let why = "because the sandbox's memory ran out";
    match limit {
        Some(limit) => {
            let limit = format_bytes(limit);
            format!("{what} {why}: its limit is {limit}; a sandbox with more memory_gb has room for more")
        }
        None => format!("{what} {why}"),
    }
}

const fn exit_of(end: &AgentExit<'_>) -> CommandExit {
    match end.status {
        _ if end.out_of_memory.is_some() => CommandExit::OutOfMemory,
        ExitStatus::Exited(code) => CommandExit::Exited { code },
        ExitStatus::Signalled(signal) => CommandExit::Signalled { signal },
        ExitStatus::Lost => CommandExit::Unknown,
    }
}

/// Builds the data of `agent.failed` for an agent that could not start.
pub(super) fn launch_failure_data(error: &str) -> AgentFailed {
    let (reason, stderr_tail) = ("agent_not_started".to_owned(), Some(String::new()));
    AgentFailed { reason, error: error.to_owned(), stderr_tail, ..AgentFailed::default() }
}

/// Builds the data of `agent.failed` for an agent that did not start because of a service.
pub(super) fn service_failure_data(failed: &ServiceFailed) -> AgentFailed {
    const MAX_LINE_CHARS: usize = 200;
    let last_line = failed.tail.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let last_line: String = last_line.trim().chars().take(MAX_LINE_CHARS).collect();
    let said = if last_line.is_empty() {
        "it wrote no output".to_owned()
    } else {
        format!("its output ends with: {last_line}")
    };
    let error = format!(
        "service {}: {}; {said}; correct its command, its ready check or what it needs, then run again",
        failed.name, failed.detail
    );
    let (reason, stderr_tail) = ("service_failed".to_owned(), Some(failed.tail.clone()));
    AgentFailed { reason, error, stderr_tail, exit: failed.exit, ..AgentFailed::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(status: ExitStatus) -> AgentExit<'static> {
        AgentExit { status, in_turn: true, reported: None, out_of_memory: None, stderr_tail: "last words" }
    }

    #[test]
    fn classifies_every_exit() {
        let oom = Some((Some(2_000_000), Some(1_999_999)));
        let cases = [
            (AgentExit { reported: Some("no key"), ..end(ExitStatus::Exited(1)) }, "agent_failed"),
            (AgentExit { out_of_memory: oom, ..end(ExitStatus::Signalled(9)) }, "out_of_memory"),
            (end(ExitStatus::Signalled(6)), "agent_crashed"),
            (AgentExit { in_turn: false, ..end(ExitStatus::Signalled(6)) }, "agent_crashed"),
            (end(ExitStatus::Lost), "agent_crashed"),
            (end(ExitStatus::Exited(0)), "agent_exited"),
            (end(ExitStatus::Exited(3)), "agent_failed"),
        ];
        for (end, reason) in cases {
            let data = failure_data(end).unwrap();
            assert_eq!((data.reason.as_str(), data.stderr_tail.as_deref()), (reason, Some("last words")), "{end:?}");
        }
        assert_eq!(failure_data(AgentExit { in_turn: false, ..end(ExitStatus::Exited(0)) }), None);
    }

    #[test]
    fn reports_memory_figures_and_exit_status() {
        let data = failure_data(AgentExit {
            out_of_memory: Some((Some(2_000_000), Some(5))),
            ..end(ExitStatus::Signalled(9))
        })
        .unwrap();
        assert_eq!((data.memory_limit, data.memory_peak), (Some(2_000_000), Some(5)));
        assert_eq!(data.exit, Some(CommandExit::OutOfMemory));
        assert!(data.error.starts_with("the agent was killed because"), "{data:?}");
        let data = failure_data(AgentExit { out_of_memory: Some((None, None)), ..end(ExitStatus::Exited(1)) }).unwrap();
        assert!(data.error.starts_with("the agent exited with code 1 after"), "{data:?}");
        assert_eq!(data.exit, Some(CommandExit::OutOfMemory));
        let data = failure_data(end(ExitStatus::Exited(3))).unwrap();
        assert_eq!((data.exit, data.memory_limit), (Some(CommandExit::Exited { code: 3 }), None));
    }
}
