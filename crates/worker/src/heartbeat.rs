//! A sign of life, from a task of its own: nothing that the program does can hold it up.

use crate::Exit;
use crate::backoff::Backoff;
use crate::dispatcher::Report as Outward;
use crate::link::{Client, Reply};
use crate::resources::Resources;
use crate::spool::Stream;
use crate::uplink::Durable;
use atoll_core::sandbox::{Activity, SandboxState};
use atoll_core::time::{Clock, SystemClock};
use atoll_protocol::{Heartbeat, LeasedMessage, VERSION};
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

/// Between two heartbeats at least, also when the activity changes all the time.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);
/// Between heartbeats while the server has not told how to start.
const NOT_STARTED: Duration = Duration::from_secs(5);

/// As much of `HeartbeatAnswer` as this worker needs. It runs no agent, so settings that only a
/// newer worker understands must not keep it from starting.
#[derive(Debug, Clone, Deserialize)]
pub struct Answer {
    pub state: SandboxState,
    pub interval_s: u32,
    #[serde(default)]
    pub start: Option<Start>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Start {
    /// The first message, leased to this worker.
    #[serde(default)]
    pub prompt: Option<LeasedMessage>,
}

#[derive(Debug)]
pub enum Report {
    Answered(Box<Answer>),
    Ended(Exit),
}

pub struct Beater {
    pub stream: Stream,
    pub spool: PathBuf,
    pub client: Client,
    pub activity: watch::Receiver<Activity>,
    pub durable: watch::Receiver<Durable>,
    pub reports: mpsc::Sender<Outward>,
}

impl Beater {
    pub async fn run(mut self) {
        let clock = SystemClock::start();
        let mut backoff = Backoff::default();
        let mut started = false;
        loop {
            let sent = Instant::now();
            let heartbeat = self.heartbeat(started, &clock);
            match self.client.post("heartbeat", &heartbeat).await {
                Reply::Ok(body) => match serde_json::from_slice::<Answer>(&body) {
                    Ok(answer) => {
                        backoff.reset();
                        // A sandbox that is ending starts nothing any more.
                        started |= answer.start.is_some() || !answer.state.takes_messages();
                        let interval = Duration::from_secs(u64::from(answer.interval_s)).clamp(SHORTEST, LONGEST);
                        if !self.report(Report::Answered(Box::new(answer))).await {
                            return;
                        }
                        let interval = if started { interval } else { interval.min(NOT_STARTED) };
                        self.pause(sent, interval).await;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the answer to a heartbeat can't be read");
                        backoff.wait(None).await;
                    }
                },
                Reply::Later { why, after } => {
                    tracing::warn!(why, "a heartbeat did not reach the server");
                    backoff.wait(after).await;
                }
                Reply::Fenced(problem) => {
                    self.report(Report::Ended(Exit::Fenced { detail: problem.to_string() })).await;
                    return;
                }
                Reply::KeyGap { .. } => backoff.wait(None).await,
                Reply::Unauthorized(problem) | Reply::Refused(problem) | Reply::TooLarge(problem) => {
                    self.report(Report::Ended(Exit::Refused { detail: problem.to_string() })).await;
                    return;
                }
            }
        }
    }

    fn heartbeat(&mut self, started: bool, clock: &SystemClock) -> Heartbeat {
        let resources = Resources::read(&self.spool);
        let activity = *self.activity.borrow_and_update();
        Heartbeat {
            stream: self.stream.id,
            boot: Some(self.stream.boot),
            protocol: VERSION,
            at: clock.now(),
            last_key: self.durable.borrow().last_key,
            activity: if started { activity } else { Activity::Starting },
            cpu: resources.cpu,
            memory: resources.memory,
            disk: resources.disk,
        }
    }

    async fn report(&self, report: Report) -> bool {
        self.reports.send(Outward::Heartbeat(report)).await.is_ok()
    }

    /// Until the next one is due, or there is something new to tell.
    async fn pause(&mut self, sent: Instant, interval: Duration) {
        tokio::select! {
            () = sleep_until(sent + interval) => {}
            changed = self.activity.changed() => match changed {
                Ok(()) => sleep_until(sent + SHORTEST).await,
                Err(_) => sleep(interval).await,
            },
        }
    }
}
