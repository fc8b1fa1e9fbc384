//! A sign of life, from a task of its own: nothing that the program does can hold it up.

use crate::Exit;
use crate::backoff::Backoff;
use crate::dispatcher::Report as Outward;
use crate::link::{Client, Reply};
use crate::resources::Resources;
use crate::spool::Stream;
use crate::uplink::Durable;
use atoll_core::guardian::Guardian;
use atoll_core::policy::{Then, ToolPolicy, ToolRule};
use atoll_core::sandbox::{Activity, AgentLimits, Approvals, Mode, SandboxState};
use atoll_core::time::{Clock, SystemClock};
use atoll_protocol::{Gateway, Heartbeat, LeasedMessage, Resume, VERSION};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

/// Between two heartbeats at least, also when the activity changes all the time.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);
/// Between heartbeats while the server has not told how to start.
const NOT_STARTED: Duration = Duration::from_secs(5);
/// The runtime keeps far deadlines in ever coarser slots and looks at each of them again when its slot begins: 4 s,
/// then 64 ms before. A deadline on an edge of all of them needs no second look, and the processor can sleep through.
const EDGE: Duration = Duration::from_millis(1 << 15);

/// As much of `HeartbeatAnswer` as this worker needs: settings that only a newer worker understands must not keep
/// it from starting.
#[derive(Debug, Clone, Deserialize)]
pub struct Answer {
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
    pub settings: Settings,
    #[serde(default)]
    pub resume: Option<Resume>,
    /// Where the agent's program lies in the sandbox.
    #[serde(default)]
    pub program: Option<PathBuf>,
    #[serde(default)]
    pub gateway: Option<Gateway>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Settings {
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub repo: Option<Repo>,
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default, deserialize_with = "known")]
    pub mode: Option<Mode>,
    #[serde(default, deserialize_with = "known")]
    pub approvals: Option<Approvals>,
    #[serde(default)]
    pub tools: Option<Vec<String>>,
    #[serde(default)]
    pub system_prompt: Option<String>,
    #[serde(default)]
    pub denied_tools: Vec<String>,
    #[serde(default)]
    pub enable_subagents: Option<bool>,
    #[serde(default)]
    pub enable_skills: Option<bool>,
    /// Works until checks pass: the server makes them, and begins another run after one that failed.
    #[serde(default)]
    pub continuous: Option<serde_json::Value>,
    #[serde(default)]
    pub mcp: Option<serde_json::Map<String, serde_json::Value>>,
    #[serde(default, deserialize_with = "known")]
    pub limits: Option<AgentLimits>,
    #[serde(default)]
    pub protected: Vec<String>,
    #[serde(default, deserialize_with = "readable")]
    pub policy: ToolPolicy,
    #[serde(default, deserialize_with = "known")]
    pub guardian: Option<Guardian>,
    /// Some of them may be files, now or later.
    #[serde(default)]
    pub secrets: Option<Vec<String>>,
}

impl Settings {
    /// Whether rules have a say about tool calls: an agent that can be made to ask about each of them is.
    pub fn has_rules(&self) -> bool {
        !self.policy.is_empty() || !self.protected.is_empty()
    }
}

/// Rules that only a newer worker understands can't be left out: everything is asked about then.
fn readable<'de, D: Deserializer<'de>>(from: D) -> Result<ToolPolicy, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    if value.is_null() {
        return Ok(ToolPolicy::default());
    }
    Ok(serde_json::from_value(value).unwrap_or_else(|error| {
        tracing::error!(%error, "the rules for tool calls can't be read by this worker; a person is asked about each call");
        let all = vec!["*".to_owned()];
        let (paths, commands, hosts) = (Vec::new(), Vec::new(), Vec::new());
        let rule = ToolRule { tools: all, paths, commands, hosts, then: Then::Ask, reason: None, set: None };
        ToolPolicy { rules: vec![rule], fail_closed: true }
    }))
}

/// What only a newer worker understands counts as not said.
fn known<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Option<T>, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    Ok(serde_json::from_value(value).ok())
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Repo {
    #[serde(default)]
    pub branch: Option<String>,
}

