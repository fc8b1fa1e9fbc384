//! Plans a sandbox: turns a request into a `SandboxPlan` with all defaults applied.
//!
//! 1. `prepare_request` runs before the transaction: it checks the access and the request's bounds, chooses the default
//!    approvals from the provider's isolation, and resolves the repository's base commit.
//! 2. `plan_sandbox` runs in the transaction: it fills the open fields from the project, then from the server's configuration. For
//!    a session's next sandbox, `plan_next_sandbox` keeps the last one's agent, model and repository.
//!
//! Resumed and forked sessions start from `plan_from_last`. `create` checks the secrets and resolves the agent of every
//! plan before it stores the sandbox.

mod agent_settings;
mod request_checks;

pub use request_checks::{check_default_repo, check_defaults, check_repo, check_task_settings};

use super::Work;
use super::branch_workflow;
use super::services::check_support;
use super::ticket_work::{apply_ticket, choose_ticket_branch};
use crate::auth::Caller;
use crate::auth::access::{CanWork, ClientCaller};
use crate::problem::{Problem, Result};
use crate::repositories::{CredentialScope, ResolvedRepository, resolve_repository};
use crate::state::App;
use agent_settings::{check_continuous, choose_agent_settings};
use atoll_api::NewSandbox;
use atoll_core::id::{ProjectId, SandboxId, SessionId, TicketId};
use atoll_core::policy::ToolPolicy;
use atoll_core::protected_paths;
use atoll_core::sandbox::{ApprovalMode, EndPolicy, ProviderKind, Repo, Settings};
use atoll_core::sparse_checkout::normalise_sparse_dirs;
use atoll_store::projects::{self, ProjectRow};
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::sessions::SessionRow;
use atoll_store::tickets::TicketRow;
use request_checks::{check_maximum, check_request, lower_to_maximum};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// A validated request for a sandbox with all defaults applied.
#[derive(Debug, Clone)]
pub struct SandboxPlan {
    pub id: SandboxId,
    pub project: ProjectId,
    pub provider: ProviderKind,
    /// The failing provider that `provider` replaces.
    pub replaced_provider: Option<ProviderKind>,
    pub agent: Option<String>,
    pub prompt: Option<String>,
    pub title: Option<String>,
    pub name: Option<String>,
    pub end: EndPolicy,
    pub labels: BTreeMap<String, String>,
    pub settings: Settings,
    /// The ticket that the sandbox works on.
    pub ticket: Option<TicketId>,
    pub actor: String,
}

/// A checked request whose caller may create the sandbox.
pub struct PreparedRequest {
    pub caller: Caller,
    pub project: ProjectId,
    /// The session that the sandbox continues.
    pub session: Option<SessionId>,
    new: NewSandbox,
    ticket: Option<TicketRow>,
    /// The failing provider that the fallback replaces.
    replaced_provider: Option<ProviderKind>,
    /// Branch names that exist in the repository.
    taken_branches: BTreeSet<String>,
}

/// Time limit for a provider to report its isolation.
const ISOLATION_TIMEOUT: Duration = Duration::from_secs(10);

