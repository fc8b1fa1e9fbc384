//! The guardian: detectors find trouble in a sandbox's event log, a policy chooses an action for each finding, and a watch
//! keeps both for one sandbox. Pure: no model, no I/O, no clock but the times of the events. Memory is bounded.
//!
//! ```text
//! stored event ─► agent_signal ─► detectors ─► finding ─► intervention_policy ─► action
//!                                     watch keeps the state and says what happened after each action
//! ```

pub mod agent_signal;
mod call_detectors;
mod detectors;
mod edit_detectors;
pub mod intervention_policy;
pub mod judge;
mod leaked_secrets;
mod nudge_text;
mod progress_detectors;
mod settings;
mod spending_detectors;
mod test_results;
mod watch;
#[cfg(test)]
mod watch_tests;

pub use detectors::{DetectorProgress, Detectors, WatchedTask};
pub use intervention_policy::{HeldBack, PolicyRules};
pub use nudge_text::{escalation_text, handover_text, nudge_text};
pub use settings::{DetectorSettings, GuardianSettings, Thresholds};
pub use watch::{Decision, FollowUp, GuardianWatch, PastIntervention, WatchStep};

use crate::string_enum;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

string_enum! {
    /// What the guardian may do about a finding, weakest first. A project allows all actions up to one of them.
    "guardian action"
    GuardianAction {
        /// Record findings.
        Observe = "observe",
        /// Also show findings to people.
        Escalate = "escalate",
        /// Also send the agent a message in its running turn.
        Nudge = "nudge",
        /// Also deny the tool call that the agent repeats.
        Deny = "deny",
        /// Also interrupt the turn.
        Interrupt = "interrupt",
        /// Also pause the sandbox until a person resumes it.
        Pause = "pause",
        /// Also end the sandbox and continue the session in a fresh one, with a hand-over note.
        Restart = "restart",
    }
}

string_enum! {
    /// The cause of a finding.
    "detector"
    Detector {
        /// The same call with the same result, repeatedly.
        RepeatedCall = "repeated_call",
        /// The same error from different calls.
        RepeatedError = "repeated_error",
        /// Two calls in turn, each with the same result as before.
        Alternating = "alternating",
        /// Text without tool calls.
        Talking = "talking",
        /// Edits of a file that undo each other.
        BackAndForth = "back_and_forth",
        /// Test runs with more failures than before.
        TestsWorse = "tests_worse",
        /// Work without a changed file.
        NoFileChange = "no_file_change",
        /// A change of a file that is not the task's.
        OutsideFiles = "outside_files",
        /// A call that would change a protected path.
        ProtectedPath = "protected_path",
        /// A credential in the agent's text, a result or a changed file.
        SecretInOutput = "secret_in_output",
        /// Costs or tokens that grow faster than planned.
        Spending = "spending",
        /// A context window that is nearly full.
        ContextFull = "context_full",
        /// The judge's opinion.
        Judge = "judge",
    }
}

string_enum! {
    /// What happened after an intervention.
    "intervention outcome"
    InterventionOutcome {
        /// The agent did something else.
        Stopped = "stopped",
        /// The agent continued as before.
        Continued = "continued",
        /// The turn ended first.
        TurnEnded = "turn_ended",
    }
}

/// Sender of the guardian's messages.
pub const GUARDIAN_SENDER: &str = "atoll:guardian";

/// Maximum number of events that a finding names.
pub const MAX_EVIDENCE: usize = 20;

/// A detected problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub detector: Detector,
    /// The event that completed the finding.
    pub seq: i64,
    /// Tells findings of one detector apart; the same for the same problem, also after a restart.
    pub subject: String,
    /// Events that show the problem, oldest first.
    pub evidence: Vec<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The detector's count, in its own unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    /// The detector's own words, such as an error or a kind of secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Tool calls that a denial would repeat.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<String>,
}

impl Finding {
    fn new(detector: Detector, seq: i64, subject: impl Into<String>, evidence: impl IntoIterator<Item = i64>) -> Self {
        let evidence: Vec<i64> = evidence.into_iter().collect();
        let skip = evidence.len().saturating_sub(MAX_EVIDENCE);
        let evidence = evidence.into_iter().skip(skip).collect();
        let (tool, path, times, detail, calls) = (None, None, None, None, Vec::new());
        Self { detector, seq, subject: subject.into(), evidence, tool, path, times, detail, calls }
    }
}

/// A hash that is the same on every machine and after every restart.
fn hash_parts(parts: &[&str]) -> u64 {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let digest = hasher.finalize();
    let mut first = [0_u8; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first)
}

fn subject_of(hash: u64) -> String {
    format!("{hash:016x}")
}