/// What the agent does, and the last event before it became so.
#[derive(Debug, Clone, Copy)]
pub struct Doing {
    pub activity: Activity,
    pub after: i64,
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
    pub activity: watch::Receiver<Doing>,
    pub durable: watch::Receiver<Durable>,
    pub reports: mpsc::Sender<Outward>,
    /// When the runtime's clock started, where hundreds of idle workers share a machine.
    pub seldom: Option<Instant>,
    pub by_stream: ByStream,
}

/// The way over the open stream, on which nobody waits for an answer: an idle worker is woken once for each heartbeat,
/// not twice. What the server has to say comes there by itself.
#[derive(Debug)]
pub struct ByStream {
    pub beats: mpsc::Sender<Heartbeat>,
    /// Whether the stream is connected.
    pub up: watch::Receiver<bool>,
}

impl ByStream {
    fn send(&self, heartbeat: Heartbeat) -> Result<(), Heartbeat> {
        if !*self.up.borrow() {
            return Err(heartbeat);
        }
        self.beats.try_send(heartbeat).map_err(mpsc::error::TrySendError::into_inner)
    }
}

impl Beater {
    pub async fn run(mut self) {
        let clock = SystemClock::start();
        let mut backoff = Backoff::default();
        let mut started = false;
        let mut interval = NOT_STARTED;
        loop {
            let sent = Instant::now();
            let mut heartbeat = self.heartbeat(started, &clock);
            // On the same machine a stream that is connected is one that somebody reads.
            if started && self.seldom.is_some() {
                match self.by_stream.send(heartbeat) {
                    Ok(()) => {
                        self.pause(sent, interval).await;
                        continue;
                    }
                    Err(unsent) => heartbeat = unsent,
                }
            }
            match self.client.post("heartbeat", &heartbeat).await {
                Reply::Ok(body) => match serde_json::from_slice::<Answer>(&body) {
                    Ok(answer) => {
                        backoff.reset();
                        // A sandbox that is ending starts nothing any more.
                        started |= answer.start.is_some() || !answer.state.takes_messages();
                        interval = Duration::from_secs(u64::from(answer.interval_s)).clamp(SHORTEST, LONGEST);
                        if !self.report(Report::Answered(Box::new(answer))).await {
                            return;
                        }
                        let pause = if started { interval } else { interval.min(NOT_STARTED) };
                        self.pause(sent, pause).await;
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
        let Doing { activity, after } = *self.activity.borrow_and_update();
        Heartbeat {
            stream: self.stream.id,
            boot: Some(self.stream.boot),
            protocol: VERSION,
            at: clock.now(),
            // Of what is said here nothing comes later than this.
            last_key: self.durable.borrow().last_key.max(after),
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
        let due = sent + interval;
        let due = self.seldom.filter(|_| interval >= EDGE / 2).map_or(due, |start| next_edge(start, due));
        tokio::select! {
            () = sleep_until(due) => {}
            changed = self.activity.changed() => match changed {
                Ok(()) => sleep_until(sent + SHORTEST).await,
                Err(_) => sleep(interval).await,
            },
        }
    }
}

/// The first edge that is not before `due`. Half a millisecond early, since the runtime rounds up to whole ones and its
/// clock did not start in the very moment that is known here.
fn next_edge(start: Instant, due: Instant) -> Instant {
    let edges = due.saturating_duration_since(start).as_millis().div_ceil(EDGE.as_millis());
    start + EDGE * u32::try_from(edges).unwrap_or(u32::MAX) - Duration::from_micros(500)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_pauses_end_on_edges() {
        let start = Instant::now();
        let after = |span: Duration| next_edge(start, start + span) - start + Duration::from_micros(500);
        assert_eq!(after(Duration::from_secs(30)), EDGE);
        assert_eq!(after(EDGE), EDGE);
        assert_eq!(after(EDGE + Duration::from_secs(30)), EDGE * 2);
    }

    #[test]
    fn settings_of_a_newer_server_do_not_keep_it_from_starting() {
        let answer = r#"{"state":"running","interval_s":30,"start":{"agent":"demo","more":1,
            "settings":{"env":{"A":"b"},"repo":{"branch":"x","url":"y"},"network":{"policy":"new"}}}}"#;
        let start = serde_json::from_str::<Answer>(answer).unwrap().start.unwrap();
        assert_eq!((start.agent.as_deref(), start.settings.env["A"].as_str()), (Some("demo"), "b"));
        assert_eq!(start.settings.repo.unwrap().branch.as_deref(), Some("x"));
    }
}
