//! The agent's own transcript: taken to the server every so often, and before the end of the agent or of the worker is
//! told on; put into its place in a sandbox that goes on with an earlier conversation.

use super::ending::Leaving;
use super::{Executor, Standing};
use crate::driver::Keeping;
use crate::hands::Ending;
use crate::input::{Event, Item};
use crate::transcript::{Conversation, Failure, Keeper, Saved};
use atoll_core::agent::is_native_id;
use atoll_core::event::kind;
use atoll_core::time::Clock;
use atoll_protocol::Resume;
use serde_json::json;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// In the middle of a turn.
const EVERY: Duration = Duration::from_secs(60);
/// Between two, however short the turns are.
const SHORTEST: Duration = Duration::from_secs(5);
/// After a turn: an agent may write it down a moment after it said so.
const SETTLING: Duration = Duration::from_millis(300);
/// When the server could not be reached.
const AGAIN: Duration = Duration::from_secs(10);
/// For one beside the work.
const LONGEST: Duration = Duration::from_secs(60);
/// Before the end of an agent is told. One that died may have to be started again to say what it knew.
const AFTER_DEATH: Duration = Duration::from_secs(30);
/// Before the worker goes, which it must within its grace.
const AT_LEAVING: Duration = Duration::from_secs(5);
/// For putting one into its place.
const RESTORING: Duration = Duration::from_secs(60);

type Outcome = Result<Option<Saved>, Failure>;

/// What waits for a save.
#[derive(Debug)]
pub(super) enum After {
    AgentEnded(Ending),
    EndAgent,
    Leave,
}

/// What is done.
#[derive(Debug)]
pub(super) enum Kept {
    Saved(Outcome),
    /// The name of what the agent goes on with, or why there is nothing.
    Restored(Result<Option<String>, String>),
}

/// A conversation that is being put into its place.
#[derive(Debug)]
pub(super) struct Restoring {
    blob: String,
    done: oneshot::Receiver<Result<(), String>>,
}

#[derive(Debug, Default)]
pub(super) struct Saving {
    /// None where there is no server to take it to.
    keeper: Option<Keeper>,
    pub restoring: Option<Restoring>,
    /// What the server has.
    known: Option<String>,
    /// The agent has said something since.
    is_dirty: bool,
    due: Option<Instant>,
    began: Option<Instant>,
    running: Option<oneshot::Receiver<Outcome>>,
    /// What waits for it, until when, and whether a save was begun for it.
    then: Option<(After, Instant, bool)>,
    /// Nothing more is worth saving.
    is_over: bool,
    /// What the last failure was.
    said: Option<String>,
}

impl Saving {
    pub(super) fn new(keeper: Option<Keeper>) -> Self {
        Self { keeper, ..Self::default() }
    }

    pub(super) const fn said_something(&mut self) {
        self.is_dirty = true;
    }

    pub(super) fn until(&self) -> Option<Instant> {
        let waits = self.then.as_ref().map(|(_, until, _)| *until);
        let due = self.due.filter(|_| self.running.is_none());
        waits.into_iter().chain(due).min()
    }

    /// Whether everything else waits for it now.
    pub(super) fn holds_up(&self, now: Instant) -> bool {
        self.running.is_some() && self.then.as_ref().is_some_and(|(_, until, _)| now < *until)
    }

    /// What became of the one that runs, or of what is put into its place.
    pub(super) async fn done_or_restored(&mut self) -> Kept {
        if let Some(restoring) = &mut self.restoring {
            let outcome = (&mut restoring.done).await.unwrap_or_else(|_| Err("it was given up".to_owned()));
            let blob = self.restoring.take().map(|restoring| restoring.blob);
            return Kept::Restored(outcome.map(|()| blob));
        }
        match &mut self.running {
            Some(running) => {
                let outcome = running.await;
                self.running = None;
                Kept::Saved(outcome.unwrap_or_else(|_| Err(Failure::Later("it was given up".to_owned()))))
            }
            None => std::future::pending().await,
        }
    }
}

impl Executor {
    fn conversation(&self) -> Option<(Keeper, Conversation, bool)> {
        let Keeping { agent, live, env } = self.driver.as_ref()?.keeping()?;
        let native_id = self.native_id.clone().filter(|id| is_native_id(id))?;
        let conversation = Conversation { agent, native_id, program: self.program.clone(), env };
        Some((self.saving.keeper.clone()?, conversation, live))
    }

    /// A turn begins, or ends.
    pub(super) fn save_later(&mut self) {
        let now = Instant::now();
        let wait = match self.talk.standing() {
            Standing::InTurn => EVERY,
            Standing::Idle => SETTLING,
        };
        let earliest = self.saving.began.map_or(now, |began| began + SHORTEST);
        self.saving.due = Some(earliest.max(now + wait));
    }

    pub(super) fn save_if_due(&mut self, now: Instant) {
        if self.saving.running.is_some() || self.saving.due.is_none_or(|due| now < due) {
            return;
        }
        self.saving.due = (self.talk.standing() == Standing::InTurn).then(|| now + EVERY);
        if self.leaving == Leaving::No && !self.stillness.is_asked() {
            self.begin_save(LONGEST);
        }
    }

