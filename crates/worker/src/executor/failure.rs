//! How an agent's end is told: each kind apart.

use crate::hands::Ending;
use atoll_core::provider::Exit;
use serde_json::{Value, json};

/// What is known of an agent that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct End<'a> {
    pub ending: Ending,
    /// It was in a turn and did not end it.
    pub in_turn: bool,
    /// What it said itself.
    pub said: Option<&'a str>,
    /// The kernel killed it, or what it waited for, for memory: the limit and the highest use.
    pub out_of_memory: Option<(Option<u64>, Option<u64>)>,
    pub stderr_tail: &'a str,
}

/// The data of `agent.failed`; nothing if an idle agent has just left.
pub(super) fn of(end: End<'_>) -> Option<Value> {
    let (reason, error) = match (end.said, end.out_of_memory, end.ending) {
        (Some(said), ..) => ("agent_failed", said.to_owned()),
        (None, Some((limit, _)), ending) => ("out_of_memory", out_of_memory(limit, ending)),
        (None, None, Ending::Signalled(signal)) => {
            ("agent_crashed", format!("the agent was killed by signal {signal}"))
        }
        (None, None, Ending::Lost) => {
            ("agent_crashed", "the agent was killed, together with the process that had started it".to_owned())
        }
        (None, None, Ending::Exited(0)) if !end.in_turn => return None,
        (None, None, Ending::Exited(0)) => ("agent_exited", "the agent exited without ending its turn".to_owned()),
        (None, None, Ending::Exited(code)) => ("agent_failed", format!("the agent exited with code {code}")),
    };
    let mut data = json!({"reason": reason, "error": error, "stderr_tail": end.stderr_tail, "exit": exit(&end)});
    if let Some((limit, peak)) = end.out_of_memory {
        data["memory_limit"] = limit.into();
        data["memory_peak"] = peak.into();
    }
    Some(data)
}

fn out_of_memory(limit: Option<u64>, ending: Ending) -> String {
    let what = match ending {
        Ending::Exited(code) if code < 128 => {
            format!("the agent exited with code {code} after a process of it was killed")
        }
        Ending::Exited(_) | Ending::Signalled(_) | Ending::Lost => "the agent was killed".to_owned(),
    };
    let why = "because the sandbox's memory ran out";
    match limit {
        Some(limit) => {
            let megabytes = limit / 1_000_000;
            format!("{what} {why}: its limit is {megabytes} MB; a sandbox with more memory_gb has room for more")
        }
        None => format!("{what} {why}"),
    }
}

const fn exit(end: &End<'_>) -> Exit {
    match end.ending {
        _ if end.out_of_memory.is_some() => Exit::OutOfMemory,
        Ending::Exited(code) => Exit::Exited { code },
        Ending::Signalled(signal) => Exit::Signalled { signal },
        Ending::Lost => Exit::Unknown,
    }
}

/// The data of `agent.failed` when there was no agent to begin with.
pub(super) fn not_started(error: &str) -> Value {
    json!({"reason": "agent_not_started", "error": error, "stderr_tail": ""})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(ending: Ending) -> End<'static> {
        End { ending, in_turn: true, said: None, out_of_memory: None, stderr_tail: "last words" }
    }

    #[test]
    fn every_end_has_its_reason() {
        let oom = Some((Some(2_000_000), Some(1_999_999)));
        let cases = [
            (End { said: Some("no key"), ..end(Ending::Exited(1)) }, "agent_failed"),
            (End { out_of_memory: oom, ..end(Ending::Signalled(9)) }, "out_of_memory"),
            (end(Ending::Signalled(6)), "agent_crashed"),
            (End { in_turn: false, ..end(Ending::Signalled(6)) }, "agent_crashed"),
            (end(Ending::Lost), "agent_crashed"),
            (end(Ending::Exited(0)), "agent_exited"),
            (end(Ending::Exited(3)), "agent_failed"),
        ];
        for (end, reason) in cases {
            let data = of(end).unwrap();
            assert_eq!((&data["reason"], &data["stderr_tail"]), (&json!(reason), &json!("last words")), "{end:?}");
        }
        assert_eq!(of(End { in_turn: false, ..end(Ending::Exited(0)) }), None);
    }

    #[test]
    fn an_end_is_told_with_its_figures() {
        let data = of(End { out_of_memory: Some((Some(2_000_000), Some(5))), ..end(Ending::Signalled(9)) }).unwrap();
        assert_eq!((&data["memory_limit"], &data["memory_peak"]), (&json!(2_000_000), &json!(5)));
        assert_eq!(data["exit"], json!({"kind": "out_of_memory"}));
        assert!(data["error"].as_str().unwrap().starts_with("the agent was killed because"), "{data}");
        let data = of(End { out_of_memory: Some((None, None)), ..end(Ending::Exited(1)) }).unwrap();
        assert!(data["error"].as_str().unwrap().starts_with("the agent exited with code 1 after"), "{data}");
        assert_eq!(data["exit"], json!({"kind": "out_of_memory"}));
        let data = of(end(Ending::Exited(3))).unwrap();
        assert_eq!((&data["exit"], data.get("memory_limit")), (&json!({"kind": "exited", "code": 3}), None));
    }
}
