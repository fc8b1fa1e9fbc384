//! Scripted agents: one for each detector, each caught; and healthy ones, which raise no alarm.

use super::*;
use crate::event::{Event, EventSource, EventType, kind};
use crate::id::{SandboxId, SessionId};
use crate::json::to_raw_json;
use crate::time::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::Path;
use uuid::Uuid;

/// An event log that an agent writes, one event per second unless it waits.
struct AgentLog {
    events: Vec<Event>,
    now: i64,
    calls: usize,
}

impl AgentLog {
    fn new() -> Self {
        Self { events: Vec::new(), now: 0, calls: 0 }
    }

    fn add(&mut self, event_type: &str, data: &Value) -> &mut Self {
        self.add_from(EventSource::Agent, event_type, data)
    }

    fn add_from(&mut self, source: EventSource, event_type: &str, data: &Value) -> &mut Self {
        self.now += 1;
        let at = Timestamp::from_micros(self.now * 1_000_000);
        self.events.push(Event {
            id: Uuid::nil(),
            sandbox_id: SandboxId::from_uuid(Uuid::nil()),
            session_id: Some(SessionId::from_uuid(Uuid::nil())),
            seq: self.events.len() as i64 + 1,
            event_type: EventType::new(event_type).unwrap(),
            source,
            actor: None,
            at,
            received_at: at,
            turn: Some(1),
            data: to_raw_json(data),
        });
        self
    }

    fn wait(&mut self, seconds: i64) -> &mut Self {
        self.now += seconds;
        self
    }

    fn say(&mut self, text: &str) -> &mut Self {
        self.add(kind::AGENT_MESSAGE, &json!({"text": text}))
    }

    fn call(&mut self, tool: &str, input: &Value, output: &str, is_error: bool) -> &mut Self {
        self.calls += 1;
        let id = format!("call_{}", self.calls);
        self.add(kind::AGENT_TOOL_USE, &json!({"tool": tool, "tool_use_id": id, "input": input}));
        let result = json!({"tool": tool, "tool_use_id": id, "output": output, "is_error": is_error});
        self.add(kind::AGENT_TOOL_COMPLETED, &result)
    }

    fn run(&mut self, command: &str, output: &str) -> &mut Self {
        self.call("Bash", &json!({"command": command}), output, false)
    }

    fn fail(&mut self, command: &str, output: &str) -> &mut Self {
        self.call("Bash", &json!({"command": command}), output, true)
    }

    fn edit(&mut self, path: &str, old: &str, new: &str) -> &mut Self {
        let input = json!({"file_path": format!("/workspace/{path}"), "old_string": old, "new_string": new});
        self.call("Edit", &input, "done", false);
        self.changed(path, old, new)
    }

    fn changed(&mut self, path: &str, old: &str, new: &str) -> &mut Self {
        let diff = format!("--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-{old}\n+{new}\n");
        let data = json!({
            "file_path": path, "change_type": "modified", "lines_added": 1, "lines_removed": 1,
            "diff_preview": diff, "full_diff": diff,
        });
        self.add(kind::AGENT_FILE_EDITED, &data)
    }

    fn end_turn(&mut self) -> &mut Self {
        self.add(kind::AGENT_COMPLETED, &json!({"turn": 1}))
    }

    /// What the guardian does, event by event.
    fn watch(&self, settings: &Value) -> Vec<WatchStep> {
        let mut watch = new_watch(settings);
        self.events.iter().map(|event| watch.observe(event)).collect()
    }

    /// Detectors and actions, in order.
    fn decisions(&self, settings: &Value) -> Vec<(Detector, GuardianAction)> {
        let steps = self.watch(settings).into_iter();
        steps.flat_map(|step| step.decisions).map(|one| (one.finding.detector, one.action)).collect()
    }
}

