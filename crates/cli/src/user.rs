//! `atoll user`: the people of a deployment.

use crate::arguments::word;
use crate::client::{Client, Connect};
use crate::failure::Result;
use crate::output::Output;
use crate::render::fields::Fields;
use crate::render::{table, time};
use atoll_core::id::UserId;
use atoll_core::principal::Role;
use serde_json::{Value, json};

#[derive(Debug, clap::Args)]
pub struct User {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List users
    #[command(after_help = "Examples:\n  atoll user ls")]
    #[command(alias = "list")]
    Ls,
    /// Make a user; `atoll token new --user ID` then gives them a token
    #[command(after_help = "Examples:\n  atoll user new ada\n  atoll user new grace --role admin")]
    New {
        name: String,
        /// viewer, member or admin
        #[arg(long, value_parser = word::<Role>, default_value = "member")]
        role: Role,
    },
    /// Show one user
    #[command(after_help = "Examples:\n  atoll user show usr_…")]
    Show { id: UserId },
    /// Change what a user may do
    #[command(after_help = "Examples:\n  atoll user role usr_… viewer")]
    Role {
        id: UserId,
        /// viewer, member or admin
        #[arg(value_parser = word::<Role>)]
        role: Role,
    },
    /// Remove a user and their tokens
    #[command(after_help = "Examples:\n  atoll user rm usr_…")]
    Rm { id: UserId },
}

pub async fn run(user: &User, output: &Output) -> Result {
    let client = Client::find(&user.connect)?;
    let path = |id: &UserId| format!("/users/{id}");
    match &user.command {
        Command::Ls => list(&client.list("/users", &[], None).await?.0, output),
        Command::New { name, role } => {
            show(&client.post("/users", &json!({ "name": name, "role": role })).await?, output)
        }
        Command::Show { id } => show(&client.get(&path(id), &[]).await?, output),
        Command::Role { id, role } => show(&client.patch(&path(id), &json!({ "role": role })).await?, output),
        Command::Rm { id } => {
            let gone = client.delete(&path(id), &[]).await?;
            if output.json { output.object(&gone) } else { output.line(&format!("{id} is removed, with every token")) }
        }
    }
}

fn list(rows: &[Value], output: &Output) -> Result {
    if output.json {
        return rows.iter().try_for_each(|row| output.object(row));
    }
    let now = time::now();
    let cells = rows.iter().map(|row| {
        let said = |field: &str| row[field].as_str().unwrap_or_default();
        let age = time::age(said("created_at"), now);
        [said("id"), said("role"), &age, said("name")].map(table::cell).into()
    });
    table::print(output, &["ID", "ROLE", "AGE", "NAME"], &cells.collect::<Vec<Vec<_>>>())
}

fn show(row: &Value, output: &Output) -> Result {
    if output.json {
        return output.object(row);
    }
    let said = |field: &str| row[field].as_str().unwrap_or_default();
    Fields::new()
        .put("id", said("id"))
        .put("name", said("name"))
        .put("role", said("role"))
        .put("made", time::exact(said("created_at")))
        .print(output)
}
