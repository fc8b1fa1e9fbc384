//! The branch workflow as one pure function: a session's branch is exported, pushed, proposed as a pull request and merged.
//!
//! A stored job runs one step at a time. `next` decides what follows from the step's outcome; the caller stores the new
//! progress, the events and the next run of the job in one transaction. Every step can run again: it finds what an
//! earlier run did.

use crate::git_settings::{GitSettings, Publication};
use crate::string_enum;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[cfg(test)]
mod tests;

string_enum! {
    /// A step of the branch workflow, in order.
    "step"
    WorkflowStep {
        /// Put the sandbox's current work on the session's branch.
        Export = "export",
        /// Add commits that the branch needs from its base or from the remote branch.
        Update = "update",
        /// Push the branch to the remote repository.
        Push = "push",
        /// Open the pull request, or update the open one.
        PullRequest = "pull_request",
        /// Wait until checks and reviews allow the merge, and merge.
        Merge = "merge",
        /// Delete the merged branch.
        DeleteBranch = "delete_branch",
        /// Move the branches of dependent tickets to the new base.
        UpdateDependants = "update_dependants",
    }
}

string_enum! {
    /// State of a branch workflow.
    "workflow state"
    WorkflowState {
        /// A step runs, or runs again after a transient failure.
        Running = "running",
        /// The agent resolves a conflict. Its next results continue the workflow.
        WaitingAgent = "waiting_agent",
        /// The step cannot run yet: the forge, a check or a review is not ready.
        Waiting = "waiting",
        Done = "done",
        /// A person has to act. A new request continues the workflow.
        Failed = "failed",
    }
}

string_enum! {
    /// The last step of a branch workflow.
    "workflow goal"
    WorkflowGoal { Push = "push", PullRequest = "pull_request", Merge = "merge" }
}

impl WorkflowGoal {
    /// The goal that the settings of a sandbox choose; `None` if its results stay on this machine.
    pub fn from_settings(git: &GitSettings) -> Option<Self> {
        match git.publish.unwrap_or(Publication::None) {
            Publication::None => None,
            Publication::Push => Some(Self::Push),
            Publication::PullRequest if git.merge == Some(true) => Some(Self::Merge),
            Publication::PullRequest => Some(Self::PullRequest),
        }
    }
}

/// Failed attempts of one step before the workflow fails: about 25 minutes with the back-off.
pub const MAX_ATTEMPTS: u32 = 12;
/// Updates of the branch before the workflow fails: a base that never rests.
pub const MAX_UPDATES: u32 = 10;
/// Conflicts that the agent gets before a person has to act.
pub const MAX_CONFLICTS: u32 = 3;
/// How long a merge waits for checks and reviews.
pub const MERGE_TIMEOUT: Duration = Duration::from_secs(7 * 24 * 3600);

const MAX_RETRY_DELAY: Duration = Duration::from_secs(300);
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkflowProgress {
    pub goal: WorkflowGoal,
    pub step: WorkflowStep,
    pub state: WorkflowState,
    /// Failed attempts of the step in a row.
    #[serde(default)]
    pub attempts: u32,
    /// Undecided attempts of the step.
    #[serde(default)]
    pub polls: u32,
    #[serde(default)]
    pub updates: u32,
    #[serde(default)]
    pub conflicts: u32,
    /// When the step began to wait.
    #[serde(default)]
    pub waiting_since: Option<Timestamp>,
    /// True if the remote repository or the forge refuses a branch without the newest commits of its base.
    #[serde(default)]
    pub needs_base: bool,
}

/// The outcome of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepOutcome {
    Finished,
    /// The remote branch or the base moved.
    Outdated,
    /// The agent has to resolve a conflict.
    Conflict,
    /// The step cannot decide yet.
    Undecided,
    /// A transient failure, with the time that the other side demands.
    Retry {
        after: Option<Duration>,
    },
    /// A failure that only a person can end.
    Refused,
}

/// The next run of the job, which the caller stores with the new progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkflowEffect {
    /// Run the current step after this time.
    RunStep(Duration),
    /// Run nothing until results, a webhook or a person continue the workflow.
    Rest,
}

impl WorkflowProgress {
    pub const fn start(goal: WorkflowGoal) -> Self {
        Self {
            goal,
            step: WorkflowStep::Export,
            state: WorkflowState::Running,
            attempts: 0,
            polls: 0,
            updates: 0,
            conflicts: 0,
            waiting_since: None,
            needs_base: false,
        }
    }

