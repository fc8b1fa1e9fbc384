//! What Ctrl-C means, by what was pressed before and what goes on. Pure.

use super::story::Doing;

/// How far one is on the way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Leaving {
    #[default]
    Staying,
    /// The agent was asked to stop what it does; nobody leaves yet.
    Interrupted,
    /// The sandbox is being stopped, and one waits for it.
    Stopping,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    InterruptAgent,
    /// Stop the sandbox and wait for its end.
    Stop,
    /// Go, and let it run on its server.
    GoAway,
    /// Go, whatever is under way.
    Abort,
}

/// How things stand when the key is pressed.
#[derive(Debug, Clone, Copy)]
pub struct Standing {
    pub at_work: bool,
    /// The server ends with this process.
    pub inside: bool,
}

impl Leaving {
    pub fn press(&mut self, standing: Standing) -> Step {
        match (*self, standing.at_work, standing.inside) {
            (Self::Staying, true, _) => {
                *self = Self::Interrupted;
                Step::InterruptAgent
            }
            (Self::Staying | Self::Interrupted, _, true) => {
                *self = Self::Stopping;
                Step::Stop
            }
            (Self::Staying | Self::Interrupted, _, false) => Step::GoAway,
            (Self::Stopping, ..) => Step::Abort,
        }
    }

    /// Somebody goes on talking to the agent.
    pub fn stay(&mut self) {
        if *self == Self::Interrupted {
            *self = Self::Staying;
        }
    }

    /// What is said of it, while it matters.
    pub const fn notice(self, doing: &Doing) -> Option<&'static str> {
        match (self, doing) {
            (Self::Staying, _) | (_, Doing::Ended) | (Self::Interrupted, Doing::TakingResults) => None,
            (Self::Interrupted, Doing::Waiting) => Some("interrupted; Ctrl-C again leaves"),
            (Self::Interrupted, _) => Some("interrupting; Ctrl-C again leaves"),
            (Self::Stopping, _) => Some("stopping; Ctrl-C again ends it at once"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_interrupts_twice_leaves_thrice_breaks_off() {
        for inside in [true, false] {
            let mut leaving = Leaving::default();
            assert_eq!(leaving.press(Standing { at_work: true, inside }), Step::InterruptAgent);
            let second = leaving.press(Standing { at_work: false, inside });
            assert_eq!(second, if inside { Step::Stop } else { Step::GoAway });
            if inside {
                assert_eq!(leaving.press(Standing { at_work: false, inside }), Step::Abort);
            }
        }
    }

    #[test]
    fn with_nothing_to_interrupt_the_first_one_leaves() {
        assert_eq!(Leaving::default().press(Standing { at_work: false, inside: true }), Step::Stop);
        assert_eq!(Leaving::default().press(Standing { at_work: false, inside: false }), Step::GoAway);
    }

    #[test]
    fn who_goes_on_talking_stays() {
        let mut leaving = Leaving::default();
        leaving.press(Standing { at_work: true, inside: true });
        leaving.stay();
        assert_eq!(leaving.press(Standing { at_work: true, inside: true }), Step::InterruptAgent);
        let mut stopping = Leaving::Stopping;
        stopping.stay();
        assert_eq!(stopping, Leaving::Stopping, "what is being stopped is not taken back");
    }
}
