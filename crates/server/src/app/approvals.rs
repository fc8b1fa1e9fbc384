//! Approvals: agents request them in events, people answer them, and the worker receives the answer until the agent has it.

use super::Work;
use super::views::{cut_page, view_approval};
use crate::auth::access::{CanList, CanSee, CanWork};
use crate::cursor::{bad_cursor, decode_cursor};
use crate::extract::page_size;
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::events::{ApprovalAnswered, EventData};
use atoll_api::{AnswerApproval, ApprovalListQuery, Page, PageQuery};
use atoll_core::approval::{ApprovalAnswer, ApprovalDecision, ApprovalState};
use atoll_core::bounds;
use atoll_core::event::{EventSource, NewEvent, kind};
use atoll_core::id::{ProjectId, SandboxId};
use atoll_core::time::Timestamp;
use atoll_store::approvals::{self, ApprovalRow};
use atoll_store::sandboxes;
use serde::Deserialize;

/// Bounds the open approvals of one sandbox, so that one agent cannot flood the list of all approvals.
const MAX_OPEN_APPROVALS: i64 = 100;
const MAX_ID_BYTES: usize = 1024;

/// The fields of an approval event that the server reads.
#[derive(Deserialize)]
struct ApprovalRef {
    approval_id: String,
}

/// Opens or resolves the approval that an agent's event names. Runs before the event is stored.
pub async fn observe_event(work: &mut Work<'_>, sandbox: SandboxId, event: &NewEvent) -> Result<()> {
    let data = event.data.get();
    match event.event_type.as_str() {
        kind::APPROVAL_REQUESTED => {
            if let Ok(ApprovalRef { approval_id }) = serde_json::from_str(data) {
                let known = approvals::find_approval(work.tx, sandbox, &approval_id).await?.is_some();
                if !known
                    && approvals::count_open_approvals(work.tx, sandbox, MAX_OPEN_APPROVALS).await?
                        >= MAX_OPEN_APPROVALS
                {
                    tracing::warn!(%sandbox, "too many open approvals; this one is only in the event log");
                    return Ok(());
                }
                approvals::open_approval(work.tx, sandbox, &approval_id, data, work.now).await?;
            }
        }
        kind::APPROVAL_RESOLVED => {
            if let Ok(ApprovalRef { approval_id }) = serde_json::from_str(data) {
                approvals::resolve_approval(work.tx, sandbox, &approval_id).await?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Stores a person's answer. The first answer wins; repeating the same answer changes nothing.
pub async fn answer_approval(
    work: &mut Work<'_>,
    id: SandboxId,
    answer: ApprovalAnswer,
    actor: String,
) -> Result<ApprovalRow> {
    let (session, mut sandbox) = work.lock_sandbox(id).await?;
    let mut answer = redact_answer(work, sandbox.project_id, answer)?;
    let not_found = || Problem::not_found("approval");
    let row = approvals::find_approval(work.tx, id, &answer.approval_id).await?.ok_or_else(not_found)?;
    check_hash(&row, &answer)?;
    answer.sha256 = row.input_hash().map(str::to_owned);
    match row.state {
        ApprovalState::Open if !sandbox.state.accepts_messages() => {
            let detail = format!("the sandbox is {}; its agent no longer waits for an answer", sandbox.state);
            return Err(Problem::new(Code::ApprovalResolved, detail));
        }
        ApprovalState::Open => {}
        ApprovalState::Answered | ApprovalState::Resolved => {
            if row.answer().as_ref() == Some(&answer) {
                return Ok(row);
            }
            let decision =
                row.decision.map_or("the agent no longer waits for it".to_owned(), |it| format!("it was `{it}`"));
            let detail = format!("this approval is already decided: {decision}");
            return Err(Problem::new(Code::ApprovalResolved, detail));
        }
    }
    approvals::record_answer(work.tx, id, &answer, &actor, work.now).await?;
    let answered = EventData::ApprovalAnswered(ApprovalAnswered {
        approval_id: answer.approval_id.clone(),
        decision: answer.decision,
        reason: answer.reason.clone(),
        answers: answer.answers.clone(),
    });
    work.log(&mut sandbox, vec![answered.into_event(work.now).with_source(EventSource::User, Some(actor))]).await?;
    sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    work.out.inboxes.push(session.id);
    approvals::find_approval(work.tx, id, &answer.approval_id).await?.ok_or_else(not_found)
}

/// Rejects an answer that allows another input than the person saw.
fn check_hash(row: &ApprovalRow, answer: &ApprovalAnswer) -> Result<()> {
    let allows = match answer.decision {
        ApprovalDecision::Allow | ApprovalDecision::AllowAlways => true,
        ApprovalDecision::Deny => false,
    };
    match (row.input_hash(), answer.sha256.as_deref()) {
        (None, None) => Ok(()),
        (Some(_), None) if !allows => Ok(()),
        (Some(_), None) => Err(Problem::invalid("sha256: name the input that you allow by its hash, `request.sha256`")),
        (shown, Some(named)) if shown == Some(named) => Ok(()),
        (_, Some(_)) => {
            let detail = "the hash is not that of this approval's input; read the approval again";
            Err(Problem::new(Code::ApprovalChanged, detail))
        }
    }
}

/// Removes the project's secrets from the reason and the answers.
fn redact_answer(work: &Work<'_>, project: ProjectId, mut answer: ApprovalAnswer) -> Result<ApprovalAnswer> {
    answer.reason = answer.reason.map(|reason| work.redact_text(project, reason));
    if let Some(answers) = &answer.answers {
        let text = serde_json::to_string(answers).map_err(Problem::internal)?;
        bounds::check_event_data(&text)?;
        if let Some(clean) = work.secrets.redactor(project).redact_json(&text) {
            answer.answers = Some(serde_json::from_str(&clean).map_err(Problem::internal)?);
        }
    }
    Ok(answer)
}

/// Decodes a page position.
fn decode_position(cursor: Option<&str>) -> Result<Option<approvals::ApprovalCursor>> {
    let Some(text) = decode_cursor("approvals", cursor)? else { return Ok(None) };
    let mut parts = text.splitn(3, ' ');
    let (at, sandbox, approval) = (parts.next(), parts.next(), parts.next());
    let at = at.and_then(|at| at.parse().ok()).map(Timestamp::from_micros);
    match (at, sandbox.and_then(|id| id.parse().ok()), approval) {
        (Some(at), Some(sandbox), Some(approval)) => Ok(Some(approvals::ApprovalCursor {
            requested_at: at,
            sandbox_id: sandbox,
            approval_id: approval.to_owned(),
        })),
        _ => Err(bad_cursor()),
    }
}

fn to_page(rows: Vec<ApprovalRow>, limit: i64) -> Page<atoll_api::Approval> {
    let page = cut_page("approvals", rows, limit, |row| {
        format!("{} {} {}", row.requested_at.as_micros(), row.sandbox_id, row.approval_id)
    });
    page.map(view_approval)
}

/// Lists the open approvals of all visible projects, oldest first, or those with one id.
pub async fn list_pending(app: &App, access: CanList, query: ApprovalListQuery) -> Result<Page<atoll_api::Approval>> {
    let (limit, after) = (page_size(query.limit, 50, 200)?, decode_position(query.cursor.as_deref())?);
    let filter = access.projects.as_filter();
    if let Some(id) = query.id {
        bounds::check_line("id", &id, MAX_ID_BYTES)?;
        let rows =
            app.read(async move |tx| Ok(approvals::list_approvals_with_id(tx, &filter, &id, limit).await?)).await?;
        return Ok(to_page(rows, limit));
    }
    let rows =
        app.read(async move |tx| Ok(approvals::list_open_approvals(tx, &filter, after.as_ref(), limit + 1).await?));
    Ok(to_page(rows.await?, limit))
}

pub async fn list_of_sandbox(
    app: &App,
    access: CanSee<SandboxId>,
    query: PageQuery,
) -> Result<Page<atoll_api::Approval>> {
    let (limit, after) = (page_size(query.limit, 50, 200)?, decode_position(query.cursor.as_deref())?);
    let rows = app
        .read(async move |tx| Ok(approvals::list_sandbox_approvals(tx, access.id, after.as_ref(), limit + 1).await?));
    Ok(to_page(rows.await?, limit))
}

pub async fn submit_answer(
    app: &App,
    access: CanWork<SandboxId>,
    approval_id: String,
    key: IdempotencyKey,
    answer: AnswerApproval,
) -> Result<JsonResponse> {
    let AnswerApproval { decision, reason, sha256, answers } = answer;
    if let Some(reason) = &reason {
        bounds::check_content("reason", reason, bounds::MAX_MESSAGE_BYTES)?;
    }
    let (id, actor) = (access.id, access.actor());
    app.write_once(&access.caller, key, async move |work| {
        let answer = ApprovalAnswer { approval_id, decision, reason, sha256, answers };
        JsonResponse::ok(view_approval(answer_approval(work, id, answer, actor).await?))
    })
    .await
}
