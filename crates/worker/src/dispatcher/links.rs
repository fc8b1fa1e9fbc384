//! The ways to the tasks. They live as long as the loop, so sending can't fail in a way that matters.

use super::Phase;
use crate::downlink::Live;
use crate::heartbeat::Doing;
use crate::journal::Answer;
use crate::uplink::Durable;
use atoll_core::id::LeaseId;
use atoll_core::sandbox::Activity;
use tokio::sync::{mpsc, watch};

pub(super) struct Links {
    pub durable: watch::Sender<Durable>,
    pub activity: watch::Sender<Doing>,
    pub phase: watch::Sender<Phase>,
    pub leases: watch::Sender<Vec<LeaseId>>,
    pub answers: mpsc::UnboundedSender<Answer>,
    pub live: mpsc::Sender<Live>,
}

impl Links {
    /// It is so once everything up to this key is.
    pub(super) fn set_activity(&self, activity: Activity, after: i64) {
        let next = Doing { activity, after };
        self.activity.send_if_modified(|now| {
            let changed = now.activity != activity;
            if changed {
                *now = next;
            }
            changed
        });
    }

    pub(super) fn set_leases(&self, leases: Vec<LeaseId>) {
        self.leases.send_if_modified(|now| {
            let changed = *now != leases;
            *now = leases;
            changed
        });
    }

    /// What may be sent is never taken back.
    pub(super) fn set_durable(&self, mut next: Durable) {
        self.durable.send_if_modified(|now| {
            next.last_key = next.last_key.max(now.last_key);
            next.disk_full = now.disk_full;
            std::mem::replace(now, next) != next
        });
    }
}
