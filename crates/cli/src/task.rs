//! `atoll task`: queues tasks and manages them.

use crate::arguments::{parse_word, text_or_stdin};
use crate::connect::{Connect, ConnectedClient};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::pages::collect_up_to;
use crate::render::fields::Fields;
use crate::render::{table, time};
use crate::setting_flags::SettingFlags;
use crate::stored_state::ReadingClient;
use crate::ticket::TicketRef;
use atoll_api::{BulkTasks, ChangeTask, NewTask, Task as ApiTask, TaskListQuery, ValidationVerdict};
use atoll_core::id::{ProjectId, TaskId};
use atoll_core::task::{BulkTaskAction, OwnedFiles, TaskCapability, TaskState, TaskWait};
use atoll_core::ticket::{TicketPriority, TicketType};
use atoll_core::time::Timestamp;

#[derive(Debug, clap::Args)]
pub struct TaskArgs {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Queue a task; the server starts it when there is a free slot
    #[command(after_help = "\
Examples:
  atoll task new \"Make the parser faster\" --owns 'src/parser/**'
  atoll task new \"Update the guide\" --depends-on tsk_… --priority high
  atoll task new \"Fix the login\" --ticket ATL-3 --agent claude --timeout 1800 --validate")]
    New(Box<New>),
    /// List tasks, newest first
    #[command(after_help = "Examples:\n  atoll task ls --open\n  atoll task ls --state running --json")]
    #[command(alias = "list")]
    Ls(List),
    /// Show a task and its attempts
    #[command(after_help = "Examples:\n  atoll task show tsk_…")]
    Show {
        /// Id of the task
        task: TaskId,
    },
    /// Change a task that has not ended
    #[command(
        after_help = "Examples:\n  atoll task set tsk_… --priority critical\n  atoll task set tsk_… --no-dependencies"
    )]
    Set(Set),
    /// Cancel tasks; results of running ones are exported
    #[command(after_help = "Examples:\n  atoll task cancel tsk_…")]
    Cancel {
        /// Ids of the tasks
        #[arg(required = true)]
        tasks: Vec<TaskId>,
    },
    /// Start failed or cancelled tasks again
    #[command(after_help = "Examples:\n  atoll task retry tsk_…")]
    Retry {
        /// Ids of the tasks
        #[arg(required = true)]
        tasks: Vec<TaskId>,
    },
    /// Submit the verdict on a task that waits for validation
    #[command(after_help = "\
Examples:
  atoll task validate tsk_… --passed true
  atoll task validate tsk_… --passed false --feedback \"The new test fails\"")]
    Validate {
        /// Id of the task
        task: TaskId,
        /// The work is accepted
        #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set)]
        passed: bool,
        /// What the next attempt shall change; `-` reads it from stdin
        #[arg(long, value_name = "TEXT")]
        feedback: Option<String>,
    },
}

#[derive(Debug, clap::Args)]
struct New {
    /// Title, one line
    title: String,
    /// What the agent shall do; `-` reads it from stdin
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Project of the task [default: the default project]
    #[arg(long, value_name = "ID")]
    project: Option<ProjectId>,
    /// Work on this ticket's branch: key or id
    #[arg(long, value_name = "TICKET")]
    ticket: Option<TicketRef>,
    /// Type: feature, bug, refactor, docs, test or chore [default: feature]
    #[arg(long = "type", value_name = "TYPE", value_parser = parse_word::<TicketType>)]
    task_type: Option<TicketType>,
    /// Priority: low, medium, high or critical [default: medium]
    #[arg(long, value_parser = parse_word::<TicketPriority>)]
    priority: Option<TicketPriority>,
    /// Task that comes first; repeatable
    #[arg(long, value_name = "ID")]
    depends_on: Vec<TaskId>,
    /// Files that only this task may change while it runs, as a glob; repeatable
    #[arg(long = "owns", value_name = "GLOB")]
    owned_files: Vec<String>,
    /// Capability that the provider must offer, such as fork or ports; repeatable
    #[arg(long = "requires", value_name = "NAME", value_parser = parse_word::<TaskCapability>)]
    required_capabilities: Vec<TaskCapability>,
    /// Time at which the task shall be done
    #[arg(long, value_name = "TIME")]
    deadline: Option<Timestamp>,
    /// Maximum number of retries [default: orchestrator.retries.max]
    #[arg(long, value_name = "N")]
    max_retries: Option<u32>,
    /// Maximum model cost of all attempts, in US dollars
    #[arg(long, value_name = "USD")]
    budget: Option<f64>,
    /// Wait for a verdict before the task completes
    #[arg(long)]
    validate: bool,
    #[command(flatten)]
    settings: SettingFlags,
}

