//! `atoll session`: conversations, which outlive their sandboxes.

use crate::arguments::{Target, word};
use crate::client::{Client, Connect};
use crate::failure::Result;
use crate::inbox::send;
use crate::output::Output;
use crate::render::fields::Fields;
use crate::render::{table, text, time};
use crate::sandbox::new::tell_made;
use atoll_core::id::{ProjectId, SessionId};
use atoll_core::sandbox::ProviderKind;
use atoll_core::session::SessionState;
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct Session {
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
        /// Only of this project
        #[arg(long, value_name = "ID")]
        project: Option<ProjectId>,
        /// Only in this state: open or closed
        #[arg(long, value_parser = word::<SessionState>)]
        state: Option<SessionState>,
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
        /// All of them
        #[arg(long, conflicts_with = "limit")]
        all: bool,
    },
    /// Show one session
    #[command(after_help = "Examples:\n  atoll session show ses_…")]
    Show { id: SessionId },
    /// Give a session another title
    #[command(after_help = "Examples:\n  atoll session rename ses_… \"Upgrade of the parser\"")]
    Rename { id: SessionId, title: String },
    /// Close a session: what is queued will not be delivered, its sandbox is stopped
    #[command(after_help = "Examples:\n  atoll session close ses_…")]
    Close { id: SessionId },
    /// Give a session a new sandbox like its last
    #[command(after_help = "Examples:\n  atoll session resume ses_…\n  atoll session resume ses_… --provider external")]
    Resume {
        id: SessionId,
        /// Who makes it: external or fake [default: as the last one]
        #[arg(long, value_parser = word::<ProviderKind>)]
        provider: Option<ProviderKind>,
        /// A new file for the worker's token, if there is one [default: worker-ID.token in the data directory]
        #[arg(long, value_name = "FILE")]
        token_file_out: Option<PathBuf>,
    },
    /// Begin a session that goes on from where this one is
    #[command(after_help = "Examples:\n  atoll session fork ses_… --title \"Another way\"")]
    Fork {
        id: SessionId,
        /// The new session's title
        #[arg(long)]
        title: Option<String>,
    },
    /// Say something to a session; without a live sandbox it gets a new one
    #[command(
        after_help = "Examples:\n  atoll session send ses_… \"and now the tests\"\n  atoll session send ses_… - --wait < notes.md"
    )]
    Send {
        id: SessionId,
        #[command(flatten)]
        message: send::Message,
    },
}

pub async fn run(session: &Session, output: &Output) -> Result {
    let client = Client::find(&session.connect)?;
    let path = |id: &SessionId| format!("/sessions/{id}");
    match &session.command {
        Command::Ls { project, state, limit, all } => {
            let filters =
                [("project", project.map(|id| id.to_string())), ("state", state.map(|word| word.to_string()))];
            let query: Vec<_> = filters.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
            let (rows, more) = client.list("/sessions", &query, (!all).then_some(*limit)).await?;
            list(&rows, more, output)
        }
        Command::Show { id } => show(&client.get(&path(id), &[]).await?, output),
        Command::Rename { id, title } => show(&client.patch(&path(id), &json!({ "title": title })).await?, output),
        Command::Close { id } => show(&client.patch(&path(id), &json!({ "state": "closed" })).await?, output),
        Command::Resume { id, provider, token_file_out } => {
            crate::worker_start::check_place(token_file_out.as_deref())?;
            let body = provider.map_or_else(|| json!({}), |provider| json!({ "provider": provider }));
            let made = client.post(&format!("{}/resume", path(id)), &body).await?;
            tell_made(made, token_file_out.as_deref(), &client, output)
        }
        Command::Fork { id, title } => {
            let body = title.as_ref().map_or_else(|| json!({}), |title| json!({ "title": title }));
            show(&client.post(&format!("{}/fork", path(id)), &body).await?, output)
        }
        Command::Send { id, message } => send::to(Target::Session(*id), message, &client, output).await,
    }
}

fn list(rows: &[Value], more: bool, output: &Output) -> Result {
    if output.json {
        return rows.iter().try_for_each(|row| output.object(row));
    }
    let now = time::now();
    let cells = rows.iter().map(|row| {
        let said = |field: &str| row[field].as_str().unwrap_or_default();
        vec![
            table::cell(said("id")),
            table::state(said("state")),
            table::cell(row["sandbox_id"].as_str().unwrap_or("-")),
            table::cell(row["agent"].as_str().unwrap_or("-")),
            table::cell(time::age(said("created_at"), now)),
            table::cell(said("title")),
        ]
    });
    table::print(output, &["ID", "STATE", "LIVE SANDBOX", "AGENT", "AGE", "TITLE"], &cells.collect::<Vec<_>>())?;
    if more {
        output.note("there are more: --all lists them");
    }
    Ok(())
}

fn show(row: &Value, output: &Output) -> Result {
    if output.json {
        return output.object(row);
    }
    let said = |field: &str| row[field].as_str().unwrap_or_default();
    Fields::new()
        .put("id", said("id"))
        .put("title", text::inline(said("title")))
        .put("state", said("state"))
        .put("project", said("project_id"))
        .maybe("agent", &row["agent"])
        .maybe("live sandbox", &row["sandbox_id"])
        .maybe("last sandbox", &row["last_sandbox_id"])
        .maybe("branch", &row["branch"])
        .maybe("forked from", &row["forked_from"])
        .put("cost", format!("${:.4}", row["cost"].as_f64().unwrap_or(0.0)))
        .maybe("made by", &row["created_by"])
        .put("made", time::exact(said("created_at")))
        .print(output)
}
