//! The life of one service: start, ready, exit, restart.

use super::ready_check::wait_until_ready;
use super::service_process::ServiceProcess;
use super::{ServiceReport, ServiceTools};
use atoll_api::events::{ServiceExited, ServiceFailed, ServiceFailure, ServiceReady, ServiceStarted, ServiceStopped};
use atoll_core::provider::CommandExit;
use atoll_core::service::restart::{MAX_RESTARTS, RESTART_WINDOW, RestartHistory};
use atoll_core::service::{ReadyCheck, Service};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

pub(super) struct ServiceTask {
    pub service: Service,
    pub tools: ServiceTools,
    pub reports: mpsc::Sender<ServiceReport>,
    /// Closes when the service must end.
    pub stop: watch::Receiver<()>,
}

/// The end of one run of the service.
struct RunEnd {
    exit: Option<CommandExit>,
    detail: String,
    tail: String,
    was_ready: bool,
    /// `NotReady` if it still ran.
    failure: ServiceFailure,
}

impl ServiceTask {
    pub(super) async fn run(mut self) {
        let (origin, mut history) = (Instant::now(), RestartHistory::default());
        let (mut restarts, mut was_ready) = (0, false);
        // `None`: the sandbox stops its services.
        while let Some(end) = self.run_once(restarts).await {
            was_ready |= end.was_ready;
            if !was_ready {
                return self.report_failure(end.failure, end).await;
            }
            let Some(delay) = history.plan_restart(origin.elapsed()) else {
                let minutes = RESTART_WINDOW.as_secs() / 60;
                let detail = format!("{}; it ended more than {MAX_RESTARTS} times in {minutes} minutes", end.detail);
                return self.report_failure(ServiceFailure::TooManyRestarts, RunEnd { detail, ..end }).await;
            };
            let RunEnd { exit, detail, tail, .. } = end;
            let (name, restart_s) = (self.service.name.clone(), delay.as_secs_f64());
            self.report(ServiceReport::Exited(ServiceExited { name, exit, detail, tail, restart_s })).await;
            tokio::select! {
                () = sleep(delay) => {}
                _ = self.stop.changed() => return self.report_stop().await,
            }
            restarts += 1;
        }
    }

    /// Runs the service until it ends; `None` if it was stopped.
    async fn run_once(&mut self, restarts: u32) -> Option<RunEnd> {
        let started = Instant::now();
        let program = self.tools.program(&self.service, &self.service.command);
        let mut process = match ServiceProcess::start(&self.tools, program).await {
            Ok(process) => process,
            Err(error) => {
                let (detail, failure) = (error.to_string(), ServiceFailure::NotStarted);
                return Some(RunEnd { exit: None, detail, tail: String::new(), was_ready: false, failure });
            }
        };
        let (name, port) = (self.service.name.clone(), self.service.port());
        self.report(ServiceReport::Started(ServiceStarted { name: name.clone(), port, restarts })).await;
        let (service, tools) = (self.service.clone(), self.tools.clone());
        let ready = wait_until_ready(&service, &tools);
        tokio::pin!(ready);
        let (deadline, mut is_ready) = (started + service.ready_timeout(), false);
        loop {
            tokio::select! {
                _ = process.wait_for_exit() => break,
                () = &mut ready, if !is_ready => {
                    is_ready = true;
                    let seconds = round_millis(started.elapsed().as_secs_f64());
                    self.report(ServiceReport::Ready(ServiceReady { name: name.clone(), seconds })).await;
                }
                () = sleep_until(deadline), if !is_ready => {
                    let (detail, tail) = (describe_timeout(&service), process.tail());
                    process.kill().await;
                    let failure = ServiceFailure::NotReady;
                    return Some(RunEnd { exit: None, detail, tail, was_ready: false, failure });
                }
                _ = self.stop.changed() => {
                    process.stop().await;
                    self.report_stop().await;
                    return None;
                }
            }
        }
        let (exit, tail) = (process.exit(), process.tail());
        let detail = describe_exit(exit, is_ready);
        Some(RunEnd { exit: Some(exit), detail, tail, was_ready: is_ready, failure: ServiceFailure::NotStarted })
    }

    async fn report_stop(&self) {
        self.report(ServiceReport::Stopped(ServiceStopped { name: self.service.name.clone() })).await;
    }

    async fn report_failure(&self, reason: ServiceFailure, end: RunEnd) {
        let (name, RunEnd { exit, detail, tail, .. }) = (self.service.name.clone(), end);
        self.report(ServiceReport::Failed(ServiceFailed { name, reason, detail, exit, tail })).await;
    }

    async fn report(&self, report: ServiceReport) {
        // Without a receiver, the worker exits.
        drop(self.reports.send(report).await);
    }
}

fn round_millis(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

fn describe_timeout(service: &Service) -> String {
    let seconds = service.ready_timeout().as_secs();
    match &service.ready {
        Some(ReadyCheck::Port(port)) => format!("accepted no connection on port {port} within {seconds} s"),
        Some(ReadyCheck::Command(command)) => {
            format!("its ready check `{}` did not pass within {seconds} s", command.describe())
        }
        None => format!("was not ready within {seconds} s"),
    }
}

fn describe_exit(exit: CommandExit, was_ready: bool) -> String {
    let how = match exit {
        CommandExit::Exited { code } => format!("exited with code {code}"),
        CommandExit::Signalled { signal } => format!("was killed by signal {signal}"),
        CommandExit::OutOfMemory => "was killed because the sandbox's memory ran out".to_owned(),
        CommandExit::TimedOut | CommandExit::Unknown => "ended for an unknown reason".to_owned(),
    };
    if was_ready { how } else { format!("{how} before it was ready") }
}
