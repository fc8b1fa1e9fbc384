//! `atoll project`: projects and their members.

use crate::arguments::word;
use crate::client::{Client, Connect};
use crate::failure::Result;
use crate::output::Output;
use crate::render::fields::Fields;
use crate::render::{table, text, time};
use atoll_core::id::{ProjectId, UserId};
use atoll_core::principal::Role;
use serde_json::{Value, json};

#[derive(Debug, clap::Args)]
pub struct Project {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List projects
    #[command(after_help = "Examples:\n  atoll project ls\n  atoll project ls --json | jq -r .name")]
    #[command(alias = "list")]
    Ls,
    /// Make a project
    #[command(after_help = "Examples:\n  atoll project new parser --repo https://git.example.org/parser.git")]
    New {
        name: String,
        /// The repository that its sandboxes work on
        #[arg(long, value_name = "URL")]
        repo: Option<String>,
    },
    /// Show one project
    #[command(after_help = "Examples:\n  atoll project show prj_…")]
    Show { id: ProjectId },
    /// Give a project another name
    #[command(after_help = "Examples:\n  atoll project rename prj_… compiler")]
    Rename { id: ProjectId, name: String },
    /// Remove a project that nothing belongs to
    #[command(after_help = "Examples:\n  atoll project rm prj_…")]
    Rm { id: ProjectId },
    /// List a project's members
    #[command(after_help = "Examples:\n  atoll project members prj_…")]
    Members { id: ProjectId },
    /// Give a user a role in a project
    #[command(after_help = "Examples:\n  atoll project add-member prj_… usr_… --role viewer")]
    AddMember {
        id: ProjectId,
        user: UserId,
        /// viewer, member or admin
        #[arg(long, value_parser = word::<Role>, default_value = "member")]
        role: Role,
    },
    /// Take a user out of a project
    #[command(after_help = "Examples:\n  atoll project rm-member prj_… usr_…")]
    RmMember { id: ProjectId, user: UserId },
}

pub async fn run(project: &Project, output: &Output) -> Result {
    let client = Client::find(&project.connect)?;
    let path = |id: &ProjectId| format!("/projects/{id}");
    match &project.command {
        Command::Ls => list(&client.list("/projects", &[], None).await?.0, output),
        Command::New { name, repo } => {
            let mut body = json!({ "name": name });
            if let Some(url) = repo {
                body["repo"] = json!({ "url": url });
            }
            show(&client.post("/projects", &body).await?, output)
        }
        Command::Show { id } => show(&client.get(&path(id), &[]).await?, output),
        Command::Rename { id, name } => show(&client.patch(&path(id), &json!({ "name": name })).await?, output),
        Command::Rm { id } => {
            let gone = client.delete(&path(id), &[]).await?;
            done(&gone, &format!("{id} is removed"), output)
        }
        Command::Members { id } => {
            let answer = client.get(&format!("{}/members", path(id)), &[]).await?;
            members(answer["items"].as_array().map_or(&[], Vec::as_slice), output)
        }
        Command::AddMember { id, user, role } => {
            let answer = client.put(&format!("{}/members/{user}", path(id)), &json!({ "role": role })).await?;
            done(&answer, &format!("{user} is {role} of {id}"), output)
        }
        Command::RmMember { id, user } => {
            client.delete(&format!("{}/members/{user}", path(id)), &[]).await?;
            done(&json!({ "user_id": user, "role": null }), &format!("{user} is no longer in {id}"), output)
        }
    }
}

fn done(answer: &Value, sentence: &str, output: &Output) -> Result {
    if output.json { output.object(answer) } else { output.line(sentence) }
}

fn list(rows: &[Value], output: &Output) -> Result {
    if output.json {
        return rows.iter().try_for_each(|row| output.object(row));
    }
    let now = time::now();
    let cells = rows.iter().map(|row| {
        let said = |field: &str| row[field].as_str().unwrap_or_default();
        let default = if row["is_default"] == true { "default" } else { "" };
        let age = time::age(said("created_at"), now);
        [said("id"), default, &age, said("name")].map(table::cell).into()
    });
    table::print(output, &["ID", "", "AGE", "NAME"], &cells.collect::<Vec<Vec<_>>>())
}

fn members(rows: &[Value], output: &Output) -> Result {
    if output.json {
        return rows.iter().try_for_each(|row| output.object(row));
    }
    let cells = rows
        .iter()
        .map(|row| ["user_id", "role"].map(|field| table::cell(row[field].as_str().unwrap_or_default())).into());
    table::print(output, &["USER", "ROLE"], &cells.collect::<Vec<Vec<_>>>())
}

fn show(row: &Value, output: &Output) -> Result {
    if output.json {
        return output.object(row);
    }
    let said = |field: &str| row[field].as_str().unwrap_or_default();
    Fields::new()
        .put("id", said("id"))
        .put("name", text::inline(said("name")))
        .put("default", row["is_default"].to_string())
        .maybe("repository", &row["repo"])
        .maybe("defaults", &row["defaults"])
        .put("made", time::exact(said("created_at")))
        .print(output)
}
