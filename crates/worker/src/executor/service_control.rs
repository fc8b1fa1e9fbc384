//! Runs the sandbox's services: the agent's first prompt waits until all of them are ready.

use super::{Executor, agent_exit};
use crate::services::{RunningServices, ServiceReport, ServiceTools, start_services};
use atoll_api::events::{EventData, SandboxNotice, ServiceFailed};
use atoll_core::service::Service;
use std::collections::BTreeSet;
use tokio::time::Instant;

#[derive(Debug, Default)]
pub(super) struct ServiceControl {
    services: Vec<Service>,
    running: Option<RunningServices>,
    /// Services that the next prompt waits for.
    pending: BTreeSet<String>,
    /// Report that the agent waits for a message once the services are ready.
    announces_waiting: bool,
}

impl ServiceControl {
    /// True while a prompt must wait for a service.
    pub(super) fn is_starting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// True if no process of a service runs.
    pub(super) const fn are_stopped(&self) -> bool {
        self.running.is_none()
    }

    fn is_stopping(&self) -> bool {
        self.running.as_ref().is_none_or(|running| running.stop.is_none())
    }

    /// Ends all services.
    pub(super) fn stop(&mut self) {
        if let Some(running) = &mut self.running {
            running.stop = None;
        }
    }

    /// Waits for the next report; `None` when all services have ended. Cancel-safe.
    pub(super) async fn next_report(&mut self) -> Option<ServiceReport> {
        match &mut self.running {
            Some(running) => {
                let report = running.reports.recv().await;
                if report.is_none() {
                    self.running = None;
                }
                report
            }
            None => std::future::pending().await,
        }
    }
}

impl Executor {
    /// Takes the services from the start instructions and starts them.
    pub(super) fn set_services(&mut self, services: Vec<Service>, has_prompt: bool) {
        self.services.services = services;
        self.services.announces_waiting = !has_prompt;
        self.start_services();
    }

    /// Starts all services, also after a quiesced sandbox resumes.
    pub(super) fn start_services(&mut self) {
        let services = &mut self.services;
        if services.services.is_empty() {
            return;
        }
        let tools = ServiceTools {
            spawner: self.tools.spawner.clone(),
            environment: self.tools.environment.clone(),
            memory: self.tools.memory.clone(),
            workspace: self.tools.workspace.clone(),
        };
        services.pending = services.services.iter().map(|service| service.name.clone()).collect();
        services.running = Some(start_services(&services.services, &tools));
    }

    pub(super) fn handle_service_report(&mut self, report: Option<ServiceReport>) {
        match report {
            Some(ServiceReport::Started(data)) => self.emit_worker_event(&EventData::ServiceStarted(data)),
            Some(ServiceReport::Ready(data)) => {
                let was_pending = self.services.pending.remove(&data.name);
                self.emit_worker_event(&EventData::ServiceReady(data));
                if was_pending && !self.services.is_starting() {
                    self.announce_waiting();
                }
            }
            Some(ServiceReport::Exited(data)) => self.emit_worker_event(&EventData::ServiceExited(data)),
            Some(ServiceReport::Stopped(data)) => self.emit_worker_event(&EventData::ServiceStopped(data)),
            Some(ServiceReport::Failed(data)) => {
                let is_first_start = self.services.pending.contains(&data.name);
                self.emit_worker_event(&EventData::ServiceFailed(data.clone()));
                // A sandbox without an agent is for commands, which can find out what the service lacks.
                if is_first_start && self.launch.driver.is_some() {
                    self.report_service_failure(&data);
                } else if !self.services.is_stopping() {
                    let text = format!("The sandbox continues without the service {}: {}.", data.name, data.detail);
                    self.emit_worker_event(&EventData::SandboxNotice(SandboxNotice { text, routine: false }));
                }
            }
            None => {}
        }
    }

    fn announce_waiting(&mut self) {
        let announces = std::mem::take(&mut self.services.announces_waiting);
        if announces && self.launch.driver.is_some() && self.conversation.is_waiting() {
            self.next_turn.waiting_due = Some(Instant::now());
        }
    }

    /// Ends the run: the agent would work without a service that it needs.
    fn report_service_failure(&mut self, failed: &ServiceFailed) {
        self.services.stop();
        self.services.pending.clear();
        self.emit_event(&EventData::AgentFailed(agent_exit::service_failure_data(failed)));
        self.conversation.end_conversation();
    }
}
