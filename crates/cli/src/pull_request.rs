//! `atoll pr`: lists, opens and merges pull requests.

use crate::arguments::parse_word;
use crate::connect::{Connect, ConnectedClient};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::pages::{collect_all, collect_up_to};
use crate::references::SessionRef;
use crate::render::fields::Fields;
use crate::render::{table, text, time};
use crate::stored_state::ReadingClient;
use crate::ticket::TicketRef;
use atoll_api::{
    BranchWorkflow, BranchWorkflowProgress, BranchWorkflowQuery, FinishBranchWorkflow, MergeBranchWorkflow,
    PullRequestListQuery, PullRequestView,
};
use atoll_core::branch_workflow::WorkflowState;
use atoll_core::git_settings::Publication;
use atoll_core::id::{ProjectId, SessionId};
use atoll_core::pull_request::{MergeMethod, MergeVerdict, PullRequestState};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
pub struct PullRequestArgs {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List pull requests, newest session first
    #[command(after_help = "Examples:\n  atoll pr ls\n  atoll pr ls --state open --json")]
    #[command(alias = "list")]
    Ls(List),
    /// Show a pull request with its checks and reviews
    #[command(after_help = "Examples:\n  atoll pr show ATL-12\n  atoll pr show 7")]
    Show {
        /// Pull request: its number, ticket, session, branch or sandbox
        pull_request: PullRequestRef,
    },
    /// Push a branch and open its pull request
    #[command(after_help = "\
Examples:
  atoll pr create ATL-12
  atoll pr create last
  atoll pr create ATL-12 --push-only

A failed attempt continues where it stopped.")]
    Create {
        /// Work: ticket, session, branch or sandbox
        work: PullRequestRef,
        /// Push the branch without a pull request
        #[arg(long)]
        push_only: bool,
        /// Do not wait for the result
        #[arg(long)]
        no_wait: bool,
    },
    /// Merge a pull request when its checks and reviews allow it
    #[command(after_help = "\
Examples:
  atoll pr merge ATL-12
  atoll pr merge 7 --method rebase --wait

The server merges in the background, deletes the branch, and moves the branches of dependent tickets.")]
    Merge {
        /// Pull request: its number, ticket, session, branch or sandbox
        pull_request: PullRequestRef,
        /// Merge method: squash, merge or rebase [default: the project's, or squash]
        #[arg(long, value_parser = parse_word::<MergeMethod>)]
        method: Option<MergeMethod>,
        /// Wait also for checks and reviews
        #[arg(long)]
        wait: bool,
    },
}

#[derive(Debug, clap::Args)]
struct List {
    /// Filter by project
    #[arg(long, value_name = "ID")]
    project: Option<ProjectId>,
    /// Filter by state: open, merged or closed
    #[arg(long, value_parser = parse_word::<PullRequestState>)]
    state: Option<PullRequestState>,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// List all rows
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

/// A pull request, or the work that gets one, on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PullRequestRef {
    Number(u64),
    Ticket(TicketRef),
    Session(SessionRef),
}

impl FromStr for PullRequestRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(number) = text.strip_prefix('#').unwrap_or(text).parse() {
            return Ok(Self::Number(number));
        }
        match text.parse() {
            Ok(ticket) => Ok(Self::Ticket(ticket)),
            Err(_) => text.parse().map(Self::Session),
        }
    }
}

impl fmt::Display for PullRequestRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "#{number}"),
            Self::Ticket(ticket) => ticket.fmt(f),
            Self::Session(session) => session.fmt(f),
        }
    }
}

impl PullRequestRef {
    async fn resolve(&self, client: &ConnectedClient) -> Result<SessionId> {
        match self {
            Self::Number(number) => find_by_number(*number, client).await,
            Self::Ticket(ticket) => {
                let id = ticket.resolve(client).await?;
                client.get_ticket(id).await?.session_id.ok_or_else(|| {
                    Failure::setup("no_session", format!("no sandbox has worked on {ticket}"))
                        .with_hint(format!("`atoll run --ticket {ticket}` starts one."))
                })
            }
            Self::Session(session) => session.resolve(client).await,
        }
    }
}

async fn find_by_number(number: u64, client: &ConnectedClient) -> Result<SessionId> {
    let all = collect_all(async |cursor| {
        let query = PullRequestListQuery { limit: Some(crate::pages::PAGE_SIZE), cursor, ..Default::default() };
        client.list_pull_requests(&query).await
    })
    .await?;
    let found: Vec<&PullRequestView> = all.iter().filter(|pull| pull.number == number).collect();
    match found.as_slice() {
        [one] => Ok(one.session_id),
        [] => Err(Failure::setup("not_found", format!("there is no pull request #{number}"))
            .with_hint("`atoll pr ls` lists the pull requests.")),
        [_, ..] => Err(Failure::input(format!("several repositories have a pull request #{number}"))
            .with_hint("Name its ticket or its branch.")),
    }
}