/// Step 1: everything that needs the provider or git, before the transaction.
pub async fn prepare_request(app: &App, client: ClientCaller, mut new: NewSandbox) -> Result<PreparedRequest> {
    let ticket = match new.ticket_id {
        Some(id) => Some(apply_ticket(app, client.0.clone(), id, &mut new).await?),
        None => None,
    };
    let (session, caller) = (new.session_id, client.0.clone());
    let project = match session {
        Some(id) => CanWork::authorize(app, client.0, id).await?.project,
        None => CanWork::authorize(app, client.0, new.project_id.unwrap_or(app.default_project)).await?.project,
    };
    if new.project_id.is_some_and(|named| named != project) {
        return Err(Problem::invalid("project_id: the session belongs to another project"));
    }
    check_request(&new, &caller)?;
    if !new.modes.is_empty() {
        return Err(Problem::invalid("modes: only a project's defaults can define modes"));
    }
    let (replaced_provider, taken_branches) = (None, BTreeSet::new());
    let mut request = PreparedRequest { caller, project, session, new, ticket, replaced_provider, taken_branches };
    let row = app.read(async move |tx| Ok(projects::find_project(tx, project).await?)).await?;
    let row = row.ok_or_else(|| Problem::not_found("project"))?;
    let defaults = parse_defaults(&row)?;
    let wanted = request.new.provider.or(defaults.provider).unwrap_or(app.config.provider.default);
    let fallback = request.new.fallback_provider.or(defaults.fallback_provider);
    let chosen = app.circuits.choose_provider(wanted, fallback, app.clock.steady_now())?;
    if chosen != wanted {
        (request.new.provider, request.replaced_provider) = (Some(chosen), Some(wanted));
    }
    let provider = app.providers()?.get(chosen);
    if !provider.capabilities().runs_agents() {
        return Ok(request);
    }
    if request.new.approvals.or(defaults.approvals).is_none() {
        let is_confined = tokio::time::timeout(ISOLATION_TIMEOUT, provider.confines_agents()).await.unwrap_or(false);
        request.new.approvals = Some(if is_confined { ApprovalMode::Full } else { ApprovalMode::Edits });
    }
    // A session continues with its own repository, which is resolved already.
    if session.is_none() || request.new.repo.is_some() {
        let mut repo = request.new.repo.take().or(defaults.repo).or(row.repo);
        if let (Some(repo), Some(ticket)) = (&mut repo, &request.ticket) {
            repo.branch = Some(choose_ticket_branch(ticket, repo.branch.take())?);
        }
        if let Some(resolved) = resolve_repo(app, &request, repo).await? {
            request.new.repo = Some(resolved.repo);
            request.taken_branches = resolved.taken_branches;
        }
    }
    Ok(request)
}

/// A project's defaults as a request.
pub fn parse_defaults(project: &ProjectRow) -> Result<NewSandbox> {
    serde_json::from_value(project.defaults.clone().into())
        .map_err(|error| Problem::internal(format!("defaults: {error}")))
}

/// Resolves the base commit and the branch, so that an unusable repository is an error of the request.
async fn resolve_repo(app: &App, request: &PreparedRequest, repo: Option<Repo>) -> Result<Option<ResolvedRepository>> {
    let Some(mut repo) = repo else { return Ok(None) };
    check_repo(&repo, &request.caller)?;
    repo.sparse = normalise_sparse_dirs("repo.sparse", &repo.sparse)?;
    let prompt = request.new.prompt.as_deref();
    let title = request.new.title.clone().or_else(|| prompt.map(title_from_prompt)).unwrap_or_default();
    let title = app.secrets.redactor(request.project).redact(&title).unwrap_or(title);
    let scope = CredentialScope { project: request.project, requester: request.caller.user() };
    resolve_repository(app, scope, repo, title).await.map(Some)
}

/// Chooses the name of a new branch: the requested one, or the next one that is neither taken in the repository nor planned
/// for another live sandbox.
async fn choose_branch(work: &mut Work<'_>, repo: &mut Repo, taken: &BTreeSet<String>) -> Result<()> {
    let (Some(location), Some(branch)) = (repo.location(), &repo.branch) else { return Ok(()) };
    let mut taken = taken.clone();
    taken.extend(sandboxes::list_planned_branches(work.tx, location, branch).await?);
    repo.branch = atoll_forge::free_branch_name(branch, &taken).or_else(|| repo.branch.take());
    Ok(())
}

