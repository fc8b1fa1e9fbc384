//! What tells the worker to go.

use crate::readiness;
use atoll_jail::inside::Signals;
use rustix::process::{Signal, WaitOptions, wait};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// How often it was told so and did not look yet: more than that says nothing new.
const WAITING: usize = 4;

/// How often it is told that somebody inside tries in vain: as often as they like they may try.
const SELDOM: Duration = Duration::from_secs(60);

/// For a worker that somebody started by hand: whoever may signal it may end it.
pub fn from_anyone() -> io::Result<mpsc::Receiver<()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (sender, receiver) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if sender.send(()).await.is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

/// For the first process of a sandbox: only what was sent from outside of it counts, and whatever died is reaped.
pub fn from_outside(signals: Signals) -> io::Result<mpsc::Receiver<()>> {
    let readiness = readiness::of(signals.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
    let (sender, receiver) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        let (mut ignored, mut told) = (0_u64, None);
        // What ended before the first look is reaped with it.
        reap();
        loop {
            let Ok(mut ready) = readiness.readable().await else { return };
            loop {
                match signals.read() {
                    Ok(Some(received)) if received.signal == Signal::CHILD.as_raw() => reap(),
                    // What does not fit in was said often enough.
                    Ok(Some(received)) if received.sender == 0 => drop(sender.try_send(())),
                    Ok(Some(received)) => {
                        ignored += 1;
                        if told.is_none_or(|told: Instant| told.elapsed() >= SELDOM) {
                            let (signal, sender) = (received.signal, received.sender);
                            tracing::info!(signal, sender, ignored, "ignored signals from inside");
                            told = Some(Instant::now());
                        }
                    }
                    Ok(None) => break,
                    Err(error) => {
                        tracing::error!(%error, "failed to read signals");
                        break;
                    }
                }
            }
            ready.clear_ready();
        }
    });
    Ok(receiver)
}

/// Orphans come to the first process of a sandbox; nobody waits for how they ended.
fn reap() {
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        tracing::debug!(pid = pid.as_raw_nonzero().get(), ?status, "reaped");
    }
}
