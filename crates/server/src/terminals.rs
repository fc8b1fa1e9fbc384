//! Who looks at which terminal. One that nobody looks at waits a while, so that one can come back
//! after a lost connection, and is then hung up.

use crate::state::App;
use atoll_core::provider::ExecRef;
use atoll_core::sandbox::ProviderKind;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;

/// The terminal is gone.
const HANG_UP: i32 = 1;
const KILL: i32 = 9;
/// For a shell to end what it runs.
const GRACE: Duration = Duration::from_secs(3);

/// By the name of its command.
#[derive(Debug, Default)]
pub struct Terminals(Mutex<HashMap<String, Watched>>);

#[derive(Debug, Default)]
struct Watched {
    viewers: usize,
    /// Counts how often the last one left.
    left: u64,
}

impl Terminals {
    fn enter(&self, exec: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(exec.to_owned()).or_default().viewers += 1;
    }

    /// When the last one leaves, which time it is.
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

    /// Whether nobody came back since; then it is forgotten.
    fn is_abandoned(&self, exec: &str, left: u64) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let abandoned = all.get(exec).is_some_and(|watched| watched.viewers == 0 && watched.left == left);
        if abandoned {
            all.remove(exec);
        }
        abandoned
    }
}

/// Somebody who looks at a terminal, as long as this is there.
pub struct Viewer {
    app: Arc<App>,
    kind: ProviderKind,
    exec: ExecRef,
}

impl Viewer {
    pub fn enter(app: &Arc<App>, kind: ProviderKind, exec: &ExecRef) -> Self {
        app.terminals.enter(&exec.exec);
        Self { app: Arc::clone(app), kind, exec: exec.clone() }
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let Some(left) = self.app.terminals.leave(&self.exec.exec) else { return };
        // Without a runtime the server is ending, and with it the terminal.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(abandon(Arc::clone(&self.app), self.kind, self.exec.clone(), left));
        }
    }
}

async fn abandon(app: Arc<App>, kind: ProviderKind, exec: ExecRef, left: u64) {
    tokio::time::sleep(app.policy.terminal_linger).await;
    if !app.terminals.is_abandoned(&exec.exec, left) {
        return;
    }
    let Ok(providers) = app.providers() else { return };
    // One that has ended does not mind, and one that is forgotten has ended.
    drop(providers.get(kind).signal(&exec, HANG_UP).await);
    tokio::time::sleep(GRACE).await;
    drop(providers.get(kind).signal(&exec, KILL).await);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_one_who_leaves_for_good_abandons_it() {
        let terminals = Terminals::default();
        terminals.enter("a");
        terminals.enter("a");
        assert_eq!(terminals.leave("a"), None);
        assert_eq!(terminals.leave("a"), Some(1));
        terminals.enter("a");
        assert!(!terminals.is_abandoned("a", 1), "somebody is back");
        assert_eq!(terminals.leave("a"), Some(2));
        assert!(!terminals.is_abandoned("a", 1), "its time began anew");
        assert!(terminals.is_abandoned("a", 2));
        assert!(!terminals.is_abandoned("a", 2), "and once is enough");
        assert_eq!(terminals.leave("b"), None);
    }
}