/// Step 2: fills the fields that the request leaves open from the project, then from the server's configuration.
pub async fn plan_sandbox(work: &mut Work<'_>, request: PreparedRequest) -> Result<SandboxPlan> {
    let PreparedRequest { caller, project, mut new, ticket, taken_branches, replaced_provider, .. } = request;
    let row = projects::find_project(work.tx, project).await?.ok_or_else(|| Problem::not_found("project"))?;
    let mut defaults = parse_defaults(&row)?;
    let config = Arc::clone(&work.config);
    let provider = new.provider.or(defaults.provider).unwrap_or(config.provider.default);
    let capabilities = work.capabilities(provider);
    let runs_agents = capabilities.runs_agents();
    let has_repository = new.repo.is_some() || defaults.repo.is_some() || row.repo.is_some();
    let agent_settings = choose_agent_settings(&mut new, &mut defaults, &config.continuous.limits(), has_repository);
    if let Some(continuous) = &agent_settings.continuous {
        let delivers = has_repository && agent_settings.deliver != Some(false);
        check_continuous(continuous, runs_agents, delivers)?;
    }
    let services = new.services.or(defaults.services).unwrap_or_default();
    check_support(&services, provider, &capabilities)?;
    let mut env = defaults.env;
    env.extend(new.env);
    let mut labels = defaults.labels;
    labels.extend(new.labels);
    let requested = new.resources.unwrap_or_default().or(defaults.resources.unwrap_or_default());
    check_maximum(&requested, &capabilities)?;
    let resources = requested.or(lower_to_maximum(config.sandbox.resources(), &capabilities));
    let limits = match (new.limits, defaults.limits) {
        (Some(requested), Some(of_project)) => Some(requested.or(of_project)),
        (requested, of_project) => requested.or(of_project),
    };
    // The server's protected paths only apply to sandboxes that it can enforce them in.
    let of_server = if runs_agents { config.sandbox.protected.as_slice() } else { &[] };
    let protected = protected_paths::join_protected_paths(
        "protected",
        new.protected.iter().chain(&defaults.protected).chain(of_server),
    )?;
    let mut repo = new.repo.or(defaults.repo).or(row.repo);
    let owns_branch = ticket.as_ref().is_some_and(|ticket| ticket.branch.is_some());
    if let Some(repo) = repo.as_mut().filter(|_| runs_agents && !owns_branch) {
        choose_branch(work, repo, &taken_branches).await?;
    }
    let settings = Settings {
        model: agent_settings.model.or_else(|| config.sandbox.model.clone()),
        mode: agent_settings.mode,
        approvals: agent_settings.approvals,
        repo,
        image: new.image.or(defaults.image).or_else(|| config.sandbox.image.clone()),
        snapshot: new.snapshot.or(defaults.snapshot).or_else(|| config.sandbox.snapshot.clone()),
        env,
        resources: Some(resources),
        isolation: new.isolation.max(defaults.isolation),
        protected,
        network: new.network.or(defaults.network),
        setup: new.setup,
        limits,
        policy: ToolPolicy::join_policies(defaults.policy, new.policy),
        guardian: new.guardian.or(defaults.guardian),
        health: match (new.health, defaults.health) {
            (Some(requested), Some(of_project)) => Some(requested.or(of_project)),
            (requested, of_project) => requested.or(of_project),
        },
        timeout_s: new.timeout_s.or(defaults.timeout_s),
        tools: agent_settings.tools,
        denied_tools: agent_settings.denied_tools,
        enable_subagents: agent_settings.enable_subagents,
        enable_skills: agent_settings.enable_skills,
        deliver: agent_settings.deliver,
        continuous: agent_settings.continuous,
        system_prompt: agent_settings.system_prompt,
        mcp: new.mcp.or(defaults.mcp),
        services,
        forked_from: None,
        git: match (new.git, defaults.git) {
            (Some(requested), Some(of_project)) => Some(requested.or(of_project)),
            (requested, of_project) => requested.or(of_project),
        },
        secrets: new.secrets.or(defaults.secrets),
        exposed_secrets: Vec::new(),
    };
    let end = if new.prompt.is_some() { EndPolicy::WhenDone } else { EndPolicy::Keep };
    Ok(SandboxPlan {
        id: SandboxId::new(),
        project,
        provider,
        replaced_provider,
        agent: new.agent.or(defaults.agent).or_else(|| config.agent.default.clone()),
        prompt: new.prompt,
        title: new.title,
        name: new.name,
        end: new.end.or(defaults.end).unwrap_or(end),
        labels,
        settings,
        ticket: ticket.map(|ticket| ticket.id),
        actor: caller.actor(),
    })
}

