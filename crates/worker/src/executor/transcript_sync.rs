//! Saves the agent's transcript regularly and before the executor reports an exit; restores it when a sandbox resumes a
//! conversation.

use super::Executor;
use super::shutdown::Shutdown;
use crate::spawner::ExitStatus;
use crate::transcript::{Conversation, SavedTranscript, TranscriptFailure, TranscriptStore};
use atoll_api::events::{AgentSystemMessage, AgentTranscript, EventData, TranscriptFailed};
use atoll_core::agent::is_valid_native_id;
use atoll_drivers::AgentTurn;
use atoll_drivers::TranscriptSupport;
use atoll_drivers::transcript::TranscriptStorage;
use atoll_protocol::Resume;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Interval of saves during a turn.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);
/// Minimum time between two saves.
const MIN_SAVE_INTERVAL: Duration = Duration::from_secs(5);
/// Delay after a turn: the agent may write its transcript a moment later.
const SETTLE_TIME: Duration = Duration::from_millis(300);
/// Delay after a failed save.
const RETRY_DELAY: Duration = Duration::from_secs(10);
/// Time limit of a save during work.
const SAVE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit of a save after the agent's exit. Some agents must start again to export it.
const EXIT_SAVE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit of a save at shutdown, within the worker's grace time.
const SHUTDOWN_SAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of a restore.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(60);

type SaveResult = Result<Option<SavedTranscript>, TranscriptFailure>;

/// A step that waits for a save.
#[derive(Debug)]
pub(super) enum AfterSave {
    AgentExited(ExitStatus),
    EndAgent,
    Shutdown,
}

/// The result of a save or a restore.
#[derive(Debug)]
pub(super) enum TranscriptResult {
    Saved(SaveResult),
    /// The restored blob, or why there is none.
    Restored(Result<Option<String>, String>),
}

/// A restore in progress.
#[derive(Debug)]
pub(super) struct TranscriptRestore {
    blob: String,
    done: oneshot::Receiver<Result<(), String>>,
}

#[derive(Debug, Default)]
pub(super) struct TranscriptSync {
    /// `None` in tests without a server.
    store: Option<TranscriptStore>,
    restoring: Option<TranscriptRestore>,
    /// The blob that the server has.
    known: Option<String>,
    /// The agent has written output since the last save.
    is_dirty: bool,
    due: Option<Instant>,
    began: Option<Instant>,
    running: Option<oneshot::Receiver<SaveResult>>,
    /// The step that waits, its deadline, and whether its save has started.
    after: Option<(AfterSave, Instant, bool)>,
    /// Further output is not worth sync.
    is_finished: bool,
    /// The last reported failure.
    reported: Option<String>,
}

impl TranscriptSync {
    pub(super) fn new(store: Option<TranscriptStore>) -> Self {
        Self { store, ..Self::default() }
    }

    pub(super) const fn is_restoring(&self) -> bool {
        self.restoring.is_some()
    }

    pub(super) const fn mark_dirty(&mut self) {
        self.is_dirty = true;
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let waits = self.after.as_ref().map(|(_, until, _)| *until);
        let due = self.due.filter(|_| self.running.is_none());
        waits.into_iter().chain(due).min()
    }

    /// True if everything else waits for the save.
    pub(super) fn blocks_others(&self, now: Instant) -> bool {
        self.running.is_some() && self.after.as_ref().is_some_and(|(_, until, _)| now < *until)
    }

    /// Waits for the result of the running save or restore.
    pub(super) async fn next_result(&mut self) -> TranscriptResult {
        if let Some(restoring) = &mut self.restoring {
            let outcome = (&mut restoring.done).await.unwrap_or_else(|_| Err("the task was cancelled".to_owned()));
            let blob = self.restoring.take().map(|restoring| restoring.blob);
            return TranscriptResult::Restored(outcome.map(|()| blob));
        }
        match &mut self.running {
            Some(running) => {
                let outcome = running.await;
                self.running = None;
                TranscriptResult::Saved(
                    outcome.unwrap_or_else(|_| Err(TranscriptFailure::Temporary("the task was cancelled".to_owned()))),
                )
            }
            None => std::future::pending().await,
        }
    }
}

