//! Stores findings with their actions, and takes the actions.

use super::denial_nudge::nudge_draft;
use crate::app::{Work, inbox, limits, results};
use crate::problem::Result;
use atoll_api::events::{
    EventData, GuardianDetected, GuardianEscalated, GuardianFollowedUp, GuardianIntervened, GuardianNudged,
};
use atoll_core::event::{EventSource, NewEvent};
use atoll_core::guardian::{Decision, FollowUp, GuardianAction, WatchStep, escalation_text, nudge_text};
use atoll_core::id::{InterventionId, SandboxId};
use atoll_core::message::{Delivery, MessageType};
use atoll_core::sandbox::{Reason, SandboxState};
use atoll_protocol::frame::DeniedCall;
use atoll_store::Tx;
use atoll_store::interventions::{self, InterventionFilter, InterventionRow};
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::sessions::SessionRow;

/// Interventions whose denials a worker gets.
const MAX_DENIALS: i64 = 32;

/// Stores what follows from an event, and acts. Returns true if the caller must pause the sandbox.
pub async fn record_step(work: &mut Work<'_>, id: SandboxId, step: &WatchStep) -> Result<bool> {
    let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
    for follow_up in &step.follow_ups {
        record_follow_up(work, &mut sandbox, follow_up).await?;
    }
    let mut must_pause = false;
    for decision in &step.decisions {
        if sandbox.state != SandboxState::Running || session.sandbox_id != Some(id) {
            break;
        }
        let Some(row) = store_finding(work, &mut sandbox, decision).await? else { continue };
        metrics::counter!(crate::metrics::INTERVENTIONS, "action" => row.action.as_str()).increment(1);
        must_pause |= row.action == GuardianAction::Pause;
        act(work, (&mut session, &mut sandbox), &row).await?;
    }
    Ok(must_pause)
}

fn guardian_event(work: &Work<'_>, data: EventData) -> NewEvent {
    data.into_event(work.now).with_source(EventSource::Guardian, None)
}

async fn record_follow_up(work: &mut Work<'_>, sandbox: &mut SandboxRow, follow_up: &FollowUp) -> Result<()> {
    let FollowUp { detector, seq, outcome, shown_by } = *follow_up;
    let stored =
        interventions::record_outcome(work.tx, sandbox.id, (detector, seq), (outcome, shown_by), work.now).await?;
    let Some(row) = stored else { return Ok(()) };
    let data = GuardianFollowedUp {
        intervention_id: row.id,
        detector,
        action: row.action,
        outcome,
        shown_by: Some(shown_by),
        next_sandbox_id: None,
    };
    let event = guardian_event(work, EventData::GuardianFollowedUp(data));
    work.log(sandbox, vec![event]).await?;
    Ok(sandboxes::update_sandbox(work.tx, sandbox).await?)
}

/// Stores a finding with its action. Returns `None` if it is stored already.
async fn store_finding(
    work: &mut Work<'_>,
    sandbox: &mut SandboxRow,
    decision: &Decision,
) -> Result<Option<InterventionRow>> {
    let text = match decision.action {
        GuardianAction::Nudge | GuardianAction::Interrupt | GuardianAction::Deny => Some(nudge_text(&decision.finding)),
        GuardianAction::Observe | GuardianAction::Escalate | GuardianAction::Pause | GuardianAction::Restart => None,
    };
    let row = InterventionRow {
        id: InterventionId::new(),
        sandbox_id: sandbox.id,
        session_id: sandbox.session_id,
        project_id: sandbox.project_id,
        finding: decision.finding.clone(),
        action: decision.action,
        held_back: decision.held_back,
        text: text.map(|text| work.redact_text(sandbox.project_id, text)),
        message_id: None,
        outcome: None,
        outcome_seq: None,
        next_sandbox_id: None,
        created_at: work.now,
        updated_at: work.now,
    };
    if !interventions::insert_intervention(work.tx, &row).await? {
        return Ok(None);
    }
    let finding = &row.finding;
    let data = GuardianDetected {
        detector: finding.detector,
        summary: escalation_text(finding),
        evidence: finding.evidence.clone().into(),
        intervention_id: Some(row.id),
        action: Some(row.action),
        held_back: row.held_back,
        tool: finding.tool.clone(),
        times: finding.times,
        path: finding.path.clone(),
    };
    let event = guardian_event(work, EventData::GuardianDetected(data));
    work.log(sandbox, vec![event]).await?;
    sandboxes::update_sandbox(work.tx, sandbox).await?;
    Ok(Some(row))
}

