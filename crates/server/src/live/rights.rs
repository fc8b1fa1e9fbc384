//! Whether somebody who came a while ago may still be here: rights that are taken away close what is open.

use crate::auth::access::{self, Visible};
use crate::auth::{self, Caller};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_core::principal::Action;
use std::time::Duration;
use tokio::time::Instant;

/// Between two looks.
pub const EVERY: Duration = Duration::from_secs(20);

/// What somebody does with one sandbox for as long as they stay.
pub struct Rights {
    caller: Caller,
    sandbox: SandboxId,
    action: Action,
    next: Instant,
}

impl Rights {
    pub fn new(caller: Caller, sandbox: SandboxId, action: Action) -> Self {
        Self { caller, sandbox, action, next: Instant::now() + EVERY }
    }

    /// When it is time for another look.
    pub const fn next(&self) -> Instant {
        self.next
    }

    /// Why they may no longer stay, if that is so.
    pub async fn withdrawn(&mut self, app: &App) -> Option<Problem> {
        self.next = Instant::now() + EVERY;
        let (sandbox, action) = (self.sandbox, self.action);
        let looked = async {
            let caller = auth::again(app, &self.caller).await?;
            app.read(move |tx| Box::pin(async move { access::sandbox(tx, &caller, sandbox, action).await })).await
        };
        looked.await.err().filter(is_refusal)
    }
}

/// What somebody who follows many sandboxes sees less of than in the beginning.
pub async fn seen_less(app: &App, caller: &Caller, before: &Visible) -> Option<Problem> {
    let looked: Result<Visible> = async {
        let caller = auth::again(app, caller).await?;
        app.read(move |tx| Box::pin(async move { access::visible(tx, &caller).await })).await
    }
    .await;
    match looked {
        Ok(now) if now.covers(before) => None,
        Ok(_) => Some(Problem::forbidden("you may see less than when you came; come back for the rest")),
        Err(problem) => Some(problem).filter(is_refusal),
    }
}

/// A store that does not answer takes no rights away; it is asked again.
const fn is_refusal(problem: &Problem) -> bool {
    matches!(problem.code, Code::Unauthorized | Code::Forbidden | Code::NotFound)
}
