//! The services of a sandbox: the check of a plan, and their state.

use super::Work;
use crate::problem::{Code, Problem, Result};
use atoll_api::events::{ServiceExited, ServiceFailed, ServiceReady, ServiceStarted, ServiceStopped};
use atoll_core::event::{NewEvent, kind};
use atoll_core::id::SandboxId;
use atoll_core::provider::Capabilities;
use atoll_core::sandbox::{ProviderKind, SandboxState, Settings};
use atoll_core::service::Service;
use atoll_core::service::status::{ServiceChange, ServiceStatus, apply_change, initial_statuses, statuses_in};
use atoll_store::sandboxes::SandboxRow;
use atoll_store::{Tx, services};

/// Refuses services where Atoll's own worker does not run: nothing would start them.
pub fn check_support(services: &[Service], provider: ProviderKind, capabilities: &Capabilities) -> Result<()> {
    if services.is_empty() || capabilities.runs_agents() {
        return Ok(());
    }
    let detail = format!(
        "services: the provider {provider} runs no services; choose local or docker, or send an empty list of services"
    );
    Err(Problem::new(Code::ProviderUnsupported, detail))
}

/// Updates the state of the service that a worker's event names.
pub async fn observe_event(work: &mut Work<'_>, sandbox: &SandboxRow, event: &NewEvent) -> Result<()> {
    let Some((name, change)) = parse_change(event) else { return Ok(()) };
    if !sandbox.settings.services.iter().any(|service| service.name == name) {
        return Ok(());
    }
    let mut statuses = load_stored(work.tx, sandbox.id, &sandbox.settings).await?;
    apply_change(&mut statuses, &name, change);
    Ok(services::put_service_statuses(work.tx, sandbox.id, &statuses).await?)
}

fn parse_change(event: &NewEvent) -> Option<(String, ServiceChange)> {
    let data = event.data.get();
    match event.event_type.as_str() {
        kind::SERVICE_STARTED => {
            let ServiceStarted { name, restarts, .. } = serde_json::from_str(data).ok()?;
            Some((name, ServiceChange::Started { restarts }))
        }
        kind::SERVICE_READY => Some((serde_json::from_str::<ServiceReady>(data).ok()?.name, ServiceChange::Ready)),
        kind::SERVICE_EXITED => Some((serde_json::from_str::<ServiceExited>(data).ok()?.name, ServiceChange::Exited)),
        kind::SERVICE_FAILED => Some((serde_json::from_str::<ServiceFailed>(data).ok()?.name, ServiceChange::Failed)),
        kind::SERVICE_STOPPED => {
            Some((serde_json::from_str::<ServiceStopped>(data).ok()?.name, ServiceChange::Stopped))
        }
        _ => None,
    }
}

async fn load_stored(tx: &mut dyn Tx, sandbox: SandboxId, settings: &Settings) -> Result<Vec<ServiceStatus>> {
    let stored = services::find_service_statuses(tx, sandbox).await?;
    Ok(stored.unwrap_or_else(|| initial_statuses(&settings.services)))
}

/// The services of a sandbox in this state.
pub async fn load_statuses(
    tx: &mut dyn Tx,
    sandbox: SandboxId,
    state: SandboxState,
    settings: &Settings,
) -> Result<Vec<ServiceStatus>> {
    if settings.services.is_empty() {
        return Ok(Vec::new());
    }
    Ok(statuses_in(state, load_stored(tx, sandbox, settings).await?))
}
