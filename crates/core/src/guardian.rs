//! The guardian's first detectors: they watch tool calls go by, and say when something is wrong. No model, no clock of
//! their own, and no more memory however long an agent works.

use crate::bounds::{OutOfBounds, refuse};
use crate::words;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

words! {
    "guardian's action"
    Act {
        /// It is written to the log.
        Observe = "observe",
        /// The agent is told, too.
        Nudge = "nudge",
    }
}

words! {
    "detector"
    Detector {
        /// The same call with the same result, again and again.
        RepeatedCall = "repeated_call",
        /// A call that would change what is protected.
        ProtectedPath = "protected_path",
    }
}

/// What the project wants of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Guardian {
    /// `observe` unless it is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub act: Option<Act>,
    /// After so many equal calls in a row with equal results; 5 unless it is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 2, maximum = 1000))]
    pub repeats: Option<u32>,
}

/// Who says what the guardian has to say, as the sender of a message.
pub const SENDER: &str = "atoll:guardian";

const REPEATS: u32 = 5;
/// Calls whose results are not known yet.
const OPEN: usize = 64;
/// How many ids of calls stand as evidence.
const EVIDENCE: usize = 10;
/// An agent that does not listen is not told for ever.
const MOST_NUDGES: usize = 10;
const COOL_DOWN: Duration = Duration::from_secs(30);

impl Guardian {
    pub fn check(&self, field: &str) -> Result<(), OutOfBounds> {
        match self.repeats {
            Some(times) if !(2..=1000).contains(&times) => {
                refuse(&format!("{field}.repeats"), "must be from 2 to 1000")
            }
            Some(_) | None => Ok(()),
        }
    }

    pub fn acts(&self) -> Act {
        self.act.unwrap_or(Act::Observe)
    }
}

/// Something is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub detector: Detector,
    pub tool: String,
    /// The calls that show it, oldest first.
    pub evidence: Vec<String>,
    /// How often, or which path.
    pub detail: Detail,
    /// Whether the agent should hear of it, if the project wants that at all.
    pub nudge: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Detail {
    Times(u32),
    Path(String),
}

/// What the agent is told, beginning with who speaks and why.
pub fn nudge(detector: Detector, tool: &str, detail: &Detail) -> String {
    match (detector, detail) {
        (Detector::RepeatedCall, Detail::Times(times)) => {
            format!(
                "Atoll's guardian: you have called {tool} {times} times in a row with the same input and got the same result. Doing it again will change nothing: look at what it says, and try something else."
            )
        }
        (Detector::ProtectedPath, Detail::Path(path)) => {
            format!(
                "Atoll's guardian: `{path}` is protected and can't be changed here. Leave it as it is, and say so if the task can't be done without changing it."
            )
        }
        (Detector::RepeatedCall, Detail::Path(what)) => {
            format!("Atoll's guardian: {tool} is called again and again ({what}).")
        }
        (Detector::ProtectedPath, Detail::Times(_)) => {
            format!("Atoll's guardian: {tool} would change a protected path.")
        }
    }
}

/// What it remembers.
#[derive(Debug, Default)]
pub struct Watch {
    repeats: Option<u32>,
    /// Under way: the call's tool and what it is, by its id.
    open: BTreeMap<String, (String, u64)>,
    order: VecDeque<String>,
    /// The last call with its result, how often it came in a row, and which calls those were.
    last: Option<(u64, u32)>,
    ids: VecDeque<String>,
    /// What was said once is not said again.
    nudged: BTreeSet<u64>,
    nudged_at: Option<Duration>,
}

impl Watch {
    pub fn new(settings: Guardian) -> Self {
        Self { repeats: settings.repeats, ..Self::default() }
    }

    /// A tool is called.
    pub fn begins(&mut self, id: &str, tool: &str, input: &Value) {
        if self.open.len() >= OPEN
            && let Some(oldest) = self.order.pop_front()
        {
            self.open.remove(&oldest);
        }
        if self.open.insert(id.to_owned(), (tool.to_owned(), hash(&(tool, input.to_string())))).is_none() {
            self.order.push_back(id.to_owned());
        }
    }

    /// It has given its result. `now` counts from any fixed point.
    pub fn ends(&mut self, id: &str, output: &str, is_error: bool, now: Duration) -> Option<Finding> {
        let (tool, call) = self.open.remove(id)?;
        self.order.retain(|open| open != id);
        let this = hash(&(call, output, is_error));
        let times = match self.last {
            Some((last, times)) if last == this => times.saturating_add(1),
            Some(_) | None => {
                self.ids.clear();
                1
            }
        };
        self.last = Some((this, times));
        self.ids.push_back(id.to_owned());
        if self.ids.len() > EVIDENCE {
            self.ids.pop_front();
        }
        if times != self.repeats.unwrap_or(REPEATS).max(2) {
            return None;
        }
        Some(Finding {
            detector: Detector::RepeatedCall,
            tool,
            evidence: self.ids.iter().cloned().collect(),
            detail: Detail::Times(times),
            nudge: self.may_nudge(this, now),
        })
    }

