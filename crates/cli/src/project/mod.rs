//! `atoll project`: manages projects, their defaults, members and budgets.

mod defaults;

use crate::arguments::{parse_repository, parse_word};
use crate::connect::{Connect, ConnectedClient};
use crate::failure::Result;
use crate::output::Output;
use crate::pages::{collect_all, page_query};
use crate::render::cost::format_cost;
use crate::render::fields::Fields;
use crate::render::plain_value::describe_value;
use crate::render::{table, time};
use crate::sandbox::limits::LimitValue;
use atoll_api::{Budget, ChangeProject, Member, NewBudget, NewProject, Project as ApiProject, SetMember};
use atoll_core::budget::BudgetPeriod;
use atoll_core::id::{ProjectId, UserId};
use atoll_core::principal::Role;
use std::path::PathBuf;

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
    /// Create a project
    #[command(after_help = "Examples:\n  atoll project new parser --repo https://git.example.org/parser.git")]
    New {
        /// Name of the project
        name: String,
        /// Repository of its sandboxes
        #[arg(long, value_name = "PATH|URL")]
        repo: Option<PathBuf>,
    },
    /// Show a project
    #[command(after_help = "Examples:\n  atoll project show prj_…")]
    Show {
        /// Project id (prj_…)
        id: ProjectId,
    },
    /// Rename a project
    #[command(after_help = "Examples:\n  atoll project rename prj_… compiler")]
    Rename {
        /// Project id (prj_…)
        id: ProjectId,
        /// New name
        name: String,
    },
    /// Set the defaults of a project's sandboxes
    Set(Box<defaults::SetDefaults>),
    /// Show or set a project's model budget
    #[command(after_help = "\
Examples:
  atoll project budget prj_…                     show the budget and its use
  atoll project budget prj_… 50                  $50 a month
  atoll project budget prj_… 5 --per day         $5 a day, in UTC
  atoll project budget prj_… none

The server rejects model requests that exceed the budget and pauses their agents.
They continue when the budget is raised, or when the next day or month starts.")]
    Budget {
        /// Project id (prj_…)
        id: ProjectId,
        /// US dollars, or `none`
        dollars: Option<LimitValue>,
        /// Period: day, month or ever [default: the current one, or month]
        #[arg(long, value_parser = parse_word::<BudgetPeriod>, requires = "dollars")]
        per: Option<BudgetPeriod>,
    },
    /// Remove an empty project
    #[command(after_help = "Examples:\n  atoll project rm prj_…")]
    Rm {
        /// Project id (prj_…)
        id: ProjectId,
    },
    /// List a project's members
    #[command(after_help = "Examples:\n  atoll project members prj_…")]
    Members {
        /// Project id (prj_…)
        id: ProjectId,
    },
    /// Add a user to a project
    #[command(after_help = "Examples:\n  atoll project add-member prj_… usr_… --role viewer")]
    AddMember {
        /// Project id (prj_…)
        id: ProjectId,
        /// User id (usr_…)
        user: UserId,
        /// Role: viewer, member or admin
        #[arg(long, value_parser = parse_word::<Role>, default_value = "member")]
        role: Role,
    },
    /// Remove a user from a project
    #[command(after_help = "Examples:\n  atoll project rm-member prj_… usr_…")]
    RmMember {
        /// Project id (prj_…)
        id: ProjectId,
        /// User id (usr_…)
        user: UserId,
    },
}

pub async fn run(project: &Project, output: &Output) -> Result {
    let client = ConnectedClient::find(&project.connect)?;
    match &project.command {
        Command::Ls => print_list(&all_projects(&client).await?, output),
        Command::New { name, repo } => {
            let repo = repo.as_deref().map(parse_repository).transpose()?;
            let new = NewProject { name: name.clone(), repo, ..NewProject::default() };
            print_project(&client.create_project(&new).await?, output)
        }
        Command::Show { id } => print_project(&client.get_project(*id).await?, output),
        Command::Rename { id, name } => {
            let change = ChangeProject { name: Some(name.clone()), ..ChangeProject::default() };
            print_project(&client.change_project(*id, &change).await?, output)
        }
        Command::Set(set) => print_project(&defaults::set_defaults(set, &client).await?, output),
        Command::Budget { id, dollars, per } => {
            let project = match dollars {
                Some(dollars) => client.change_project(*id, &budget_change(*dollars, *per)).await?,
                None => client.get_project(*id).await?,
            };
            output.print_result(&project.budget, || describe_budget(project.budget.as_ref()))
        }
        Command::Rm { id } => {
            let removed = client.remove_project(*id).await?;
            output.print_result(&removed, || format!("{id} is removed"))
        }
        Command::Members { id } => print_members(&client.list_members(*id).await?.items, output),
        Command::AddMember { id, user, role } => {
            let member = client.set_member(*id, *user, &SetMember { role: *role }).await?;
            output.print_result(&member, || format!("{user} is {role} of {id}"))
        }
        Command::RmMember { id, user } => {
            client.remove_member(*id, *user).await?;
            let removed = serde_json::json!({ "user_id": user, "role": null });
            output.print_result(&removed, || format!("{user} is no longer a member of {id}"))
        }
    }
}

