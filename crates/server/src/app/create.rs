//! Makes a sandbox, and the session it belongs to where there is none yet.

use super::{Work, inbox, secrets, transcripts};
use crate::auth::secret::{self, NewSecret};
use crate::problem::{Code, Problem, Result};
use atoll_core::agent::DEMO;
use atoll_core::event::{NewEvent, Source, kind};
use atoll_core::id::{ProjectId, SandboxId, SessionId, TokenId};
use atoll_core::job::JobKind;
use atoll_core::message::{Delivery, MessageType};
use atoll_core::sandbox::{Activity, End, ProviderKind, Results, SandboxState, Settings, TurnState};
use atoll_core::session::SessionState;
use atoll_store::jobs;
use atoll_store::sandboxes::{self, Sandbox};
use atoll_store::sessions::{self, Session};
use atoll_store::tokens::{self, Holder, Token};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What was asked for, checked and filled with defaults.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What it will be called.
    pub id: SandboxId,
    pub project: ProjectId,
    pub provider: ProviderKind,
    pub agent: Option<String>,
    pub prompt: Option<String>,
    pub title: Option<String>,
    pub end: End,
    pub labels: BTreeMap<String, String>,
    pub settings: Settings,
    pub actor: String,
}

/// A new sandbox, and the token of its worker where somebody has to start that by hand.
#[derive(Debug)]
pub struct Made {
    pub sandbox: Sandbox,
    pub labels: BTreeMap<String, String>,
    pub worker: Option<NewSecret>,
}

/// A session with its first sandbox.
pub async fn first(work: &mut Work<'_>, plan: Plan) -> Result<Made> {
    let title = plan.title.clone().or_else(|| plan.prompt.as_deref().map(title_of));
    let title = title.map(|title| work.redacted(plan.project, title));
    let mut session = Session {
        id: SessionId::new(),
        project_id: plan.project,
        agent: plan.agent.clone(),
        title: title.unwrap_or_else(|| "untitled".into()),
        branch: None,
        state: SessionState::Open,
        sandbox_id: None,
        last_sandbox_id: None,
        native_id: None,
        transcript: None,
        forked_from: None,
        cost_micros: 0,
        next_position: 0,
        created_by: Some(plan.actor.clone()),
        created_at: work.now,
        updated_at: work.now,
    };
    sessions::insert(work.tx, &session).await?;
    make(work, &mut session, plan, kind::SESSION_OPENED).await
}

/// Another sandbox for a session. The caller holds its lock.
pub async fn next(work: &mut Work<'_>, session: &mut Session, plan: Plan) -> Result<Made> {
    if session.state == SessionState::Closed {
        return Err(Problem::new(Code::SessionClosed, "a closed session takes no further sandbox"));
    }
    if let Some(live) = session.sandbox_id {
        let detail = format!("the session runs in sandbox {live}");
        return Err(Problem::new(Code::SessionBusy, detail).with("sandbox_id", live.to_string()));
    }
    make(work, session, plan, kind::SESSION_RESUMED).await
}

