//! Watches a sandbox from its first event to its end: all external events pass through one `select!`.

use super::interrupts::{Interrupt, InterruptAction, InterruptContext, InterruptState};
use super::live_text::{self, LiveText};
use super::progress::{AnswerMode, Phase, ResultBranch, RunProgress};
use super::request_queue::{QueuedRequest, RequestQueue, RequestResult, describe_failure};
use super::signals::Signals;
use super::step::ViewStep;
use super::terminal::TerminalEvent;
use super::terminal::footer::Status;
use super::terminal::line_editor::{EditorAction, QuickAnswer};
use super::view::RunView;
use crate::connect::ConnectedClient;
use crate::event_log::log_event::LogEvent;
use crate::failure::{Failure, Result};
use crate::output::Output;
use atoll_api::events::EventData;
use atoll_api::{ExportedResult, ExportedResults};
use atoll_client::EventStreamItem;
use atoll_core::id::SandboxId;
use atoll_core::sandbox::SandboxState;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// An ended sandbox's log must be quiet for this long.
const QUIET_PERIOD: Duration = Duration::from_millis(300);
/// Limit on received events that are not handled yet.
const MAX_BUFFERED_EVENTS: usize = 256;
/// Time for an interrupted agent to end its turn before the server stops the sandbox.
const INTERRUPT_GRACE: Duration = Duration::from_secs(5);
/// An attached view begins with this many steps of the past.
const MAX_PAST_STEPS: usize = 20;
/// A key answers a question if the user has had this time to see it, and if no other key follows in this time.
const QUICK_ANSWER_DELAY: Duration = Duration::from_millis(500);
/// Interval of the status line's clock.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);

/// The sandbox to watch, and the options of the run.
pub struct WatchTarget {
    pub sandbox: SandboxId,
    /// The short form of the sandbox's id for commands.
    pub reference: String,
    /// The newest event when `atoll attach` opened the view; `None` for the run's own view. Leaving an attached view
    /// changes nothing.
    pub attached_at: Option<i64>,
    pub agent: String,
    pub has_repo: bool,
    pub keep: bool,
    pub is_embedded: bool,
    /// The view of `atoll code`: it ends with the agent's turn.
    pub delegated: Option<DelegatedTurn>,
}

/// One turn of an agent in a sandbox that stays.
#[derive(Debug, Clone, Copy)]
pub struct DelegatedTurn {
    /// The newest event before the turn: earlier ones belong to other calls.
    pub after_seq: i64,
    /// The agent is already working.
    pub has_started: bool,
    /// The agent gets an interrupt at this time.
    pub deadline: Instant,
}

/// The end of a delegated turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnEnd {
    Completed,
    Interrupted,
    Failed { detail: String },
}

/// The reason why the watcher returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchEnd {
    /// The sandbox has ended.
    Ended,
    /// The sandbox stays on its server, and its agent waits.
    Kept,
    /// The user left the sandbox running on its server.
    Detached,
    /// The user left before the end of the results' export. The next server continues it.
    Aborted,
}

/// The result of watching a sandbox.
pub struct WatchResult {
    pub end: WatchEnd,
    pub progress: RunProgress,
    /// The user pressed Ctrl-C or terminated the command.
    pub interrupted: bool,
    /// The end of the last turn.
    pub turn_end: Option<TurnEnd>,
    /// The turn reached its deadline.
    pub timed_out: bool,
}