#[derive(Debug, clap::Args)]
struct List {
    /// Filter by project
    #[arg(long, value_name = "ID")]
    project: Option<ProjectId>,
    /// Filter by state
    #[arg(long, value_parser = parse_word::<TaskState>)]
    state: Option<TaskState>,
    /// Filter queued tasks by what they wait for
    #[arg(long, value_name = "REASON", value_parser = parse_word::<TaskWait>)]
    waits_for: Option<TaskWait>,
    /// Filter by priority
    #[arg(long, value_parser = parse_word::<TicketPriority>)]
    priority: Option<TicketPriority>,
    /// Only tasks that have not ended
    #[arg(long)]
    open: bool,
    /// Only your own tasks
    #[arg(long)]
    mine: bool,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// List all rows
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

#[derive(Debug, clap::Args)]
struct Set {
    /// Id of the task
    task: TaskId,
    /// New title
    #[arg(long)]
    title: Option<String>,
    /// New description; `-` reads it from stdin, an empty text removes it
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Priority: low, medium, high or critical
    #[arg(long, value_parser = parse_word::<TicketPriority>)]
    priority: Option<TicketPriority>,
    /// Task that comes first; repeatable, replaces all others
    #[arg(long, value_name = "ID")]
    depends_on: Vec<TaskId>,
    /// Remove all dependencies
    #[arg(long, conflicts_with = "depends_on")]
    no_dependencies: bool,
    /// Files that only this task may change; repeatable, replaces all others
    #[arg(long = "owns", value_name = "GLOB")]
    owned_files: Vec<String>,
    /// New deadline
    #[arg(long, value_name = "TIME")]
    deadline: Option<Timestamp>,
    /// Remove the deadline
    #[arg(long, conflicts_with = "deadline")]
    no_deadline: bool,
    /// Maximum number of retries
    #[arg(long, value_name = "N")]
    max_retries: Option<u32>,
}

pub async fn run(task: &TaskArgs, output: &Output) -> Result {
    let client = match &task.command {
        Command::Ls(_) | Command::Show { .. } => ReadingClient::find(&task.connect, output).await?,
        Command::New(_)
        | Command::Set(_)
        | Command::Cancel { .. }
        | Command::Retry { .. }
        | Command::Validate { .. } => ConnectedClient::find(&task.connect)?.into(),
    };
    match &task.command {
        Command::New(new) => {
            let request = new_task(new, &client).await?;
            print_task(&client.create_task(&request).await?, output)
        }
        Command::Ls(list) => {
            let client = &client;
            let load = |limit, cursor| async move {
                let query = TaskListQuery {
                    project: list.project,
                    state: list.state,
                    waits_for: list.waits_for,
                    priority: list.priority,
                    open: list.open,
                    mine: list.mine,
                    limit: Some(limit),
                    cursor,
                    ..TaskListQuery::default()
                };
                client.list_tasks(&query).await
            };
            let (tasks, has_more) = collect_up_to((!list.all).then_some(list.limit), load).await?;
            print_list(&tasks, has_more, output)
        }
        Command::Show { task } => print_task(&client.get_task(*task).await?, output),
        Command::Set(set) => print_task(&client.change_task(set.task, &task_change(set).await?).await?, output),
        Command::Cancel { tasks } => change_tasks(&client, BulkTaskAction::Cancel, tasks, output).await,
        Command::Retry { tasks } => change_tasks(&client, BulkTaskAction::Retry, tasks, output).await,
        Command::Validate { task, passed, feedback } => {
            let feedback = match feedback {
                Some(text) => Some(text_or_stdin(text).await?),
                None => None,
            };
            let found = client.get_task(*task).await?;
            let sandbox = found.sandbox_id.filter(|_| found.state == TaskState::Validating).ok_or_else(|| {
                Failure::setup("illegal_transition", format!("the task is {}, not validating", found.state))
            })?;
            let verdict = ValidationVerdict { passed: *passed, feedback };
            print_task(&client.validate_task(sandbox, &verdict).await?, output)
        }
    }
}

async fn new_task(new: &New, client: &atoll_client::Client) -> Result<NewTask> {
    let description = match &new.description {
        Some(text) => Some(text_or_stdin(text).await?),
        None => None,
    };
    let ticket_id = match &new.ticket {
        Some(ticket) => Some(ticket.resolve(client).await?),
        None => None,
    };
    let mut settings = new.settings.to_request()?;
    Ok(NewTask {
        title: new.title.clone(),
        project_id: new.project,
        ticket_id,
        description,
        task_type: new.task_type,
        priority: new.priority,
        depends_on: new.depends_on.clone(),
        owned_files: OwnedFiles(new.owned_files.clone()),
        required_capabilities: new.required_capabilities.clone(),
        timeout_s: settings.timeout_s.take(),
        sandbox: Some(settings),
        deadline: new.deadline,
        max_retries: new.max_retries,
        budget_usd: new.budget,
        needs_validation: new.validate,
    })
}

async fn task_change(set: &Set) -> Result<ChangeTask> {
    let description = match &set.description {
        Some(text) => Some(Some(text_or_stdin(text).await?).filter(|text| !text.trim().is_empty())),
        None => None,
    };
    let replaces = set.no_dependencies || !set.depends_on.is_empty();
    Ok(ChangeTask {
        title: set.title.clone(),
        description,
        task_type: None,
        priority: set.priority,
        depends_on: replaces.then(|| set.depends_on.clone()),
        owned_files: (!set.owned_files.is_empty()).then(|| OwnedFiles(set.owned_files.clone())),
        deadline: if set.no_deadline { Some(None) } else { set.deadline.map(Some) },
        max_retries: set.max_retries,
    })
}

async fn change_tasks(
    client: &atoll_client::Client,
    action: BulkTaskAction,
    tasks: &[TaskId],
    output: &Output,
) -> Result {
    let results = client.change_tasks(&BulkTasks { action, ids: tasks.to_vec() }).await?;
    table::print_list(output, &results.items, &["TASK", "STATE", "DETAIL"], |item| {
        vec![
            table::cell(item.id.to_string()),
            table::cell(item.state.map_or("-", TaskState::as_str)),
            table::cell(item.detail.as_deref().unwrap_or_default()),
        ]
    })?;
    match results.items.iter().find(|item| item.state.is_none()) {
        Some(refused) => {
            let detail = refused.detail.clone().unwrap_or_default();
            Err(Failure::setup(refused.code.as_deref().unwrap_or_default(), detail))
        }
        None => Ok(()),
    }
}

fn describe_state(task: &ApiTask) -> String {
    match task.waits_for {
        Some(TaskWait::Slot) | None => task.state.to_string(),
        Some(reason) => format!("{} ({reason})", task.state),
    }
}

fn print_list(tasks: &[ApiTask], has_more: bool, output: &Output) -> Result {
    let now = time::now();
    table::print_list(output, tasks, &["TASK", "STATE", "PRIORITY", "RETRIES", "AGE", "TITLE"], |task| {
        vec![
            table::cell(task.id.to_string()),
            table::cell(describe_state(task)),
            table::cell(task.priority.as_str()),
            table::cell(format!("{}/{}", task.retries, task.max_retries)),
            table::cell(time::format_age(task.created_at, now)),
            table::cell(&task.title),
        ]
    })?;
    if has_more && !output.json {
        output.print_note("more rows exist; list them with --all");
    }
    Ok(())
}

fn join_ids(ids: &[TaskId]) -> Option<String> {
    (!ids.is_empty()).then(|| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
}

fn print_task(task: &ApiTask, output: &Output) -> Result {
    if output.json {
        return output.print_response(task);
    }
    let attempts: Vec<String> = task.attempts.iter().flatten().map(describe_attempt).collect();
    Fields::new()
        .field("id", task.id)
        .field("title", &task.title)
        .field("state", describe_state(task))
        .optional("continues at", task.available_at.map(time::format_time))
        .optional("waits for task", task.waits_for_task)
        .optional("waits for", join_ids(&task.blocked_by))
        .optional("score", task.score.map(|score| format!("{score:.3}")))
        .field("type", task.task_type)
        .field("priority", task.priority)
        .optional("depends on", join_ids(&task.depends_on))
        .optional("owns", (!task.owned_files.0.is_empty()).then(|| task.owned_files.0.join(" ")))
        .field("retries", format!("{} of {}", task.retries, task.max_retries))
        .field("time limit", format!("{} s", task.timeout_s))
        .optional("deadline", task.deadline.map(time::format_time))
        .optional("budget", task.budget_usd.map(|usd| format!("${usd}")))
        .optional("sandbox", task.sandbox_id)
        .optional("session", task.session_id)
        .field("project", task.project_id)
        .field("created by", &task.created_by)
        .field("created", time::format_time(task.created_at))
        .optional("started", task.started_at.map(time::format_time))
        .optional("ended", task.ended_at.map(time::format_time))
        .optional("result", task.result.as_ref())
        .optional("error", task.error.as_ref().map(|reason| format!("{}: {}", reason.code, reason.detail)))
        .optional("attempts", (!attempts.is_empty()).then(|| attempts.join("\n")))
        .optional("description", task.description.as_ref())
        .print(output)
}

fn describe_attempt(attempt: &atoll_api::TaskAttempt) -> String {
    let outcome = attempt.outcome.as_deref().unwrap_or("running");
    let place = attempt.sandbox_id.map_or_else(|| "no sandbox".to_owned(), |id| id.to_string());
    match &attempt.reason {
        Some(reason) => format!("{}: {outcome} in {place} ({}: {})", attempt.number, reason.code, reason.detail),
        None => format!("{}: {outcome} in {place}", attempt.number),
    }
}