/// Step 2 for a session's next sandbox. Agent, model and repository come from its last sandbox unless the request sets
/// them, so that the agent finds its transcript and its work.
pub async fn plan_next_sandbox(
    work: &mut Work<'_>,
    session: &SessionRow,
    request: PreparedRequest,
) -> Result<SandboxPlan> {
    let new = &request.new;
    let (sets_agent, sets_model, sets_repo) = (new.agent.is_some(), new.model.is_some(), new.repo.is_some());
    let mut plan = plan_sandbox(work, request).await?;
    let Some(last) = session.last_sandbox_id else { return Ok(plan) };
    let Some(last) = sandboxes::find_sandbox(work.tx, last).await? else { return Ok(plan) };
    if !sets_agent {
        plan.agent = last.agent.clone().or(plan.agent);
    }
    if !sets_model && plan.agent == session.agent {
        plan.settings.model = last.settings.model.clone().or(plan.settings.model);
    }
    if work.capabilities(plan.provider).runs_agents() {
        if !sets_repo {
            plan.settings.repo = last.settings.repo.clone();
        }
        let repo = plan.settings.repo.as_mut();
        let is_last = |repo: &&mut Repo| last.settings.repo.as_ref().is_some_and(|last| last.has_same_location(repo));
        if let Some(repo) = repo.filter(is_last) {
            continue_branch(work, session, &last, repo).await?;
        }
    }
    Ok(plan)
}

/// Keeps the session on its own branch. A fork of a session, whose `last` sandbox is its parent's, gets a new one.
async fn continue_branch(work: &mut Work<'_>, session: &SessionRow, last: &SandboxRow, repo: &mut Repo) -> Result<()> {
    if let Some(branch) = &session.branch {
        repo.branch = Some(branch.clone());
        // The branch may have got newer commits of its base.
        repo.base = branch_workflow::find_base(work.tx, session.id).await?.or(repo.base.take());
        return Ok(());
    }
    let parents_branch = repo.branch.clone().filter(|_| last.session_id != session.id);
    choose_branch(work, repo, &parents_branch.into_iter().collect()).await
}

/// Plans a session's next sandbox with the settings of its newest one.
pub async fn plan_from_last(work: &mut Work<'_>, session: &SessionRow, actor: String) -> Result<SandboxPlan> {
    let last = match session.last_sandbox_id {
        Some(id) => sandboxes::find_sandbox(work.tx, id).await?,
        None => None,
    };
    let labels = match &last {
        Some(sandbox) => sandboxes::list_labels(work.tx, sandbox.id).await?,
        None => BTreeMap::new(),
    };
    let mut settings = last.as_ref().map(|sandbox| sandbox.settings.clone()).unwrap_or_default();
    // The next sandbox starts from the branch, not from the last one's fork.
    settings.forked_from = None;
    if let (Some(repo), Some(last)) = (&mut settings.repo, &last) {
        continue_branch(work, session, last, repo).await?;
    }
    let wanted = last.as_ref().map_or(work.config.provider.default, |sandbox| sandbox.provider);
    let fallback = match projects::find_project(work.tx, session.project_id).await? {
        Some(project) => parse_defaults(&project)?.fallback_provider,
        None => None,
    };
    let provider = work.circuits.choose_provider(wanted, fallback, work.steady)?;
    Ok(SandboxPlan {
        id: SandboxId::new(),
        project: session.project_id,
        provider,
        replaced_provider: Some(wanted).filter(|wanted| *wanted != provider),
        agent: session.agent.clone(),
        prompt: None,
        title: None,
        name: None,
        end: last.as_ref().map_or(EndPolicy::Keep, |sandbox| sandbox.end),
        labels,
        settings,
        ticket: None,
        actor,
    })
}

/// Derives a title from the prompt's first line, cut at a word boundary.
pub fn title_from_prompt(prompt: &str) -> String {
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
    use super::title_from_prompt;

    #[test]
    fn a_title_is_one_short_line() {
        assert_eq!(title_from_prompt("  fix it\nplease"), "fix it");
        assert_eq!(title_from_prompt("\u{7}"), "untitled");
        let long = "word ".repeat(40);
        assert!(title_from_prompt(&long).chars().count() <= 81 && title_from_prompt(&long).ends_with('…'));
    }
}
