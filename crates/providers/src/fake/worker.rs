//! The worker of a fake sandbox: one task that speaks the worker's protocol without a wire.
//!
//! Heartbeats, leases, the way up and the agent run beside each other and end together, by
//! whichever ends first. What was emitted stays in the outbox until the server has it.

use super::desk::{BOOT, Desk, Mark, Parcel};
use super::faults::{Dice, FaultAt, Mishap};
use super::ground::Place;
use super::turn::Agent;
use atoll_core::event::kind;
use atoll_core::id::SandboxId;
use atoll_core::sandbox::{Activity, SandboxState};
use atoll_protocol::link::{LinkError, WorkerLink};
use atoll_protocol::{Heartbeat, HeartbeatAnswer, LeaseRequest, LeasedMessage};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const LEASE_WAIT_S: u32 = 20;
const LEASE_MAX: u32 = 10;
/// A server that answers "nothing" at once is not asked in a tight loop.
const LEASE_PAUSE: Duration = Duration::from_millis(200);
/// What was said before `crash` gets this long to leave.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How a worker's life ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// The server said that the sandbox has left `running`.
    Stopped(SandboxState),
    /// Without a word.
    Crashed,
    /// The server will have nothing more to do with this worker.
    Refused(String),
    /// All is sent.
    Left,
}

enum Trouble {
    /// Trying again is right.
    Later,
    Refused(String),
    Crash,
}

impl From<LinkError> for Trouble {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Unavailable(_) => Self::Later,
            refused @ LinkError::Refused { .. } => Self::Refused(refused.to_string()),
        }
    }
}

pub(super) struct Worker {
    pub(super) sandbox: SandboxId,
    pub(super) place: Arc<Place>,
    pub(super) link: Arc<dyn WorkerLink>,
    pub(super) dice: Arc<Dice>,
    pub(super) desk: Desk,
}

impl Worker {
    pub(super) async fn run(self) {
        let end = match self.live().await {
            End::Stopped(state) => self.leave(state).await,
            other => other,
        };
        match end {
            End::Refused(why) => {
                tracing::warn!(sandbox = %self.sandbox, why, "a fake worker was refused by the server and ended");
            }
            end => tracing::debug!(sandbox = %self.sandbox, ?end, "a fake worker ended"),
        }
    }

    async fn live(&self) -> End {
        let (prompt, interval) = match self.greet().await {
            Ok(greeted) => greeted,
            Err(end) => return end,
        };
        let agent = Agent::new(&self.desk, &self.place);
        tokio::select! {
            biased;
            end = self.heartbeats(interval) => end,
            end = self.leases() => end,
            end = self.uplink() => end,
            () = agent.run(prompt) => {
                let _ = tokio::time::timeout(LAST_WORDS, self.uplink_until_sent()).await;
                End::Crashed
            }
        }
    }

    async fn uplink_until_sent(&self) {
        tokio::select! {
            _ = self.uplink() => {}
            () = self.desk.all_sent() => {}
        }
    }

    /// The first heartbeat, again until its answer says what to begin with.
    async fn greet(&self) -> Result<(Option<LeasedMessage>, Duration), End> {
        let mut backoff = Backoff::default();
        loop {
            match self.beat().await {
                Ok(answer) if is_ending(answer.state) => return Err(End::Stopped(answer.state)),
                Ok(HeartbeatAnswer { start: Some(start), interval_s, .. }) => {
                    self.desk.activity.send_replace(Activity::WaitingMessage);
                    return Ok((start.prompt, interval(interval_s)));
                }
                Ok(HeartbeatAnswer { start: None, .. }) | Err(Trouble::Later) => backoff.wait(&self.dice).await,
                Err(Trouble::Refused(why)) => return Err(End::Refused(why)),
                Err(Trouble::Crash) => return Err(End::Crashed),
            }
        }
    }

    async fn heartbeats(&self, mut every: Duration) -> End {
        let mut backoff = Backoff::default();
        loop {
            tokio::select! {
                () = tokio::time::sleep(every) => {}
                () = self.desk.poke.notified() => {}
            }
            loop {
                match self.beat().await {
                    Ok(answer) if is_ending(answer.state) => return End::Stopped(answer.state),
                    Ok(answer) => {
                        every = interval(answer.interval_s);
                        backoff = Backoff::default();
                        break;
                    }
                    Err(Trouble::Later) => backoff.wait(&self.dice).await,
                    Err(Trouble::Refused(why)) => return End::Refused(why),
                    Err(Trouble::Crash) => return End::Crashed,
                }
            }
        }
    }

    async fn beat(&self) -> Result<HeartbeatAnswer, Trouble> {
        #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
        let bytes = crate::locked(&self.place.ground.tree).bytes() as f64;
        let heartbeat = Heartbeat {
            stream: self.desk.stream,
            boot: Some(BOOT),
            protocol: atoll_protocol::VERSION,
            at: self.desk.now(),
            last_key: self.desk.last_key(),
            activity: *self.desk.activity.borrow(),
            cpu: None,
            memory: None,
            disk: Some(bytes),
        };
        self.call(FaultAt::Heartbeat, || self.link.heartbeat(self.sandbox, &heartbeat)).await
    }

