//! The way of a fake worker to the server: calls in the same process, with injected faults. All calls wait while the
//! sandbox is frozen.

use super::FaultPoint;
use super::environment::Environment;
use super::faults::{FaultSource, InjectedFault};
use atoll_core::BoxFuture;
use atoll_core::id::SandboxId;
use atoll_dispatcher::link::backoff::Backoff;
use atoll_dispatcher::link::downlink::{DownlinkChannels, DownlinkReport, wait_for_leaving};
use atoll_dispatcher::link::{LinkRequest, Problem, Reply, RequestSender, Resources, ServerLink};
use atoll_protocol::LeaseRequest;
use atoll_protocol::link::{LinkError, WorkerLink};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

const LEASE_WAIT_SECONDS: u32 = 20;
const MAX_LEASED_MESSAGES: u32 = 10;
/// Delay between empty responses, to avoid a tight loop.
const EMPTY_LEASE_DELAY: Duration = Duration::from_millis(200);

#[derive(Clone)]
pub(super) struct FakeLink {
    pub sandbox: SandboxId,
    pub server: Arc<dyn WorkerLink>,
    pub faults: Arc<FaultSource>,
    pub environment: Arc<Environment>,
    /// Signals that an injected fault crashes the worker.
    pub crash: Arc<Notify>,
}

impl FakeLink {
    /// Makes one call with injected faults.
    async fn call<T: Serialize, F>(&self, at: FaultPoint, make: impl Fn() -> F) -> Reply
    where
        F: Future<Output = Result<T, LinkError>>,
    {
        self.environment.wait_until_thawed().await;
        match self.faults.draw_fault(at) {
            None => {}
            Some(InjectedFault::Fail | InjectedFault::Drop | InjectedFault::Exhaust) => {
                return Reply::later("an injected fault".to_owned());
            }
            Some(InjectedFault::Delay(span)) => tokio::time::sleep(span).await,
            Some(InjectedFault::Duplicate) => drop(make().await),
            Some(InjectedFault::Crash) => {
                self.crash.notify_one();
                std::future::pending::<()>().await;
            }
        }
        match make().await {
            Ok(answer) => match serde_json::to_vec(&answer) {
                Ok(body) => Reply::Ok(body.into()),
                Err(error) => Reply::later(error.to_string()),
            },
            Err(LinkError::Unavailable(why)) => Reply::later(why),
            Err(LinkError::Rejected { code, detail }) => {
                Reply::from_problem(Problem { code, detail, ..Problem::default() }, None)
            }
        }
    }

    /// Keeps one lease request open, which also renews the leases of unacknowledged messages.
    async fn serve_downlink(self, mut channels: DownlinkChannels) {
        if !channels.wait_until_registered().await {
            return;
        }
        let (mut backoff, mut phase, stream) = (self.new_backoff(), channels.phase.clone(), channels.stream);
        loop {
            self.environment.wait_until_thawed().await;
            let renew = channels.leases.borrow().ids.clone();
            let (stream, boot) = (stream.id, Some(stream.boot));
            let request = LeaseRequest { stream, boot, max: MAX_LEASED_MESSAGES, wait_s: LEASE_WAIT_SECONDS, renew };
            let answer = tokio::select! {
                answer = self.server.lease_messages(self.sandbox, &request) => answer,
                () = wait_for_leaving(&mut phase) => return,
            };
            let Ok(answer) = answer else {
                // The sandbox may have ended; the response to a heartbeat tells.
                backoff.wait(None).await;
                continue;
            };
            backoff.reset();
            let is_empty = answer.items.is_empty();
            let messages = answer.items.into_iter().map(|message| DownlinkReport::Message(Box::new(message)));
            for report in messages.chain(answer.state.map(DownlinkReport::Stop)) {
                if !channels.report(report).await {
                    return;
                }
            }
            if is_empty {
                tokio::time::sleep(EMPTY_LEASE_DELAY).await;
            }
        }
    }
}

impl ServerLink for FakeLink {
    fn open_client(&self) -> Box<dyn RequestSender> {
        Box::new(self.clone())
    }

    fn run_downlink(&self, channels: DownlinkChannels) -> BoxFuture<'static, ()> {
        Box::pin(self.clone().serve_downlink(channels))
    }

    fn read_resources(&self) -> Resources {
        #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
        let bytes = crate::lock_state(&self.environment.tree).bytes() as f64;
        Resources { disk: Some(bytes), ..Resources::default() }
    }

    fn new_backoff(&self) -> Backoff {
        Backoff::seeded(self.faults.backoff_seed())
    }
}

impl RequestSender for FakeLink {
    fn send<'a>(&'a mut self, request: LinkRequest<'a>) -> BoxFuture<'a, Reply> {
        let link = &*self;
        let (server, sandbox) = (&link.server, link.sandbox);
        Box::pin(async move {
            match request {
                LinkRequest::Heartbeat(heartbeat) => {
                    link.call(FaultPoint::Heartbeat, || server.send_heartbeat(sandbox, heartbeat)).await
                }
                LinkRequest::Events(batch) => link.call(FaultPoint::Event, || server.send_events(sandbox, batch)).await,
                LinkRequest::Blob { sha256, content } => {
                    link.call(FaultPoint::Event, || server.send_blob(sandbox, sha256, content.clone())).await
                }
                LinkRequest::Ack(id, ack) => link.call(FaultPoint::Ack, || server.send_ack(sandbox, id, ack)).await,
                LinkRequest::Nack(id, nack) => link.call(FaultPoint::Ack, || server.send_nack(sandbox, id, nack)).await,
            }
        })
    }
}