pub struct RunWatcher<'a> {
    target: &'a WatchTarget,
    output: &'a Output,
    progress: RunProgress,
    view: RunView,
    requests: RequestQueue,
    interrupts: InterruptState,
    started_at: Instant,
    /// Steps that are not on the screen yet.
    steps: Vec<ViewStep>,
    is_lost: bool,
    /// The export of a failed sandbox's results: requested (`false`) or done (`true`).
    recovering: Option<bool>,
    /// The end of the quiet period after the sandbox's end.
    quiet_at: Option<Instant>,
    /// The agent got the last interrupt of this run; at this time the server stops the sandbox in any case.
    stop_at: Option<Instant>,
    end: Option<WatchEnd>,
    /// The seq of the last handled event.
    seen_seq: i64,
    live_text: LiveText,
    /// The approval that one key could answer, and the time when it appeared.
    asked: Option<(String, Instant)>,
    /// The time of a one-key answer, unless more keys follow.
    quick_answer_at: Option<Instant>,
    turn_started: bool,
    turn_end: Option<TurnEnd>,
    /// The deadline of a delegated turn, until it is reached.
    deadline: Option<Instant>,
    timed_out: bool,
}

impl<'a> RunWatcher<'a> {
    pub fn new(target: &'a WatchTarget, client: &ConnectedClient, output: &'a Output, started_at: Instant) -> Self {
        let view = RunView::open(output);
        let is_demo = target.agent == super::task_input::DEMO_AGENT;
        let answers = match view.is_live() {
            true if is_demo => {
                AnswerMode::ByMessage("press y to approve or n to deny; or type deny and a reason".to_owned())
            }
            true => AnswerMode::Typed,
            false if is_demo => AnswerMode::ByMessage(format!("answer with: atoll send {} approve", target.reference)),
            false => AnswerMode::Command,
        };
        Self {
            target,
            output,
            progress: RunProgress::new(answers),
            view,
            requests: RequestQueue::start(client.clone(), target.sandbox),
            interrupts: InterruptState::default(),
            started_at,
            steps: Vec::new(),
            is_lost: false,
            recovering: None,
            quiet_at: None,
            stop_at: None,
            end: None,
            seen_seq: 0,
            live_text: LiveText::default(),
            asked: None,
            quick_answer_at: None,
            turn_started: target.delegated.is_some_and(|turn| turn.has_started),
            turn_end: None,
            deadline: target.delegated.map(|turn| turn.deadline),
            timed_out: false,
        }
    }

    const fn is_attached(&self) -> bool {
        self.target.attached_at.is_some()
    }

    /// The events up to the attachment are not handled yet.
    fn is_catching_up(&self) -> bool {
        self.target.attached_at.is_some_and(|attached_at| self.seen_seq < attached_at)
    }

    /// Watches until the sandbox's end, or until the user leaves.
    pub async fn run(mut self, client: &ConnectedClient, signals: &mut Signals) -> Result<WatchResult> {
        let after_seq = self.target.delegated.map_or(0, |turn| turn.after_seq);
        let mut log = spawn_follower(client, self.target.sandbox, after_seq);
        let mut deltas = self.view.is_live().then(|| live_text::spawn_follower(client, self.target.sandbox));
        let mut tick = tokio::time::interval(REDRAW_INTERVAL);
        loop {
            if log.is_empty() {
                self.draw()?;
            }
            if let Some(end) = self.end {
                self.draw()?;
                let interrupted = self.interrupts != InterruptState::Running;
                self.view.close()?;
                let (turn_end, timed_out) = (self.turn_end, self.timed_out);
                return Ok(WatchResult { end, progress: self.progress, interrupted, turn_end, timed_out });
            }
            let (quiet_at, stop_at, answer_at) = (self.quiet_at, self.stop_at, self.quick_answer_at);
            let deadline = self.deadline;
            tokio::select! {
                Some(item) = log.recv() => self.handle_log(item?)?,
                delta = live_text::next_delta(&mut deltas) => self.live_text.append(&delta),
                event = self.view.next_event() => self.handle_terminal(event),
                result = self.requests.next_result() => self.handle_response(result),
                signal = signals.next() => self.handle_interrupt(Interrupt::Signal(signal)),
                () = sleep_until(quiet_at) => self.end = Some(WatchEnd::Ended),
                () = sleep_until(stop_at) => self.end_run(),
                () = sleep_until(answer_at) => self.answer_quickly(),
                () = sleep_until(deadline) => self.handle_deadline(),
                _ = tick.tick() => {}
            }
        }
    }

