//! Health checks and gauges that the database provides.

use crate::metrics::{JOBS_WAITING, MESSAGES_WAITING, SANDBOX_ACTIVITIES, SANDBOXES};
use crate::problem::Result;
use crate::state::App;
use atoll_core::job::JobKind;
use atoll_core::message::MessageState;
use atoll_core::sandbox::{Activity, SandboxState};
use atoll_store::{jobs, messages, meta, sandboxes};
use std::time::Duration;

const READY_TIMEOUT: Duration = Duration::from_secs(3);

pub async fn check_store(app: &App) -> Result<bool> {
    let deployment = app.read(async move |tx| Ok(meta::find_meta_value(tx, "deployment").await?));
    Ok(deployment.await?.is_some())
}

/// True if the database answers in time and the server is not stopping.
pub async fn is_ready(app: &App) -> bool {
    let answered = tokio::time::timeout(READY_TIMEOUT, check_store(app)).await;
    matches!(answered, Ok(Ok(true))) && !*app.stopping.borrow()
}

/// Sets the gauges that the machine and the database provide.
pub async fn update_gauges(app: &App) -> Result<()> {
    crate::host_load::update_gauges(&app.config.data_dir);
    let steady = app.clock.steady_now();
    let (states, activities, messages, jobs) = app
        .read(async move |tx| {
            let states = sandboxes::count_by_state(tx).await?;
            let activities = sandboxes::count_by_activity(tx).await?;
            let messages = messages::count_waiting_messages(tx).await?;
            Ok((states, activities, messages, jobs::count_due_jobs(tx, steady).await?))
        })
        .await?;
    set_gauges(SANDBOXES, "state", SandboxState::ALL.iter().map(|it| it.as_str()), &states);
    set_gauges(SANDBOX_ACTIVITIES, "activity", Activity::ALL.iter().map(|it| it.as_str()), &activities);
    let waiting = [MessageState::Queued, MessageState::Leased];
    set_gauges(MESSAGES_WAITING, "state", waiting.into_iter().map(MessageState::as_str), &messages);
    set_gauges(JOBS_WAITING, "kind", JobKind::ALL.iter().map(|it| it.as_str()), &jobs);
    Ok(())
}

/// Sets the gauge of each value of a label. A value without a count is 0.
fn set_gauges<T: std::fmt::Display>(
    name: &'static str,
    label: &'static str,
    values: impl Iterator<Item = &'static str>,
    counts: &[(T, i64)],
) {
    for value in values {
        let count = counts.iter().find(|(found, _)| found.to_string() == value).map_or(0, |(_, count)| *count);
        #[allow(clippy::cast_precision_loss, reason = "a number of rows")]
        metrics::gauge!(name, label => value).set(count as f64);
    }
}
