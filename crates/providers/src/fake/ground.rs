//! What a fake sandbox stands on: its files, whether it is frozen, and tasks that end with it.

use super::process::Table;
use super::tree::Tree;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// A task that ends when its owner lets go of it.
pub(super) struct Task(AbortHandle);

impl Task {
    pub(super) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work).abort_handle())
    }

    pub(super) fn stop(&self) {
        self.0.abort();
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Shared by the commands and the worker. It owns no task, so a running one never keeps another alive.
pub(super) struct Ground {
    pub(super) tree: Mutex<Tree>,
    frozen: watch::Sender<bool>,
}

impl Ground {
    pub(super) fn freeze(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }

    pub(super) fn is_frozen(&self) -> bool {
        *self.frozen.borrow()
    }

    /// Returns at once, or when the sandbox is resumed.
    pub(super) async fn thawed(&self) {
        // It can't fail: `self` holds the sender.
        let _ = self.frozen.subscribe().wait_for(|frozen| !frozen).await;
    }

    /// Returns when the sandbox has moved for so long; time in which it is frozen does not count.
    pub(super) async fn moved_for(&self, mut span: Duration) {
        loop {
            self.thawed().await;
            let (began, mut frozen) = (Instant::now(), self.frozen.subscribe());
            let freezing = async { drop(frozen.wait_for(|frozen| *frozen).await) };
            tokio::select! {
                () = tokio::time::sleep(span) => return,
                () = freezing => span = span.saturating_sub(began.elapsed()),
            }
        }
    }
}

/// The inside of one sandbox.
pub(super) struct Place {
    pub(super) ground: Arc<Ground>,
    pub(super) table: Table,
}

impl Place {
    pub(super) fn new(tree: Tree) -> Self {
        let ground = Ground { tree: Mutex::new(tree), frozen: watch::Sender::new(false) };
        Self { ground: Arc::new(ground), table: Table::default() }
    }
}