impl Executor {
    fn transcript_target(&self) -> Option<(TranscriptStore, Conversation, bool)> {
        let TranscriptSupport { agent, storage, prefers_running_agent: live, env } =
            self.launch.driver.as_ref()?.transcript_support()?;
        let native_id = self.launch.native_id.clone().filter(|id| is_valid_native_id(id))?;
        let directory = match storage {
            TranscriptStorage::Directory(directory) => Some(directory),
            TranscriptStorage::Files(_) | TranscriptStorage::OpenCode => None,
        };
        let conversation = Conversation { agent, native_id, program: self.launch.program.clone(), directory, env };
        Some((self.transcript.store.clone()?, conversation, live))
    }

    /// Schedules the next save at the start or end of a turn.
    pub(super) fn schedule_save(&mut self) {
        let now = Instant::now();
        let wait = match self.conversation.turn_state() {
            AgentTurn::InTurn => SAVE_INTERVAL,
            AgentTurn::Idle => SETTLE_TIME,
        };
        let earliest = self.transcript.began.map_or(now, |began| began + MIN_SAVE_INTERVAL);
        self.transcript.due = Some(earliest.max(now + wait));
    }

    pub(super) fn save_if_due(&mut self, now: Instant) {
        if self.transcript.running.is_some() || self.transcript.due.is_none_or(|due| now < due) {
            return;
        }
        self.transcript.due = (self.conversation.turn_state() == AgentTurn::InTurn).then(|| now + SAVE_INTERVAL);
        if self.shutdown == Shutdown::No && !self.quiesce.is_requested() {
            self.start_save(SAVE_TIMEOUT);
        }
    }

    fn start_save(&mut self, limit: Duration) {
        if !self.transcript.is_dirty || self.transcript.is_finished {
            return;
        }
        let Some((store, conversation, _)) = self.transcript_target() else { return };
        let (done, running) = oneshot::channel();
        let sync = &mut self.transcript;
        (sync.is_dirty, sync.began, sync.running) = (false, Some(Instant::now()), Some(running));
        let known = sync.known.clone();
        tokio::spawn(async move { drop(done.send(store.save(conversation, known, limit).await)) });
    }

    pub(super) fn handle_transcript_result(&mut self, result: TranscriptResult) {
        match result {
            TranscriptResult::Saved(outcome) => self.handle_saved(outcome),
            TranscriptResult::Restored(outcome) => self.handle_restored(outcome),
        }
    }

    fn handle_saved(&mut self, outcome: SaveResult) {
        match outcome {
            Ok(None) => self.transcript.reported = None,
            Ok(Some(SavedTranscript { blob, bytes })) => {
                let support = self.launch.driver.as_ref().and_then(|driver| driver.transcript_support());
                let (agent, native_id) = (support.map(|it| it.agent), self.launch.native_id.clone());
                let data = AgentTranscript { agent, native_id, blob: blob.clone(), bytes };
                self.emit_worker_event(&EventData::AgentTranscript(data));
                (self.transcript.known, self.transcript.reported) = (Some(blob), None);
            }
            Err(TranscriptFailure::Temporary(why)) => {
                tracing::warn!(why, "failed to save the agent's transcript; retrying");
                self.transcript.is_dirty = true;
                self.transcript.due = Some(Instant::now() + RETRY_DELAY);
            }
            // Report the same failure once.
            Err(TranscriptFailure::Permanent(why)) if self.transcript.reported.as_ref() != Some(&why) => {
                let data = TranscriptFailed { native_id: self.launch.native_id.clone(), error: why.clone() };
                self.emit_worker_event(&EventData::AgentTranscriptFailed(data));
                self.transcript.reported = Some(why);
            }
            Err(TranscriptFailure::Permanent(_)) => {}
        }
    }

