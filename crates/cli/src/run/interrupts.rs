//! The meaning of each Ctrl-C and signal during a run. Pure.

use super::progress::Phase;
use super::signals::CaughtSignal;
use std::time::Duration;
use tokio::time::Instant;

/// A second Ctrl-C exits at once only after this time: `timeout` and CI runners send one signal to the command and one
/// to its process group.
const MIN_ABORT_DELAY: Duration = Duration::from_secs(1);

/// The effect of the interrupts so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InterruptState {
    #[default]
    Running,
    /// The agent got an interrupt; the user can send another message.
    Interrupted,
    /// The run ends: the server stops the sandbox and exports its results.
    Stopping { since: Instant },
}

/// The origin of an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    /// Ctrl-C in the live view.
    Key,
    Signal(CaughtSignal),
}

/// The reaction to an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InterruptAction {
    InterruptAgent,
    /// Stop the sandbox, export its results and wait for its end.
    Stop,
    /// Interrupt the agent, then `Stop`.
    InterruptAndStop,
    /// Leave the sandbox running on its server.
    Detach,
    /// Leave at once; the next server exports the results.
    Abort,
    Ignore,
}

/// The state of the run at an interrupt.
#[derive(Debug, Clone, Copy)]
pub struct InterruptContext {
    pub is_working: bool,
    /// The server runs in this process.
    pub is_embedded: bool,
    /// The view only watches a sandbox: a signal ends the view and nothing else.
    pub is_attached: bool,
    pub now: Instant,
}

impl InterruptState {
    pub fn apply(&mut self, interrupt: Interrupt, context: InterruptContext) -> InterruptAction {
        let InterruptContext { is_working, is_embedded, is_attached, now } = context;
        let leave = if is_embedded { InterruptAction::Abort } else { InterruptAction::Detach };
        match (*self, interrupt) {
            (_, Interrupt::Signal(_)) if is_attached => InterruptAction::Detach,
            (Self::Running, Interrupt::Key) if is_working => {
                *self = Self::Interrupted;
                InterruptAction::InterruptAgent
            }
            (Self::Running | Self::Interrupted, Interrupt::Key) if is_embedded => self.start_stop(now),
            (Self::Running | Self::Interrupted, Interrupt::Key) => InterruptAction::Detach,
            // The terminal is gone, but a server of its own keeps the sandbox.
            (_, Interrupt::Signal(CaughtSignal::Hangup)) if !is_embedded => InterruptAction::Detach,
            (Self::Running, Interrupt::Signal(_)) if is_working => {
                self.start_stop(now);
                InterruptAction::InterruptAndStop
            }
            (Self::Running | Self::Interrupted, Interrupt::Signal(_)) => self.start_stop(now),
            (
                Self::Stopping { since },
                Interrupt::Key | Interrupt::Signal(CaughtSignal::Interrupt { from_terminal: true }),
            ) if now.duration_since(since) >= MIN_ABORT_DELAY => leave,
            (Self::Stopping { .. }, Interrupt::Key | Interrupt::Signal(_)) => InterruptAction::Ignore,
        }
    }

    const fn start_stop(&mut self, now: Instant) -> InterruptAction {
        *self = Self::Stopping { since: now };
        InterruptAction::Stop
    }

