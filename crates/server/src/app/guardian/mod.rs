//! The guardian's interventions: stored with cause, evidence, action and outcome. `core::guardian` decides, and
//! `jobs::guardian_watch` feeds it.

mod denial_nudge;
mod intervene;
mod judgements;
mod reports;
mod restarts;

pub use denial_nudge::{DenialNudge, deliver_nudge, nudge_for_event};
pub use intervene::{list_denials, record_step};
pub use judgements::{JudgeOutcome, record_judgement};
pub use reports::{
    MAX_REBUILD_EVENTS, list_all, list_of_sandbox, new_watch, read_intervention, read_status, replay_log,
};
pub use restarts::restart_sessions;
