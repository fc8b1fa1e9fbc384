//! The progress of a sandbox's set-up as one pure function.
//!
//! Set-up runs while the sandbox is `creating`. The phase is stored beside the state, so that a restarted server knows
//! whether the agent may start.

use crate::sandbox::Network;
use crate::string_enum;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a set-up plan gives to its sandbox besides the commands.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SetupEnvironment {
    /// Variables of the set-up's commands and of the agent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
    /// The network policy of the sandbox while it is set up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
}

string_enum! {
    /// Progress of a sandbox's set-up. Only `SetupPhase::next` changes it.
    "set-up phase"
    SetupPhase {
        /// There is nothing to set up, or it is not known yet.
        None = "none",
        /// Planned: the provider creates the sandbox.
        Pending = "pending",
        /// The steps run, or their result is being sealed.
        Running = "running",
        Done = "done",
        Failed = "failed",
    }
}

/// An input to the set-up phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetupTrigger {
    /// The plan has steps.
    Planned,
    /// The plan has no steps.
    NotNeeded,
    /// The first step begins.
    Started,
    /// The server ended while the sandbox was set up. The sandbox is created again from nothing.
    Interrupted,
    /// The last step ended, or a set-up layer replaced all of them.
    Completed,
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("illegal set-up transition: {trigger:?} in phase {from}")]
pub struct IllegalSetupTransition {
    pub from: SetupPhase,
    pub trigger: SetupTrigger,
}

impl SetupPhase {
    /// True until the agent may start. Meanwhile set-up's network policy applies.
    pub const fn is_active(self) -> bool {
        match self {
            Self::Pending | Self::Running => true,
            Self::None | Self::Done | Self::Failed => false,
        }
    }

    pub const fn next(self, trigger: SetupTrigger) -> Result<Self, IllegalSetupTransition> {
        use SetupTrigger as T;
        match (self, trigger) {
            // A repeated creation plans again.
            (Self::None | Self::Pending, T::Planned) | (Self::Pending | Self::Running, T::Interrupted) => {
                Ok(Self::Pending)
            }
            (Self::None | Self::Pending, T::NotNeeded) => Ok(Self::None),
            (Self::Pending, T::Started) => Ok(Self::Running),
            (Self::Pending | Self::Running, T::Completed) => Ok(Self::Done),
            (Self::Pending | Self::Running, T::Failed) => Ok(Self::Failed),
            (
                from @ (Self::None | Self::Running | Self::Done | Self::Failed),
                trigger @ (T::Planned | T::NotNeeded | T::Started | T::Interrupted | T::Completed | T::Failed),
            ) => Err(IllegalSetupTransition { from, trigger }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SetupPhase as P;
    use SetupTrigger as T;

    const TRIGGERS: [SetupTrigger; 6] = [T::Planned, T::NotNeeded, T::Started, T::Interrupted, T::Completed, T::Failed];

    /// Every legal transition; all others must be rejected.
    const TABLE: &[(SetupPhase, SetupTrigger, SetupPhase)] = &[
        (P::None, T::Planned, P::Pending),
        (P::None, T::NotNeeded, P::None),
        (P::Pending, T::Planned, P::Pending),
        (P::Pending, T::NotNeeded, P::None),
        (P::Pending, T::Started, P::Running),
        (P::Pending, T::Interrupted, P::Pending),
        (P::Pending, T::Completed, P::Done),
        (P::Pending, T::Failed, P::Failed),
        (P::Running, T::Interrupted, P::Pending),
        (P::Running, T::Completed, P::Done),
        (P::Running, T::Failed, P::Failed),
    ];

    #[test]
    fn every_transition_is_in_the_table_or_rejected() {
        for &from in P::ALL {
            for trigger in TRIGGERS {
                let row = TABLE.iter().find(|(phase, by, _)| *phase == from && *by == trigger);
                let expected = row.map(|(.., to)| *to).ok_or(IllegalSetupTransition { from, trigger });
                assert_eq!(from.next(trigger), expected, "{from} by {trigger:?}");
            }
        }
    }

    #[test]
    fn an_interrupted_set_up_runs_again_before_the_agent_may_start() {
        let interrupted = P::Running.next(T::Interrupted).unwrap();
        assert!(interrupted.is_active() && interrupted.next(T::Started) == Ok(P::Running));
        let ended: Vec<_> = P::ALL.iter().filter(|phase| !phase.is_active()).collect();
        assert_eq!(ended, [&P::None, &P::Done, &P::Failed]);
    }
}
