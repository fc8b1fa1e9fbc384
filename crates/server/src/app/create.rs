//! Stores a new sandbox, and a new session if it has none yet.

use super::sandbox_plan::{SandboxPlan, plan_next_sandbox, plan_sandbox, prepare_request, title_from_prompt};
use super::sessions::lock_session;
use super::views::{SessionFacts, view_new_sandbox};
use super::{Work, inbox, lifecycle, secrets, ticket_work, traces, transcripts};
use crate::auth::access::ClientCaller;
use crate::auth::token_format::{self, IssuedToken};
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::job_queue::CLAIM_DURATION;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::events::{EventData, ProviderReplaced, SandboxPending, SessionOpened, SessionResumed};
use atoll_api::{NewSandbox, SandboxPreview};
use atoll_core::agent::DEMO_AGENT;
use atoll_core::agent_status::AgentStatus;
use atoll_core::event::{EventSource, NewEvent};
use atoll_core::id::{ProjectId, SandboxId, SessionId, TokenId};
use atoll_core::job::JobKind;
use atoll_core::lifecycle::Trigger;
use atoll_core::message::{Delivery, MessageType};
use atoll_core::provider::capabilities::WorkerHost;
use atoll_core::sandbox::{ResultsState, SandboxState};
use atoll_core::session::SessionState;
use atoll_core::setup_phase::{SetupEnvironment, SetupPhase};
use atoll_store::jobs;
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::sessions::{self, SessionRow};
use atoll_store::tokens::{self, TokenHolder, TokenRow};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A new sandbox, with a worker token if a person has to start the worker.
#[derive(Debug)]
pub struct CreatedSandbox {
    pub sandbox: SandboxRow,
    pub session: SessionFacts,
    pub labels: BTreeMap<String, String>,
    pub worker: Option<IssuedToken>,
}

/// Creates a sandbox in a new session, or the next one of a session.
pub async fn create_sandbox(
    app: &App,
    client: ClientCaller,
    key: IdempotencyKey,
    new: NewSandbox,
) -> Result<JsonResponse> {
    let request = prepare_request(app, client, new).await?;
    let (caller, public_url) = (request.caller.clone(), app.public_url.clone());
    app.write_once(&caller, key, async move |work| {
        let created = match request.session {
            None => {
                let plan = plan_sandbox(work, request).await?;
                create_first_sandbox(work, plan).await?
            }
            Some(id) => {
                let mut session = lock_session(work, id).await?;
                let plan = plan_next_sandbox(work, &session, request).await?;
                create_next_sandbox(work, &mut session, plan).await?
            }
        };
        JsonResponse::created(view_new_sandbox(created, &public_url))
    })
    .await
}

/// Resolves the agent and the settings of a sandbox, without creating it.
pub async fn preview_sandbox(app: &App, client: ClientCaller, new: NewSandbox) -> Result<SandboxPreview> {
    let request = prepare_request(app, client, new).await?;
    app.write(async move |work| {
        let (mut plan, session_agent) = match request.session {
            None => (plan_sandbox(work, request).await?, None),
            Some(id) => {
                let session = lock_session(work, id).await?;
                (plan_next_sandbox(work, &session, request).await?, session.agent)
            }
        };
        complete_plan(work, session_agent, &mut plan).await?;
        let SandboxPlan { project: project_id, provider, agent, settings, .. } = plan;
        Ok(SandboxPreview { project_id, provider, agent, settings })
    })
    .await
}

/// Creates a session with its first sandbox.
pub async fn create_first_sandbox(work: &mut Work<'_>, plan: SandboxPlan) -> Result<CreatedSandbox> {
    let title = plan.title.clone().or_else(|| plan.prompt.as_deref().map(title_from_prompt));
    let title = title.map(|title| work.redact_text(plan.project, title));
    let mut session = SessionRow {
        id: SessionId::new(),
        project_id: plan.project,
        agent: plan.agent.clone(),
        title: title.unwrap_or_else(|| "untitled".into()),
        // The branch of a ticket exists before its sandbox, so it is the session's own from the start.
        branch: plan.settings.repo.as_ref().filter(|_| plan.ticket.is_some()).and_then(|repo| repo.branch.clone()),
        state: SessionState::Open,
        sandbox_id: None,
        last_sandbox_id: None,
        native_id: None,
        transcript: None,
        forked_from: None,
        cost_micros: 0,
        next_position: 0,
        attention: None,
        is_archived: false,
        created_by: Some(plan.actor.clone()),
        created_at: work.now,
        updated_at: work.now,
    };
    sessions::insert_session(work.tx, &session).await?;
    insert_sandbox(work, &mut session, plan, opened_event).await
}

