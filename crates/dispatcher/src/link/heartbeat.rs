//! Heartbeats: sent by a task of its own, so that nothing the program does can delay them.

use crate::Exit;
use crate::link::uplink::Durable;
use crate::link::{LinkReport, LinkRequest, Reply, ServerLink};
use atoll_core::sandbox::{Activity, SandboxState};
use atoll_core::time::{Clock, SystemClock};
use atoll_drivers::{AcpLaunch, AgentSettings};
use atoll_protocol::{Gateway, Heartbeat, HomeFile, LeasedMessage, PROTOCOL_VERSION, Resume};
use atoll_spool::SpoolStream;
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

/// Minimum time between two heartbeats, even if the activity changes all the time.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
const MAX_INTERVAL: Duration = Duration::from_secs(300);
/// Maximum interval until the server has sent `start`.
const START_INTERVAL: Duration = Duration::from_secs(5);
/// Deadlines at multiples of this after the runtime's start wake the processor once.
///
/// Tokio's timer wheel keeps far deadlines in coarse slots and wakes up at each slot boundary (4 s and 64 ms before the
/// deadline) to sort them again. A deadline on a boundary of all levels needs no such wake-up.
const TIMER_WHEEL_PERIOD: Duration = Duration::from_millis(1 << 15);

/// The part of `HeartbeatAnswer` that this worker uses; fields of a newer server do not keep it from starting.
#[derive(Debug, Clone, Deserialize)]
pub struct HeartbeatReply {
    pub state: SandboxState,
    pub interval_s: u32,
    #[serde(default)]
    pub start: Option<Start>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub struct Start {
    #[serde(default)]
    pub agent: Option<String>,
    /// The first message, leased to this worker.
    #[serde(default)]
    pub prompt: Option<LeasedMessage>,
    #[serde(default)]
    pub settings: AgentSettings,
    #[serde(default)]
    pub resume: Option<Resume>,
    /// Path of the agent's program in the sandbox.
    #[serde(default)]
    pub program: Option<PathBuf>,
    #[serde(default)]
    pub gateway: Option<Gateway>,
    /// The launch settings of an agent that the server's configuration names.
    #[serde(default)]
    pub acp: Option<AcpLaunch>,
    #[serde(default)]
    pub project_id: Option<String>,
    /// The server's URL.
    #[serde(default)]
    pub callback_url: Option<String>,
    /// Files to write before anything else.
    #[serde(default)]
    pub files: Vec<HomeFile>,
}

/// The agent's activity, and the key of the last event before it began.
#[derive(Debug, Clone, Copy)]
pub struct ActivitySince {
    pub activity: Activity,
    pub after_key: i64,
}

#[derive(Debug)]
pub enum HeartbeatReport {
    Answered(Box<HeartbeatReply>),
    Ended(Exit),
}

pub struct HeartbeatSender {
    pub stream: SpoolStream,
    pub link: Arc<dyn ServerLink>,
    pub activity: watch::Receiver<ActivitySince>,
    pub durable: watch::Receiver<Durable>,
    pub reports: mpsc::Sender<LinkReport>,
    /// Start of the runtime's clock, for workers that align heartbeats with the timer wheel.
    pub timer_origin: Option<Instant>,
}

impl HeartbeatSender {
    pub async fn run(mut self) {
        let clock = SystemClock::start();
        let (mut client, mut backoff) = (self.link.open_client(), self.link.new_backoff());
        let mut started = false;
        loop {
            let sent = Instant::now();
            let heartbeat = self.next_heartbeat(started, &clock);
            match client.send(LinkRequest::Heartbeat(&heartbeat)).await {
                Reply::Ok(body) => match serde_json::from_slice::<HeartbeatReply>(&body) {
                    Ok(reply) => {
                        backoff.reset();
                        // A sandbox that is ending does not start an agent.
                        started |= reply.start.is_some() || !reply.state.accepts_messages();
                        let interval = Duration::from_secs(u64::from(reply.interval_s));
                        let interval = interval.clamp(MIN_INTERVAL, MAX_INTERVAL);
                        if !self.report(HeartbeatReport::Answered(Box::new(reply))).await {
                            return;
                        }
                        self.wait_until_due(sent, if started { interval } else { interval.min(START_INTERVAL) }).await;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "failed to parse the reply to a heartbeat");
                        backoff.wait(None).await;
                    }
                },
                Reply::Later { why, after } => {
                    tracing::warn!(why, "failed to send a heartbeat; retrying");
                    backoff.wait(after).await;
                }
                Reply::Fenced(problem) => {
                    self.report(HeartbeatReport::Ended(Exit::Fenced { detail: problem.to_string() })).await;
                    return;
                }
                Reply::KeyGap { .. } => backoff.wait(None).await,
                Reply::Unauthorized(problem) | Reply::Refused(problem) | Reply::TooLarge(problem) => {
                    self.report(HeartbeatReport::Ended(Exit::Refused { detail: problem.to_string() })).await;
                    return;
                }
            }
        }
    }

