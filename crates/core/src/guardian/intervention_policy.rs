//! Chooses the action for each finding: what the project allows, weakest first, one step further each time the agent
//! continues. Cool-downs and caps bound each action.

use super::{Detector, Finding, GuardianAction, GuardianSettings, InterventionOutcome};
use crate::string_enum;
use crate::time::Timestamp;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

string_enum! {
    /// Why the guardian only observes a finding.
    "reason to only observe"
    HeldBack {
        /// The project allows no action for it.
        SteeringOff = "steering_off",
        /// The last such action is too recent.
        CoolDown = "cool_down",
        /// All actions have reached their caps.
        Cap = "cap",
    }
}

/// Bounds of the guardian's actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyRules {
    /// Time between two nudges or denials.
    pub nudge_cool_down: Duration,
    /// Time between two other actions of the same kind.
    pub action_cool_down: Duration,
    /// Maximum number of nudges per sandbox.
    pub max_nudges: u32,
    /// Maximum number of other actions of the same kind per sandbox.
    pub max_actions: u32,
    /// The agent asks before every tool, so that a call can be denied.
    pub can_deny: bool,
    /// The files survive the sandbox, so that the session can continue in another one.
    pub can_restart: bool,
}

impl Default for PolicyRules {
    fn default() -> Self {
        Self {
            nudge_cool_down: Duration::from_secs(30),
            action_cool_down: Duration::from_secs(5 * 60),
            max_nudges: 10,
            max_actions: 3,
            can_deny: true,
            can_restart: true,
        }
    }
}

/// Maximum number of problems to remember; the oldest is forgotten.
const MAX_EPISODES: usize = 64;

/// The actions for a detector's findings, in the order in which they follow each other.
pub const fn steps_for(detector: Detector) -> &'static [GuardianAction] {
    use GuardianAction::{Deny, Escalate, Interrupt, Nudge, Pause, Restart};
    match detector {
        Detector::RepeatedCall | Detector::Alternating => &[Nudge, Deny, Interrupt, Restart, Escalate],
        Detector::RepeatedError | Detector::Talking | Detector::BackAndForth | Detector::NoFileChange => {
            &[Nudge, Interrupt, Restart, Escalate]
        }
        Detector::TestsWorse | Detector::Judge => &[Nudge, Interrupt, Escalate],
        Detector::OutsideFiles | Detector::ProtectedPath | Detector::SecretInOutput | Detector::Spending => {
            &[Nudge, Pause, Escalate]
        }
        Detector::ContextFull => &[Nudge, Restart, Escalate],
    }
}

/// One problem, from its first finding until the agent stops.
#[derive(Debug, Clone)]
struct Episode {
    detector: Detector,
    subject: String,
    /// Index of the next step.
    next_step: usize,
    /// The reason that was recorded last for only observing.
    held_back: Option<HeldBack>,
}

/// The chosen action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChosenAction {
    pub action: GuardianAction,
    /// Set if the action is `observe`.
    pub held_back: Option<HeldBack>,
}

#[derive(Debug, Default)]
pub struct InterventionPolicy {
    rules: PolicyRules,
    episodes: VecDeque<Episode>,
    taken: BTreeMap<GuardianAction, (u32, Timestamp)>,
}