    pub const fn is_stopping(self) -> bool {
        matches!(self, Self::Stopping { .. })
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
            (Self::Stopping { .. }, _) => Some("taking the results; Ctrl-C again leaves without waiting for them"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMINATE: Interrupt = Interrupt::Signal(CaughtSignal::Terminate);
    const FROM_TERMINAL: Interrupt = Interrupt::Signal(CaughtSignal::Interrupt { from_terminal: true });
    const FROM_PROGRAM: Interrupt = Interrupt::Signal(CaughtSignal::Interrupt { from_terminal: false });
    const HANGUP: Interrupt = Interrupt::Signal(CaughtSignal::Hangup);

    /// The actions for interrupts at these milliseconds; the agent works until the first.
    fn actions(is_embedded: bool, interrupts: &[(u64, Interrupt)]) -> Vec<InterruptAction> {
        let (start, mut state) = (Instant::now(), InterruptState::default());
        let mut is_working = true;
        let apply = |(at, interrupt): &(u64, Interrupt)| {
            let now = start + Duration::from_millis(*at);
            let action = state.apply(*interrupt, InterruptContext { is_working, is_embedded, is_attached: false, now });
            is_working = false;
            action
        };
        interrupts.iter().map(apply).collect()
    }

    #[test]
    fn repeated_signals_never_discard_the_results() {
        use InterruptAction::{Ignore, InterruptAndStop};
        for is_embedded in [true, false] {
            for signal in [TERMINATE, FROM_PROGRAM, FROM_TERMINAL] {
                let expected = [InterruptAndStop, Ignore, Ignore];
                assert_eq!(actions(is_embedded, &[(0, signal), (10, signal), (999, signal)]), expected, "{signal:?}");
            }
            for signal in [TERMINATE, FROM_PROGRAM] {
                let expected = [InterruptAndStop, Ignore];
                assert_eq!(actions(is_embedded, &[(0, TERMINATE), (60_000, signal)]), expected, "{signal:?}");
            }
        }
    }

    #[test]
    fn a_later_interrupt_from_a_terminal_leaves_at_once() {
        use InterruptAction::{Abort, Detach, InterruptAndStop};
        assert_eq!(actions(true, &[(0, FROM_TERMINAL), (1000, FROM_TERMINAL)]), [InterruptAndStop, Abort]);
        assert_eq!(actions(true, &[(0, TERMINATE), (1000, FROM_TERMINAL)]), [InterruptAndStop, Abort]);
        assert_eq!(actions(false, &[(0, FROM_TERMINAL), (1000, FROM_TERMINAL)]), [InterruptAndStop, Detach]);
    }

    #[test]
    fn ctrl_c_in_the_live_view_interrupts_then_stops_then_leaves() {
        use InterruptAction::{Abort, Detach, Ignore, InterruptAgent, Stop};
        let keys = [(0, Interrupt::Key), (10, Interrupt::Key), (20, Interrupt::Key), (1010, Interrupt::Key)];
        assert_eq!(actions(true, &keys), [InterruptAgent, Stop, Ignore, Abort]);
        assert_eq!(actions(false, &keys[..2]), [InterruptAgent, Detach]);
    }

    #[test]
    fn a_hangup_detaches_from_a_running_server() {
        assert_eq!(actions(false, &[(0, HANGUP)]), [InterruptAction::Detach]);
        assert_eq!(actions(true, &[(0, HANGUP)]), [InterruptAction::InterruptAndStop]);
    }

    #[test]
    fn stops_at_once_when_the_agent_is_idle() {
        let context =
            |is_embedded| InterruptContext { is_working: false, is_embedded, is_attached: false, now: Instant::now() };
        for interrupt in [Interrupt::Key, TERMINATE] {
            assert_eq!(InterruptState::default().apply(interrupt, context(true)), InterruptAction::Stop);
        }
        assert_eq!(InterruptState::default().apply(Interrupt::Key, context(false)), InterruptAction::Detach);
    }

    #[test]
    fn a_signal_ends_only_an_attached_view() {
        let context = InterruptContext { is_working: true, is_embedded: false, is_attached: true, now: Instant::now() };
        for signal in [TERMINATE, FROM_TERMINAL, HANGUP] {
            assert_eq!(InterruptState::default().apply(signal, context), InterruptAction::Detach, "{signal:?}");
        }
    }

    #[test]
    fn a_new_message_resets_the_interrupt() {
        let context = InterruptContext { is_working: true, is_embedded: true, is_attached: false, now: Instant::now() };
        let mut state = InterruptState::default();
        state.apply(Interrupt::Key, context);
        state.reset();
        assert_eq!(state.apply(Interrupt::Key, context), InterruptAction::InterruptAgent);
        let mut stopping = InterruptState::Stopping { since: context.now };
        stopping.reset();
        assert!(stopping.is_stopping(), "a stop cannot be undone");
    }
}
