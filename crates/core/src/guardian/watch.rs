//! The guardian's state for one sandbox: detectors, policy, and the interventions whose outcome is open.

use super::agent_signal::AgentSignal;
use super::intervention_policy::{ChosenAction, InterventionPolicy};
use super::{
    Detector, DetectorProgress, Detectors, Finding, GuardianSettings, HeldBack, InterventionOutcome, PolicyRules,
    Thresholds, WatchedTask,
};
use crate::event::Event;
use crate::guardian::GuardianAction;
use crate::time::Timestamp;
use std::collections::VecDeque;

/// Signals of other work after which the agent has stopped.
const QUIET_SIGNALS: u32 = 10;
/// Interventions whose outcome is observed at once.
const MAX_OPEN_INTERVENTIONS: usize = 32;

/// A finding with its action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub finding: Finding,
    pub action: GuardianAction,
    /// Why the action is only `observe`.
    pub held_back: Option<HeldBack>,
}

/// The outcome of an earlier intervention, which its detector and seq identify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FollowUp {
    pub detector: Detector,
    pub seq: i64,
    pub outcome: InterventionOutcome,
    /// The event that shows the outcome.
    pub shown_by: i64,
}

/// What follows from an event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WatchStep {
    pub follow_ups: Vec<FollowUp>,
    pub decisions: Vec<Decision>,
}

impl WatchStep {
    pub fn is_empty(&self) -> bool {
        self.follow_ups.is_empty() && self.decisions.is_empty()
    }
}

/// A stored intervention, from which a restarted server restores a watch.
#[derive(Debug, Clone)]
pub struct PastIntervention {
    pub finding: Finding,
    pub action: GuardianAction,
    pub held_back: Option<HeldBack>,
    pub outcome: Option<InterventionOutcome>,
    pub at: Timestamp,
}

#[derive(Debug)]
struct OpenIntervention {
    detector: Detector,
    subject: String,
    seq: i64,
    quiet: u32,
}

#[derive(Debug)]
pub struct GuardianWatch {
    settings: GuardianSettings,
    detectors: Detectors,
    policy: InterventionPolicy,
    open: VecDeque<OpenIntervention>,
    /// Events up to here have been judged by an earlier run of the server.
    handled_seq: i64,
}

impl GuardianWatch {
    pub fn new(settings: GuardianSettings, thresholds: Thresholds, rules: PolicyRules, task: WatchedTask) -> Self {
        Self {
            detectors: Detectors::new(settings.clone(), thresholds, task),
            settings,
            policy: InterventionPolicy::new(rules),
            open: VecDeque::new(),
            handled_seq: 0,
        }
    }

    /// Restores the interventions of an earlier run of the server, oldest first. Events up to the last one then only fill
    /// the detectors.
    pub fn restore(&mut self, past: &[PastIntervention]) {
        for one in past {
            let chosen = ChosenAction { action: one.action, held_back: one.held_back };
            self.policy.restore(&one.finding, chosen, one.outcome, one.at);
            if one.outcome.is_none() {
                self.open_intervention(&one.finding);
            }
            self.handled_seq = self.handled_seq.max(one.finding.seq);
        }
    }

    /// Passes a stored event to the detectors and returns what to do.
    pub fn observe(&mut self, event: &Event) -> WatchStep {
        let Some(signal) = AgentSignal::from_event(event) else { return WatchStep::default() };
        let (seq, at) = (event.seq, event.received_at);
        let findings = self.detectors.observe(seq, at, &signal);
        if seq <= self.handled_seq {
            return WatchStep::default();
        }
        let mut step = WatchStep { follow_ups: self.follow_up(seq, &signal), decisions: Vec::new() };
        for finding in findings {
            self.decide(finding, at, &mut step);
        }
        step
    }

    /// Passes an event to the detectors that is too old to act on.
    pub fn observe_past(&mut self, event: &Event) {
        self.handled_seq = self.handled_seq.max(event.seq);
        self.observe(event);
    }

    /// Adds a finding of the judge.
    pub fn record_finding(&mut self, finding: Finding, now: Timestamp) -> WatchStep {
        let mut step = WatchStep::default();
        self.decide(finding, now, &mut step);
        step
    }

    fn decide(&mut self, finding: Finding, now: Timestamp, step: &mut WatchStep) {
        let is_same = |open: &OpenIntervention| open.detector == finding.detector && open.subject == finding.subject;
        let continued = self.open.iter().filter(|open| is_same(open)).map(|open| FollowUp {
            detector: open.detector,
            seq: open.seq,
            outcome: InterventionOutcome::Continued,
            shown_by: finding.seq,
        });
        step.follow_ups.extend(continued);
        self.open.retain(|open| !is_same(open));
        let Some(ChosenAction { action, held_back }) = self.policy.decide(&finding, &self.settings, now) else {
            return;
        };
        self.open_intervention(&finding);
        step.decisions.push(Decision { finding, action, held_back });
    }

    fn open_intervention(&mut self, finding: &Finding) {
        if self.open.len() >= MAX_OPEN_INTERVENTIONS {
            self.open.pop_front();
        }
        let (detector, subject, seq) = (finding.detector, finding.subject.clone(), finding.seq);
        self.open.push_back(OpenIntervention { detector, subject, seq, quiet: 0 });
    }

    /// The outcomes that an event shows.
    fn follow_up(&mut self, seq: i64, signal: &AgentSignal) -> Vec<FollowUp> {
        let has_ended = matches!(signal, AgentSignal::TurnEnded);
        if !has_ended && !signal.is_work() {
            return Vec::new();
        }
        let mut follow_ups = Vec::new();
        let (detectors, policy) = (&self.detectors, &mut self.policy);
        self.open.retain_mut(|open| {
            let is_ongoing = detectors.is_ongoing(open.detector, &open.subject).unwrap_or(false);
            open.quiet = if is_ongoing { 0 } else { open.quiet + 1 };
            let outcome = match (has_ended, open.quiet >= QUIET_SIGNALS) {
                (true, _) => InterventionOutcome::TurnEnded,
                (false, true) => InterventionOutcome::Stopped,
                (false, false) => return true,
            };
            if outcome == InterventionOutcome::Stopped {
                policy.end_episode(open.detector, &open.subject);
            }
            follow_ups.push(FollowUp { detector: open.detector, seq: open.seq, outcome, shown_by: seq });
            false
        });
        follow_ups
    }

    pub fn progress(&self) -> Vec<DetectorProgress> {
        self.detectors.progress()
    }
}
