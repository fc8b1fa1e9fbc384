//! The services of a sandbox: one task per service starts it, waits until it is ready and restarts it when it ends.

use crate::environment::Environment;
use crate::memory_counters::MemoryCounters;
use crate::spawner::{ProgramSpec, Spawner};
use atoll_api::events::{ServiceExited, ServiceFailed, ServiceReady, ServiceStarted, ServiceStopped};
use atoll_core::service::{Service, ServiceCommand};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

mod ready_check;
mod service_process;
mod service_task;

pub use ready_check::LOOPBACKS;
use service_task::ServiceTask;

/// Capacity of the channel of reports.
const MAX_WAITING_REPORTS: usize = 16;

/// What the tasks of services use.
#[derive(Debug, Clone)]
pub struct ServiceTools {
    pub spawner: Spawner,
    pub environment: Arc<Environment>,
    pub memory: Arc<MemoryCounters>,
    pub workspace: PathBuf,
}

impl ServiceTools {
    /// The program of a service's command, in the service's directory and environment.
    fn program(&self, service: &Service, command: &ServiceCommand) -> ProgramSpec {
        let directory = service.directory.as_deref().unwrap_or_default();
        ProgramSpec {
            argv: command.to_argv(),
            cwd: self.workspace.join(directory),
            env: self.environment.for_command(&service.env),
            kill_group_on_exit: true,
            terminal: None,
            files: Vec::new(),
        }
    }
}

/// A step of a service, as its event reports it.
#[derive(Debug)]
pub enum ServiceReport {
    Started(ServiceStarted),
    Ready(ServiceReady),
    Exited(ServiceExited),
    Stopped(ServiceStopped),
    Failed(ServiceFailed),
}

/// Running services. Dropping `stop` ends them; `reports` closes when all have ended.
#[derive(Debug)]
pub struct RunningServices {
    pub reports: mpsc::Receiver<ServiceReport>,
    pub stop: Option<watch::Sender<()>>,
}

/// Starts all services at the same time.
pub fn start_services(services: &[Service], tools: &ServiceTools) -> RunningServices {
    let (sender, reports) = mpsc::channel(MAX_WAITING_REPORTS);
    let (stop, stopped) = watch::channel(());
    for service in services {
        let (service, tools, reports) = (service.clone(), tools.clone(), sender.clone());
        tokio::spawn(ServiceTask { service, tools, reports, stop: stopped.clone() }.run());
    }
    RunningServices { reports, stop: Some(stop) }
}
