//! The state of a sandbox's services, derived from the worker's events.

use super::Service;
use crate::sandbox::SandboxState;
use crate::string_enum;
use serde::{Deserialize, Serialize};

string_enum! {
    /// State of a service.
    "service state"
    ServiceState {
        /// It is not ready yet.
        Starting = "starting",
        Ready = "ready",
        /// It ended, and the worker starts it again after a delay.
        Restarting = "restarting",
        /// The worker gave up.
        Failed = "failed",
        /// The worker ended it, or the sandbox ended.
        Stopped = "stopped",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServiceStatus {
    pub name: String,
    pub state: ServiceState,
    /// The port of its ready check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Number of restarts since the worker started, or since the last fork or snapshot.
    pub restarts: u32,
}

/// What a worker's event says about a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceChange {
    Started { restarts: u32 },
    Ready,
    Exited,
    Stopped,
    Failed,
}

/// The services of a new sandbox.
pub fn initial_statuses(services: &[Service]) -> Vec<ServiceStatus> {
    let status = |service: &Service| ServiceStatus {
        name: service.name.clone(),
        state: ServiceState::Starting,
        port: service.port(),
        restarts: 0,
    };
    services.iter().map(status).collect()
}

/// Applies an event. An event about a service that the sandbox does not have changes nothing.
pub fn apply_change(statuses: &mut [ServiceStatus], name: &str, change: ServiceChange) {
    let Some(status) = statuses.iter_mut().find(|status| status.name == name) else { return };
    status.state = match change {
        ServiceChange::Started { restarts } => {
            status.restarts = restarts;
            ServiceState::Starting
        }
        ServiceChange::Ready => ServiceState::Ready,
        ServiceChange::Exited => ServiceState::Restarting,
        ServiceChange::Stopped => ServiceState::Stopped,
        ServiceChange::Failed => ServiceState::Failed,
    };
}

/// Services end with their sandbox.
#[must_use]
pub fn statuses_in(state: SandboxState, mut statuses: Vec<ServiceStatus>) -> Vec<ServiceStatus> {
    if state.has_ended() {
        for status in statuses.iter_mut().filter(|status| status.state != ServiceState::Failed) {
            status.state = ServiceState::Stopped;
        }
    }
    statuses
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn follows_the_events_of_each_service() {
        let services = json!([
            {"name": "db", "command": "x", "ready": {"port": 5432}}, {"name": "queue", "command": "y"},
        ]);
        let services: Vec<Service> = serde_json::from_value(services).unwrap();
        let mut statuses = initial_statuses(&services);
        let table = [
            ("db", ServiceChange::Started { restarts: 0 }, ServiceState::Starting, 0),
            ("db", ServiceChange::Ready, ServiceState::Ready, 0),
            ("db", ServiceChange::Exited, ServiceState::Restarting, 0),
            ("db", ServiceChange::Started { restarts: 1 }, ServiceState::Starting, 1),
            ("db", ServiceChange::Ready, ServiceState::Ready, 1),
            ("db", ServiceChange::Stopped, ServiceState::Stopped, 1),
            ("db", ServiceChange::Started { restarts: 0 }, ServiceState::Starting, 0),
            ("db", ServiceChange::Failed, ServiceState::Failed, 0),
        ];
        for (name, change, state, restarts) in table {
            apply_change(&mut statuses, name, change);
            assert_eq!((statuses[0].state, statuses[0].restarts), (state, restarts), "{change:?}");
            assert_eq!((statuses[0].port, statuses[1].state), (Some(5432), ServiceState::Starting));
        }
        let before = statuses.clone();
        apply_change(&mut statuses, "unknown", ServiceChange::Ready);
        assert_eq!(statuses, before);
        assert_eq!(statuses_in(SandboxState::Running, before.clone()), before);
        let ended: Vec<_> = statuses_in(SandboxState::Completed, before).into_iter().map(|it| it.state).collect();
        assert_eq!(ended, [ServiceState::Failed, ServiceState::Stopped]);
    }
}
