//! `atoll ticket`: manages tickets.

use crate::arguments::{parse_word, text_or_stdin};
use crate::confirm::Confirm;
use crate::connect::{Connect, ConnectedClient};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::pages::collect_up_to;
use crate::render::fields::Fields;
use crate::render::{table, text, time};
use crate::stored_state::ReadingClient;
use atoll_api::{ChangeTicket, NewTicket, Ticket as ApiTicket, TicketListQuery};
use atoll_core::id::{ProjectId, TicketId};
use atoll_core::pull_request::PullRequestLink;
use atoll_core::ticket::{TicketKey, TicketPriority, TicketStatus, TicketType};
use std::fmt;
use std::str::FromStr;

#[derive(Debug, clap::Args)]
pub struct TicketArgs {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Create a ticket
    #[command(after_help = "\
Examples:
  atoll ticket new \"Make the parser faster\"
  atoll ticket new \"Login fails\" --type bug --priority critical --depends-on ATL-3
  atoll ticket new \"Rewrite the guide\" --type docs --description - < notes.md")]
    New(New),
    /// List tickets, newest first
    #[command(after_help = "Examples:\n  atoll ticket ls\n  atoll ticket ls --status building --type bug --json")]
    #[command(alias = "list")]
    Ls(List),
    /// Show a ticket
    #[command(after_help = "Examples:\n  atoll ticket show ATL-12")]
    Show {
        /// Ticket: key or id
        ticket: TicketRef,
    },
    /// Change a ticket
    #[command(after_help = "\
Examples:
  atoll ticket set ATL-12 --status analyzing --priority high
  atoll ticket set ATL-12 --blocked true
  atoll ticket set ATL-12 --depends-on ATL-3 --depends-on ATL-4
  atoll ticket set ATL-12 --no-dependencies")]
    Set(Set),
    /// Remove a ticket; its branch and pull request stay
    #[command(after_help = "Examples:\n  atoll ticket rm ATL-12")]
    Rm {
        /// Ticket: key or id
        ticket: TicketRef,
        #[command(flatten)]
        confirm: Confirm,
    },
}

#[derive(Debug, clap::Args)]
struct New {
    /// Title, one line
    title: String,
    /// Task for the agent; `-` reads it from stdin
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Project of the ticket [default: the default project]
    #[arg(long, value_name = "ID")]
    project: Option<ProjectId>,
    /// Type: feature, bug, refactor, docs, test or chore [default: feature]
    #[arg(long = "type", value_name = "TYPE", value_parser = parse_word::<TicketType>)]
    ticket_type: Option<TicketType>,
    /// Priority: low, medium, high or critical [default: medium]
    #[arg(long, value_parser = parse_word::<TicketPriority>)]
    priority: Option<TicketPriority>,
    /// Ticket that comes first; repeatable
    #[arg(long, value_name = "KEY")]
    depends_on: Vec<TicketKey>,
    /// Refuse to start work on the ticket
    #[arg(long)]
    blocked: bool,
}

#[derive(Debug, clap::Args)]
struct List {
    /// Filter by project
    #[arg(long, value_name = "ID")]
    project: Option<ProjectId>,
    /// Filter by status
    #[arg(long, value_parser = parse_word::<TicketStatus>)]
    status: Option<TicketStatus>,
    /// Filter by type
    #[arg(long = "type", value_name = "TYPE", value_parser = parse_word::<TicketType>)]
    ticket_type: Option<TicketType>,
    /// Filter by priority
    #[arg(long, value_parser = parse_word::<TicketPriority>)]
    priority: Option<TicketPriority>,
    /// Only blocked tickets, or only others (`--blocked false`)
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    blocked: Option<bool>,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// List all rows
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

#[derive(Debug, clap::Args)]
struct Set {
    /// Ticket: key or id
    ticket: TicketRef,
    /// New title
    #[arg(long)]
    title: Option<String>,
    /// New task for the agent; `-` reads it from stdin, an empty text removes it
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Type: feature, bug, refactor, docs, test or chore
    #[arg(long = "type", value_name = "TYPE", value_parser = parse_word::<TicketType>)]
    ticket_type: Option<TicketType>,
    /// Priority: low, medium, high or critical
    #[arg(long, value_parser = parse_word::<TicketPriority>)]
    priority: Option<TicketPriority>,
    /// Status: backlog, analyzing, building, building-done, testing or done
    #[arg(long, value_parser = parse_word::<TicketStatus>)]
    status: Option<TicketStatus>,
    /// Block or release the ticket
    #[arg(long, value_name = "BOOL")]
    blocked: Option<bool>,
    /// Ticket that comes first; repeatable, replaces all others
    #[arg(long, value_name = "KEY")]
    depends_on: Vec<TicketKey>,
    /// Remove all dependencies
    #[arg(long, conflicts_with = "depends_on")]
    no_dependencies: bool,
}

/// A ticket on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TicketRef {
    Id(TicketId),
    Key(TicketKey),
}

impl FromStr for TicketRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(id) => Ok(Self::Id(id)),
            Err(_) => text.parse().map(Self::Key).map_err(|_| "expected a key such as ATL-12, or an id (tkt_…)".into()),
        }
    }
}

impl fmt::Display for TicketRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Key(key) => key.fmt(f),
        }
    }
}