    /// Keeps one long question for messages open, which also renews what waits here for its turn.
    async fn leases(&self) -> End {
        let mut backoff = Backoff::default();
        loop {
            // It can't fail: the desk holds the sender.
            let _ = self.desk.listening.subscribe().wait_for(|listening| *listening).await;
            self.place.ground.thawed().await;
            let request = LeaseRequest {
                stream: self.desk.stream,
                boot: Some(BOOT),
                max: LEASE_MAX,
                wait_s: LEASE_WAIT_S,
                renew: self.desk.leases(),
            };
            match self.link.lease(self.sandbox, &request).await {
                Ok(answer) => {
                    backoff = Backoff::default();
                    let nothing = answer.items.is_empty();
                    if answer.state.is_some() {
                        // The sandbox is ending: the heartbeat's answer says how.
                        self.desk.poke.notify_one();
                    }
                    self.desk.take_in(answer);
                    if nothing {
                        tokio::time::sleep(LEASE_PAUSE).await;
                    }
                }
                Err(LinkError::Unavailable(_)) => backoff.wait(&self.dice).await,
                Err(LinkError::Refused { .. }) => {
                    // Perhaps the sandbox has ended: the heartbeat's answer says.
                    self.desk.poke.notify_one();
                    backoff.wait(&self.dice).await;
                }
            }
        }
    }

    /// Sends what is in the outbox, in order, each thing again until it is settled.
    async fn uplink(&self) -> End {
        let mut backoff = Backoff::default();
        loop {
            let parcel = self.desk.next_parcel().await;
            let sent = match &parcel {
                Parcel::Batch { batch, .. } => {
                    self.call(FaultAt::Event, || self.link.events(self.sandbox, batch)).await.map(drop)
                }
                Parcel::Ack(id, ack) => self.call(FaultAt::Ack, || self.link.ack(self.sandbox, *id, ack)).await,
                Parcel::Nack(id, nack) => self.call(FaultAt::Ack, || self.link.nack(self.sandbox, *id, nack)).await,
            };
            let mark = match (sent, &parcel) {
                (Ok(()), Parcel::Batch { mark, .. }) => *mark,
                (Ok(()), Parcel::Ack(..) | Parcel::Nack(..)) => None,
                // The message is somebody else's by now: there is nothing to say again.
                (Err(Trouble::Refused(why)), Parcel::Ack(..) | Parcel::Nack(..)) => {
                    tracing::debug!(sandbox = %self.sandbox, why, "a fake worker's receipt was refused");
                    None
                }
                (Err(Trouble::Refused(why)), Parcel::Batch { .. }) => return End::Refused(why),
                (Err(Trouble::Crash), _) => return End::Crashed,
                (Err(Trouble::Later), _) => {
                    backoff.wait(&self.dice).await;
                    continue;
                }
            };
            backoff = Backoff::default();
            self.desk.settle(&parcel);
            match mark {
                Some(Mark::Last) => return End::Left,
                Some(Mark::TurnEnds) => self.desk.poke.notify_one(),
                None => {}
            }
        }
    }

    /// The agent is stopped already; what is left goes up, then nothing more.
    async fn leave(&self, state: SandboxState) -> End {
        self.place.table.kill_all();
        self.desk.give_back();
        self.desk.emit_last(kind::AGENT_SHUTDOWN, &json!({"reason": format!("the sandbox is {state}")}));
        self.uplink().await
    }

    /// One call, with what its dice make of it. Nothing is said while the sandbox is frozen.
    async fn call<T, F>(&self, at: FaultAt, make: impl Fn() -> F) -> Result<T, Trouble>
    where
        F: Future<Output = Result<T, LinkError>>,
    {
        self.place.ground.thawed().await;
        match self.dice.roll(at) {
            None => {}
            Some(Mishap::Fail | Mishap::Drop) => return Err(Trouble::Later),
            Some(Mishap::Delay(span)) => tokio::time::sleep(span).await,
            Some(Mishap::Duplicate) => drop(make().await),
            Some(Mishap::Crash) => return Err(Trouble::Crash),
        }
        Ok(make().await?)
    }
}

fn interval(seconds: u32) -> Duration {
    Duration::from_secs(seconds.max(1).into())
}

const fn is_ending(state: SandboxState) -> bool {
    match state {
        SandboxState::Pending | SandboxState::Creating | SandboxState::Running => false,
        SandboxState::Completing | SandboxState::Completed | SandboxState::Failed => true,
    }
}

/// 100 ms, doubled up to about 5 s, with jitter.
#[derive(Default)]
struct Backoff(u32);

impl Backoff {
    async fn wait(&mut self, dice: &Dice) {
        let span = Duration::from_millis(100 << self.0.min(6)).min(Duration::from_secs(5));
        self.0 += 1;
        tokio::time::sleep(span.mul_f64(0.5 + dice.jitter() / 2.0)).await;
    }
}
