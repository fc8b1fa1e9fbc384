//! Tasks: create, list, change, cancel and retry them, and reports about their work. `core::task` has the rules.

use super::task_work::{apply_task_trigger, count_blocked, log_event, place_in_queue, task_progress, write_task};
use super::tickets::check_texts;
use super::views::cut_page;
use super::{Work, results, sandbox_plan, task_work};
use crate::auth::access::{CanList, CanSee, CanWork, ClientCaller, ReaderOrWorker, WorkReporter};
use crate::cursor::decode_id;
use crate::extract::page_size;
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::events::{EventData, TaskSetback, TaskVerdict};
use atoll_api::{
    BulkTaskResult, BulkTaskResults, BulkTasks, ChangeTask, NewSandbox, NewTask, Page, Task, TaskListQuery, TaskReport,
    ValidationVerdict,
};
use atoll_core::bounds;
use atoll_core::id::{ProjectId, SandboxId, TaskId};
use atoll_core::sandbox::{Reason, SandboxState};
use atoll_core::task::{
    BulkTaskAction, FailureClass, MAX_BULK_TASKS, MAX_DEPENDENCIES, MAX_RESULT_BYTES, MAX_RETRIES, MAX_TIMEOUT_S,
    Standing, TaskCapability, TaskPhase, TaskState, TaskTrigger, TaskWait,
};
use atoll_core::ticket::dependencies::{DependencyMap, find_cycle};
use atoll_core::ticket::{TicketPriority, TicketType};
use atoll_core::time::Timestamp;
use atoll_store::tasks::{self, TaskDetails, TaskFilter, TaskRow};
use atoll_store::{Tx, projects, tickets};
use std::collections::BTreeSet;

/// Attempts in the response for one task.
const MAX_SHOWN_ATTEMPTS: i64 = 100;

