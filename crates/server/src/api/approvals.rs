//! `/approvals` and `/sandboxes/{id}/approvals`: what agents wait for, and a person's word about it.

use super::{Page, PageQuery};
use crate::app::approvals;
use crate::auth::{Caller, access};
use crate::cursor;
use crate::extract::{Body, Id, Ids, Params, page_size};
use crate::once::{Answer, Once};
use crate::problem::Result;
use crate::state::App;
use atoll_core::approval::{ApprovalAnswer, ApprovalState, Decision};
use atoll_core::bounds;
use atoll_core::id::SandboxId;
use atoll_core::principal::Action;
use atoll_core::time::Timestamp;
use atoll_store::approvals as rows;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ApprovalView {
    sandbox_id: SandboxId,
    approval_id: String,
    state: ApprovalState,
    /// What is asked: kind, tool, input and its hash, or a text.
    #[schema(value_type = Object)]
    request: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<Decision>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    answers: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answered_by: Option<String>,
    #[schema(value_type = String, format = "date-time")]
    requested_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "date-time")]
    answered_at: Option<Timestamp>,
}

impl From<rows::Approval> for ApprovalView {
    fn from(row: rows::Approval) -> Self {
        Self {
            sandbox_id: row.sandbox_id,
            approval_id: row.approval_id,
            state: row.state,
            request: row.data,
            decision: row.decision,
            reason: row.reason,
            answers: row.answers,
            answered_by: row.answered_by,
            requested_at: row.requested_at,
            answered_at: row.answered_at,
        }
    }
}

/// A person's word.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Word {
    decision: Decision,
    /// Said to the agent.
    reason: Option<String>,
    /// To questions, by question.
    #[schema(value_type = Option<Object>)]
    answers: Option<Map<String, Value>>,
}

/// The place after which a page goes on.
fn place(cursor: Option<&str>) -> Result<Option<rows::Place>> {
    let Some(text) = cursor::read("approvals", cursor)? else { return Ok(None) };
    let mut parts = text.splitn(3, ' ');
    let (at, sandbox, approval) = (parts.next(), parts.next(), parts.next());
    let at = at.and_then(|at| at.parse().ok()).map(Timestamp::from_micros);
    match (at, sandbox.and_then(|id| id.parse().ok()), approval) {
        (Some(at), Some(sandbox), Some(approval)) => {
            Ok(Some(rows::Place { at, sandbox, approval: approval.to_owned() }))
        }
        _ => Err(cursor::bad()),
    }
}

fn page(found: Vec<rows::Approval>, limit: i64) -> axum::Json<Page<ApprovalView>> {
    let cut = Page::cut("approvals", found, limit, |row| {
        format!("{} {} {}", row.requested_at.as_micros(), row.sandbox_id, row.approval_id)
    });
    axum::Json(cut.map(ApprovalView::from))
}

/// What agents wait for, everywhere, oldest first.
#[utoipa::path(get, path = "/approvals", tag = "approvals", params(PageQuery),
    responses((status = 200, body = Page<ApprovalView>)))]
pub async fn waiting(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(query): Params<PageQuery>,
) -> Result<axum::Json<Page<ApprovalView>>> {
    let (limit, after) = (page_size(query.limit, 50, 200)?, place(query.cursor.as_deref())?);
    let rows = app.read(move |tx| {
        Box::pin(async move {
            let among = access::visible(tx, &caller).await?.among();
            Ok(rows::waiting(tx, &among, after.as_ref(), limit + 1).await?)
        })
    });
    Ok(page(rows.await?, limit))
}

/// What the agent of a sandbox has asked for, and what became of it.
#[utoipa::path(get, path = "/sandboxes/{id}/approvals", tag = "approvals", params(("id" = SandboxId, Path), PageQuery),
    responses((status = 200, body = Page<ApprovalView>)))]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Params(query): Params<PageQuery>,
) -> Result<axum::Json<Page<ApprovalView>>> {
    let (limit, after) = (page_size(query.limit, 50, 200)?, place(query.cursor.as_deref())?);
    let rows = app.read(move |tx| {
        Box::pin(async move {
            access::sandbox(tx, &caller, id, Action::See).await?;
            Ok(rows::of_sandbox(tx, id, after.as_ref(), limit + 1).await?)
        })
    });
    Ok(page(rows.await?, limit))
}

/// Allow or deny what an agent waits for, or answer its question.
///
/// The first word counts; the same one again is taken as said. The agent has it when the state is `resolved`.
#[utoipa::path(post, path = "/sandboxes/{id}/approvals/{approval_id}", tag = "approvals",
    params(("id" = SandboxId, Path), ("approval_id" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = Word, responses((status = 200, body = ApprovalView)))]
pub async fn answer(
    State(app): State<Arc<App>>,
    caller: Caller,
    Ids(id, approval_id): Ids<SandboxId, String>,
    once: Once,
    Body { value, hash }: Body<Word>,
) -> Result<Answer> {
    let Word { decision, reason, answers } = value;
    if let Some(reason) = &reason {
        bounds::content("reason", reason, bounds::MESSAGE_BYTES)?;
    }
    let who = caller.clone();
    app.write_once(&caller, once, hash, move |work| {
        Box::pin(async move {
            access::sandbox(work.tx, &who, id, Action::Work).await?;
            let answer = ApprovalAnswer { approval_id, decision, reason, answers };
            let row = approvals::answer(work, id, answer, who.actor()).await?;
            Answer::ok(ApprovalView::from(row))
        })
    })
    .await
}
