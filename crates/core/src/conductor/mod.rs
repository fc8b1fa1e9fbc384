//! The conductor's rules: what each agent does, derived from its events, and how the agents fit together. They use no
//! model and no clock of their own, and their memory is bounded.

pub mod anomaly;
pub mod fleet;
mod latency;
mod phase;
pub mod progress;

pub use anomaly::{AnomalyMeasure, AnomalyStreak};
pub use fleet::{FindingKind, FleetAgent, FleetFinding, FleetReview, review_fleet};
pub use phase::{Phase, call_phase};
pub use progress::{AgentProgress, StuckReason};