impl TicketRef {
    /// Finds the ticket; an id needs no request.
    pub async fn resolve(&self, client: &atoll_client::Client) -> Result<TicketId> {
        let key = match self {
            Self::Id(id) => return Ok(*id),
            Self::Key(key) => key,
        };
        let query = TicketListQuery { key: Some(key.clone()), limit: Some(1), ..TicketListQuery::default() };
        let found = client.list_tickets(&query).await?.items.into_iter().next();
        found.map(|ticket| ticket.id).ok_or_else(|| {
            Failure::setup("not_found", format!("there is no ticket {key}"))
                .with_hint("`atoll ticket ls` lists the tickets.")
        })
    }
}

pub async fn run(ticket: &TicketArgs, output: &Output) -> Result {
    let client = match &ticket.command {
        Command::Ls(_) | Command::Show { .. } => ReadingClient::find(&ticket.connect, output).await?,
        Command::New(_) | Command::Set(_) | Command::Rm { .. } => ConnectedClient::find(&ticket.connect)?.into(),
    };
    match &ticket.command {
        Command::New(new) => {
            let description = match &new.description {
                Some(text) => Some(text_or_stdin(text).await?),
                None => None,
            };
            let request = NewTicket {
                title: new.title.clone(),
                project_id: new.project,
                description,
                ticket_type: new.ticket_type,
                priority: new.priority,
                status: None,
                blocked: new.blocked,
                depends_on: new.depends_on.clone(),
            };
            print_ticket(&client.create_ticket(&request).await?, output)
        }
        Command::Ls(list) => {
            let client = &client;
            let load = |limit, cursor| async move {
                let query = TicketListQuery {
                    project: list.project,
                    status: list.status,
                    ticket_type: list.ticket_type,
                    priority: list.priority,
                    blocked: list.blocked,
                    limit: Some(limit),
                    cursor,
                    ..TicketListQuery::default()
                };
                client.list_tickets(&query).await
            };
            let (tickets, has_more) = collect_up_to((!list.all).then_some(list.limit), load).await?;
            print_list(&tickets, has_more, output)
        }
        Command::Show { ticket } => print_ticket(&client.get_ticket(ticket.resolve(&client).await?).await?, output),
        Command::Set(set) => {
            let change = ticket_change(set).await?;
            print_ticket(&client.change_ticket(set.ticket.resolve(&client).await?, &change).await?, output)
        }
        Command::Rm { ticket, confirm } => {
            confirm.require(&format!("removes the ticket {ticket}"), output).await?;
            let removed = client.remove_ticket(ticket.resolve(&client).await?).await?;
            output.print_result(&removed, || format!("{} is removed", removed.key))
        }
    }
}

async fn ticket_change(set: &Set) -> Result<ChangeTicket> {
    let description = match &set.description {
        Some(text) => Some(Some(text_or_stdin(text).await?).filter(|text| !text.trim().is_empty())),
        None => None,
    };
    let replaces = set.no_dependencies || !set.depends_on.is_empty();
    Ok(ChangeTicket {
        title: set.title.clone(),
        description,
        ticket_type: set.ticket_type,
        priority: set.priority,
        status: set.status,
        blocked: set.blocked,
        depends_on: replaces.then(|| set.depends_on.clone()),
    })
}

fn describe_pull_request(link: &PullRequestLink) -> String {
    format!("#{} ({}) {}", link.number, link.state, text::escape_line(&link.url))
}

fn print_list(tickets: &[ApiTicket], has_more: bool, output: &Output) -> Result {
    let now = time::now();
    table::print_list(output, tickets, &["KEY", "STATUS", "TYPE", "PRIORITY", "AGE", "TITLE"], |ticket| {
        let status = if ticket.blocked { format!("{} (blocked)", ticket.status) } else { ticket.status.to_string() };
        vec![
            table::cell(ticket.key.to_string()),
            table::cell(status),
            table::cell(ticket.ticket_type.as_str()),
            table::cell(ticket.priority.as_str()),
            table::cell(time::format_age(ticket.created_at, now)),
            table::cell(&ticket.title),
        ]
    })?;
    if has_more && !output.json {
        output.print_note("more rows exist; list them with --all");
    }
    Ok(())
}

fn print_ticket(ticket: &ApiTicket, output: &Output) -> Result {
    if output.json {
        return output.print_response(ticket);
    }
    let depends_on: Vec<_> = ticket.depends_on.iter().map(ToString::to_string).collect();
    Fields::new()
        .field("key", &ticket.key)
        .field("title", &ticket.title)
        .field("type", ticket.ticket_type)
        .field("priority", ticket.priority)
        .field("status", ticket.status)
        .optional("blocked", ticket.blocked.then_some("yes"))
        .optional("depends on", (!depends_on.is_empty()).then(|| depends_on.join(", ")))
        .optional("branch", ticket.branch.as_ref())
        .optional("pull request", ticket.pr.as_ref().map(describe_pull_request))
        .optional("session", ticket.session_id)
        .field("project", ticket.project_id)
        .field("id", ticket.id)
        .optional("created by", ticket.created_by.as_ref())
        .field("created", time::format_time(ticket.created_at))
        .optional("description", ticket.description.as_ref())
        .print(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_named_by_key_or_id() {
        let id = TicketId::new();
        assert_eq!(id.to_string().parse(), Ok(TicketRef::Id(id)));
        assert_eq!("atl-12".parse(), Ok(TicketRef::Key(TicketKey::new("ATL", 12))));
        assert!("12".parse::<TicketRef>().is_err());
    }
}