    /// Notes when the pending approval appeared.
    fn update_question(&mut self) {
        let pending = self.progress.quick_approval().map(|pending| pending.approval_id.clone());
        match (pending, &self.asked) {
            (Some(id), Some((asked, _))) if id == *asked => {}
            (pending, _) => self.asked = pending.map(|id| (id, Instant::now())),
        }
    }

    /// The user has had time to see the question.
    fn takes_quick_answers(&self) -> bool {
        self.asked.as_ref().is_some_and(|(_, since)| since.elapsed() >= QUICK_ANSWER_DELAY)
    }

    /// Plans a one-key answer after each key. More keys make it a word, and a key from before the question is none.
    fn plan_quick_answer(&mut self) {
        let answer = self.view.quick_answer().filter(|_| self.takes_quick_answers());
        self.quick_answer_at = answer.map(|_| Instant::now() + QUICK_ANSWER_DELAY);
    }

    fn draw(&mut self) -> Result {
        self.update_question();
        let steps = if self.is_catching_up() { Vec::new() } else { std::mem::take(&mut self.steps) };
        let sandbox = self.target.reference.clone();
        let status = Status {
            progress: &self.progress,
            sandbox: &sandbox,
            elapsed: self.started_at.elapsed(),
            is_lost: self.is_lost,
            is_attached: self.target.attached_at.is_some(),
            live_text: self.live_text.visible_text(&self.progress),
            takes_quick_answers: self.takes_quick_answers(),
            notice: self.interrupts.notice(&self.progress.phase),
        };
        self.view.draw(&steps, status, self.output)
    }

    fn handle_log(&mut self, item: EventStreamItem) -> Result {
        match item {
            EventStreamItem::Event(event) => self.handle_event(&LogEvent::from(*event))?,
            EventStreamItem::Truncated { first_seq } => {
                self.steps
                    .push(ViewStep::warning(&format!("events before {first_seq} have been removed by retention")));
            }
            EventStreamItem::Disconnected { cause } => {
                if !std::mem::replace(&mut self.is_lost, true) && !self.view.is_live() {
                    self.output.print_note(&format!("{cause}; reconnecting, no events are lost"));
                }
            }
        }
        Ok(())
    }

    fn handle_event(&mut self, event: &LogEvent) -> Result {
        self.is_lost = false;
        let is_past = self.target.attached_at.is_some_and(|attached_at| event.event.seq <= attached_at);
        self.seen_seq = event.event.seq;
        if !is_past {
            self.view.show_event(event, self.output)?;
        }
        self.live_text.handle_event(event);
        self.steps.extend(self.progress.apply(event));
        if is_past {
            let older = self.steps.len().saturating_sub(MAX_PAST_STEPS);
            self.steps.drain(..older);
        }
        self.track_turn(&event.data);
        match &event.data {
            EventData::SandboxCompleted(_) | EventData::SandboxFailed(_) => self.handle_end(),
            // The server exports the results of the ended sandbox.
            EventData::SandboxCompleting(_) => self.quiet_at = None,
            EventData::AgentStarted(_) => self.interrupts.reset(),
            EventData::AgentInterrupted(_) | EventData::AgentCompleted(_) | EventData::AgentFailed(_)
                if self.stop_at.is_some() =>
            {
                self.end_run();
            }
            // The agent may also have waited before this turn.
            EventData::AgentWaiting(_)
                if self.target.delegated.is_some() && self.turn_started && self.end.is_none() =>
            {
                self.end = Some(WatchEnd::Kept);
            }
            EventData::AgentWaiting(_)
                if self.target.delegated.is_none() && self.target.keep && !self.view.is_live() =>
            {
                self.end = Some(WatchEnd::Kept);
            }
            _ => {}
        }
        if self.quiet_at.is_some() {
            self.quiet_at = Some(Instant::now() + QUIET_PERIOD);
        }
        Ok(())
    }

