//! `atoll user`: manages users.

use crate::arguments::parse_word;
use crate::confirm::Confirm;
use crate::connect::{Connect, ConnectedClient};
use crate::failure::Result;
use crate::output::Output;
use crate::pages::{collect_all, page_query};
use crate::render::fields::Fields;
use crate::render::{table, time};
use atoll_api::{ChangeUser, NewUser, User as ApiUser};
use atoll_core::id::UserId;
use atoll_core::principal::Role;

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
    /// Create a user
    #[command(after_help = "Examples:\n  atoll user new ada\n  atoll user new grace --role admin")]
    New {
        /// Name of the user
        name: String,
        /// Role: viewer, member or admin
        #[arg(long, value_parser = parse_word::<Role>, default_value = "member")]
        role: Role,
    },
    /// Show a user
    #[command(after_help = "Examples:\n  atoll user show usr_…")]
    Show {
        /// User id (usr_…)
        id: UserId,
    },
    /// Change a user's role
    #[command(after_help = "Examples:\n  atoll user role usr_… viewer")]
    Role {
        /// User id (usr_…)
        id: UserId,
        /// Role: viewer, member or admin
        #[arg(value_parser = parse_word::<Role>)]
        role: Role,
    },
    /// Remove a user and their tokens
    #[command(after_help = "Examples:\n  atoll user rm usr_…")]
    Rm {
        /// User id (usr_…)
        id: UserId,
        #[command(flatten)]
        confirm: Confirm,
    },
}

pub async fn run(user: &User, output: &Output) -> Result {
    let client = ConnectedClient::find(&user.connect)?;
    match &user.command {
        Command::Ls => print_list(&all_users(&client).await?, output),
        Command::New { name, role } => {
            let new = NewUser { name: name.clone(), role: *role };
            print_user(&client.create_user(&new).await?, output)
        }
        Command::Show { id } => print_user(&client.get_user(*id).await?, output),
        Command::Role { id, role } => {
            let change = ChangeUser { name: None, role: Some(*role) };
            print_user(&client.change_user(*id, &change).await?, output)
        }
        Command::Rm { id, confirm } => {
            confirm.require(&format!("removes the user {id} and their tokens"), output).await?;
            let removed = client.remove_user(*id).await?;
            output.print_result(&removed, || format!("{id} and their tokens are removed"))
        }
    }
}

async fn all_users(client: &ConnectedClient) -> Result<Vec<ApiUser>> {
    collect_all(async |cursor| client.list_users(&page_query(cursor)).await).await
}

fn print_list(users: &[ApiUser], output: &Output) -> Result {
    let now = time::now();
    table::print_list(output, users, &["ID", "ROLE", "AGE", "NAME"], |user| {
        let (id, age) = (user.id.to_string(), time::format_age(user.created_at, now));
        [id.as_str(), user.role.as_str(), &age, &user.name].map(table::cell).into()
    })
}

fn print_user(user: &ApiUser, output: &Output) -> Result {
    if output.json {
        return output.print_response(user);
    }
    Fields::new()
        .field("id", user.id)
        .field("name", &user.name)
        .field("role", user.role)
        .field("created", time::format_time(user.created_at))
        .print(output)
}