async fn make(work: &mut Work<'_>, session: &mut Session, mut plan: Plan, cause: &'static str) -> Result<Made> {
    secrets::check(work, session.project_id, &mut plan.settings).await?;
    let agent = plan.agent.clone().or_else(|| session.agent.clone());
    let agent = settled(work, &plan, session.project_id, agent).await?;
    let mut sandbox = Sandbox {
        id: plan.id,
        session_id: session.id,
        project_id: session.project_id,
        provider: plan.provider,
        provider_id: None,
        server_id: None,
        agent,
        settings: plan.settings,
        end: plan.end,
        state: SandboxState::Pending,
        ending: None,
        outcome: None,
        reason: None,
        results: Results::None,
        activity: Activity::Starting,
        turn: None,
        turn_state: TurnState::Idle,
        version: 0,
        first_seq: 1,
        last_seq: 0,
        noise: 0,
        heartbeats: 0,
        first_heartbeat: None,
        last_heartbeat: None,
        last_sample: None,
        stream: None,
        boot: None,
        worker_left: false,
        drained: false,
        limit_paused: None,
        cost_model_micros: 0,
        cost_compute_micros: 0,
        created_by: Some(plan.actor.clone()),
        created_at: work.now,
        updated_at: work.now,
        state_since: work.now,
        ended_at: None,
    };
    sandboxes::insert(work.tx, &sandbox, &plan.labels).await?;
    transcripts::hand_over(work, session, &sandbox).await?;
    session.sandbox_id = Some(sandbox.id);
    session.last_sandbox_id = Some(sandbox.id);
    session.agent = sandbox.agent.clone();
    session.updated_at = work.now;
    sessions::update(work.tx, session).await?;

    let by = |event: NewEvent| event.by(Source::User, Some(plan.actor.clone()));
    let mut data = json!({ "session_id": session.id, "title": session.title });
    if cause == kind::SESSION_RESUMED {
        data["native_id"] = session.native_id.clone().into();
        data["transcript"] = session.transcript.clone().into();
    }
    let opened = by(NewEvent::system(cause, work.now, &data));
    let pending = by(NewEvent::system("sandbox.pending", work.now, &json!({ "state": SandboxState::Pending })));
    work.log(&mut sandbox, vec![opened, pending]).await?;
    sandboxes::update(work.tx, &mut sandbox).await?;

    if let Some(content) = plan.prompt {
        let draft = inbox::Draft {
            content,
            message_type: MessageType::UserMessage,
            delivery: Delivery::Steer,
            sender: Some(plan.actor.clone()),
        };
        inbox::queue(work, session, draft).await?;
    }
    let sandbox = sandboxes::get(work.tx, sandbox.id).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
    jobs::put(work.tx, JobKind::Create, sandbox.id, work.steady).await?;
    work.out.jobs = true;
    work.out.states.push((sandbox.id, sandbox.state));
    let worker = match plan.provider {
        ProviderKind::External => Some(worker_token(work, sandbox.id).await?),
        ProviderKind::Local | ProviderKind::Docker | ProviderKind::Fake => None,
    };
    metrics::counter!(crate::metrics::SANDBOXES_MADE, "provider" => plan.provider.as_str()).increment(1);
    Ok(Made { sandbox, labels: plan.labels, worker })
}

/// Where Atoll itself runs the agent, it has to be one that can work there: said before anything is made. Nobody who
/// names none gets the demo.
async fn settled(
    work: &mut Work<'_>,
    plan: &Plan,
    project: ProjectId,
    agent: Option<String>,
) -> Result<Option<String>> {
    if !plan.provider.is_on_this_machine() {
        return Ok(agent);
    }
    if agent.as_deref() == Some(DEMO) {
        return Ok(agent);
    }
    let agents = Arc::clone(&work.agents);
    let keys = agents.keys(work.tx, project, &plan.settings).await?;
    match agent {
        Some(name) => {
            agents.check(&name, &keys)?;
            Ok(Some(name))
        }
        None => match agents.first(&keys) {
            None if plan.prompt.is_some() => Err(agents.none(&keys)),
            found => Ok(found),
        },
    }
}

/// A sandbox that was made when there was no agent has none to hear anything.
pub async fn refuse_unheard(work: &mut Work<'_>, sandbox: &Sandbox) -> Result<()> {
    if sandbox.agent.is_some() || !sandbox.provider.is_on_this_machine() {
        return Ok(());
    }
    let agents = Arc::clone(&work.agents);
    let keys = agents.keys(work.tx, sandbox.project_id, &sandbox.settings).await?;
    Err(agents.none(&keys))
}

/// A new worker token; it ends the old one.
pub async fn worker_token(work: &mut Work<'_>, sandbox: SandboxId) -> Result<NewSecret> {
    tokens::delete_of_worker(work.tx, sandbox).await?;
    let id = TokenId::new();
    let new = secret::generate(id);
    let token = Token {
        id,
        name: format!("worker of {sandbox}"),
        hash: new.hash.clone(),
        holder: Holder::Worker { sandbox },
        created_at: work.now,
        expires_at: None,
    };
    tokens::insert(work.tx, &token).await?;
    Ok(new)
}

/// The first line of a prompt, cut at a word.
pub fn title_of(prompt: &str) -> String {
    let line: String = prompt.trim().lines().next().unwrap_or_default().chars().filter(|c| !c.is_control()).collect();
    if line.chars().count() <= 80 {
        return if line.is_empty() { "untitled".into() } else { line };
    }
    let cut: String = line.chars().take(80).collect();
    let at_word = cut.rfind(' ').filter(|at| *at > 40).map_or(cut.as_str(), |at| &cut[..at]);
    format!("{at_word}…")
}

#[cfg(test)]
mod tests {
    use super::title_of;

    #[test]
    fn a_title_is_one_short_line() {
        assert_eq!(title_of("  fix it\nplease"), "fix it");
        assert_eq!(title_of("\u{7}"), "untitled");
        let long = "word ".repeat(40);
        assert!(title_of(&long).chars().count() <= 81 && title_of(&long).ends_with('…'));
    }
}