    fn track_turn(&mut self, data: &EventData) {
        match data {
            EventData::AgentStarted(_) => (self.turn_started, self.turn_end) = (true, None),
            EventData::AgentCompleted(_) => self.turn_end = Some(TurnEnd::Completed),
            EventData::AgentInterrupted(_) => self.turn_end = Some(TurnEnd::Interrupted),
            EventData::AgentFailed(_) => {
                let detail = self.progress.failed.as_ref().map(|failed| failed.detail.clone()).unwrap_or_default();
                self.turn_end = Some(TurnEnd::Failed { detail });
            }
            _ => {}
        }
    }

    /// Interrupts an agent that takes too long. Its work stays in the sandbox.
    fn handle_deadline(&mut self) {
        (self.deadline, self.timed_out) = (None, true);
        self.requests.enqueue(QueuedRequest::Interrupt);
        self.stop_at = Some(Instant::now() + INTERRUPT_GRACE);
    }

    fn handle_end(&mut self) {
        let end = self.progress.end.as_ref().filter(|end| end.state == SandboxState::Failed);
        // Another export would leave out the same files.
        let can_export = end.is_some_and(|end| end.code.as_deref() != Some("results_incomplete"));
        if can_export
            && self.target.has_repo
            && self.progress.has_run
            && self.progress.branch.is_none()
            && self.recovering.is_none()
        {
            self.recovering = Some(false);
            self.requests.enqueue(QueuedRequest::ExportResults);
        }
        if self.recovering != Some(false) {
            self.quiet_at = Some(Instant::now() + QUIET_PERIOD);
        }
    }

    fn handle_terminal(&mut self, event: TerminalEvent) {
        match event {
            TerminalEvent::Action(EditorAction::Send(text)) => {
                self.quick_answer_at = None;
                self.interrupts.reset();
                let answer = self
                    .progress
                    .pending_approval()
                    .and_then(|pending| Some((pending.approval_id.clone(), pending.parse_answer(&text)?)));
                self.requests.enqueue(match answer {
                    Some((approval_id, answer)) => QueuedRequest::Decide { approval_id, answer, typed: text },
                    None => QueuedRequest::SendMessage(text),
                });
            }
            TerminalEvent::Action(EditorAction::Interrupt) => self.handle_interrupt(Interrupt::Key),
            TerminalEvent::Action(EditorAction::Finish) if self.is_attached() => self.end = Some(WatchEnd::Detached),
            TerminalEvent::Action(EditorAction::Finish) => match self.progress.phase {
                // In a paused run the agent makes no progress, so its results can be taken.
                Phase::Waiting | Phase::LimitPaused(_) => self.request_stop(),
                Phase::SettingUp => self.steps.push(ViewStep::note("set-up runs; Ctrl-C stops the run")),
                Phase::Creating | Phase::Starting | Phase::Working | Phase::Tool(_) | Phase::WaitingApproval => {
                    self.steps.push(ViewStep::note("the agent is working; Ctrl-C interrupts it"));
                }
                Phase::ExportingResults | Phase::Ended => {}
            },
            TerminalEvent::Edited => self.plan_quick_answer(),
        }
    }

    /// Answers the pending approval; the demo agent takes its answer as a message.
    fn answer_quickly(&mut self) {
        self.quick_answer_at = None;
        let (typed, message) = match self.view.quick_answer().filter(|_| self.asked.is_some()) {
            Some(QuickAnswer::Approve) => ("yes", "approve"),
            Some(QuickAnswer::ApproveAlways) => ("always", "approve"),
            Some(QuickAnswer::Deny) => ("no", "deny"),
            None => return,
        };
        self.view.clear_input();
        let decided = self.progress.pending_approval().and_then(|pending| {
            let answer = pending.parse_answer(typed)?;
            Some(QueuedRequest::Decide { approval_id: pending.approval_id.clone(), answer, typed: typed.to_owned() })
        });
        self.requests.enqueue(decided.unwrap_or_else(|| QueuedRequest::SendMessage(message.to_owned())));
    }

