//! The meaning of each Ctrl-C during a run. Pure.

use super::progress::Phase;

/// The effect of the interrupts so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InterruptState {
    #[default]
    Running,
    /// The agent got an interrupt; the command keeps running.
    Interrupted,
    /// The sandbox is stopping; the command waits for it.
    Stopping,
}

/// The reaction to an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InterruptAction {
    InterruptAgent,
    /// Stop the sandbox and wait for its end.
    Stop,
    /// Leave the sandbox running on its server.
    Detach,
    /// Leave at once.
    Abort,
}

/// The state of the run at an interrupt.
#[derive(Debug, Clone, Copy)]
pub struct InterruptContext {
    pub is_working: bool,
    /// The server runs in this process.
    pub is_embedded: bool,
}

impl InterruptState {
    pub fn interrupt(&mut self, standing: InterruptContext) -> InterruptAction {
        match (*self, standing.is_working, standing.is_embedded) {
            (Self::Running, true, _) => {
                *self = Self::Interrupted;
                InterruptAction::InterruptAgent
            }
            (Self::Running | Self::Interrupted, _, true) => {
                *self = Self::Stopping;
                InterruptAction::Stop
            }
            (Self::Running | Self::Interrupted, _, false) => InterruptAction::Detach,
            (Self::Stopping, ..) => InterruptAction::Abort,
        }
    }

    /// Forgets the interrupt after a new message.
    pub fn reset(&mut self) {
        if *self == Self::Interrupted {
            *self = Self::Running;
        }
    }

    /// The notice for the status line.
    pub const fn notice(self, doing: &Phase) -> Option<&'static str> {
        match (self, doing) {
            (Self::Running, _) | (_, Phase::Ended) | (Self::Interrupted, Phase::ExportingResults) => None,
            (Self::Interrupted, Phase::Waiting) => Some("interrupted; Ctrl-C again leaves"),
            (Self::Interrupted, _) => Some("interrupting; Ctrl-C again leaves"),
            (Self::Stopping, _) => Some("stopping; Ctrl-C again aborts"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_then_leaves_then_aborts() {
        for is_embedded in [true, false] {
            let mut leaving = InterruptState::default();
            assert_eq!(
                leaving.interrupt(InterruptContext { is_working: true, is_embedded }),
                InterruptAction::InterruptAgent
            );
            let second = leaving.interrupt(InterruptContext { is_working: false, is_embedded });
            assert_eq!(second, if is_embedded { InterruptAction::Stop } else { InterruptAction::Detach });
            if is_embedded {
                assert_eq!(
                    leaving.interrupt(InterruptContext { is_working: false, is_embedded }),
                    InterruptAction::Abort
                );
            }
        }
    }

    #[test]
    fn leaves_at_once_when_the_agent_is_idle() {
        assert_eq!(
            InterruptState::default().interrupt(InterruptContext { is_working: false, is_embedded: true }),
            InterruptAction::Stop
        );
        assert_eq!(
            InterruptState::default().interrupt(InterruptContext { is_working: false, is_embedded: false }),
            InterruptAction::Detach
        );
    }

    #[test]
    fn a_new_message_resets_the_interrupt() {
        let mut leaving = InterruptState::default();
        leaving.interrupt(InterruptContext { is_working: true, is_embedded: true });
        leaving.reset();
        assert_eq!(
            leaving.interrupt(InterruptContext { is_working: true, is_embedded: true }),
            InterruptAction::InterruptAgent
        );
        let mut stopping = InterruptState::Stopping;
        stopping.reset();
        assert_eq!(stopping, InterruptState::Stopping, "a stop cannot be undone");
    }
}