pub async fn run(arguments: &PullRequestArgs, output: &Output) -> Result {
    let client = match &arguments.command {
        Command::Ls(_) | Command::Show { .. } => ReadingClient::find(&arguments.connect, output).await?,
        Command::Create { .. } | Command::Merge { .. } => ConnectedClient::find(&arguments.connect)?.into(),
    };
    match &arguments.command {
        Command::Ls(list) => {
            let client = &client;
            let load = |limit, cursor| async move {
                let query =
                    PullRequestListQuery { project: list.project, state: list.state, limit: Some(limit), cursor };
                client.list_pull_requests(&query).await
            };
            let (pulls, has_more) = collect_up_to((!list.all).then_some(list.limit), load).await?;
            print_list(&pulls, has_more, output)
        }
        Command::Show { pull_request } => {
            print_pull_request(&client.get_pull_request(pull_request.resolve(&client).await?).await?, output)
        }
        Command::Create { work, push_only, no_wait } => {
            let session = work.resolve(&client).await?;
            let publish = Some(if *push_only { Publication::Push } else { Publication::PullRequest });
            let request = FinishBranchWorkflow { session_id: Some(session), publish, ..Default::default() };
            let begun = client.finish_branch_workflow(&request).await?;
            let waits = |state| !no_wait && state == WorkflowState::Running;
            print_workflow(&watch_workflow(begun, session, &client, waits).await?, output)
        }
        Command::Merge { pull_request, method, wait } => {
            let session = pull_request.resolve(&client).await?;
            let request = MergeBranchWorkflow { session_id: Some(session), method: *method, ..Default::default() };
            let begun = client.merge_branch_workflow(&request).await?;
            let waits = |state| state == WorkflowState::Running || (*wait && state == WorkflowState::Waiting);
            print_workflow(&watch_workflow(begun, session, &client, waits).await?, output)
        }
    }
}

/// Reads the workflow until its state is one that the command does not wait for.
async fn watch_workflow(
    begun: BranchWorkflow,
    session: SessionId,
    client: &ConnectedClient,
    waits: impl Fn(WorkflowState) -> bool,
) -> Result<BranchWorkflow> {
    let mut workflow = begun;
    while workflow.progress.as_ref().is_some_and(|progress| waits(progress.state)) {
        tokio::time::sleep(POLL_INTERVAL).await;
        let query = BranchWorkflowQuery { session: Some(session), ..Default::default() };
        workflow = client.get_branch_workflow(&query).await?;
    }
    Ok(workflow)
}

fn print_list(pulls: &[PullRequestView], has_more: bool, output: &Output) -> Result {
    let now = time::now();
    table::print_list(output, pulls, &["NUMBER", "STATE", "TICKET", "AGE", "BRANCH", "TITLE"], |pull| {
        vec![
            table::cell(format!("#{}", pull.number)),
            table::cell(pull.state.as_str()),
            table::cell(pull.ticket.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string)),
            table::cell(time::format_age(pull.created_at, now)),
            table::cell(&pull.branch),
            table::cell(&pull.title),
        ]
    })?;
    if has_more && !output.json {
        output.print_note("more rows exist; list them with --all");
    }
    Ok(())
}

fn describe_verdict(verdict: &MergeVerdict) -> String {
    match verdict {
        MergeVerdict::Allowed => "allowed".to_owned(),
        MergeVerdict::AlreadyMerged => "already merged".to_owned(),
        MergeVerdict::Wait(reason) => format!("waits: {reason}"),
        MergeVerdict::Refused(reason) => format!("refused: {reason}"),
        MergeVerdict::Conflict => "conflicts with its base".to_owned(),
        MergeVerdict::Behind => "needs the newest commits of its base".to_owned(),
    }
}

fn print_pull_request(pull: &PullRequestView, output: &Output) -> Result {
    if output.json {
        return output.print_response(pull);
    }
    Fields::new()
        .field("number", format!("#{}", pull.number))
        .field("title", &pull.title)
        .field("state", pull.state)
        .field("url", &pull.url)
        .field("branch", format!("{} → {}", pull.branch, pull.target))
        .optional("checks", pull.status.as_ref().map(|status| status.checks))
        .optional("reviews", pull.status.as_ref().map(|status| status.reviews))
        .optional("merge", pull.merge.as_ref().map(describe_verdict))
        .optional("ticket", pull.ticket.as_ref())
        .field("session", pull.session_id)
        .field("repository", &pull.repo)
        .field("created", time::format_time(pull.created_at))
        .print(output)
}

/// Prints the workflow. A failed one is a failure of the command.
fn print_workflow(workflow: &BranchWorkflow, output: &Output) -> Result {
    let Some(progress) = &workflow.progress else { return output.print_response(workflow) };
    if output.json {
        output.print_response(workflow)?;
    } else {
        describe_progress(workflow, progress).print(output)?;
    }
    if progress.state != WorkflowState::Failed {
        return Ok(());
    }
    let (code, detail) = match &progress.reason {
        Some(reason) => (reason.code.as_str(), reason.detail.as_str()),
        None => ("workflow_failed", "the branch workflow failed"),
    };
    Err(Failure::work(code, text::escape_line(detail))
        .with_hint("The branch is kept. Run the command again to continue."))
}

fn describe_progress(workflow: &BranchWorkflow, progress: &BranchWorkflowProgress) -> Fields {
    let pull = progress.pull_request.as_ref();
    Fields::new()
        .optional("branch", workflow.branch.as_ref())
        .field("state", format!("{} ({})", progress.state, progress.step))
        .optional("pushed", progress.pushed_commit.as_ref())
        .optional("pull request", pull.map(|pull| format!("#{} ({}) {}", pull.number, pull.state, pull.url)))
        .optional("conflicts", (!progress.conflicts.is_empty()).then(|| progress.conflicts.join(", ")))
        .optional("please review", (!progress.flagged.is_empty()).then(|| progress.flagged.join(", ")))
        .optional("reason", progress.reason.as_ref().map(|reason| &reason.detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::ticket::TicketKey;

    #[test]
    fn a_pull_request_is_named_by_number_ticket_or_session() {
        for number in ["7", "#7"] {
            assert_eq!(number.parse(), Ok(PullRequestRef::Number(7)));
        }
        let key = TicketRef::Key(TicketKey::new("ATL", 12));
        assert_eq!("ATL-12".parse(), Ok(PullRequestRef::Ticket(key)));
        assert!(matches!("feature/x".parse(), Ok(PullRequestRef::Session(_))));
    }
}
