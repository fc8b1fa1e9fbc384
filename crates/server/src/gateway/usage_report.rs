//! Decides when the use of models is worth an event: each minute, each half dollar, and each tenth of the context window
//! above its half.

use atoll_core::time::Timestamp;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_secs(60);
const MICROS: i64 = 500_000;
/// The first tenth of the context window that is reported.
const FIRST_TENTH: u64 = 5;

/// One finished request.
#[derive(Debug, Clone, Copy)]
pub struct FinishedRequest {
    pub at: Timestamp,
    pub cost_micros: i64,
    pub prompt_tokens: u64,
    /// Size of the model's context window.
    pub context: Option<u64>,
}

#[derive(Debug, Default)]
pub struct UsageReportTimes {
    last: Option<Timestamp>,
    cost_micros: i64,
    tenth: u64,
}

impl UsageReportTimes {
    /// Counts a request. Returns true if an event is due.
    pub fn count_request(&mut self, request: FinishedRequest) -> bool {
        let last = *self.last.get_or_insert(request.at);
        self.cost_micros = self.cost_micros.saturating_add(request.cost_micros);
        let context = request.context.filter(|context| *context > 0);
        let tenth = context.map_or(0, |context| request.prompt_tokens.saturating_mul(10) / context);
        let is_fuller = tenth > self.tenth && tenth >= FIRST_TENTH;
        let is_due = is_fuller || self.cost_micros >= MICROS || request.at.elapsed_since(last) >= INTERVAL;
        if is_due {
            (self.last, self.cost_micros) = (Some(request.at), 0);
        }
        if is_fuller {
            self.tenth = tenth;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_by_time_cost_and_context() {
        let mut times = UsageReportTimes::default();
        let mut count = |seconds: i64, cost_micros: i64, prompt_tokens: u64| {
            let at = Timestamp::from_micros(seconds * 1_000_000);
            times.count_request(FinishedRequest { at, cost_micros, prompt_tokens, context: Some(1000) })
        };
        assert!(!count(0, 1, 100) && !count(59, 1, 100));
        assert!(count(60, 1, 100), "a minute");
        assert!(!count(61, 400_000, 100) && count(62, 100_000, 100), "half a dollar");
        assert!(count(63, 1, 500) && !count(64, 1, 550), "half of the context window");
        assert!(count(65, 1, 610) && !count(66, 1, 510), "a further tenth");
    }
}