fn new_watch(settings: &Value) -> GuardianWatch {
    let settings: GuardianSettings = serde_json::from_value(settings.clone()).unwrap();
    let task = WatchedTask {
        files: settings.files.clone(),
        protected: vec!["Cargo.lock".to_owned()],
        workspace: "/workspace".to_owned(),
        changes_files: true,
        cost_limit_micros: Some(10_000_000),
        time_limit: Some(std::time::Duration::from_secs(3600)),
    };
    GuardianWatch::new(settings, Thresholds::default(), PolicyRules::default(), task)
}

const TESTS_PASS: &str = "running 12 tests\ntest result: ok. 12 passed; 0 failed; 0 ignored";

fn failed_tests(failed: u32) -> String {
    format!("test result: FAILED. {} passed; {failed} failed; 0 ignored", 12 - failed)
}

/// An agent in trouble: what it does again and again.
fn trouble(detector: Detector, log: &mut AgentLog, round: usize) {
    match detector {
        Detector::RepeatedCall => {
            log.run("make", "make: Nothing to be done").wait(10);
        }
        Detector::RepeatedError => {
            log.fail(&format!("try --number {round}"), &format!("error: cannot find the library (pid {round})"))
                .wait(10);
        }
        Detector::Alternating => {
            log.run("git status", "clean").run("git log", "one commit").wait(10);
        }
        Detector::Talking => {
            log.say(&format!("Next I will look at the parser, {round}.")).wait(10);
        }
        Detector::BackAndForth => {
            let (old, new) = if round.is_multiple_of(2) { ("a", "b") } else { ("b", "a") };
            log.edit("src/lib.rs", old, new).wait(10);
        }
        Detector::TestsWorse => {
            let failed = if round == 0 { 0 } else { 2 };
            log.edit(&format!("src/part_{round}.rs"), "a", &round.to_string());
            log.run("cargo test", &failed_tests(failed)).wait(10);
        }
        Detector::NoFileChange => {
            log.run(&format!("grep -r word_{round} ."), &format!("found {round}")).wait(100);
        }
        Detector::OutsideFiles => {
            log.edit(&format!("other/file_{round}.rs"), "a", &round.to_string()).wait(40);
        }
        Detector::ProtectedPath => {
            log.run("rm Cargo.lock", &format!("removed {round}")).wait(40);
        }
        Detector::SecretInOutput => {
            log.run(&format!("env {round}"), "KEY=ghp_aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bD1fG3hJ5kL").wait(40);
        }
        Detector::Spending => {
            let usage = json!({"input_tokens": 1000, "output_tokens": 1000, "cost_usd": 1.5});
            log.edit("src/lib.rs", "a", &round.to_string()).add(kind::AGENT_USAGE, &usage).wait(60);
        }
        Detector::ContextFull => {
            let usage =
                json!({"tokens": 1, "cost_usd": 0.0, "prompt_tokens": 170_000 + round * 1000, "context": 200_000});
            log.edit("src/lib.rs", "a", &round.to_string());
            log.add_from(EventSource::System, kind::MODEL_USAGE, &usage).wait(60);
        }
        // The judge needs no events.
        Detector::Judge => {}
    }
}

fn agent_in_trouble(detector: Detector, rounds: usize) -> AgentLog {
    let mut log = AgentLog::new();
    log.add(kind::AGENT_STARTED, &json!({"turn": 1, "cwd": "/workspace"}));
    log.edit("src/main.rs", "old", "new");
    (0..rounds).for_each(|round| trouble(detector, &mut log, round));
    log
}

fn event_detectors() -> impl Iterator<Item = Detector> {
    Detector::ALL.iter().copied().filter(|detector| *detector != Detector::Judge)
}

#[test]
fn each_detector_catches_its_agent_and_no_other_one() {
    for detector in event_detectors() {
        let log = agent_in_trouble(detector, 30);
        let found = log.decisions(&json!({"act": "nudge", "files": ["src"]}));
        let (first, rest) = found.split_first().unwrap_or_else(|| panic!("{detector} finds nothing"));
        assert_eq!(*first, (detector, GuardianAction::Nudge), "{found:?}");
        // Credentials are in files too, and editing back and forth makes no progress.
        assert!(rest.iter().all(|(other, _)| *other == detector), "{found:?}");
    }
}