/// Creates another sandbox for a session. The caller holds the session's lock.
pub async fn create_next_sandbox(
    work: &mut Work<'_>,
    session: &mut SessionRow,
    plan: SandboxPlan,
) -> Result<CreatedSandbox> {
    if session.state == SessionState::Closed {
        return Err(Problem::new(Code::SessionClosed, "a closed session cannot get another sandbox")
            .with("session_id", session.id.to_string()));
    }
    if let Some(live) = session.sandbox_id {
        let detail = format!("the session runs in sandbox {live}");
        return Err(Problem::new(Code::SessionBusy, detail).with("sandbox_id", live.to_string()));
    }
    insert_sandbox(work, session, plan, resumed_event).await
}

fn opened_event(session: &SessionRow) -> EventData {
    EventData::SessionOpened(SessionOpened { session_id: session.id, title: session.title.clone() })
}

fn resumed_event(session: &SessionRow) -> EventData {
    EventData::SessionResumed(SessionResumed {
        session_id: session.id,
        title: session.title.clone(),
        native_id: session.native_id.clone(),
        transcript: session.transcript.clone(),
    })
}

async fn insert_sandbox(
    work: &mut Work<'_>,
    session: &mut SessionRow,
    mut plan: SandboxPlan,
    session_event: fn(&SessionRow) -> EventData,
) -> Result<CreatedSandbox> {
    complete_plan(work, session.agent.clone(), &mut plan).await?;
    let mut sandbox = SandboxRow {
        id: plan.id,
        name: plan.name,
        is_archived: false,
        session_id: session.id,
        project_id: session.project_id,
        provider: plan.provider,
        provider_id: None,
        server_id: None,
        agent: plan.agent,
        settings: plan.settings,
        end: plan.end,
        state: SandboxState::Pending,
        ending: None,
        outcome: None,
        reason: None,
        results: ResultsState::None,
        status: AgentStatus::NEW,
        setup: SetupPhase::None,
        setup_environment: SetupEnvironment::default(),
        version: 0,
        first_seq: 1,
        last_seq: 0,
        noise_count: 0,
        log_bytes: 0,
        blob_bytes: 0,
        dropped_events: 0,
        rate_limited_until: None,
        heartbeat_count: 0,
        first_heartbeat: None,
        last_heartbeat: None,
        last_sample: None,
        work_at: None,
        pause_cause: None,
        stream: None,
        boot: None,
        worker_has_exited: false,
        is_drained: false,
        cost_model_micros: 0,
        cost_compute_micros: 0,
        created_by: Some(plan.actor.clone()),
        created_at: work.now,
        updated_at: work.now,
        state_since: work.now,
        ended_at: None,
    };
    sandboxes::insert_sandbox(work.tx, &sandbox, &plan.labels).await?;
    traces::begin_trace(work, &sandbox).await?;
    copy_setup_environment(work, &mut sandbox).await?;
    transcripts::hand_over_transcript(work, session, &sandbox).await?;
    session.sandbox_id = Some(sandbox.id);
    session.last_sandbox_id = Some(sandbox.id);
    session.is_archived = false;
    session.attention = None;
    session.agent = sandbox.agent.clone();
    session.updated_at = work.now;
    sessions::update_session(work.tx, session).await?;
    if let Some(repo) = &sandbox.settings.repo {
        ticket_work::record_branch_key(work, session, repo).await?;
    }
    if let Some(ticket) = plan.ticket {
        ticket_work::start_ticket(work, ticket, session.id).await?;
    }

    let by = |event: NewEvent| event.with_source(EventSource::User, Some(plan.actor.clone()));
    let opened = by(session_event(session).into_event(work.now));
    let pending = EventData::SandboxPending(SandboxPending { state: SandboxState::Pending });
    let pending = by(pending.into_event(work.now));
    let (requested, provider) = (plan.replaced_provider, plan.provider);
    let replaced =
        requested.map(|requested| EventData::SandboxProviderReplaced(ProviderReplaced { requested, provider }));
    let mut events = vec![opened, pending];
    events.extend(replaced.map(|data| data.into_event(work.now)));
    work.log(&mut sandbox, events).await?;
    sandboxes::update_sandbox(work.tx, &mut sandbox).await?;

    if let Some(content) = plan.prompt {
        let draft = inbox::MessageDraft {
            content,
            message_type: MessageType::UserMessage,
            delivery: Delivery::Steer,
            sender: Some(plan.actor.clone()),
        };
        inbox::queue_message(work, session, draft).await?;
    }
    let sandbox = sandboxes::find_sandbox(work.tx, sandbox.id).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
    work.out.states.push((sandbox.id, sandbox.state));
    request_creation(work, session, sandbox.clone()).await?;
    let worker = match work.capabilities(plan.provider).worker {
        WorkerHost::Person => Some(issue_worker_token(work, sandbox.id).await?),
        WorkerHost::Server | WorkerHost::Provider => None,
    };
    metrics::counter!(crate::metrics::SANDBOXES_MADE, "provider" => plan.provider.as_str()).increment(1);
    Ok(CreatedSandbox { sandbox, session: SessionFacts::from(&*session), labels: plan.labels, worker })
}

