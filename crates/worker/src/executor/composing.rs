//! Whole answers and the results that go back, told between the events that they are drawn from.

use super::Executor;
use crate::driver::Origin;
use crate::exchange::Composed;
use atoll_core::event::Source;

impl Executor {
    /// Before an event of the agent: which of those before it belong together.
    pub(super) fn compose(&mut self, event_type: &str, turn: Option<i64>, data: &str, origin: &Origin) {
        let composed = self.exchange.before(event_type, data, turn, origin);
        self.tell_composed(composed);
    }

    pub(super) fn answer_ends(&mut self, parent: Option<&str>) {
        self.exchange.ends(parent);
        // Work of an agent that waits for somebody would say that it doesn't: it is told with what comes next.
        if !self.waits_for_person() {
            let whole = self.exchange.whole();
            self.tell_composed(whole);
        }
    }

    /// Nothing comes to what the agent was in the middle of.
    pub(super) fn compose_what_is_left(&mut self) {
        let left = self.exchange.flush();
        self.tell_composed(left);
    }

    /// It is no progress: what it is drawn from was.
    fn tell_composed(&mut self, composed: Vec<Composed>) {
        for Composed { event_type, turn, data } in composed {
            self.emit_by(Source::Agent, event_type, turn, data);
        }
    }
}
