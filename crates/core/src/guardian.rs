//! The guardian's detectors: they observe tool calls and report problems. They use no model and no clock of their own,
//! and their memory is bounded.

use crate::bounds::{OutOfBounds, reject_field};
use crate::string_enum;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

string_enum! {
    "guardian action"
    GuardianAction {
        /// Record findings in the log.
        Observe = "observe",
        /// Also send the agent a message.
        Nudge = "nudge",
    }
}

string_enum! {
    "detector"
    Detector {
        /// The same call with the same result, repeatedly.
        RepeatedCall = "repeated_call",
        /// A call that would change a protected path.
        ProtectedPath = "protected_path",
    }
}

/// Guardian settings of a project.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GuardianSettings {
    /// `observe` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub act: Option<GuardianAction>,
    /// Number of equal calls in a row with equal results that counts as a finding; 5 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 2, maximum = 1000))]
    pub repeats: Option<u32>,
}

/// Sender of the guardian's messages.
pub const GUARDIAN_SENDER: &str = "atoll:guardian";

const DEFAULT_REPEATS: u32 = 5;
/// Maximum number of tracked calls without a result.
const MAX_OPEN_CALLS: usize = 64;
/// Maximum number of call ids per finding.
const MAX_EVIDENCE_IDS: usize = 10;
/// Maximum number of nudges per sandbox.
const MAX_NUDGES: usize = 10;
const NUDGE_COOL_DOWN: Duration = Duration::from_secs(30);

impl GuardianSettings {
    pub fn check_bounds(&self, field: &str) -> Result<(), OutOfBounds> {
        match self.repeats {
            Some(times) if !(2..=1000).contains(&times) => {
                reject_field(&format!("{field}.repeats"), "must be from 2 to 1000")
            }
            Some(_) | None => Ok(()),
        }
    }

    pub fn effective_action(&self) -> GuardianAction {
        self.act.unwrap_or(GuardianAction::Observe)
    }
}

/// A detected problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub detector: Detector,
    pub tool: String,
    /// Ids of the calls that show the problem, oldest first.
    pub evidence: Vec<String>,
    /// Number of repetitions, or the path.
    pub detail: FindingDetail,
    /// True if the agent should get a message, provided the project enables nudges.
    pub should_nudge: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FindingDetail {
    RepeatCount(u32),
    Path(String),
}

/// Builds the message to the agent. It starts with the sender and the reason.
pub fn nudge_message(detector: Detector, tool: &str, detail: &FindingDetail) -> String {
    match (detector, detail) {
        (Detector::RepeatedCall, FindingDetail::RepeatCount(times)) => {
            format!(
                "Atoll's guardian: you have called {tool} {times} times in a row with the same input and got the same result. Doing it again will change nothing: look at what it says, and try something else."
            )
        }
        (Detector::ProtectedPath, FindingDetail::Path(path)) => {
            format!(
                "Atoll's guardian: `{path}` is protected and cannot be changed here. Leave it as it is, and say so if the task cannot be done without changing it."
            )
        }
        (Detector::RepeatedCall, FindingDetail::Path(what)) => {
            format!("Atoll's guardian: {tool} is called repeatedly ({what}).")
        }
        (Detector::ProtectedPath, FindingDetail::RepeatCount(_)) => {
            format!("Atoll's guardian: {tool} would change a protected path.")
        }
    }
}

/// State of the detectors.
#[derive(Debug, Default)]
pub struct CallDetectors {
    repeats: Option<u32>,
    /// Calls in progress by id: the tool and a hash of the input.
    open_calls: BTreeMap<String, (String, u64)>,
    open_order: VecDeque<String>,
    /// Hash and repeat count of the last call with its result.
    last: Option<(u64, u32)>,
    streak_ids: VecDeque<String>,
    /// Hashes of findings that the agent has already received.
    nudged: BTreeSet<u64>,
    nudged_at: Option<Duration>,
}

impl CallDetectors {
    pub fn new(settings: GuardianSettings) -> Self {
        Self { repeats: settings.repeats, ..Self::default() }
    }

    /// Records the start of a tool call.
    pub fn record_call_start(&mut self, id: &str, tool: &str, input: &Value) {
        if self.open_calls.len() >= MAX_OPEN_CALLS
            && let Some(oldest) = self.open_order.pop_front()
        {
            self.open_calls.remove(&oldest);
        }
        if self.open_calls.insert(id.to_owned(), (tool.to_owned(), hash_value(&(tool, input.to_string())))).is_none() {
            self.open_order.push_back(id.to_owned());
        }
    }

    /// Records the result of a call. `now` counts from any fixed point.
    pub fn record_call_end(&mut self, id: &str, output: &str, is_error: bool, now: Duration) -> Option<Finding> {
        let (tool, call) = self.open_calls.remove(id)?;
        self.open_order.retain(|open| open != id);
        let this = hash_value(&(call, output, is_error));
        let times = match self.last {
            Some((last, times)) if last == this => times.saturating_add(1),
            Some(_) | None => {
                self.streak_ids.clear();
                1
            }
        };
        self.last = Some((this, times));
        self.streak_ids.push_back(id.to_owned());
        if self.streak_ids.len() > MAX_EVIDENCE_IDS {
            self.streak_ids.pop_front();
        }
        if times != self.repeats.unwrap_or(DEFAULT_REPEATS).max(2) {
            return None;
        }
        Some(Finding {
            detector: Detector::RepeatedCall,
            tool,
            evidence: self.streak_ids.iter().cloned().collect(),
            detail: FindingDetail::RepeatCount(times),
            should_nudge: self.may_nudge(this, now),
        })
    }