#[test]
fn an_agent_that_continues_is_shown_to_people() {
    for detector in event_detectors() {
        let steps = agent_in_trouble(detector, 120).watch(&json!({"act": "nudge", "files": ["src"]}));
        let decisions: Vec<_> = steps.iter().flat_map(|step| &step.decisions).collect();
        let escalated = decisions.iter().position(|one| one.action == GuardianAction::Escalate);
        assert!(escalated.is_some(), "{detector}: {decisions:?}");
        let outcomes: Vec<_> = steps.iter().flat_map(|step| &step.follow_ups).map(|one| one.outcome).collect();
        assert!(!outcomes.is_empty(), "{detector}");
    }
}

#[test]
fn every_finding_names_existing_events_as_its_evidence() {
    for detector in event_detectors() {
        let log = agent_in_trouble(detector, 60);
        for step in log.watch(&json!({"act": "nudge", "files": ["src"]})) {
            for Decision { finding, .. } in step.decisions {
                let last = finding.evidence.last().copied().unwrap_or_default();
                assert!(last <= finding.seq && finding.evidence.len() <= MAX_EVIDENCE, "{finding:?}");
                assert!(finding.evidence.iter().all(|seq| (1..=log.events.len() as i64).contains(seq)), "{finding:?}");
                assert!(finding.evidence.is_sorted() && !finding.evidence.is_empty(), "{finding:?}");
            }
        }
    }
}

#[test]
fn a_nudge_that_helps_is_followed_up() {
    let mut log = AgentLog::new();
    for _ in 0..5 {
        log.run("make", "no rule");
    }
    for n in 0..6 {
        log.run(&format!("cat file_{n}"), &format!("content {n}"));
    }
    let steps = log.watch(&json!({"act": "nudge"}));
    let follow_ups: Vec<_> = steps.iter().flat_map(|step| &step.follow_ups).collect();
    assert_eq!(follow_ups.len(), 1, "{follow_ups:?}");
    assert_eq!((follow_ups[0].seq, follow_ups[0].outcome), (10, InterventionOutcome::Stopped));

    let mut log = AgentLog::new();
    for _ in 0..5 {
        log.run("make", "no rule");
    }
    let steps = log.end_turn().watch(&json!({"act": "nudge"}));
    let follow_ups: Vec<_> = steps.iter().flat_map(|step| &step.follow_ups).collect();
    assert_eq!(follow_ups[0].outcome, InterventionOutcome::TurnEnded, "{follow_ups:?}");
}

#[test]
fn a_changed_file_or_a_new_result_is_no_repetition() {
    let mut log = AgentLog::new();
    for round in 0..20 {
        log.run("cargo build", "error: mismatched types").changed("src/lib.rs", "a", &round.to_string());
    }
    assert_eq!(log.decisions(&json!({})), []);
    let mut log = AgentLog::new();
    for round in 0..20 {
        log.run("date", &round.to_string());
    }
    assert_eq!(log.decisions(&json!({})), []);
    let mut log = AgentLog::new();
    for _ in 0..20 {
        log.run("sleep 30; gh run view", "pending");
    }
    assert_eq!(log.decisions(&json!({})), [], "waiting is no repetition");
}

#[test]
fn a_conversation_with_a_person_is_no_talking() {
    let mut log = AgentLog::new();
    for _ in 0..20 {
        log.add_from(EventSource::User, kind::MESSAGE_QUEUED, &json!({"content": "and why?"}));
        log.say("Because of this.").say("And of that.").end_turn();
    }
    assert_eq!(log.decisions(&json!({})), []);
}

