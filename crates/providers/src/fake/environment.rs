//! The environment of a fake sandbox: its files, its freezer and tasks that end with it.

use super::process::ProcessTable;
use super::tree::Tree;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// A task that is aborted on drop.
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

/// Shared by the commands and the worker. It owns no task, so tasks do not keep each other alive.
pub(super) struct Environment {
    pub(super) tree: Mutex<Tree>,
    frozen: watch::Sender<bool>,
}

impl Environment {
    pub(super) fn set_frozen(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }

    pub(super) fn is_frozen(&self) -> bool {
        *self.frozen.borrow()
    }

    /// Returns at once, or when the sandbox is resumed.
    pub(super) async fn wait_until_thawed(&self) {
        // Infallible: `self` holds the sender.
        let _ = self.frozen.subscribe().wait_for(|frozen| !frozen).await;
    }

    /// Sleeps for `span`, not counting frozen time.
    pub(super) async fn sleep_unfrozen(&self, mut span: Duration) {
        loop {
            self.wait_until_thawed().await;
            let (began, mut frozen) = (Instant::now(), self.frozen.subscribe());
            let freezing = async { drop(frozen.wait_for(|frozen| *frozen).await) };
            tokio::select! {
                () = tokio::time::sleep(span) => return,
                () = freezing => span = span.saturating_sub(began.elapsed()),
            }
        }
    }
}

/// One sandbox's environment and processes.
pub(super) struct SandboxRuntime {
    pub(super) environment: Arc<Environment>,
    pub(super) processes: ProcessTable,
}

impl SandboxRuntime {
    pub(super) fn new(tree: Tree) -> Self {
        let environment = Environment { tree: Mutex::new(tree), frozen: watch::Sender::new(false) };
        Self { environment: Arc::new(environment), processes: ProcessTable::default() }
    }
}