    fn begin_save(&mut self, limit: Duration) {
        if !self.saving.is_dirty || self.saving.is_over {
            return;
        }
        let Some((keeper, conversation, _)) = self.conversation() else { return };
        let (done, running) = oneshot::channel();
        let saving = &mut self.saving;
        (saving.is_dirty, saving.began, saving.running) = (false, Some(Instant::now()), Some(running));
        let known = saving.known.clone();
        tokio::spawn(async move { drop(done.send(keeper.save(conversation, known, limit).await)) });
    }

    pub(super) fn kept(&mut self, kept: Kept) {
        match kept {
            Kept::Saved(outcome) => self.saved(outcome),
            Kept::Restored(outcome) => self.restored(outcome),
        }
    }

    fn saved(&mut self, outcome: Outcome) {
        match outcome {
            Ok(None) => self.saving.said = None,
            Ok(Some(Saved { blob, bytes })) => {
                let agent =
                    self.driver.as_ref().and_then(|driver| driver.keeping()).map(|keeping| keeping.agent.name());
                let data = json!({"agent": agent, "native_id": self.native_id, "blob": blob, "bytes": bytes});
                self.of_worker(kind::AGENT_TRANSCRIPT, &data);
                (self.saving.known, self.saving.said) = (Some(blob), None);
            }
            Err(Failure::Later(why)) => {
                tracing::warn!(why, "the agent's transcript could not be saved now");
                self.saving.is_dirty = true;
                self.saving.due = Some(Instant::now() + AGAIN);
            }
            // Said once, not every minute.
            Err(Failure::For(why)) if self.saving.said.as_ref() != Some(&why) => {
                let data = json!({"native_id": self.native_id, "error": why});
                self.of_worker(kind::AGENT_TRANSCRIPT_FAILED, &data);
                self.saving.said = Some(why);
            }
            Err(Failure::For(_)) => {}
        }
    }

    fn of_worker(&mut self, event_type: &str, data: &serde_json::Value) {
        let event = Event::of_worker(event_type, self.clock.now(), data);
        self.outgoing.extend(event.map(|event| Item::Event(Event { turn: self.turn(), ..event })));
    }

    /// Does this when what the agent knows is saved, or can't be.
    pub(super) fn when_saved(&mut self, after: After) {
        if self.saving.is_over || self.conversation().is_none() {
            return self.go_on_after(after);
        }
        let limit = match after {
            After::AgentEnded(_) => AFTER_DEATH,
            After::EndAgent | After::Leave => AT_LEAVING,
        };
        self.saving.then = Some((after, Instant::now() + limit, false));
    }

    /// Whether something waited that does not any more, or a save was begun for it.
    pub(super) fn go_on_saving(&mut self, now: Instant) -> bool {
        let Some((after, until, begun)) = self.saving.then.take() else { return false };
        if !begun && now < until {
            if self.saving.running.is_none() {
                self.begin_save(until - now);
                self.saving.then = Some((after, until, true));
            } else {
                self.saving.then = Some((after, until, false));
            }
            return true;
        }
        if matches!(after, After::EndAgent) {
            // What it says on its way is nothing new.
            self.saving.is_over = true;
        }
        self.go_on_after(after);
        true
    }

    fn go_on_after(&mut self, after: After) {
        match after {
            After::AgentEnded(ending) => self.agent_ended(ending),
            After::EndAgent => self.end_agent(Instant::now()),
            After::Leave => self.leave(),
        }
    }

    /// Ends the agent, and saves what it knows first where that is better.
    pub(super) fn let_agent_end(&mut self, now: Instant) {
        let first = matches!(self.leaving, Leaving::AfterTool(_) | Leaving::Now) && self.agent.is_some();
        match self.conversation() {
            Some((_, _, true)) if first && !self.saving.is_over => self.when_saved(After::EndAgent),
            Some(_) | None => self.end_agent(now),
        }
    }

    /// The session had a sandbox before this one.
    pub(super) fn take_up(&mut self, resume: Resume) {
        let Some(driver) = &self.driver else { return };
        let Some(native_id) = resume.native_id.filter(|id| is_native_id(id)) else { return };
        // Its files are here, as they were there.
        if resume.in_place {
            self.native_id = Some(native_id);
            return;
        }
        if !driver.abilities().resume {
            return self.begins_anew(&native_id, "this agent can't go on with an earlier conversation");
        }
        self.native_id = Some(native_id.clone());
        let (Some((keeper, conversation, _)), Some(blob)) = (self.conversation(), resume.transcript) else {
            self.native_id = None;
            return self.begins_anew(&native_id, "there is no transcript of the earlier conversation");
        };
        let (told, done) = oneshot::channel();
        self.saving.restoring = Some(Restoring { blob: blob.clone(), done });
        tokio::spawn(async move { drop(told.send(keeper.restore(conversation, blob, RESTORING).await)) });
    }

    fn restored(&mut self, outcome: Result<Option<String>, String>) {
        match outcome {
            Ok(blob) => self.saving.known = blob,
            Err(why) => {
                let native_id = self.native_id.take().unwrap_or_default();
                self.begins_anew(&native_id, &format!("its transcript could not be put into its place: {why}"));
            }
        }
    }

    /// Better without its memory than not at all; but it is said.
    fn begins_anew(&mut self, native_id: &str, why: &str) {
        let text = format!("The agent begins a new conversation and remembers nothing of the earlier one: {why}.");
        let data = json!({"subtype": "resume_failed", "native_id": native_id, "error": why, "text": text});
        self.of_worker(kind::AGENT_SYSTEM_MESSAGE, &data);
    }
}
