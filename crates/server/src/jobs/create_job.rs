//! The create job: asks the provider to create a sandbox.

use super::checkout_layer::CheckoutLayer;
use super::clone_events::describe_clone;
use super::sandbox_command::CommandTarget;
use super::setup_cache::SetupCache;
use super::setup_failure::report_problem;
use super::setup_plan::{PlannedSetup, SetupDecision, decide_setup};
use super::setup_run::{SetupEnd, SetupRun};
use super::ticket_branch::ensure_ticket_branch;
use super::{JobOutcome, back_off};
use crate::app::row_wait::wait_for_row;
use crate::app::sandbox_plan::parse_defaults;
use crate::app::{lifecycle, setup, task_dispatch};
use crate::metrics::record_seconds;
use crate::problem::{Problem, Result};
use crate::providers::Providers;
use crate::repositories::{self, PreparedRepository};
use crate::state::App;
use crate::telemetry::{self, FinishedSpan, PROVIDER_CREATE, SpanOrigin, provider_context};
use atoll_api::NewSandbox;
use atoll_api::events::{CircuitClosed, CircuitOpened, EventData, SandboxNotice, SetupSkipped};
use atoll_core::event::{EventSource, NewEvent};
use atoll_core::health::circuit_breaker::{Admission, CircuitChange};
use atoll_core::id::SandboxId;
use atoll_core::job::JobKind;
use atoll_core::lifecycle::Trigger;
use atoll_core::provider::{
    CacheUse, CreateSpec, Error, Identity, Provider, ProviderId, ProviderSandbox, ProviderState, RepositorySource,
    provider_snapshot_name,
};
use atoll_core::sandbox::{ProviderKind, Reason, SandboxState};
use atoll_store::jobs::{self, Job};
use atoll_store::projects;
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::traces;
use futures_util::FutureExt;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::OwnedMutexGuard;

/// Time limit of one provider call. Another job fails the sandbox at its create timeout; a sandbox that the provider
/// creates after that is removed.
const CREATE_TIMEOUT: Duration = Duration::from_secs(900);

/// Failures of the server or the provider after which a set-up is not tried again.
const MAX_SETUP_ATTEMPTS: i64 = 3;

/// A sandbox that its provider has to create or set up.
struct PendingCreation {
    sandbox: SandboxRow,
    labels: BTreeMap<String, String>,
    /// The session's branch, if an earlier sandbox left one.
    branch: Option<String>,
    /// The project's defaults.
    defaults: NewSandbox,
}

