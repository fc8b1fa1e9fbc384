//! An open-loop schedule: requests are due at fixed times, independent of earlier responses. Latencies count from the due
//! time.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The times at which one connection's requests are due.
pub type DueTimes = UnboundedReceiver<Instant>;

/// Spreads `count` requests at `rate` per second over the lanes, round-robin. It runs on its own thread because the
/// runtime's timers are too coarse.
pub fn start_schedule(rate: u32, count: usize, lanes: usize) -> (Vec<DueTimes>, JoinHandle<()>) {
    let (senders, receivers): (Vec<UnboundedSender<Instant>>, Vec<DueTimes>) =
        (0..lanes).map(|_| unbounded_channel()).unzip();
    let thread = std::thread::spawn(move || {
        let began = Instant::now() + Duration::from_millis(20);
        for (index, lane) in senders.iter().cycle().take(count).enumerate() {
            let due = began + Duration::from_secs(1) * index as u32 / rate;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if lane.send(due).is_err() {
                return;
            }
        }
    });
    (receivers, thread)
}