impl InterventionPolicy {
    pub fn new(rules: PolicyRules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// Chooses the action for a finding; `None` if it says nothing that is not recorded already.
    pub fn decide(&mut self, finding: &Finding, settings: &GuardianSettings, now: Timestamp) -> Option<ChosenAction> {
        let strongest = settings.strongest_action(finding.detector);
        let (rules, taken) = (self.rules, self.taken.clone());
        let episode = self.episode(finding);
        let is_available = |step: GuardianAction| step <= strongest && rules.permits(step);
        let steps: Vec<GuardianAction> =
            steps_for(finding.detector).iter().copied().filter(|step| is_available(*step)).collect();
        let mut reason = HeldBack::SteeringOff;
        let mut step = episode.next_step;
        while let Some(action) = steps.get(step).copied() {
            let (count, last) = taken.get(&action).copied().map_or((0, None), |(count, last)| (count, Some(last)));
            if count >= rules.cap(action) {
                reason = HeldBack::Cap;
                step += 1;
                continue;
            }
            if last.is_some_and(|last| now.elapsed_since(last) < rules.cool_down(action)) {
                reason = HeldBack::CoolDown;
                break;
            }
            episode.next_step = step + 1;
            episode.held_back = None;
            self.taken.insert(action, (count + 1, now));
            return Some(ChosenAction { action, held_back: None });
        }
        let is_exhausted = !steps.is_empty() && step >= steps.len() && reason == HeldBack::SteeringOff;
        if is_exhausted || episode.held_back == Some(reason) {
            return None;
        }
        episode.held_back = Some(reason);
        Some(ChosenAction { action: GuardianAction::Observe, held_back: Some(reason) })
    }

    /// Restores an action of an earlier run of the server.
    pub fn restore(
        &mut self,
        finding: &Finding,
        chosen: ChosenAction,
        outcome: Option<InterventionOutcome>,
        at: Timestamp,
    ) {
        let step = steps_for(finding.detector).iter().position(|step| *step == chosen.action);
        let episode = self.episode(finding);
        episode.held_back = chosen.held_back;
        if step.is_some() {
            // Steps that the project does not allow are no part of the count.
            episode.next_step += 1;
            let (count, last) = self.taken.get(&chosen.action).copied().unwrap_or((0, at));
            self.taken.insert(chosen.action, (count + 1, last.max(at)));
        }
        if outcome == Some(InterventionOutcome::Stopped) {
            self.end_episode(finding.detector, &finding.subject);
        }
    }

    /// Ends an episode: the agent did something else, so that its next such problem is a new one.
    pub fn end_episode(&mut self, detector: Detector, subject: &str) {
        self.episodes.retain(|episode| episode.detector != detector || episode.subject != subject);
    }

    fn episode(&mut self, finding: &Finding) -> &mut Episode {
        let is_same = |one: &Episode| one.detector == finding.detector && one.subject == finding.subject;
        let known = self.episodes.iter().position(is_same).and_then(|at| self.episodes.remove(at));
        let episode = known.unwrap_or_else(|| Episode {
            detector: finding.detector,
            subject: finding.subject.clone(),
            next_step: 0,
            held_back: None,
        });
        if self.episodes.len() >= MAX_EPISODES {
            self.episodes.pop_front();
        }
        self.episodes.push_back(episode);
        let last = self.episodes.len() - 1;
        &mut self.episodes[last]
    }
}

impl PolicyRules {
    const fn permits(&self, action: GuardianAction) -> bool {
        match action {
            GuardianAction::Deny => self.can_deny,
            GuardianAction::Restart => self.can_restart,
            GuardianAction::Observe
            | GuardianAction::Escalate
            | GuardianAction::Nudge
            | GuardianAction::Interrupt
            | GuardianAction::Pause => true,
        }
    }

    const fn cap(&self, action: GuardianAction) -> u32 {
        match action {
            GuardianAction::Observe => u32::MAX,
            GuardianAction::Nudge | GuardianAction::Deny | GuardianAction::Escalate => self.max_nudges,
            GuardianAction::Interrupt | GuardianAction::Pause => self.max_actions,
            // The next sandbox counts for itself; a second one would hardly do better.
            GuardianAction::Restart => 1,
        }
    }