pub async fn create_task(app: &App, client: ClientCaller, key: IdempotencyKey, new: NewTask) -> Result<JsonResponse> {
    let project = new.project_id.unwrap_or(app.default_project);
    let access = CanWork::<ProjectId>::authorize(app, client.0, project).await?;
    check_texts(Some(&new.title), new.description.as_deref())?;
    new.owned_files.check_bounds("owned_files")?;
    check_number("timeout_s", new.timeout_s, 1, MAX_TIMEOUT_S)?;
    check_number("max_retries", new.max_retries, 0, MAX_RETRIES)?;
    if let Some(budget) = new.budget_usd {
        bounds::check_amount("budget_usd", budget, 1e6)?;
    }
    let settings = new.sandbox.unwrap_or_default();
    sandbox_plan::check_task_settings(&settings, &access.caller)?;
    if let Some(ticket) = new.ticket_id {
        let of_ticket = CanWork::authorize(app, access.caller.clone(), ticket).await?;
        if of_ticket.project != project {
            return Err(Problem::invalid("ticket_id: the ticket belongs to another project"));
        }
    }
    let caller = access.caller.clone();
    app.write_once(&access.caller, key, async move |work| {
        tasks::lock_dependencies(work.tx, project).await?;
        let row = projects::find_project(work.tx, project).await?.ok_or_else(|| Problem::not_found("project"))?;
        let default = sandbox_plan::parse_defaults(&row)?.provider.unwrap_or(work.config.provider.default);
        let provider = settings.provider.unwrap_or(default);
        let capabilities = work.capabilities(provider);
        if let Some(lacking) = new.required_capabilities.iter().find(|needed| !needed.is_met_by(&capabilities)) {
            let detail = format!("required_capabilities: the provider {provider} does not offer `{lacking}`");
            return Err(Problem::invalid(detail));
        }
        if let Some(ticket) = new.ticket_id {
            tickets::find_ticket(work.tx, ticket).await?.ok_or_else(|| Problem::not_found("ticket"))?;
        }
        let serde_json::Value::Object(sandbox) = serde_json::to_value(&settings).map_err(Problem::internal)? else {
            return Err(Problem::internal("the settings of a sandbox are no object"));
        };
        let config = &work.config.orchestrator;
        let default_timeout = u32::try_from(config.task_timeout.as_secs()).unwrap_or(MAX_TIMEOUT_S).max(1);
        let details = TaskDetails {
            title: work.redact_text(project, new.title),
            description: new.description.map(|text| work.redact_text(project, text)),
            sandbox,
            required_capabilities: new.required_capabilities.iter().map(ToString::to_string).collect(),
            timeout_s: new.timeout_s.unwrap_or(default_timeout),
            max_retries: new.max_retries.unwrap_or(config.retries.max),
            budget_usd: new.budget_usd,
            needs_validation: new.needs_validation,
            token: Some(caller.principal.token()),
            is_local: caller.is_local,
            ..TaskDetails::default()
        };
        let mut task = TaskRow {
            id: TaskId::new(),
            project_id: project,
            ticket_id: new.ticket_id,
            owner: caller.actor(),
            task_type: new.task_type.unwrap_or(TicketType::Feature),
            priority: new.priority.unwrap_or(TicketPriority::Medium),
            phase: TaskPhase::NEW,
            wait: None,
            holder_id: None,
            standing: Standing::from_units(0),
            level_due_at: None,
            queued_since: work.steady,
            available_at: None,
            deadline: new.deadline,
            open_dependencies: 0,
            blocked_tasks: 0,
            claim: 0,
            claimed_by: None,
            claim_expires_at: None,
            provider,
            session_id: None,
            owned_files: new.owned_files,
            details,
            version: 1,
            state_since: work.now,
            created_at: work.now,
            updated_at: work.now,
        };
        let depends_on = resolve_dependencies(work.tx, &task, &new.depends_on).await?;
        task.open_dependencies = count_open(&depends_on);
        place_in_queue(work, &mut task, TaskWait::BackOff);
        tasks::insert_task(work.tx, &task).await?;
        // Another task cannot depend on a new one yet, so there is no cycle.
        let ids = depends_on.iter().map(|need| need.0).collect();
        tasks::set_dependencies(work.tx, task.id, &ids).await?;
        count_blocked(work, task.id, 1).await?;
        work.out.tasks_changed = true;
        JsonResponse::created(load_task_view(work.tx, task, work.now, work.steady).await?)
    })
    .await
}

fn check_number(field: &str, value: Option<u32>, least: u32, most: u32) -> Result<()> {
    match value {
        Some(value) if !(least..=most).contains(&value) => {
            Err(Problem::invalid(format!("{field}: a whole number from {least} to {most}")))
        }
        Some(_) | None => Ok(()),
    }
}

fn count_open(depends_on: &BTreeSet<(TaskId, bool)>) -> i64 {
    let open = depends_on.iter().filter(|(_, is_open)| *is_open).count();
    i64::try_from(open).unwrap_or(i64::MAX)
}

/// Finds the tasks that come first, each with whether it has yet to complete.
async fn resolve_dependencies(tx: &mut dyn Tx, task: &TaskRow, ids: &[TaskId]) -> Result<BTreeSet<(TaskId, bool)>> {
    if ids.len() > MAX_DEPENDENCIES {
        let detail = format!("depends_on: there are {}; at most {MAX_DEPENDENCIES} are allowed", ids.len());
        return Err(Problem::invalid(detail));
    }
    let mut found = BTreeSet::new();
    // Sorted, because every transaction locks tasks in this order.
    for id in ids.iter().collect::<BTreeSet<_>>() {
        // The lock keeps the other task from completing between this look and the commit.
        let need = tasks::lock_task(tx, *id).await?.filter(|need| need.project_id == task.project_id);
        let need = need.ok_or_else(|| Problem::invalid(format!("depends_on: the project has no task {id}")))?;
        found.insert((need.id, need.phase.state != TaskState::Completed));
    }
    Ok(found)
}