    fn next_heartbeat(&mut self, started: bool, clock: &SystemClock) -> Heartbeat {
        let resources = self.link.read_resources();
        let ActivitySince { activity, after_key } = *self.activity.borrow_and_update();
        Heartbeat {
            stream: self.stream.id,
            boot: Some(self.stream.boot),
            protocol: PROTOCOL_VERSION,
            at: clock.now(),
            // The activity is true once the server has the events up to this key.
            last_key: self.durable.borrow().last_key.max(after_key),
            activity: if started { activity } else { Activity::Starting },
            cpu: resources.cpu,
            memory: resources.memory,
            disk: resources.disk,
        }
    }

    async fn report(&self, report: HeartbeatReport) -> bool {
        self.reports.send(LinkReport::Heartbeat(report)).await.is_ok()
    }

    /// Returns when the next heartbeat is due or the activity has changed.
    async fn wait_until_due(&mut self, sent: Instant, interval: Duration) {
        let due = sent + interval;
        let origin = self.timer_origin.filter(|_| interval >= TIMER_WHEEL_PERIOD / 2);
        let due = origin.map_or(due, |origin| align_to_timer_wheel(origin, due));
        tokio::select! {
            () = sleep_until(due) => {}
            changed = self.activity.changed() => match changed {
                Ok(()) => sleep_until(sent + MIN_INTERVAL).await,
                Err(_) => sleep(interval).await,
            },
        }
    }
}

/// Rounds `due` up to a timer wheel boundary.
///
/// The result is half a millisecond early: the runtime rounds up to whole milliseconds, and its clock started a little
/// before `origin`.
fn align_to_timer_wheel(origin: Instant, due: Instant) -> Instant {
    let periods = due.saturating_duration_since(origin).as_millis().div_ceil(TIMER_WHEEL_PERIOD.as_millis());
    origin + TIMER_WHEEL_PERIOD * u32::try_from(periods).unwrap_or(u32::MAX) - Duration::from_micros(500)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_waits_end_on_timer_wheel_boundaries() {
        let start = Instant::now();
        let after = |span: Duration| align_to_timer_wheel(start, start + span) - start + Duration::from_micros(500);
        assert_eq!(after(Duration::from_secs(30)), TIMER_WHEEL_PERIOD);
        assert_eq!(after(TIMER_WHEEL_PERIOD), TIMER_WHEEL_PERIOD);
        assert_eq!(after(TIMER_WHEEL_PERIOD + Duration::from_secs(30)), TIMER_WHEEL_PERIOD * 2);
    }

    #[test]
    fn ignores_settings_of_a_newer_server() {
        let answer = r#"{"state":"running","interval_s":30,"start":{"agent":"demo","more":1,
            "settings":{"env":{"A":"b"},"repo":{"branch":"x","url":"y"},"network":{"policy":"new"}}}}"#;
        let start = serde_json::from_str::<HeartbeatReply>(answer).unwrap().start.unwrap();
        assert_eq!((start.agent.as_deref(), start.settings.env["A"].as_str()), (Some("demo"), "b"));
        assert_eq!(start.settings.repo.unwrap().branch.as_deref(), Some("x"));
    }
}
