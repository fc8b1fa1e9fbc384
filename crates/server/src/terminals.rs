//! Counts the viewers of terminals. A terminal without viewers stays open for a while, so that a client can reconnect, and
//! is then closed.

use crate::state::App;
use atoll_core::provider::ExecRef;
use atoll_core::sandbox::ProviderKind;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;

const SIGHUP: i32 = 1;
const SIGKILL: i32 = 9;
/// Time for a shell to end its commands.
const HANG_UP_GRACE: Duration = Duration::from_secs(3);

/// Viewers by command id.
#[derive(Debug, Default)]
pub struct Terminals(Mutex<HashMap<String, TerminalViewers>>);

#[derive(Debug, Default)]
struct TerminalViewers {
    viewers: usize,
    /// Counts how often the last viewer left.
    left: u64,
}

impl Terminals {
    fn enter(&self, exec: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(exec.to_owned()).or_default().viewers += 1;
    }

    /// Removes a viewer. Returns the new `left` count if it was the last one.
    fn leave(&self, exec: &str) -> Option<u64> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let watched = all.get_mut(exec)?;
        watched.viewers = watched.viewers.saturating_sub(1);
        if watched.viewers > 0 {
            return None;
        }
        watched.left += 1;
        Some(watched.left)
    }

    /// True if no viewer returned since; then the entry is removed.
    fn is_abandoned(&self, exec: &str, left: u64) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let abandoned = all.get(exec).is_some_and(|watched| watched.viewers == 0 && watched.left == left);
        if abandoned {
            all.remove(exec);
        }
        abandoned
    }
}

/// A viewer of a terminal until dropped.
pub struct TerminalViewer {
    app: Arc<App>,
    kind: ProviderKind,
    exec: ExecRef,
}

impl TerminalViewer {
    pub fn enter(app: &Arc<App>, kind: ProviderKind, exec: &ExecRef) -> Self {
        app.terminals.enter(&exec.exec);
        Self { app: Arc::clone(app), kind, exec: exec.clone() }
    }
}

impl Drop for TerminalViewer {
    fn drop(&mut self) {
        let Some(left) = self.app.terminals.leave(&self.exec.exec) else { return };
        // Without a runtime the server is shutting down.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(close_abandoned(Arc::clone(&self.app), self.kind, self.exec.clone(), left));
        }
    }
}

async fn close_abandoned(app: Arc<App>, kind: ProviderKind, exec: ExecRef, left: u64) {
    tokio::time::sleep(app.config.terminal.linger).await;
    if !app.terminals.is_abandoned(&exec.exec, left) {
        return;
    }
    let Ok(providers) = app.providers() else { return };
    // Errors mean that the command has ended.
    drop(providers.get(kind).signal(&exec, SIGHUP).await);
    tokio::time::sleep(HANG_UP_GRACE).await;
    drop(providers.get(kind).signal(&exec, SIGKILL).await);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_abandoned_when_its_last_viewer_does_not_return() {
        let terminals = Terminals::default();
        terminals.enter("a");
        terminals.enter("a");
        assert_eq!(terminals.leave("a"), None);
        assert_eq!(terminals.leave("a"), Some(1));
        terminals.enter("a");
        assert!(!terminals.is_abandoned("a", 1), "a viewer returned");
        assert_eq!(terminals.leave("a"), Some(2));
        assert!(!terminals.is_abandoned("a", 1), "its time restarted");
        assert!(terminals.is_abandoned("a", 2));
        assert!(!terminals.is_abandoned("a", 2), "only once");
        assert_eq!(terminals.leave("b"), None);
    }
}
