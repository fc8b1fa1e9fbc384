//! `atoll token`: what people and programs show to the server.

use crate::arguments::word;
use crate::client::{Client, Connect};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::render::{table, time};
use crate::worker_start::{check_place, write_secret};
use atoll_core::id::{ProjectId, TokenId, UserId};
use atoll_core::principal::Role;
use atoll_core::time::Timestamp;
use serde_json::{Map, Value};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct Token {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List tokens: an admin sees all, others their own
    #[command(after_help = "Examples:\n  atoll token ls")]
    #[command(alias = "list")]
    Ls,
    /// Make a token; it is shown once
    #[command(after_help = "\
Examples:
  atoll token new laptop
  atoll token new ada --user usr_… --out ada.token
  ATOLL_TOKEN=$(atoll token new ci --service --role member --expires 2027-01-01T00:00:00Z)")]
    New(New),
    /// End a token
    #[command(after_help = "Examples:\n  atoll token rm tok_…")]
    Rm { id: TokenId },
}

#[derive(Debug, clap::Args)]
struct New {
    /// What it is for
    name: String,
    /// For this user [default: yourself]
    #[arg(long, value_name = "ID", conflicts_with = "service")]
    user: Option<UserId>,
    /// For a program instead of a person
    #[arg(long)]
    service: bool,
    /// What the program may do: viewer, member or admin
    #[arg(long, value_parser = word::<Role>, requires = "service")]
    role: Option<Role>,
    /// Bounds the program to one project
    #[arg(long, value_name = "ID", requires = "service")]
    project: Option<ProjectId>,
    /// When it ends, like 2027-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = word::<Timestamp>)]
    expires: Option<Timestamp>,
    /// Put it into this new file, which only you can read, instead of printing it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl New {
    fn body(&self) -> Value {
        let fields = [
            ("name", Some(self.name.clone())),
            ("kind", self.service.then(|| "service".to_owned())),
            ("user_id", self.user.map(|id| id.to_string())),
            ("role", self.role.map(|word| word.to_string())),
            ("project_id", self.project.map(|id| id.to_string())),
            ("expires_at", self.expires.map(|time| time.to_string())),
        ];
        let given = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), Value::from(value?))));
        Value::Object(given.collect::<Map<_, _>>())
    }
}

pub async fn run(token: &Token, output: &Output) -> Result {
    let client = Client::find(&token.connect)?;
    match &token.command {
        Command::Ls => list(&client.list("/tokens", &[], None).await?.0, output),
        Command::New(new) => make(new, &client, output).await,
        Command::Rm { id } => {
            let gone = client.delete(&format!("/tokens/{id}"), &[]).await?;
            if output.json { output.object(&gone) } else { output.line(&format!("{id} is no longer good")) }
        }
    }
}

async fn make(new: &New, client: &Client, output: &Output) -> Result {
    check_place(new.out.as_deref())?;
    let mut made = client.post("/tokens", &new.body()).await?;
    let id = made["id"].as_str().unwrap_or_default().to_owned();
    let secret = made["token"].as_str().unwrap_or_default().to_owned();
    if let Some(path) = &new.out {
        write_secret(path, &secret, false).map_err(|error| {
            Failure::setup("token_file", format!("the token could not be written to {}: {error}", path.display()))
                .next(format!("End it with `atoll token rm {id}` and make another one."))
        })?;
        made["token"] = Value::Null;
        made["token_file"] = path.display().to_string().into();
    }
    match (&new.out, output.json) {
        (_, true) => output.object(&made),
        (Some(path), false) => output.line(&format!("{id} is in {}", path.display())),
        // Alone on the output, so that a script can take it.
        (None, false) => {
            output.note(&format!("{id}: this is the only time that it is shown"));
            output.line(&secret)
        }
    }
}

fn list(rows: &[Value], output: &Output) -> Result {
    if output.json {
        return rows.iter().try_for_each(|row| output.object(row));
    }
    let now = time::now();
    let cells = rows.iter().map(|row| {
        let said = |field: &str| row[field].as_str().unwrap_or("-");
        let age = time::age(said("created_at"), now);
        let expires = row["expires_at"].as_str().map_or_else(|| "never".to_owned(), time::exact);
        let whose = row["user_id"].as_str().or(row["project_id"].as_str()).unwrap_or("-");
        [said("id"), said("kind"), said("role"), whose, &age, &expires, said("name")].map(table::cell).into()
    });
    table::print(output, &["ID", "KIND", "ROLE", "WHOSE", "AGE", "EXPIRES", "NAME"], &cells.collect::<Vec<Vec<_>>>())
}
