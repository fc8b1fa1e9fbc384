//! Messages of people to agents, addressed to a sandbox or to its session.

use super::create::{CreatedSandbox, create_next_sandbox};
use super::inbox::{self, MessageDraft, MessageEdit};
use super::sandbox_plan::plan_from_last;
use super::views::{cut_page, view_message, view_new_sandbox};
use super::{Work, sessions};
use crate::auth::Caller;
use crate::auth::access::{Access, CanSee, CanWork, Permission, ReaderOrWorker};
use crate::cursor::decode_number;
use crate::extract::page_size;
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::{ChangeMessage, MessageListQuery, NewMessage, Page, SentToSession};
use atoll_core::bounds;
use atoll_core::id::{MessageId, SandboxId, SessionId};
use atoll_core::message::MessageType;
use atoll_core::sandbox::SandboxState;
use atoll_core::session::SessionState;
use atoll_store::messages::{self, MessageRow};
use atoll_store::sandboxes::{self, SandboxRow};
use std::sync::Arc;

fn check_message(new: NewMessage, caller: &Caller) -> Result<MessageDraft> {
    bounds::check_content("content", &new.content, bounds::MAX_MESSAGE_BYTES)?;
    match new.message_type {
        MessageType::UserMessage | MessageType::Interrupt => {}
        // Only admins may send in the guardian's or the system's name.
        MessageType::GuardianNudge | MessageType::System => caller.require_admin()?,
    }
    Ok(MessageDraft {
        content: new.content,
        message_type: new.message_type,
        delivery: new.delivery,
        sender: Some(caller.actor()),
    })
}

pub async fn send_to_sandbox(
    app: &App,
    access: CanWork<SandboxId>,
    key: IdempotencyKey,
    new: NewMessage,
) -> Result<JsonResponse> {
    let (id, draft) = (access.id, check_message(new, &access.caller)?);
    app.write_once(&access.caller, key, async move |work| {
        JsonResponse::created(view_message(queue_for_sandbox(work, id, draft).await?))
    })
    .await
}

/// Sends to a session, which gets a new sandbox if it has no live one.
pub async fn send_to_session(
    app: &App,
    access: CanWork<SessionId>,
    key: IdempotencyKey,
    new: NewMessage,
) -> Result<JsonResponse> {
    let (id, draft) = (access.id, check_message(new, &access.caller)?);
    let public_url = app.public_url.clone();
    app.write_once(&access.caller, key, async move |work| {
        let (message, created) = queue_for_session(work, id, draft).await?;
        let sandbox = created.map(|created| view_new_sandbox(created, &public_url));
        JsonResponse::created(SentToSession { message: view_message(message), sandbox })
    })
    .await
}

/// Sends a message to a session. Without a live sandbox, the session gets a new one like its last.
pub async fn queue_for_session(
    work: &mut Work<'_>,
    id: SessionId,
    draft: MessageDraft,
) -> Result<(MessageRow, Option<CreatedSandbox>)> {
    let mut session = sessions::lock_session(work, id).await?;
    if session.state == SessionState::Closed {
        return Err(Problem::new(Code::SessionClosed, "a closed session accepts no messages")
            .with("session_id", id.to_string()));
    }
    let mut created = None;
    if session.sandbox_id.is_none() {
        let actor = draft.sender.clone().unwrap_or_default();
        let plan = plan_from_last(work, &session, actor).await?;
        let next = create_next_sandbox(work, &mut session, plan).await?;
        require_agent(work, &next.sandbox).await?;
        created = Some(next);
    } else if let Some(id) = session.sandbox_id
        && let Some(sandbox) = sandboxes::find_sandbox(work.tx, id).await?
    {
        require_agent(work, &sandbox).await?;
    }
    let message = inbox::queue_message(work, &mut session, draft).await?;
    Ok((message, created))
}

/// Sends a message to a sandbox while it can still reach the agent.
async fn queue_for_sandbox(work: &mut Work<'_>, id: SandboxId, draft: MessageDraft) -> Result<MessageRow> {
    let (mut session, sandbox) = work.lock_sandbox(id).await?;
    let refuse = |code, detail: &str| {
        Err(Problem::new(code, detail).with("session_id", session.id.to_string()).with("state", sandbox.state.as_str()))
    };
    match sandbox.state {
        SandboxState::Completing => {
            return refuse(Code::SandboxEnding, "the sandbox is exporting its results; send to the session instead");
        }
        SandboxState::Completed | SandboxState::Failed => {
            return refuse(Code::SandboxEnded, "send to the session instead, which gets a new sandbox");
        }
        SandboxState::Pending | SandboxState::Creating | SandboxState::Running => {}
    }
    require_agent(work, &sandbox).await?;
    inbox::queue_message(work, &mut session, draft).await
}