    /// Something came of the last call.
    pub fn has_effect(&mut self) {
        self.last = None;
        self.ids.clear();
    }

    /// A call would change a protected path.
    pub fn touches(&mut self, id: &str, tool: &str, path: &str, now: Duration) -> Finding {
        Finding {
            detector: Detector::ProtectedPath,
            tool: tool.to_owned(),
            evidence: vec![id.to_owned()],
            detail: Detail::Path(path.to_owned()),
            nudge: self.may_nudge(hash(&("protected", path)), now),
        }
    }

    fn may_nudge(&mut self, what: u64, now: Duration) -> bool {
        let rests = self.nudged_at.is_some_and(|last| now.saturating_sub(last) < COOL_DOWN);
        if rests || self.nudged.len() >= MOST_NUDGES || !self.nudged.insert(what) {
            return false;
        }
        self.nudged_at = Some(now);
        true
    }
}

fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn call(watch: &mut Watch, id: usize, input: &Value, output: &str, now: Duration) -> Option<Finding> {
        let id = id.to_string();
        watch.begins(&id, "Bash", input);
        watch.ends(&id, output, false, now)
    }

    #[test]
    fn the_same_call_with_the_same_result_is_found_once() {
        let mut watch = Watch::new(Guardian { repeats: Some(3), ..Guardian::default() });
        let input = json!({"command": "make"});
        let mut found = (0..8).filter_map(|id| call(&mut watch, id, &input, "no rule", Duration::ZERO));
        let finding = found.next().unwrap();
        assert_eq!((finding.detail, finding.evidence), (Detail::Times(3), vec!["0".into(), "1".into(), "2".into()]));
        assert!(finding.nudge && found.next().is_none(), "a streak is told once");
    }

    #[test]
    fn another_result_or_an_effect_begins_anew() {
        let mut watch = Watch::new(Guardian { repeats: Some(2), ..Guardian::default() });
        let input = json!({"command": "make"});
        assert!(call(&mut watch, 1, &input, "a", Duration::ZERO).is_none());
        assert!(call(&mut watch, 2, &input, "b", Duration::ZERO).is_none());
        watch.has_effect();
        assert!(call(&mut watch, 3, &input, "b", Duration::ZERO).is_none());
        assert!(call(&mut watch, 4, &json!({"command": "ls"}), "b", Duration::ZERO).is_none());
        assert!(watch.ends("never begun", "b", false, Duration::ZERO).is_none());
    }

    #[test]
    fn what_did_not_help_is_not_said_again_and_nudges_have_a_rest_between_them() {
        let mut watch = Watch::default();
        let far = COOL_DOWN * 3;
        assert!(watch.touches("1", "Edit", "Cargo.lock", Duration::ZERO).nudge);
        assert!(!watch.touches("2", "Edit", "infra", Duration::ZERO).nudge, "too soon");
        assert!(watch.touches("3", "Edit", "infra", far).nudge);
        assert!(!watch.touches("4", "Edit", "Cargo.lock", far * 2).nudge, "it was said");
    }

    proptest! {
        /// Whatever an agent does: what is found is so, no streak is told twice, and nothing grows.
        #[test]
        fn findings_are_true(repeats in 2..5_u32, calls in prop::collection::vec((0..3_u8, 0..3_u8, any::<bool>()), 0..200)) {
            let mut watch = Watch::new(Guardian { repeats: Some(repeats), ..Guardian::default() });
            let (mut streak, mut nudges) = (0_u32, 0);
            let mut last = None;
            for (number, (input, output, effect)) in calls.into_iter().enumerate() {
                if effect {
                    watch.has_effect();
                    last = None;
                }
                streak = if last == Some((input, output)) { streak + 1 } else { 1 };
                last = Some((input, output));
                let now = Duration::from_secs(number as u64 * 31);
                let found = call(&mut watch, number, &json!({"n": input}), &output.to_string(), now);
                prop_assert_eq!(found.is_some(), streak == repeats);
                nudges += usize::from(found.is_some_and(|found| found.nudge));
                prop_assert!(watch.open.is_empty() && watch.order.is_empty() && watch.ids.len() <= EVIDENCE);
            }
            prop_assert!(nudges <= 9, "nine different calls, each told once at most");
        }

        #[test]
        fn calls_without_an_end_are_forgotten(ids in prop::collection::vec("[a-z]{1,3}", 0..300)) {
            let mut watch = Watch::default();
            for id in ids {
                watch.begins(&id, "Bash", &json!({}));
                prop_assert!(watch.open.len() <= OPEN && watch.open.len() == watch.order.len());
            }
        }
    }
}
