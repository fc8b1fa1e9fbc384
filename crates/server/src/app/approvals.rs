//! Approvals: asked in an agent's events, answered by people, told to the worker until the agent has the answer.

use super::Work;
use crate::problem::{Code, Problem, Result};
use atoll_core::approval::{ApprovalAnswer, ApprovalState};
use atoll_core::bounds;
use atoll_core::event::{NewEvent, Source, kind};
use atoll_core::id::{ProjectId, SandboxId};
use atoll_store::approvals::{self, Approval};
use atoll_store::sandboxes;
use serde::Deserialize;
use serde_json::json;

/// What one agent can wait for at once. No agent asks for so much; one that does must not bury what others ask.
const AT_ONCE: i64 = 100;

/// As much of the events as is needed.
#[derive(Deserialize)]
struct Named {
    approval_id: String,
}

/// An event of an agent is about to be stored.
pub async fn observed(work: &mut Work<'_>, sandbox: SandboxId, event: &NewEvent) -> Result<()> {
    let data = event.data.get();
    match event.event_type.as_str() {
        kind::APPROVAL_REQUESTED => {
            if let Ok(Named { approval_id }) = serde_json::from_str(data) {
                let known = approvals::get(work.tx, sandbox, &approval_id).await?.is_some();
                if !known && approvals::count_open(work.tx, sandbox, AT_ONCE).await? >= AT_ONCE {
                    tracing::warn!(%sandbox, "an agent asks for too much at once; that it asked stands in its log alone");
                    return Ok(());
                }
                approvals::open(work.tx, sandbox, &approval_id, data, work.now).await?;
            }
        }
        kind::APPROVAL_RESOLVED => {
            if let Ok(Named { approval_id }) = serde_json::from_str(data) {
                approvals::resolve(work.tx, sandbox, &approval_id).await?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// A person's word. The first one counts; the same one again changes nothing.
pub async fn answer(work: &mut Work<'_>, id: SandboxId, answer: ApprovalAnswer, actor: String) -> Result<Approval> {
    let (session, mut sandbox) = work.locked(id).await?;
    let answer = redacted(work, sandbox.project_id, answer)?;
    let gone = || Problem::not_found("approval");
    let row = approvals::get(work.tx, id, &answer.approval_id).await?.ok_or_else(gone)?;
    match row.state {
        ApprovalState::Open if !sandbox.state.takes_messages() => {
            let detail = format!("the sandbox is {}; nobody waits for an answer there any more", sandbox.state);
            return Err(Problem::new(Code::ApprovalResolved, detail));
        }
        ApprovalState::Open => {}
        ApprovalState::Answered | ApprovalState::Resolved => {
            if row.answer().as_ref() == Some(&answer) {
                return Ok(row);
            }
            let decision =
                row.decision.map_or("it is not waited for any more".to_owned(), |it| format!("it was `{it}`"));
            let detail = format!("this has been decided already: {decision}");
            return Err(Problem::new(Code::ApprovalResolved, detail));
        }
    }
    approvals::answer(work.tx, id, &answer, &actor, work.now).await?;
    let data = json!({
        "approval_id": answer.approval_id, "decision": answer.decision, "reason": answer.reason,
        "answers": answer.answers,
    });
    let said = NewEvent::system(kind::APPROVAL_ANSWERED, work.now, &data).by(Source::User, Some(actor));
    work.log(&mut sandbox, vec![said]).await?;
    sandboxes::update(work.tx, &mut sandbox).await?;
    work.out.inboxes.push(session.id);
    approvals::get(work.tx, id, &answer.approval_id).await?.ok_or_else(gone)
}

/// Without the secrets that the project knows, as every other word of a person.
fn redacted(work: &Work<'_>, project: ProjectId, mut answer: ApprovalAnswer) -> Result<ApprovalAnswer> {
    answer.reason = answer.reason.map(|reason| work.redacted(project, reason));
    if let Some(answers) = &answer.answers {
        let text = serde_json::to_string(answers).map_err(Problem::internal)?;
        bounds::event_data(&text)?;
        if let Some(clean) = work.secrets.redactor(project).redact_json(&text) {
            answer.answers = Some(serde_json::from_str(&clean).map_err(Problem::internal)?);
        }
    }
    Ok(answer)
}
