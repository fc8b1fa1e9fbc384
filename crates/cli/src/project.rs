//! `atoll project`: projects and their members.

use crate::arguments::word;
use crate::client::{Client, Connect};
use crate::failure::Result;
use crate::output::Output;
use crate::render::fields::Fields;
use crate::render::{table, text, time};
use crate::sandbox::limits::figure;
use atoll_core::budget::Per;
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
    /// Show or set what a project's sandboxes may spend on models together
    #[command(after_help = "\
Examples:
  atoll project budget prj_…                     what it is, what is spent and what is left
  atoll project budget prj_… 50                  $50 a month
  atoll project budget prj_… 5 --per day         $5 a day, in UTC
  atoll project budget prj_… none

Requests that it has no room for are refused before they are sent, and the agents that ask are paused.
They go on when the budget is raised, and when a new day or month begins.")]
    Budget {
        id: ProjectId,
        /// In US dollars, or `none`
        #[arg(value_parser = figure)]
        dollars: Option<Value>,
        /// day, month or ever; without it, as before, else month
        #[arg(long, value_parser = word::<Per>, requires = "dollars")]
        per: Option<Per>,
    },
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
        Command::Budget { id, dollars, per } => {
            let row = match wanted(dollars.as_ref(), *per) {
                Some(budget) => client.patch(&path(id), &json!({ "budget": budget })).await?,
                None => client.get(&path(id), &[]).await?,
            };
            if output.json { output.object(&row["budget"]) } else { output.line(&spent(&row["budget"])) }
        }
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

/// The budget to set; nothing where only a look is wanted.
fn wanted(dollars: Option<&Value>, per: Option<Per>) -> Option<Value> {
    let budget = match dollars? {
        Value::Null => Value::Null,
        usd => match per {
            Some(per) => json!({ "usd": usd, "per": per }),
            None => json!({ "usd": usd }),
        },
    };
    Some(budget)
}

/// What a budget is and what is left of it, in words.
fn spent(budget: &Value) -> String {
    let dollars = |name: &str| budget[name].as_f64().map(money);
    let Some(usd) = dollars("usd") else { return "none".to_owned() };
    let per = match budget["per"].as_str() {
        Some("ever") | None => " in all".to_owned(),
        Some(per) => format!(" a {per}"),
    };
    let used = dollars("spent").map(|spent| format!(", {spent} spent")).unwrap_or_default();
    let left = dollars("left").map(|left| format!(", {left} left")).unwrap_or_default();
    let until = budget["until"].as_str().map(|until| format!(" until {}", time::exact(until))).unwrap_or_default();
    format!("{usd}{per}{used}{left}{until}")
}

/// To the cent, where that says it all.
fn money(dollars: f64) -> String {
    let cents = (dollars * 100.0).round() / 100.0;
    if (dollars - cents).abs() < 5e-7 { format!("${cents:.2}") } else { format!("${dollars:.6}") }
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
    let budget = if row["budget"].is_null() { Value::Null } else { spent(&row["budget"]).into() };
    let cost = row["usage"]["cost"].as_f64().map_or(Value::Null, |cost| money(cost).into());
    Fields::new()
        .put("id", said("id"))
        .put("name", text::inline(said("name")))
        .put("default", row["is_default"].to_string())
        .maybe("repository", &row["repo"])
        .maybe("defaults", &row["defaults"])
        .maybe("budget", &budget)
        .maybe("models cost", &cost)
        .put("made", time::exact(said("created_at")))
        .print(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_told_in_words() {
        let month =
            json!({ "usd": 50.0, "per": "month", "spent": 12.5, "left": 37.5, "until": "2026-12-01T00:00:00Z" });
        let words = spent(&month);
        assert!(words.starts_with("$50.00 a month, $12.50 spent, $37.50 left until 2026-12-01"), "{words}");
        let ever = json!({ "usd": 0.02, "per": "ever", "spent": 0.0051, "left": 0.0149 });
        assert_eq!(spent(&ever), "$0.02 in all, $0.005100 spent, $0.014900 left");
        assert_eq!(spent(&json!({ "usd": 5, "per": "day" })), "$5.00 a day");
        assert_eq!(spent(&Value::Null), "none");
    }

    #[test]
    fn what_is_not_said_stays() {
        assert_eq!(wanted(None, None), None);
        assert_eq!(wanted(Some(&json!(5)), None), Some(json!({ "usd": 5 })));
        assert_eq!(wanted(Some(&json!(5)), Some(Per::Day)), Some(json!({ "usd": 5, "per": "day" })));
        assert_eq!(wanted(Some(&Value::Null), None), Some(Value::Null));
    }
}
