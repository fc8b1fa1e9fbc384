//! Signals that ask the worker to exit.

use crate::readiness;
use atoll_jail::init_process::SignalFd;
use rustix::process::{Signal, WaitOptions, wait};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Capacity of the channel; further signals say nothing new.
const MAX_WAITING: usize = 4;

/// Minimum time between log lines about signals from inside the sandbox.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Receives signals of any sender, for a worker that was started by hand.
pub fn receive_from_anyone() -> io::Result<mpsc::Receiver<()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (sender, receiver) = mpsc::channel(MAX_WAITING);
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

/// Receives signals from outside the sandbox only, for its first process; also reaps orphans.
pub fn receive_from_outside(signals: SignalFd) -> io::Result<mpsc::Receiver<()>> {
    let readiness = readiness::register(signals.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
    let (sender, receiver) = mpsc::channel(MAX_WAITING);
    tokio::spawn(async move {
        let (mut ignored, mut logged) = (0_u64, None);
        // Children may have exited before the signal handler existed.
        reap_orphans();
        loop {
            let Ok(mut ready) = readiness.readable().await else { return };
            loop {
                match signals.read() {
                    Ok(Some(received)) if received.signal == Signal::CHILD.as_raw() => reap_orphans(),
                    // A full channel holds enough requests to exit.
                    Ok(Some(received)) if received.sender == 0 => drop(sender.try_send(())),
                    Ok(Some(received)) => {
                        ignored += 1;
                        if logged.is_none_or(|logged: Instant| logged.elapsed() >= LOG_INTERVAL) {
                            let (signal, sender) = (received.signal, received.sender);
                            tracing::info!(signal, sender, ignored, "ignored signals from inside");
                            logged = Some(Instant::now());
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

/// Reaps orphans: the kernel reparents them to the first process of the sandbox.
fn reap_orphans() {
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        tracing::debug!(pid = pid.as_raw_nonzero().get(), ?status, "reaped");
    }
}