async fn act(
    work: &mut Work<'_>,
    (session, sandbox): (&mut SessionRow, &mut SandboxRow),
    row: &InterventionRow,
) -> Result<()> {
    let finding = &row.finding;
    let (detector, evidence, summary) = (finding.detector, finding.evidence.clone(), escalation_text(finding));
    let intervened = GuardianIntervened { intervention_id: row.id, detector, action: row.action, summary, evidence };
    match row.action {
        GuardianAction::Observe => return Ok(()),
        GuardianAction::Escalate => {
            let GuardianIntervened { intervention_id, detector, summary, evidence, .. } = intervened;
            let data = GuardianEscalated { intervention_id, detector, summary, evidence };
            let event = guardian_event(work, EventData::GuardianEscalated(data));
            work.log(sandbox, vec![event]).await?;
        }
        GuardianAction::Nudge => {
            let draft = nudge_draft(row.text.as_deref().unwrap_or_default());
            let text = draft.content.clone();
            let message_id = send_message(work, (session, sandbox), row, draft).await?;
            let data = GuardianNudged {
                text,
                detector: Some(detector),
                evidence: Some(finding.evidence.clone().into()),
                denied: None,
                intervention_id: Some(row.id),
                message_id,
            };
            let event = guardian_event(work, EventData::GuardianNudged(data));
            work.log(sandbox, vec![event]).await?;
        }
        GuardianAction::Interrupt => {
            let draft = nudge_draft(row.text.as_deref().unwrap_or_default());
            let interrupt = inbox::MessageDraft { message_type: MessageType::Interrupt, ..draft.clone() };
            send_message(work, (session, sandbox), row, interrupt).await?;
            // An interrupt only ends the turn: the next one begins with the reason.
            let reason = inbox::MessageDraft { message_type: MessageType::System, delivery: Delivery::Queue, ..draft };
            limits::notify_agent(work, session, sandbox, reason).await?;
            let event = guardian_event(work, EventData::GuardianIntervened(intervened));
            work.log(sandbox, vec![event]).await?;
        }
        GuardianAction::Deny | GuardianAction::Pause => {
            let event = guardian_event(work, EventData::GuardianIntervened(intervened));
            work.log(sandbox, vec![event]).await?;
            // Wakes the worker's connection, which sends the denials.
            work.out.states.push((sandbox.id, sandbox.state));
        }
        GuardianAction::Restart => {
            let event = guardian_event(work, EventData::GuardianIntervened(intervened));
            work.log(sandbox, vec![event]).await?;
            sandboxes::update_sandbox(work.tx, sandbox).await?;
            let reason = Reason::new("guardian_restart", "the guardian continues the session in a fresh sandbox");
            *sandbox = results::end_for_restart(work, sandbox.id, reason).await?;
            return Ok(());
        }
    }
    Ok(sandboxes::update_sandbox(work.tx, sandbox).await?)
}

/// Sends the agent a message and stores its id.
async fn send_message(
    work: &mut Work<'_>,
    (session, sandbox): (&mut SessionRow, &mut SandboxRow),
    row: &InterventionRow,
    draft: inbox::MessageDraft,
) -> Result<Option<atoll_core::id::MessageId>> {
    let message = limits::notify_agent(work, session, sandbox, draft).await?;
    if let Some(message) = message {
        interventions::record_message(work.tx, row.id, message).await?;
    }
    Ok(message)
}

/// The calls that the guardian denies in a sandbox.
pub async fn list_denials(tx: &mut dyn Tx, sandbox: SandboxId) -> Result<Vec<DeniedCall>> {
    let filter = InterventionFilter {
        sandbox: Some(sandbox),
        action: Some(GuardianAction::Deny),
        ..InterventionFilter::default()
    };
    let rows = interventions::list_interventions(tx, &filter, None, MAX_DENIALS).await?;
    let calls = rows.into_iter().flat_map(|row| {
        let reason = row.text.unwrap_or_default();
        row.finding.calls.into_iter().map(move |tool_use_id| DeniedCall { tool_use_id, reason: reason.clone() })
    });
    Ok(calls.collect())
}
