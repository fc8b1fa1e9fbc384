//! An open loop: requests are due at fixed times, whether earlier ones have been answered or not.
//! Latencies count from when a request was due.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The times at which one connection's requests are due.
pub type Lane = UnboundedReceiver<Instant>;

/// Spreads `count` requests at `rate` a second over the lanes in turn. A thread of its own keeps
/// the time: the runtime's timers are too coarse.
pub fn start(rate: u32, count: usize, lanes: usize) -> (Vec<Lane>, JoinHandle<()>) {
    let (senders, receivers): (Vec<UnboundedSender<Instant>>, Vec<Lane>) =
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