pub async fn list_tasks(app: &App, access: CanList, query: TaskListQuery) -> Result<Page<Task>> {
    let limit = page_size(query.limit, 50, 200)?;
    let before = decode_id::<TaskId>("tasks", query.cursor.as_deref())?;
    let filter = TaskFilter {
        visible_projects: access.projects.as_filter(),
        project: query.project,
        state: query.state,
        wait: query.waits_for,
        task_type: query.task_type,
        priority: query.priority,
        ticket: query.ticket,
        session: query.session,
        owner: query.mine.then(|| access.caller.actor()),
        is_open: query.open,
    };
    let (now, steady) = (app.clock.now(), app.clock.steady_now());
    app.read(async move |tx| {
        let rows = tasks::list_tasks(tx, &filter, before.as_deref(), limit + 1).await?;
        let page = cut_page("tasks", rows, limit, |row| row.id.to_string());
        let mut items = Vec::with_capacity(page.items.len());
        for row in page.items {
            items.push(load_task_view(tx, row, now, steady).await?);
        }
        Ok(Page { items, next_cursor: page.next_cursor })
    })
    .await
}

pub async fn read_task(app: &App, access: CanSee<TaskId>) -> Result<Task> {
    load_task(app, access.id).await
}

/// Reads the task that a sandbox works on, or worked on.
pub async fn read_sandbox_task(app: &App, access: ReaderOrWorker) -> Result<Task> {
    let sandbox = access.sandbox;
    let id = app.read(async move |tx| Ok(tasks::find_task_id(tx, sandbox).await?)).await?;
    load_task(app, id.ok_or_else(|| Problem::not_found("task of this sandbox"))?).await
}

async fn load_task(app: &App, id: TaskId) -> Result<Task> {
    let (now, steady) = (app.clock.now(), app.clock.steady_now());
    app.read(async move |tx| {
        let row = tasks::find_task(tx, id).await?.ok_or_else(|| Problem::not_found("task"))?;
        let attempts = tasks::list_attempts(tx, id, MAX_SHOWN_ATTEMPTS).await?;
        let view = load_task_view(tx, row, now, steady).await?;
        Ok(Task { attempts: Some(attempts.into_iter().map(view_attempt).collect()), ..view })
    })
    .await
}

fn view_attempt(attempt: tasks::TaskAttempt) -> atoll_api::TaskAttempt {
    let tasks::TaskAttempt { number, sandbox_id, started_at, ended_at, outcome, class, reason } = attempt;
    atoll_api::TaskAttempt { number, sandbox_id, started_at, ended_at, outcome, class, reason }
}

async fn load_task_view(tx: &mut dyn Tx, row: TaskRow, now: Timestamp, steady: Timestamp) -> Result<Task> {
    let needs = tasks::list_dependencies(tx, row.id).await?;
    let blocked_by = needs.iter().filter(|need| need.state != TaskState::Completed).map(|need| need.id).collect();
    let is_ready = row.wait == Some(TaskWait::Slot);
    let capabilities = row.details.required_capabilities.iter();
    Ok(Task {
        depends_on: needs.iter().map(|need| need.id).collect(),
        blocked_by,
        score: is_ready.then(|| row.standing.score(steady.elapsed_since(row.queued_since))),
        available_at: row.available_at.map(|at| now + at.elapsed_since(steady)),
        id: row.id,
        project_id: row.project_id,
        ticket_id: row.ticket_id,
        title: row.details.title,
        description: row.details.description,
        task_type: row.task_type,
        priority: row.priority,
        state: row.phase.state,
        state_since: row.state_since,
        waits_for: row.wait,
        waits_for_task: row.holder_id,
        blocks: row.blocked_tasks,
        owned_files: row.owned_files,
        required_capabilities: capabilities.filter_map(|name| name.parse::<TaskCapability>().ok()).collect(),
        provider: row.provider,
        sandbox: serde_json::from_value::<NewSandbox>(row.details.sandbox.into()).map_err(Problem::internal)?,
        timeout_s: row.details.timeout_s,
        deadline: row.deadline,
        retries: row.phase.retries,
        max_retries: row.details.max_retries,
        revisions: row.phase.revisions,
        budget_usd: row.details.budget_usd,
        needs_validation: row.details.needs_validation,
        sandbox_id: row.phase.sandbox,
        session_id: row.session_id,
        result: row.details.result,
        error: row.details.error,
        failure_class: row.details.failure_class,
        attempts: None,
        version: row.version,
        created_by: row.owner,
        created_at: row.created_at,
        updated_at: row.updated_at,
        started_at: row.details.started_at,
        ended_at: row.details.ended_at,
    })
}