pub(crate) async fn create_sandbox(app: &Arc<App>, providers: &Providers, job: &Job) -> Result<JobOutcome> {
    let id = job.sandbox_id;
    let Some(mut pending) = begin_creation(app, id).await? else { return Ok(JobOutcome::Finished) };
    let kind = pending.sandbox.provider;
    let provider = providers.get(kind);
    if pending.sandbox.provider_id.is_some() {
        if let Some(outcome) = discard_interrupted(app, &*provider, &pending.sandbox, job).await? {
            return Ok(outcome);
        }
        match begin_creation(app, id).await? {
            Some(again) => pending = again,
            None => return Ok(JobOutcome::Finished),
        }
    }
    let PendingCreation { mut sandbox, labels, mut branch, defaults } = pending;
    let identity = Identity {
        deployment: app.deployment.clone(),
        sandbox: id,
        session: sandbox.session_id,
        project: sandbox.project_id,
    };
    let runs_agents = provider.capabilities().runs_agents();
    if runs_agents && sandbox.settings.forked_from.is_none() {
        match ensure_ticket_branch(app, &mut sandbox).await {
            Ok(of_ticket) => branch = of_ticket.or(branch),
            Err(problem) if problem.is_server_error() => return Err(problem),
            Err(problem) => return record_failure(app, job, source_failure(&problem)).await,
        }
    }
    // `prepared` holds the bundle until the provider has read it or failed.
    let prepared = match prepare_repository(app, &sandbox, runs_agents, branch).await {
        Ok(prepared) => prepared,
        Err(problem) if problem.is_server_error() => return Err(problem),
        Err(problem) => return record_failure(app, job, source_failure(&problem)).await,
    };
    let source = prepared.as_ref().map(|prepared| prepared.source.clone());
    let mut events = prepared.as_ref().map(|prepared| describe_clone(&sandbox, prepared)).unwrap_or_default();
    let planned = match plan_setup(app, &sandbox, &defaults, source.as_ref(), runs_agents).await? {
        SetupDecision::Planned(planned) => Some(planned),
        SetupDecision::Skipped(reason) => {
            events.extend(reason.map(skipped_event));
            None
        }
        SetupDecision::VariablesOnly(environment, reason) => {
            events.extend(reason.map(skipped_event));
            app.write(async move |work| setup::record_environment(work, id, environment).await).await?;
            None
        }
        SetupDecision::Unusable(error) => {
            let reason = Reason::new("setup_failed", lifecycle::truncate_text(&error.to_string(), 500));
            return record_failure(app, job, reason).await;
        }
    };
    let mut settings = sandbox.settings.clone();
    settings.snapshot = settings.snapshot.map(|name| provider_snapshot_name(sandbox.project_id, &name));
    let agent = sandbox.agent.as_deref().filter(|_| runs_agents);
    let programs = match app.agents.programs_for(agent) {
        Ok(programs) => programs,
        // The program existed when the request was checked.
        Err(unable) => {
            let reason = Reason::new("agent_missing", lifecycle::truncate_text(&unable.describe(), 500));
            return record_failure(app, job, reason).await;
        }
    };
    if !store_plan(app, &sandbox, planned.as_deref()).await? {
        return Ok(JobOutcome::Finished);
    }
    let mut cache = match &planned {
        Some(planned) => SetupCache::find(app, &*provider, &sandbox, planned, source.as_ref()).await,
        None => None,
    };
    // Held until set-up has stored its layer, or failed.
    let _turn = match (&planned, &mut cache) {
        (Some(planned), Some(cache)) if cache.will_store() => {
            let turn = match await_setup_turn(app, id, planned, cache).await? {
                SetupTurn::Taken(turn) => turn,
                SetupTurn::Abandoned => return Ok(JobOutcome::RetryAfter(Duration::ZERO)),
            };
            cache.refresh_start(&*provider, &sandbox).await;
            turn
        }
        (_, _) => None,
    };
    let layer = match &prepared {
        Some(prepared) if planned.is_none() => CheckoutLayer::find(app, &*provider, &sandbox, prepared).await?,
        Some(_) | None => CheckoutLayer::None,
    };
    let start = cache.as_ref().and_then(|cache| cache.start.clone()).or_else(|| layer.start());
    let mut spec = CreateSpec { identity, labels, settings, source, programs, cache: start };
    if let Admission::Refused(until) = app.circuits.admit(kind, app.clock.steady_now()) {
        let seconds = until.elapsed_since(app.clock.steady_now()).as_secs() + 1;
        let detail = format!("the provider {kind} fails repeatedly; the server tries it again in {seconds} s");
        return record_failure(app, job, Reason::new("provider_failing", detail)).await;
    }
    let stores_layer = layer.store_as().is_some();
    let mut written = write_source(&mut spec, prepared.as_ref(), &layer).await;
    record_phase("prepare", app.clock.now().elapsed_since(sandbox.created_at));
    let mut created = match &written {
        Ok(()) => call_provider(app, &*provider, &spec).await,
        Err(_) => Err(Error::Gone),
    };
    if matches!(created, Err(Error::CacheGone { .. })) {
        // The layer was evicted meanwhile, or is unusable.
        if let CheckoutLayer::Start { name, .. } = &layer {
            drop(provider.forget_cache(name).await);
        }
        spec.cache = None;
        written = write_source(&mut spec, prepared.as_ref(), &CheckoutLayer::None).await;
        if written.is_ok() {
            created = call_provider(app, &*provider, &spec).await;
        }
    }
    match written {
        Ok(()) => report_outcome(app, id, kind, created.as_ref().err()).await?,
        Err(problem) if problem.is_server_error() => return Err(problem),
        Err(problem) => return record_failure(app, job, source_failure(&problem)).await,
    }
    match created {
        Ok(found) => {
            drop(prepared);
            if stores_layer {
                crate::app::caches::start_eviction(app);
            }
            let target = CommandTarget { provider, sandbox: found.id.clone() };
            let started_from = found.cache.clone();
            record_created(app, job, found, events, planned.is_none()).await?;
            match planned {
                Some(planned) => {
                    let run = SetupRun::new(app, id, target, &planned, cache, spec.source.is_some());
                    set_up(job, &run, started_from.as_ref()).await
                }
                None => Ok(JobOutcome::Deleted),
            }
        }
        Err(error) if error.is_retryable() && job.attempts < 1 => Ok(JobOutcome::RetryAfter(Duration::from_secs(1))),
        Err(error) => {
            if let Error::Exhausted { detail, until } = &error {
                task_dispatch::record_quota(app, sandbox.provider, detail.clone(), *until).await?;
            }
            let reason = Reason::new(error.code(), lifecycle::truncate_text(&error.to_string(), 500));
            record_failure(app, job, reason).await
        }
    }
}