    /// Saves the transcript, then runs a step.
    pub(super) fn save_then(&mut self, after: AfterSave) {
        if self.transcript.is_finished || self.transcript_target().is_none() {
            return self.run_after_save(after);
        }
        let limit = match after {
            AfterSave::AgentExited(_) => EXIT_SAVE_TIMEOUT,
            AfterSave::EndAgent | AfterSave::Shutdown => SHUTDOWN_SAVE_TIMEOUT,
        };
        self.transcript.after = Some((after, Instant::now() + limit, false));
    }

    /// Advances a step that waits for a save; false if there is none.
    pub(super) fn advance_save(&mut self, now: Instant) -> bool {
        let Some((after, until, has_begun)) = self.transcript.after.take() else { return false };
        if !has_begun && now < until {
            if self.transcript.running.is_none() {
                self.start_save(until - now);
                self.transcript.after = Some((after, until, true));
            } else {
                self.transcript.after = Some((after, until, false));
            }
            return true;
        }
        if matches!(after, AfterSave::EndAgent) {
            // Output of a terminating agent is nothing new.
            self.transcript.is_finished = true;
        }
        self.run_after_save(after);
        true
    }

    fn run_after_save(&mut self, after: AfterSave) {
        match after {
            AfterSave::AgentExited(status) => self.handle_agent_exit(status),
            AfterSave::EndAgent => self.terminate_agent(Instant::now()),
            AfterSave::Shutdown => self.finish_shutdown(),
        }
    }

    /// Stops the agent; saves its transcript first if only a live agent can export it.
    pub(super) fn stop_agent(&mut self, now: Instant) {
        let first = matches!(self.shutdown, Shutdown::AfterTool(_) | Shutdown::Now) && self.agent.process.is_some();
        match self.transcript_target() {
            Some((_, _, true)) if first && !self.transcript.is_finished => self.save_then(AfterSave::EndAgent),
            Some(_) | None => self.terminate_agent(now),
        }
    }

    /// Resumes the conversation of an earlier sandbox.
    pub(super) fn resume_conversation(&mut self, resume: Resume) {
        let Some(driver) = &self.launch.driver else { return };
        let Some(native_id) = resume.native_id.filter(|id| is_valid_native_id(id)) else { return };
        // The agent's files are in place already.
        if resume.in_place {
            self.launch.native_id = Some(native_id);
            return;
        }
        if !driver.abilities().resume {
            return self.report_lost_transcript(&native_id, "this agent cannot resume a conversation");
        }
        self.launch.native_id = Some(native_id.clone());
        let (Some((store, conversation, _)), Some(blob)) = (self.transcript_target(), resume.transcript) else {
            self.launch.native_id = None;
            return self.report_lost_transcript(&native_id, "there is no transcript of the earlier conversation");
        };
        let (sender, done) = oneshot::channel();
        self.transcript.restoring = Some(TranscriptRestore { blob: blob.clone(), done });
        tokio::spawn(async move { drop(sender.send(store.restore(conversation, blob, RESTORE_TIMEOUT).await)) });
    }

    fn handle_restored(&mut self, outcome: Result<Option<String>, String>) {
        match outcome {
            Ok(blob) => self.transcript.known = blob,
            Err(why) => {
                let native_id = self.launch.native_id.take().unwrap_or_default();
                self.report_lost_transcript(&native_id, &format!("failed to restore its transcript: {why}"));
            }
        }
    }

    /// Reports that the agent starts without its transcript.
    fn report_lost_transcript(&mut self, native_id: &str, why: &str) {
        let text = Some(format!("The agent starts a new conversation without the earlier one: {why}."));
        let (subtype, native_id, error) =
            ("resume_failed".to_owned(), Some(native_id.to_owned()), Some(why.to_owned()));
        let data = AgentSystemMessage { subtype, native_id, error, text, ..AgentSystemMessage::default() };
        self.emit_worker_event(&EventData::AgentSystemMessage(data));
    }
}