pub async fn change_task(
    app: &App,
    access: CanWork<TaskId>,
    key: IdempotencyKey,
    change: ChangeTask,
) -> Result<JsonResponse> {
    check_texts(change.title.as_deref(), change.description.as_ref().and_then(Option::as_deref))?;
    check_number("max_retries", change.max_retries, 0, MAX_RETRIES)?;
    if let Some(files) = &change.owned_files {
        files.check_bounds("owned_files")?;
    }
    let (id, project) = (access.id, access.project);
    app.write_once(&access.caller, key, async move |work| {
        tasks::lock_dependencies(work.tx, project).await?;
        let mut task = lock_task(work, id).await?;
        let needs_queue = change.depends_on.is_some() || change.owned_files.is_some();
        if task.phase.state.has_ended() || (needs_queue && !task.phase.state.is_queued()) {
            let detail = format!("the task is {}, so this can no longer change", task.phase.state);
            return Err(Problem::new(Code::IllegalTransition, detail).with("state", task.phase.state.as_str()));
        }
        if let Some(depends_on) = change.depends_on {
            count_blocked(work, id, -1).await?;
            let found = resolve_dependencies(work.tx, &task, &depends_on).await?;
            let ids: BTreeSet<TaskId> = found.iter().map(|need| need.0).collect();
            refuse_cycle(work.tx, id, &ids).await?;
            tasks::set_dependencies(work.tx, id, &ids).await?;
            count_blocked(work, id, 1).await?;
            task.open_dependencies = count_open(&found);
        }
        if let Some(title) = change.title {
            task.details.title = work.redact_text(project, title);
        }
        if let Some(description) = change.description {
            task.details.description = description.map(|text| work.redact_text(project, text));
        }
        task.task_type = change.task_type.unwrap_or(task.task_type);
        task.priority = change.priority.unwrap_or(task.priority);
        task.owned_files = change.owned_files.unwrap_or(task.owned_files);
        task.deadline = change.deadline.unwrap_or(task.deadline);
        task.details.max_retries = change.max_retries.unwrap_or(task.details.max_retries);
        if let Some(pause_reason) = task.wait {
            place_in_queue(work, &mut task, pause_reason);
        }
        write_task(work, &mut task).await?;
        JsonResponse::ok(load_task_view(work.tx, task, work.now, work.steady).await?)
    })
    .await
}

async fn refuse_cycle(tx: &mut dyn Tx, id: TaskId, depends_on: &BTreeSet<TaskId>) -> Result<()> {
    let mut existing = DependencyMap::new();
    for need in depends_on {
        existing.append(&mut tasks::load_reachable_dependencies(tx, *need).await?);
    }
    let Some(cycle) = find_cycle(&existing, &id, depends_on) else { return Ok(()) };
    let named: Vec<_> = cycle.iter().take(10).map(ToString::to_string).collect();
    let detail = format!("depends_on: these tasks would wait for each other: {}", named.join(", "));
    Err(Problem::new(Code::DependencyCycle, detail))
}

async fn lock_task(work: &mut Work<'_>, id: TaskId) -> Result<TaskRow> {
    tasks::lock_task(work.tx, id).await?.ok_or_else(|| Problem::not_found("task"))
}