    fn handle_interrupt(&mut self, interrupt: Interrupt) {
        let context = InterruptContext {
            is_working: self.progress.is_working(),
            is_embedded: self.target.is_embedded,
            is_attached: self.is_attached(),
            now: Instant::now(),
        };
        match self.interrupts.apply(interrupt, context) {
            InterruptAction::InterruptAgent => self.requests.enqueue(QueuedRequest::Interrupt),
            InterruptAction::InterruptAndStop => {
                self.requests.enqueue(QueuedRequest::Interrupt);
                self.stop_at = Some(context.now + INTERRUPT_GRACE);
                if !self.view.is_live() {
                    self.output.print_note("interrupting the agent; the command exits when it has the results");
                }
            }
            InterruptAction::Stop => self.end_run(),
            InterruptAction::Detach => self.end = Some(WatchEnd::Detached),
            InterruptAction::Abort => self.end = Some(WatchEnd::Aborted),
            InterruptAction::Ignore => {}
        }
    }

    /// Ends the run: a kept sandbox stays on its server, every other one stops.
    fn end_run(&mut self) {
        self.stop_at = None;
        if self.target.keep && !self.target.is_embedded {
            self.end = Some(WatchEnd::Detached);
        } else {
            self.request_stop();
        }
    }

    /// Stops the sandbox and takes its results.
    fn request_stop(&self) {
        self.requests.enqueue(QueuedRequest::Stop);
    }

    fn handle_response(&mut self, (request, done): RequestResult) {
        let failed = done.as_ref().err().map(|failure| describe_failure(&request, failure));
        if let Some(text) = failed {
            self.steps.push(ViewStep::failure(&text));
        }
        match (request, done) {
            (QueuedRequest::SendMessage(text) | QueuedRequest::Decide { typed: text, .. }, Err(_)) => {
                self.view.restore_text(text)
            }
            (QueuedRequest::ExportResults, done) => {
                if let (Ok(Some(exported)), None) = (done, &self.progress.branch) {
                    self.progress.branch = branch_from_results(&exported);
                }
                self.recovering = Some(true);
                self.quiet_at = Some(Instant::now() + QUIET_PERIOD);
            }
            (QueuedRequest::Stop, Err(_)) if self.interrupts.is_stopping() => {
                self.end = Some(if self.target.is_embedded { WatchEnd::Aborted } else { WatchEnd::Detached });
            }
            (
                QueuedRequest::SendMessage(_)
                | QueuedRequest::Decide { .. }
                | QueuedRequest::Interrupt
                | QueuedRequest::Stop,
                _,
            ) => {}
        }
    }
}

/// The result branch in the response of an export.
fn branch_from_results(exported: &ExportedResults) -> Option<ResultBranch> {
    let ExportedResult::Branch { branch, .. } = exported.taken.first()?;
    Some(ResultBranch {
        name: branch.clone(),
        base: None,
        commits: None,
        files: Vec::new(),
        flagged: Vec::new(),
        notes: Vec::new(),
    })
}

/// Follows the log in its own task: a reconnect takes longer than a tick of the clock, which must not restart it.
fn spawn_follower(
    client: &ConnectedClient,
    sandbox: SandboxId,
    after_seq: i64,
) -> mpsc::Receiver<Result<EventStreamItem>> {
    let (sender, log) = mpsc::channel(MAX_BUFFERED_EVENTS);
    let mut events = client.follow_events(sandbox, &[], after_seq);
    tokio::spawn(async move {
        loop {
            let item = tokio::select! {
                item = events.next() => item,
                () = sender.closed() => return,
            };
            let failed = item.is_err();
            if sender.send(item.map_err(Failure::from)).await.is_err() || failed {
                return;
            }
        }
    });
    log
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
