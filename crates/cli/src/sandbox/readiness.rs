//! Waits for a sandbox that its provider still creates.

use crate::connect::ConnectedClient;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::spinner::Spinner;
use atoll_api::{ErrorCode, Sandbox};
use atoll_core::id::SandboxId;
use atoll_core::provider::capabilities::WorkerHost;
use atoll_core::sandbox::SandboxState;
use atoll_providers::capabilities_of;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Limit on the wait; the server usually fails a sandbox that takes too long before.
const MAX_WAIT: Duration = Duration::from_secs(600);
const FIRST_POLL_INTERVAL: Duration = Duration::from_millis(20);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Shorter waits need no progress line.
const MIN_REPORTED_WAIT: Duration = Duration::from_millis(500);

/// Repeats a request that the server refuses because the sandbox is still being created.
pub async fn retry_until_running<T>(
    id: SandboxId,
    client: &ConnectedClient,
    output: &Output,
    mut send_request: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    loop {
        match send_request().await {
            Err(failure) if failure.has_code(ErrorCode::SandboxStarting.as_str()) => {
                let sandbox = wait_until_created(id, client, output).await?;
                require_created(&sandbox)?;
                if is_starting(&sandbox) {
                    return Err(failure);
                }
            }
            done => return done,
        }
    }
}

/// Waits until the sandbox has left its creation; fails if its provider could not create it.
pub async fn await_creation(id: SandboxId, client: &ConnectedClient, output: &Output) -> Result {
    require_created(&wait_until_created(id, client, output).await?)
}

/// Waits until the sandbox has left its creation. The person who starts an external worker decides when it does.
pub async fn wait_until_created(id: SandboxId, client: &ConnectedClient, output: &Output) -> Result<Sandbox> {
    let started_at = Instant::now();
    let mut interval = FIRST_POLL_INTERVAL;
    let mut is_reported = false;
    let progress = Spinner::start(output, format!("creating {id}"));
    loop {
        let sandbox = client.get_sandbox(id).await?;
        if !is_starting(&sandbox) || capabilities_of(sandbox.provider).worker == WorkerHost::Person {
            return Ok(sandbox);
        }
        let waited = started_at.elapsed();
        if waited >= MAX_WAIT {
            let detail = format!("{id} is still {} after {} minutes", sandbox.state, MAX_WAIT.as_secs() / 60);
            return Err(Failure::work("sandbox_starting", detail)
                .with_hint(format!("`atoll logs {id}` shows its log; `atoll sandbox stop {id}` gives up.")));
        }
        if waited >= MIN_REPORTED_WAIT && !progress.is_visible() && !std::mem::replace(&mut is_reported, true) {
            output.print_note(&format!("waiting for {id}, which is still being created"));
        }
        sleep(interval).await;
        interval = (interval * 2).min(MAX_POLL_INTERVAL);
    }
}

const fn is_starting(sandbox: &Sandbox) -> bool {
    matches!(sandbox.state, SandboxState::Pending | SandboxState::Creating)
}

/// Fails for a sandbox whose creation failed.
pub fn require_created(sandbox: &Sandbox) -> Result {
    if sandbox.state != SandboxState::Failed || sandbox.last_heartbeat.is_some() {
        return Ok(());
    }
    let reason = sandbox.reason.as_ref();
    let code = reason.map_or("sandbox_failed", |reason| reason.code.as_str());
    let detail = reason.map_or("unknown reason", |reason| reason.detail.as_str());
    Err(Failure::setup(code, format!("{} could not be created: {detail}", sandbox.id)))
}
