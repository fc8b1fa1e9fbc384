//! `atoll session`: manages sessions.

use crate::arguments::parse_word;
use crate::connect::{Connect, ConnectedClient};
use crate::failure::Result;
use crate::inbox::send;
use crate::output::Output;
use crate::pages::collect_up_to;
use crate::references::{SessionRef, Target};
use crate::render::cost::format_cost;
use crate::render::fields::Fields;
use crate::render::{table, time};
use crate::sandbox::create::print_created;
use crate::stored_state::ReadingClient;
use crate::worker_command::require_new_file;
use atoll_api::{ChangeSession, ForkSession, ResumeSession, Session as ApiSession, SessionListQuery};
use atoll_core::id::ProjectId;
use atoll_core::reference::short_id;
use atoll_core::sandbox::ProviderKind;
use atoll_core::session::SessionState;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct SessionArgs {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List sessions, newest first
    #[command(after_help = "Examples:\n  atoll session ls\n  atoll session ls --state open --json")]
    #[command(alias = "list")]
    Ls {
        /// Filter by project
        #[arg(long, value_name = "ID")]
        project: Option<ProjectId>,
        /// Filter by state: open or closed
        #[arg(long, value_parser = parse_word::<SessionState>)]
        state: Option<SessionState>,
        /// Include removed sessions
        #[arg(long)]
        archived: bool,
        /// Maximum number of rows
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
        /// List all rows
        #[arg(long, conflicts_with = "limit")]
        all: bool,
    },
    /// Show a session
    #[command(after_help = "Examples:\n  atoll session show ses_…")]
    Show {
        /// Session: id, end of the id or branch; or a sandbox of it
        id: SessionRef,
    },
    /// Rename a session
    #[command(after_help = "Examples:\n  atoll session rename ses_… \"Upgrade of the parser\"")]
    Rename {
        /// Session: id, end of the id or branch; or a sandbox of it
        id: SessionRef,
        /// New title
        title: String,
    },
    /// Close a session; stops its sandbox, drops queued messages
    #[command(after_help = "Examples:\n  atoll session close ses_…")]
    Close {
        /// Session: id, end of the id or branch; or a sandbox of it
        id: SessionRef,
    },
    /// Remove a session from lists; its conversation stays
    #[command(after_help = "Examples:\n  atoll session rm ses_…\n  atoll session ls --archived")]
    Rm {
        /// Session: id, end of the id or branch; or a sandbox of it
        id: SessionRef,
    },
    /// Create a new sandbox for a session
    #[command(after_help = "Examples:\n  atoll session resume ses_…\n  atoll session resume ses_… --provider external")]
    Resume {
        /// Session: id, end of the id or branch; or a sandbox of it
        id: SessionRef,
        /// Provider of the sandbox [default: that of the last one]
        #[arg(long, value_parser = parse_word::<ProviderKind>)]
        provider: Option<ProviderKind>,
        /// New file for the worker's token [default: worker-ID.token in the data directory]
        #[arg(long, value_name = "FILE")]
        token_file_out: Option<PathBuf>,
    },
    /// Fork a session
    #[command(after_help = "Examples:\n  atoll session fork ses_… --title \"Another way\"")]
    Fork {
        /// Session: id, end of the id or branch; or a sandbox of it
        id: SessionRef,
        /// Title of the new session
        #[arg(long)]
        title: Option<String>,
    },
    /// Send a message to a session
    #[command(
        after_help = "Examples:\n  atoll session send ses_… \"and now the tests\"\n  atoll session send ses_… - --wait < notes.md"
    )]
    Send {
        /// Session: id, end of the id or branch; or a sandbox of it
        id: SessionRef,
        #[command(flatten)]
        message: send::MessageOptions,
    },
}

pub async fn run(session: &SessionArgs, output: &Output) -> Result {
    let client = match &session.command {
        Command::Ls { .. } | Command::Show { .. } => ReadingClient::find(&session.connect, output).await?,
        _ => ConnectedClient::find(&session.connect)?.into(),
    };
    match &session.command {
        Command::Ls { project, state, archived, limit, all } => {
            let (project, state, archived, client) = (*project, *state, *archived, &client);
            let load = |limit, cursor| async move {
                client
                    .list_sessions(&SessionListQuery {
                        project,
                        state,
                        archived,
                        limit: Some(limit),
                        cursor,
                        ..SessionListQuery::default()
                    })
                    .await
            };
            let (sessions, has_more) = collect_up_to((!all).then_some(*limit), load).await?;
            print_list(&sessions, has_more, output)
        }
        Command::Show { id } => print_session(&client.get_session(id.resolve(&client).await?).await?, output),
        Command::Rename { id, title } => {
            let change = ChangeSession { title: Some(title.clone()), ..ChangeSession::default() };
            print_session(&client.change_session(id.resolve(&client).await?, &change).await?, output)
        }
        Command::Close { id } => {
            let change = ChangeSession { state: Some(SessionState::Closed), ..ChangeSession::default() };
            print_session(&client.change_session(id.resolve(&client).await?, &change).await?, output)
        }
        Command::Rm { id } => {
            let change = ChangeSession { archived: Some(true), ..ChangeSession::default() };
            let session = client.change_session(id.resolve(&client).await?, &change).await?;
            output.print_result(&session, || {
                format!("{} is removed from lists; `atoll session ls --archived` shows it", session.id)
            })
        }
        Command::Resume { id, provider, token_file_out } => {
            require_new_file(token_file_out.as_deref())?;
            let resume = ResumeSession { provider: *provider };
            let sandbox = client.resume_session(id.resolve(&client).await?, &resume).await?;
            print_created(sandbox, token_file_out.as_deref(), &client, output)
        }
        Command::Fork { id, title } => {
            let fork = ForkSession { title: title.clone() };
            print_session(&client.fork_session(id.resolve(&client).await?, &fork).await?, output)
        }
        Command::Send { id, message } => {
            let target = Target::Session(id.resolve(&client).await?);
            send::send_message(target, message, &client, output).await
        }
    }
}

fn print_list(sessions: &[ApiSession], has_more: bool, output: &Output) -> Result {
    let now = time::now();
    table::print_list(output, sessions, &["ID", "STATE", "LIVE", "AGENT", "AGE", "TITLE"], |session| {
        let sandbox = session.sandbox_id.map_or_else(|| "-".to_owned(), |id| short_id(&id.to_string()).to_owned());
        vec![
            table::cell(session.id.to_string()),
            table::state_cell(if session.attention.is_some() { "attention" } else { session.state.as_str() }),
            table::cell(sandbox),
            table::cell(session.agent.as_deref().unwrap_or("-")),
            table::cell(time::format_age(session.created_at, now)),
            table::cell(&session.title),
        ]
    })?;
    if has_more && !output.json {
        output.print_note("more rows exist; list them with --all");
    }
    Ok(())
}

fn print_session(session: &ApiSession, output: &Output) -> Result {
    if output.json {
        return output.print_response(session);
    }
    Fields::new()
        .field("id", session.id)
        .field("title", &session.title)
        .field("state", session.state)
        .optional("attention", session.attention.as_ref().map(|reason| &reason.detail))
        .field("project", session.project_id)
        .optional("agent", session.agent.as_ref())
        .optional("live sandbox", session.sandbox_id)
        .optional("last sandbox", session.last_sandbox_id)
        .optional("branch", session.branch.as_ref())
        .optional("forked from", session.forked_from)
        .field("cost", format_cost(session.cost, session.cost_source))
        .optional("created by", session.created_by.as_ref())
        .field("created", time::format_time(session.created_at))
        .print(output)
}