    /// Records that the last call had an effect, which resets the repeat count.
    pub fn record_effect(&mut self) {
        self.last = None;
        self.streak_ids.clear();
    }

    /// Reports a call that would change a protected path.
    pub fn report_protected_path(&mut self, id: &str, tool: &str, path: &str, now: Duration) -> Finding {
        Finding {
            detector: Detector::ProtectedPath,
            tool: tool.to_owned(),
            evidence: vec![id.to_owned()],
            detail: FindingDetail::Path(path.to_owned()),
            should_nudge: self.may_nudge(hash_value(&("protected", path)), now),
        }
    }

    fn may_nudge(&mut self, what: u64, now: Duration) -> bool {
        let rests = self.nudged_at.is_some_and(|last| now.saturating_sub(last) < NUDGE_COOL_DOWN);
        if rests || self.nudged.len() >= MAX_NUDGES || !self.nudged.insert(what) {
            return false;
        }
        self.nudged_at = Some(now);
        true
    }
}

fn hash_value(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn call(watch: &mut CallDetectors, id: usize, input: &Value, output: &str, now: Duration) -> Option<Finding> {
        let id = id.to_string();
        watch.record_call_start(&id, "Bash", input);
        watch.record_call_end(&id, output, false, now)
    }

    #[test]
    fn reports_a_repeated_call_once() {
        let mut watch = CallDetectors::new(GuardianSettings { repeats: Some(3), ..GuardianSettings::default() });
        let input = json!({"command": "make"});
        let mut found = (0..8).filter_map(|id| call(&mut watch, id, &input, "no rule", Duration::ZERO));
        let finding = found.next().unwrap();
        assert_eq!(
            (finding.detail, finding.evidence),
            (FindingDetail::RepeatCount(3), vec!["0".into(), "1".into(), "2".into()])
        );
        assert!(finding.should_nudge && found.next().is_none(), "a streak is reported once");
    }

    #[test]
    fn a_new_result_or_an_effect_resets_the_count() {
        let mut watch = CallDetectors::new(GuardianSettings { repeats: Some(2), ..GuardianSettings::default() });
        let input = json!({"command": "make"});
        assert!(call(&mut watch, 1, &input, "a", Duration::ZERO).is_none());
        assert!(call(&mut watch, 2, &input, "b", Duration::ZERO).is_none());
        watch.record_effect();
        assert!(call(&mut watch, 3, &input, "b", Duration::ZERO).is_none());
        assert!(call(&mut watch, 4, &json!({"command": "ls"}), "b", Duration::ZERO).is_none());
        assert!(watch.record_call_end("never begun", "b", false, Duration::ZERO).is_none());
    }

    #[test]
    fn a_nudge_is_not_repeated_and_nudges_are_spaced_out() {
        let mut watch = CallDetectors::default();
        let far = NUDGE_COOL_DOWN * 3;
        assert!(watch.report_protected_path("1", "Edit", "Cargo.lock", Duration::ZERO).should_nudge);
        assert!(!watch.report_protected_path("2", "Edit", "infra", Duration::ZERO).should_nudge, "too soon");
        assert!(watch.report_protected_path("3", "Edit", "infra", far).should_nudge);
        assert!(
            !watch.report_protected_path("4", "Edit", "Cargo.lock", far * 2).should_nudge,
            "it was already reported"
        );
    }

    proptest! {
        /// For any sequence of calls: findings are correct, no streak is reported twice, and memory stays bounded.
        #[test]
        fn findings_are_correct_and_memory_is_bounded(repeats in 2..5_u32, calls in prop::collection::vec((0..3_u8, 0..3_u8, any::<bool>()), 0..200)) {
            let mut watch = CallDetectors::new(GuardianSettings { repeats: Some(repeats), ..GuardianSettings::default() });
            let (mut streak, mut nudges) = (0_u32, 0);
            let mut last = None;
            for (number, (input, output, effect)) in calls.into_iter().enumerate() {
                if effect {
                    watch.record_effect();
                    last = None;
                }
                streak = if last == Some((input, output)) { streak + 1 } else { 1 };
                last = Some((input, output));
                let now = Duration::from_secs(number as u64 * 31);
                let found = call(&mut watch, number, &json!({"n": input}), &output.to_string(), now);
                prop_assert_eq!(found.is_some(), streak == repeats);
                nudges += usize::from(found.is_some_and(|found| found.should_nudge));
                prop_assert!(watch.open_calls.is_empty() && watch.open_order.is_empty() && watch.streak_ids.len() <= MAX_EVIDENCE_IDS);
            }
            prop_assert!(nudges <= 9, "nine different calls, each reported once at most");
        }

        #[test]
        fn calls_without_an_end_are_forgotten(ids in prop::collection::vec("[a-z]{1,3}", 0..300)) {
            let mut watch = CallDetectors::default();
            for id in ids {
                watch.record_call_start(&id, "Bash", &json!({}));
                prop_assert!(watch.open_calls.len() <= MAX_OPEN_CALLS && watch.open_calls.len() == watch.open_order.len());
            }
        }
    }
}