/// Cancels a task. The results of its running sandbox are exported.
pub async fn cancel_task(app: &App, access: CanWork<TaskId>, key: IdempotencyKey) -> Result<JsonResponse> {
    let (id, actor) = (access.id, access.actor());
    app.write_once(&access.caller, key, async move |work| {
        let task = apply_cancel(work, id, actor).await?;
        JsonResponse::ok(load_task_view(work.tx, task, work.now, work.steady).await?)
    })
    .await
}

async fn apply_cancel(work: &mut Work<'_>, id: TaskId, actor: String) -> Result<TaskRow> {
    let found = tasks::find_task(work.tx, id).await?.ok_or_else(|| Problem::not_found("task"))?;
    // The session's lock comes before the task's.
    let mut sandbox = match found.phase.sandbox {
        Some(sandbox) => Some(work.lock_sandbox(sandbox).await?.1),
        None => None,
    };
    let mut task = lock_task(work, id).await?;
    if task.phase.sandbox != found.phase.sandbox {
        return Err(Problem::new(Code::Conflict, "the task changed meanwhile; retry"));
    }
    if task.phase.state == TaskState::Cancelled {
        return Ok(task);
    }
    let to_end = apply_task_trigger(work, &mut task, TaskTrigger::Cancelled, TaskWait::BackOff).await?;
    count_blocked(work, id, -1).await?;
    if let Some(sandbox) = &mut sandbox {
        let reason = Reason::new("task_cancelled", "the task was cancelled");
        tasks::end_attempt(work.tx, sandbox.id, work.now, "cancelled", None, Some(&reason)).await?;
        log_event(work, sandbox, EventData::TaskCancelled(task_progress(&task))).await?;
    }
    if let Some(sandbox) = to_end {
        results::end_cancelled_task(work, sandbox, actor).await?;
    }
    Ok(task)
}

/// Puts a failed or cancelled task into the queue again. Its next attempt continues the session.
pub async fn retry_task(app: &App, access: CanWork<TaskId>, key: IdempotencyKey) -> Result<JsonResponse> {
    let id = access.id;
    app.write_once(&access.caller, key, async move |work| {
        let task = apply_retry(work, id).await?;
        JsonResponse::ok(load_task_view(work.tx, task, work.now, work.steady).await?)
    })
    .await
}

async fn apply_retry(work: &mut Work<'_>, id: TaskId) -> Result<TaskRow> {
    let mut task = lock_task(work, id).await?;
    let was_cancelled = task.phase.state == TaskState::Cancelled;
    apply_task_trigger(work, &mut task, TaskTrigger::Restarted, TaskWait::BackOff).await?;
    if was_cancelled {
        count_blocked(work, id, 1).await?;
    }
    Ok(task)
}

/// Applies one action to many tasks, each in its own transaction.
pub async fn change_tasks(app: &App, client: ClientCaller, request: BulkTasks) -> Result<BulkTaskResults> {
    if request.ids.is_empty() || request.ids.len() > MAX_BULK_TASKS {
        return Err(Problem::invalid(format!("ids: 1 to {MAX_BULK_TASKS} tasks")));
    }
    let mut items = Vec::with_capacity(request.ids.len());
    for id in request.ids {
        let changed = match CanWork::<TaskId>::authorize(app, client.0.clone(), id).await {
            Ok(access) => {
                let actor = access.actor();
                app.write(async move |work| match request.action {
                    BulkTaskAction::Cancel => apply_cancel(work, id, actor).await,
                    BulkTaskAction::Retry => apply_retry(work, id).await,
                })
                .await
            }
            Err(problem) => Err(problem),
        };
        items.push(match changed {
            Ok(task) => BulkTaskResult { id, state: Some(task.phase.state), code: None, detail: None },
            Err(problem) if problem.is_server_error() => return Err(problem),
            Err(problem) => {
                let code = Some(problem.code.as_str().to_owned());
                BulkTaskResult { id, state: None, code, detail: Some(problem.detail) }
            }
        });
    }
    Ok(BulkTaskResults { items })
}

