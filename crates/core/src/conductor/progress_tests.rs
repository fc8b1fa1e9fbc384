use super::*;
use crate::event::EventSource;
use crate::id::SandboxId;
use crate::json::to_raw_json;
use proptest::prelude::*;
use serde_json::json;

fn second(count: i64) -> Timestamp {
    Timestamp::from_micros(count * 1_000_000)
}

/// An agent on a clock that advances by one second per event.
struct Run {
    progress: AgentProgress,
    now: i64,
}

impl Run {
    fn new() -> Self {
        Self { progress: AgentProgress::default(), now: 0 }
    }

    fn event(&mut self, event_type: &str, data: Value) -> &mut Self {
        self.now += 1;
        let event = Event {
            id: uuid::Uuid::nil(),
            sandbox_id: SandboxId::new(),
            session_id: None,
            seq: self.now,
            event_type: crate::event::EventType::new(event_type).unwrap(),
            source: EventSource::Agent,
            actor: None,
            at: second(self.now),
            received_at: second(self.now),
            turn: None,
            data: to_raw_json(&data),
        };
        self.progress.observe_event(&event);
        self
    }

    fn call(&mut self, command: &str, is_error: bool) -> &mut Self {
        let id = self.now.to_string();
        self.event("agent.tool_use", json!({ "tool": "Bash", "tool_use_id": id, "input": { "command": command } }));
        self.event("agent.tool_completed", json!({ "tool_use_id": id, "is_error": is_error, "output": "" }))
    }

    fn phase(&self) -> Phase {
        self.progress.phase(Activity::Working)
    }

    fn stuck(&self) -> Option<StuckReason> {
        self.progress.stuck_reason(Activity::Working, second(0), second(self.now))
    }
}

#[test]
fn the_newest_steps_decide_the_phase() {
    let mut run = Run::new();
    assert_eq!(run.phase(), Phase::Planning, "no step yet");
    run.call("ls", false).call("cat a", false).event("agent.plan", json!({ "items": [] }));
    assert_eq!(run.phase(), Phase::Exploring);
    for number in 0..5 {
        run.event("agent.file_edited", json!({ "file_path": format!("src/{number}.rs") }));
    }
    assert_eq!(run.phase(), Phase::Editing);
    for number in 0..6 {
        run.call(&format!("cargo test {number}"), false);
    }
    assert_eq!(run.phase(), Phase::Testing);
    run.event("agent.started", json!({}));
    assert_eq!(run.phase(), Phase::Planning, "a new turn");
}

#[test]
fn the_activity_takes_precedence() {
    let mut run = Run::new();
    run.call("make", false);
    for (activity, phase) in [
        (Activity::Starting, Phase::Starting),
        (Activity::Working, Phase::Testing),
        (Activity::Stalled, Phase::Testing),
        (Activity::Unreachable, Phase::Testing),
        (Activity::WaitingApproval, Phase::Waiting),
        (Activity::WaitingMessage, Phase::Waiting),
        (Activity::RateLimited, Phase::Waiting),
        (Activity::Paused, Phase::Waiting),
        (Activity::LimitPaused, Phase::Waiting),
        (Activity::TakingResults, Phase::Finishing),
        (Activity::Ended, Phase::Finishing),
    ] {
        assert_eq!(run.progress.phase(activity), phase, "{activity}");
    }
}

#[test]
fn only_a_working_agent_can_be_stuck() {
    let mut run = Run::new();
    run.event("agent.started", json!({}));
    let later = second(run.now + 15 * 60);
    for (activity, expected) in [
        (Activity::Working, Some(StuckReason::NoProgress)),
        (Activity::Stalled, Some(StuckReason::NoProgress)),
        (Activity::WaitingApproval, None),
        (Activity::RateLimited, None),
        (Activity::Paused, None),
    ] {
        assert_eq!(run.progress.stuck_reason(activity, second(0), later), expected, "{activity}");
    }
    let just_before = second(run.now + 15 * 60 - 1);
    assert_eq!(run.progress.stuck_reason(Activity::Working, second(0), just_before), None);
    assert_eq!(run.progress.stuck_reason(Activity::Working, just_before, later), None, "it runs only since then");
    run.event("agent.heartbeat", json!({})).event("agent.spinning", json!({}));
    assert_eq!(run.progress.stuck_reason(Activity::Working, second(0), later), Some(StuckReason::NoProgress));
}

#[test]
fn repeated_calls_and_errors_are_stuck() {
    let mut run = Run::new();
    for _ in 0..4 {
        run.call("make", true);
    }
    assert_eq!(run.stuck(), None);
    run.call("make", true);
    assert_eq!(run.stuck(), Some(StuckReason::RepeatedCall));
    run.event("agent.file_edited", json!({ "file_path": "Makefile" }));
    assert_eq!(run.stuck(), None, "a change explains the next run");
    run.call("make all", true);
    assert_eq!(run.stuck(), Some(StuckReason::RepeatedErrors));
    assert_eq!(run.progress.error_rate(), 1.0);
    run.call("ls", false);
    assert_eq!(run.stuck(), None);
}

#[test]
fn an_event_counts_once() {
    let mut run = Run::new();
    run.call("make", true);
    let before = run.progress.clone();
    run.now -= 1;
    run.event("agent.tool_completed", json!({ "tool_use_id": "x", "is_error": true }));
    assert_eq!(run.progress, before);
}

#[test]
fn files_are_the_newest_without_repeats() {
    let mut run = Run::new();
    for number in 0..MAX_FILES + 10 {
        run.event("agent.file_edited", json!({ "file_path": number.to_string() }));
    }
    run.event("agent.file_edited", json!({ "file_path": "20" }));
    let files: Vec<_> = run.progress.files().collect();
    assert_eq!((files.len(), files.first().copied(), files.last().copied()), (MAX_FILES, Some("10"), Some("20")));
}

proptest! {
    /// Any events, also malformed ones, leave a bounded state.
    #[test]
    fn the_state_is_bounded(events in prop::collection::vec((0..6_usize, "[a-z]{0,3}", any::<bool>()), 0..400)) {
        let mut run = Run::new();
        for (which, text, flag) in events {
            match which {
                0 => run.event("agent.tool_use", json!({ "tool": text, "tool_use_id": text, "input": { "command": text } })),
                1 => run.event("agent.tool_completed", json!({ "tool_use_id": text, "is_error": flag })),
                2 => run.event("agent.file_edited", json!({ "file_path": text.repeat(1000) })),
                3 => run.event("agent.plan", json!(text)),
                4 => run.event("agent.tool_use", json!([text])),
                _ => run.event("agent.started", json!({})),
            };
            let state = &run.progress;
            prop_assert!(state.steps.len() <= PHASE_STEPS && state.open_calls.len() <= MAX_OPEN_CALLS);
            prop_assert!(state.results.len() <= MAX_RESULTS && state.files.len() <= MAX_FILES);
            prop_assert!(state.files().all(|file| file.len() <= MAX_PATH_BYTES));
            prop_assert!((0.0..=1.0).contains(&state.error_rate()) && state.latency_z().is_finite());
        }
    }
}