/// Moves the sandbox to `creating`, and claims its create job for this server, which runs it right after the commit.
async fn request_creation(work: &mut Work<'_>, session: &mut SessionRow, mut sandbox: SandboxRow) -> Result<()> {
    lifecycle::apply_trigger(work, session, &mut sandbox, Trigger::CreationRequested, None, None).await?;
    let job = jobs::insert_claimed_job(work.tx, JobKind::Create, sandbox.id, work.steady, CLAIM_DURATION).await?;
    work.out.claimed_jobs.push(job);
    Ok(())
}

/// A fork has the files that its parent's set-up left, so its agent needs the same variables.
async fn copy_setup_environment(work: &mut Work<'_>, sandbox: &mut SandboxRow) -> Result<()> {
    let Some(parent) = sandbox.settings.forked_from else { return Ok(()) };
    if let Some(parent) = sandboxes::find_sandbox(work.tx, parent).await? {
        sandbox.setup_environment = parent.setup_environment;
        sandboxes::update_setup_environment(work.tx, sandbox).await?;
    }
    Ok(())
}

/// Checks the secrets and resolves the agent, before anything is stored.
async fn complete_plan(work: &mut Work<'_>, session_agent: Option<String>, plan: &mut SandboxPlan) -> Result<()> {
    secrets::check_secrets(work, plan.project, &mut plan.settings).await?;
    let agent = plan.agent.take().or(session_agent);
    plan.agent = resolve_agent(work, plan, plan.project, agent).await?;
    Ok(())
}

/// Resolves the agent, and checks that it can run if Atoll runs it. The demo agent is never the default.
async fn resolve_agent(
    work: &mut Work<'_>,
    plan: &SandboxPlan,
    project: ProjectId,
    agent: Option<String>,
) -> Result<Option<String>> {
    if !work.capabilities(plan.provider).runs_agents() || agent.as_deref() == Some(DEMO_AGENT) {
        return Ok(agent);
    }
    let agents = Arc::clone(&work.agents);
    let keys = agents.project_keys(work.tx, project, &plan.settings).await?;
    match agent {
        Some(name) => {
            agents.check_agent(&name, &keys)?;
            Ok(Some(name))
        }
        None => match agents.default_agent(&keys) {
            None if plan.prompt.is_some() => Err(agents.no_agent_problem(&keys)),
            found => Ok(found),
        },
    }
}

/// Issues a new worker token and revokes the old one.
pub async fn issue_worker_token(work: &mut Work<'_>, sandbox: SandboxId) -> Result<IssuedToken> {
    tokens::delete_worker_token(work.tx, sandbox).await?;
    let id = TokenId::new();
    let new = token_format::generate_token(id);
    let token = TokenRow {
        id,
        name: format!("worker of {sandbox}"),
        hash: new.hash.clone(),
        holder: TokenHolder::Worker { sandbox },
        created_at: work.now,
        expires_at: None,
    };
    tokens::insert_token(work.tx, &token).await?;
    Ok(new)
}
