//! Rechecks the access of open connections. A connection closes when its caller loses access.

use crate::auth::access::{self, VisibleProjects};
use crate::auth::{self, Caller};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_core::principal::ProjectAction;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Interval between checks.
pub const RECHECK_INTERVAL: Duration = Duration::from_secs(20);

/// The access that one connection to a sandbox requires.
pub struct AccessRecheck {
    caller: Caller,
    sandbox: SandboxId,
    action: ProjectAction,
    next_check: Instant,
    changes: watch::Receiver<()>,
}

impl AccessRecheck {
    pub fn new(app: &App, caller: Caller, sandbox: SandboxId, action: ProjectAction) -> Self {
        let changes = app.tokens.subscribe();
        Self { caller, sandbox, action, next_check: Instant::now() + RECHECK_INTERVAL, changes }
    }

    /// True if it is time to check again.
    pub fn is_due(&self) -> bool {
        Instant::now() >= self.next_check || self.changes.has_changed().unwrap_or(true)
    }

    /// Waits until it is time to check again: regularly, and at once after a change of rights. Cancel-safe.
    pub async fn wait_until_due(&mut self) {
        tokio::select! {
            () = sleep_until(self.next_check) => {}
            // The sender lives as long as the server.
            _ = self.changes.changed() => self.next_check = Instant::now(),
        }
    }

    /// Checks again and returns the problem if access is lost.
    pub async fn check_again(&mut self, app: &App) -> Option<Problem> {
        self.next_check = Instant::now() + RECHECK_INTERVAL;
        self.changes.mark_unchanged();
        let (sandbox, action) = (self.sandbox, self.action);
        let looked = async {
            let caller = auth::reauthenticate(app, &self.caller).await?;
            app.read(async move |tx| access::check_sandbox(tx, &caller, sandbox, action).await).await
        };
        looked.await.err().filter(is_access_refusal)
    }
}

/// Returns a problem if the caller sees fewer projects than before.
pub async fn recheck_visible_projects(app: &App, caller: &Caller, before: &VisibleProjects) -> Option<Problem> {
    let looked: Result<VisibleProjects> = async {
        let caller = auth::reauthenticate(app, caller).await?;
        app.read(async move |tx| access::visible_projects(tx, &caller).await).await
    }
    .await;
    match looked {
        Ok(now) if now.covers(before) => None,
        Ok(_) => Some(Problem::forbidden("you lost access to a project; reconnect to follow the others")),
        Err(problem) => Some(problem).filter(is_access_refusal),
    }
}

/// A store error does not revoke access; the next check decides.
const fn is_access_refusal(problem: &Problem) -> bool {
    matches!(problem.code, Code::Unauthorized | Code::Forbidden | Code::NotFound)
}