fn source_failure(problem: &Problem) -> Reason {
    Reason::new("source_failed", lifecycle::truncate_text(&problem.detail, 500))
}

/// Reads the sandbox; `None` if there is nothing to do.
async fn begin_creation(app: &App, id: SandboxId) -> Result<Option<PendingCreation>> {
    app.write(async move |work| {
        let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
        if sandbox.state == SandboxState::Pending {
            lifecycle::apply_trigger(work, &mut session, &mut sandbox, Trigger::CreationRequested, None, None).await?;
        }
        let is_needed = sandbox.state.is_live() && (sandbox.provider_id.is_none() || sandbox.is_being_set_up());
        if !is_needed {
            return Ok(None);
        }
        let labels = sandboxes::list_labels(work.tx, id).await?;
        let project = projects::find_project(work.tx, sandbox.project_id).await?;
        let defaults = project.map_or_else(|| Ok(NewSandbox::default()), |project| parse_defaults(&project))?;
        // The session's branch may be one of another repository.
        let repo_branch = sandbox.settings.repo.as_ref().and_then(|repo| repo.branch.clone());
        let branch = session.branch.filter(|branch| Some(branch) == repo_branch.as_ref());
        Ok(Some(PendingCreation { sandbox, labels, branch, defaults }))
    })
    .await
}

/// Destroys a sandbox whose set-up was interrupted: what it did so far is unknown.
async fn discard_interrupted(
    app: &App,
    provider: &dyn Provider,
    sandbox: &SandboxRow,
    job: &Job,
) -> Result<Option<JobOutcome>> {
    let (id, Some(name)) = (sandbox.id, sandbox.provider_id.clone()) else { return Ok(None) };
    match provider.destroy(&ProviderId(name)).await {
        Ok(()) | Err(Error::Gone) => {}
        Err(error) => {
            tracing::warn!(sandbox = %id, %error, "failed to destroy an interrupted set-up; will retry");
            return Ok(Some(JobOutcome::RetryAfter(back_off(job.attempts))));
        }
    }
    let is_pending = app.write(async move |work| setup::record_interruption(work, id).await).await?;
    Ok((!is_pending).then_some(JobOutcome::Finished))
}

const fn skipped_event(reason: String) -> EventData {
    EventData::SetupSkipped(SetupSkipped { reason })
}

/// Plans the set-up of a sandbox that its provider has not created yet.
async fn plan_setup(
    app: &App,
    sandbox: &SandboxRow,
    defaults: &NewSandbox,
    source: Option<&RepositorySource>,
    runs_agents: bool,
) -> Result<SetupDecision> {
    // The worker of a running sandbox has reported already: only its provider id is missing.
    if !runs_agents || sandbox.state != SandboxState::Creating {
        return Ok(SetupDecision::Skipped(None));
    }
    decide_setup(app, sandbox, defaults, source).await
}

/// Stores the plan before the worker starts. Returns false if the sandbox has ended.
async fn store_plan(app: &App, sandbox: &SandboxRow, planned: Option<&PlannedSetup>) -> Result<bool> {
    let id = sandbox.id;
    match planned.map(|planned| planned.environment.clone()) {
        Some(environment) => app.write(async move |work| setup::record_plan(work, id, environment).await).await,
        None if sandbox.is_being_set_up() => app.write(async move |work| setup::record_no_plan(work, id).await).await,
        None => Ok(true),
    }
}

/// The result of waiting for another sandbox that runs the same set-up.
enum SetupTurn {
    /// This sandbox may run its set-up. Others wait while the guard exists; there is none if the wait took too long.
    Taken(Option<OwnedMutexGuard<()>>),
    /// The sandbox has ended meanwhile, or the server stops.
    Abandoned,
}