    const fn cool_down(&self, action: GuardianAction) -> Duration {
        match action {
            // A denial follows the nudge about the same call; an escalation must not wait.
            GuardianAction::Observe | GuardianAction::Escalate => Duration::ZERO,
            GuardianAction::Nudge | GuardianAction::Deny => self.nudge_cool_down,
            GuardianAction::Interrupt | GuardianAction::Pause | GuardianAction::Restart => self.action_cool_down,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use GuardianAction::{Deny, Escalate, Interrupt, Nudge, Observe, Pause, Restart};

    fn finding(detector: Detector, subject: &str) -> Finding {
        Finding::new(detector, 1, subject, [1])
    }

    fn settings(act: GuardianAction) -> GuardianSettings {
        GuardianSettings { act: Some(act), ..GuardianSettings::default() }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    /// The actions for findings of one problem, each ten minutes after the one before.
    fn actions(detector: Detector, act: GuardianAction) -> Vec<Option<GuardianAction>> {
        let mut policy = InterventionPolicy::default();
        let mut decide = |n: i64| policy.decide(&finding(detector, "a"), &settings(act), at(n * 600));
        (0..6).map(|n| decide(n).map(|chosen| chosen.action)).collect()
    }

    #[test]
    fn each_finding_of_a_problem_goes_one_step_further() {
        let some = |actions: &[GuardianAction]| {
            let mut all: Vec<_> = actions.iter().copied().map(Some).collect();
            all.resize(6, None);
            all
        };
        for (detector, act, expected) in [
            (Detector::RepeatedCall, Observe, &[Observe][..]),
            (Detector::RepeatedCall, Escalate, &[Escalate]),
            (Detector::RepeatedCall, Nudge, &[Nudge, Escalate]),
            (Detector::RepeatedCall, Deny, &[Nudge, Deny, Escalate]),
            (Detector::RepeatedCall, Interrupt, &[Nudge, Deny, Interrupt, Escalate]),
            (Detector::RepeatedCall, Restart, &[Nudge, Deny, Interrupt, Restart, Escalate]),
            (Detector::Talking, Pause, &[Nudge, Interrupt, Escalate]),
            (Detector::Spending, Pause, &[Nudge, Pause, Escalate]),
            (Detector::Spending, Interrupt, &[Nudge, Escalate]),
            (Detector::ContextFull, Restart, &[Nudge, Restart, Escalate]),
            (Detector::TestsWorse, Restart, &[Nudge, Interrupt, Escalate]),
        ] {
            assert_eq!(actions(detector, act), some(expected), "{detector} {act}");
        }
    }

    #[test]
    fn an_action_that_the_sandbox_does_not_support_is_no_step() {
        let rules = PolicyRules { can_deny: false, can_restart: false, ..PolicyRules::default() };
        let mut policy = InterventionPolicy::new(rules);
        let mut decide = |n: i64| policy.decide(&finding(Detector::RepeatedCall, "a"), &settings(Restart), at(n * 600));
        let actions: Vec<_> = (0..3).filter_map(|n| decide(n).map(|chosen| chosen.action)).collect();
        assert_eq!(actions, [Nudge, Interrupt, Escalate]);
    }

    #[test]
    fn every_detector_has_steps_that_end_with_a_person() {
        for detector in Detector::ALL {
            let steps = steps_for(*detector);
            assert_eq!((steps[0], steps[steps.len() - 1]), (Nudge, Escalate), "{detector}");
        }
    }

    #[test]
    fn steering_is_off_by_default() {
        let mut policy = InterventionPolicy::default();
        let chosen = policy.decide(&finding(Detector::Talking, "a"), &GuardianSettings::default(), at(0));
        let observed = ChosenAction { action: Observe, held_back: Some(HeldBack::SteeringOff) };
        assert_eq!(chosen, Some(observed));
    }

    #[test]
    fn a_cool_down_holds_a_nudge_back_and_loses_no_step() {
        let mut policy = InterventionPolicy::default();
        let mut decide = |subject: &str, now: i64| {
            let chosen = policy.decide(&finding(Detector::RepeatedCall, subject), &settings(Nudge), at(now));
            chosen.map(|chosen| (chosen.action, chosen.held_back))
        };
        assert_eq!(decide("a", 0), Some((Nudge, None)));
        assert_eq!(decide("b", 10), Some((Observe, Some(HeldBack::CoolDown))));
        assert_eq!(decide("b", 20), None, "recorded already");
        assert_eq!(decide("b", 31), Some((Nudge, None)));
        assert_eq!(decide("a", 32), Some((Escalate, None)), "a nudge that did not help is not repeated");
    }

    #[test]
    fn an_agent_that_stopped_gets_a_nudge_for_its_next_problem_up_to_the_cap() {
        let rules = PolicyRules { max_nudges: 2, ..PolicyRules::default() };
        let mut policy = InterventionPolicy::new(rules);
        let mut found = Vec::new();
        for n in 0..4 {
            let chosen = policy.decide(&finding(Detector::Talking, "a"), &settings(Nudge), at(n * 600));
            found.push(chosen.map(|chosen| (chosen.action, chosen.held_back)));
            policy.end_episode(Detector::Talking, "a");
        }
        let nudge = Some((Nudge, None));
        assert_eq!(found, [nudge, nudge, Some((Escalate, None)), Some((Escalate, None))]);
        let chosen = policy.decide(&finding(Detector::Talking, "a"), &settings(Nudge), at(6000));
        assert_eq!(chosen.map(|chosen| chosen.held_back), Some(Some(HeldBack::Cap)));
    }

    #[test]
    fn a_restored_policy_continues_where_the_last_one_was() {
        let call = finding(Detector::RepeatedCall, "a");
        let nudged = ChosenAction { action: Nudge, held_back: None };
        let mut policy = InterventionPolicy::default();
        policy.restore(&call, nudged, Some(InterventionOutcome::Continued), at(0));
        assert_eq!(policy.decide(&call, &settings(Nudge), at(600)).map(|chosen| chosen.action), Some(Escalate));
        let mut policy = InterventionPolicy::default();
        policy.restore(&call, nudged, Some(InterventionOutcome::Stopped), at(0));
        assert_eq!(policy.decide(&call, &settings(Nudge), at(600)).map(|chosen| chosen.action), Some(Nudge));
        assert_eq!(policy.decide(&call, &settings(Deny), at(601)).map(|chosen| chosen.action), Some(Deny));
    }
}
