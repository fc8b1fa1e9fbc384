//! The dispatcher's channels to the link tasks. They live as long as the loop, so a failed send does not matter.

use crate::link::SandboxPhase;
use crate::link::downlink::{LiveText, OpenLeases};
use crate::link::heartbeat::ActivitySince;
use crate::link::uplink::Durable;
use atoll_core::sandbox::Activity;
use atoll_spool::journal::Acknowledgement;
use tokio::sync::{mpsc, watch};

pub(super) struct LinkOutputs {
    pub durable: watch::Sender<Durable>,
    pub activity: watch::Sender<ActivitySince>,
    pub phase: watch::Sender<SandboxPhase>,
    pub leases: watch::Sender<OpenLeases>,
    pub acknowledgements: mpsc::UnboundedSender<Acknowledgement>,
    pub live: mpsc::Sender<LiveText>,
}

impl LinkOutputs {
    /// Publishes the activity that begins after the event with this key.
    pub(super) fn set_activity(&self, activity: Activity, after_key: i64) {
        let next = ActivitySince { activity, after_key };
        self.activity.send_if_modified(|now| {
            let changed = now.activity != activity;
            if changed {
                *now = next;
            }
            changed
        });
    }

    pub(super) fn set_leases(&self, leases: OpenLeases) {
        self.leases.send_if_modified(|now| {
            let changed = *now != leases;
            *now = leases;
            changed
        });
    }

    /// Publishes what the uplink may send. The last key never decreases.
    pub(super) fn set_durable(&self, mut next: Durable) {
        self.durable.send_if_modified(|now| {
            next.last_key = next.last_key.max(now.last_key);
            next.disk_full = now.disk_full;
            std::mem::replace(now, next) != next
        });
    }
}