#[test]
fn a_detector_that_is_off_finds_nothing() {
    let log = agent_in_trouble(Detector::Talking, 30);
    assert_eq!(log.decisions(&json!({"detectors": {"talking": {"enabled": false}}})), []);
}

#[test]
fn costs_ahead_of_the_plan_are_found() {
    let mut log = AgentLog::new();
    for _ in 0..3 {
        log.run("ls", "a").add(kind::AGENT_USAGE, &json!({"input_tokens": 1, "output_tokens": 1, "cost_usd": 1.0}));
    }
    let steps = log.watch(&json!({}));
    let found = steps.iter().flat_map(|step| &step.decisions).next().unwrap();
    // $3 of $10 within seconds of an hour.
    assert_eq!(found.finding.detector, Detector::Spending);
    assert_eq!(found.finding.detail.as_deref(), Some("30 % of the cost limit in 0 % of the time"));
}

#[test]
fn a_restored_watch_neither_repeats_nor_forgets() {
    let settings = json!({"act": "nudge"});
    let log = agent_in_trouble(Detector::RepeatedCall, 60);
    let all = log.watch(&settings);
    let whole: Vec<_> = all.iter().flat_map(|step| step.decisions.clone()).collect();
    for cut in [5, 14, 20, 40] {
        let mut past: Vec<PastIntervention> = Vec::new();
        for (step, event) in all[..cut].iter().zip(&log.events) {
            for follow_up in &step.follow_ups {
                past.iter_mut()
                    .filter(|one| one.finding.seq == follow_up.seq)
                    .for_each(|one| one.outcome = Some(follow_up.outcome));
            }
            past.extend(step.decisions.iter().map(|one| PastIntervention {
                finding: one.finding.clone(),
                action: one.action,
                held_back: one.held_back,
                outcome: None,
                at: event.received_at,
            }));
        }
        let mut watch = new_watch(&settings);
        watch.restore(&past);
        let known = past.len();
        let later: Vec<_> = log.events.iter().flat_map(|event| watch.observe(event).decisions).collect();
        assert_eq!(later, whole[known..], "restored after {cut} events");
    }
}

/// A healthy run: it reads, edits, tests, fails, fixes and reports, in an order that the seed chooses.
fn healthy_run(seed: u64) -> AgentLog {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = |most: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % most
    };
    let mut log = AgentLog::new();
    log.add(kind::AGENT_STARTED, &json!({"turn": 1, "cwd": "/workspace"})).say("I start with a look at the code.");
    let mut version = 0;
    for step in 0..20 + next(60) {
        match next(10) {
            0..=2 => {
                let file = next(8);
                let path = format!("/workspace/src/part_{file}.rs");
                log.call("Read", &json!({"file_path": path}), &format!("fn part_{file}() {{ {version} }}"), false);
            }
            3 => {
                log.run(&format!("grep -rn part_{} src", next(5)), &format!("src/lib.rs:{step}: part"));
            }
            4..=6 => {
                version += 1;
                log.edit(&format!("src/part_{}.rs", next(8)), &format!("{}", version - 1), &version.to_string());
            }
            7 => {
                // A failing test first, and its fix.
                let failed = 1 + next(3) as u32;
                log.run("cargo test", &failed_tests(failed));
                version += 1;
                log.edit("src/lib.rs", &format!("{}", version - 1), &version.to_string());
                log.run("cargo test", TESTS_PASS);
            }
            8 => {
                log.fail("cargo clippy", &format!("error: unused variable `value_{version}_{step}`"));
            }
            _ => {
                log.say(&format!("Part {step} is done, and next comes the following one."));
            }
        }
        log.wait(next(40) as i64);
        let cost = next(20) as f64 / 1000.0;
        log.add(kind::AGENT_USAGE, &json!({"input_tokens": 3000, "output_tokens": 500, "cost_usd": cost}));
    }
    log.say("Everything is done and the tests pass.").end_turn();
    log
}

