//! The channels between the dispatcher and the downlink.

use super::{LinkReport, SandboxPhase};
use crate::Exit;
use atoll_core::approval::ApprovalAnswer;
use atoll_core::id::LeaseId;
use atoll_core::limit::Limit;
use atoll_core::sandbox::{AgentLimits, SandboxState};
use atoll_core::time::Timestamp;
use atoll_protocol::LeasedMessage;
use atoll_protocol::frame::DeniedCall;
use atoll_spool::SpoolStream;
use serde_json::value::RawValue;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

#[derive(Debug)]
pub enum DownlinkReport {
    /// A message, leased to this worker.
    Message(Box<LeasedMessage>),
    /// The answer to an approval that the agent requested.
    Answer(Box<ApprovalAnswer>),
    /// The agent's limits, and the one for which the server pauses it.
    Limits(AgentLimits, Option<Limit>),
    /// Tool calls that the guardian denies.
    Denials(Vec<DeniedCall>),
    Stop(SandboxState),
    Ended(Exit),
}

/// Streamed text, and the key of the event that precedes it.
#[derive(Debug)]
pub struct LiveText {
    pub after_key: i64,
    pub data: Box<RawValue>,
}

/// Leases of messages that the program has not acknowledged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenLeases {
    pub ids: Vec<LeaseId>,
    pub renewal_interval: Duration,
}

/// A longer interval would lose a lease if the server's clock is ahead of the worker's.
pub const MAX_RENEWAL_INTERVAL: Duration = Duration::from_secs(10);
const MIN_RENEWAL_INTERVAL: Duration = Duration::from_millis(500);

/// Renews a lease after a third of its remaining time.
pub fn renewal_interval(now: Timestamp, lease_until: Timestamp) -> Duration {
    (lease_until.elapsed_since(now) / 3).clamp(MIN_RENEWAL_INTERVAL, MAX_RENEWAL_INTERVAL)
}

#[derive(Debug)]
pub struct DownlinkChannels {
    pub stream: SpoolStream,
    pub phase: watch::Receiver<SandboxPhase>,
    pub leases: watch::Receiver<OpenLeases>,
    pub live: mpsc::Receiver<LiveText>,
    pub reports: mpsc::Sender<LinkReport>,
}

impl DownlinkChannels {
    /// Waits for the first heartbeat: the server leases nothing to a stream that it does not know. False if the worker
    /// ends before it.
    pub async fn wait_until_registered(&mut self) -> bool {
        self.phase.wait_for(|phase| phase.registered).await.is_ok()
    }

    /// Passes a report to the dispatcher. False if the worker is exiting.
    pub async fn report(&self, report: DownlinkReport) -> bool {
        self.reports.send(LinkReport::Downlink(report)).await.is_ok()
    }
}

/// Returns when the worker leaves: it would return each further message, and the server would lease it again.
pub async fn wait_for_leaving(phase: &mut watch::Receiver<SandboxPhase>) {
    // Without a sender the worker is leaving too.
    drop(phase.wait_for(|phase| phase.leaving).await);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_renewed_after_a_third_of_their_remaining_time() {
        let now = Timestamp::from_micros(1_000_000_000);
        for (remaining, interval) in [(6_000, 2_000), (30_000, 10_000), (3_600_000, 10_000), (0, 500)] {
            let until = now + Duration::from_millis(remaining);
            assert_eq!(renewal_interval(now, until), Duration::from_millis(interval), "{remaining} ms");
        }
    }
}
