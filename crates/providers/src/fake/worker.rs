//! The worker of a fake sandbox: the real dispatcher with its events in memory, a link in the server's process and an
//! executor that runs the demo agent.

use super::environment::SandboxRuntime;
use super::executor::{FakeExecutor, MAX_WAITING_PACKETS};
use super::fake_link::FakeLink;
use atoll_dispatcher::disk::Disk;
use atoll_dispatcher::program::{Program, ProgramOutput};
use atoll_dispatcher::{Behaviour, Exit, Worker};
use atoll_spool::journal::DeliveryJournal;
use atoll_spool::{MemoryQueue, SpoolStream};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use uuid::Uuid;

const BEHAVIOUR: Behaviour = Behaviour {
    messages: true,
    flush_timeout: None,
    stop_grace: Duration::from_secs(2),
    signal_grace: None,
    timer_origin: None,
};

/// Runs a worker to its end or until it crashes.
pub(super) async fn run_worker(link: FakeLink, runtime: Arc<SandboxRuntime>) {
    // Each sandbox has only one worker.
    let stream = SpoolStream { boot: 1, id: Uuid::now_v7() };
    let queue = MemoryQueue::new(stream);
    let (sender, orders) = mpsc::unbounded_channel();
    let (items, input) = mpsc::channel(MAX_WAITING_PACKETS);
    let (_no_signals, signals) = mpsc::channel(1);
    let sandbox = link.sandbox;
    let executor = FakeExecutor::new(runtime, orders, items);
    let worker = Worker {
        link: Arc::new(link.clone()),
        behaviour: BEHAVIOUR,
        stream,
        disk: Disk::in_memory(queue.clone()),
        outbox: Box::new(queue),
        journal: DeliveryJournal::default(),
        acknowledgements: Vec::new(),
    };
    let program = Program { input, output: ProgramOutput::Executor(sender) };
    tokio::select! {
        exit = atoll_dispatcher::run_worker(worker, program, signals) => match exit {
            Exit::Fenced { .. } | Exit::Refused { .. } => {
                tracing::warn!(%sandbox, %exit, "the server rejected a fake worker");
            }
            Exit::Done | Exit::NotFlushed { .. } => tracing::debug!(%sandbox, %exit, "a fake worker exited"),
        },
        () = executor.run() => tracing::debug!(%sandbox, "a fake worker crashed on request"),
        () = link.crash.notified() => tracing::debug!(%sandbox, "an injected fault crashed a fake worker"),
    }
}