/// Refuses a message to a sandbox without an agent.
async fn require_agent(work: &mut Work<'_>, sandbox: &SandboxRow) -> Result<()> {
    if sandbox.agent.is_some() || !work.capabilities(sandbox.provider).runs_agents() {
        return Ok(());
    }
    let agents = Arc::clone(&work.agents);
    let keys = agents.project_keys(work.tx, sandbox.project_id, &sandbox.settings).await?;
    Err(agents.no_agent_problem(&keys))
}

async fn find_session(app: &App, sandbox: SandboxId) -> Result<SessionId> {
    let owner = app.read(async move |tx| Ok(sandboxes::find_owner_ids(tx, sandbox).await?)).await?;
    Ok(owner.ok_or_else(|| Problem::not_found("sandbox"))?.0)
}

async fn list_messages(app: &App, session: SessionId, query: MessageListQuery) -> Result<Page<atoll_api::Message>> {
    let limit = page_size(query.limit, 50, 200)?;
    let after = decode_number("messages", query.cursor.as_deref())?.unwrap_or(-1);
    let rows = app.read(async move |tx| Ok(messages::list_messages(tx, session, query.state, after, limit + 1).await?));
    Ok(cut_page("messages", rows.await?, limit, |row| row.position.to_string()).map(view_message))
}

pub async fn list_of_sandbox(
    app: &App,
    access: ReaderOrWorker,
    query: MessageListQuery,
) -> Result<Page<atoll_api::Message>> {
    let session = find_session(app, access.sandbox).await?;
    list_messages(app, session, query).await
}

pub async fn list_of_session(
    app: &App,
    access: CanSee<SessionId>,
    query: MessageListQuery,
) -> Result<Page<atoll_api::Message>> {
    list_messages(app, access.id, query).await
}

async fn edit_message<T, P: Permission>(
    app: &App,
    access: Access<T, P>,
    session: SessionId,
    message: MessageId,
    key: IdempotencyKey,
    change: ChangeMessage,
) -> Result<JsonResponse> {
    let ChangeMessage { content, delivery, before } = change;
    let (edit, actor) = (MessageEdit { content, delivery, before }, access.caller.actor());
    app.write_once(&access.caller, key, async move |work| {
        let session = sessions::lock_session(work, session).await?;
        JsonResponse::ok(view_message(inbox::edit_message(work, &session, message, edit, actor).await?))
    })
    .await
}

pub async fn edit_in_sandbox(
    app: &App,
    access: CanWork<SandboxId>,
    message: MessageId,
    key: IdempotencyKey,
    change: ChangeMessage,
) -> Result<JsonResponse> {
    let session = find_session(app, access.id).await?;
    edit_message(app, access, session, message, key, change).await
}

pub async fn edit_in_session(
    app: &App,
    access: CanWork<SessionId>,
    message: MessageId,
    key: IdempotencyKey,
    change: ChangeMessage,
) -> Result<JsonResponse> {
    let session = access.id;
    edit_message(app, access, session, message, key, change).await
}

async fn cancel_message(
    work: &mut Work<'_>,
    session: SessionId,
    message: MessageId,
    actor: String,
) -> Result<atoll_api::Message> {
    let mut session = sessions::lock_session(work, session).await?;
    Ok(view_message(inbox::cancel_message(work, &mut session, message, actor).await?))
}

pub async fn cancel_in_sandbox(
    app: &App,
    access: CanWork<SandboxId>,
    message: MessageId,
) -> Result<atoll_api::Message> {
    let (session, actor) = (find_session(app, access.id).await?, access.actor());
    app.write(async move |work| cancel_message(work, session, message, actor).await).await
}

pub async fn cancel_in_session(
    app: &App,
    access: CanWork<SessionId>,
    message: MessageId,
) -> Result<atoll_api::Message> {
    app.write(async move |work| cancel_message(work, access.id, message, access.actor()).await).await
}