/// Waits while another sandbox runs the same set-up, so that this one can start from its layer.
async fn await_setup_turn(app: &App, id: SandboxId, planned: &PlannedSetup, cache: &SetupCache) -> Result<SetupTurn> {
    let turn = app.setup_locks.lock(cache.name.clone());
    tokio::pin!(turn);
    if let Some(turn) = turn.as_mut().now_or_never() {
        return Ok(SetupTurn::Taken(Some(turn)));
    }
    // The other set-up has the same time limit.
    let time_limit = planned.time_limit;
    if !app.write(async move |work| setup::record_wait(work, id, time_limit).await).await? {
        return Ok(SetupTurn::Abandoned);
    }
    tokio::select! {
        turn = turn => Ok(SetupTurn::Taken(Some(turn))),
        row = wait_for_row(app, id, time_limit, |row| row.state.has_ended()) => {
            let is_over = row?.state.has_ended() || *app.stopping.borrow();
            Ok(if is_over { SetupTurn::Abandoned } else { SetupTurn::Taken(None) })
        }
    }
}

fn record_phase(phase: &'static str, duration: Duration) {
    record_seconds(crate::metrics::CREATION_SECONDS, &[("phase", phase)], duration);
}

/// Calls the provider with the sandbox's id as the idempotency key.
async fn call_provider(
    app: &App,
    provider: &dyn Provider,
    spec: &CreateSpec,
) -> std::result::Result<ProviderSandbox, Error> {
    let began_at = app.clock.now();
    let key = spec.identity.sandbox.to_string();
    let began = Instant::now();
    let call = tokio::time::timeout(CREATE_TIMEOUT, provider.create(spec, &key));
    let created = call.await.unwrap_or_else(|_| Err(Error::Unreachable { detail: "the provider timed out".into() }));
    if created.is_ok() {
        record_phase("provider", began.elapsed());
    }
    if let Some(context) = telemetry::current_trace().filter(|context| context.is_sampled) {
        let span = FinishedSpan::child(context, PROVIDER_CREATE, began_at, app.clock.now());
        let id = match &created {
            // The worker's span is below this one.
            Ok(_) => provider_context(context, spec.identity.sandbox).span,
            Err(_) => span.id,
        };
        let failure = created.as_ref().err().map(|error| error.code().to_owned());
        let span = FinishedSpan { id, failure, origin: SpanOrigin::Call, ..span };
        let span = span.with("atoll.provider", provider.kind());
        app.telemetry.record_span(span.with("atoll.sandbox", spec.identity.sandbox));
    }
    created
}

/// Records whether the provider responded, and reports a change of its circuit in the sandbox's log.
async fn report_outcome(app: &App, id: SandboxId, provider: ProviderKind, failure: Option<&Error>) -> Result<()> {
    let steady = app.clock.steady_now();
    let Some(change) = app.circuits.record_outcome(provider, failure, steady) else { return Ok(()) };
    let failures = app.circuits.find_open(provider, steady).map_or(0, |circuit| circuit.failures);
    let detail = failure.map(|error| lifecycle::truncate_text(&error.to_string(), 500)).unwrap_or_default();
    tracing::warn!(%provider, ?change, detail, "the circuit of a provider changed");
    app.write(async move |work| {
        let data = match change {
            CircuitChange::Opened(until) => {
                let until = work.now + until.elapsed_since(steady);
                EventData::ProviderCircuitOpened(CircuitOpened { provider, failures, until, detail })
            }
            CircuitChange::Closed => EventData::ProviderCircuitClosed(CircuitClosed { provider }),
        };
        let (_, mut sandbox) = work.lock_sandbox(id).await?;
        work.log(&mut sandbox, vec![data.into_event(work.now)]).await?;
        Ok(sandboxes::update_sandbox(work.tx, &mut sandbox).await?)
    })
    .await
}

/// Sets a created sandbox up. Only then its agent starts.
async fn set_up(job: &Job, run: &SetupRun<'_>, started_from: Option<&CacheUse>) -> Result<JobOutcome> {
    if run.is_cached(started_from) {
        run.record_completion(true).await?;
        return Ok(JobOutcome::Finished);
    }
    let began = Instant::now();
    let steps = run.run_steps().await;
    record_phase("setup", began.elapsed());
    let end = match steps {
        Err(problem) if job.attempts >= MAX_SETUP_ATTEMPTS => SetupEnd::Failed(Box::new(report_problem(&problem))),
        end => end?,
    };
    match end {
        SetupEnd::Completed => {
            run.record_completion(false).await?;
        }
        SetupEnd::Failed(failed) => {
            run.record_failure(*failed).await?;
        }
        SetupEnd::Abandoned => {}
        SetupEnd::Stopping => return Ok(JobOutcome::RetryAfter(Duration::ZERO)),
    }
    Ok(JobOutcome::Finished)
}

