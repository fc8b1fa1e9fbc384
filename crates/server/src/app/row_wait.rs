//! Waits for a change of a sandbox's row.

use super::targets::find_sandbox;
use crate::event_follower::RECHECK_INTERVAL;
use crate::problem::Result;
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_store::sandboxes::SandboxRow;
use std::time::Duration;
use tokio::time::Instant;

/// Reads the row at each change of the sandbox's state, until the row meets the condition, the time is over or the server
/// stops. Returns the last row.
pub async fn wait_for_row(
    app: &App,
    id: SandboxId,
    timeout: Duration,
    is_met: impl Fn(&SandboxRow) -> bool,
) -> Result<SandboxRow> {
    let (mut states, mut stopping) = (app.hub.subscribe_states(), app.stopping.clone());
    let until = Instant::now() + timeout;
    loop {
        let row = find_sandbox(app, id).await?;
        if is_met(&row) || Instant::now() >= until || *stopping.borrow() {
            return Ok(row);
        }
        let recheck = (Instant::now() + RECHECK_INTERVAL).min(until);
        loop {
            tokio::select! {
                changed = states.recv() => if changed.is_ok_and(|(changed, _)| changed != id) { continue },
                _ = stopping.changed() => {}
                () = tokio::time::sleep_until(recheck) => {}
            }
            break;
        }
    }
}