#[test]
fn a_hundred_healthy_runs_raise_no_alarm() {
    for seed in 1..=100 {
        let found = healthy_run(seed).decisions(&json!({"act": "restart", "files": ["src"]}));
        assert_eq!(found, [], "seed {seed}");
    }
}

/// The events that the drivers make of recorded sessions with the real agents.
#[test]
fn recorded_sessions_of_real_agents_raise_no_alarm() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker/tests/agents/transcripts");
    let mut sessions = 0;
    for agent in std::fs::read_dir(root).unwrap() {
        for file in std::fs::read_dir(agent.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "events") {
                continue;
            }
            let mut log = AgentLog::new();
            for line in std::fs::read_to_string(&path).unwrap().lines() {
                let Some((event_type, rest)) = line.split_once(' ') else { continue };
                let data = serde_json::Deserializer::from_str(rest).into_iter::<Value>().next();
                if let (true, Some(Ok(data))) = (event_type.starts_with("agent."), data) {
                    log.add(event_type, &data);
                }
            }
            let work = log.events.iter().filter_map(agent_signal::AgentSignal::from_event).filter(|one| one.is_work());
            assert!(work.count() > 0, "{}: no event is work", path.display());
            assert_eq!(log.decisions(&json!({"act": "restart"})), [], "{}", path.display());
            sessions += 1;
        }
    }
    assert!(sessions >= 20, "{sessions} sessions");
}

#[test]
fn the_judges_finding_follows_the_same_policy() {
    let mut watch = new_watch(&json!({"act": "nudge"}));
    let finding = |seq| Finding {
        detail: Some("Fix the parser.".to_owned()),
        ..Finding::new(Detector::Judge, seq, "judge", [seq])
    };
    let first = watch.record_finding(finding(5), Timestamp::from_micros(0));
    assert_eq!(first.decisions[0].action, GuardianAction::Nudge);
    let second = watch.record_finding(finding(9), Timestamp::from_micros(60_000_000));
    assert_eq!(second.follow_ups[0].outcome, InterventionOutcome::Continued);
    assert_eq!(second.decisions[0].action, GuardianAction::Escalate);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever an agent's events contain, observing them neither panics nor finds more than it may.
    #[test]
    fn any_events_are_observed_within_bounds(steps in prop::collection::vec((0..12_usize, ".{0,40}", any::<i64>()), 0..300)) {
        let types = [
            kind::AGENT_STARTED, kind::AGENT_COMPLETED, kind::AGENT_MESSAGE, kind::AGENT_TOOL_USE,
            kind::AGENT_TOOL_COMPLETED, kind::AGENT_FILE_EDITED, kind::AGENT_USAGE, kind::MODEL_USAGE,
            kind::GUARDIAN_DENIED, kind::CONTINUOUS_CHECKED, kind::MESSAGE_QUEUED, "agent.unknown",
        ];
        let mut log = AgentLog::new();
        for (n, text, number) in steps {
            log.add(types[n], &json!({
                "text": text, "tool": text, "tool_use_id": (number % 5).to_string(), "input": {"command": text, "file_path": text},
                "output": text, "is_error": number % 2 == 0, "file_path": text, "full_diff": format!("@@\n-{text}\n+{number}"),
                "diff_preview": "", "input_tokens": number.unsigned_abs(), "cost_usd": number as f64,
                "tokens": number.unsigned_abs(), "prompt_tokens": number.unsigned_abs(), "context": number.unsigned_abs(),
                "rule": "protected", "round": 1, "failed": [text], "cwd": text,
            }));
        }
        let decisions = log.decisions(&json!({"act": "restart", "files": ["src"]}));
        let count = |action| decisions.iter().filter(|(_, taken)| *taken == action).count();
        prop_assert!(count(GuardianAction::Nudge) <= 10 && count(GuardianAction::Restart) <= 1);
        prop_assert!(count(GuardianAction::Interrupt) <= 3 && count(GuardianAction::Pause) <= 3);
    }
}
