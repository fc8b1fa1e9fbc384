//! Waiting for conditions in tests: one poll interval, one time-out.
//!
//! `wait_…` blocks the thread; `poll_…` is async and follows tokio's clock, also a paused one. The async functions take
//! closures that return futures, and not `AsyncFnMut`, whose futures the compiler cannot prove to be `Send`.
#![allow(clippy::panic, reason = "a test fails by panicking")]

use std::panic::Location;
use std::time::{Duration, Instant};

/// Generous enough for a slow machine: a correct test never waits this long.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Blocks until `condition` holds.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()));
}

/// Blocks until `poll` returns a value.
#[track_caller]
pub fn wait_for<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    // No closure: the panic has this function's caller as its location.
    match try_wait_for(|| poll().ok_or(())) {
        Ok(value) => value,
        Err(()) => panic!("timed out waiting for {what}"),
    }
}

/// Blocks until `poll` succeeds, and returns its last error at the time-out.
pub fn try_wait_for<T, E>(mut poll: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    loop {
        let polled = poll();
        if polled.is_ok() || Instant::now() > deadline {
            return polled;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Waits until `condition` holds.
#[track_caller]
pub fn poll_until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) -> impl Future<Output = ()> {
    poll_for(what, move || {
        let holds = condition();
        async { holds.await.then_some(()) }
    })
}

/// Waits until `poll` returns a value.
#[track_caller]
pub fn poll_for<T, F: Future<Output = Option<T>>>(what: &str, mut poll: impl FnMut() -> F) -> impl Future<Output = T> {
    // `#[track_caller]` does not work on async functions.
    let caller = Location::caller();
    let polled = try_poll_for(move || {
        let value = poll();
        async { value.await.ok_or(()) }
    });
    async move { polled.await.unwrap_or_else(|()| panic!("timed out waiting for {what} at {caller}")) }
}

/// Waits until `poll` succeeds, and returns its last error at the time-out.
pub async fn try_poll_for<T, E, F: Future<Output = Result<T, E>>>(mut poll: impl FnMut() -> F) -> Result<T, E> {
    let deadline = tokio::time::Instant::now() + WAIT_TIMEOUT;
    loop {
        let polled = poll().await;
        if polled.is_ok() || tokio::time::Instant::now() > deadline {
            return polled;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_the_first_value() {
        let mut polls = 0;
        let third = wait_for("the third poll", || {
            polls += 1;
            (polls == 3).then_some("third")
        });
        assert_eq!((third, polls), ("third", 3));
    }

    #[tokio::test(start_paused = true)]
    async fn returns_the_last_error_at_the_time_out() {
        let mut polls = 0;
        let error = try_poll_for(|| {
            polls += 1;
            std::future::ready(Err::<(), _>(polls))
        });
        assert!(error.await.unwrap_err() > 1);
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "timed out waiting for the impossible at crates/test-wait/src/lib.rs")]
    async fn panics_at_the_time_out() {
        poll_until("the impossible", async || false).await;
    }
}