/// Writes the bundle of a repository, above its checkout layer if there is one.
async fn write_source(
    spec: &mut CreateSpec,
    prepared: Option<&PreparedRepository>,
    layer: &CheckoutLayer,
) -> Result<()> {
    let Some(prepared) = prepared else { return Ok(()) };
    let source = prepared.write_bundle(layer.commit()).await?;
    spec.source = Some(RepositorySource { store_as: layer.store_as(), ..source });
    Ok(())
}

/// Prepares the repository of the workspace: at the session's `branch` if an earlier sandbox left one, else at its base.
async fn prepare_repository(
    app: &App,
    sandbox: &SandboxRow,
    runs_agents: bool,
    branch: Option<String>,
) -> Result<Option<PreparedRepository>> {
    // A fork already has its parent's repository.
    let repo = sandbox.settings.repo.as_ref().filter(|_| sandbox.settings.forked_from.is_none());
    match repo {
        Some(repo) if runs_agents => {
            repositories::prepare_repository(app, sandbox, repo.clone(), branch).await.map(Some)
        }
        Some(_) | None => Ok(None),
    }
}

/// Stores the provider's sandbox, and deletes the job if no set-up follows.
async fn record_created(
    app: &Arc<App>,
    job: &Job,
    found: ProviderSandbox,
    events: Vec<EventData>,
    ends_job: bool,
) -> Result<()> {
    let (id, server_id) = (job.sandbox_id, app.server_id.clone());
    let (job_id, claim) = (job.id, job.claim);
    let is_dead = found.state == ProviderState::Stopped;
    let stored = app.write(async move |work| {
        let (_, mut sandbox) = work.lock_sandbox(id).await?;
        sandbox.provider_id = Some(found.id.0);
        traces::record_provider_end(work.tx, id, work.now).await?;
        if work.capabilities(sandbox.provider).runs_agents() {
            sandbox.server_id = Some(server_id);
        }
        let mut events: Vec<NewEvent> = events
            .into_iter()
            .map(|data| match data {
                EventData::SetupSkipped(_) => data.into_event(work.now),
                _ => data.into_event(work.now).with_source(EventSource::Forge, None),
            })
            .collect();
        let notices = found.notices.into_iter().map(|text| SandboxNotice { text, routine: false });
        let disk_notice = found.disk_notice.map(|text| SandboxNotice { text, routine: true });
        events.extend(notices.chain(disk_notice).map(|notice| EventData::SandboxNotice(notice).into_event(work.now)));
        work.log(&mut sandbox, events).await?;
        sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
        // Requests that wait for the provider's id continue.
        work.out.states.push((id, sandbox.state));
        if sandbox.state.has_ended() {
            // The sandbox was stopped during its creation.
            jobs::schedule_job(work.tx, JobKind::Remove, id, work.steady).await?;
            work.out.jobs = true;
        }
        if ends_job {
            jobs::finish_job(work.tx, job_id, claim).await?;
        }
        Ok(())
    });
    stored.await?;
    if is_dead {
        // An earlier server created it, and its worker has died since.
        tokio::spawn(super::dead_worker::handle_dead_worker(Arc::clone(app), id));
    }
    Ok(())
}

async fn record_failure(app: &App, job: &Job, reason: Reason) -> Result<JobOutcome> {
    let (id, attempts) = (job.sandbox_id, job.attempts);
    app.write(async move |work| {
        let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
        match sandbox.state {
            SandboxState::Creating => {
                let trigger = Trigger::CreationFailed;
                lifecycle::apply_trigger(work, &mut session, &mut sandbox, trigger, Some(reason), None).await?;
                Ok(JobOutcome::Finished)
            }
            // The worker reported, so the sandbox exists: retry until its provider id is known.
            SandboxState::Running | SandboxState::Completing => Ok(JobOutcome::RetryAfter(back_off(attempts))),
            SandboxState::Pending | SandboxState::Completed | SandboxState::Failed => Ok(JobOutcome::Finished),
        }
    })
    .await
}
