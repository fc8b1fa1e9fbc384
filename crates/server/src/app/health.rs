//! Health checks and gauges that the database provides.

use crate::metrics::SANDBOXES;
use crate::problem::Result;
use crate::state::App;
use atoll_core::sandbox::SandboxState;
use atoll_store::{meta, sandboxes};
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

/// Sets the gauges of sandboxes by state and of the machine.
pub async fn update_gauges(app: &App) -> Result<()> {
    crate::host_load::update_gauges(&app.config.data_dir);
    let counts = app.read(async move |tx| Ok(sandboxes::count_by_state(tx).await?)).await?;
    for state in SandboxState::ALL {
        let count = counts.iter().find(|(found, _)| found == state).map_or(0, |(_, count)| *count);
        #[allow(clippy::cast_precision_loss, reason = "a number of sandboxes")]
        metrics::gauge!(SANDBOXES, "state" => state.as_str()).set(count as f64);
    }
    Ok(())
}
