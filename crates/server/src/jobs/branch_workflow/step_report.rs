//! The report of a step, and failures as outcomes.

use crate::forge_access::ForgeConnection;
use crate::problem::{Code, Problem};
use atoll_api::events::EventData;
use atoll_core::branch_workflow::StepOutcome;
use atoll_core::sandbox::Reason;
use atoll_core::ticket::TicketStep;
use atoll_forge::remote::{PushRefusal, RemoteError};
use atoll_forges::Error as ForgeError;
use std::time::Duration;

/// The outcome and the events of a step, stored with its changes of the record.
#[derive(Debug)]
pub struct StepReport {
    pub outcome: StepOutcome,
    pub reason: Option<Reason>,
    pub events: Vec<EventData>,
    pub ticket: Option<TicketStep>,
    /// The message for the agent, if it has to resolve a conflict.
    pub message: Option<String>,
}

impl StepReport {
    pub fn finished() -> Self {
        let (events, ticket) = (Vec::new(), None);
        Self { outcome: StepOutcome::Finished, reason: None, events, ticket, message: None }
    }

    pub fn with_events(events: Vec<EventData>) -> Self {
        Self { events, ..Self::finished() }
    }
}

/// A step that did not finish.
#[derive(Debug)]
pub(super) struct StepFailure {
    outcome: StepOutcome,
    reason: Reason,
}

pub(super) type StepResult = Result<StepReport, StepFailure>;

impl StepFailure {
    pub fn new(outcome: StepOutcome, code: &str, detail: impl Into<String>) -> Self {
        Self { outcome, reason: Reason::new(code, detail) }
    }

    pub fn refused(code: &str, detail: impl Into<String>) -> Self {
        Self::new(StepOutcome::Refused, code, detail)
    }

    pub fn undecided(code: &str, detail: impl Into<String>) -> Self {
        Self::new(StepOutcome::Undecided, code, detail)
    }

    pub fn outdated(code: &str, detail: impl Into<String>) -> Self {
        Self::new(StepOutcome::Outdated, code, detail)
    }

    /// True if the forge or its git server rejected the credential.
    pub fn is_rejected_credential(&self) -> bool {
        matches!(self.reason.code.as_str(), "forge_unauthorized" | "remote_auth")
    }

    /// The failure as one that a later attempt can repair.
    pub fn into_retry(self) -> Self {
        Self { outcome: StepOutcome::Retry { after: None }, ..self }
    }

    /// A failed request to the forge. The forge's own headers decide the time of the next one.
    pub fn of_forge(connection: &ForgeConnection, error: &ForgeError) -> Self {
        let after = match error {
            ForgeError::RateLimited { retry_after } => Some(*retry_after),
            _ => None,
        };
        let outcome = if error.is_retryable() { StepOutcome::Retry { after } } else { StepOutcome::Refused };
        Self::new(outcome, error.code(), connection.problem(error).detail)
    }

    pub fn into_report(self) -> StepReport {
        StepReport { outcome: self.outcome, reason: Some(self.reason), ..StepReport::finished() }
    }
}

impl From<RemoteError> for StepFailure {
    fn from(error: RemoteError) -> Self {
        let outcome = match &error {
            RemoteError::PushRefused { refusal: PushRefusal::BranchMoved | PushRefusal::NotFastForward, .. } => {
                StepOutcome::Outdated
            }
            error if error.is_transient() => StepOutcome::Retry { after: None },
            _ => StepOutcome::Refused,
        };
        Self::new(outcome, error.code(), error.to_string())
    }
}

impl From<Problem> for StepFailure {
    fn from(problem: Problem) -> Self {
        let is_transient = problem.is_server_error() || problem.code == Code::SandboxBusy;
        let after = problem.retry_after_s.map(Duration::from_secs);
        let outcome = if is_transient { StepOutcome::Retry { after } } else { StepOutcome::Refused };
        let cause = problem.extensions.get("cause").and_then(|cause| cause.as_str()).map(str::to_owned);
        Self::new(outcome, &cause.unwrap_or_else(|| problem.code.as_str().to_owned()), problem.detail)
    }
}
