//! Sentences for events about the health of sandboxes, sessions and providers. Pure.

use super::fact::Fact;
use super::time;
use atoll_api::events::{EventData, SavedWork};
use atoll_core::health::IdleAction;
use atoll_core::size::format_bytes;
use std::time::Duration;

/// The sentence of an event about health; `None` for every other event.
pub fn describe_health_event(data: &EventData) -> Option<Fact> {
    let span = |seconds: u64| time::format_duration(Duration::from_secs(seconds));
    Some(match data {
        EventData::WorkerUnreachable(silence) => {
            Fact::warning(format!("the worker sent no heartbeat for {}", span(silence.silent_s)))
        }
        EventData::WorkerReachable(silence) => {
            Fact::note(format!("the worker sends heartbeats again after {}", span(silence.silent_s)))
        }
        EventData::WorkerRestarted(restarted) => Fact::warning(format!(
            "the server restarted the worker, which was silent for {}; the files are unchanged",
            span(restarted.silent_s)
        )),
        EventData::SandboxStalled(stalled) => {
            Fact::warning(format!("the agent has done nothing for {}", span(stalled.without_work_s)))
        }
        EventData::SandboxIdle(idle) => {
            let action = match idle.action {
                IdleAction::Pause => "pauses it; a message, a command or a terminal resumes it",
                IdleAction::End => "ends it and takes its results",
                IdleAction::Keep => "keeps it",
            };
            let saved = describe_saved(&idle.saved);
            Fact::note(format!("the sandbox was idle for {}, so the server {action}{saved}", span(idle.idle_s)))
        }
        EventData::SandboxWorkSaved(saved) => Fact::note(format!("the server saved the work{}", describe_saved(saved))),
        EventData::SandboxProviderReplaced(replaced) => Fact::warning(format!(
            "the provider {} fails, so {} creates the sandbox",
            replaced.requested, replaced.provider
        )),
        EventData::ProviderCircuitOpened(opened) => Fact::warning(format!(
            "the provider {} failed {} times in a row and gets no sandbox until {}",
            opened.provider,
            opened.failures,
            time::format_time(opened.until)
        ))
        .with_body(opened.detail.as_str()),
        EventData::ProviderCircuitClosed(closed) => Fact::note(format!("the provider {} works again", closed.provider)),
        EventData::SessionRestartPlanned(planned) => Fact::note(format!(
            "the session continues in another sandbox in {} ({} failure)",
            span(planned.delay_s),
            planned.class.as_str().replace('_', " ")
        )),
        EventData::SessionEscalated(escalated) => Fact::warning(format!(
            "please look at the session: Atoll does not restart it after {} restarts and this failure: {}",
            escalated.restarts, escalated.reason.detail
        )),
        _ => return None,
    })
}

fn describe_saved(saved: &SavedWork) -> String {
    let parts = [
        saved.transcript.as_ref().map(|_| "the transcript".to_owned()),
        saved.diff.as_ref().map(|diff| format!("a diff of {}", format_bytes(diff.bytes))),
        saved.problem.as_ref().map(|problem| format!("no diff, because {problem}")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { String::new() } else { format!("; saved: {}", parts.join(" and ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_api::events::{SandboxIdle, SavedDiff};

    #[test]
    fn an_idle_sandbox_is_described_with_what_was_saved() {
        let diff = Some(SavedDiff { blob: "ab".into(), bytes: 2048 });
        let saved = SavedWork { transcript: Some("cd".into()), diff, problem: None };
        let idle = EventData::SandboxIdle(SandboxIdle { idle_s: 600, action: IdleAction::End, saved });
        let expected = "the sandbox was idle for 10m 0s, so the server ends it and takes its results; saved: the transcript \
                        and a diff of 2.0 KiB";
        assert_eq!(describe_health_event(&idle).unwrap().head, expected);
    }
}