/// Records a worker's report that the work on its task is over, and ends the sandbox. A repeated report changes nothing. The
/// task ends with its sandbox, when the results are exported.
pub async fn report_completion(app: &App, access: WorkReporter, report: TaskReport) -> Result<Task> {
    for (field, text) in [("result", &report.result), ("error", &report.error)] {
        if let Some(text) = text {
            bounds::check_content(field, text, MAX_RESULT_BYTES)?;
        }
    }
    let id = access.sandbox;
    let task = app.write(async move |work| record_report(work, id, report).await).await?;
    load_task(app, task).await
}

async fn record_report(work: &mut Work<'_>, id: SandboxId, report: TaskReport) -> Result<TaskId> {
    let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
    let Some(mut task) = tasks::lock_current_task(work.tx, id).await? else {
        // The attempt is over: the report came late, or again.
        let past = tasks::find_task_id(work.tx, id).await?;
        return past.ok_or_else(|| Problem::not_found("task of this sandbox"));
    };
    if task.details.reported_success.is_some() || !task.phase.state.is_active() {
        return Ok(task.id);
    }
    if sandbox.state != SandboxState::Running {
        return Err(Problem::new(Code::IllegalTransition, format!("the sandbox is {}", sandbox.state))
            .with("state", sandbox.state.as_str()));
    }
    let success = report.success.unwrap_or(true);
    task.details.reported_success = Some(success);
    task.details.result = report.result.map(|text| work.redact_text(task.project_id, text));
    write_task(work, &mut task).await?;
    if success {
        results::end_completed_task(work, &mut session, &mut sandbox).await?;
    } else {
        let detail = report.error.unwrap_or_else(|| "the worker reported that the task failed".into());
        let detail = work.redact_text(task.project_id, super::lifecycle::truncate_text(&detail, 500));
        task_work::end_task(work, id, Reason::new("task_failed", detail)).await?;
    }
    Ok(task.id)
}

/// Records the verdict on the finished work of a sandbox's task.
pub async fn record_validation(
    app: &App,
    access: CanWork<SandboxId>,
    key: IdempotencyKey,
    verdict: ValidationVerdict,
) -> Result<JsonResponse> {
    if let Some(feedback) = &verdict.feedback {
        bounds::check_content("feedback", feedback, MAX_RESULT_BYTES)?;
    }
    let id = access.id;
    app.write_once(&access.caller, key, async move |work| {
        let (_, mut sandbox) = work.lock_sandbox(id).await?;
        let task = tasks::lock_current_task(work.tx, id).await?;
        let mut task = task.ok_or_else(|| Problem::not_found("task of this sandbox"))?;
        let may_revise = task.phase.revisions < work.config.orchestrator.max_revisions;
        let trigger = match verdict.passed {
            true => TaskTrigger::ValidationPassed,
            false => TaskTrigger::ValidationFailed { may_revise },
        };
        let feedback = verdict.feedback.map(|text| work.redact_text(task.project_id, text));
        if !verdict.passed {
            let given = feedback.clone().unwrap_or_else(|| "the work is not complete".into());
            task.details.feedback = Some(given.clone());
            if !may_revise {
                task.details.error = Some(Reason::new("validation_failed", given));
                task.details.failure_class = Some(FailureClass::Task);
            }
        }
        apply_task_trigger(work, &mut task, trigger, TaskWait::BackOff).await?;
        let event = match task.phase.state {
            TaskState::Completed => EventData::TaskCompleted(task_progress(&task)),
            TaskState::Failed => EventData::TaskFailed(TaskSetback {
                task_id: task.id,
                class: task.details.failure_class,
                reason: task.details.error.clone().unwrap_or_else(|| Reason::new("validation_failed", "")),
                retries: task.phase.retries,
                retry_s: None,
            }),
            _ => EventData::TaskNeedsRevision(TaskVerdict {
                task_id: task.id,
                feedback,
                revisions: task.phase.revisions,
            }),
        };
        log_event(work, &mut sandbox, event).await?;
        JsonResponse::ok(load_task_view(work.tx, task, work.now, work.steady).await?)
    })
    .await
}
