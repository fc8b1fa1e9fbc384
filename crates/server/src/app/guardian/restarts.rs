//! Continues sessions in fresh sandboxes after the guardian ended their last ones.

use crate::app::create::create_next_sandbox;
use crate::app::sandbox_plan::plan_from_last;
use crate::app::sessions::lock_session;
use crate::app::{Work, lifecycle};
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_api::events::{EventData, GuardianFollowedUp};
use atoll_core::bounds::MAX_PROMPT_BYTES;
use atoll_core::event::EventSource;
use atoll_core::guardian::{GUARDIAN_SENDER, InterventionOutcome, handover_text};
use atoll_core::id::SandboxId;
use atoll_store::interventions::{self, InterventionRow};
use atoll_store::{messages, sandboxes};

const MAX_RESTARTS_AT_ONCE: i64 = 16;
/// The part of the first prompt that the note repeats.
const MAX_GOAL_CHARS: usize = 8000;

/// Creates the next sandbox of each session whose restart is due.
pub async fn restart_sessions(app: &App) -> Result<()> {
    let due = app.read(async move |tx| Ok(interventions::list_due_restarts(tx, MAX_RESTARTS_AT_ONCE).await?)).await?;
    for row in due {
        let id = row.id;
        let created = app.write(async move |work| restart_session(work, &row).await).await;
        match created {
            Ok(()) => {}
            // The database or a provider may work again later.
            Err(problem) if problem.is_server_error() => return Err(problem),
            Err(problem) => {
                tracing::warn!(intervention = %id, detail = %problem.detail, "failed to restart a session");
                app.write(async move |work| Ok(interventions::end_restart(work.tx, id, None, work.now).await?)).await?;
            }
        }
    }
    Ok(())
}

/// Creates the next sandbox with a hand-over note and a fresh conversation: the old one is what led nowhere.
async fn restart_session(work: &mut Work<'_>, row: &InterventionRow) -> Result<()> {
    let mut session = lock_session(work, row.session_id).await?;
    let goal = messages::list_messages(work.tx, session.id, None, -1, 1).await?.pop().map(|message| message.content);
    let mut plan = plan_from_last(work, &session, GUARDIAN_SENDER.to_owned()).await?;
    let mut note = handover_text(&row.finding);
    if let Some(goal) = goal {
        note.push_str("\n\nThe task:\n");
        note.push_str(&lifecycle::truncate_text(&goal, MAX_GOAL_CHARS.min(MAX_PROMPT_BYTES / 8)));
    }
    plan.prompt = Some(note);
    (session.native_id, session.transcript) = (None, None);
    let created = create_next_sandbox(work, &mut session, plan).await?;
    let next = created.sandbox.id;
    interventions::end_restart(work.tx, row.id, Some(next), work.now).await?;
    log_restart(work, row, next).await
}

async fn log_restart(work: &mut Work<'_>, row: &InterventionRow, next: SandboxId) -> Result<()> {
    let last = sandboxes::find_sandbox(work.tx, row.sandbox_id).await?;
    let mut last = last.ok_or_else(|| Problem::not_found("sandbox"))?;
    let data = GuardianFollowedUp {
        intervention_id: row.id,
        detector: row.finding.detector,
        action: row.action,
        outcome: InterventionOutcome::TurnEnded,
        shown_by: None,
        next_sandbox_id: Some(next),
    };
    let event = EventData::GuardianFollowedUp(data).into_event(work.now).with_source(EventSource::Guardian, None);
    work.log(&mut last, vec![event]).await?;
    Ok(sandboxes::update_sandbox(work.tx, &mut last).await?)
}