    /// Starts again for new results or at a person's request. Steps after the merge are not left before they are done.
    #[must_use]
    pub fn restart(&self, goal: WorkflowGoal) -> Self {
        let mut to = Self::start(goal.max(self.goal));
        if self.is_merged() && self.state != WorkflowState::Done {
            to.step = self.step;
        }
        if self.state == WorkflowState::WaitingAgent {
            to.conflicts = self.conflicts;
        }
        to
    }

    /// True once the pull request is merged.
    pub fn is_merged(&self) -> bool {
        self.step > WorkflowStep::Merge
    }

    /// True while the results are not yet published as far as their sandbox waits for it.
    pub fn holds_sandbox(&self) -> bool {
        self.state == WorkflowState::Running && self.step < WorkflowStep::Merge
    }

    fn fail(mut self) -> (Self, WorkflowEffect) {
        self.state = WorkflowState::Failed;
        (self, WorkflowEffect::Rest)
    }
}

const fn step_after(step: WorkflowStep, goal: WorkflowGoal) -> Option<WorkflowStep> {
    match (step, goal) {
        (WorkflowStep::Export, _) => Some(WorkflowStep::Update),
        (WorkflowStep::Update, _) => Some(WorkflowStep::Push),
        (WorkflowStep::Push, WorkflowGoal::Push) => None,
        (WorkflowStep::Push, WorkflowGoal::PullRequest | WorkflowGoal::Merge) => Some(WorkflowStep::PullRequest),
        (WorkflowStep::PullRequest, WorkflowGoal::Push | WorkflowGoal::PullRequest) => None,
        (WorkflowStep::PullRequest, WorkflowGoal::Merge) => Some(WorkflowStep::Merge),
        (WorkflowStep::Merge, _) => Some(WorkflowStep::DeleteBranch),
        (WorkflowStep::DeleteBranch, _) => Some(WorkflowStep::UpdateDependants),
        (WorkflowStep::UpdateDependants, _) => None,
    }
}

/// 1 s, 2 s, 4 s … `most`.
fn back_off(attempts: u32, most: Duration) -> Duration {
    Duration::from_secs(1 << attempts.saturating_sub(1).min(10)).min(most)
}

/// Applies the outcome of the current step.
pub fn next(from: &WorkflowProgress, outcome: StepOutcome, now: Timestamp) -> (WorkflowProgress, WorkflowEffect) {
    let mut to = WorkflowProgress { state: WorkflowState::Running, ..from.clone() };
    match outcome {
        StepOutcome::Finished => {
            (to.attempts, to.polls, to.waiting_since) = (0, 0, None);
            if from.step == WorkflowStep::Update {
                to.needs_base = false;
            }
            match step_after(from.step, from.goal) {
                Some(step) => {
                    to.step = step;
                    (to, WorkflowEffect::RunStep(Duration::ZERO))
                }
                None => {
                    to.state = WorkflowState::Done;
                    (to, WorkflowEffect::Rest)
                }
            }
        }
        StepOutcome::Outdated => {
            to.updates = from.updates.saturating_add(1);
            (to.attempts, to.polls, to.waiting_since) = (0, 0, None);
            if to.updates > MAX_UPDATES || from.is_merged() {
                return to.fail();
            }
            (to.step, to.needs_base) = (WorkflowStep::Update, true);
            (to, WorkflowEffect::RunStep(Duration::ZERO))
        }
        StepOutcome::Conflict => {
            to.conflicts = from.conflicts.saturating_add(1);
            to.attempts = 0;
            if to.conflicts > MAX_CONFLICTS {
                return to.fail();
            }
            to.state = WorkflowState::WaitingAgent;
            (to, WorkflowEffect::Rest)
        }
        StepOutcome::Undecided => {
            let since = from.waiting_since.unwrap_or(now);
            (to.waiting_since, to.polls, to.attempts) = (Some(since), from.polls.saturating_add(1), 0);
            if now >= since + MERGE_TIMEOUT {
                return to.fail();
            }
            to.state = WorkflowState::Waiting;
            (to.clone(), WorkflowEffect::RunStep(back_off(to.polls, MAX_POLL_INTERVAL)))
        }
        StepOutcome::Retry { after } => {
            to.attempts = from.attempts.saturating_add(1);
            // A step that has waited is bounded by its time, so that an outage does not end a wait of days.
            let is_exhausted = match from.waiting_since {
                Some(since) => now >= since + MERGE_TIMEOUT,
                None => to.attempts > MAX_ATTEMPTS,
            };
            if is_exhausted {
                return to.fail();
            }
            let delay = back_off(to.attempts, MAX_RETRY_DELAY).max(after.unwrap_or_default());
            (to, WorkflowEffect::RunStep(delay))
        }
        StepOutcome::Refused => to.fail(),
    }
}
