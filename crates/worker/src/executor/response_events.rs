//! Emits complete model responses and tool results, assembled from the agent's events.

use super::Executor;
use atoll_core::event::EventSource;
use atoll_drivers::ResponseRef;
use atoll_drivers::response_assembly::AssembledEvent;

impl Executor {
    /// Passes an event to the assembler, before it is emitted.
    pub(super) fn assemble_responses(&mut self, event_type: &str, turn: Option<i64>, data: &str, origin: &ResponseRef) {
        let composed = self.output.responses.observe_event(event_type, data, turn, origin);
        self.emit_assembled(composed);
    }

    pub(super) fn end_response(&mut self, parent: Option<&str>) {
        self.output.responses.end_response(parent);
        // While the agent waits for a person, work events would change its activity: emit them later.
        if !self.is_waiting_for_person() {
            let whole = self.output.responses.take_ended();
            self.emit_assembled(whole);
        }
    }

    /// Emits what an exited agent left incomplete.
    pub(super) fn flush_responses(&mut self) {
        let left = self.output.responses.flush();
        self.emit_assembled(left);
    }

    /// Emits assembled events. They are no progress: their parts were.
    fn emit_assembled(&mut self, composed: Vec<AssembledEvent>) {
        for AssembledEvent { event_type, turn, data } in composed {
            self.emit_event_from(EventSource::Agent, event_type, turn, data, None);
        }
    }
}