async fn all_projects(client: &ConnectedClient) -> Result<Vec<ApiProject>> {
    collect_all(async |cursor| client.list_projects(&page_query(cursor)).await).await
}

fn budget_change(dollars: LimitValue, per: Option<BudgetPeriod>) -> ChangeProject {
    let budget = dollars.value().map(|usd| NewBudget { usd, per });
    ChangeProject { budget: Some(budget), ..ChangeProject::default() }
}

/// A budget and its use in one line.
fn describe_budget(budget: Option<&Budget>) -> String {
    let Some(budget) = budget else { return "none".to_owned() };
    let usd = format_dollars(budget.usd);
    let per = match budget.per {
        BudgetPeriod::Ever => " in total".to_owned(),
        per => format!(" a {per}"),
    };
    let used = budget.spent.map(|spent| format!(", {} spent", format_dollars(spent))).unwrap_or_default();
    let left = budget.left.map(|left| format!(", {} left", format_dollars(left))).unwrap_or_default();
    let until = budget.until.map(|until| format!(" until {}", time::format_time(until))).unwrap_or_default();
    format!("{usd}{per}{used}{left}{until}")
}

/// Formats cents, or more digits if the amount has them.
fn format_dollars(dollars: f64) -> String {
    let cents = (dollars * 100.0).round() / 100.0;
    if (dollars - cents).abs() < 5e-7 { format!("${cents:.2}") } else { format!("${dollars:.6}") }
}

fn print_list(projects: &[ApiProject], output: &Output) -> Result {
    let now = time::now();
    table::print_list(output, projects, &["ID", "", "AGE", "NAME"], |project| {
        let default = if project.is_default { "default" } else { "" };
        let (id, age) = (project.id.to_string(), time::format_age(project.created_at, now));
        [id.as_str(), default, &age, &project.name].map(table::cell).into()
    })
}

fn print_members(members: &[Member], output: &Output) -> Result {
    table::print_list(output, members, &["USER", "ROLE"], |member| {
        vec![table::cell(member.user_id.to_string()), table::cell(member.role.as_str())]
    })
}

fn print_project(project: &ApiProject, output: &Output) -> Result {
    if output.json {
        return output.print_response(project);
    }
    Fields::new()
        .field("id", project.id)
        .field("name", &project.name)
        .field("is default", project.is_default)
        .optional("repository", project.repo.as_ref().and_then(|repo| repo.url.clone().or_else(|| repo.path.clone())))
        .entries("default", project.defaults.iter().map(|(field, value)| format!("{field}: {}", describe_value(value))))
        .optional("budget", project.budget.as_ref().map(|budget| describe_budget(Some(budget))))
        .optional("model cost", project.usage.as_ref().map(|usage| format_cost(usage.cost, usage.cost_source)))
        .field("created", time::format_time(project.created_at))
        .print(output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn described(budget: serde_json::Value) -> String {
        describe_budget(Some(&serde_json::from_value(budget).unwrap()))
    }

    #[test]
    fn describes_a_budget_in_one_line() {
        let month =
            json!({ "usd": 50.0, "per": "month", "spent": 12.5, "left": 37.5, "until": "2026-12-01T00:00:00Z" });
        let line = described(month);
        assert!(line.starts_with("$50.00 a month, $12.50 spent, $37.50 left until 2026-12-01"), "{line}");
        let ever = json!({ "usd": 0.02, "per": "ever", "spent": 0.0051, "left": 0.0149 });
        assert_eq!(described(ever), "$0.02 in total, $0.005100 spent, $0.014900 left");
        assert_eq!(described(json!({ "usd": 5.0, "per": "day" })), "$5.00 a day");
        assert_eq!(describe_budget(None), "none");
    }

    #[test]
    fn none_removes_the_budget() {
        let change = |text: &str, per| {
            let dollars = text.parse::<LimitValue>().unwrap();
            serde_json::to_value(budget_change(dollars, per)).unwrap()
        };
        assert_eq!(change("5", None), json!({ "budget": { "usd": 5.0 } }));
        assert_eq!(change("5", Some(BudgetPeriod::Day)), json!({ "budget": { "usd": 5.0, "per": "day" } }));
        assert_eq!(change("none", None), json!({ "budget": null }));
    }
}
