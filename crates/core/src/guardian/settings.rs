//! Settings of the guardian: what a project allows, and the detectors' thresholds.

use super::{Detector, GuardianAction};
use crate::bounds::{OutOfBounds, check_line, reject_field};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const MAX_THRESHOLD: u32 = 1_000_000;
const MAX_FILE_PATTERNS: usize = 64;
const MAX_PATTERN_CHARS: usize = 512;

/// Guardian settings of a project.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GuardianSettings {
    /// The strongest action that the guardian takes by itself; `observe` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub act: Option<GuardianAction>,
    /// Number of equal calls in a row with equal results that counts as a finding; the same as
    /// `detectors.repeated_call.at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 2, maximum = 1000))]
    pub repeats: Option<u32>,
    /// Settings of single detectors.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, DetectorSettings>))]
    pub detectors: BTreeMap<Detector, DetectorSettings>,
    /// Patterns of the files that belong to the task; if empty, all files do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Let the configured model judge the agent's work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judge: Option<bool>,
}

/// Settings of one detector.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DetectorSettings {
    /// False turns the detector off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The strongest action for this detector, in place of `guardian.act`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub act: Option<GuardianAction>,
    /// The threshold, in the detector's own unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000))]
    pub at: Option<u32>,
}

/// The thresholds of all detectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// Equal calls in a row with equal results.
    pub repeated_calls: u32,
    /// Equal errors within the last calls.
    pub repeated_errors: u32,
    /// Rounds of two calls in turn.
    pub alternations: u32,
    /// Texts in a row without a tool call.
    pub texts_without_action: u32,
    /// Edits of one file that undo an earlier one.
    pub undone_edits: u32,
    /// Test runs in a row that are worse than the best one and no better than the last.
    pub worse_test_runs: u32,
    /// Minutes of work without a changed file.
    pub minutes_without_change: u32,
    /// Files outside the task's.
    pub outside_files: u32,
    /// Dollars per hour.
    pub cost_usd_per_hour: u32,
    /// Thousands of tokens per hour, without those read from a cache.
    pub kilotokens_per_hour: u32,
    /// Percent of the context window.
    pub context_percent: u32,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            repeated_calls: 5,
            repeated_errors: 6,
            alternations: 5,
            texts_without_action: 8,
            undone_edits: 4,
            worse_test_runs: 3,
            minutes_without_change: 30,
            outside_files: 1,
            cost_usd_per_hour: 30,
            kilotokens_per_hour: 20_000,
            context_percent: 90,
        }
    }
}

impl Thresholds {
    fn field_of(&mut self, detector: Detector) -> Option<&mut u32> {
        Some(match detector {
            Detector::RepeatedCall => &mut self.repeated_calls,
            Detector::RepeatedError => &mut self.repeated_errors,
            Detector::Alternating => &mut self.alternations,
            Detector::Talking => &mut self.texts_without_action,
            Detector::BackAndForth => &mut self.undone_edits,
            Detector::TestsWorse => &mut self.worse_test_runs,
            Detector::NoFileChange => &mut self.minutes_without_change,
            Detector::OutsideFiles => &mut self.outside_files,
            Detector::Spending => &mut self.cost_usd_per_hour,
            Detector::ContextFull => &mut self.context_percent,
            Detector::ProtectedPath | Detector::SecretInOutput | Detector::Judge => return None,
        })
    }

    /// The thresholds with those that a project sets.
    pub fn with_settings(mut self, settings: &GuardianSettings) -> Self {
        if let Some(repeats) = settings.repeats {
            self.repeated_calls = repeats;
        }
        for (detector, own) in &settings.detectors {
            if let (Some(field), Some(at)) = (self.field_of(*detector), own.at) {
                *field = at;
            }
        }
        self
    }

    /// The threshold of a detector; `None` if one occurrence suffices.
    pub fn of(mut self, detector: Detector) -> Option<u32> {
        self.field_of(detector).map(|field| *field)
    }
}

impl GuardianSettings {
    pub fn check_bounds(&self, field: &str) -> Result<(), OutOfBounds> {
        if self.repeats.is_some_and(|times| !(2..=1000).contains(&times)) {
            return reject_field(&format!("{field}.repeats"), "must be from 2 to 1000");
        }
        for (detector, own) in &self.detectors {
            let field = format!("{field}.detectors.{detector}");
            let Some(at) = own.at else { continue };
            if Thresholds::default().of(*detector).is_none() {
                return reject_field(&format!("{field}.at"), "this detector has no threshold");
            }
            let least = if *detector == Detector::RepeatedCall { 2 } else { 1 };
            if !(least..=MAX_THRESHOLD).contains(&at) {
                return reject_field(&format!("{field}.at"), format!("must be from {least} to {MAX_THRESHOLD}"));
            }
        }
        if self.files.len() > MAX_FILE_PATTERNS {
            let count = self.files.len();
            return reject_field(
                &format!("{field}.files"),
                format!("has {count} patterns; at most {MAX_FILE_PATTERNS} are allowed"),
            );
        }
        self.files.iter().try_for_each(|pattern| check_line(&format!("{field}.files"), pattern, MAX_PATTERN_CHARS))
    }

    pub fn is_enabled(&self, detector: Detector) -> bool {
        self.detectors.get(&detector).and_then(|own| own.enabled).unwrap_or(true)
    }

    /// The strongest action for a detector's findings.
    pub fn strongest_action(&self, detector: Detector) -> GuardianAction {
        let own = self.detectors.get(&detector).and_then(|own| own.act);
        own.or(self.act).unwrap_or(GuardianAction::Observe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_detectors_own_settings_precede_the_common_ones() {
        let settings: GuardianSettings = serde_json::from_value(json!({
            "act": "nudge", "repeats": 7,
            "detectors": {"talking": {"act": "observe", "at": 3}, "spending": {"enabled": false}},
        }))
        .unwrap();
        settings.check_bounds("guardian").unwrap();
        let thresholds = Thresholds::default().with_settings(&settings);
        assert_eq!((thresholds.repeated_calls, thresholds.texts_without_action), (7, 3));
        assert_eq!(settings.strongest_action(Detector::Talking), GuardianAction::Observe);
        assert_eq!(settings.strongest_action(Detector::Alternating), GuardianAction::Nudge);
        assert!(!settings.is_enabled(Detector::Spending) && settings.is_enabled(Detector::Talking));
    }

    #[test]
    fn every_threshold_is_bounded() {
        for bad in [
            json!({"repeats": 1}),
            json!({"detectors": {"talking": {"at": 0}}}),
            json!({"detectors": {"repeated_call": {"at": 1}}}),
            json!({"detectors": {"protected_path": {"at": 2}}}),
            json!({"files": ["a\nb"]}),
            json!({"files": vec!["a"; 65]}),
        ] {
            let settings: GuardianSettings = serde_json::from_value(bad.clone()).unwrap();
            assert!(settings.check_bounds("guardian").is_err(), "{bad}");
        }
    }
}
